"""Schedules aimed at the rules of data: ranges that move, tags, what the host finds, and values with a name.

Random ones of four kinds; aimed_kinds.py names those that are kept.
"""

from __future__ import annotations

import itertools
from typing import Any

from amk_bench.adversary.net import Net, Range, Rng, access, affine
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC, read_sections, write_sections

VALUE = 1 << 16  # the least name of a value
REAL = 1  # code of an operation: any but the opaque one


def variables(rng: Rng, n: Net) -> None:
    n.extra["variables"] = {
        "p": {"count": 2, "min": rng.choice((0, 0, 1)), "max": rng.choice((1, 1, 2, 3))},
        "w": {"count": 1, "min": rng.choice((0, 0, 1, 2)), "max": rng.choice((2, 3, 5, 9))},
    }


def _length(rng: Rng) -> Any:
    if rng.random() < 0.7:
        return rng.choice((1, 1, 1, 2, 2, 3))
    length: dict[str, Any] = {"stride": rng.choice((0, 0, 1, 1, -1)), "add": rng.choice((0, 1, 1, 2, 3))}
    if rng.random() < 0.5:
        length["base"] = rng.choice(("p[0]", "p[1]", "w[0]"))
    return length


def _fits(n: Net, place: Range, top: int) -> bool:
    start, length = place["start"], place["length"]
    if isinstance(length, int):
        length = {"add": length}

    def values(base: str | None) -> range:
        if base is None:
            return range(1)
        v = n.extra["variables"][base[0]]
        return range(v["min"], v["max"] + 1)

    for i in range(n.steps):
        for v in values(start.get("base")):
            at = start["add"] + v + start["stride"] * i
            at = at % start["mod"] if start["mod"] else at
            for w in values(length.get("base")):
                size = length.get("add", 0) + w + length.get("stride", 0) * i
                if at < 0 or size < 0 or at + size > top:
                    return False
    return True


def moving(rng: Rng, n: Net, top: int) -> Range:
    """A range that depends on the step or on a variable and fits into ``top``."""
    for _ in range(30):
        base = rng.choice((None, None, None, "p[0]", "p[1]", "w[0]"))
        mod, add = rng.choice((None,) * 5 + (1, 2, 3, 4)), rng.choice((0, 0, 0, 1, 2, top - 1))
        place = affine(rng.choice((0, 1, 1, 1, 1, 2, -1)), _length(rng), base, mod, add)
        if _fits(n, place, top):
            return place
    return still(rng, top)


def still(rng: Rng, top: int) -> Range:
    if rng.random() < 0.4:
        return (0, top)
    lo = rng.randrange(top)
    return (lo, rng.randint(lo + 1, top))


class Order:
    """A net whose tasks are ordered by one queue, by barriers, by chains some steps long, or hardly."""

    def __init__(self, rng: Rng, steps: int, queues: int) -> None:
        self.rng, self.net = rng, Net(queues, steps)
        self.kind = rng.choice(("queue", "barriers", "barriers", "chain", "chain", "loose"))
        self.lax = rng.choice((0.0, 0.0, 0.15))
        if queues == 1:
            self.kind = "queue"
        self.back = self.net.counter()
        self.before: tuple[int, int] | None = None
        self.phase = self.net.counter()
        self.size = 0
        self.made = 0

    def task(self, reads: list[Any], writes: list[Any], last: bool = False) -> None:
        rng, n = self.rng, self.net
        fences = [f for f, p in (("proxy.async", 0.6), ("bulk.wait_group", 0.9)) if rng.random() < p]
        waits: list[tuple[int, int, int]] = []
        signals: list[tuple[int, int]] = []
        queue = 0 if self.kind == "queue" else rng.randrange(len(n.queues))
        if self.kind in ("barriers", "chain"):
            if self.before and rng.random() >= self.lax:
                waits.append((self.before[0], self.before[1], rng.choice((0,) * 9 + (-1,))))
            if not self.before and rng.random() >= self.lax:
                waits.append((self.back, 1, -1))
            signals.append((self.phase, 1))
            self.size += 1
        elif self.kind == "loose":
            c = n.counter()
            signals.append((c, 1))
            if self.before and rng.random() < 0.8:
                waits.append((self.before[0], 1, rng.choice((0, 0, -1))))
            self.before = (c, 1)
        if last:
            signals.append((self.back, 1))
        n.task(queue, reads, writes, waits, signals, fences=fences)
        self.made += 1
        if self.kind == "chain" or (self.kind == "barriers" and rng.random() < 0.5):
            self.before, self.phase, self.size = (self.phase, self.size), n.counter(), 0


def flags(rng: Rng, write: bool, tagged: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if rng.random() < 0.12:
        out["maybe"] = True
    if rng.random() < 0.1:
        out["proxy"] = "async"
    if tagged and not write and rng.random() < 0.3:
        out["epoch"] = -1
    return out


def named(rng: Rng, tables: bytes) -> bytes:
    """The same tables with names of values on the accesses of some tasks, that are of real operations then."""
    sections = dict(read_sections(MAGIC, tables))
    share, wrong = rng.choice((0.6, 0.9, 1.0)), rng.choice((0.0, 0.1, 0.3))
    op, label, off = sections["task_op"].copy(), sections["acc_label"].copy(), sections["acc_off"]
    for b in range(op.size):
        if rng.random() < share:
            op[b] = REAL
            for a in range(off[b], off[b + 1]):
                if rng.random() < 0.9:
                    label[a] = VALUE + (rng.random() < wrong)
    sections["task_op"], sections["acc_label"] = op, label
    return write_sections(MAGIC, sections)


def _buffers(rng: Rng, n: Net, rows: int, cols: int, tagged: bool) -> list[tuple[int, int, int]]:
    """(buffer, rows, columns) of one to three that may share bytes."""
    out = []
    offset = 0
    for k in range(rng.choice((1, 1, 1, 2, 2, 3))):
        more: dict[str, Any] = {"dtype": rng.choice(("f32", "f32", "f32", "i8", "i4", "bf16"))}
        if tagged and (k == 0 or rng.random() < 0.3):
            more = {"dtype": "tag64", "tagged": True, "lifetime": "persistent"}
        else:
            more["lifetime"] = rng.choice(("step", "persistent", "persistent", "host"))
        if rng.random() < 0.25:
            more["kind"] = rng.choice(("output", "output", "kv"))
        r, c = rows, cols
        if k:
            offset = rng.choice((offset, offset, offset, offset + 1, offset + 4, offset + 8, 4096 * k))
            if rng.random() < 0.4:
                r, c = rng.choice((1, rows, rows + 1)), rng.choice((1, cols, cols + 1, 2 * cols))
        out.append((n.buffer(c, r, offset=offset, **more), r, c))
    return out


def _fill(rng: Rng, n: Net, buffers: list[tuple[int, int, int]], moves: bool) -> None:
    for b, r, c in buffers:
        how = rng.random()
        if how < 0.35:
            n.initial.append(access(b, (0, c), (0, r)))
        elif how < 0.65:
            for _ in range(rng.choice((1, 2))):
                by_rows = rng.random() < 0.5
                rows = moving(rng, n, r) if moves and by_rows and rng.random() < 0.4 else still(rng, r)
                cols = moving(rng, n, c) if moves and not by_rows and rng.random() < 0.4 else still(rng, c)
                n.initial.append(access(b, cols, rows))


def _line(rng: Rng, n: Net, place: tuple[int, int, int], write: bool, tagged: bool, moves: float, cover: float) -> Any:
    b, r, c = place
    by_rows = (r >= c) != (rng.random() < 0.15)
    rows: Range = (0, r) if rng.random() < cover else still(rng, r)
    cols: Range = (0, c) if rng.random() < cover else still(rng, c)
    if rng.random() < moves:
        if by_rows:
            rows = moving(rng, n, r)
        else:
            cols = moving(rng, n, c)
        if rng.random() < 0.08:
            rows, cols = moving(rng, n, r), moving(rng, n, c)
    return access(b, cols, rows, **flags(rng, write, tagged))


def ranges(rng: Rng) -> Schedule:
    """Tasks that write and read parts of one to three buffers, at places that move."""
    steps = rng.choice((1, 2, 2, 3, 3, 4, 5, 7)) if rng.random() < 0.98 else 66
    order = Order(rng, steps, rng.choice((1, 2, 2, 3)))
    n = order.net
    variables(rng, n)
    rows, cols = rng.choice((1, 2, 4, 6, 9, 12)), rng.choice((1, 1, 2, 3, 4))
    if rng.random() < 0.3:
        rows, cols = cols, rows
    buffers = _buffers(rng, n, rows, cols, False)
    _fill(rng, n, buffers, True)
    moves, cover = rng.choice((0.3, 0.6, 0.8)), rng.choice((0.3, 0.8))
    count = rng.randint(2, 5) if steps < 10 else 2
    for k in range(count):
        reads = [_line(rng, n, rng.choice(buffers), False, False, moves, cover) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        writes = [_line(rng, n, rng.choice(buffers), True, False, moves, cover) for _ in range(rng.choice((0, 1, 1, 2)))]
        order.task(reads, writes, k == count - 1)
    return Schedule.from_json(n.json())


def grown(rng: Rng) -> Schedule:
    """A cache that grows by some rows in each step and is read as far as it is there, or one row more or less."""
    steps = rng.choice((1, 2, 3, 4, 5, 7))
    order = Order(rng, steps, rng.choice((1, 2, 2, 3)))
    n = order.net
    variables(rng, n)
    stride = rng.choice((1, 1, 1, 2))
    base = rng.choice((None, None, "p[0]", "w[0]"))
    top = stride * steps + 4 + (10 if base else 0)
    cols = rng.choice((1, 2, 3))
    flip = rng.random() < 0.3
    given: dict[str, Any] = {"lifetime": rng.choice(("persistent",) * 5 + ("step",))}
    given["dtype"] = rng.choice(("f32", "f32", "i8", "i4"))
    if rng.random() < 0.3:
        given["kind"] = rng.choice(("kv", "output"))
    x = n.buffer(*((top, cols) if flip else (cols, top)), offset=0, **given)
    others = [x]
    if rng.random() < 0.2:
        others.append(n.buffer(*((top, cols) if flip else (cols, top)), offset=rng.choice((0, 0, 4)), **given))

    def line(b: int, across: Range, along: Range, **extra: Any) -> Any:
        return access(b, along, across, **extra) if flip else access(b, across, along, **extra)

    first = rng.choice((0, 0, 1, 2))
    if rng.random() < 0.6:  # what is there before the first step
        length: Any = {"stride": 0, "add": first, "base": base} if base else first
        if rng.random() < 0.7 or not base:
            n.initial.append(line(x, (0, cols), {"start": {"stride": 0, "mod": None, "add": 0}, "length": length}))
        else:
            n.initial.append(line(x, (0, cols), (0, rng.choice((1, 2, top)))))
        if rng.random() < 0.2:
            n.initial.append(line(x, still(rng, cols), still(rng, top)))
    cuts = sorted({0, cols, *(rng.randrange(cols + 1) for _ in range(rng.choice((0, 0, 1))))})
    jobs: list[tuple[list[Any], list[Any]]] = []
    for part in itertools.pairwise(cuts):
        more = rng.choice((0,) * 8 + (1, -1))
        length = max(0, stride + rng.choice((0, 0, 0, 0, 1, -1)))
        start = affine(stride, length, base, rng.choice((None,) * 12 + (2, top)), first + more)
        jobs.append(([], [line(rng.choice(others) if rng.random() < 0.1 else x, part, start, **flags(rng, True, False))]))
    for _ in range(rng.choice((1, 1, 2))):
        length = {"stride": stride, "add": max(0, first + rng.choice((0, 0, stride, stride, 1, -1, 2 * stride)))}
        if base:
            length["base"] = base
        at = rng.choice((0, 0, 0, 0, 1, 2))
        along: Range = {"start": {"stride": 0, "mod": None, "add": at}, "length": length}
        if rng.random() < 0.25:
            along = affine(stride, rng.choice((1, stride, stride + 1, 2)), base, None, first + rng.choice((0, -1, -stride, 1)))
        if rng.random() < 0.1:
            along = still(rng, top)
        read = line(x, still(rng, cols), along, **flags(rng, False, False))
        if rng.random() < 0.25 and jobs:
            rng.choice(jobs)[0].append(read)
        else:
            jobs.append(([read], []))
    if rng.random() < 0.3:
        other, part = rng.choice(others), still(rng, cols)
        along = moving(rng, n, top) if rng.random() < 0.7 else still(rng, top)
        jobs.append(([], [line(other, part, along, **flags(rng, True, False))]))
    if rng.random() < 0.15:
        rng.shuffle(jobs)
    for count, (reads, writes) in enumerate(jobs):
        order.task(reads, writes, count == len(jobs) - 1)
    return Schedule.from_json(n.json())


def tags(rng: Rng) -> Schedule:
    """Values that carry their epoch: rings of several places, many readers, other buffers on the same bytes."""
    steps = rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 7, 9, 12))
    order = Order(rng, steps, rng.choice((1, 2, 2, 3, 4)))
    n = order.net
    variables(rng, n)
    rows, cols = rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 1, 1, 2, 3))
    if rng.random() < 0.3:
        rows, cols = cols, rows
    tag = n.buffer(cols, rows, dtype="tag64", tagged=True, lifetime="persistent", offset=0)
    buffers = [(tag, rows, cols)]
    if rng.random() < 0.2:
        offset = rng.choice((0, 0, 8, 8 * rows * cols, 8 * rows * cols - 4))
        more: dict[str, Any] = rng.choice(({"dtype": "tag64", "tagged": True}, {"dtype": "f32"}, {"dtype": "i4"}))
        buffers.append((n.buffer(rng.choice((1, cols)), rows, lifetime="persistent", offset=offset, **more), rows, 1))
    _fill(rng, n, buffers, rng.random() < 0.2)
    mod = rng.choice((None, 1, 2, 3, 4))
    moves = rng.choice((0.0, 0.0, 0.5, 1.0))

    def place(lag: int) -> tuple[Range, Range]:
        spot: list[Range] = [(0, size) if rng.random() < 0.6 else still(rng, size) for size in (rows, cols)]
        if rng.random() < moves:
            k = int(cols > rows)
            top = (rows, cols)[k]
            spot[k] = affine(1, 1, None, min(mod, top) if mod else None, lag)
            if rng.random() < 0.15:
                spot[k] = moving(rng, n, top)
            if rng.random() < 0.08:
                spot[1 - k] = affine(rng.choice((0, 1)), 1, None, rng.choice((None, 1, 2)))
        return spot[0], spot[1]

    writers, readers = rng.choice((1, 1, 1, 2, 3)), rng.choice((0, 1, 1, 2, 2, 3, 5, 9))
    jobs = [(True, k) for k in range(writers)] + [(False, k) for k in range(readers)]
    if rng.random() < 0.5:
        rng.shuffle(jobs)
    one = place(0)
    for k, (write, _) in enumerate(jobs):
        lines = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            b, r, c = rng.choice(buffers) if rng.random() < 0.3 else buffers[0]
            again = rng.random() < 0.6 and b == tag
            spot = one if again else place(rng.choice((0, 0, 1))) if b == tag else (still(rng, r), still(rng, c))
            lines.append(access(b, spot[1], spot[0], **flags(rng, write, bool(n.buffers[b].get("tagged")))))
        order.task([] if write else lines, lines if write else [], k == len(jobs) - 1)
    return Schedule.from_json(n.json())


def host(rng: Rng) -> Schedule:
    """Outputs: rings of rows, columns of each step, other names for their bytes, instances of each queue."""
    steps = rng.choice((1, 1, 2, 2, 3, 4, 5, 6))
    order = Order(rng, steps, rng.choice((1, 1, 2, 2)))
    n = order.net
    variables(rng, n)
    along = rng.choice((1, 2, 3, 4, 5, 6, 8))
    across = rng.choice((1, 1, 2, 3))
    flip = rng.random() < 0.45
    pool = "global"
    if rng.random() < 0.12:
        pool = n.pool("own", None, per_queue=True)
    shape = (along, across) if flip else (across, along)
    dtype = rng.choice(("f32", "f32", "i8", "i4", "bf16"))
    offset = rng.choice((0, 0, 16, 3))
    life = rng.choice(("host", "persistent", "persistent"))
    y = n.buffer(*shape, kind="output", lifetime=life, offset=offset, dtype=dtype, pool=pool)
    buffers = [y]
    if rng.random() < 0.4:
        shift = rng.choice((0, 0, 0, 1, 2, 4, -1, -2, 8))
        other = shape if rng.random() < 0.6 else (rng.choice((1, 2, 3, 8)), rng.choice((1, 2, 3)))
        life, at = rng.choice(("persistent", "host")), max(0, offset + shift)
        buffers.append(n.buffer(*other, lifetime=life, offset=at, dtype=rng.choice((dtype, dtype, "i8", "f32")), pool=pool))

    def line(b: int, **extra: Any) -> Any:
        c, r = n.buffers[b]["shape"][1], n.buffers[b]["shape"][0]
        a, t = (r, c) if flip else (c, r)
        fixed: Range = (0, a) if rng.random() < 0.7 else still(rng, a)
        if rng.random() < 0.05:
            fixed = moving(rng, n, a)
        how = rng.random()
        spot: Range = (0, t)
        if how < 0.6:
            for _ in range(20):
                length: Any = rng.choice((1, 1, 1, 2, 2, 3))
                if rng.random() < 0.15:
                    length = _length(rng)
                spot = affine(
                    rng.choice((0, 1, 1, 1, 1, 2, 2, 3, -1, -1)), length, rng.choice((None,) * 5 + ("p[0]", "p[1]", "w[0]")),
                    rng.choice((None, None, None, 1, 2, 3, 4, t)), rng.choice((0, 0, 0, 1, 2, 3, t - 1, steps - 1)),
                )  # fmt: skip
                if _fits(n, spot, t):
                    break
        elif how < 0.8:
            spot = still(rng, t)
        return access(b, spot, fixed, **extra) if flip else access(b, fixed, spot, **extra)

    count = rng.choice((1, 1, 2, 2, 3, 4))
    for k in range(count):
        b = y if rng.random() < 0.7 else rng.choice(buffers)
        more: dict[str, Any] = {"maybe": True} if rng.random() < 0.08 else {}
        writes = [line(b, **more) for _ in range(rng.choice((1, 1, 2)))]
        reads = [line(rng.choice(buffers), maybe=True)] if rng.random() < 0.1 else []
        order.task(reads, writes, k == count - 1)
    return Schedule.from_json(n.json())
