"""Schedules aimed at three narrower places than aimed_data.py: crowds of readers, outputs in pieces, ranges that stretch."""

from __future__ import annotations

from typing import Any

from amk_bench.adversary.net import Range, Rng, access, affine
from amk_bench.mutation.aimed_data import Order, flags, moving, still, variables
from amk_core.schedule.ir import Schedule


def crowd(rng: Rng) -> Schedule:
    """Many readers of one tagged rectangle that stands still, whose writers take turns or miss a step."""
    steps = rng.choice((2, 2, 3, 3, 4, 5))
    order = Order(rng, steps, rng.choice((1, 2, 3, 4)))
    n = order.net
    rows = rng.choice((1, 1, 2, 3))
    tag = n.buffer(1, rows, dtype="tag64", tagged=True, lifetime="persistent", offset=0)
    if rng.random() < 0.6:
        n.initial.append(access(tag, (0, 1), (0, rows)))
    other = n.buffer(1, rows, dtype="tag64", tagged=True, lifetime="persistent", offset=0 if rng.random() < 0.1 else 4096)
    spot = (0, rows) if rng.random() < 0.7 else still(rng, rows)
    epoch: dict[str, Any] = {"epoch": -1} if rng.random() < 0.4 else {}
    jobs: list[tuple[bool, Range]] = []
    cut = rng.randrange(rows + 1)
    for part in ((0, cut), (cut, rows)):
        if part[0] < part[1]:
            jobs.append((True, part))
    if rng.random() < 0.3:  # one row in each step
        jobs = [(True, affine(1, mod=rng.randint(1, rows))), *jobs[: rng.randrange(2)]]
    if rng.random() < 0.2:
        length = {"stride": rng.choice((1, -1)), "add": rng.choice((0, 1))}
        jobs.append((True, {"start": {"stride": 0, "mod": None, "add": 0}, "length": length}))
    many = rng.choice((1, 2, 2, 3, 4, 8, 9, 11))
    readers: list[tuple[bool, Range]] = [(False, spot if rng.random() < 0.9 else still(rng, rows)) for _ in range(many)]
    if epoch and rng.random() < 0.5:
        jobs = readers + jobs
    else:
        jobs = jobs + readers
    if rng.random() < 0.15:
        rng.shuffle(jobs)
    for k, (write, rows_of) in enumerate(jobs):
        more: dict[str, Any] = {}
        if rng.random() < 0.04:
            more["maybe"] = True
        if not write and rng.random() < 0.95:
            more |= epoch
        if rng.random() < 0.04:
            more["proxy"] = "async"
        lines = [access(tag if rng.random() < 0.97 else other, (0, 1), rows_of, **more)]
        order.task([] if write else lines, lines if write else [], k == len(jobs) - 1)
    return Schedule.from_json(n.json())


def pieces(rng: Rng) -> Schedule:
    """An output put together from what stands still and what moves by steps, variables and moduli, or one row short of it."""
    steps = rng.choice((1, 2, 3, 4, 5))
    order = Order(rng, steps, rng.choice((1, 2)))
    n = order.net
    variables(rng, n)
    stride, base = rng.choice((0, 1, 1, 2, 3)), rng.choice((None, "p[0]", "p[0]", "w[0]"))
    least, most = (n.extra["variables"][base[0]][k] for k in ("min", "max")) if base else (0, 0)
    length = max(1, stride + most - least + rng.choice((-1, 0, 0, 0, 1)))
    add = rng.choice((0, 0, 1))
    first, last = add + most, add + least + stride * (steps - 1) + length
    along = max(1, add + most + stride * (steps - 1) + length + rng.choice((0, 0, 0, 1)))
    across = rng.choice((1, 2))
    flip = rng.random() < 0.5
    y = n.buffer(*((along, across) if flip else (across, along)), kind="output", lifetime="persistent", offset=rng.choice((0, 8)))

    def line(where: Range, part: Range, **extra: Any) -> Any:
        return access(y, where, part, **extra) if flip else access(y, part, where, **extra)

    size: Any = length
    if rng.random() < 0.3:
        size = {"stride": rng.choice((0, 1, -1)), "add": length, "base": rng.choice((None, "p[1]"))}
        if size["base"] is None:
            del size["base"]
        along += steps + 4
        n.buffers[y]["shape"][int(flip)] = along
    part: Range = (0, across) if rng.random() < 0.8 else affine(rng.choice((0, 1, 1)), 1, None, rng.choice((None, 1, 2)))
    writes = [line(affine(stride, size, base, rng.choice((None,) * 6 + (2, 3, along)), add), part)]
    first, last = first + rng.choice((0,) * 6 + (-1, 1)), last + rng.choice((0,) * 6 + (-1, 1))
    if 0 < first <= along:
        writes.append(line((0, first), (0, across)))
    if 0 <= last < along:
        writes.append(line((last, along), (0, across)))
    if rng.random() < 0.3:
        writes.append(line(still(rng, along), still(rng, across)))
    for k, write in enumerate(writes):
        order.task([], [write], k == len(writes) - 1)
    return Schedule.from_json(n.json())


def stretched(rng: Rng) -> Schedule:
    """A cache written by ranges whose length changes too, in several columns, and read as far as that may be enough."""
    steps = rng.choice((1, 2, 3, 4, 6))
    order = Order(rng, steps, rng.choice((1, 1, 2, 3)))
    n = order.net
    variables(rng, n)
    stride, grows = rng.choice((1, 1, 2)), rng.choice((0, 0, 0, 1, -1))
    base, wide = rng.choice((None, None, "p[0]")), rng.choice((None, None, "p[1]", "p[0]"))
    top, cols = 3 * steps + 16, rng.choice((1, 2, 3))
    x = n.buffer(cols, top, lifetime=rng.choice(("persistent",) * 4 + ("step",)), kind=rng.choice(("activation", "kv")))
    size: Any = {"stride": grows, "add": max(stride + rng.choice((-1, 0, 0, 1)), (steps - 1) * -grows)}
    if wide:
        size["base"] = wide
    start: Any = {"stride": stride, "mod": None, "add": rng.choice((0, 0, 1))}
    if base:
        start["base"] = base
    if rng.random() < 0.5:
        before: Any = {"add": start["add"]} | ({"base": base} if base else {})
        n.initial.append(access(x, (0, cols), {"start": {"stride": 0, "mod": None, "add": 0}, "length": before}))
    elif rng.random() < 0.5:
        n.initial.append(access(x, still(rng, cols), still(rng, top)))
    cut = rng.randrange(cols + 1)
    jobs: list[tuple[list[Any], list[Any]]] = []
    for lo, hi in ((0, cut), (cut, cols)):
        if lo < hi:
            jobs.append(([], [access(x, (lo, hi), {"start": dict(start), "length": size}, **flags(rng, True, False))]))
    until = {"stride": stride + rng.choice((0, 0, 0, grows)), "add": max(0, start["add"] + rng.choice((0, stride, size["add"], 1)))}
    if base and rng.random() < 0.8:
        until["base"] = base
    begin: Any = {"stride": 0, "mod": None, "add": 0}
    if rng.random() < 0.3:
        begin, until = dict(start), rng.choice(({"add": 1}, {"add": stride}, dict(size)))
        begin["add"] = max(0, start["add"] + rng.choice((0, -1, -stride)))
    read = access(x, still(rng, cols), {"start": begin, "length": until}, **flags(rng, False, False))
    if rng.random() < 0.3:
        jobs[0][0].append(read)
    else:
        jobs.insert(rng.choice((0, len(jobs), len(jobs))), ([read], []))
    for k, (reads, writes) in enumerate(jobs):
        order.task(reads, writes, k == len(jobs) - 1)
    return Schedule.from_json(n.json())


def shared(rng: Rng) -> Schedule:
    """Few ranges that several tasks share, of which some only read: what moves, or what nobody writes at all."""
    steps = rng.choice((1, 2, 3, 4))
    order = Order(rng, steps, rng.choice((2, 2, 3)))
    n = order.net
    variables(rng, n)
    rows, cols = rng.choice((2, 4, 6)), rng.choice((1, 2))
    dtype = rng.choice(("f32", "f32", "i8", "i4"))
    places = [(n.buffer(cols, rows, offset=0, dtype=dtype, lifetime=rng.choice(("step", "persistent", "persistent"))), rows, cols)]
    if rng.random() < 0.4:
        places.append((n.buffer(cols, rows, offset=rng.choice((0, 4)), dtype=dtype, lifetime="persistent"), rows, cols))
    for b, r, c in places:
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            n.initial.append(
                access(b, (0, c) if rng.random() < 0.6 else still(rng, c), (0, r) if rng.random() < 0.6 else still(rng, r))
            )
    quiet = rng.random() < 0.4
    few = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        b, r, c = rng.choice(places)
        few.append((b, still(rng, c), still(rng, r) if quiet or rng.random() < 0.4 else moving(rng, n, r)))
    count = rng.randint(2, 6)
    for k in range(count):
        b, across, along = rng.choice(few)
        write = not quiet and rng.random() < 0.4
        line = access(b, across, along, **flags(rng, write, False))
        order.task([] if write else [line], [line] if write else [], k == count - 1)
    return Schedule.from_json(n.json())
