"""Aimed at the order of the parts: what the first steps show beside what later ones could, and what clocks answer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from amk_bench.adversary import run as attack
from amk_bench.adversary.net import Net, Rng, access, affine
from amk_bench.mutation import aimed_search, exact
from amk_core.schedule import validate
from amk_core.schedule.ir import Schedule

ONE = (0, 1)
EARLY = ("", "RO", "RACE", "TAG", "FLOW", "COVER", "STOP", "PROXY")
USEFUL = {"uz": (3, 10, 1453), "u2": (16, 179, 3750)}  # of the random ones
LATE = ("RACE", "COVER", "FLOW", "PROXY", "ring")


def _with_labels(n: Net, labels: dict[tuple[int, bool], int]) -> Schedule:
    """Accesses of (task, whether it writes) get an identity of value."""
    s = Schedule.from_json(n.json())
    label = s.columns.acc_label.copy()
    for t in range(s.n_tasks):
        for k in range(s.columns.acc_off[t], s.columns.acc_off[t + 1]):
            label[k] = labels.get((t, bool(s.columns.acc_flags[k] & 1)), -1)
    return dataclasses.replace(s, columns=dataclasses.replace(s.columns, acc_label=label))


def early_and_late(early: str, late: str, steps: int) -> Schedule:
    """One rule is broken in every step, another one far from the first of them, or only as far as periodic clocks can tell."""
    n = Net(4, steps)
    labels: dict[tuple[int, bool], int] = {}
    rows = steps + 20
    c, back = n.counter(), n.counter()
    if late == "RACE":
        x = n.buffer(1, rows, lifetime="persistent", filled=True)
        n.task(0, [], [access(x, ONE, affine(1, add=20))])
        n.task(1, [access(x, ONE, affine(1))])
    elif late == "COVER":
        x = n.buffer(1, rows, lifetime="persistent")
        n.initial.append(access(x, ONE, (0, 15)))
        n.task(0, [access(x, ONE, affine(1))])
    elif late == "PROXY":
        x = n.buffer(1, rows, lifetime="persistent", filled=True)
        n.task(0, [], [access(x, ONE, affine(1, add=20))])
        n.task(0, [access(x, ONE, affine(1), proxy="async")])
    elif late == "FLOW":
        x = n.buffer(1, rows, lifetime="persistent", filled=True)
        labels[n.task(0, [], [access(x, ONE, affine(1, add=20))]), True] = 3
        labels[n.task(0, [access(x, ONE, affine(1))]), False] = 4
    else:
        exact.rings(n)
        n.queues += [[], []]
    a, b = len(n.queues) - 2, len(n.queues) - 1
    if early == "RO":
        y = n.buffer(1, kind="weight", lifetime="persistent", filled=True)
        n.task(a, [], [access(y, ONE)])
    elif early == "RACE":
        y = n.buffer(1, lifetime="persistent", filled=True)
        n.task(a, [], [access(y, ONE)])
        n.task(b, [access(y, ONE)])
    elif early == "TAG":
        y = n.buffer(1, dtype="tag64", tagged=True, lifetime="persistent")
        n.task(a, [], [access(y, ONE)])
        n.task(b, [access(y, ONE)])
    elif early in ("FLOW", "COVER", "PROXY"):
        y = n.buffer(1, lifetime="persistent", filled=early != "COVER")
        writes = [access(y, ONE)] if early != "COVER" else []
        labels[n.task(a, [], writes, [(back, 1, -1)], [(c, 1)]), True] = 3 if early == "FLOW" else -1
        more = {"proxy": "async"} if early == "PROXY" else {}
        labels[n.task(b, [access(y, ONE, **more)], [], [(c, 1)], [(back, 1)]), False] = 4 if early == "FLOW" else -1
    elif early == "STOP":
        y = n.buffer(1, dtype="i32", lifetime="persistent")
        n.extra["stop"] = {"buffer": y, "task": n.task(a, [], [access(y, ONE)])}
        n.task(b)
    return _with_labels(n, labels)


def fences() -> Iterator[Schedule]:
    """Asynchronous reads behind every fence: only one of them is for reads."""
    for names in ([], ["bulk.wait_group"], ["bulk.wait_group.read"], ["proxy.async"], ["proxy.async", "bulk.wait_group"]):
        for readers in (1, 9):
            n = Net(2)
            x, c = n.buffer(1), n.counter()
            n.task(0, [], [access(x, ONE)], [], [(c, 1)])
            for k in range(readers):
                n.task(1, [access(x, ONE, **({"proxy": "async"} if k == readers - 1 else {}))], [], [(c, 1)], fences=names)
            yield Schedule.from_json(n.json())


def labels() -> Iterator[Schedule]:
    """Readers of one value, of any, or of one each, after a write of another one."""
    for written, wanted in (
        (4, (0,)),
        (0, (4,)),
        (0, (0,)),
        (4, (0,) * 9),
        (0, (0,) * 9),
        (4, (4, 4, 4, 4, 4, 4, 4, 4, 0)),
        (4, (-1,) * 9),
    ):
        n = Net(2)
        x, c = n.buffer(1), n.counter()
        values = {(n.task(0, [], [access(x, ONE)], [], [(c, 1)]), True): written}
        for value in wanted:
            values[n.task(1, [access(x, ONE)], [], [(c, 1)]), False] = value
        yield _with_labels(n, values)


def useful(rng: Rng, clipped: bool) -> Schedule | None:
    """A task of a real op whose value one other task needs, which makes an output of it: not dead, whatever the clocks leave open.

    ``clipped``: nets of so many steps or tasks that clocks are given up.  The schedule is not one that the program would lower: the
    task has the code of an op and no more of it.
    """
    if clipped and rng.random() < 0.2:
        n = exact.net(rng, rng.choice((2, 2, 3)), rng.randint(16, 30), 1)
    else:
        n = aimed_search.net(rng)
        n.steps = rng.choice((300, 1000, 5000) if clipped else (1, 1, 2, 3, 5, 300, 1000))
    c = validate(Schedule.from_json(n.json()), witness=False).certificate
    if c is None:
        return None
    known = exact.lags(n, c)
    pairs = [
        (a, b)
        for (a, b), lag in known.items()
        if lag == 0 and ((clipped and n.steps == 1) or ((back := known.get((b, a))) is not None and back <= 1))
    ]
    if not pairs:
        return None
    if not clipped:
        rng.shuffle(pairs)
    maker, taker = rng.choice(pairs) if clipped else pairs[0]
    value, out = n.buffer(1), n.buffer(1, kind="output", lifetime="persistent")
    n.tasks[maker]["writes"].append(access(value, ONE))
    n.tasks[taker]["reads"].append(access(value, ONE))
    n.tasks[taker]["writes"].append(access(out, ONE))
    s = Schedule.from_json(n.json())
    op = s.columns.task_op.copy()
    op[maker] = 1
    return dataclasses.replace(s, columns=dataclasses.replace(s.columns, task_op=op))


def stops() -> Iterator[Schedule]:
    """A decision to stop that the first task of each queue has to know: by its wait, by that of a task before it, or hardly."""
    for steps in (2, 3, 12):
        for by in ("wait", "last", "late wait", "this step", "fewer", "nobody"):
            for others in (0, 1):
                n = Net(2, steps)
                y, c, d = n.buffer(1, dtype="i32", lifetime="persistent"), n.counter(), n.counter()
                for _ in range(others):
                    n.task(0, signals=[(c, 1)])
                n.extra["stop"] = {"buffer": y, "task": n.task(0, [], [access(y, ONE)], [], [(c, 1)])}
                for _ in range(others):
                    n.task(0, signals=[(c, 1)])
                there = others + 1
                n.task(1, waits=[(c, there, -1)] if by == "wait" else [(c, 1, 0)] if by == "this step" else [], signals=[(d, 1)])
                if by == "fewer":
                    n.tasks[-1]["waits"] = [[c, max(1, there - 1), -1]]
                n.task(1, waits=[(c, there, -1)] if by == "late wait" else [(c, there, 0)] if by == "last" else [])
                yield Schedule.from_json(n.json())


def unsaid() -> Iterator[Schedule]:
    """Of several producers one knows nothing: so does who waits for few of them, however much the others say."""
    for amount in (1, 1000, 1_000_000):
        for steps in (3, 5000):
            for swap in (False, True):
                n = Net(4, steps)
                ahead, c, back = n.counter(), n.counter(), n.counter()
                n.task(0, signals=[(ahead, 1)])
                n.task(1, waits=[(ahead, 1)], signals=[(c, amount if not swap else 1)])
                n.task(2, waits=[], signals=[(c, 1 if not swap else amount)])
                x = n.buffer(1, steps + 1, lifetime="persistent", filled=True)
                n.task(3, [access(x, ONE, affine(1))], waits=[(c, max(1, amount // 2))], signals=[(back, 1)])
                n.tasks[2]["waits"] = [[back, 1, -1]]
                yield Schedule.from_json(n.json())


def values() -> Iterator[Schedule]:
    """Two buffers on the same bytes that meet only at values below the least of a variable."""
    for least in (1, 2, 3):
        n = Net(2)
        n.extra["variables"] = {"w": {"count": 1, "min": least, "max": 5}}
        x = n.buffer(1, 5, lifetime="persistent", filled=True, offset=0)
        y = n.buffer(1, 5, lifetime="persistent", filled=True, offset=0)
        n.task(0, [], [access(x, ONE, affine(0, base="w[0]", mod=5))])
        n.task(1, [access(y, ONE, (1, 3))])
        yield Schedule.from_json(n.json())


def ends() -> Iterator[Schedule]:
    """A reader that overtakes a writer in all steps but the last ones, for want of others' signals; they meet there, or earlier."""
    for steps in (3, 4, 5):
        for meet in (0, 1):
            n = Net(4, steps)
            c, d = n.counter(), n.counter()
            x = n.buffer(1, 2 * steps + 2, lifetime="persistent", filled=True)
            line = affine(-1, add=2 * steps - 3 - 2 * meet)
            n.task(0, [], [access(x, ONE, line)], [(d, 1, -1)], [(c, 1)])
            n.task(1, signals=[(c, 1)])
            n.task(2, signals=[(c, 1)])
            n.task(3, [access(x, ONE, affine(1))], [], [(c, 2)], [(d, 1)])
            yield Schedule.from_json(n.json())


def stuck() -> Iterator[Schedule]:
    """A queue that waits for ever in the first step: ranges that meet in later steps only are nobody's concern."""
    for ahead in (0, 1, 2):
        for moves in (False, True):
            n = Net(3, 3)
            x, c, d = n.buffer(1, 8, lifetime="persistent", filled=True), n.counter(), n.counter()
            n.task(0, [], [access(x, ONE, affine(1, add=ahead) if moves else (ahead, ahead + 1))])
            n.task(1, [access(x, ONE, affine(1))])
            n.task(2, waits=[(c, 1)], signals=[(d, 1)])
            n.task(2, signals=[(c, 1)])
            yield Schedule.from_json(n.json())


def schedules() -> Iterator[Schedule]:
    """All of them."""
    yield early_and_late("", "ring", 100)
    for index in range(4):
        yield Schedule.from_json(attack.schedule_json("real_lowering", 55, index))
    yield from fences()
    yield from labels()
    yield from stops()
    yield from unsaid()
    yield from values()
    yield from stuck()
    yield from ends()


def twice_broken() -> Iterator[Schedule]:
    """One rule in every step, another one late."""
    for steps in (12, 100, 20_000):
        for early in EARLY[1:]:
            for late in LATE:
                yield early_and_late(early, late, steps)


def never_dead() -> Iterator[Schedule]:
    """Those of ``useful`` that some mutant takes for dead."""
    for seed, numbers in USEFUL.items():
        for k in numbers:
            s = useful(random.Random(f"{seed}/{k}"), clipped=seed == "u2")
            if s is not None:
                yield s
