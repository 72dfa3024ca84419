"""What the torch engines with a static cache have in common: the cells that fit them, scoring a text, names of their types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from amk_bench.engine import F32

PRECISIONS: Mapping[Any, str] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class StaticCacheEngine(ABC):
    """An engine made for one batch, with a cache of a fixed number of rows; at the end of its prefix when rewound."""

    def __init__(self, batch: int, context: int) -> None:
        self._batch, self._context = batch, context
        self._prefix = 0

    @abstractmethod
    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        """Logits [steps, batch, vocabulary] of the very step that is timed, fed ``forced`` ids [steps][batch] after the prefix."""

    def _check_room(self, prefix: Sequence[int], batch: int, room: int) -> None:
        """Raises ValueError for a cell that this engine was not made for."""
        if batch != self._batch:
            raise ValueError(f"this engine was made for batch {self._batch}, the cell has {batch}")
        if len(prefix) + room > self._context:
            raise ValueError(f"position {len(prefix)} + {room} is beyond the cache of {self._context} rows; make it larger")

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        """Teacher-forced logits of one text, token by token through the timed step; overwrites the cache."""
        if not 0 < len(ids) <= self._context:
            raise ValueError(f"{len(ids)} ids for a cache of {self._context} rows")
        prefix, self._prefix = self._prefix, 0
        rows = self.trace([[i] * self._batch for i in ids])[:, 0]
        self._prefix = prefix
        return rows[-keep:] if keep else rows
