"""Phases of tasks with a barrier between each two: tiles, broadcasts, buffers that take turns on the same bytes, tags, loops.

Most are safe; in the others one barrier is too low, or one access lies elsewhere.  The oracle says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amk_bench.adversary.net import Json, Net, Range, Rng, access, affine
from amk_core.schedule.ir import Schedule


def _tile(rng: Rng, rows: int, cols: int, part: int, parts: int) -> tuple[Range, Range]:
    """(rows, columns) of one of several parts, cut by columns or by rows."""
    if cols >= parts and (rows < parts or rng.random() < 0.6):
        return (0, rows), (part * cols // parts, (part + 1) * cols // parts)
    if rows >= parts:
        return (part * rows // parts, (part + 1) * rows // parts), (0, cols)
    return (0, rows), (0, cols)


def _buffer(rng: Rng, n: Net, tasks: int, offset: int | None, tagged: bool) -> tuple[int, int, int]:
    rows, cols = rng.choice((1, 1, 2, 3, tasks)), rng.choice((tasks, tasks, tasks + 1, 2 * tasks, 1))
    more: dict[str, Any] = {"dtype": rng.choice(("f32",) * 8 + ("bf16",) * 4 + ("i8",) * 4)}
    if tagged:
        more = {"dtype": "tag64", "tagged": True, "lifetime": "persistent"}
    elif rng.random() < 0.5:
        more |= {"lifetime": "persistent", "filled": rng.random() < 0.9}
    return n.buffer(cols, rows, offset=offset, **more), rows, cols


def barriers(rng: Rng) -> Schedule:
    """Two to four phases; each reads what the one before wrote, all of it or its own part."""
    queues, steps = rng.randint(2, 4), rng.choice((1, 1, 2, 3))
    n = Net(queues, steps)
    phases = rng.randint(2, 4)
    before: tuple[int, int, int, int] | None = None
    made: list[tuple[int, int, int, int]] = []
    counters = [n.counter() for _ in range(phases)]
    sizes = [rng.choice((1, queues, queues, 2 * queues, 2 * queues + 1)) for _ in range(phases)]
    for p in range(phases):
        tagged = rng.random() < 0.12
        top = 512 * (p % 2) if rng.random() < 0.5 else None
        offset = None if top is None else top + rng.choice((0, 0, 0, 4, 2, 8)) if not tagged else top
        buffer, rows, cols = _buffer(rng, n, sizes[p], offset, tagged)
        same = _tile(rng, rows, cols, 0, sizes[p])
        for k in range(sizes[p]):
            waits = [(counters[p - 1], sizes[p - 1] - (rng.random() < 0.02), 0)] if p and rng.random() < 0.98 else []
            if p == 0 and steps > 1 and rng.random() < 0.97:
                waits.append((counters[-1], sizes[-1], -1))
            tile = _tile(rng, rows, cols, k, sizes[p]) if rng.random() < 0.97 else same
            writes = [access(buffer, tile[1], tile[0], **({"maybe": True} if rng.random() < 0.02 else {}))]
            reads = []
            if before is not None:
                b, r, c, count = before
                part = ((0, r), (0, c)) if rng.random() < 0.7 else _tile(rng, r, c, k % count, count)
                extra = rng.choice(({}, {}, {}, {}, {}, {}, {"maybe": True}, {"proxy": "async"}))
                reads = [access(b, part[1], part[0], **extra)]
            if made and rng.random() < 0.1:
                b, r, c, _ = rng.choice(made)
                reads.append(access(b, (0, c), (0, r)))
            fences = ["proxy.async"] if rng.random() < 0.95 else []
            n.task(
                k % queues if rng.random() < 0.9 else rng.randrange(queues), reads, writes, waits, [(counters[p], 1)], fences=fences
            )
        before = (buffer, rows, cols, sizes[p])
        made.append(before)
    return Schedule.from_json(n.json())


def planes(rng: Rng) -> Schedule:
    """Tiles of buffers of one pitch (or nearly) on the same bytes, some elements apart: a tile of one wraps in the other."""
    n = Net(2, rng.choice((1, 1, 2)))
    cols = rng.randint(2, 5)
    size, dtype = rng.choice(((4, "f32"), (4, "f32"), (2, "bf16"), (1, "i8"), (1, "i4")))
    given: dict[str, Any] = {"lifetime": "persistent", "filled": True, "dtype": dtype}
    buffers = []
    for _ in range(rng.randint(1, 3)):
        c, r = cols + (rng.random() < 0.15), rng.randint(2, 5)
        buffers.append((n.buffer(c, r, offset=8 * size + size * rng.randint(-cols, cols), **given), r, c))
    c, back = n.counter(), n.counter()
    ordered = rng.random() < 0.4
    for k in range(2):
        for _ in range(rng.randint(1, 2)):
            b, r, w = rng.choice(buffers)
            r0, c0 = rng.randrange(r), rng.randrange(w)
            line = access(b, (c0, rng.randint(c0 + 1, w)), (r0, rng.randint(r0 + 1, r)))
            write = rng.random() < (0.7, 0.3)[k]
            waits = ([(back, 1, -1)] if k == 0 and not n.tasks else []) + ([(c, 1, 0)] if k and ordered else [])
            n.task(k, [] if write else [line], [line] if write else [], waits)
        n.tasks[-1]["signals"].append([(c, back)[k], 1])
    return Schedule.from_json(n.json())


def _moving(rng: Rng, top: int) -> Range:
    if rng.random() < 0.3:
        lo = rng.randrange(top)
        return (lo, rng.randint(lo, top))
    base = rng.choice((None, None, "p[0]", "p[1]", "w[0]"))
    mod = rng.choice((None, None, None, 2, 3, top))
    length: Any = rng.choice((1, 1, 1, 2))
    if rng.random() < 0.2:
        length = {"stride": rng.choice((0, 1)), "add": rng.choice((0, 1)), "base": rng.choice(("p[0]", "w[0]"))}
    return affine(rng.choice((0, 1, 1, 2, -1)), length, base, mod, rng.randint(0, max(0, top // 2)))


def aliases(rng: Rng) -> Schedule:
    """Ranges that move with the step and with variables of few or of many values, in one buffer or in two on the same bytes."""
    n = Net(2, rng.choice((1, 2, 3, 5)))
    n.extra["variables"] = {
        "p": {"count": 2, "min": rng.choice((0, 1)), "max": rng.choice((1, 2, 4))},
        "w": {"count": 1, "min": 0, "max": rng.choice((1, 3, 7, 11, 300))},
    }
    given: dict[str, Any] = {"lifetime": "persistent", "filled": True}
    rows = rng.choice((4, 8, 12, 320))
    x = n.buffer(rng.choice((1, 2, 3)), rows, dtype=rng.choice(("f32", "i8", "i4")), offset=0, **given)
    y = n.buffer(
        rng.choice((1, 2, 3, 4)), rows, dtype=rng.choice(("f32", "i8", "i4", "bf16")), offset=rng.choice((0, 1, 4, 8, 12)), **given
    )
    c, back = n.counter(), n.counter()
    kind = rng.choice((None, 0, 0, 1))  # no order, both ways, one way
    for k, b in enumerate((x, rng.choice((x, y, y)))):
        cols = n.buffers[b]["shape"][1]
        lo = rng.randrange(cols)
        line: Json = access(b, (lo, rng.randint(lo + 1, cols)), _moving(rng, rows))
        write = k == 0 or rng.random() < 0.3
        waits = [(c, 1, 0)] if k and kind is not None else [(back, 1, -1)] if not k and kind == 0 else []
        n.task(k, [] if write else [line], [line] if write else [], waits, [((c, back)[k], 1)])
    return Schedule.from_json(n.json())


def schedules(rng: Rng, count: int) -> Iterator[Schedule]:
    """So many of each kind."""
    for _ in range(count):
        yield from (barriers(rng), planes(rng), aliases(rng))
