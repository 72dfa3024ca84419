"""Our side as an engine: a model loaded by ``amk_core``, decoding from its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amk_bench.engine import F32


class Ours:
    """Wraps a loaded ``amk_core`` model whose batch is the cell's batch."""

    def __init__(self, model: Any, name: str = "AMK CPU VM") -> None:
        self.name = name
        self.model = model
        self.precision = "fp32" if model.mode == "exact" else "bf16"
        self._position = 0

    def available(self) -> str | None:
        return None

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        if batch != self.model.batch:
            raise ValueError(f"the model is loaded for batch {self.model.batch}, the cell has {batch}; load it with batch={batch}")
        if len(prefix) + room > self.model.context:
            raise ValueError(
                f"position {len(prefix)} + {room} is beyond the context of {self.model.context}; load with a larger one"
            )
        self._position = len(prefix)
        self.model.prefill([list(prefix)] * batch)

    def rewind(self) -> None:
        """Nothing to do: decoding again from the same position writes the same rows again."""

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        chains: list[list[int]] = self.model.resume(list(first), [self._position] * len(first), tokens)
        return chains

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        scores: F32 = self.model.logits(list(ids))
        return scores[-keep:] if keep else scores
