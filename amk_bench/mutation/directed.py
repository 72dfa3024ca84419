"""Tables and certificates aimed at single rules of the checker: far distances, clocks that fall, proofs taken twice."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np

from amk_bench.adversary.net import Json, Net, Rng, access
from amk_bench.mutation import small
from amk_bench.mutation.small import Case
from amk_core.schedule import validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import pack


def _certificate(n: Net) -> Certificate:
    """Of a net that is safe, with a row for each task."""
    c = validate(Schedule.from_json(n.json()), witness=False).certificate
    if c is None:
        raise RuntimeError("a net that is safe by its making is not accepted")
    return small.unshared(c)


def distant(rng: Rng, count: int) -> Iterator[Case]:
    """Two ranges that move at different speeds and meet many steps apart, in the middle, or not at all."""
    for _ in range(count):
        forward, backward = rng.choice(((None, 0), (0, None), (1, 1), (1, None), (None, 1)))
        n = small.pair(forward, backward, rng.randint(6, 12))
        c = _certificate(n)
        n.extra["variables"] = {"w": {"count": 1, "min": 2, "max": rng.choice((3, 20))}}
        x = n.buffer(1, 60, lifetime="persistent")
        lines = []
        alike, stride = rng.random() < 0.4, rng.randint(-3, 3)
        for _ in range(2):
            start: Json = {"stride": stride if alike else rng.randint(-3, 3), "add": rng.randint(0, 40), "mod": None}
            if rng.random() < 0.2:
                start["mod"] = rng.choice((2, 3, 7))
            if rng.random() < 0.3:
                start["base"] = "w[0]"
            length: object = rng.choice((1, 1, 2))
            if rng.random() < 0.2:
                length = {
                    "stride": rng.choice((0, 1, -1)),
                    "add": rng.choice((0, 1, 5)),
                    **({"base": "w[0]"} if rng.random() < 0.4 else {}),
                }
            lines.append({"start": start, "length": length})
        n.tasks[0]["writes"], n.tasks[1]["reads"] = [access(x, (0, 1), lines[0])], [access(x, (0, 1), lines[1])]
        s = Schedule.from_json(n.json())
        if not s.defects:
            yield pack(s), c


def falling() -> Iterator[Case]:
    """Producers of one queue that know less and less: what the first of them has says nothing about the rest."""
    for queue in (0, 1):
        n = Net(3)
        seen, back, c = n.counter(), n.counter(), n.counter()
        other = 1 - queue
        n.task(other, signals=[(seen, 1)])
        producers = [n.task(queue, waits=[(seen, 1), (back, 1, -1)] if k == 0 else [], signals=[(c, 1)]) for k in range(3)]
        n.task(2, waits=[(c, 1)], signals=[(back, 1)])
        for threshold in (1, 2, 3):
            n.tasks[-1]["waits"] = [[c, threshold, 0]]
            given, tables = _certificate(n), pack(Schedule.from_json(n.json()))
            for less in ((0, 1, 2), (0, 0, 1), (0, 1, 1), (0, 1, 0), (0, 9, 9), (0, 0, 9)):
                for only in (None, other, 2):
                    rows = small.entries(given)
                    for p, d in zip(producers, less, strict=True):
                        for r in [r for r in rows[p] if only is None or r == only]:
                            rows[p][r] -= d
                            if d == 9:
                                del rows[p][r]
                    yield tables, small.of_rows(given, rows)


def taken_twice(rng: Rng) -> Iterator[Case]:
    """Two tasks of one clock and like waits, behind other tasks: what proves it for one may prove nothing for the other."""
    for first in (False, True):
        for wait, other in (((1, 0), (1, 0)), ((1, 0), (2, -1)), ((1, -1), (1, -1)), ((1, 0), (1, -1))):
            n = Net(4, 3)
            c, d = n.counter(), n.counter()
            n.task(2, signals=[(d, 1)])
            n.task(2)
            n.task(3, signals=[(c, 1)])
            n.task(3, signals=[(c, 1)])
            twins, knowing = [], []
            for queue, (t, e) in ((0, wait), (1, other)):
                informed: list[list[int]] = [[d, 1, 0]] if queue == 0 or first else []
                late = first and queue == 1
                if not late:
                    knowing.append(n.task(queue, waits=informed))
                twins.append(n.task(queue, waits=[(c, t, e)]))
                if late:
                    knowing.append(n.task(queue, waits=informed))
            lengths, tables, given = [len(q) for q in n.queues], pack(Schedule.from_json(n.json())), _certificate(n)
            rows = small.entries(given)
            for task in knowing:
                rows[task] = {r: v for r, v in rows[task].items() if r == 2}
            given = small.of_rows(given, rows)
            for clocks in (given, small.written_out(given, lengths, 3), small.written_out(given, lengths, 4)):
                copies, size = clocks.row.size // len(n.tasks), len(n.tasks)
                for i in range(copies):
                    for j in range(copies):
                        for a, b in (twins, twins[::-1]):
                            row = clocks.row.copy()
                            row[b + i * size] = row[a + j * size]
                            merged = dataclasses.replace(clocks, row=row)
                            yield tables, merged
                            yield from ((tables, _renumbered(rng, merged)) for _ in range(6 if copies == 1 else 1))


def _renumbered(rng: Rng, c: Certificate) -> Certificate:
    """The same clocks in rows of other numbers; tasks of equal clocks share one at times."""
    rows, row = small.entries(c), c.row.tolist()
    if rng.random() < 0.5:
        row = [rows.index(rows[k]) for k in row]
    order = list(range(len(rows)))
    rng.shuffle(order)
    moved = np.array([order.index(k) for k in row], np.int32)
    return small.of_rows(dataclasses.replace(c, row=moved), [rows[k] for k in order])


def without_bound() -> Iterator[Case]:
    """A producer that knows nothing of a queue, beside amounts so large that minus infinity as a number is below the threshold."""
    n = Net(4)
    go, c = n.counter(), n.counter()
    n.task(2, signals=[(go, 1)])
    n.task(2)
    n.task(0, signals=[(c, 1)])
    n.task(1, waits=[(go, 1)], signals=[(c, 2**30 + 9)])
    n.task(3, waits=[(c, 2**30 + 10)])
    given = dataclasses.replace(_certificate(n), unroll=0)
    for value in (1, 0, -1, -2, 1 - 2**31, 2 - 2**31):
        rows = small.entries(given)
        rows[4] = {2: value}
        yield pack(Schedule.from_json(n.json())), small.of_rows(given, rows)


def in_the_middle() -> Iterator[Case]:
    """Ranges that keep their distance but for a modulus or a growing length, and meet in a late step only."""
    for mod, grows in ((7, 0), (None, 1)):
        for swap in (False, True):
            for steps in (5, 6, 9, 12):
                n = small.pair(1, 1, steps)
                given = _certificate(n)
                n.extra["variables"] = {"w": {"count": 1, "min": 0, "max": 1}}
                x = n.buffer(2, 40, lifetime="persistent")
                wraps = (
                    {"start": {"stride": 1, "mod": 7, "add": 0}, "length": 1},
                    {"start": {"stride": 1, "mod": None, "add": -7}, "length": 1},
                )
                longer = (
                    {"start": {"stride": 0, "mod": None, "add": 0}, "length": {"stride": 1, "add": 1}},
                    {"start": {"stride": 0, "mod": None, "add": 5, "base": "w[0]"}, "length": 1},
                )
                cols = {"start": {"stride": 0, "mod": mod, "add": 0}, "length": {"stride": grows, "add": 1}}
                lines = [access(x, cols, (wraps if mod else longer)[0]), access(x, (0, 1), (wraps if mod else longer)[1])]
                n.tasks[0]["writes"], n.tasks[1]["reads"] = ([line] for line in (lines[::-1] if swap else lines))
                yield pack(Schedule.from_json(n.json())), given


def cases(seed: int, distances: int = 3000) -> Iterator[Case]:
    """All of them."""
    rng = random.Random(f"{seed}/directed")
    yield from without_bound()
    yield from falling()
    yield from taken_twice(rng)
    yield from in_the_middle()
    yield from distant(rng, distances)
