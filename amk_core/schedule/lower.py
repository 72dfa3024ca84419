"""ModelGraph -> Schedule: cut every matrix into tiles, lay the tiles on queues, join the phases with counters.

One step of a layer has five dependent phases, six with ``fuse_combine=False``:

    qkv (norm, projection, rotation, KV append) -> attn -> [attn_combine] -> o_proj (+ residual)
        -> gate_up (norm, SiLU(gate) * up) -> down_proj (+ residual)

A phase is joined by a counter that its readers wait for, or (fast decoding) its values are tagged: they carry the
number of their step, and the readers poll the values themselves.  Tagged values have an address of their own in every layer, the
attention task of split 0 merges the partials, and one counter a step orders all readers of a step before the writers of the next.

before the layers comes ``embed``, after them ``lm_head`` (final norm) and ``sample``.  The schedule does not depend on the
position: position, active rows and token enter through launch variables and buffers.  Three purposes share the tiling, so that
one weight tape serves all of them:

* ``decode``: one token a sequence and step, fed back from the sampler;
* ``prefill``: ``chunk`` prompt tokens a sequence and step, appends KV, no head;
* ``logits``: like prefill, but every row goes through the head and its logits are kept for the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from amk_core.graph import ModelGraph
from amk_core.quant.config import QuantConfig
from amk_core.schedule import ops
from amk_core.schedule.build import Builder, Wait
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.contracts import CODES, CONTROL_WORDS
from amk_core.schedule.ir import Kind, Lifetime, Schedule, Variable
from amk_core.targets import Target

Purpose = Literal["decode", "prefill", "logits"]
Mode = Literal["exact", "fast"]

KV_PAD_ROWS = 128  # rows behind the context: a launch may start at the last position and still stays inside its buffer
MERGED_APART_FROM = 16  # tokens of a sequence in a step, from which a card's attention is merged once instead of by every queue
MARKED_FROM_BYTES = 200 << 10  # of shared memory, beside which 16 rows of 4 096 marked values leave room for a ring of weights
BESIDE_MERGED = 52 << 10  # bytes of shared memory for everything else, where merged attention lies there
MAX_STOP_IDS = 16
MAX_ROWS = 256  # rows of one step, batch * chunk
MAX_BATCH, MAX_CHUNK, DEFAULT_CHUNK = 16, 32, 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a schedule is for.

    Attributes:
        batch: sequences, 1 to 16.
        chunk: tokens of each sequence in one step, 1 to 32 (1 for ``decode``).
        context: positions a sequence may have; the KV cache has KV_PAD_ROWS rows more.
        steps: steps of one launch at most; 0: as many as the padding allows.
    """

    purpose: Purpose = "decode"
    batch: int = 1
    chunk: int = 1
    context: int = 256
    steps: int = 0

    def __post_init__(self) -> None:
        for name, hi in (("batch", MAX_BATCH), ("chunk", MAX_CHUNK)):
            if not 1 <= getattr(self, name) <= hi:
                raise ValueError(f"{name} is {getattr(self, name)}, required is 1 to {hi}")
        if self.purpose == "decode" and self.chunk != 1:
            raise ValueError(f"a decode schedule takes one token a step, chunk is {self.chunk}")
        if self.context < 1:
            raise ValueError(f"context is {self.context}, required is at least 1")
        if not 0 <= self.steps * self.chunk <= KV_PAD_ROWS:
            raise ValueError(f"{self.steps} steps of {self.chunk} tokens, required is at most {KV_PAD_ROWS} tokens a launch")

    @property
    def max_steps(self) -> int:
        return self.steps or KV_PAD_ROWS // self.chunk

    @property
    def rows(self) -> int:
        return self.batch * self.chunk

    @property
    def kv_rows(self) -> int:
        """Rows a sequence has in the KV buffers."""
        return self.context + KV_PAD_ROWS


def attn_block(mode: Mode, head_dim: int) -> int:
    """Positions of an attention block, in ``fast`` as many as registers hold: part of the numeric plan, never of ScheduleConfig."""
    return 128 if mode == "exact" or head_dim > 64 else 256


def split_rows(total: int, tiles: int, align: int) -> list[tuple[int, int]]:
    """Cut [0, total) into at most ``tiles`` ranges on multiples of ``align``, sizes as equal as that allows."""
    units = -(-total // align)
    tiles = min(tiles, units)
    cuts = [min(total, units * i // tiles * align) for i in range(tiles + 1)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def split_beside(total: int, tiles: int, align: int, few: int) -> list[tuple[int, int]]:
    """As split_rows, but the first ``few`` tiles are as small as they can be without making the largest one larger."""
    units = -(-total // align)
    if units < tiles or few >= tiles:
        return split_rows(total, tiles, align)
    most = -(-units // tiles)
    small = most - min((most * tiles - units) // few, most - 1)
    head = [(i * small * align, (i + 1) * small * align) for i in range(few)]
    at = few * small * align
    return head + [(at + a, at + b) for a, b in split_rows(total - at, tiles - few, align)]


class Lowering:
    def __init__(
        self, graph: ModelGraph, config: ScheduleConfig, target: Target, geometry: Geometry, mode: Mode, quant: QuantConfig | None
    ) -> None:  # fmt: skip
        if geometry.context > graph.context:
            raise ValueError(
                f"context is {geometry.context}, {graph.name} is trained for {graph.context} positions; ask for at most that"
            )
        self.g, self.c, self.t, self.geo, self.mode = graph, config, target, geometry, mode
        stored = "f32" if mode == "exact" else "bf16"
        self.quant = quant
        self.layer_dtype = stored if quant is None else quant.layers.name
        self.head_dtype = stored if quant is None or quant.head is None else quant.head.name
        self.limits = target.limits()
        self.plan: dict[str, int] = {}  # what else the numbers depend on
        self.b = Builder(target.queues)
        self.deal = 0  # where "rotated" placement goes on
        self.m = geometry.rows
        self.partial = int(geometry.batch > 1 or geometry.chunk > 1)
        wanted = config.handoff == "tagged" or (config.handoff == "auto" and target.arch != "cpu")
        small = graph.n_heads <= 16 * graph.n_kv_heads  # the queries of a task are one tile of a matrix product
        # several rows of bf16 activations are kept beside the ring of weights, if they do not go past shared memory
        q_size = graph.n_heads * graph.head_dim
        staged = 2 * self.m * max(graph.hidden_size, q_size, min(graph.intermediate_size, 2048))
        marked = quant is None and target.smem_bytes >= MARKED_FROM_BYTES
        marked = marked and ops.markable(self.m, graph.hidden_size, q_size, graph.intermediate_size)
        small = small and (self.m == 1 or not target.smem_bytes or staged <= target.smem_bytes // 3 or marked)
        self.tagged = wanted and mode == "fast" and geometry.purpose == "decode" and small
        # merged attention of all rows lies in shared memory, beside a ring of weights and the buffers of a product
        merged = 2 * self.m * graph.n_heads * graph.head_dim
        room = not target.smem_bytes or mode == "exact" or merged <= target.smem_bytes - BESIDE_MERGED
        apart = mode == "fast" and target.arch != "cpu" and geometry.chunk >= MERGED_APART_FROM
        self.fuse_combine = config.fuse_combine and room and not apart

    # -- buffers
    def act(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> int:
        return self.b.buffer(name, Kind.ACTIVATION, dtype, shape, "act")

    def const(self, name: str, kind: Kind, shape: tuple[int, int], dtype: str = "f32") -> int:
        return self.b.buffer(name, kind, dtype, shape, "weights", Lifetime.PERSISTENT, initial=True)

    def tag(self, name: str, shape: tuple[int, int]) -> None:
        self.b.buffer(name, Kind.ACTIVATION, "tag64", shape, "tag", tagged=True)

    def handed_on(self) -> None:
        """Buffers in which the phases of a layer hand their values on."""
        g, m, heads, kv, d = self.g, self.m, self.g.n_heads, self.g.n_kv_heads, self.g.head_dim
        part = (m * heads, self.splits * self.blocks * (d + 2))
        if self.tagged:
            self.tag("embedded", (m, g.hidden_size))
            for i in range(g.n_layers):
                self.tag(f"L{i}.q", (m, (heads + 2 * kv) * d))  # queries, new keys, new values
                self.tag(f"L{i}.part", part)
                self.tag(f"L{i}.attn", (m, heads * d // 2))  # pairs of bf16, like L{i}.act
                self.tag(f"L{i}.mid", (m, g.hidden_size))
                self.tag(f"L{i}.act", (m, g.intermediate_size // 2))
                self.tag(f"L{i}.h", (m, g.hidden_size))
        else:
            self.act("h", (m, g.hidden_size))
            self.act("q", (m, heads * d))
            self.act("part", part)
            if not self.fuse_combine:
                self.act("attn", (m, heads * d))
            self.act("act", (m, g.intermediate_size))

    def back(self, name: str, k: int) -> None:
        """A weight whose products go back into the residual stream."""
        self.const(name, Kind.WEIGHT, (self.g.hidden_size, k), self.layer_dtype)

    def buffers(self) -> None:
        g, geo, b, m, act, const = self.g, self.geo, self.b, self.m, self.act, self.const
        weight = "f32" if self.mode == "exact" else "bf16"
        d, heads, kv = g.head_dim, g.n_heads, g.n_kv_heads
        per, host = Lifetime.PERSISTENT, Lifetime.HOST
        max_blocks = -(-geo.kv_rows // attn_block(self.mode, self.g.head_dim))
        wanted = self.c.attn_splits or max(1, self.t.queues // (geo.batch * kv))
        self.splits = min(wanted, max_blocks)
        self.blocks = -(-max_blocks // self.splits)
        self.handed_on()
        const("embed", Kind.TABLE, (g.vocab_size, g.hidden_size), weight)
        const("rope.cos", Kind.TABLE, (geo.kv_rows, d // 2))
        const("rope.sin", Kind.TABLE, (geo.kv_rows, d // 2))
        for i in range(g.n_layers):
            const(f"L{i}.attn_norm", Kind.TABLE, (1, g.hidden_size))
            const(f"L{i}.qkv", Kind.WEIGHT, ((heads + 2 * kv) * d, g.hidden_size), self.layer_dtype)
            self.back(f"L{i}.o", heads * d)
            const(f"L{i}.mlp_norm", Kind.TABLE, (1, g.hidden_size))
            const(f"L{i}.gate_up", Kind.WEIGHT, (2 * g.intermediate_size, g.hidden_size), self.layer_dtype)
            self.back(f"L{i}.down", g.intermediate_size)
            for name in ("k", "v"):
                cache = b.buffer(f"L{i}.{name}", Kind.KV, weight, (geo.batch * geo.kv_rows, kv * d), "kv", per)
                for seq in range(geo.batch):
                    b.initial_rows(cache, (seq * geo.kv_rows, -1, 0, 0, 0, seq, 0))  # rows below p0[seq]
        if geo.purpose == "decode":
            b.buffer("token", Kind.TOKEN, "i32", (geo.batch, 1), "io", per, initial=True)
        else:
            b.buffer("prompt", Kind.INPUT, "i32", (geo.batch, geo.max_steps * geo.chunk), "io", host, initial=True)
        if geo.purpose == "prefill":
            return
        const("final_norm", Kind.TABLE, (1, g.hidden_size))
        const("head", Kind.WEIGHT, (g.vocab_size, g.hidden_size), self.head_dtype)
        self.head_tiles = split_rows(g.vocab_size, self.c.head_tiles_per_queue * self.t.queues, self.c.row_align)
        if geo.purpose == "logits":
            b.buffer("logits", Kind.OUTPUT, "f32", (geo.max_steps * m, g.vocab_size), "io", host)
            return
        act("logits", (m, g.vocab_size))
        if self.c.fuse_argmax:
            act("amax", (m, 2 * len(self.head_tiles)), "b32")
        b.buffer("control", Kind.INPUT, "b32", (geo.batch, CONTROL_WORDS), "io", host, initial=True)
        b.buffer("stop_ids", Kind.INPUT, "i32", (geo.batch, MAX_STOP_IDS), "io", host, initial=True)
        b.buffer("done", Kind.TOKEN, "i32", (geo.batch, 1), "io", per, initial=True)
        b.buffer("out", Kind.OUTPUT, "i32", (geo.max_steps, geo.batch), "io", host)
        b.buffer("stop", Kind.OUTPUT, "i32", (geo.max_steps, 1), "io", host)

    # -- tasks
    def place(self, n: int) -> list[int]:
        """The queue of each of n tiles of a phase."""
        queues = self.t.queues
        if self.c.placement == "blocked":
            return [j * queues // max(n, queues) if n >= queues else j for j in range(n)]
        if self.c.placement == "strided":
            return [j % queues for j in range(n)]
        first, self.deal = self.deal, (self.deal + n) % queues
        return [(first + j) % queues for j in range(n)]

    def phase(
        self, op: str, name: str, tiles: Sequence[Mapping[str, int | float]], waits: Sequence[Wait], *, joined: bool = True
    ) -> tuple[Wait, ...]:  # fmt: skip
        """Tasks that all wait for ``waits``; returns the waits of whoever needs all of them: a counter, none if not ``joined``."""
        done = (self.b.counter(name),) if joined else ()
        waiting: set[int] = set()
        for tile, queue in zip(tiles, self.place(len(tiles)), strict=True):
            # behind the first task of the phase on its queue the wait is implied by queue order
            self.b.task(op, queue, tile, () if queue in waiting else waits, done)
            waiting.add(queue)
        return tuple((c, len(tiles), 0) for c in done)

    def rows(self, total: int, per_queue: int) -> list[tuple[int, int]]:
        return split_rows(total, per_queue * self.t.queues, self.c.row_align)

    def last_of_prefill(self, layer: int) -> bool:
        return self.geo.purpose == "prefill" and layer == self.g.n_layers - 1

    def activations(self, i: int) -> dict[str, int]:
        """Buffers of layer i by role: ``h``, ``mid`` and ``out`` are the residual stream before, inside and behind it."""
        ids, last = self.b.buffer_ids, self.g.n_layers - 1
        if self.tagged:
            roles = {name: ids[f"L{i}.{name}"] for name in ("q", "part", "attn", "mid", "act") if i <= last}
            return {**roles, "h": ids[f"L{i - 1}.h" if i else "embedded"], "out": ids.get(f"L{i}.h", -1)}
        return {
            **{name: ids.get(name, -1) for name in ("q", "part", "attn", "act")},
            **dict.fromkeys(("h", "mid", "out"), ids["h"]),
        }

    def layer(self, i: int, before: Sequence[Wait]) -> Sequence[Wait]:
        g, geo, ids, c, m, at = self.g, self.geo, self.b.buffer_ids, self.c, self.m, self.activations(i)
        d, heads, kv, packed, joined = g.head_dim, g.n_heads, g.n_kv_heads, int(self.tagged), not self.tagged
        hidden, eps = g.hidden_size, g.norm_eps
        attn_shape = {
            "m": m, "chunk": geo.chunk, "batch": geo.batch, "ctx": geo.kv_rows, "n_heads": heads, "n_kv": kv,
            "group": heads // kv, "head_dim": d, "splits": self.splits, "blocks": self.blocks,
            "block": attn_block(self.mode, d), "pos_var": 0, "layer": i,
        }  # fmt: skip
        if c.fuse_qkv and c.tiles_per_queue == 1 and self.mode == "fast" and self.t.arch != "cpu":
            # Queues that attend have few rows, so that keys and values come before the queries.  The same cuts whatever the
            # purpose and the batch: they share a tape.
            cuts = split_beside((heads + 2 * kv) * d, self.t.queues, c.row_align, kv)
        elif c.fuse_qkv:
            cuts = self.rows((heads + 2 * kv) * d, c.tiles_per_queue)
        else:
            sections = ((0, heads), (heads, kv), (heads + kv, kv))
            cuts = [(s * d + a, s * d + e) for s, n in sections for a, e in self.rows(n * d, c.tiles_per_queue)]
        qkv = [
            {
                "h": at["h"], "norm_w": ids[f"L{i}.attn_norm"], "w": ids[f"L{i}.qkv"], "cos": ids["rope.cos"],
                "sin": ids["rope.sin"], "q": at["q"], "k": ids[f"L{i}.k"], "v": ids[f"L{i}.v"], "m": m, "chunk": geo.chunk,
                "batch": geo.batch, "ctx": geo.kv_rows, "row0": a, "row1": e, "hidden": hidden, "n_heads": heads, "n_kv": kv,
                "head_dim": d, "pos_var": 0, "partial": self.partial, "layer": i, "packed": packed, "eps": eps,
            }
            for a, e in cuts
        ]  # fmt: skip
        if self.last_of_prefill(i):
            # nothing reads the residual stream behind the last layer of a prompt chunk: only its keys and values are kept
            return self.phase("qkv", f"L{i}.qkv", [t for t in qkv if t["row1"] > heads * d], before)
        attn = [
            {
                **attn_shape, "q": at["q"], "k": ids[f"L{i}.k"], "v": ids[f"L{i}.v"], "part": at["part"], "seq": seq,
                "out": at["attn"] if self.tagged and split == 0 else -1, "kv_head": head, "split": split, "partial": self.partial,
                "packed": packed, "scale": g.attn_scale,
            }
            for seq in range(geo.batch) for head in range(kv) for split in range(self.splits)
        ]  # fmt: skip
        if self.tagged:
            # Split 0, which all readers wait for, goes to the queues of the small tiles, or to idle ones.  It waits for the other
            # splits of its head: where queues have several tasks, it comes behind them.
            several = len(attn) > self.t.queues
            attn.sort(key=lambda task: -int(task["split"]) if several else int(task["split"]))
        after: Sequence[Wait]
        if c.dependencies == "phase" or self.tagged:
            after = self.phase(
                "attn", f"L{i}.attn", attn, self.phase("qkv", f"L{i}.qkv", qkv, before, joined=joined), joined=joined
            )
        else:
            after = self.by_head(i, qkv, attn, before)
        residual = {"m": m, "layer": i, "packed": packed}
        if not self.tagged and not self.fuse_combine:
            merge = [
                {**attn_shape, "part": at["part"], "out": at["attn"], "seq": seq, "kv_head": head}
                for seq in range(geo.batch) for head in range(kv)
            ]  # fmt: skip
            after = self.phase("attn_combine", f"L{i}.combine", merge, after)
        if self.tagged or not self.fuse_combine:
            o_op, o_shape = "o_proj", {**residual, "x": at["attn"], "k": heads * d, "out": at["mid"]}
        else:
            o_op = "o_proj_combine"
            o_shape = {"part": at["part"], "k": heads * d, **attn_shape}
        o = [{**o_shape, "w": ids[f"L{i}.o"], "h": at["h"], "row0": a, "row1": e} for a, e in self.rows(hidden, c.tiles_per_queue)]
        after = self.phase(o_op, f"L{i}.o", o, after, joined=joined)
        gate_up = [
            {
                "h": at["mid"], "norm_w": ids[f"L{i}.mlp_norm"], "w": ids[f"L{i}.gate_up"], "act": at["act"], "m": m,
                "row0": a, "row1": e, "hidden": hidden, "layer": i, "packed": packed, "eps": eps,
            }
            for a, e in self.rows(g.intermediate_size, c.tiles_per_queue)
        ]  # fmt: skip
        after = self.phase("gate_up", f"L{i}.gate_up", gate_up, after, joined=joined)
        down = [
            {
                **residual, "x": at["act"], "w": ids[f"L{i}.down"], "h": at["mid"], "out": at["out"], "row0": a, "row1": e,
                "k": g.intermediate_size,
            }
            for a, e in self.rows(hidden, c.tiles_per_queue)
        ]  # fmt: skip
        return self.phase("down_proj", f"L{i}.down", down, after, joined=joined)

    def by_head(
        self, i: int, qkv: Sequence[Mapping[str, int | float]], attn: Sequence[Mapping[str, int | float]],
        before: Sequence[Wait],
    ) -> Sequence[Wait]:  # fmt: skip
        """QKV and attention joined head group by head group instead of by one barrier."""
        g, b = self.g, self.b
        d, heads, kv = g.head_dim, g.n_heads, g.n_kv_heads
        group = heads // kv
        counters = [b.counter(f"L{i}.head{h}") for h in range(kv)]
        producers = [0] * kv
        waiting: set[int] = set()
        for tile, queue in zip(qkv, self.place(len(qkv)), strict=True):
            touched = []
            for h in range(kv):
                parts = [
                    (h * group * d, (h + 1) * group * d),
                    ((heads + h) * d, (heads + h + 1) * d),
                    ((heads + kv + h) * d, (heads + kv + h + 1) * d),
                ]
                if any(tile["row0"] < end and start < tile["row1"] for start, end in parts):
                    touched.append(counters[h])
                    producers[h] += 1
            b.task("qkv", queue, tile, () if queue in waiting else before, touched)
            waiting.add(queue)
        done = b.counter(f"L{i}.attn")
        for tile, queue in zip(attn, self.place(len(attn)), strict=True):
            head = int(tile["kv_head"])
            b.task("attn", queue, tile, ((counters[head], producers[head], 0),), (done,))
        return ((done, len(attn), 0),)

    def schedule(self) -> Schedule:
        self.buffers()
        g, geo, ids, c, m = self.g, self.geo, self.b.buffer_ids, self.c, self.m
        decode = geo.purpose == "decode"
        embed_cuts = split_rows(g.hidden_size, max(c.embed_tiles, m if self.tagged else 1), c.row_align)
        start: list[Wait] = []  # filled below: the last phase of the step before, whose counter does not exist yet
        embed = [
            {
                "token": ids["token" if decode else "prompt"], "table": ids["embed"], "out": self.activations(0)["h"], "m": m,
                "chunk": geo.chunk, "feed": int(not decode), "col0": first, "col1": last, "vocab": g.vocab_size, "scale": 1.0,
            }
            for first, last in embed_cuts
        ]  # fmt: skip
        before: Sequence[Wait] = self.phase("embed", "embed", embed, start, joined=not self.tagged)
        for i in range(g.n_layers):
            before = self.layer(i, before)
        if geo.purpose != "prefill":
            head = [
                {
                    "h": self.activations(g.n_layers)["h"], "norm_w": ids["final_norm"], "w": ids["head"], "logits": ids["logits"],
                    "amax": ids.get("amax", -1), "m": m, "row0": a, "row1": e, "tile": j, "ring": int(not decode),
                    "hidden": g.hidden_size, "layer": g.n_layers, "eps": g.norm_eps,
                }
                for j, (a, e) in enumerate(self.head_tiles)
            ]  # fmt: skip
            before = self.phase("lm_head", "head", head, before)
        return self.finish(before, start)

    def finish(self, before: Sequence[Wait], start: list[Wait]) -> Schedule:
        """The sampler behind ``before``; ``start``, the waits of the next step's first tasks, is filled."""
        g, geo, ids, c, m, b = self.g, self.geo, self.b.buffer_ids, self.c, self.m, self.b
        decode, stop = geo.purpose == "decode", None
        if decode:
            if self.tagged:  # the sampler is ordered behind every task of the step, so the next step may write all values anew
                drained = b.drain(before[0][0])
                before = [(before[0][0], before[0][1] + drained, 0)]
            sampler = {name: ids[name] for name in ("logits", "control", "stop_ids", "token", "out", "stop", "done")}
            shape = {"m": m, "tiles": len(self.head_tiles), "vocab": g.vocab_size, "n_stop_ids": MAX_STOP_IDS, "pos_var": 0}
            queue = self.t.queues - 1 - c.sampler_queue % self.t.queues
            sampled = b.counter("sample")
            task = b.task("sample", queue, {**sampler, **shape, "amax": ids.get("amax", -1)}, before, (sampled,))
            stop, before = (ids["stop"], task), ((sampled, 1, 0),)
        # every reader of h and of the token in the step before is behind this counter
        last = (before[0][0], before[0][1], -1)
        start.append(last)
        if decode:
            b.guard(last)
        variables = (
            Variable("p0", geo.batch, 0, geo.context),
            Variable("n", geo.batch, 0, geo.max_steps * geo.chunk),
        )
        meta: dict[str, int | str] = {
            "model": g.name, "purpose": geo.purpose, "mode": self.mode, "batch": geo.batch, "chunk": geo.chunk,
            "context": geo.context, "kv_rows": geo.kv_rows, "attn_block": attn_block(self.mode, self.g.head_dim), **self.plan,
        }  # fmt: skip
        if self.quant is not None:
            meta["weights"] = str(self.quant)
        return b.build(geo.max_steps, ("weights",), variables, self.limits, stop, meta)


def lower(
    graph: ModelGraph,
    config: ScheduleConfig | None = None,
    target: Target | None = None,
    geometry: Geometry | None = None,
    mode: Mode = "exact",
    quant: QuantConfig | None = None,
) -> Schedule:
    """Lower a model to a schedule.

    Args:
        graph: what to compute.
        config: how to cut it (default: ScheduleConfig()).
        target: how many queues and what limits (default: this machine's CPU).
        geometry: batch, chunk, context, purpose (default: decode, batch 1).
        mode: numeric plan; decides the stored dtypes of KV and of weights that are not quantised.
        quant: which weights are quantised, and how (default: none).

    Raises:
        ValueError: context beyond what the model was trained for, or an impossible geometry.
    """
    return Lowering(graph, config or ScheduleConfig(), target or Target.cpu(), geometry or Geometry(), mode, quant).schedule()


def hops(schedule: Schedule) -> int:
    """Dependent phases of one layer: 5, or 6 with separate combine tasks; 7 with ranks, of which 2 cross them."""
    codes = set(schedule.columns.task_op.tolist())
    if CODES["o_part"] in codes:
        return sum(CODES[op] in codes for op in ("rank_qkv", "rank_attn", "o_part", "o_sum", "gate_up", "down_part", "down_sum"))
    return sum(CODES[op] in codes for op in ("qkv", "attn", "attn_combine", "gate_up", "down_proj")) + 1
