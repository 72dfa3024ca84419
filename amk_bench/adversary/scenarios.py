"""Classes of attack that need a shape of their own: loops, rings, KV rows, tags, stop, proxies; each draws safe and unsafe ones."""

from __future__ import annotations

from amk_bench.adversary.generators import placed
from amk_bench.adversary.mutations import alias_buffers
from amk_bench.adversary.net import Generator, Json, Net, Rng, access, affine
from amk_bench.adversary.real import lowered

ONE = (0, 1)


# ---- loops
def late_race(rng: Rng) -> Json:
    """A producer laps its reader in a ring of M rows: the first race is in step M, which the launch may or may not reach."""
    rows = rng.choice((4, 5, 6))
    n = Net(2, rng.choice((rows - 1, rows, rows + 1, rows + 2)))
    x, c, back = n.buffer(1, rows=rows, lifetime="persistent"), n.counter(), n.counter()
    row = affine(stride=1, mod=rows)
    n.task(0, [], [access(x, ONE, row)], [(back, 1, -1)] if rng.random() < 0.2 else [], [(c, 1)])
    if rng.random() < 0.3:
        n.task(rng.randrange(2))
    n.task(1, [access(x, ONE, row)], [], [(c, 1)], [(back, 1)])
    return n.json()


def slow_drift(rng: Rng) -> Json:
    """Tiny loops with unequal weights and partial thresholds, in which one queue may gain on another a little every step."""
    queues = rng.choice((2, 2, 3))
    n = Net(queues, rng.choice((5, 6, 7, 8)) if queues == 2 else rng.choice((4, 5)))
    buffers = [n.buffer(2, lifetime="persistent", filled=True) for _ in range(2)]
    counters = [n.counter() for _ in range(rng.choice((1, 2, 2, 3)))]
    for q in range(queues):
        for _ in range(rng.choice((1, 1, 2))):
            reads = [access(rng.choice(buffers), (0, 2))] if rng.random() < 0.5 else []
            writes = [access(rng.choice(buffers), (0, rng.choice((1, 2))))] if rng.random() < 0.4 else []
            n.task(q, reads, writes, [], [(c, rng.choice((1, 1, 2, 3))) for c in counters if rng.random() < 0.6])
    s = n.json()
    for t in s["tasks"]:
        for c in counters:
            total = s["counters"][c]["per_step"]
            if total and rng.random() < 0.5:
                t["waits"].append([c, rng.randint(max(1, total - 2), total), rng.choice((-1, -1, 0))])
    return s


def _overtaking(rng: Rng, rows: int, back: bool) -> Json:
    """A fast queue several steps ahead of a slow one, which reads what it left behind."""
    steps = rng.choice((3, 4, 5))
    n = Net(rng.choice((2, 3)), steps)
    x = n.buffer(2, rows=rows or steps, lifetime="persistent")
    out = n.buffer(2, rows=steps, kind="output", lifetime="host")
    c, free = n.counter(), n.counter()
    here = affine(stride=1, mod=rows or None)
    n.task(0, [], [access(x, ONE, here)], [(free, 1, -1)] if back else [], [(c, 1)])
    n.task(0, [], [access(x, (1, 2), here)], [], [(c, 1)])
    for q in range(1, len(n.queues)):
        if q > 1:
            n.task(q, waits=[(c, 1)])
        else:
            n.task(q, [access(x, (0, 2), here)], [access(out, (0, 2), affine(stride=1))], [(c, 2)], [(free, 1)])
    return n.json()


def overtaking_safe(rng: Rng) -> Json:
    """Overtaking over rows that are all different, or with a ring that the launch cannot fill."""
    return _overtaking(rng, rng.choice((0, 5, 6)), rng.random() < 0.2)


def overtaking_unsafe(rng: Rng) -> Json:
    """Overtaking over one row or a ring that is too short; sometimes a back edge makes it safe again."""
    return _overtaking(rng, rng.choice((1, 2)), rng.random() < 0.25)


# ---- KV rows, rings, launch variables
def _kv(rng: Rng, sequences: int = 1, rows: int | None = None) -> tuple[Net, int, int]:
    steps = rng.choice((1, 2, 3))
    n = Net(2, steps)
    most = rng.choice((1, 2, 3))
    each = rows if rows is not None else most + steps
    kv = n.buffer(1, rows=each * sequences, kind="kv", lifetime="persistent")
    n.extra["variables"] = {"p0": {"count": sequences, "min": 0, "max": most}}
    for s in range(sequences):
        n.initial.append(access(kv, ONE, {"start": s * each, "length": {"base": f"p0[{s}]"}}))
    return n, kv, each


def _kv_read(each: int, seq: int, extra: int) -> Json:
    """Rows of a sequence up to this step's last one, and ``extra`` more."""
    return {"start": seq * each, "length": {"base": f"p0[{seq}]", "stride": 1, "add": 1 + extra}}


def kv_row_off_by_one(rng: Rng) -> Json:
    """Append a row, attend over all rows so far; one of row, length, initial rows or order may be off by one."""
    n, kv, each = _kv(rng)
    wrong = rng.choice(("none", "row", "length", "short", "initial", "order", "size"))
    c, free = n.counter(), n.counter()
    n.task(
        0,
        [],
        [access(kv, ONE, affine(1, base="p0[0]", add=int(wrong == "row")))],
        [(free, 1, -1)] if rng.random() < 0.3 else [],
        [(c, 1)],
    )
    extra = {"length": 1, "short": -1}.get(wrong, 0)
    n.task(1, [access(kv, ONE, _kv_read(each, 0, extra))], [], [(c, 1, -1 if wrong == "order" else 0)], [(free, 1)])
    if wrong == "initial":
        n.initial[0]["rows"]["start"] = 1
        n.initial[0]["rows"]["length"]["add"] = -1
        n.extra["variables"]["p0"]["min"] = 1
    if wrong == "size":
        n.buffers[kv]["shape"][0] -= 1
    return n.json()


def ring_row_wrap(rng: Rng) -> Json:
    """Read this and the row before in a ring; a range of two rows may run over the edge instead of wrapping."""
    rows = rng.choice((2, 3, 4))
    n = Net(2, rng.choice((2, 3, 4, 5)))
    ring = n.buffer(1, rows=rows, lifetime="persistent", filled=True)
    c, free = n.counter(), n.counter()
    length = rng.choice((1, 1, 1, 2))
    n.task(0, [], [access(ring, ONE, affine(1, mod=rows))], [(free, 1, -1)] if rng.random() < 0.6 else [], [(c, 1)])
    lag = rng.choice((0, 1, rows - 1))
    reads = [access(ring, ONE, affine(1, length=length, mod=rows, add=rows - lag))]
    n.task(1, reads, [], [(c, 1)] if rng.random() < 0.8 else [(c, 1, -1)], [(free, 1)])
    return n.json()


def deferred_append(rng: Rng) -> Json:
    """Key and value rows are appended by two tasks that share a counter, one of them late; the reader may wait for one only."""
    n, k, each = _kv(rng)
    v = n.buffer(1, rows=each, kind="kv", lifetime="persistent")
    n.initial.append(access(v, ONE, {"start": 0, "length": {"base": "p0[0]"}}))
    c, free, row = n.counter(), n.counter(), affine(1, base="p0[0]")
    n.task(0, [], [access(k, ONE, row)], [], [(c, 1)])
    if rng.random() < 0.4:
        n.task(0)
    late = n.task(rng.randrange(2), [], [access(v, ONE, row)], [], [(c, 1)])
    if rng.random() < 0.3:  # the signal is sent by the task before
        n.tasks[late]["signals"], n.tasks[0]["signals"] = [], [[c, 2]]
    n.task(1, [access(b, ONE, _kv_read(each, 0, 0)) for b in (k, v)], [], [(c, rng.choice((1, 2, 2)))], [(free, 1)])
    return n.json()


def two_first_positions(rng: Rng) -> Json:
    """Two sequences with their own first positions in one cache, whose halves may be too small for some of the values."""
    steps, most = rng.choice((1, 2)), rng.choice((1, 2, 3))
    each = most + steps - rng.choice((0, 0, 1))
    n = Net(2, steps)
    kv = n.buffer(1, rows=2 * each + 1, kind="kv", lifetime="persistent")
    n.extra["variables"] = {"p0": {"count": 2, "min": 0, "max": most}}
    for s in range(2):
        n.initial.append(access(kv, ONE, {"start": s * each, "length": {"base": f"p0[{s}]"}}))
        n.task(s, [], [access(kv, ONE, affine(1, base=f"p0[{s}]", add=s * each))])
        if rng.random() < 0.6:
            n.task(s, [access(kv, ONE, _kv_read(each, s, 0))])
    if rng.random() < 0.2:  # the wrong variable
        n.tasks[-1]["writes"] = [access(kv, ONE, affine(1, base="p0[0]", add=each))]
    return n.json()


def inactive_append(rng: Rng) -> Json:
    """A masked sequence may append: into its own rows, or into a scratch row that another one reads."""
    n, kv, each = _kv(rng, sequences=2)
    c = n.counter()
    into = rng.choice(("own", "own", "other", "scratch"))
    row = {"own": affine(1, base="p0[1]", add=each), "other": affine(1, base="p0[0]"), "scratch": affine(0, add=2 * each - 1)}[into]
    n.task(0, [], [access(kv, ONE, affine(1, base="p0[0]"))], [], [(c, 1)])
    n.task(1, [], [access(kv, ONE, row, maybe=True)])
    reads = [access(kv, ONE, _kv_read(each, 0, 0))]
    if rng.random() < 0.6:
        reads.append(access(kv, ONE, _kv_read(each, 1, 0), **({"maybe": True} if rng.random() < 0.7 else {})))
    n.task(rng.randrange(2), reads, [], [(c, 1)] if rng.random() < 0.8 else [])
    return n.json()


def token_feedback(rng: Rng) -> Json:
    """The sampler overwrites the token that the embeddings of this step read; one embedding may not be in its past."""
    queues = rng.choice((2, 3))
    n = Net(queues, rng.choice((2, 3)))
    token = n.buffer(1, kind="token", dtype="i32", lifetime="persistent", filled=True)
    h, done, sampled = n.buffer(queues), n.counter(), n.counter()
    skipped = rng.choice((None, rng.randrange(queues)))
    for q in range(queues):
        waits = [] if rng.random() < 0.15 else [(sampled, 1, -1)]
        n.task(q, [access(token, ONE)], [access(h, (q, q + 1))], waits, [(done, 1)] if q != skipped else [])
    joined = queues - (skipped is not None)
    tile = (0, queues) if skipped is None or rng.random() < 0.5 else ((0, skipped) if skipped else (1, queues))
    n.task(rng.randrange(queues), [access(h, tile)], [access(token, ONE)], [(done, joined)], [(sampled, 1)])
    return n.json()


def moving_ranges(rng: Rng) -> Json:
    """Random ranges that move with the step and with launch variables: strides, rings, growing lengths, aliases.

    They are ordered by one counter a queue, sometimes not.
    """
    queues, steps = rng.choice((1, 2, 2)), rng.choice((1, 2, 3, 4))
    n = Net(queues, steps)
    most = rng.choice((0, 1, 2))
    n.extra["variables"] = {"p": {"count": 2, "min": rng.choice((0, 0, 1)), "max": 1 + most}}
    rows = rng.choice((6, 9, 12))
    buffers = [
        n.buffer(2, rows=rows, lifetime=rng.choice(("step", "persistent", "persistent")), filled=rng.random() < 0.4)
        for _ in range(rng.choice((1, 1, 2)))
    ]
    if rng.random() < 0.2:
        at = n.buffers[rng.choice(buffers)]["offset"] + rng.choice((0, 4, 16))
        buffers.append(n.buffer(rng.choice((1, 2, 4)), rows=rows // 2, lifetime="persistent", offset=at))
    base = rng.choice((None, "p[0]", "p[0]", "p[1]"))
    if base and rng.random() < 0.6:  # as a cache is: rows below the first position
        n.initial.append(access(buffers[0], (0, 2), {"start": 0, "length": {"base": base, "add": rng.choice((0, 0, 1))}}))
    counters = [n.counter() for _ in range(queues)]

    def line(limit: int) -> Json | tuple[int, int]:
        if rng.random() < 0.2:
            lo = rng.randrange(limit)
            return lo, rng.randint(lo + 1, limit)
        length: Json | int = rng.choice((1, 1, 2))
        add, stride = rng.choice((0, 0, 1, 2)), rng.choice((1, 1, 1, 0, 2, -1))
        if rng.random() < 0.3:
            length = {"stride": rng.choice((0, 1)), "add": rng.choice((0, 1, 1, 2)), **({"base": base} if base else {})}
            stride, add = 0, 0
        mod = rng.choice((None, None, None, limit - 1, 3))
        return affine(stride, length, None if rng.random() < 0.3 else base, mod, add + (steps if stride < 0 else 0))

    ordered = rng.random() < 0.75
    done = [0] * queues
    for _ in range(rng.randint(2, 5)):
        q = rng.randrange(queues)
        accesses = []
        for write in (False, True):
            for _ in range(rng.choice((0, 1, 1))):
                b = rng.choice(buffers)
                shape = n.buffers[b]["shape"]
                cols = (0, shape[1]) if rng.random() < 0.7 else (rng.randrange(shape[1]), shape[1])
                extra = {"maybe": True} if rng.random() < 0.15 else {}
                accesses.append((write, access(b, cols, line(shape[0]), **extra)))
        waits = []
        for other in range(queues):
            if other != q and ordered:
                waits += [(counters[other], done[other], 0)] if done[other] else []
                waits.append((counters[other], -1, -1))  # all of the step before; the total is known at the end
        n.task(q, [a for w, a in accesses if not w], [a for w, a in accesses if w], waits, [(counters[q], 1)])
        done[q] += 1
    s = n.json()
    for t in s["tasks"]:
        t["waits"] = [[c, done[c] if k < 0 else k, e] for c, k, e in t["waits"] if done[c] and rng.random() < 0.97]
    return s


# ---- stop and host
def stop_seen_by_one_queue(rng: Rng) -> Json:
    """Every queue must know the decision of step i before it enters step i + 1, by waits on the step before; one may see it late,
    not at all, or only behind a wait of the new step."""
    queues, steps = rng.choice((2, 3)), rng.choice((1, 2, 3, 4))
    n = Net(queues, steps)
    stop, c, work = n.buffer(1, rows=steps, lifetime="host"), n.counter(), n.counter()
    blind = rng.choice((None, None, *range(1, queues)))
    how = rng.choice(("free", "late", "same step"))
    first = n.task(0, waits=[(c, 1, -1)] if rng.random() < 0.5 else [], signals=[(work, 1)]) if rng.random() < 0.6 else None
    for q in range(1, queues):
        if q != blind:
            waits = [(c, 1, -1)] + ([(work, 1)] if first is not None and rng.random() < 0.5 else [])
        else:
            waits = [(work, 1)] if how == "same step" and first is not None else []
        n.task(q, waits=waits)
        if rng.random() < 0.4 or (q == blind and how == "late"):
            n.task(q, waits=[(c, 1, -1)] if q == blind and how == "late" else [])
    sampler = n.task(0, [], [access(stop, ONE, affine(1))], [], [(c, 1)])
    if rng.random() < 0.2:  # queue order alone: the last task of this step stands behind the decision of this step
        n.task(1, waits=[(c, 1)])
    if rng.random() < 0.2:  # somebody else writes the decision too, in order
        n.task(0, [], [access(stop, ONE, affine(1))])
    if rng.random() < 0.08:
        n.tasks[sampler]["writes"][0]["maybe"] = True
    n.extra["stop"] = {"buffer": stop, "task": sampler}
    return n.json()


def host_ring_overrun(rng: Rng) -> Json:
    """A row a step for the host: too few rows, too many, or a ring that comes round before the launch ends."""
    steps = rng.choice((2, 3, 4))
    rows = steps + rng.choice((-1, 0, 0, 1))
    n = Net(rng.choice((1, 2)), steps)
    out = n.buffer(2, rows=rows, kind="output", lifetime="host")
    row = affine(1, mod=rows if rng.random() < 0.5 else None)
    if len(n.queues) == 1:
        n.task(0, [], [access(out, (0, 2), row)])
    else:
        for q in range(2):
            n.task(q, [], [access(out, (q, q + 1), row)])
    return n.json()


# ---- tags
def _tagged(n: Net, cols: int, rows: int = 1, **extra: object) -> int:
    return n.buffer(cols, rows, dtype="tag64", lifetime="persistent", tagged=True, **extra)  # type: ignore[arg-type]


def tagged_reader_without_output(rng: Rng) -> Json:
    """Tagged elements with one barrier a step; a reader that does not signal has no order before the next writer."""
    queues = rng.choice((2, 3))
    n = Net(queues, rng.choice((1, 2, 3)))
    x, c = _tagged(n, 2), n.counter()
    quiet = rng.choice((None, None, *range(1, queues)))
    readers = [q for q in range(1, queues) if q != quiet]
    n.task(0, [], [access(x, (0, 2))], [(c, len(readers), -1)] if readers else [])
    for q in range(1, queues):
        n.task(q, [access(x, (0, 2) if rng.random() < 0.7 else (0, 1))], [], [], [(c, 1)] if q != quiet else [])
    return n.json()


def tag_ping_pong(rng: Rng) -> Json:
    """Two (or three) copies used in turn, without or with a barrier that keeps the writer from lapping its readers."""
    copies = rng.choice((1, 2, 2, 3))
    n = Net(2, rng.choice((1, 2, 3, 4)))
    x, y, c = _tagged(n, 1, copies), _tagged(n, 1, copies), n.counter()
    row = affine(1, mod=copies)
    how = rng.choice(("none", "barrier", "answer"))
    n.task(0, [], [access(x, ONE, row)], [(c, 1, -1)] if how == "barrier" else [])
    n.task(1, [access(x, ONE, row)], [access(y, ONE, row)] if how == "answer" else [], [], [(c, 1)])
    if how == "answer":  # the answer is tagged too: it orders values, not the reader's end
        n.task(0, [access(y, ONE, row)])
    return n.json()


def tag_orders_plain_data(rng: Rng) -> Json:
    """Plain bytes beside a tagged flag: only a counter orders them."""
    n = Net(2, rng.choice((1, 1, 2)))
    x, y, c, free = _tagged(n, 1), n.buffer(2), n.counter(), n.counter()
    counted = rng.random() < 0.5
    n.task(0, [], [access(y, (0, 2)), access(x, ONE)], [(free, 1, -1)], [(c, 1)])
    n.task(1, [access(x, ONE), *([access(y, (0, 2))] if rng.random() < 0.8 else [])], [], [(c, 1)] if counted else [], [(free, 1)])
    return n.json()


def stale_tag(rng: Rng) -> Json:
    """A reader of the tag before, a second writer of a tag, a second name for tagged bytes, a reader in front of its writer."""
    n = Net(2, rng.choice((1, 2, 3)))
    epoch = rng.random() < 0.5
    what = rng.choice(("none", "none", "writer", "alias", "plain", "front", "lost"))
    x, c, free = _tagged(n, 2, filled=epoch and rng.random() < 0.6), n.counter(), n.counter()
    read = access(x, (0, 2), **({"epoch": -1} if epoch else {}))
    order = [(c, 1, 0)] if epoch else []
    n.task(1, [read], [], [], [(c, 1)])
    n.task(0, [], [access(x, (0, 1) if what == "lost" else (0, 2))], order if epoch else [(c, 1, -1)], [(free, 1)])
    if what == "writer":
        n.task(0, [], [access(x, ONE)])
    elif what == "alias":
        n.task(0, [], [access(n.buffer(1, dtype="tag64", tagged=True, offset=n.buffers[x]["offset"]), ONE)])
    elif what == "plain":
        n.task(0, [access(n.buffer(1, dtype="i64", lifetime="persistent", offset=n.buffers[x]["offset"]), ONE)])
    elif what == "front":
        n.queues[0], n.queues[1] = [], n.queues[1] + n.queues[0]
    return n.json()


def random_tags(rng: Rng) -> Json:
    """Random readers and writers of tagged elements, some in rings, some of the tag before, with random counters beside them."""
    queues, steps = rng.choice((2, 2, 3)), rng.choice((1, 2, 3))
    n = Net(queues, steps)
    copies = rng.choice((1, 1, 2, 3))
    x = _tagged(n, 3, copies, filled=rng.random() < 0.3)
    y = n.buffer(2, lifetime="persistent", filled=True)
    counters = [n.counter() for _ in range(queues)]
    writer = {c: rng.randrange(queues) for c in range(3)}
    for q in range(queues):
        for _ in range(rng.choice((1, 1, 2))):
            lo = rng.randrange(3)
            row = affine(1, mod=copies) if copies > 1 else (0, 1)
            reads: list[Json] = []
            writes: list[Json] = []
            if rng.random() < 0.6:
                extra: Json = {"epoch": -1} if rng.random() < 0.2 else {}
                back = affine(1, mod=copies, add=copies - 1) if copies > 1 and extra else row
                reads.append(access(x, (lo, rng.randint(lo + 1, 3)), back, **extra))
            if rng.random() < 0.3:
                (reads if rng.random() < 0.7 else writes).append(access(y, (0, rng.choice((1, 2)))))
            n.task(q, reads, writes, [], [(counters[q], 1)])
        mine = [c for c in range(3) if writer[c] == q]
        if mine:
            writes = [access(x, (c, c + 1), affine(1, mod=copies) if copies > 1 else ONE) for c in mine]
            n.task(q, [], writes, [], [(counters[q], 1)])
            if rng.random() < 0.5:  # the writer in front of its readers
                n.queues[q].insert(0, n.queues[q].pop())
    s = n.json()
    for q, ids in enumerate(n.queues):
        for t in ids:
            for c in counters:
                if c != counters[q] and rng.random() < 0.45:
                    total = s["counters"][c]["per_step"]
                    s["tasks"][t]["waits"].append([c, rng.choice((total, rng.randint(1, total))), rng.choice((-1, -1, 0))])
    return s


# ---- proxies and bytes
def missing_proxy_fence(rng: Rng) -> Json:
    """A generic write read through the asynchronous proxy, on the same or another queue, with or without its fence."""
    n = Net(2, rng.choice((1, 2)))
    x, c, free = n.buffer(2), n.counter(), n.counter()
    fence = {"fences": ["proxy.async"]}
    right = rng.random() < 0.5
    n.task(0, [], [access(x, (0, 2))], [(free, 1, -1)], [(c, 1)], **(fence if rng.random() < 0.3 else {}))
    proxy = {"proxy": "async"} if rng.random() < 0.8 else {}
    n.task(rng.randrange(2), [access(x, (0, 1), **proxy)], [], [(c, 1)], [(free, 1)], **(fence if right else {}))
    return n.json()


def read_wait_before_signal(rng: Rng) -> Json:
    """A bulk store must be complete before its release; waiting until its source was read is not enough."""
    n = Net(2, rng.choice((1, 2)))
    x, c, free = n.buffer(2), n.counter(), n.counter()
    fences = rng.choice((["bulk.wait_group"], ["bulk.wait_group.read"], [], ["bulk.wait_group", "bulk.wait_group.read"]))
    signals = [(c, 1)] if rng.random() < 0.8 else []
    proxy = {"proxy": "async"} if rng.random() < 0.85 else {}
    n.task(0, [], [access(x, (0, 2), **proxy)], [(free, 1, -1)], signals, fences=fences)
    if rng.random() < 0.4:
        n.task(0)
    n.task(1, [access(x, (0, 2))] if signals else [], [], [(c, 1)] if signals else [], [(free, 1)])
    return n.json()


def sub_byte_neighbours(rng: Rng) -> Json:
    """4-bit tiles of two queues that meet inside a byte, or at its edge."""
    width, rows = rng.choice((4, 5, 6)), rng.choice((1, 2, 3))
    n = Net(2, rng.choice((1, 2)))
    x, cut = n.buffer(width, rows, dtype="i4"), rng.randint(1, width - 1)
    n.task(0, [], [access(x, (0, cut), (0, rows))])
    second = (cut, width) if rng.random() < 0.8 else (min(width - 1, cut + 1), width)
    if rng.random() < 0.5:
        n.task(1, [], [access(x, second, (0, rows))])
    else:
        n.task(1, [], [access(x, (0, width), (0, rows))] if rng.random() < 0.2 else [access(x, second, (rows - 1, rows))])
    return n.json()


# ---- real ops: labels
def unbounded_pools(s: Json) -> None:
    """So that a buffer that moved is judged by what it clobbers."""
    for p in s["pools"]:
        p["bytes"] = None


def ordered_clobber_by_alias(rng: Rng) -> Json:
    """A real lowering in which one activation lies on another: in order, but it computes something else."""
    s = lowered(rng)
    own = [b for b in s["buffers"] if b["kind"] in ("activation", "kv", "token")]
    a, b = rng.sample(own, 2)
    a["pool"], a["offset"] = b["pool"], b["offset"] + rng.choice((0, 0, 4, 8))
    unbounded_pools(s)
    return s


def duplicated_accumulate(rng: Rng) -> Json:
    """A residual tile is added once more, behind the first: every access is ordered, the value is wrong."""
    s = lowered(rng, rng.choice(("decode", "logits")))
    adds = [t for t in s["tasks"] if t["op"] in ("o_proj", "o_proj_combine", "down_proj")]
    t = rng.choice(adds)
    copy = {**t, "id": len(s["tasks"]), "signals": [], "waits": [list(w) for w in t["waits"]]}
    s["tasks"].append(copy)
    queue = next(q for q in s["queues"] if t["id"] in q)
    queue.insert(queue.index(t["id"]) + rng.choice((0, 1)), copy["id"])
    if rng.random() < 0.3:  # the copy adds into a buffer of its own, which it may find as it left it a step before
        extra = dict(s["buffers"][t["params"]["h"]])
        extra |= {"id": len(s["buffers"]), "name": "copy", "offset": 1 << 20, "lifetime": rng.choice(("step", "persistent"))}
        s["buffers"].append(extra)
        s["initial"].append(access(extra["id"], (0, extra["shape"][-1]), (0, extra["shape"][0])))
        unbounded_pools(s)
        copy["reads"] = [{**a, "buffer": extra["id"]} if a["buffer"] == t["params"]["h"] else a for a in t["reads"]]
        copy["writes"] = [{**a, "buffer": extra["id"]} for a in t["writes"]]
        copy["params"] = {k: extra["id"] if k in ("h", "out") else v for k, v in t["params"].items()}
    return s


FOOTPRINT_PARAMS = ("row0", "row1", "k", "hidden", "w", "layer", "col0", "col1", "vocab", "head_dim", "m", "splits", "norm_w")


def wrong_shape_parameters(rng: Rng) -> Json:
    """A real op whose parameters (a quant group, a tile, an inner size, a weight) disagree with what it declares."""
    s = lowered(rng)
    t = rng.choice(s["tasks"])
    name = rng.choice([p for p in FOOTPRINT_PARAMS if p in t["params"]])
    t["params"][name] += rng.choice((-1, 1, 2))
    return s


def real_alias(rng: Rng) -> Json:
    """Any two buffers of a real lowering on the same bytes: weights, caches (one tensor bound twice), inputs, outputs."""
    s = lowered(rng)
    alias_buffers(rng, s)
    if rng.random() < 0.8:
        unbounded_pools(s)
    return s


def shared_memory_hand_off(rng: Rng) -> Json:
    """Shared memory exists once a queue: a value passed through it to another queue never arrives."""
    s = placed(rng, rng.choice((1, 2)))
    movable = [b for b in s["buffers"] if b["kind"] == "activation"]
    s["pools"].append({"id": "smem", "bytes": 4096, "per_queue": True})
    b = rng.choice(movable)
    b["pool"], b["offset"] = "smem", 0
    return s


def cluster_hand_off(rng: Rng) -> Json:
    """Buffers move to a pool with a part for each cluster: into the part of whoever writes, or another, or over its end."""
    s = placed(rng, rng.choice((1, 2)))
    queues = len(s["queues"])
    cluster = rng.choice((1, 2, 2, 3, queues, queues))
    parts = -(-queues // cluster)
    queue = {t: q for q, ids in enumerate(s["queues"]) for t in ids}
    movable = [b for b in s["buffers"] if b["kind"] == "activation"]
    top = [0] * parts
    for b in rng.sample(movable, min(len(movable), rng.randint(1, 3))):
        writers = [queue[t["id"]] // cluster for t in s["tasks"] for a in t.get("writes", []) if a["buffer"] == b["id"]]
        part = rng.choice(writers) if writers and rng.random() < 0.9 else rng.randrange(parts)
        b["pool"], b["offset"] = "cluster", (part, top[part])
        top[part] += b["shape"][0] * b["shape"][-1] * 8
    size = max(top) - rng.choice((0, 0, 0, 0, 0, 8))
    for b in s["buffers"]:
        if b["pool"] == "cluster":
            b["offset"] = b["offset"][0] * size + b["offset"][1]
    whole = max(0, parts * size - rng.choice((0, 0, 0, 0, 0, 1)))
    s["pools"].append({"id": "cluster", "bytes": whole, "per_queue": rng.random() < 0.05, "cluster": cluster})
    return s


SCENARIOS: dict[str, Generator] = {
    f.__name__: f
    for f in (
        late_race, slow_drift, overtaking_safe, overtaking_unsafe, kv_row_off_by_one, ring_row_wrap, deferred_append,
        two_first_positions, inactive_append, moving_ranges, token_feedback, stop_seen_by_one_queue, host_ring_overrun,
        tagged_reader_without_output, tag_ping_pong, tag_orders_plain_data, stale_tag, random_tags, missing_proxy_fence,
        read_wait_before_signal, sub_byte_neighbours, ordered_clobber_by_alias, duplicated_accumulate, wrong_shape_parameters,
        real_alias, shared_memory_hand_off, cluster_hand_off,
    )
}  # fmt: skip
