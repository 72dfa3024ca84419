"""Nets whose safety hangs on every single clock: a conflict needs each order that holds, at the distance where it begins."""

from __future__ import annotations

from collections.abc import Iterator

from amk_bench.adversary.net import Json, Net, Range, Rng, access, affine
from amk_bench.mutation.small import entries
from amk_core.schedule import validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule


def net(rng: Rng, queues: int, tasks: int, steps: int) -> Net:
    """Waits and signals alone: thresholds of all sizes, amounts of more than one, waits for the step before.  It never stops."""
    n = Net(queues, steps)
    used = [n.counter() for _ in range(rng.randint(1, 3))]
    there = [0] * len(used)  # signals of the tasks so far: a wait of this step for no more than these always ends
    for k in range(tasks):
        waits = [(c, rng.randint(1, there[c]), 0) for c in used if there[c] and rng.random() < 0.35]
        signals = [(c, rng.choice((1, 1, 2, 3))) for c in used if rng.random() < 0.5]
        for c, amount in signals:
            there[c] += amount
        n.task(k if k < queues else rng.randrange(queues), waits=waits, signals=signals)
    for task in n.tasks:
        task["waits"] += [[c, rng.randint(1, there[c]), -1] for c in used if there[c] and rng.random() < 0.25]
    return n


def lags(n: Net, given: Certificate) -> dict[tuple[int, int], int | None]:
    """Tasks of different queues -> the least number of steps after which the second follows the first; None: never."""
    rows = entries(given)
    at = {b: (q, k) for q, tasks in enumerate(n.queues) for k, b in enumerate(tasks)}
    out: dict[tuple[int, int], int | None] = {}
    for a, (qa, pos) in at.items():
        for b, (qb, _) in at.items():
            if qa == qb:
                continue
            v = rows[int(given.row[b])].get(qa, 0 if given.unroll else None)
            length = len(n.queues[qa])
            out[a, b] = None if v is None else max(0, -((v - pos - 1) // length))
            if given.unroll:  # one step
                out[a, b] = 0 if v is not None and v > pos else None
    return out


def meet(n: Net, a: int, b: int, lag: int, moves: bool) -> None:
    """What a writes in a step, b reads so many steps later; standing still, they meet in every step."""
    write: Range
    read: Range
    if moves:
        x = n.buffer(1, n.steps + lag, lifetime="persistent", filled=True)
        write, read = affine(1, add=lag), affine(1)
    else:
        x = n.buffer(1, lifetime="persistent", filled=True)
        write = read = (0, 1)
    n.tasks[a]["writes"].append(access(x, (0, 1), write))
    n.tasks[b]["reads"].append(access(x, (0, 1), read))


def rings(n: Net) -> None:
    """Two more queues whose ring is only decided when all steps are written out."""
    first = len(n.queues)
    n.queues += [[], []]
    ring, c, free = n.buffer(1, rows=5, lifetime="persistent"), n.counter(), n.counter()
    n.task(first, [], [access(ring, (0, 1), affine(1, mod=5))], [(free, 1, -1)], [(c, 1)])
    n.task(first + 1, [access(ring, (0, 1), affine(1, mod=5))], [], [(c, 1)], [(free, 1)])


def schedules(rng: Rng, count: int) -> Iterator[Schedule]:
    """Of each net: all of its orders, and one order too many."""
    for k in range(count):
        steps = rng.choice((1, 1, 3, 4, 5, 7))
        n = net(rng, rng.randint(2, 4), rng.randint(4, 8), steps)
        c = validate(Schedule.from_json(n.json()), witness=False).certificate
        if c is None:
            continue
        known = lags(n, c)
        ordered = [(pair, lag) for pair, lag in known.items() if lag is not None and lag < steps]
        early: list[tuple[tuple[int, int], int]] = [(pair, lag - 1) for pair, lag in ordered if lag]
        early += [(pair, rng.randrange(min(steps, 3))) for pair, lag in known.items() if lag is None]
        rng.shuffle(ordered)
        for (a, b), lag in ordered[:10]:
            back = known[b, a]
            meet(n, a, b, lag, moves=not (lag == 0 and back is not None and back <= 1 and rng.random() < 0.7))
        if steps == 7 and k % 2:
            rings(n)
        yield Schedule.from_json(n.json())
        if early:
            (a, b), lag = rng.choice(early)
            wrong: Json = n.json()
            m = Net(1, steps)
            m.__dict__.update(n.__dict__)
            m.tasks, m.buffers, m.initial, m._top = wrong["tasks"], wrong["buffers"], wrong["initial"], dict(n._top)
            meet(m, a, b, lag, moves=True)
            yield Schedule.from_json(m.json())
