"""Small schedules at the borders of the rules: one more, one less, nothing at all.  The oracle says which of them are safe."""

from __future__ import annotations

from collections.abc import Callable

from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.mutation import edges_values

ONE, ALL = (0, 1), (0, 2)


def _tagged(n: Net, cols: int = 1, rows: int = 1, **extra: object) -> int:
    return n.buffer(cols, rows, **{"dtype": "tag64", "lifetime": "persistent", "tagged": True} | extra)  # type: ignore[arg-type]


def _late(row: int) -> Json:
    """A range that is empty in step 0 and holds one row in step 1."""
    return {"start": {"add": row}, "length": {"stride": 1}}


def _references() -> list[Json]:
    """Names that do not exist, sizes that mean nothing, ranges at and over the edge."""
    out = []

    def simple() -> Net:
        n = Net(2)
        x, c = n.buffer(2, filled=True), n.counter()
        n.task(0, [], [access(x, ALL)], [], [(c, 1)])
        n.task(1, [access(x, ALL)], [], [(c, 1)])
        return n

    for change in range(12):
        n = simple()
        if change == 0:
            n.extra["variables"] = {"p": {"count": 1, "min": 2, "max": 1}}
        elif change == 1:
            n.pool("small", -2)
        elif change in (2, 3, 4, 5):
            n.extra["stop"] = {"buffer": (0, 7, 0, -1)[change - 2], "task": (9, 0, -1, 0)[change - 2]}
        elif change == 6:
            n.buffers[0]["offset"] = -8
        elif change in (7, 8):
            n.pools[0]["bytes"] = 8 - (change == 8)
        elif change == 9:
            n.initial[0]["cols"] = [0, 3]
        elif change == 10:
            n.initial[0]["rows"] = [1, 0]
        elif change == 11:
            n.tasks[1]["reads"][0]["cols"] = [1, 1]
        out.append(n.json())
    for steps in (0, 1, 2):
        s = simple().json()
        s["steps"] = steps
        out.append(s)
    for amount in (2**30, 2**31 - 1, 2**31, 2**30 - 1):
        n = Net(1, 2 if amount < 2**31 - 1 else 1)
        c = n.counter()
        n.task(0, signals=[(c, amount)])
        out.append(n.json())
    for e, t, amount in ((0, 0, 1), (0, 2, 1), (-1, 1, 1), (0, 1, 0), (0, 1, -1)):
        n = Net(2)
        c = n.counter()
        n.task(0, signals=[(c, amount)])
        n.task(1, waits=[(c, t, e)])
        out.append(n.json())
    for amounts, thresholds in (((0,), ()), ((2, -1), (1,)), ((2, -1), ()), ((1,), ()), ((1, 1), (2,))):
        n = Net(1)
        c = n.counter()
        n.task(0, signals=[(c, w) for w in amounts])
        n.task(0, waits=[(c, t) for t in thresholds])
        out.append(n.json())
    for e in (-1, 0):
        n = Net(1, 3)
        c = n.counter()
        n.task(0, signals=[(c, 1)])
        n.task(0, waits=[(c, 1, e)])
        out.append(n.json())
    n = Net(1)  # a count that is wrong in front of a range that is wrong
    n.task(0, [access(n.buffer(1, lifetime="persistent", filled=True), (0, 2))], signals=[(n.counter(), 0)])
    out.append(n.json())
    for size in (-1, 0, 1, None):
        n = simple()
        n.pool("small", size)
        out.append(n.json())
    for offset in (-1, 0, 1):
        n = Net(1)
        n.task(0, [], [access(n.buffer(2, dtype="i8", offset=offset), ONE)])
        out.append(n.json())
    for lo, hi in ((0, 2), (0, 3), (-1, 1), (2, 2), (2, 1), (3, 3), (0, 0)):
        for rows in (False, True):
            n = Net(1)
            x = n.buffer(2, 2, lifetime="persistent", filled=True)
            n.task(0, [access(x, *((ALL, (lo, hi)) if rows else ((lo, hi), ALL)))])
            out.append(n.json())
    return out


def _tags() -> list[Json]:
    """Alignment and width, two names, two writers, tags that nobody reads, the tag before, readers that may not read."""
    out = []
    for dtype, offset in (("tag64", 0), ("tag64", 4), ("i64", 8), ("f32", 0), ("tag64", 8)):
        n = Net(2)
        x = _tagged(n, dtype=dtype, offset=offset)
        n.task(0, [], [access(x, ONE)])
        n.task(1, [access(x, ONE)])
        out.append(n.json())
    for ordered in (0, 1, 2):  # a tag that nobody reads, and the next writer of the address on another queue
        n = Net(3, 2)
        x, c, d = _tagged(n, 1, 2), n.counter(), n.counter()
        n.task(0, [], [access(x, ONE, affine(1, mod=2))], [(d, 1, -1)] if ordered == 2 else [], [(c, 1)])
        n.task(1, [], [access(x, ONE, affine(1, mod=2, add=1))], [(c, 1)] if ordered else [(c, 1, -1)], [(d, 1)])
        out.append(n.json())
    for maybe in (False, True):
        for back in (False, True):
            n = Net(2, 3)
            x, c = _tagged(n), n.counter()
            n.task(0, [], [access(x, ONE)], [(c, 1, -1)] if back else [])
            n.task(1, [access(x, ONE, **({"maybe": True} if maybe else {}))], [], [], [(c, 1)])
            out.append(n.json())
    for filled in (False, True):
        for steps in (1, 2):
            for maybe in (False, True):
                n = Net(1, steps)
                x = _tagged(n, filled=filled)
                n.task(0, [access(x, ONE, epoch=-1, **({"maybe": True} if maybe else {}))])
                n.task(0, [], [access(x, ONE)])
                out.append(n.json())
    for how in ("twice", "same task", "read and write", "other column"):
        n = Net(1)
        x = _tagged(n, 2)
        n.task(0, [], [access(x, ONE), *([access(x, ONE)] if how == "same task" else [])])
        if how == "twice":
            n.task(0, [], [access(x, ONE)])
        elif how == "read and write":
            n.task(0, [access(x, ONE)], [access(x, (1, 2))])
        elif how == "other column":
            n.task(0, [], [access(x, (1, 2))])
        n.task(0, [access(x, ONE)])
        out.append(n.json())
    for rows in ((0, 0), ONE, (1, 2), ALL):  # two writers take turns; some of their tags are read, some maybe
        for maybe_rows in ((0, 0), ONE, ALL):
            n = Net(3, 2)
            x, c = _tagged(n, 1, 2), n.counter()
            n.task(0, [], [access(x, ONE, affine(1, mod=2))], [(c, 1, -1)])
            n.task(1, [], [access(x, ONE, affine(1, mod=2, add=1))], [(c, 1, -1)])
            n.task(2, [access(x, ONE, rows), access(x, ONE, maybe_rows, maybe=True)], [], [], [(c, 1)])
            out.append(n.json())
    for ordered in (False, True):  # a row of two gets its second tag, which nobody reads, on another queue
        n = Net(2, 2)
        x, c = _tagged(n, 1, 2), n.counter()
        n.task(0, [], [access(x, ONE, affine(1))], [], [(c, 1)])
        n.task(1, [], [access(x, ONE, _late(0))], [(c, 1, -1)] if ordered else [])
        out.append(n.json())
    n = Net(2, 2)  # a reader that may read in the second step only
    x = _tagged(n)
    n.task(0, [], [access(x, ONE)])
    n.task(1, [access(x, ONE, _late(0), maybe=True)])
    out.append(n.json())
    for both in (False, True):  # readers of two tags on two queues
        n = Net(3, 2)
        x, c, d = _tagged(n), n.counter(), n.counter()
        n.task(0, [], [access(x, ONE)], [(c, 1, -1), *([(d, 1, -1)] if both else [])])
        n.task(1, [access(x, ONE)], [], [], [(c, 1)])
        n.task(2, [access(x, ONE)], [], [], [(d, 1)])
        out.append(n.json())
    for maybe in (False, True):  # read in front of the writer
        n = Net(1)
        x = _tagged(n)
        n.task(0, [access(x, ONE, **({"maybe": True} if maybe else {}))])
        n.task(0, [], [access(x, ONE)])
        out.append(n.json())
    for late in (False, True):  # the reader meets the writer behind it in the second step only
        n = Net(1, 2)
        x = _tagged(n, 1, 2, filled=True)
        n.task(0, [access(x, ONE, _late(0) if late else (0, 0))])
        n.task(0, [], [access(x, ONE)])
        out.append(n.json())
    for reader in (False, True):  # a task that reads the tag it writes
        n = Net(1)
        x = _tagged(n)
        n.task(0, [access(x, ONE, maybe=True)] if reader else [], [access(x, ONE)])
        out.append(n.json())
    for row in (0, 1, 2):  # each row gets one tag in all, and is read in every step
        n = Net(2, 2)
        x, c = _tagged(n, 1, 3), n.counter()
        n.task(0, [], [access(x, ONE, affine(1))], [(c, 1, -1)])
        n.task(1, [access(x, ONE, (row, row + 1) if row < 2 else affine(1))], [], [], [(c, 1)])
        out.append(n.json())
    for behind in (False, True):  # a dead end in front of the writer that would overtake
        n = Net(3, 1)
        x, c, d = _tagged(n), n.counter(), n.counter()
        n.task(0, [], [access(x, ONE)])
        n.task(1, [access(x, ONE)])
        n.task(2, waits=[(c, 1)], signals=[(d, 1)])
        n.task(2, waits=[(d, 1)], signals=[(c, 1)])
        if behind:
            n.task(2, [], [access(x, ONE)])
        out.append(n.json())
    return out


def _cover() -> list[Json]:
    """Certain and maybe writes, steps, initial data, outputs and rows for the host."""
    out = []
    for life in ("step", "persistent"):
        for filled in (False, True):
            for maybe in (False, True):
                for steps in (1, 2):
                    n = Net(1, steps)
                    x = n.buffer(2, lifetime=life, filled=filled)
                    n.task(0, [], [access(x, ONE, **({"maybe": True} if maybe else {}))])
                    n.task(0, [access(x, ONE)])
                    n.task(0, [access(x, (1, 2), **({"maybe": True} if maybe else {}))])
                    out.append(n.json())
    for rows in (1, 2, 3):
        for mod in (None, 2):
            for life in ("host", "persistent"):
                for twice in (False, True):
                    n = Net(1, 2)
                    y = n.buffer(1, rows, kind="output", lifetime=life)
                    n.task(0, [], [access(y, ONE, affine(1, mod=mod))])
                    if twice:
                        n.task(0, [], [access(y, ONE, (0, 1))])
                    out.append(n.json())
    for late in (False, True):  # an output that another name overwrites, in the last step or in each
        n = Net(1, 2)
        y = n.buffer(1, kind="output", lifetime="persistent")
        z = n.buffer(1, lifetime="persistent", offset=0)
        n.task(0, [], [access(z if late else y, ONE)])
        n.task(0, [], [access(y if late else z, ONE)])
        out.append(n.json())
    return out


def _stop() -> list[Json]:
    """Deciding late, in the middle of a queue, never, or somebody else deciding."""
    out = []
    for waits in ([], [-1], [0]):
        for first in (False, True):
            for maybe in (False, True):
                n = Net(2, 3)
                stop, other, c = n.buffer(1, rows=3, lifetime="host"), n.buffer(1, lifetime="persistent"), n.counter()
                if not first:
                    n.task(1)
                n.task(1, waits=[(c, 1, e) for e in waits])
                sampler = n.task(
                    0, [], [access(other, ONE), access(stop, ONE, affine(1), **({"maybe": True} if maybe else {}))], [], [(c, 1)]
                )
                n.extra["stop"] = {"buffer": stop, "task": sampler}
                out.append(n.json())
    n = Net(2, 2)  # a queue that never gets as far as the next step
    stop, c, d = n.buffer(1, rows=2, lifetime="host"), n.counter(), n.counter()
    sampler = n.task(0, [], [access(stop, ONE, affine(1))], [], [(c, 1)])
    n.task(1, waits=[(d, 1)])
    n.task(1, signals=[(d, 1)])
    n.extra["stop"] = {"buffer": stop, "task": sampler}
    out.append(n.json())
    for first, waits in ((True, []), (True, [-1]), (False, [])):  # a queue that decides, and then waits for ever, or never decides
        for alone in (False, True):
            n = Net(4, 2)
            stop, c, d, s = n.buffer(1, rows=2, lifetime="host"), n.counter(), n.counter(), n.counter()
            sampler = n.task(0, [], [access(stop, ONE, affine(1))], [], [(s, 1)])
            n.task(3, waits=[(s, 1, -1)], signals=[(c, 1)])
            if not first:
                n.task(1)
            n.task(1, waits=[(c, 1), *((s, 1, e) for e in waits)] if first else [(d, 1)])
            if not alone:
                n.task(1)
            n.task(2, waits=[(d, 1)])
            n.task(2, signals=[(d, 1), (c, 1)])
            n.extra["stop"] = {"buffer": stop, "task": sampler}
            out.append(n.json())
    n = Net(1, 1)
    n.extra["stop"] = {"buffer": n.buffer(1, lifetime="host"), "task": n.task(0)}
    out.append(n.json())
    return out


def _live() -> list[Json]:
    """Dead ends, what lies in front of and behind them, and thresholds of one more and one less."""
    out = []
    for race in ("front", "behind", "none"):
        n = Net(2, 2)
        x, a, b = n.buffer(1, lifetime="persistent"), n.counter(), n.counter()
        for q, (own, other) in enumerate(((a, b), (b, a))):
            n.task(q, [], [access(x, ONE)] if race == "front" else [])
            n.task(q, waits=[(other, 1)], signals=[(own, 1)])
            n.task(q, [], [access(x, ONE)] if race == "behind" else [])
        out.append(n.json())
    for threshold in (1, 2, 3):
        for e in (0, -1):
            for back in (False, True):
                n = Net(3, 3)
                x, c, d = n.buffer(3, lifetime="persistent", filled=True), n.counter(), n.counter()
                n.task(0, [], [access(x, ONE)], [(d, 1, -1)] if back else [], [(c, 1)])
                n.task(1, [], [access(x, (1, 2))], [(d, 1, -1)] if back else [], [(c, 2)])
                n.task(2, [access(x, ALL)], [], [(c, threshold, e)], [(d, 1)])
                out.append(n.json())
    for stuck in (False, True):  # half of a counter never comes: what is awaited of it comes from the other half
        for threshold in (1, 2):
            n = Net(4)
            x, c, d, e = n.buffer(1), n.counter(), n.counter(), n.counter()
            n.task(0, [], [access(x, ONE)], [], [(d, 1)])
            n.task(1, waits=[(d, 1)], signals=[(c, 1)])
            n.task(2, [access(x, ONE)], [], [(c, threshold)])
            n.task(3, waits=[(e, 1)] if stuck else [])
            n.task(3, signals=[(c, 1), (e, 1)])
            out.append(n.json())
    for waits in (False, True):  # the second producer, known late, has not seen the writer
        n = Net(4)
        x, c, d = n.buffer(1), n.counter(), n.counter()
        n.task(0, [], [access(x, ONE)], [], [(d, 1)])
        n.task(1, waits=[(d, 1)], signals=[(c, 1)])
        n.task(2, [access(x, ONE)], [], [(c, 1)])
        n.task(3, waits=[(d, 1)] if waits else [], signals=[(c, 1)])
        out.append(n.json())
    for sizes in ((None,), (4, None), (4, 4), (4, 5), (0,)):
        n = Net(2)
        for k, size in enumerate(sizes):
            n.pool(f"smem{k}", size, per_queue=True)
        n.task(0)
        n.task(1)
        n.extra["target"] = {"sms": 2, "smem_bytes": 8, "arch": "sm_90"}
        out.append(n.json())
    for bytes_, sms, queues in ((8, 2, 2), (9, 2, 2), (8, 1, 2), (None, 2, 2), (8, 2, 1)):
        n = Net(queues)
        n.pool("smem", bytes_, per_queue=True)
        x = n.buffer(2, pool="smem")
        for q in range(queues):
            n.task(q, [], [access(x, ALL)])
            n.task(q, [access(x, ALL)])
        n.extra["target"] = {"sms": sms, "smem_bytes": 8, "arch": "sm_90"}
        out.append(n.json())
    return out


def _proxy() -> list[Json]:
    """Fences of asynchronous reads and completion of asynchronous stores: last on the queue, followed, signalling, unreachable."""
    out = []
    for steps in (1, 2):
        for fences in ([], ["bulk.wait_group"], ["bulk.wait_group.read"]):
            for signals in (False, True):
                for last in (False, True):
                    n = Net(1, steps)
                    x, c = n.buffer(1), n.counter()
                    n.task(0, [], [access(x, ONE, proxy="async")], [], [(c, 1)] if signals else [], fences=fences)
                    if not last:
                        n.task(0)
                    out.append(n.json())
    for dead in (False, True):
        n = Net(1)
        x, c = n.buffer(1), n.counter()
        if dead:
            n.task(0, waits=[(c, 1)])
        n.task(0, [], [access(x, ONE, proxy="async")])
        n.task(0, signals=[(c, 1)])
        out.append(n.json())
    for write, read in ((False, False), (True, False), (False, True), (True, True)):
        for apart in (False, True):
            n = Net(1)
            x = n.buffer(2, filled=True)
            n.task(0, [], [access(x, ONE, **({"proxy": "async"} if write else {}))], fences=["bulk.wait_group"])
            n.task(0, [access(x, (1, 2) if apart else ONE, **({"proxy": "async"} if read else {}))])
            out.append(n.json())
    for fences in ([], ["bulk.wait_group"]):  # of no bytes
        for moves in (False, True):
            n = Net(1)
            x = n.buffer(1)
            empty = affine(1, length=0) if moves else (0, 0)
            n.task(0, [], [access(x, empty, proxy="async")], fences=fences)
            n.task(0)
            out.append(n.json())
    for steps in (1, 2):  # tags: of this step, of the step before, written through either proxy
        for fences in ([], ["proxy.async"]):
            for write in (False, True):
                for epoch in (0, -1):
                    n = Net(2, steps)
                    x, c = _tagged(n, filled=epoch == -1), n.counter()
                    waits = [(c, 1, 0 if epoch else -1)]
                    extra = {"proxy": "async"} if write else {}
                    n.task(0, [], [access(x, ONE, **extra)], waits, fences=["bulk.wait_group"])
                    n.task(1, [access(x, ONE, proxy="async", **({"epoch": -1} if epoch else {}))], [], [], [(c, 1)], fences=fences)
                    out.append(n.json())
    return out


GROUPS: tuple[Callable[[], list[Json]], ...] = (_references, _tags, _cover, _stop, _live, _proxy, *edges_values.GROUPS)


def edges() -> list[tuple[str, Json]]:
    """(name, schedule) of all of them."""
    return [(f"{group.__name__.strip('_')}/{k}", s) for group in GROUPS for k, s in enumerate(group())]
