"""Cases aimed at single places of the validator: what tables refer to, where ranges end and meet, and equal hashes.

Each is stated with the rules that it breaks (none: it is safe) and the settings of the limits under which it says something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.mutation.limits import AIMED
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC, pack, read_sections, write_sections

ONE = (0, 1)
STEPS, ADDRESS, ELEMENTS = 2**31, 2**60, 2**50  # limits of the validator
KIND, BITS, ROWS, COLS, POOL, OFFSET, LIFETIME, BUFFER = 0, 2, 3, 4, 5, 6, 7, 9  # fields of a buffer, and how many there are
VAR, STRIDE, MOD, LENGTH_VAR = 1, 2, 3, 5  # fields of an affine range
WRITTEN_OUT, FEW, BROKEN_OFF = 1, 2, 3  # settings of the limits


@dataclass(frozen=True, slots=True)
class Aimed:
    """``rules``: exactly those that it breaks; None: it is safe, but the limits may leave that open."""

    tables: bytes
    rules: frozenset[str] | None = frozenset()
    settings: tuple[int, ...] = (0,)


def made(n: Net, *rules: str, settings: Sequence[int] = (0,)) -> Aimed:
    return Aimed(pack(Schedule.from_json(n.json())), frozenset(rules), tuple(settings))


def tag_column(n: Net, rows: int = 1, **extra: Any) -> int:
    """A tagged buffer of a column."""
    return n.buffer(1, rows, dtype="tag64", lifetime="persistent", tagged=True, **extra)


def unsure(n: Net, *settings: int) -> Aimed:
    return Aimed(pack(Schedule.from_json(n.json())), None, settings)


def changed(n: Net, edits: Sequence[tuple[str, int, int]], *rules: str, settings: Sequence[int] = (0,)) -> Aimed:
    """The tables with some numbers changed: (section, index, value)."""
    sections = {name: a.copy() for name, a in read_sections(MAGIC, pack(Schedule.from_json(n.json()))).items()}
    for section, at, value in edits:
        sections[section].reshape(-1)[at] = value
    return Aimed(write_sections(MAGIC, sections), frozenset(rules), tuple(settings))


def _simple() -> Net:
    """One task that reads and writes; a second buffer and a range that moves are there to be changed."""
    n = Net(1, 2)
    x = n.buffer(2, 2, lifetime="persistent", filled=True)
    n.buffer(2, lifetime="persistent", filled=True)
    n.extra["variables"] = {"p": {"count": 1, "min": 0, "max": 1}}
    task = n.task(0, [access(x, ONE, affine(base="p[0]"))], [access(x, ONE)], [(n.counter(), 1, -1)], [(0, 1)])
    n.extra["stop"] = {"buffer": x, "task": task}
    return n


def references() -> Iterator[Aimed]:
    """Each number that refers to something, or has a limit: the last that is right, and the first that is not."""
    for section, at, value in (
        ("header", 0, STEPS),
        ("header", 3, 2),  # the buffer of the stop
        ("header", 4, 1),
        ("pools", 0, -2),
        ("pools", 0, 0),
        ("variables", 0, -ADDRESS - 1),
        ("variables", 1, ADDRESS + 1),
        ("header", 3, -1),
        ("header", 4, -1),
        ("buffers", BUFFER + KIND, -1),
        ("buffers", BUFFER + KIND, 7),
        ("buffers", BUFFER + BITS, 0),
        ("buffers", BUFFER + BITS, 12),
        ("buffers", BUFFER + BITS, 72),
        ("buffers", BUFFER + OFFSET, -1),
        ("wait_e", 0, -2),
        ("wait_e", 0, 1),
        ("wait_counter", 0, -1),
        ("wait_counter", 0, 1),
        ("sig_counter", 0, -1),
        ("queue_task", 0, -1),
        ("queue_task", 0, 1),
        ("acc_buffer", 0, -1),
        ("acc_buffer", 0, 2),
        ("buffers", BUFFER + ROWS, 0),
        ("buffers", BUFFER + COLS, 0),
        ("buffers", BUFFER + LIFETIME, -1),
        ("buffers", BUFFER + LIFETIME, 3),
        ("buffers", BUFFER + POOL, -1),
        ("buffers", BUFFER + POOL, 1),
        ("buffers", BUFFER + OFFSET, ADDRESS - 7),
        ("task_op", 0, -1),
        ("task_op", 0, 256),
        ("init_buffer", 0, -1),
        ("init_buffer", 0, 2),
        ("init_buffer", 1, -1),
        ("affine", VAR, -2),
        ("affine", VAR, 1),
        ("affine", LENGTH_VAR, -2),
        ("affine", LENGTH_VAR, 1),
        ("affine", MOD, -1),
        ("acc_raff", 0, -2),
        ("acc_raff", 0, 1),
    ):
        yield changed(_simple(), [(section, at, value)], "REF")
    yield changed(_simple(), [("acc_raff", 0, -2), ("counters", 0, 2)], "REF")  # behind it, counts are not looked at
    yield made(_simple())
    for threshold in (0, 2):
        yield changed(_simple(), [("wait_t", 0, threshold)], "COUNT")
    n = _simple()  # what is there before the first step is not asked for in later ones
    n.buffers[1]["lifetime"] = "step"
    n.initial += [access(0, ONE, affine(1, add=k)) for k in range(2)]
    yield made(n)
    n = _simple()
    n.extra["variables"]["far"] = {"count": 1, "min": 0, "max": 1}
    yield changed(n, [("variables", 2, -ADDRESS), ("variables", 3, ADDRESS)])
    yield changed(_simple(), [("buffers", BUFFER + OFFSET, ADDRESS - 8)])
    yield changed(_simple(), [("task_op", 0, 255)])
    n = Net(1)
    x = n.buffer(1, lifetime="persistent")
    n.buffer(1)
    n.task(0, [], [access(x, ONE)])
    yield changed(n, [("header", 0, STEPS - 1)])
    yield changed(n, [("buffers", BUFFER + ROWS, ELEMENTS >> 25), ("buffers", BUFFER + COLS, 1 << 25)])
    yield changed(n, [("buffers", BUFFER + ROWS, ELEMENTS >> 25), ("buffers", BUFFER + COLS, (1 << 25) + 1)], "REF")
    for elements, size in ((1, 1), (3, 2), (4, 2)):
        for less in (0, 1):
            n = Net(1)
            n.pools[0]["bytes"] = size - less
            n.task(0, [], [access(n.buffer(elements, dtype="i4", lifetime="persistent"), ONE)])
            yield made(n, *(["REF"] if less else []))
    for kind in ("weight", "table", "input"):
        n = Net(1)
        n.task(0, [], [access(n.buffer(1, kind=kind, lifetime="persistent"), ONE)])
        yield made(n, "RO")
    n = Net(2)  # a sum that 64 bits do not hold
    c = n.counter()
    n.task(0, signals=[(c, 1)])
    n.task(1, signals=[(c, 1)])
    yield changed(n, [("sig_amount", 0, 2**62), ("sig_amount", 1, 2**62)], "COUNT")
    yield changed(n, [("sig_amount", 0, -(2**62)), ("sig_amount", 1, -(2**62) - 1)], "COUNT")


def sizes() -> Iterator[Aimed]:
    """As many tasks or queues as the small limits allow, and one more; behind those nothing is looked at."""
    for tasks, queues in ((3, 1), (1, 3), (4, 1), (1, 4)):
        n = Net(queues)
        for _ in range(tasks):
            n.task(0)
        n.buffer(1, filled=True)
        if max(tasks, queues) == 3:
            yield made(n, settings=[AIMED])
        else:
            yield made(n, "REF", settings=[AIMED])
            yield changed(n, [("init_buffer", 0, -1)], "REF", settings=[AIMED])


def _ranged(rows: int, steps: int, line: Json, **variables: tuple[int, int]) -> Net:
    """One task that writes a range of rows."""
    n = Net(1, steps)
    n.extra["variables"] = {name: {"count": 1, "min": lo, "max": hi} for name, (lo, hi) in variables.items()}
    n.task(0, [], [access(n.buffer(1, rows, lifetime="persistent"), ONE, line)])
    return n


def ranges() -> Iterator[Aimed]:
    """Where ranges with a modulus end, at the borders of what is tried value by value."""
    by_p = {"base": "p[0]", "add": 0}
    same = affine(1, {"base": "p[0]"}, "p[0]", 8, 3)
    for rows in (11, 10):  # start and length are one variable: 6 points, as many as the small limits allow
        for setting in (0, FEW):
            yield made(_ranged(rows, 2, same, p=(3, 5)), *(["REF"] if rows == 10 else []), settings=[setting])
    yield made(_ranged(8, 1, affine(0, by_p, "p[0]", 8, 6), p=(0, 5)), settings=(0, FEW))
    # Of a product of 2^128 values, 128 bits keep nothing.
    n = Net(1, 2**17)
    n.extra["variables"] = {
        "p": {"count": 1, "min": -ADDRESS, "max": ADDRESS - 1},
        "w": {"count": 1, "min": 0, "max": ELEMENTS - 1},
    }
    n.task(0, [], [access(n.buffer(1, lifetime="persistent"), affine(0, {"base": "w[0]"}, "p[0]", 3))])
    yield changed(n, [("buffers", COLS, ELEMENTS)], "REF")
    for rows in (7, 6):
        yield made(_ranged(rows, 1, affine(0, 1, "p[0]", 8), p=(5, 6)), *(["REF"] if rows == 6 else []))
    yield made(_ranged(12, 2, affine(8, 1, "p[0]", 16), p=(0, 3)), settings=(0, FEW))
    yield unsure(_ranged(5, 3, affine(1, 1, "p[0]", 8), p=(0, 2)), 0, FEW)
    grows, falls = {"base": "w[0]", "stride": 1, "add": 0}, {"stride": -1, "add": 3}
    for rows in (10, 9):  # where the start wraps, the length is not the longest
        yield made(_ranged(rows, 3, affine(1, grows, None, 8, 6), w=(1, 2)), *(["REF"] if rows == 9 else []), settings=(0, FEW))
    for rows in (4, 3):
        yield made(_ranged(rows, 3, affine(1, falls, None, 2, 1)), *(["REF"] if rows == 3 else []))
    longer = {"base": "w[0]"}
    yield made(_ranged(7, 1, affine(0, longer, "p[0]", 8), p=(0, 5), w=(1, 2)), settings=(0, FEW))
    yield made(_ranged(5, 2, affine(1, longer, "p[0]", 8), p=(0, 2), w=(1, 2)), settings=(0, FEW))
    yield made(_ranged(4, 2, affine(1, longer, None, 8), w=(0, 3)), settings=(0, FEW))
    # Too many values to be tried one by one, and too many steps.
    yield changed(_ranged(1, 1, affine(0, 1, "p[0]", 2**55), p=(0, ELEMENTS)), [("buffers", ROWS, ELEMENTS)], "REF")
    for rows in (4, 3):  # a length of one value
        yield made(_ranged(rows, 3, affine(1, longer), w=(2, 2)), *(["REF"] if rows == 3 else []))
        n = _two([(affine(0, longer), ONE), ((rows - 2, rows - 1), ONE)], w=(2, 2))
        yield made(n, *(["RACE"] if rows == 3 else []))
    for rows in (3, 2):
        yield made(_ranged(rows, STEPS - 1, affine(2, 1, None, 4)), *(["REF"] if rows == 2 else []))
    # The first and the last step.
    for stride, add in ((1, 0), (-1, 2)):
        for rows in (3, 2):
            yield made(_ranged(rows, 3, affine(stride, add=add)), *(["REF"] if rows == 2 else []))
    n = _ranged(4, 1, affine(5, 3, "p[0]"), p=(0, 1))  # of one step: no stride
    n.buffers[0]["kind"] = "output"
    n.task(0, [], [access(0, ONE), access(0, ONE, (3, 4))])
    yield made(n)


def _two(lines: Sequence[tuple[Any, Any]], steps: int = 1, size: int = 8, **variables: tuple[int, int]) -> Net:
    """A writer and a reader of one buffer on two queues, each with its (rows, columns), in no order."""
    n = Net(2, steps)
    n.extra["variables"] = {name: {"count": 1, "min": lo, "max": hi} for name, (lo, hi) in variables.items()}
    x = n.buffer(size, size, lifetime="persistent", filled=True)
    (write, read) = (access(x, cols, rows) for rows, cols in lines)
    n.task(0, [], [write])
    n.task(1, [read])
    return n


def _meetings() -> Iterator[Aimed]:
    """Two ranges that meet for some values, in some later step, or never; what is only perhaps so must not be told as certain."""
    moves = affine(0, 1, "p[0]")
    for first in (0, 1):
        for by_rows in (True, False):

            def pair(
                a: Any, b: Any, other: tuple[Any, Any] = (ONE, ONE), first: int = first, by_rows: bool = by_rows
            ) -> list[tuple[Any, Any]]:
                """Ranges of two accesses in one dimension, beside those in the other, in both orders."""
                lines = [(a, other[0]), (b, other[1])]
                if not by_rows:
                    lines = [(y, x) for x, y in lines]
                return lines[::-1] if first else lines

            doubled = affine(0, {"base": "p[0]"}, "p[0]")  # [p, 2 p) is not at 0, though it may start there and may end behind it
            yield unsure(_two(pair(doubled, ONE), p=(0, 3)), 0)
            yield made(_two(pair(doubled, (1, 2)), p=(0, 3)), "RACE")
            yield made(_two(pair(moves, (2, 3)), p=(0, 3)), "RACE")
            # One variable for rows and for columns, which cannot be both 0 and 1; of the same access, or of one each.
            yield unsure(_two(pair(moves, ONE, (moves, (1, 2))), p=(0, 3)), 0)
            yield unsure(_two(pair(moves, ONE, ((1, 2), moves)), p=(0, 3)), 0)
            # Behind each other at a constant distance, with and without a modulus.
            for mod in (None, 7):
                yield made(_two(pair(affine(1, mod=mod), affine(1, add=2, mod=mod)), 2))
                yield made(_two(pair(affine(1, mod=mod), affine(1, add=1, mod=mod)), 3), "RACE")
            # Rows of one variable without a modulus, beside columns with one.
            yield made(_two(pair(moves, affine(0, 1, "p[0]"), (affine(1, mod=3), affine(1, mod=3))), 2, p=(0, 3)), "RACE")
            yield made(_two(pair(moves, affine(0, 1, "p[0]", add=1), (affine(1, mod=3), affine(1, mod=3))), 2, p=(0, 3)))
            yield made(_two(pair(affine(-1, add=3), (3, 4)), 3), "RACE")  # in the first step only
            # Negative values under a modulus.
            for value, meets in ((3, True), (2, True), (1, False), (0, False)):
                n = _two(pair(affine(0, 1, "p[0]", mod=4), (value, value + 1)), p=(-2, -1))
                yield made(n, *(["RACE"] if meets else []))
            # More values than are tried: the one that meets is the last of all.
            n = _two(pair(affine(0, 1, "p[0]", mod=20), (13, 14)), 1, 20, p=(0, 13))
            yield made(n, "RACE", settings=(0, FEW))
    for slow in (0, 1):  # the fast one is ahead from the start: that they never meet again has to be seen at once
        n = Net(2, 4)
        x, c = n.buffer(1, 8, lifetime="persistent"), n.counter()
        for k in range(2):
            line = access(x, ONE, affine(1) if k == slow else affine(2, add=1))
            n.task(k, [], [line], [(c, 1, -1)] if k == slow else [], [] if k == slow else [(c, 1)])
        yield made(n, settings=(0, FEW))
    yield from few_values()
    for fixed in (1, 0):  # a variable of one value
        n = _two([(affine(0, 1, "p[0]", mod=4), ONE), (ONE, ONE)], p=(fixed, fixed))
        yield made(n, *([] if fixed else ["RACE"]))
    n = _two([(affine(1, mod=4), ONE), ((1, 2), ONE)], 2)
    yield changed(n, [("affine", STRIDE, -(2**63))])


def _apart() -> Iterator[Aimed]:
    """What moves in one buffer is no matter of another one beside it, though both lie where another pool has one buffer."""
    n = Net(1, 12)
    n.pool("other", None)
    n.buffer(1024, lifetime="persistent", offset=0)
    x, y = (n.buffer(1, pool="other", lifetime="persistent", offset=0) for _ in range(2))
    moving = n.buffer(1, 12, pool="other", lifetime="persistent", offset=64)
    n.task(0, [], [access(x, ONE)])
    n.task(0, [access(y, ONE)], [access(moving, ONE, affine(1))])
    yield made(n, settings=(0, WRITTEN_OUT))


def few_values() -> Iterator[Aimed]:
    """Ranges under a modulus, at the border of what is tried value by value."""
    line, of_q = affine(0, 1, "p[0]", mod=4), affine(0, 1, "q[0]", mod=4)
    for place, meets in (((0, 1), True), ((1, 0), True), ((3, 1), False), ((1, 3), False), ((2, 0), False)):
        n = _two([(line, of_q), ((place[0], place[0] + 1), (place[1], place[1] + 1))], p=(0, 1), q=(0, 1))
        yield made(n, *(["RACE"] if meets else []))
    # One variable with and without a modulus.
    yield made(_two([(affine(0, 1, "p[0]"), affine(0, 1, "p[0]", mod=2)), ((3, 4), (1, 2))], p=(0, 3)), "RACE")
    few = (0, FEW)
    yield made(_two([(affine(0, 1, "p[0]", mod=1), ONE), (ONE, ONE)], p=(0, 19)), "RACE", settings=few)
    fifth = affine(0, 1, "q[0]", mod=5)
    yield made(_two([(affine(0, 1, "p[0]", mod=2), fifth), ((1, 2), (4, 5))], p=(0, 5), q=(0, 4)), "RACE", settings=few)
    yield made(_two([(affine(0, 1, "p[0]", mod=12), ONE), ((11, 12), ONE)], 1, 12, p=(0, 11)), "RACE", settings=few)
    third = affine(0, 1, "p[0]", mod=3)
    yield made(_two([(third, of_q), ((2, 3), (3, 4))], p=(0, 5), q=(0, 3)), "RACE", settings=few)
    sixth, of_q = affine(0, 1, "p[0]", mod=6), affine(0, 1, "q[0]", mod=6)
    yield unsure(_two([(sixth, of_q), ((5, 6), (5, 6))], p=(0, 3), q=(0, 3)), *few)
    yield unsure(_two([(sixth, affine(1, mod=2)), ((5, 6), (0, 2))], 2, p=(0, 3)), *few)
    # Rows meet in one step, columns in a later one.
    yield made(_two([(affine(1, add=2), (5, 6)), (affine(2), affine(1))], 6, 12))


def meetings() -> Iterator[Aimed]:
    """The same without clocks that are written out over steps, which would ask at each step."""
    for case in _meetings():
        yield replace(case, settings=(*case.settings, WRITTEN_OUT))


def nested() -> Iterator[Aimed]:
    """Three buffers on the same bytes of which the first alone reaches the last, and pools of like offsets."""
    yield from _apart()
    for raced in (True, False):
        n = Net(2)
        big = n.buffer(24, lifetime="persistent", offset=0)
        n.buffer(2, lifetime="persistent", offset=8)
        last = n.buffer(2, lifetime="persistent", offset=40)
        n.task(0, [], [access(big, (10, 11) if raced else (8, 10))])
        n.task(1, [], [access(last, ONE)])
        yield made(n, *(["RACE"] if raced else []))
    n = Net(2)
    n.pool("other", None)
    x, y = (n.buffer(4, pool=pool, lifetime="persistent", offset=0) for pool in ("global", "other"))
    n.task(0, [], [access(x, ONE)])
    n.task(1, [], [access(y, ONE)])
    yield made(n)


def same_hash() -> Iterator[Aimed]:
    """Rectangles, sets of accesses and clocks of one hash each: what is found under it has to be compared."""
    n = Net(3)
    x = n.buffer(1000, lifetime="persistent", filled=True)
    n.task(0, [access(x, (124, 215))])
    n.task(1, [access(x, (250, 292))])
    n.task(2, [], [access(x, (250, 251))])
    yield made(n, "RACE")

    n = Net(
        2
    )  # at row 0 column 0 holds the first set and column 1 the second one, in which alone the task of the other queue writes
    sets, alone = ({2, 9, 11, 12, 13, 15}, {0, 2, 5, 7, 8, 11, 17}), 17
    x = n.buffer(3, 20, lifetime="persistent")
    for k in range(18):
        inside = [k in s for s in sets]
        cols = (0, 2) if all(inside) else ONE if inside[0] else (1, 2) if inside[1] else (2, 3)
        n.task(int(k == alone), [], [access(x, cols, (0, 1 if k == alone else k + 2))])
    yield made(n, "RACE")

    # Two tasks that know so much of five queues, behind four queues of which nobody knows.  The second task does
    # not know the write that it meets.
    clocks, idle = ((5, 3, 10, 4, 0), (4, 9, 11, 3, 5)), 4
    n = Net(idle + 7)
    x = n.buffer(1, lifetime="persistent", filled=True)
    at: dict[tuple[int, int], int] = {}
    for r in range(5):
        for k in range(1, 12):
            if any(c[r] == k for c in clocks):
                at[r, k] = n.counter()
            write = r == 0 and k == clocks[0][0]
            n.task(idle + r, [], [access(x, ONE)] if write else [], [], [(at[r, k], 1)] if (r, k) in at else [])
    for k, clock in enumerate(clocks):
        n.task(idle + 5 + k, [access(x, ONE)] if k else [], [], [(at[r, v], 1) for r, v in enumerate(clock) if v])
    yield made(n, "RACE")


def wrapped() -> Iterator[Aimed]:
    """A tile whose rows wrap where memory is seen in the rows of another buffer of like width: which elements it holds."""
    for place in range(16):
        n = Net(1)
        x = n.buffer(4, 8, lifetime="persistent", offset=0)
        y = n.buffer(4, 3, lifetime="persistent", offset=8)
        n.task(0, [], [access(x, (3, 4), (5, 7))])
        n.task(0, [], [access(y, (1, 4), (0, 2))])
        n.task(0, [access(x, (place % 4, place % 4 + 1), (place // 4, place // 4 + 1))])
        yield made(n, *([] if place in (3, 4, 5, 7, 8, 9) else ["COVER"]))
    n = Net(1, 2)  # rows of an odd number of half bytes: no more pieces than the small limits allow
    x = n.buffer(3, 5, dtype="i4", lifetime="persistent")
    n.task(0, [], [access(x, ONE, (0, 5))])
    n.task(0, [access(x, affine(1, mod=1), affine(1))])
    yield made(n, settings=(0, BROKEN_OFF))


SINGLE: tuple[Callable[[], Iterator[Aimed]], ...] = (references, sizes, ranges, meetings, nested, wrapped, same_hash)
