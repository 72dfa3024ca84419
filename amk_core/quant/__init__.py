"""Quantised weights: formats, rounding, packed bytes, and the layouts of other people's checkpoints."""

from __future__ import annotations

from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix
from amk_core.quant.rounding import quantise

__all__ = ["QuantError", "QuantFormat", "QuantMatrix", "quantise"]
