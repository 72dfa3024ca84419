"""The torch baselines as engines: the fused step run eagerly, replayed from a CUDA graph, or compiled and replayed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from amk_bench.baselines.fused import FusedStep
from amk_bench.baselines.quantised import Quantised
from amk_bench.baselines.static import PRECISIONS, StaticCacheEngine
from amk_bench.baselines.weights import TorchWeights
from amk_bench.engine import F32

Mode = Literal["eager", "graph", "compile"]
WARM_UP = 3  # steps before a capture: libraries allocate their workspaces in the first, compilers tune in it
# Matrix-vector products as tuned reductions reach more of the bandwidth than the library's; the tuner is what makes them so.
INDUCTOR = {"coordinate_descent_tuning": True, "triton.cudagraphs": False}
NAMES = {"eager": "fused step", "graph": "fused step, CUDA graph", "compile": "fused step, compiled, CUDA graph"}


class FusedEngine(StaticCacheEngine):
    """The fused step for one batch and a static cache of ``context`` rows; its graph is captured at the first cell."""

    def __init__(self, weights: TorchWeights, batch: int, context: int, mode: Mode = "graph") -> None:
        super().__init__(batch, context)
        self.name = NAMES[mode]
        self.mode = mode
        self.weights = weights
        self.precision = PRECISIONS[weights.tensors["embed"].dtype]
        self.backend = "inductor"  # of mode "compile"; tests trace with "eager"
        self._step: FusedStep | None = None
        self._graph: Any = None

    def available(self) -> str | None:
        if self.mode != "eager" and self.weights.tensors["embed"].device.type != "cuda":
            return f"{self.name}: a CUDA graph needs a GPU"
        return None

    @property
    def step(self) -> FusedStep:
        """The step, compiled where asked for, and captured in a graph where that is the mode."""
        if self._step is None:
            compiled = self.mode == "compile"
            options = {"options": INDUCTOR} if self.backend == "inductor" else {"backend": self.backend}
            wrap = functools.partial(torch.compile, fullgraph=True, dynamic=False, **options) if compiled else lambda f: f
            self._step = FusedStep(self.weights, self._batch, self._context, functional=compiled, compile=wrap)
            if self._step.kv.is_cuda and self.mode != "eager":
                self._graph = self._capture(self._step)
        return self._step

    @staticmethod
    def _capture(step: FusedStep) -> Any:
        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        step.start(0)
        with torch.no_grad(), torch.cuda.graph(graph):
            step()
        return graph

    def _run(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            with torch.no_grad():
                self.step()

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        self._check_room(prefix, batch, room)
        step = self.step
        step.kv.zero_()
        with torch.no_grad():
            step.prefill(torch.tensor([list(prefix)], dtype=torch.int64, device=step.kv.device).view(1, len(prefix)))
        self._prefix = len(prefix)
        self.rewind()

    def rewind(self) -> None:
        self.step.start(self._prefix)
        self.step.out.fill_(-1)

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        self.step.token.copy_(torch.tensor(list(first), dtype=torch.int64), non_blocking=True)
        for _ in range(tokens):
            self._run()
        chains: list[list[int]] = self.step.out[:tokens].T.tolist()
        return chains

    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        self.rewind()
        rows = []
        for ids in forced:
            self.step.token.copy_(torch.tensor(list(ids), dtype=torch.int64))
            self._run()
            rows.append(self.step.logits.float().cpu().numpy().copy())
        self.rewind()
        out: F32 = np.stack(rows)
        return out

    def constants(self) -> list[Any]:
        """What no call may change: the weights."""
        return self.weights.memory()

    def describe(self) -> dict[str, str]:
        return {
            "torch": torch.__version__,
            "attention": "flash attention with split keys" if self.step.flash else "masked scaled-dot-product attention",
            "graph": "one CUDA graph a step" if self._graph is not None else "none",
            "compiler": f"inductor, {INDUCTOR}" if self.mode == "compile" else "none",
            "cache": f"static, {self._context} rows",
            "weights": self.weights.origin,
        }


class WeightOnlyEngine(FusedEngine):
    """The fused step with torch's weight-only products, compiled and replayed from a CUDA graph: ``bits`` of the layers."""

    def __init__(self, quantised: Quantised, bits: int, batch: int, context: int, mode: Mode = "compile") -> None:
        super().__init__(quantised.weight_only(), batch, context, mode)
        self.name = f"torch int{bits} weight-only, {NAMES[mode]}"
        self.precision = str(quantised.config)
        self.quantised = quantised

    def describe(self) -> dict[str, str]:
        formats = dict.fromkeys(m.format for m in self.quantised.matrices.values())
        told = {f: "widened in the product" if f.bits == 8 else "_weight_int4pack_mm" for f in formats}
        products = "; ".join(f"{f} {how}" for f, how in told.items())
        rounded = any(f.bits == 4 and (f.scale != "bf16" or f.kind != "sym") for f in formats)
        same = "the codes of ours, scales or offsets rounded to bf16" if rounded else "the codes and scales of ours"
        return {**super().describe(), "products": products, "quantised": same}
