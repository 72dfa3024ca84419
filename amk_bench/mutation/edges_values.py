"""Small schedules at the borders of COVER, FLOW and PROXY: which value a read finds, and what the host finds at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amk_bench.adversary.net import Json, Net, access, affine

ONE, ALL = (0, 1), (0, 2)


def _sources() -> list[Json]:
    """What covers a read: the step before, initial rows that move, the first bytes of a pool, empty ranges of half a byte."""
    out = []
    for life in ("step", "persistent"):
        n = Net(1, 2)  # read first, written behind: covered in step 1 where the bytes last
        x = n.buffer(1, lifetime=life, filled=True)
        n.task(0, [access(x, ONE)])
        n.task(0, [], [access(x, ONE)])
        out.append(n.json())
    for stride, add, rows, row in ((1, 0, 2, 0), (1, 1, 2, 1), (1, 1, 3, 1), (1, 1, 3, 0), (1, 1, 3, 2), (-1, 0, 2, 0)):
        n = Net(1)
        x = n.buffer(1, rows, lifetime="persistent")
        n.initial.append(access(x, ONE, affine(stride, add=add)))
        n.task(0, [access(x, ONE, (row, row + 1))])
        out.append(n.json())
    for tagged in (False, True):  # nobody writes it
        n = Net(1)
        x = n.buffer(1, dtype="tag64", lifetime="persistent", tagged=tagged)
        n.task(0, [access(x, ONE)])
        out.append(n.json())
    for name in ("a", "b[0]", "b[1]", "c"):  # the range of its own variable, of several
        for rows in (3, 4):
            n = Net(1)
            n.extra["variables"] = {v: {"count": k, "min": 0, "max": top} for v, k, top in (("a", 1, 2), ("b", 2, 3), ("c", 1, 1))}
            n.task(0, [], [access(n.buffer(1, rows), ONE, affine(base=name))])
            out.append(n.json())
    for lo, hi in ((1, 1), (1, 2), (2, 2)):
        n = Net(1)
        n.task(0, [access(n.buffer(4, dtype="i4"), (lo, hi))])
        out.append(n.json())
    return out


def _nothing() -> list[Json]:
    """Ranges that move and hold nothing, inside what another task writes and wraps around, in no order with it."""
    out = []
    for length, mod in ((0, 3), (1, 3), (0, None), (1, None)):
        n = Net(2, 4)
        x = n.buffer(1, 12, lifetime="persistent", filled=True)
        n.task(0, [], [access(x, ONE, affine(1, mod=mod, add=0, length=6))])
        n.task(1, [access(x, ONE, affine(1, add=1, length=length))])
        out.append(n.json())
    return out


def _late() -> list[Json]:
    """A race in a step behind those that are written out first, beside reads that nobody wrote for, or that are covered."""
    out = []
    for filled in (False, True):
        for ordered in (False, True):
            n = Net(2, 9)
            x, c, d = n.buffer(1, 100, lifetime="persistent", filled=filled), n.counter(), n.counter()
            n.task(0, [], [access(x, ONE, affine(6, add=16))], [(c, 1, -1)], [(d, 1)])
            n.task(1, [access(x, ONE, affine(5))], [], [(d, 1, -1)] if ordered else [], [(c, 1)])
            out.append(n.json())
    return out


def _bulk() -> list[Json]:
    """Asynchronous reads behind nothing, behind one write of several, and asynchronous stores further down a queue."""
    out = []
    for writes in ((), (0,), (1,), (0, 1)):
        for fences in ((), ("proxy.async",)):
            n = Net(1)
            x = n.buffer(2, filled=True)
            for k in writes:
                n.task(0, [], [access(x, (k, k + 1))])
            n.task(0, [access(x, ONE, proxy="async")], fences=list(fences))
            n.task(0)
            out.append(n.json())
    for fences in ((), ("proxy.async",)):  # what is read was stored asynchronously over what the step before wrote
        n = Net(1, 2)
        x = n.buffer(1, lifetime="persistent")
        n.task(0, [], [access(x, ONE, proxy="async")], fences=["bulk.wait_group"])
        n.task(0, [access(x, ONE, proxy="async")], fences=list(fences))
        n.task(0, [], [access(x, ONE)])
        out.append(n.json())
    n = Net(1, 2)  # the first of the tasks stands last in its queue
    x = n.buffer(1, lifetime="persistent", filled=True)
    n.task(0, [], [access(x, ONE)])
    n.task(0, [access(x, ONE, proxy="async")])
    n.queues[0].reverse()
    out.append(n.json())
    for followed in (False, True):  # the first task of another queue stores last
        for signals in (False, True):
            n = Net(2)
            x, c = n.buffer(1), n.counter()
            n.task(0)
            n.task(1, [], [access(x, ONE, proxy="async")], [], [(c, 1)] if signals else [])
            if followed:
                n.task(1)
            out.append(n.json())
    for stuck in (False, True):  # a store behind another task, beside a queue that does not get to its end
        n = Net(2)
        x, c = n.buffer(1), n.counter()
        n.task(0)
        n.task(0, waits=[(c, 1)] if stuck else [], signals=[(c, 1)])
        n.task(1)
        n.task(1, [], [access(x, ONE, proxy="async")])
        n.task(1)
        out.append(n.json())
    return out


def _outputs() -> list[Json]:
    """The output is the first in its pool, written maybe or never, read under another name, clobbered in one step only."""
    out = []
    for how in ("never", "maybe", "certainly"):
        n = Net(1)
        y = n.buffer(1, kind="output", lifetime="host")
        n.task(0, [], [] if how == "never" else [access(y, ONE, **({"maybe": True} if how == "maybe" else {}))])
        out.append(n.json())
    for write in (False, True):
        n = Net(1)
        y = n.buffer(1, kind="output", lifetime="host")
        z = n.buffer(1, lifetime="persistent", offset=0)
        n.task(0, [], [access(y, ONE)])
        n.task(0, *([], [access(z, ONE)]) if write else ([access(z, ONE)], []))
        out.append(n.json())
    for reverse in (False, True):  # the first of the tasks stands last in its queue; the same place of another pool
        n = Net(1)
        y = n.buffer(1, kind="output", lifetime="host")
        z = n.buffer(1, lifetime="persistent", offset=0, pool="global" if reverse else n.pool("two", None))
        n.task(0, [], [access(y, ONE)])
        n.task(0, [], [access(z, ONE)])
        if reverse:
            n.queues[0].reverse()
        out.append(n.json())
    for add, stride in ((1, -1), (0, 1), (0, 0)):  # in the first of two steps only, in the second only, never
        n = Net(1, 2)
        y = n.buffer(1, kind="output", lifetime="persistent")
        z = n.buffer(1, lifetime="persistent", offset=0)
        n.task(0, [], [access(y, ONE)])
        n.task(0, [], [access(z, ONE, {"start": {}, "length": {"add": add, "stride": stride}})])
        out.append(n.json())
    for life in ("host", "persistent"):
        for size, rows in (
            (1, (ONE, affine(0))), (1, (affine(0),)), (1, (affine(1, mod=1),)), (1, (affine(-1, mod=1),)),
            (2, (affine(1), affine(1))), (2, (ONE, affine(1, mod=2, add=1))), (2, (affine(1, mod=2, add=1), ONE)),
        ):  # fmt: skip
            n = Net(1, 2)
            y = n.buffer(1, size, kind="output", lifetime=life)
            for r in rows:
                n.task(0, [], [access(y, ONE, r)])
            out.append(n.json())
    return out


def _half_bytes() -> list[Json]:
    """Elements of four bits whose neighbours share their byte: for RACE and PROXY it is one place, for COVER it is two."""
    out: list[Json] = []
    given: dict[str, Any] = {"dtype": "i4", "lifetime": "persistent", "filled": True}
    for apart in (1, 2, 3):  # two queues write rows of one element, from row 0 and from so many rows on
        for first in (0, 1):
            n = Net(2)
            n.extra["variables"] = {"p": {"count": 2, "min": 0, "max": 1}}
            x = n.buffer(1, 8, **given)
            n.task(0, [], [access(x, ONE, affine(base="p[0]", add=first))])
            n.task(1, [], [access(x, ONE, affine(base="p[1]", add=first + 1 + apart))])
            out.append(n.json())
    for written in (0, 1, 2):  # an asynchronous read beside a write, before it, and one that moves
        for order in (0, 1):
            for moves in (False, True):
                for fences in ([], ["proxy.async"]):
                    n = Net(1, 2 if moves else 1)
                    x = n.buffer(1, 6, **given)
                    row = affine(2, add=written) if moves else (written, written + 1)
                    tasks: list[dict[str, Any]] = [
                        {"writes": [access(x, ONE, row)]},
                        {"reads": [access(x, ONE, ONE, proxy="async")], "fences": fences},
                    ]
                    for t in tasks[:: 1 - 2 * order]:
                        n.task(0, **t)
                    out.append(n.json())
    return out


def _own_outputs() -> list[Json]:
    """Outputs of which each queue has its own: written by one queue or both, clobbered or read under another name by either."""
    out = []
    for both in (False, True):
        for other in (None, "write", "read"):
            for queue in (0, 1):
                n = Net(2)
                own = n.pool("own", 64, per_queue=True)
                y = n.buffer(1, kind="output", lifetime="persistent", pool=own, offset=0)
                z = n.buffer(1, lifetime="persistent", pool=own, offset=0)
                for q in range(1 + both):
                    n.task(q, [], [access(y, ONE)])
                if other == "write":
                    n.task(queue, [], [access(z, ONE)])
                elif other == "read":
                    n.task(queue, [access(z, ONE)] if both or queue == 0 else [])
                out.append(n.json())
    return out


# ---- real operations on two columns: the embedding, the head, the combination of partial attention, the down projection
class _Real(Net):
    def real(self, op: str, params: Json, reads: list[Json], writes: list[Json]) -> int:
        return self.task(0, reads, writes, op=op, params=params)

    def embed(self, out: int, table: int, token: int) -> int:
        p = {"token": token, "table": table, "out": out, "m": 1, "chunk": 1, "feed": 1, "col0": 0, "col1": 2, "vocab": 1,
             "scale": 1.0}  # fmt: skip
        reads = [access(token, affine(1)), access(table, ALL)]
        return self.real("embed", p, reads, [access(out, ALL)])

    def head(self, h: int, norm: int, w: int, logits: int, amax: int = -1) -> int:
        p = {"h": h, "norm_w": norm, "w": w, "logits": logits, "amax": amax, "m": 1, "row0": 0, "row1": 2, "tile": 0, "ring": 0,
             "hidden": 2, "layer": 0, "eps": 1e-5}  # fmt: skip
        writes = [access(b, ALL) for b in (logits, amax) if b >= 0]
        return self.real("lm_head", p, [access(h, ALL), access(norm, ALL), access(w, ALL, ALL)], writes)

    def combine(self, part: int, out: int) -> int:
        p = {"part": part, "out": out, "m": 1, "chunk": 1, "batch": 1, "ctx": 1, "seq": 0, "kv_head": 0, "n_heads": 1, "n_kv": 1,
             "group": 1, "head_dim": 2, "splits": 1, "blocks": 1, "block": 1, "pos_var": 0, "layer": 0}  # fmt: skip
        return self.real("attn_combine", p, [access(part, (0, 4), maybe=True)], [access(out, ALL)])

    def project(self, b: dict[str, int], w: int, q: int, k: int, v: int, maybe: Json) -> int:
        p = {"h": b["h"], "norm_w": b["norm"], "w": w, "cos": b["cos"], "sin": b["cos"], "q": q, "k": k, "v": v, "m": 1, "chunk": 1,
             "batch": 1, "ctx": 1, "row0": 0, "row1": 6, "hidden": 2, "n_heads": 1, "n_kv": 1, "head_dim": 2, "pos_var": 0,
             "partial": len(maybe), "layer": 0, "packed": 0, "eps": 1e-5}  # fmt: skip
        reads = [access(b["h"], ALL), access(b["norm"], ALL), access(w, ALL, (0, 6)), access(b["cos"], ONE), access(b["cos"], ONE)]
        return self.real("qkv", p, reads, [access(q, ALL), *(access(x, ALL, affine(1, base="p0[0]"), **maybe) for x in (k, v))])

    def attend(self, q: int, k: int, v: int, part: int, maybe: Json) -> int:
        p = {"q": q, "k": k, "v": v, "part": part, "out": -1, "m": 1, "chunk": 1, "batch": 1, "ctx": 1, "seq": 0, "kv_head": 0,
             "n_heads": 1, "n_kv": 1, "group": 1, "head_dim": 2, "splits": 1, "blocks": 1, "block": 1, "pos_var": 0, "layer": 0,
             "split": 0, "partial": len(maybe), "packed": 0, "scale": 1.0}  # fmt: skip
        rows = {"start": {"stride": 0, "mod": None, "add": 0}, "length": {"stride": 1, "add": 1, "base": "p0[0]"}}
        reads = [access(q, ALL), *(access(x, ALL, rows, **maybe) for x in (k, v))]
        return self.real("attn", p, reads, [access(part, (0, 4), maybe=True)])


def _model(steps: int = 1) -> tuple[_Real, dict[str, int]]:
    n = _Real(1, steps)
    given: dict[str, Any] = {"lifetime": "persistent", "filled": True}
    b = {
        "h": n.buffer(2),
        "token": n.buffer(steps, kind="input", **given),
        "table": n.buffer(2, kind="table", **given),
        "norm": n.buffer(2, kind="weight", **given),
        "w": n.buffer(2, 2, kind="weight", **given),
    }
    n.buffers[b["w"]]["name"] = "head"
    return n, b


def _real() -> list[Json]:
    """The right value, no value, the right value under another name; results that reach an output, or nothing."""
    out = []
    for kind, life in (("activation", "step"), ("activation", "persistent"), ("output", "step"), ("token", "step"), ("kv", "step")):
        for given in ("output", "none"):  # is there an output besides
            n, b = _model()
            n.embed(b["h"], b["table"], b["token"])
            n.head(b["h"], b["norm"], b["w"], n.buffer(2, kind=kind, lifetime=life))
            if given == "output":
                n.task(0, [], [access(n.buffer(1, kind="output", lifetime="host"), ONE)])
            out.append(n.json())
    for used in (False, True):  # one result that stays, one that does not
        n, b = _model()
        n.embed(b["h"], b["table"], b["token"])
        amax = n.buffer(2)
        n.head(b["h"], b["norm"], b["w"], n.buffer(2, kind="output", lifetime="host"), amax)
        if used:
            n.task(0, [access(amax, ALL)])
        out.append(n.json())
    for vocabulary in (1, 2):  # an operation that says less than it touches
        n, b = _model()
        n.embed(b["h"], b["table"], b["token"])
        n.tasks[0]["params"]["vocab"] = vocabulary
        out.append(n.json())
    for source in ("alias", "opaque", "initial", "nothing"):
        n, b = _model()
        h = n.buffer(2, offset=n.buffers[b["h"]]["offset"], filled=source == "initial")
        if source == "alias":
            n.embed(h, b["table"], b["token"])
        elif source == "opaque":
            n.task(0, [], [access(b["h"], ALL)])
        n.head(b["h"], b["norm"], b["w"], n.buffer(2, kind="output", lifetime="host"))
        out.append(n.json())
    for initial in ((0, 0), (0, 3), (0, 4)):
        n = _Real(1)
        n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": 0}}
        part = n.buffer(4, lifetime="persistent")
        n.initial.append(access(part, initial))
        n.combine(part, n.buffer(2, kind="output", lifetime="host"))
        out.append(n.json())
    for front in (False, True):  # an output, and real operations behind a dead end
        n, b = _model()
        c = n.counter()
        write = access(n.buffer(1, kind="output", lifetime="host"), ONE)
        n.task(0, [], [write] if front else [])
        n.task(0, waits=[(c, 1)], signals=[(c, 1)])
        n.task(0, [], [] if front else [write])
        n.embed(b["h"], b["table"], b["token"])
        out.append(n.json())
    for ring in (False, True):  # two that feed each other through bytes that last under another name only
        n, b = _model(2)
        c, d = n.buffer(2), n.buffer(2)
        last = {"kind": "activation", "lifetime": "persistent", "filled": True}
        first, second = (n.buffer(2, offset=n.buffers[x]["offset"], **last) for x in (c, d))  # type: ignore[arg-type]
        n.embed(c, second if ring else b["table"], b["token"])
        n.embed(d, first, b["token"])
        n.task(0, [], [access(n.buffer(1, kind="output", lifetime="host"), ONE)])
        out.append(n.json())
    return out


def _spared() -> list[Json]:
    """Keys and values that a projection writes, or maybe spares, over what others wrote: what attention may find then."""
    out = []
    for before in ("opaque", "initial", "projection"):
        for writes, reads in ((False, False), (True, False), (True, True)):
            n, b = _model()
            n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": 0}}
            given: dict[str, Any] = {"lifetime": "persistent", "filled": True}
            b["cos"] = n.buffer(1, kind="table", **given)
            w = n.buffer(2, 6, kind="weight", **given)
            n.buffers[w]["name"] = "L0.qkv"
            q, part = n.buffer(2), n.buffer(4)
            k, v = (n.buffer(2, kind="kv", lifetime="persistent", filled=before == "initial") for _ in range(2))
            n.embed(b["h"], b["table"], b["token"])
            if before == "opaque":
                n.task(0, [], [access(k, ALL), access(v, ALL)])
            elif before == "projection":
                n.project(b, w, q, k, v, {})
            n.project(b, w, q, k, v, {"maybe": True} if writes else {})
            n.attend(q, k, v, part, {"maybe": True} if reads else {})
            out.append(n.json())
    return out


def _beside_tags() -> list[Json]:
    """Bytes beside the tags of a ring that moves, under another name: written by nobody, initial, or shared with a tag."""
    out = []
    for filled in (False, True):
        for places in (1, 2):
            n = Net(1, 2)
            tag = n.buffer(1, 2, dtype="tag64", lifetime="persistent", tagged=True, offset=0)
            x = n.buffer(2, lifetime="persistent", offset=8, filled=filled)
            n.task(0, [], [access(tag, ONE, affine(1, mod=places))])
            n.task(0, [access(x, ALL)])
            out.append(n.json())
    return out


def _crowds() -> list[Json]:
    """Two writers of one tag take turns, or one of them writes alone: ordered by many readers, or one of them not."""
    out = []
    for readers in (1, 3, 9):
        for back in (False, True):
            for free in (None, 0, 1, 2):  # 1: they may read
                n = Net(3, 4)
                x, c = n.buffer(1, 2, dtype="tag64", lifetime="persistent", tagged=True, filled=True), n.counter()
                more: dict[str, Any] = {"epoch": -1} if back else {}
                more |= {"maybe": True} if free == 1 else {}
                for k in (0, 1):
                    waits = [] if free == 2 * k else [(c, readers, 0 if back else -1)]
                    n.task(k, [], [access(x, ONE, affine(1, mod=2, add=k))], waits)
                for _ in range(readers):
                    n.task(2, [access(x, ONE, ALL, **more)], [], [], [(c, 1)])
                out.append(n.json())
    return out


GROUPS: tuple[Callable[[], list[Json]], ...] = (
    _sources, _nothing, _late, _bulk, _outputs, _half_bytes, _own_outputs, _real, _spared, _beside_tags, _crowds,
)  # fmt: skip
