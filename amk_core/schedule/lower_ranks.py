"""ModelGraph -> Schedule for ranks: clusters of queues that own heads and a share of the intermediate units.

Inside a rank values are handed on in the memory of its cluster, behind counters that only its queues know; between ranks only
partial sums travel, tagged: of the output projection one part a KV head, of the down projection one a rank.  Queue j of every rank
adds the parts of the j-th piece of the residual stream and gives it to its cluster, so every rank holds the whole stream:

    rank_qkv -> rank_attn -> o_part  (in ranks with KV heads)
        => o_sum -> gate_up -> down_part => down_sum

``=>`` crosses ranks, ``->`` stays in a cluster: two hand-offs of a layer go through global memory in place of five.  How K is cut
into parts and positions into PIECES belongs to the numeric plan: the number of ranks changes bits, the size of a cluster does not.
Prompts and scored texts go through the same steps, a row each, without a sampler: so every position has the bits of decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from amk_core.graph import ModelGraph
from amk_core.schedule.build import ALIGN, Wait
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, Lowering, Mode, split_rows
from amk_core.schedule.ops import MAX_PARTS
from amk_core.targets import Target

MAX_CLUSTER = 16
POOL = "cluster"
# What ``amk_core.load`` does where nobody says: "off", or "auto" (amk_core.cost.best_ranks).  Off: on an H200
# ranks are slower than the program without (docs/performance.md).
BY_DEFAULT: Literal["auto", "off"] = "off"
# Part of the numeric plan: piece j of attention has the positions j, j + 8, ..; intermediate units are shared by eights.
PIECES, UNIT_ALIGN = 8, 8


@dataclass(frozen=True, slots=True)
class Ranks:
    """``count`` clusters of ``cluster`` queues each."""

    count: int
    cluster: int

    def __post_init__(self) -> None:
        for name, hi in (("count", MAX_PARTS), ("cluster", MAX_CLUSTER)):
            if not 1 <= getattr(self, name) <= hi:
                raise ValueError(f"Ranks.{name} is {getattr(self, name)}, required is 1 to {hi}")

    @property
    def queues(self) -> int:
        return self.count * self.cluster

    @staticmethod
    def parse(text: str) -> Ranks:
        """``15x8``: 15 clusters of 8 queues (ValueError)."""
        count, _, cluster = text.partition("x")
        return Ranks(int(count), int(cluster))


class _RankLowering(Lowering):
    def __init__(
        self, graph: ModelGraph, ranks: Ranks, config: ScheduleConfig, target: Target, geometry: Geometry, mode: Mode
    ) -> None:  # fmt: skip
        if geometry.rows != 1:
            raise ValueError(f"a step of ranks is one row, asked are {geometry.batch} sequences and chunks of {geometry.chunk}")
        if target.queues < ranks.queues:
            raise ValueError(f"{ranks.count} ranks of {ranks.cluster} queues, {target.name} has {target.queues}")
        own = dataclasses.replace(target, queues=ranks.queues)
        super().__init__(graph, config, own, geometry, mode, None)
        g, d = graph, graph.head_dim
        self.ranks, self.limits, self.tagged, self.plan = (
            ranks,
            target.limits(),
            True,
            {"ranks": ranks.count, "attn_pieces": PIECES},
        )
        self.group = g.n_heads // g.n_kv_heads
        self.heads = [(h * self.group * d, (h + 1) * self.group * d) for h in range(g.n_kv_heads)]  # K of the o parts
        self.units = split_rows(g.intermediate_size, ranks.count, UNIT_ALIGN)  # K of the down parts
        self.cols = split_rows(g.hidden_size, ranks.cluster, 1)
        if len(self.heads) > MAX_PARTS or len(self.units) != ranks.count or len(self.cols) != ranks.cluster:
            raise ValueError(
                f"{ranks.count} ranks of {ranks.cluster} queues share {g.n_kv_heads} KV heads, {g.intermediate_size} intermediate "
                f"and {g.hidden_size} hidden values; required are at most {MAX_PARTS} KV heads and work for each rank and queue"
            )

    # -- buffers
    def handed_on(self) -> None:
        g, b, m, d = self.g, self.b, self.m, self.g.head_dim
        shapes = {
            "h": (m, g.hidden_size), "qkv": (m, (g.n_heads + 2 * g.n_kv_heads) * d), "attn": (g.n_heads, PIECES * (d + 2)),
            "act": (m, g.intermediate_size),
        }  # fmt: skip
        b.clusters[POOL] = self.ranks.cluster
        for r in range(self.ranks.count):
            for name, shape in shapes.items():
                b.buffer(f"R{r}.{name}", Kind.ACTIVATION, "f32", shape, POOL)
            b.pool_bytes[POOL] = -(-b.pool_bytes[POOL] // ALIGN) * ALIGN
        for i in range(g.n_layers):
            self.tag(f"L{i}.o_part", (m * g.n_kv_heads, g.hidden_size))
            self.tag(f"L{i}.down_part", (m * self.ranks.count, g.hidden_size))

    def back(self, name: str, k: int) -> None:
        for a, e in self.heads if name.endswith(".o") else self.units:
            super().back(f"{name}.{a}-{e}", e - a)

    # -- tasks
    def queue(self, rank: int, j: int) -> int:
        return rank * self.ranks.cluster + j % self.ranks.cluster

    def spread(
        self, op: str, rank: int, name: str, tiles: Sequence[Mapping[str, int | float]], waits: Sequence[Wait], *,
        joined: bool = True,
    ) -> tuple[Wait, ...]:  # fmt: skip
        """Tile j on queue j of a rank; returns the waits of whoever needs all of them, none if not ``joined``."""
        done = (self.b.counter(name),) if joined else ()
        for j, tile in enumerate(tiles):
            # behind the first task of the phase on its queue the wait is implied by queue order
            self.b.task(op, self.queue(rank, j), tile, waits if j < self.ranks.cluster else (), done)
        return tuple((c, len(tiles), 0) for c in done)

    def rows_of(self, head: int) -> list[list[tuple[int, int]]]:
        """Rows of the QKV weight that each queue of the rank of a KV head multiplies: its queries, key and value, cut as one."""
        d, heads, kv = self.g.head_dim, self.g.n_heads, self.g.n_kv_heads
        sections = [self.heads[head], *(((s + head) * d, (s + head + 1) * d) for s in (heads, heads + kv))]
        out: list[list[tuple[int, int]]] = []
        for a, e in split_rows((self.group + 2) * d, self.ranks.cluster, 2):
            mine, at = [], 0
            for first, last in sections:
                lo, hi = max(a, at), min(e, at + last - first)
                if lo < hi:
                    mine.append((first + lo - at, first + hi - at))
                at += last - first
            out.append(mine)
        return out

    def attention(self, i: int, rank: int, head: int, before: Sequence[Wait]) -> None:
        g, ids, d = self.g, self.b.buffer_ids, self.g.head_dim
        cache = {"k": ids[f"L{i}.k"], "v": ids[f"L{i}.v"]}
        common = {
            "q": ids[f"R{rank}.qkv"], **cache, "m": self.m, "ctx": self.geo.kv_rows, "n_heads": g.n_heads, "n_kv": g.n_kv_heads,
            "head_dim": d, "pos_var": 0, "layer": i,
        }  # fmt: skip
        name = f"L{i}.head{head}"
        qkv = {
            **common, "h": ids[f"R{rank}.h"], "norm_w": ids[f"L{i}.attn_norm"], "w": ids[f"L{i}.qkv"], "cos": ids["rope.cos"],
            "sin": ids["rope.sin"], "hidden": g.hidden_size, "eps": g.norm_eps,
        }  # fmt: skip
        projected, n = self.b.counter(f"{name}.qkv"), 0
        for j, tiles in enumerate(self.rows_of(head)):
            if self.last_of_prefill(i):
                tiles = [t for t in tiles if t[1] > g.n_heads * d]  # only keys and values are kept
            for k, (row0, row1) in enumerate(tiles):
                tile = {**qkv, "row0": row0, "row1": row1}
                self.b.task("rank_qkv", self.queue(rank, j), tile, () if k else before, (projected,))
                n += 1
        if self.last_of_prefill(i):
            return
        attn = [
            {
                **common, "attn": ids[f"R{rank}.attn"], "kv_head": head, "head": head * self.group, "heads": self.group,
                "pieces": PIECES, "piece": j, "scale": g.attn_scale,
            }
            for j in range(PIECES)
        ]  # fmt: skip
        seen = self.spread("rank_attn", rank, f"{name}.attn", attn, ((projected, n, 0),))
        k0, k1 = self.heads[head]
        o = [
            {
                "attn": ids[f"R{rank}.attn"], "w": ids[f"L{i}.o.{k0}-{k1}"], "out": ids[f"L{i}.o_part"], "m": self.m, "row0": a,
                "row1": e, "k0": k0, "k1": k1, "head_dim": d, "pieces": PIECES, "part": head, "layer": i,
            }
            for a, e in self.cols
        ]  # fmt: skip
        self.spread("o_part", rank, f"{name}.o", o, seen, joined=False)

    def sums(self, op: str, i: int, rank: int, parts: str, n: int) -> tuple[Wait, ...]:
        ids, h = self.b.buffer_ids, self.b.buffer_ids[f"R{rank}.h"]
        tiles = [
            {"parts": ids[f"L{i}.{parts}"], "h": h, "out": h, "m": self.m, "col0": a, "col1": e, "n": n, "layer": i}
            for a, e in self.cols
        ]
        return self.spread(op, rank, f"L{i}.R{rank}.{op}", tiles, ())

    def rank_layer(self, i: int, rank: int, before: Sequence[Wait]) -> Sequence[Wait]:
        g, ids, m = self.g, self.b.buffer_ids, self.m
        for head in range(rank, g.n_kv_heads, self.ranks.count):
            self.attention(i, rank, head, before)
        if self.last_of_prefill(i):
            return ()
        mid = self.sums("o_sum", i, rank, "o_part", g.n_kv_heads)
        k0, k1 = self.units[rank]
        gate_up = [
            {
                "h": ids[f"R{rank}.h"], "norm_w": ids[f"L{i}.mlp_norm"], "w": ids[f"L{i}.gate_up"], "act": ids[f"R{rank}.act"],
                "m": m, "row0": k0 + a, "row1": k0 + e, "hidden": g.hidden_size, "layer": i, "packed": 0, "eps": g.norm_eps,
            }
            for a, e in split_rows(k1 - k0, self.ranks.cluster, 1)
        ]  # fmt: skip
        down = [
            {
                "x": ids[f"R{rank}.act"], "w": ids[f"L{i}.down.{k0}-{k1}"], "out": ids[f"L{i}.down_part"], "m": m, "row0": a,
                "row1": e, "k0": k0, "k1": k1, "part": rank, "layer": i,
            }
            for a, e in self.cols
        ]  # fmt: skip
        active = self.spread("gate_up", rank, f"L{i}.R{rank}.gate_up", gate_up, mid)
        self.spread("down_part", rank, f"L{i}.R{rank}.down", down, active, joined=False)
        return self.sums("down_sum", i, rank, "down_part", self.ranks.count)

    def schedule(self) -> Schedule:
        self.buffers()
        g, ids, m, b = self.g, self.b.buffer_ids, self.m, self.b
        decode = self.geo.purpose == "decode"
        start: list[Wait] = []  # filled below: the end of the step before, whose counter does not exist yet
        before: list[Sequence[Wait]] = []
        for r in range(self.ranks.count):
            embed = [
                {
                    "token": ids["token" if decode else "prompt"], "table": ids["embed"], "out": ids[f"R{r}.h"], "m": m, "chunk": 1,
                    "feed": int(not decode), "col0": a, "col1": e, "vocab": g.vocab_size, "scale": 1.0,
                }
                for a, e in self.cols
            ]  # fmt: skip
            before.append(self.spread("embed", r, f"R{r}.embed", embed, start))
        for i in range(g.n_layers):
            before = [self.rank_layer(i, r, waits) for r, waits in enumerate(before)]
        end = b.counter("head" if decode else "end")
        if self.geo.purpose != "prefill":
            self.head(end if decode else None, before)
        # without a sampler the last tasks of all queues end a step, as the values of the next one are written in the same places
        n = len(self.head_tiles) if decode else b.drain(end)
        return self.finish(((end, n, 0),), start)

    def head(self, done: int | None, before: Sequence[Sequence[Wait]]) -> None:
        """Logits behind the waits of each rank; ``done``: the counter of all tiles."""
        g, ids, waiting = self.g, self.b.buffer_ids, set[int]()
        if len(self.head_tiles) <= (self.ranks.count - 1) * self.ranks.cluster:
            raise ValueError(
                f"{self.ranks.count} ranks of {self.ranks.cluster} queues, the head's {g.vocab_size} rows make "
                f"{len(self.head_tiles)} tiles; each rank needs one: take fewer ranks or a smaller row_align"
            )
        for j, (a, e) in enumerate(self.head_tiles):
            queue = j % self.ranks.queues
            rank = queue // self.ranks.cluster
            tile = {
                "h": ids[f"R{rank}.h"], "norm_w": ids["final_norm"], "w": ids["head"], "logits": ids["logits"],
                "amax": ids.get("amax", -1), "m": self.m, "row0": a, "row1": e, "tile": j, "ring": int(done is None),
                "hidden": g.hidden_size, "layer": g.n_layers, "eps": g.norm_eps,
            }  # fmt: skip
            self.b.task("lm_head", queue, tile, () if queue in waiting else before[rank], () if done is None else (done,))
            waiting.add(queue)


def lower_ranks(
    graph: ModelGraph,
    ranks: Ranks,
    target: Target,
    geometry: Geometry | None = None,
    mode: Mode = "exact",
    config: ScheduleConfig | None = None,
) -> Schedule:
    """Lower the steps of one sequence for ranks: decoding, and the rows of a prompt or of a scored text, one a step.

    Args:
        ranks: how many clusters, of how many queues; the target needs at least as many queues.
        config: ``row_align`` of the head, ``head_tiles_per_queue``, ``fuse_argmax`` and ``sampler_queue`` are as in
            :func:`amk_core.schedule.lower.lower`; the other fields have no meaning here.

    Raises:
        ValueError: a batch, chunk or shape that ranks do not serve.
    """
    return _RankLowering(graph, ranks, config or ScheduleConfig(), target, geometry or Geometry(), mode).schedule()
