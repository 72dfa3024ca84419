"""The launch-based step at its strongest: few fused kernels in a CUDA graph, joined by programmatic dependent launch.

With it, a kernel is resident while the one before still runs, has fetched its weights, and waits for nothing but its input; so the
gaps between kernels, which are most of what a graph of a small model costs, shrink to the hand-off itself.  Needs sm_90 for that;
elsewhere the same kernels run in a plain graph, and the name says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import torch

from amk_bench.baselines.engines import FusedEngine
from amk_bench.baselines.fused import FusedStep
from amk_bench.baselines.registry import BaselineUnavailable, Setting
from amk_bench.baselines.weights import TorchWeights
from amk_core.importer.rope import rope_tables

PDL_LEAST = (9, 0)  # compute capability
SPLIT_ROWS = 256  # of the cache: fewer rows than that are not worth another program
MOST_SPLITS = 16
TOKENS_AT_ONCE = 64  # rows of the cache that a program of attention holds
TENSOR_CORE_SIDE = 16  # least side of a product on tensor cores
TRIALS = 20  # replays that decide between tiles


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """How much a program does: ``elements`` of a matrix with one sequence; ``rows`` by ``depth`` of it with more; ``warps``."""

    elements: int = 16384
    rows: int = 16
    depth: int = 256
    warps: int = 4


TILES = (Tile(), Tile(8192, 16, 128, 8), Tile(32768, 32, 256, 8), Tile(16384, 32, 128, 8), Tile(16384, 64, 128, 16))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


class PdlStep(FusedStep):
    """The step of :class:`FusedStep`, its state and its cache, computed by our own kernels.

    ``dependent``: launched as programmatic dependents.  ``interpreted``: on a processor, by Triton's interpreter.
    """

    def __init__(self, weights: TorchWeights, batch: int, rows: int, tile: Tile, *, dependent: bool, interpreted: bool) -> None:
        super().__init__(weights, batch, rows, functional=True)
        g, embed = weights.graph, weights.tensors["embed"]
        made = functools.partial(torch.zeros, device=embed.device)
        self.tile, self.dependent, self.interpreted = tile, dependent, interpreted
        self._kernels: Any = importlib.import_module("amk_bench.rivals.pdl_kernels")
        self.splits = max(1, min(MOST_SPLITS, -(-rows // SPLIT_ROWS)))
        self.padded = 1 if batch == 1 else max(TENSOR_CORE_SIDE, _power(batch))
        self.group = max(TENSOR_CORE_SIDE, _power(g.n_heads // g.n_kv_heads))
        kind, items = embed.dtype, batch * g.n_kv_heads
        self.x = made(batch, g.hidden_size)
        self.q, self.attended = made(batch, g.q_size, dtype=kind), made(batch, g.q_size, dtype=kind)
        self.act = made(batch, g.intermediate_size, dtype=kind)
        self.logits = made(batch, g.vocab_size)
        self._sums = made(items * self.splits * self.group, g.head_dim)
        self._tops, self._mass = made(items * self.splits * self.group), made(items * self.splits * self.group)
        self._tickets = made(items, dtype=torch.int32)
        self._parts = -(-g.vocab_size // self._rows(g.hidden_size))
        self._best, self._where = made(batch, self._parts), made(batch, self._parts, dtype=torch.int32)
        self._steps = made(batch, dtype=torch.int64)
        self._turn = tuple(torch.from_numpy(t).to(embed.device).contiguous() for t in rope_tables(g.rope, min(rows, g.context)))

    def start(self, position: int) -> None:
        super().start(position)
        self._steps.zero_()

    def _rows(self, k: int) -> int:
        """Rows of a matrix with ``k`` columns that a program takes."""
        return max(1, self.tile.elements // _power(k)) if self.batch == 1 else self.tile.rows

    def _half(self, k: int, most: int) -> int:
        """Pairs of rows a program takes, at most ``most``."""
        return max(1, min(self._rows(k) // 2 if self.batch == 1 else self.tile.rows // 2, most))

    def _launch(self, kernel: Callable[..., Any], grid: tuple[int, ...], *values: Any, **constants: Any) -> None:
        options: dict[str, Any] = {} if self.interpreted else {"num_warps": self.tile.warps, "launch_pdl": self.dependent}
        kernel[grid](*values, **constants, PDL=self.dependent, **options)  # type: ignore[index]

    def _sizes(self, k: int) -> dict[str, int]:
        depth = max(TENSOR_CORE_SIDE, min(self.tile.depth, _power(k)))
        return {"K": k, "KP": _power(k), "B": self.batch, "PB": self.padded, "BK": depth}

    def __call__(self) -> None:
        g, t, run, kernels = self.weights.graph, self.weights.tensors, self._launch, self._kernels
        h, f, eps = g.hidden_size, g.intermediate_size, g.norm_eps
        run(kernels.embed_kernel, (self.batch,), self.token, t["embed"], self.x, H=h, HP=_power(h))
        heads = {"HEADS": g.n_heads, "KV_HEADS": g.n_kv_heads, "D": g.head_dim}
        pairs, columns = self._half(h, g.head_dim // 2), self._half(h, _power(f))
        for i in range(g.n_layers):
            own = {name: t[f"L{i}.{name}"] for name in ("attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down")}
            run(
                kernels.qkv_kernel, ((g.n_heads + 2 * g.n_kv_heads) * (g.head_dim // 2 // pairs),), own["qkv"], self.x,
                own["attn_norm"], eps, *self._turn, self.position, self.q, self.kv[i], self.rows, **heads, **self._sizes(h),
                HALF=pairs,
            )  # fmt: skip
            run(
                kernels.attend_kernel, (self.batch * g.n_kv_heads, self.splits), self.q, self.kv[i], self.position, self.attended,
                self._sums, self._tops, self._mass, self._tickets, g.attn_scale, self.rows, **heads,
                GROUP=g.n_heads // g.n_kv_heads, GP=self.group, SPLITS=self.splits, BT=TOKENS_AT_ONCE,
            )  # fmt: skip
            self._add(own["o"], self.attended, g.q_size)
            run(
                kernels.gate_up_kernel, (-(-f // columns),), own["gate_up"], self.x, own["mlp_norm"], eps, self.act, F=f,
                **self._sizes(h), HALF=columns,
            )  # fmt: skip
            self._add(own["down"], self.act, f)
        run(
            kernels.head_kernel, (self._parts,), self.weights.head, self.x, t["final_norm"], eps, self.logits, self._best,
            self._where, N=g.vocab_size, **self._sizes(h), BN=self._rows(h),
        )  # fmt: skip
        run(
            kernels.pick_kernel, (self.batch,), self._best, self._where, self.token, self.out, self.position, self._steps,
            N=g.vocab_size, PARTS=self._parts, PP=_power(self._parts), B=self.batch,
        )  # fmt: skip

    def _add(self, w: Any, a: Any, k: int) -> None:
        n, rows = self.weights.graph.hidden_size, self._rows(k)
        self._launch(self._kernels.add_kernel, (-(-n // rows),), w, a, self.x, N=n, **self._sizes(k), BN=rows)


class PdlEngine(FusedEngine):
    """The step in one CUDA graph.  Tiles are tried at the first cell, and the quickest stays."""

    def __init__(self, weights: TorchWeights, batch: int, context: int, tiles: tuple[Tile, ...] = TILES) -> None:
        super().__init__(weights, batch, context, "graph")
        where = weights.tensors["embed"].device
        self._interpreted = where.type != "cuda"
        self._dependent = not self._interpreted and torch.cuda.get_device_capability(where) >= PDL_LEAST
        self.name = "Triton step, CUDA graph" + (" + PDL" if self._dependent or self._interpreted else "")
        self._tiles = tiles[:1] if self._interpreted else tiles
        self.tried: dict[str, str] = {}

    def available(self) -> str | None:
        return None

    def launch(self) -> None:
        """Compiles the kernels of all tiles, which the trial finds compiled."""
        for tile in self._tiles:
            with contextlib.suppress(Exception), torch.no_grad():  # the trial says what is wrong with one
                self._made(tile)()

    def _made(self, tile: Tile) -> PdlStep:
        return PdlStep(self.weights, self._batch, self._context, tile, dependent=self._dependent, interpreted=self._interpreted)

    @property
    def step(self) -> FusedStep:
        if self._step is None:
            best = float("inf")
            for tile in self._tiles:
                step = self._made(tile)
                if self._interpreted:
                    self._step = step
                    break
                try:
                    graph = self._capture(step)
                except Exception as error:  # a tile that does not fit this card's registers or shared memory
                    self.tried[str(tile)] = f"{type(error).__name__}: {error}"[:120]
                    continue
                seconds = _replay_s(graph, step)
                self.tried[str(tile)] = f"{1e6 * seconds:.0f} us"
                if seconds < best:
                    best, self._step, self._graph = seconds, step, graph
            if self._step is None:
                raise RuntimeError(f"no tile can be run: {'; '.join(f'{t}: {said}' for t, said in self.tried.items())}")
        return self._step

    def describe(self) -> dict[str, str]:
        import triton

        made = self.step
        assert isinstance(made, PdlStep)
        return {
            "triton": triton.__version__, "torch": torch.__version__, "kernels": "five a layer and three",
            "graph": "one CUDA graph a step", "programmatic dependent launch": "yes" if self._dependent else "no",
            "tile": repr(made.tile).replace(",", ";"), "tiles tried": "; ".join(self.tried.values()),
            "attention": f"{made.splits} splits of the keys",
            "cache": f"static; {self._context} rows", "weights": self.weights.origin,
        }  # fmt: skip


def _replay_s(graph: Any, step: PdlStep) -> float:
    """Seconds of a replay, the median of some."""
    cuda: Any = torch.cuda
    events = [cuda.Event(enable_timing=True) for _ in range(TRIALS + 1)]
    step.start(0)
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    events[-1].synchronize()
    times = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(events))
    step.start(0)
    return float(times[len(times) // 2]) * 1e-3


def pdl_graph(setting: Setting) -> PdlEngine:
    """The baseline ``pdl-graph``."""
    from amk_bench.baselines.factories import fused_weights

    if setting.device != "cuda":
        raise BaselineUnavailable("Triton step, CUDA graph + PDL: a CUDA graph needs a GPU")
    if importlib.util.find_spec("triton") is None:
        raise BaselineUnavailable("Triton step, CUDA graph + PDL: triton is not installed; it comes with torch's CUDA builds")
    if setting.precision != "bf16":
        raise BaselineUnavailable(f"Triton step, CUDA graph + PDL: measured in bf16, not in {setting.precision}")
    return PdlEngine(fused_weights(setting), setting.batch, setting.context)
