"""Round to nearest: scales from the range of each group, codes from the rounded scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import SCALE_NUMPY, QuantMatrix, spread

F32 = npt.NDArray[np.float32]

# Smallest and largest positive values of the scale dtypes.
_LEAST = {"f16": 2.0**-24, "bf16": 2.0**-133}
_MOST = {"f16": 65504.0, "bf16": float(np.float32(3.3895313892515355e38))}


def levels(fmt: QuantFormat) -> int:
    """Steps of the range that the scale is made for: 127, 7 (to either side of 0), or 15 (from end to end)."""
    if fmt.kind == "sym":
        return 127 if fmt.bits == 8 else 7
    return 15


def check_finite(w: npt.NDArray[Any], name: str) -> F32:
    """``w`` as float32 [rows, K].

    Raises:
        QuantError: no matrix, or a NaN or an infinity.
    """
    x = np.ascontiguousarray(w, np.float32)
    if x.ndim != 2 or 0 in x.shape:
        raise QuantError(f"{name} has shape {list(x.shape)}; only matrices [rows, K] are quantised")
    ok = np.isfinite(x)
    if not ok.all():
        row, col = (int(i) for i in np.argwhere(~ok)[0])
        raise QuantError(
            f"{name} holds {float(x[row, col])} at row {row}, column {col}; required are finite weights. A conversion to float16 "
            f"overflows where a bfloat16 model has large values: use the original checkpoint."
        )
    return x


def grouped(x: F32, fmt: QuantFormat) -> F32:
    """[rows, K] -> [rows, groups, width]; a shorter last group is filled by its own first value, which changes no range."""
    rows, k = x.shape
    width = fmt.group or k
    groups = fmt.groups(k)
    if groups * width == k:
        return x.reshape(rows, groups, width)
    start = (groups - 1) * width
    fill = np.repeat(x[:, start : start + 1], groups * width - k, axis=1)
    return np.concatenate([x, fill], axis=1).reshape(rows, groups, width)


def scales(low: F32, high: F32, fmt: QuantFormat, name: str = "the weight") -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """(scale, offset) for groups whose values lie in [low, high], rounded to the scale dtype; both [rows, groups].

    A group of zeros has scale 0.  Any other scale is at least the smallest positive value of its dtype, so that tiny weights keep
    their signs.

    Raises:
        QuantError: the range of a group does not fit the scale dtype.
    """
    dtype, n = SCALE_NUMPY[fmt.scale], levels(fmt)
    offset: npt.NDArray[Any] | None = None
    if fmt.kind == "sym":
        span = np.maximum(-low, high).astype(np.float64)
    else:
        if fmt.kind == "zero":  # the range holds 0, so that 0 is a code
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        span = high.astype(np.float64) - low
    wanted = span / n
    most = np.maximum(wanted, np.maximum(-low, high)) if fmt.kind == "min" else wanted
    if (most > _MOST[fmt.scale]).any():
        row, group = (int(i) for i in np.argwhere(most > _MOST[fmt.scale])[0])
        raise QuantError(
            f"{name}: row {row}, group {group} needs a scale or minimum of {float(most[row, group]):.3g}, {fmt.scale} ends at "
            f"{_MOST[fmt.scale]:.3g}. Take a format with bf16 scales, or leave this weight as it is stored."
        )
    scale = np.where(span > 0, np.maximum(wanted, _LEAST[fmt.scale]), 0).astype(np.float32).astype(dtype)
    if fmt.kind == "min":
        offset = low.astype(dtype)
    elif fmt.kind == "zero":
        wide = scale.astype(np.float32)
        offset = np.clip(np.rint(-low / np.where(wide > 0, wide, 1)), 0, 15).astype(dtype)
    return scale, offset


def codes(x: F32, fmt: QuantFormat, scale: npt.NDArray[Any], offset: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """The nearest codes of values [rows, K] for given scales and offsets (ties to even)."""
    k = x.shape[1]
    wide = spread(scale, fmt, k)
    safe = np.where(wide > 0, wide, 1)
    least, most = (-127, 127) if fmt.bits == 8 else fmt.code_range
    if fmt.kind == "min":
        assert offset is not None
        q = np.rint((x - spread(offset, fmt, k)) / safe)
    else:
        q = np.rint(x / safe) + (np.float32(fmt.midpoint) if offset is None else spread(offset, fmt, k))
    return np.clip(q, least, most).astype(np.int8 if fmt.bits == 8 else np.uint8)


def quantise(w: npt.NDArray[Any], fmt: QuantFormat, name: str = "the weight") -> QuantMatrix:
    """Round a matrix [rows, K] of any float dtype to the nearest values of a format.

    Args:
        name: of the weight, for messages.

    Raises:
        QuantError: a NaN or an infinity, or a range that the scale dtype cannot hold.
    """
    x = check_finite(w, name)
    g = grouped(x, fmt)
    scale, offset = scales(g.min(axis=2), g.max(axis=2), fmt, name)
    return QuantMatrix(fmt, codes(x, fmt, scale, offset), scale, offset)
