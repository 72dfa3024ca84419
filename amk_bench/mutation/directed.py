"""Tables and certificates aimed at single rules of the checker: far distances, clocks that fall, proofs taken twice."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from amk_bench.adversary.net import Json, Net, Rng, access, affine
from amk_bench.mutation import small
from amk_bench.mutation.small import Case
from amk_core.schedule import validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC, pack, read_sections, write_sections

MOST = 2**61  # elements of a plain range end before


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


def _stated(n: Net, rows: list[dict[int, int]], row: list[int], unroll: int = 0) -> Certificate:
    """Of a net without accesses, with these clocks: rows of {queue: entry}, and the row of each instance."""
    given = dataclasses.replace(_certificate(n), unroll=unroll, row=np.array(row, np.int32))
    return small.of_rows(given, rows)


def same_rows() -> Iterator[Case]:
    """Pairs of the same rows: of the first the columns are apart, of the second they meet, in no order at all."""
    for wrote, first, second in (
        ((1, 2), (0, 1), (1, 2)),
        ((0, 1), (1, 2), (0, 1)),
        ((2, 4), (0, 2), (1, 3)),
        ((0, 2), (3, 4), (1, 3)),
    ):
        for ordered in (False, True):
            n = small.pair(1 if ordered else None, 0 if ordered else None, 3)
            given = _certificate(n)
            x = n.buffer(4, 6, lifetime="persistent")
            n.tasks[0]["writes"] = [access(x, wrote, affine(1))]
            n.tasks[1]["reads"] = [access(x, first, affine(1)), access(x, second, affine(1))]
            yield pack(Schedule.from_json(n.json())), given


def one_memo() -> Iterator[Case]:
    """What a task has proved may be taken for another one of the same clock only with the same past and the same wait."""
    # One task has the entry from the task before it, the other one is the first of its queue.
    n = Net(4)
    c, d = n.counter(), n.counter()
    n.task(0, waits=[(d, 1)]), n.task(0, waits=[(c, 1)])
    n.task(1, waits=[(c, 1)])
    n.task(2, signals=[(d, 1)]), n.task(3, signals=[(c, 1)])
    tables = pack(Schedule.from_json(n.json()))
    for unroll in (0, 1):
        for late in ({2: 1}, {}):
            yield tables, _stated(n, [{2: 1}, {2: 1}, {}, late], [0, 1, 1 if late else 3, 2, 2], unroll)
    # Waits for one sum of step and threshold, of which the later one says more.
    n = Net(3)
    c = n.counter()
    n.task(0, waits=[(c, 1)]), n.task(1, waits=[(c, 2, -1)])
    n.task(2, signals=[(c, 1)]), n.task(2, signals=[(c, 1)])
    for value in (1, 0, -1):
        yield pack(Schedule.from_json(n.json())), _stated(n, [{2: value}, {}], [0, 0, 1, 1])
    # Waits for a step and for the one before it, in steps that are two apart.
    n = Net(3, 2)
    c = n.counter()
    n.task(0), n.task(0, waits=[(c, 1)])
    n.task(1), n.task(1, waits=[(c, 1, -1)])
    n.task(2, signals=[(c, 1)])
    for early in (2, 0):
        yield pack(Schedule.from_json(n.json())), _stated(n, [{}, {2: 1}, {2: 2}], [0, 1, 0, early, 0, 0, 2, 0, 1, 0], 2)
    # An entry of the first one's own queue, which nothing proves for the second.
    n = Net(3)
    c = n.counter()
    n.task(0), n.task(0, waits=[(c, 1)])
    n.task(1), n.task(1, waits=[(c, 1)])
    n.task(2, signals=[(c, 1)])
    for unroll in (0, 1):
        for own in ({0: 1}, {}):
            yield pack(Schedule.from_json(n.json())), _stated(n, [{}, {2: 1, **own}], [0, 1, 0, 1, 0], unroll)


def falling_everywhere() -> Iterator[Case]:
    """Producers of one queue whose entries are fewer from one to the next, for every other queue."""
    n = Net(3)
    seen, back, c = n.counter(), n.counter(), n.counter()
    n.task(1, signals=[(seen, 1)])
    n.task(0, waits=[(seen, 1), (back, 1, -1)], signals=[(c, 1)]), n.task(0, signals=[(c, 1)])
    n.task(2, waits=[(c, 1)], signals=[(back, 1)])
    for threshold in (1, 2):
        n.tasks[-1]["waits"] = [[c, threshold, 0]]
        for known in (1, 0):
            rows: list[dict[int, int]] = [{}, {1: 1, 2: 0}, {1: 0, 2: -1}, {1: known}]
            yield pack(Schedule.from_json(n.json())), _stated(n, rows, [0, 1, 2, 3])


def many_rows() -> Iterator[Case]:
    """Periodic clocks of more entries than the dense table holds."""
    n = Net(4)
    c = n.counter()
    for _ in range(12):
        n.task(0, signals=[(c, 1)])
    for k, threshold in enumerate((12, 6, 1)):
        n.task(k + 1, waits=[(c, threshold)])
    tables = pack(Schedule.from_json(n.json()))
    for known in ((12, 6, 1), (12, 7, 1), (12, 6, 2), (11, 5, 0)):
        rows: list[dict[int, int]] = [{} for _ in range(12)]
        yield tables, _stated(n, [*rows, *({0: v} for v in known)], list(range(15)))


def last_corner() -> Iterator[Case]:
    """Ranges of different speeds that meet in the last step alone, with what one of them had four steps before."""
    for steps in (7, 8, 9):
        for swap, distance in ((False, None), (True, None), (False, 4), (True, 4)):
            n = small.pair(0, distance, steps) if swap else small.pair(distance, 0, steps)
            given = _certificate(n)
            early = steps - 5
            slow, fast = early + 1, early + 2
            x = n.buffer(1, 100, lifetime="persistent")
            writes = access(x, (0, 1), affine(fast, add=slow * (steps - 1) - fast * early))
            reads = access(x, (0, 1), affine(slow))
            n.tasks[int(swap)]["writes"], n.tasks[1 - int(swap)]["reads"] = [writes], [reads]
            yield pack(Schedule.from_json(n.json())), given


def tagged_columns() -> Iterator[Case]:
    """Columns of a tag that move away from, or into, those of a reader which replay runs before its writer."""
    for moves in ("writes", "reads"):
        for add in (0, 1, 3):
            n = Net(2, 3)
            n.task(0), n.task(1)
            given = _certificate(n)
            tag = n.buffer(6, dtype="tag64", lifetime="persistent", tagged=True)
            lines = {"writes": [access(tag, (2, 3))], "reads": [access(tag, (2, 3))]}
            lines[moves] = [access(tag, affine(1, add=add))]
            n.tasks[0]["writes"], n.tasks[1]["reads"] = lines["writes"], lines["reads"]
            tables = pack(Schedule.from_json(n.json()))
            for order in ((0, 1), (1, 0)):
                yield tables, dataclasses.replace(given, replay=np.array(order, np.int32))


def wrapped_of_many() -> Iterator[Case]:
    """A range that its modulus brings back to the start, for more values of a variable than are tried."""
    for side in (0, 1):
        for ordered in (False, True):
            n = small.pair(1 if ordered else None, 0 if ordered else None, 2)
            given = _certificate(n)
            n.extra["variables"] = {"w": {"count": 1, "min": 0, "max": 400}}
            x = n.buffer(1, 8, lifetime="persistent")
            n.tasks[side]["writes"] = [access(x, (0, 1), affine(0, base="w[0]", mod=7, add=100))]
            n.tasks[1 - side]["reads"] = [access(x, (0, 1), (0, 1))]
            yield pack(Schedule.from_json(n.json())), given


def damaged() -> Iterator[Case]:
    """Tables that no checker may take: columns of 2^61 and more, and queues without their last task."""
    n = Net(2)
    n.task(0), n.task(1)
    given = _certificate(n)
    x = n.buffer(4, lifetime="persistent")
    n.tasks[0]["writes"], n.tasks[1]["reads"] = [access(x, (0, 1))], [access(x, (1, 2))]
    sections = read_sections(MAGIC, pack(Schedule.from_json(n.json())))
    for lo, hi in ((2, MOST), (2 - MOST, 2**63 - 1), (-MOST, 1), (-(2**63), 1), (-(2**63), 2**63 - 1)):
        changed = {name: a.copy() for name, a in sections.items()}
        changed["acc_c0"][0], changed["acc_c1"][0] = lo, hi
        yield write_sections(MAGIC, changed), given
    changed = {name: a.copy() for name, a in sections.items()}
    changed["queue_task"], changed["queue_off"][-1] = changed["queue_task"][:-1], changed["queue_off"][-1] - 1
    yield write_sections(MAGIC, changed), given


SINGLE: tuple[Callable[[], Iterator[Case]], ...] = (
    same_rows, one_memo, falling_everywhere, many_rows, last_corner, tagged_columns, wrapped_of_many,
)  # fmt: skip


def cases(seed: int, distances: int = 3000) -> Iterator[Case]:
    """All of them."""
    rng = random.Random(f"{seed}/directed")
    yield from without_bound()
    yield from falling()
    yield from taken_twice(rng)
    yield from in_the_middle()
    yield from chain.from_iterable(made() for made in SINGLE)
    yield from distant(rng, distances)
