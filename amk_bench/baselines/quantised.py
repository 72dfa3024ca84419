"""Quantised weights as torch tensors: one set of codes for ours, for the peers in that precision and for the reference.

Rounded on the device that holds the weights, by the rule of :mod:`amk_core.quant.rounding`, or taken from a checkpoint's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from amk_bench.baselines.products import NoProduct, WeightOnly, int4, int8
from amk_bench.baselines.weights import TorchWeights
from amk_core.graph import ModelGraph
from amk_core.quant import rounding
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import SCALE_NUMPY, QuantMatrix
from amk_core.quant.source import QuantWeights

FUSED = ("qkv", "o", "gate_up", "down")
ROWS = 1 << 14  # of a matrix that are widened to float32 at a time


@dataclass(frozen=True, slots=True)
class TorchMatrix:
    """A :class:`QuantMatrix` in torch: ``codes`` [N, K], ``scale`` and ``offset`` [N, groups]."""

    format: QuantFormat
    codes: Any
    scale: Any
    offset: Any = None

    @staticmethod
    def round(w: Any, fmt: QuantFormat, name: str) -> TorchMatrix:
        """A weight [N, K] rounded to nearest on its device; the codes of :func:`amk_core.quant.rounding.quantise`.

        Raises:
            QuantError: a NaN or an infinity, or a range that the scale dtype cannot hold.
        """
        parts = [TorchMatrix._round(rows, fmt, name) for rows in w.split(ROWS)]
        codes, scale = torch.cat([p.codes for p in parts]), torch.cat([p.scale for p in parts])
        return TorchMatrix(fmt, codes, scale, None if fmt.kind == "sym" else torch.cat([p.offset for p in parts]))

    @staticmethod
    def _round(w: Any, fmt: QuantFormat, name: str) -> TorchMatrix:
        x = w.float()
        if not torch.isfinite(x).all():
            raise QuantError(f"{name} holds values that are not finite; required are finite weights")
        width = fmt.group or x.shape[1]
        low, high = (torch.stack([getattr(part, of)(1) for part in x.split(width, 1)], 1).cpu().numpy() for of in ("amin", "amax"))
        scale, offset = (
            None if t is None else _from_numpy(t).to(x.device) for t in rounding.scales(low, high, fmt, name)
        )  # fmt: skip
        made = TorchMatrix(fmt, None, scale, offset)
        wide = made._spread(scale, x.shape[1])
        safe = torch.where(wide > 0, wide, 1.0)
        if fmt.kind == "min":
            q = ((x - made._spread(offset, x.shape[1])) / safe).round_()
        else:
            q = (x / safe).round_()
            q += fmt.midpoint if offset is None else made._spread(offset, x.shape[1])
        least, most = (-127, 127) if fmt.bits == 8 else fmt.code_range
        codes = q.clamp_(least, most).to(torch.int8 if fmt.bits == 8 else torch.uint8)
        return dataclasses.replace(made, codes=codes)

    def _spread(self, x: Any, k: int) -> Any:
        wide = x.float()
        return wide.expand(-1, k) if self.format.group == 0 else wide.repeat_interleave(self.format.group, 1)[:, :k]

    def dequantise(self, dtype: Any = torch.float32) -> Any:
        """The values [N, K], computed in float32."""
        n = len(self.codes)
        return torch.cat([self.rows(i, min(i + ROWS, n))._dequantise().to(dtype) for i in range(0, n, ROWS)])

    def _dequantise(self) -> Any:
        k, codes = self.codes.shape[1], self.codes.float()
        if self.format.kind == "min":
            return codes * self._spread(self.scale, k) + self._spread(self.offset, k)
        codes -= self.format.midpoint if self.offset is None else self._spread(self.offset, k)
        return codes * self._spread(self.scale, k)

    def rows(self, first: int, end: int) -> TorchMatrix:
        offset = None if self.offset is None else self.offset[first:end]
        return TorchMatrix(self.format, self.codes[first:end], self.scale[first:end], offset)

    def numpy(self) -> QuantMatrix:
        kind = SCALE_NUMPY[self.format.scale]
        scale, offset = (
            None if t is None else t.cpu().contiguous().view(torch.int16).numpy().view(kind) for t in (self.scale, self.offset)
        )
        assert scale is not None
        return QuantMatrix(self.format, self.codes.cpu().numpy(), scale, offset)

    def product(self, dtype: Any) -> WeightOnly:
        """As torch's own weight-only product for activations of ``dtype``.  NoProduct where there is none."""
        if self.format.bits == 8:
            return int8(self.codes, self.format.group, self.scale)
        scale = self.scale.float()
        zero = torch.zeros_like(scale)
        if self.format.kind == "zero":
            zero = scale * (8 - self.offset.float())
        elif self.format.kind == "min":
            zero = scale * 8 + self.offset.float()
        return int4(self.codes, self.format.group, scale, zero, dtype)


def _from_numpy(x: Any) -> Any:
    """float16 or bfloat16 of numpy in torch."""
    kind = torch.float16 if x.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(kind)


class Quantised:
    """The weights of one model in the formats of a config; ``matrices`` by fused name, and "head".

    ``graph`` is that of a model whose head is not tied: what is looked up and what is multiplied differ once one is rounded.
    """

    def __init__(self, weights: TorchWeights, config: QuantConfig) -> None:
        """Rounds ``weights``, and takes them out of there one by one: a card may not hold all of them twice.

        Raises:
            QuantError: an embedding that follows the head, and as :meth:`TorchMatrix.round`.
        """
        if config.embed != "stored":
            raise QuantError(
                f"embed={config.embed}; required is embed=stored: here the embedding keeps the values of the checkpoint"
            )
        self.config, self.origin = config, f"{weights.origin}, rounded to {config}"
        self.graph: ModelGraph = dataclasses.replace(weights.graph, tied_head=False)
        self._stored = weights.tensors
        self._stored.setdefault("head", weights.head)
        wanted: dict[str, QuantFormat] = {name: config.layers for name in self._stored if name.rpartition(".")[2] in FUSED}
        if config.head is not None:
            wanted["head"] = config.head
        self.matrices = {name: TorchMatrix.round(self._stored.pop(name), fmt, name) for name, fmt in wanted.items()}

    def stored(self) -> TorchWeights:
        """What is not quantised as it is, the others de-quantised and rounded to its type: for rivals that take no codes."""
        dtype = self._stored["embed"].dtype
        made = {name: m.dequantise(dtype) for name, m in self.matrices.items()}
        return TorchWeights(self.graph, {**self._stored, **made}, self.origin)

    def weight_only(self) -> TorchWeights:
        """For the fused step, with products of torch's in place of tensors.  NoProduct names the matrix that torch has none for."""
        made: dict[str, Any] = {}
        for name, m in self.matrices.items():
            try:
                made[name] = m.product(self._stored["embed"].dtype)
            except NoProduct as error:
                raise NoProduct(f"{name}: {error}") from None
        return TorchWeights(self.graph, {**self._stored, **made}, self.origin)

    def parts(self) -> dict[str, TorchMatrix]:
        """Quantised matrices by canonical name: "L0.q" and so on."""
        g, out = self.graph, {}
        sizes = {
            "qkv": {"q": g.q_size, "k": g.kv_size, "v": g.kv_size},
            "gate_up": dict.fromkeys(("gate", "up"), g.intermediate_size),
        }
        for name, m in self.matrices.items():
            layer, _, fused = name.rpartition(".")
            first = 0
            for part, rows in sizes.get(fused, {fused: len(m.codes)}).items():
                out[f"{layer}.{part}" if layer else part] = m.rows(first, first + rows)
                first += rows
        return out

    def ours(self, dense: Callable[[str], Any]) -> QuantWeights:
        """For :func:`amk_core.load`; ``dense`` gives what is not quantised, by canonical name."""
        return QuantWeights(self.graph, self.config, dense, {name: m.numpy for name, m in self.parts().items()})

    def exact(self) -> Mapping[str, Callable[[], Any]]:
        """De-quantised in float32, by the names of HuggingFace's modules, each made when it is asked for."""
        names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
                 "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}  # fmt: skip
        out: dict[str, Callable[[], Any]] = {}
        for name, m in self.parts().items():
            layer, _, part = name.rpartition(".")
            out[f"model.layers.{layer[1:]}.{names[part]}" if layer else "lm_head"] = m.dequantise
        return out

    def step_bytes(self, other: int) -> int:
        """Bytes of weights that a step reads at least: codes and scales without padding; ``other`` a value of the others."""
        total = self.graph.hidden_size * other
        for name, t in self._stored.items():
            total += 0 if name == "embed" else t.numel() * other
        for m in self.matrices.values():
            entries = [m.scale, *([] if m.offset is None else [m.offset])]
            total += m.codes.numel() * m.format.bits // 8 + sum(e.nbytes for e in entries)
        return total
