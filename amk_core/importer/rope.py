"""Rotary tables: HuggingFace's float32 formulas, operation by operation, so that the tables have the same bits.

Computing the angles in float64 would be more exact and measurably different from what the models are run with.
Source of the scalings: yarn, arXiv:2309.00071; the others as published with the models that use them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from amk_core.graph import RopeSpec
from amk_core.importer.errors import ModelRefused

if TYPE_CHECKING:
    import torch

F32 = npt.NDArray[np.float32]


def rope_tables(spec: RopeSpec, rows: int) -> tuple[F32, F32]:
    """(cos, sin), each float32 [rows, head_dim / 2]: row p is position p; yarn's attention factor is in both.

    Raises ModelRefused for dynamic scaling beyond the trained context, where the angles of all positions would change with the
    length of the sequence; ValueError for rows < 0."""
    import torch

    if rows < 0:
        raise ValueError(f"rows is {rows}; required is at least 0")
    if spec.kind == "dynamic" and rows > spec.context:
        raise ModelRefused(
            "dynamic RoPE beyond the trained context", f"{rows} positions", f"at most {spec.context}",
            f"Ask for a context of at most {spec.context}.",
        )  # fmt: skip
    inv_freq, factor = inverse_frequencies(spec)
    angles = torch.arange(rows)[:, None].float() * inv_freq
    return (angles.cos() * factor).numpy(), (angles.sin() * factor).numpy()


def inverse_frequencies(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """(float32 [head_dim / 2], the factor on cos and sin)."""
    import torch

    base = spec.theta
    if spec.kind == "dynamic":
        # the sequence is at most the trained context: the ratio is 1 up to rounding, which is repeated too
        stretch = spec.factor * spec.context / spec.context - (spec.factor - 1)
        base = base * stretch ** (spec.head_dim / (spec.head_dim - 2))
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).to(torch.float32) / spec.head_dim
    if spec.kind == "yarn":
        return _yarn(spec, base**exponent), _yarn_attention_factor(spec)
    inv_freq = 1.0 / (base**exponent)
    if spec.kind == "linear":
        inv_freq = inv_freq / spec.factor
    elif spec.kind == "llama3":
        inv_freq = _llama3(spec, inv_freq)
    return inv_freq, 1.0


def _llama3(spec: RopeSpec, inv_freq: torch.Tensor) -> torch.Tensor:
    import torch

    assert spec.original_context is not None
    longest, shortest = spec.original_context / spec.low_freq_factor, spec.original_context / spec.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > longest, inv_freq / spec.factor, inv_freq)
    smooth = (spec.original_context / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - smooth) * scaled / spec.factor + smooth * scaled
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, scaled)


def _yarn(spec: RopeSpec, frequencies: torch.Tensor) -> torch.Tensor:
    import torch

    assert spec.original_context is not None
    original = spec.original_context

    def dimension(rotations: float) -> float:
        """The (real) dimension that turns this many times over the original context."""
        return (spec.head_dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    if low == high:
        high += 0.001  # the ramp of the reference has no division by zero either
    ramp = torch.clamp((torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return (1.0 / (spec.factor * frequencies)) * (1 - keep) + (1.0 / frequencies) * keep


def _yarn_attention_factor(spec: RopeSpec) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if spec.factor <= 1 else 0.1 * weight * math.log(spec.factor) + 1.0

    if spec.mscale and spec.mscale_all_dim:
        return mscale(spec.mscale) / mscale(spec.mscale_all_dim)
    return mscale(1)
