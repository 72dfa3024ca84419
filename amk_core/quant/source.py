"""QuantWeights: the quantised matrices of a model by canonical name, and in the row order of a schedule's weight buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix
from amk_core.quant.rounding import quantise

Rows = npt.NDArray[np.int64]
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


class QuantWeights:
    """The weights of one model in the formats of a config.

    Args:
        dense: gives a matrix by canonical name as the checkpoint stores it (``WeightSource.get``).
        packed: matrices that are quantised already, by canonical name, each read when asked for; the others are rounded to nearest.
    """

    def __init__(
        self, graph: ModelGraph, config: QuantConfig, dense: Callable[[str], npt.NDArray[Any]],
        packed: Mapping[str, Callable[[], QuantMatrix]] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.config = graph, config
        self._dense, self._packed = dense, dict(packed or {})

    def format_of(self, name: str) -> QuantFormat | None:
        """The format of a matrix by canonical name; None for one that stays as it is stored."""
        if name == self.graph.head_weight:
            return self.config.head
        return self.config.layers if name.rpartition(".")[2] in MATRICES else None

    def matrix(self, name: str) -> QuantMatrix:
        """A quantised matrix by canonical name, in the rows of HuggingFace.

        Raises:
            QuantError: the weight is not quantised, cannot be, or is stored in another format than the config says.
        """
        wanted = self.format_of(name)
        if wanted is None:
            raise QuantError(f"{name} is not quantised by {self.config}")
        if name not in self._packed:
            return quantise(self._dense(name), wanted, name)
        m, shape = self._packed[name](), self.graph.weight_shapes()[name]
        if m.format != wanted or m.shape != shape:
            raise QuantError(
                f"{name} is {m.format} of {list(m.shape)}, required is {wanted} of {list(shape)}. A checkpoint that mixes "
                f"formats in its layers can be rounded anew: name a format (int8, int4-g64, ...)."
            )
        return m

    def buffer(self, name: str) -> QuantMatrix | None:
        """A weight buffer of the schedule in the row order of ``ops.py``; None where it is not quantised."""
        g = self.graph
        layer, _, part = name.rpartition(".")
        if name == "head":
            return None if self.config.head is None else self.matrix(g.head_weight)
        if part == "qkv":
            q = self.matrix(f"{layer}.q").take(pair_order(g.n_heads, g.head_dim))
            k = self.matrix(f"{layer}.k").take(pair_order(g.n_kv_heads, g.head_dim))
            return QuantMatrix.stack([q, k, self.matrix(f"{layer}.v")])
        if part == "gate_up":
            both = QuantMatrix.stack([self.matrix(f"{layer}.gate"), self.matrix(f"{layer}.up")])
            return both.take(np.arange(both.rows).reshape(2, -1).T.reshape(-1))
        return self.matrix(name)

    def on_tape(self, name: str) -> Any:
        """A weight buffer of the schedule as the tape takes it: a QuantMatrix, or the matrix as stored."""
        from amk_core.schedule.pack import logical_weight

        quantised = self.buffer(name)
        return logical_weight(self.graph, self._dense, name) if quantised is None else quantised

    def dense(self, name: str) -> npt.NDArray[Any]:
        """What the model computes with, by canonical name: de-quantised float32 where quantised, else as stored.

        ``embed`` follows ``config.embed``."""
        if name == "embed" and not (self.graph.tied_head and self.config.embed == "head"):
            return self._dense(name)
        return self._dense(name) if self.format_of(name) is None else self.matrix(name).dequantise()

    def weight_bytes(self, other: int) -> int:
        """Bytes of weights that one token reads: packed where quantised, ``other`` bytes a value elsewhere; the head included,
        norms and the one row of the embedding left out."""
        total = 0
        for name, shape in self.graph.weight_shapes().items():
            if len(shape) != 2 or (name == "embed" and not self.graph.tied_head):
                continue
            f = self.format_of(name)
            total += shape[0] * shape[1] * other if f is None else f.tile_bytes(*shape)
        return total


def pair_order(heads: int, head_dim: int) -> Rows:
    """Rows of [heads * head_dim] from halves (i, i + d/2) to adjacent pairs (2i, 2i + 1)."""
    return np.arange(heads * head_dim).reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
