"""Cases aimed at the small rules (LIVE, RO, STOP, PROXY, aliases of tags), and at the search for a shared byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amk_bench.adversary.net import Net, access, affine
from amk_bench.mutation.aimed_model import BROKEN_OFF, BUFFER, FEW, ONE, POOL, ROWS, Aimed, changed, made, tag_column


def two_reasons() -> Iterator[Aimed]:
    """A task that waits for two things at once runs once when both are there."""
    for counter in (True, False):
        n = Net(3)
        x, y, c = tag_column(n), tag_column(n), n.counter()
        n.task(0), n.task(1)
        n.task(0, [], [] if counter else [access(y, ONE)], [], [(c, 1)])
        n.task(1, [], [access(x, ONE)])
        reads = [access(x, ONE)] if counter else [access(x, ONE), access(y, ONE)]
        n.task(2, reads, [], [(c, 1)] if counter else [])
        yield made(n)


def tags_of_other_steps() -> Iterator[Aimed]:
    """A writer that the reader meets a step later only is not waited for; nor is one of a buffer without tags."""
    n = Net(1, 2)
    x = tag_column(n, 3, filled=True)
    n.task(0, [access(x, ONE, affine(1))])
    n.task(0, [], [access(x, ONE, affine(1, add=1))])
    yield made(n, "COVER")
    n = Net(4)  # two readers of two tags, of which the second one waits for the first reader
    x, c = tag_column(n, 2), n.counter()
    n.task(0, [], [access(x, ONE)])
    n.task(1, [], [access(x, ONE, (1, 2))], [(c, 1)])
    n.task(2, [access(x, ONE, (0, 2))], [], [], [(c, 1)])
    n.task(3, [access(x, ONE, (0, 2))])
    yield made(n, "LIVE")
    n = Net(1)
    x, y = tag_column(n), n.buffer(1, lifetime="persistent", filled=True)
    n.task(0, [access(y, ONE)])
    n.task(0, [], [access(y, ONE), access(x, ONE)])
    yield made(n)


def stuck() -> Iterator[Aimed]:
    """Circles of waits, of tags, and of both; behind a queue that leads to them, and longer than what is told."""
    for queues in (2, 3, 64, 65, 70):
        n = Net(queues)
        made_by = [n.counter() for _ in range(queues)]
        for k in range(queues):  # the first queue waits for the circle of the others
            n.task(k, waits=[(made_by[k + 1 if k + 1 < queues else 1], 1)])
            n.task(k, signals=[(made_by[k], 1)])
        yield made(n, "LIVE")
    n = Net(2)  # of two that signal, the one that ran is the first task of all
    c, d = n.counter(), n.counter()
    n.task(0, signals=[(c, 1)])
    n.task(1, waits=[(c, 2)], signals=[(d, 1)])
    n.task(1, waits=[(d, 1)], signals=[(c, 1)])
    yield made(n, "LIVE")
    for kind in ("tags", "both"):
        n = Net(3)
        x, y, c = tag_column(n, 2), tag_column(n, 2), n.counter()
        n.task(0, [], [access(x, ONE), access(y, ONE)])
        waits: list[tuple[int, ...]] = [(c, 1, -1), (c, 1), (c, 2)]
        n.task(1, [access(x, ONE), access(x, ONE, (0, 2))], [], waits if kind == "both" else [])
        n.task(1, [], [access(y, ONE, (1, 2))], [(c, 1, -1), (c, 1)], [(c, 1)])
        n.task(2, signals=[(c, 1)])
        n.task(2, [access(y, ONE, (0, 2))])
        n.task(2, [], [access(x, ONE, (1, 2))])
        yield made(n, "LIVE")


def stops() -> Iterator[Aimed]:
    """Who reads, writes or touches the buffer that decides to stop."""
    for role in (
        "read",
        "own read",
        "write",
        "write of the last row",
        "beside",
        "before",
        "alias",
        "none",
        "other",
        "empty queue",
    ):
        n = Net(2, 2)
        y = n.buffer(4, 2, lifetime="persistent", filled=True, offset=0)
        stop, c = n.buffer(1, 2, lifetime="persistent", filled=True, offset=8), n.counter()
        own = [access(stop, ONE)] if role == "own read" else []
        writes = [] if role in ("own read", "none", "other") else [access(stop, ONE, (0, 2))]
        task = n.task(0, own, writes, [], [(c, 1)])
        lines: dict[str, tuple[int, Any, Any]] = {
            "read": (stop, ONE, ONE),
            "write": (stop, ONE, ONE),
            "other": (stop, ONE, ONE),
            "write of the last row": (stop, ONE, (1, 2)),
            "beside": (y, ONE, (1, 2)),
            "before": (y, (1, 2), ONE),
            "alias": (y, (2, 3), ONE),
        }
        if role != "empty queue":
            line = [access(*lines[role])] if role in lines else []
            n.task(1, line if role == "read" else [], [] if role == "read" else line, [(c, 1)])
        n.extra["stop"] = {"buffer": stop, "task": task}
        bad = role in ("own read", "write", "write of the last row", "alias", "none", "other")
        racy = {"write", "write of the last row", "alias", "read"}
        yield made(n, *(["STOP"] if bad else []), *(["RACE"] if role in racy else []))
    n = Net(2, 2)
    n.pool("elsewhere", None)
    stop, y = (n.buffer(1, 2, lifetime="persistent", offset=0, pool=pool) for pool in ("global", "elsewhere"))
    n.extra["stop"] = {"buffer": stop, "task": n.task(0, [], [access(stop, ONE, (0, 2))], [], [(n.counter(), 1)])}
    n.task(1, [], [access(y, ONE, (0, 2))], [(0, 1)])
    yield made(n)
    n = Net(2, 2)  # the first queue does not wait for the second one's decision
    stop = n.buffer(1, 2, lifetime="persistent")
    n.task(0)
    n.extra["stop"] = {"buffer": stop, "task": n.task(1, [], [access(stop, ONE, (0, 2))])}
    yield made(n, "STOP")


def readonly() -> Iterator[Aimed]:
    """Writes that touch the first or the last byte of a buffer for reading, or lie just before or behind it."""
    for col in range(7):
        n = Net(1)
        y = n.buffer(7, lifetime="persistent", offset=0)
        n.buffer(3, kind="weight", lifetime="persistent", offset=8, filled=True)
        n.buffer(1, kind="table", lifetime="persistent", offset=12, filled=True)
        n.task(0, [access(y, (col, col + 1), maybe=True)], [access(y, (col, col + 1))])
        n.task(0, [], [access(y, (col, col + 1))])
        yield made(n, *(["RO"] if 2 <= col < 5 else []))
    for late in (2, 3):  # in the last step only
        n = Net(1, 4)
        y = n.buffer(1, 8, lifetime="persistent", offset=0)
        n.buffer(1, kind="weight", lifetime="persistent", offset=4 * (3 + late), filled=True)
        n.task(0, [], [access(y, ONE, affine(1, add=2))])
        yield made(n, *(["RO"] if late == 2 else []))
    for order in (0, 1):  # apart, of more pieces than a small limit allows, in one group through a third buffer
        n = Net(1)
        first, second = 0, 36
        y = n.buffer(3, 3, lifetime="persistent", offset=(first, second)[order])
        n.buffer(1, 9, kind="weight", lifetime="persistent", filled=True, offset=(second, first)[order])
        n.buffer(18, lifetime="persistent", offset=0)
        n.task(0, [], [access(y, (1 - order, 3 - order), (0, 3))])
        yield made(n, settings=(0, BROKEN_OFF))
    n = Net(1)  # one form of elements of a byte, of more pieces than a small limit allows
    y = n.buffer(4, 3, dtype="i8", lifetime="persistent", offset=0)
    n.buffer(4, 3, kind="weight", dtype="i8", lifetime="persistent", filled=True, offset=0)
    n.task(0, [], [access(y, (0, 2), (0, 3))])
    yield made(n, "RO", settings=(0, BROKEN_OFF))
    for bytes_ in (8, 9):  # ranges that stand still are the same in all of many steps
        n = Net(1, 5)
        y = n.buffer(4, 3, dtype="i8", lifetime="persistent", offset=0)
        n.buffer(6, 1, kind="weight", lifetime="persistent", filled=True, dtype="i8", offset=bytes_)
        n.task(0, [], [access(y, (0, 1), (0, 3))])
        yield made(n, *(["RO"] if bytes_ == 8 else []), settings=(0, FEW))
    n = Net(1, 1)  # more values than are tried
    n.extra["variables"] = {"p": {"count": 1, "min": 0, "max": 19}}
    w = n.buffer(1, 20, kind="weight", lifetime="persistent", filled=True)
    n.task(0, [], [access(w, ONE, affine(base="p[0]", mod=20))])
    yield made(n, "RO", settings=(0, FEW))
    n = Net(1)  # an odd number of half bytes
    w = n.buffer(3, kind="weight", dtype="i4", lifetime="persistent", filled=True)
    n.task(0, [], [access(w, (2, 3))])
    yield made(n, "RO")


def touching() -> Iterator[Aimed]:
    """Rows of a buffer with tags under another name: the other way round in time, never, or too far to be tried."""

    def alias(plain: Sequence[Any], tagged: Sequence[Any], steps: int, rows: int = 16) -> Net:
        n = Net(1, steps)
        t = tag_column(n, rows, offset=0)
        x = n.buffer(1, rows, dtype="i64", lifetime="persistent", offset=0)
        for line in plain:
            n.task(0, [], [access(x, ONE, line)])
        for line in tagged:
            n.task(0, [], [access(t, ONE, line)])
        return n

    for x, y in ((affine(1), affine(1, add=1)), ((1, 2), affine(1)), (affine(1), (1, 2)), ((1, 2), (1, 2))):
        yield made(alias([x], [y], 3), "TAG")
        yield made(alias([y], [x], 3), "TAG")
    x, y = affine(4), affine(3, add=3)  # 0, 4, 8 and 3, 6, 9: a step before the first one, they would meet
    yield made(alias([x], [y], 3), settings=(0, BROKEN_OFF))
    yield made(alias([y], [x], 3), settings=(0, BROKEN_OFF))
    yield made(alias([affine(-1, add=7)], [affine(3)], 4), "TAG", settings=(0, FEW))
    yield made(alias([affine(3)], [affine(-1, add=7)], 4), "TAG", settings=(0, FEW))
    yield made(alias([affine(1, add=3)], [affine(1)], 5), "TAG", settings=(0, FEW))
    n = alias([affine(1, mod=5)], [], 5)  # other columns, which are seen to be apart before any step is tried
    n.buffers[0]["shape"] = n.buffers[1]["shape"] = [8, 2]
    n.task(0, [], [access(0, (1, 2), affine(1, mod=4))])
    yield made(n, settings=(0, FEW))
    n = alias([affine(1, add=11), (30, 31)], [(30, 31), affine(1)], 12, 32)  # perhaps, and for certain
    yield made(n, "TAG", settings=(0, BROKEN_OFF))


def bulk_stores() -> Iterator[Aimed]:
    """Stores that somebody may follow before they are complete, one or two of them, with each fence."""
    for fence in ("proxy.async", "bulk.wait_group", "bulk.wait_group.read"):
        for stores in (1, 2):
            n = Net(1)
            x = n.buffer(2, lifetime="persistent")
            n.task(0, [], [access(x, (k, k + 1), proxy="async") for k in range(stores)], fences=[fence])
            n.task(0)
            yield made(n, *([] if fence == "bulk.wait_group" else ["PROXY"]))
    n = Net(1, 2)  # a store that is never made
    n.task(0, [], [access(n.buffer(1, lifetime="persistent"), ONE, proxy="async")], [(n.counter(), 1)], [(0, 1)])
    yield made(n, "LIVE")
    n = Net(1)
    n.task(0, [], [access(n.buffer(1, dtype="i4", lifetime="persistent", tagged=True), ONE)])
    yield made(n, "TAG")


def useless() -> Iterator[Aimed]:
    """Tasks of real ops that lead to an output through others, or to nothing; many of them read one thing."""
    for kind in ("output", "activation"):  # a launch without outputs is run for what it leaves behind
        for readers in (1, 12):
            for dead in (False, True):
                n = Net(readers, 1)
                x, y = n.buffer(1), n.buffer(readers, kind=kind, lifetime="persistent")
                z, w, c = n.buffer(1), n.buffer(1, lifetime="persistent"), n.counter()
                for k in range(readers):
                    n.task(k, [access(x, ONE)], [access(y, (k, k + 1))], [(c, 1)])
                n.queues[0].insert(0, n.task(0, [], [access(x, ONE)], [], [(c, 1)]))
                n.queues[0].insert(0, n.task(0, [], [access(w, ONE)]))
                del n.queues[0][-2:]
                if dead:
                    n.task(0, [], [access(z, ONE)])
                refused = ["COVER"] if dead and kind == "output" else []
                yield changed(n, [("task_op", k, 1) for k in range(len(n.tasks))], *refused)
    layers = 26  # all paths through layers of two tasks, each of which reads both of the layer before, are too many to be walked
    n = Net(2)
    buffers = [[n.buffer(1) for _ in range(2)] for _ in range(layers)]
    y = n.buffer(2, kind="output", lifetime="persistent")
    c = n.counter()
    for k, layer in enumerate(buffers):
        for q in range(2):
            reads, waits = ([access(b, ONE) for b in buffers[k - 1]], [(c, 2 * k)]) if k else ([], [])
            n.task(q, reads, [access(layer[q], ONE)], waits, [(c, 1)])
    for q in range(2):
        n.task(q, [access(b, ONE) for b in buffers[-1]], [access(y, (q, q + 1))], [(c, 2 * layers)])
    yield changed(n, [("task_op", k, 1) for k in range(len(n.tasks))])


def huge() -> Iterator[Aimed]:
    """More pieces than memory holds: two pitches, so that each row is a piece."""
    n = Net(2)
    rows = 2**40
    x, y = (n.buffer(cols, lifetime="persistent", offset=0) for cols in (2, 3))
    n.task(0, [], [access(x, ONE, (0, rows))])
    n.task(1, [], [access(y, ONE, (0, rows))])
    yield changed(n, [("buffers", ROWS, rows), ("buffers", BUFFER + ROWS, rows)], "RACE")


def labels() -> Iterator[Aimed]:
    """A range that moves and holds the value that it should; another value is written just before or behind its buffer."""
    for cols in ((0, 12), (24, 36)):
        n = Net(1, 12)  # more than are written out
        x = n.buffer(1, 12, lifetime="persistent", offset=48)
        y = n.buffer(36, lifetime="persistent", offset=0)
        n.task(0, [], [access(x, ONE, affine(1))])
        n.task(0, [], [access(y, cols)])
        n.task(0, [access(x, ONE, affine(1))])
        yield changed(n, [("acc_label", k, label) for k, label in enumerate((0, 1, 0))], settings=(0, FEW))


def assignments() -> Iterator[Aimed]:
    """As many values of a variable as the small limits allow, for ranges of two buffers that are never on the same bytes."""
    n = Net(2)
    n.extra["variables"] = {"p": {"count": 1, "min": 1, "max": 3}}
    x, y = n.buffer(2, 4, lifetime="persistent", offset=0), n.buffer(32, dtype="i8", lifetime="persistent", offset=0)
    n.task(0, [], [access(x, ONE, affine(base="p[0]"))])
    n.task(1, [], [access(y, (12, 16))])
    yield made(n, settings=(0, FEW))
    for dtype, cols, place in (("f32", 3, (0, 2)), ("bf16", 2, (2, 0))):  # one offset, but another width or size of elements
        n = Net(2)
        n.extra["variables"] = {"p": {"count": 1, "min": 0, "max": 1}}
        x = n.buffer(2, 4, lifetime="persistent", offset=0)
        y = n.buffer(cols, 4, dtype=dtype, lifetime="persistent", offset=0)
        n.task(0, [], [access(x, ONE, affine(base="p[0]"))])
        n.task(1, [], [access(y, (place[1], place[1] + 1), (place[0], place[0] + 1))])
        yield made(n, "RACE")


def clusters() -> Iterator[Aimed]:
    """Pools cut into a part for each cluster: which sizes divide, where a buffer may lie, and who may reach it."""

    def net(queues: int, size: int | None, offset: int, cluster: int = 2, **pool: Any) -> Net:
        n = Net(queues)
        n.pools.append({"id": "near", "bytes": size, "per_queue": False, "cluster": cluster} | pool)
        n.buffer(1, pool="near", offset=offset, dtype="i8", lifetime="persistent")
        return n

    for queue, offset, size, refused in (
        (0, 0, 16, False), (1, 7, 16, False), (2, 7, 16, True), (1, 8, 16, True), (2, 8, 16, False), (3, 15, 16, False),
        (0, 0, 15, True), (0, 0, 1, True), (0, 0, 2, False), (0, 0, 0, True), (0, 0, None, True),
    ):  # fmt: skip
        n = net(4, size, offset)
        n.task(queue, [], [access(0, ONE)])
        yield made(n, *(["REF"] if refused else []))
    for queues, size, refused in ((1, 1, False), (2, 1, False), (3, 1, True), (3, 2, False), (5, 2, True), (5, 3, False)):
        n = net(queues, size, 0)
        n.task(0, [], [access(0, ONE)])
        yield made(n, *(["REF"] if refused else []))
    for offset, cols, refused in ((0, 8, False), (0, 9, True), (7, 2, True), (8, 8, False), (4, 4, False)):
        n = net(4, 16, offset)
        n.buffers[0]["shape"] = [1, cols]
        n.task(2 * (offset // 8), [], [access(0, ONE)])
        yield made(n, *(["REF"] if refused else []))
    for queues in (1, 4):
        for cluster in (-1, -2, -4):
            n = net(queues, 16, 0)
            n.task(0)
            yield changed(n, [("clusters", 1, cluster)], "REF")
    for queue in (0, 1):  # clusters of one queue
        n = net(2, 16, 0, cluster=1)
        n.task(queue, [], [access(0, ONE)])
        yield made(n, *(["REF"] if queue else []))
    n = net(4, None, 0, cluster=4)
    n.task(0)
    yield made(n, "REF")
    n = net(4, 16, 0)  # the first pool of all
    n.pools.reverse()
    n.task(2, [], [access(0, ONE)])
    yield made(n, "REF")
    for offset, edit in ((0, ("buffers", POOL, -1)), (0, ("buffers", POOL, 2)), (8, ("queue_task", 0, 1))):
        n = net(4, 16, offset)
        n.task(0, [], [access(0, ONE)])
        n.task(0)
        yield changed(n, [edit], "REF")
    n = net(4, 16, 0, per_queue=True)
    n.task(0)
    yield made(n, "REF")


SINGLE: tuple[Callable[[], Iterator[Aimed]], ...] = (
    two_reasons, tags_of_other_steps, stuck, stops, readonly, touching, bulk_stores, useless, huge, labels, assignments, clusters,
)  # fmt: skip
