"""Aimed at the search for clocks: nets in which every order that holds is needed, of the shapes that small nets seldom have.

Chains whose first producer knows nothing, queues beyond one word of bits, many steps in which clocks drift, more rows than a limit.
The numbers in ``CHOSEN`` are those of the random nets that some mutant judges otherwise, and no other case of the corpus.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from amk_bench.adversary.net import Net, Rng
from amk_bench.mutation import exact
from amk_core.schedule import validate
from amk_core.schedule.ir import Schedule


def net(rng: Rng) -> Net:
    """Waits and signals alone, some counters with all producers on one queue."""
    rng.random()
    queues = rng.choice((2, 2, 3, 3, 4, 5))
    tasks = rng.randint(queues, rng.choice((5, 8, 12)))
    n = Net(queues, rng.choice((1, 2, 2, 3, 3, 4, 5, 7, 12)))
    used = [n.counter() for _ in range(rng.randint(1, 4))]
    there = [0] * len(used)  # signals of the tasks so far: a wait of this step for no more than these always ends
    wait, signal, back = rng.choice((0.2, 0.35, 0.6)), rng.choice((0.3, 0.5, 0.8)), rng.choice((0.1, 0.25, 0.5))
    amounts = rng.choice(((1,), (1, 1, 2, 3), (1, 2, 5)))
    home = [rng.randrange(queues) if rng.random() < 0.5 else None for _ in used]
    for k in range(tasks):
        q = k if k < queues and rng.random() < 0.9 else rng.randrange(queues)
        waits = [(c, rng.randint(1, there[c]), 0) for c in used if there[c] and rng.random() < wait]
        signals = [(c, rng.choice(amounts)) for c in used if rng.random() < signal and home[c] in (None, q)]
        if rng.random() < 0.05 and signals:
            signals.append(signals[0])
        for c, amount in signals:
            there[c] += amount
        n.task(q, waits=waits, signals=signals)
    for task in n.tasks:
        task["waits"] += [[c, rng.randint(1, there[c]), -1] for c in used if there[c] and rng.random() < back]
        rng.shuffle(task["waits"])
    return n


def demanding(n: Net, rng: Rng, most: int = 60) -> Schedule | None:
    """A conflict for each order that the net holds, at the distance where it begins."""
    c = validate(Schedule.from_json(n.json()), witness=False).certificate
    if c is None:
        return None
    ordered = [(pair, lag) for pair, lag in exact.lags(n, c).items() if lag is not None and lag < n.steps]
    rng.shuffle(ordered)
    for (a, b), lag in ordered[:most]:
        exact.meet(n, a, b, lag, moves=n.steps > 1)
    return Schedule.from_json(n.json())


def wide(rng: Rng) -> Schedule | None:
    """A few queues among many idle ones, at the borders of words of 64 bits."""
    n = net(rng)
    n.steps = rng.choice((3, 5, 12, 1000))
    width = rng.choice((65, 66, 128, 129, 130))
    border = [x for x in (0, 1, 31, 62, 63, 64, 65, 126, 127, 128, 129) if x < width]
    queues: list[list[int]] = [[] for _ in range(width)]
    for at, tasks in zip(sorted(rng.sample(border, len(n.queues))), n.queues, strict=True):
        queues[at] = tasks
    n.queues = queues
    return demanding(n, rng)


def drifting(rng: Rng) -> Schedule | None:
    """So many steps that a clock may fall for long."""
    n = net(rng)
    n.steps = rng.choice((2, 3, 300, 1000, 5000))
    return demanding(n, rng)


def once(rng: Rng) -> Schedule | None:
    """Many tasks in one step."""
    return demanding(exact.net(rng, rng.choice((2, 2, 3)), rng.randint(8, 30), 1), rng, 30)


def early(rng: Rng) -> Schedule | None:
    """A conflict one step before its order begins, or without one."""
    n = net(rng)
    c = validate(Schedule.from_json(n.json()), witness=False).certificate
    if c is None:
        return None
    known = exact.lags(n, c)
    wrong = [(pair, lag - 1) for pair, lag in known.items() if lag is not None and lag < n.steps and lag]
    wrong += [(pair, rng.randrange(min(n.steps, 3))) for pair, lag in known.items() if lag is None]
    if not wrong:
        return None
    (a, b), lag = rng.choice(wrong)
    exact.meet(n, a, b, lag, moves=True)
    return Schedule.from_json(n.json())


def chain(rng: Rng) -> Schedule | None:
    """Producers on one queue, of which the first knows nothing of what a later one knows."""
    n = Net(rng.choice((3, 4)), rng.choice((2, 2, 3)))
    ahead, c = n.counter(), n.counter()
    producers = rng.randint(2, 4)
    knows, length = rng.randrange(1, producers), rng.randint(2, 4)
    for k in range(producers):
        n.task(0, waits=[(ahead, 1, -1)] if k == knows else [], signals=[(c, rng.choice((1, 1, 2)))])
    for k in range(length):
        n.task(1, signals=[(ahead, 1)] if k == rng.randrange(length) or k == 0 else [])
    total = sum(amount for task in n.tasks for counter, amount in task["signals"] if counter == c)
    for _ in range(rng.choice((1, 2))):
        n.task(2, waits=[(c, rng.randint(1, total), rng.choice((0, 0, -1)))])
    if len(n.queues) == 4:
        n.task(3, waits=[(c, rng.randint(1, total), -1)], signals=[(ahead, 1)])
    return demanding(n, rng)


def plain(rng: Rng) -> Schedule | None:
    """Any net."""
    return demanding(net(rng), rng)


KINDS: tuple[Callable[[Rng], Schedule | None], ...] = (wide, drifting, drifting, once, early, chain, plain)
CHOSEN: dict[str, tuple[int, ...]] = {
    "mx1": (6, 11, 15, 34, 41, 57, 71, 131, 142, 143, 156, 193, 215, 253, 546, 591, 731, 1010, 1168, 1209, 1384),
}


def random_net(rng: Rng) -> Schedule | None:
    """Of any kind."""
    return rng.choice(KINDS)(rng)


def schedules() -> Iterator[Schedule]:
    """All of them."""
    for steps in (1, 3):
        yield Schedule.from_json(Net(0, steps).json())
        yield Schedule.from_json(Net(2, steps).json())
    for seed, numbers in CHOSEN.items():
        for k in numbers:
            s = random_net(random.Random(f"{seed}/{k}"))
            if s is not None:
                yield s
