"""Baseline: HuggingFace's own model with its static cache, compiled whole in torch's mode for small batches (CUDA graphs)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from amk_bench.baselines.hf import cache_argument
from amk_bench.baselines.static import PRECISIONS, StaticCacheEngine
from amk_bench.engine import F32

MODE = "reduce-overhead"
WARM_UP = 3  # the first call compiles, the second records, the third replays


class HfCompiled(StaticCacheEngine):
    """``model`` is a live transformers model; its forward is compiled with ``fullgraph``; logits and argmax in one program.

    ``backend`` replaces inductor (tests use "eager": the program is traced, not compiled).
    """

    def __init__(self, model: Any, batch: int, context: int, backend: str = "inductor") -> None:
        super().__init__(batch, context)
        self.name = "HF static cache, compiled"
        self.precision = PRECISIONS[model.dtype]
        self._model, self._backend = model, backend
        self._device = model.device
        self._cache: Any = None
        self._compiled: Any = None
        self._cache_name = cache_argument(model)

    def available(self) -> str | None:
        from transformers.cache_utils import StaticLayer

        if self._backend == "inductor" and self._device.type != "cuda":
            return f"{self.name}: its CUDA graphs need a GPU"
        if "cumulative_length" not in inspect.getsource(StaticLayer):
            return f"{self.name}: needs the static cache of transformers 5, which counts its rows on the device"
        return None

    def _forward(self, ids: Any, **settings: Any) -> Any:
        return self._model(input_ids=ids, use_cache=True, **{self._cache_name: self._cache}, **settings)

    def _build(self) -> None:
        from transformers import StaticCache

        self._cache = StaticCache(config=self._model.config, max_cache_len=self._context)
        with torch.no_grad():
            ids = torch.zeros(self._batch, 1, dtype=torch.int64, device=self._device)
            self._forward(ids)  # allocates the rows, outside of what is compiled

            def step(ids: Any) -> tuple[Any, Any]:
                logits = self._forward(ids).logits[:, -1]
                return logits.argmax(-1, keepdim=True), logits

            settings: dict[str, Any] = {"backend": self._backend} if self._backend != "inductor" else {"mode": MODE}
            self._compiled = torch.compile(step, fullgraph=True, dynamic=False, **settings)
            for _ in range(WARM_UP):
                self._step(ids)

    def _step(self, ids: Any) -> tuple[Any, Any]:
        compiler: Any = torch.compiler
        compiler.cudagraph_mark_step_begin()
        chosen, logits = self._compiled(ids)
        return chosen.clone(), logits  # what a graph returns is overwritten by its next replay

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        self._check_room(prefix, batch, room)
        if self._compiled is None:
            self._build()
        self._prefix = 0
        self.rewind()
        if prefix:
            with torch.no_grad():
                self._forward(torch.tensor([list(prefix)] * batch, device=self._device), logits_to_keep=1)
        self._prefix = len(prefix)

    def rewind(self) -> None:
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._prefix)

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        ids = torch.tensor(list(first), dtype=torch.int64, device=self._device)[:, None]
        chain = []
        with torch.no_grad():
            for _ in range(tokens):
                ids, _ = self._step(ids)
                chain.append(ids)
            chains: list[list[int]] = torch.cat(chain, dim=1).tolist()
        return chains

    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        self.rewind()
        rows = []
        with torch.no_grad():
            for step in forced:
                _, logits = self._step(torch.tensor(list(step), dtype=torch.int64, device=self._device)[:, None])
                rows.append(logits.float().cpu().numpy().copy())
        self.rewind()
        out: F32 = np.stack(rows)
        return out

    def constants(self) -> list[Any]:
        """What no call may change: the weights."""
        return list(self._model.parameters())

    def describe(self) -> dict[str, str]:
        import transformers
        from torch._dynamo.utils import counters

        skips = counters["inductor"]["cudagraph_skips"]
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "attention": str(self._model.config._attn_implementation),
            "graph": f"torch.compile, mode {MODE}, fullgraph; {skips} programs without a CUDA graph",
            "cache": f"StaticCache, {self._context} rows",
        }
