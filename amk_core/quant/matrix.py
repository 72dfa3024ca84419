"""QuantMatrix: one quantised weight, as codes, scales and offsets; what it stands for; and its rows in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.quant.format import QuantError, QuantFormat

SCALE_NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def spread(x: npt.NDArray[Any], fmt: QuantFormat, k: int) -> npt.NDArray[np.float32]:
    """[rows, groups] -> float32 [rows, k]: each value of K with what its group has."""
    wide = x.astype(np.float32)
    return np.repeat(wide, k, axis=1) if fmt.group == 0 else np.repeat(wide, fmt.group, axis=1)[:, :k]


@dataclass(frozen=True, slots=True, eq=False)
class QuantMatrix:
    """A matrix [rows, K] in a format.

    Attributes:
        codes: [rows, K]; int8 for 8 bits, uint8 of 0 to 15 for 4 bits.
        scale: [rows, groups] of the format's scale dtype.
        offset: the same shape and dtype, zero points or minima; None for ``sym``.

    Raises:
        QuantError: arrays that do not fit together, codes out of range, scales or offsets that are not finite.
    """

    format: QuantFormat
    codes: npt.NDArray[Any]
    scale: npt.NDArray[Any]
    offset: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        f, want = self.format, np.int8 if self.format.bits == 8 else np.uint8
        if self.codes.ndim != 2 or 0 in self.codes.shape or self.codes.dtype != want:
            raise QuantError(
                f"codes are {self.codes.dtype} {list(self.codes.shape)}; required of {f} is {np.dtype(want)} [rows, K]"
            )
        if f.bits == 4 and int(self.codes.max()) > 15:
            raise QuantError(f"a code is {int(self.codes.max())}; required of {f} is 0 to 15")
        shape = (self.codes.shape[0], f.groups(self.codes.shape[1]))
        if (self.offset is None) != (f.kind == "sym"):
            raise QuantError(f"offsets are {'absent' if self.offset is None else 'present'}; {f} is a format of kind {f.kind}")
        for name, x in (("scale", self.scale), ("offset", self.offset)):
            if x is None:
                continue
            if x.shape != shape or x.dtype != SCALE_NUMPY[f.scale]:
                raise QuantError(
                    f"{name} is {x.dtype} {list(x.shape)}; required of {f} and K = {self.k} is {f.scale} {list(shape)}"
                )
            bad = np.argwhere(~np.isfinite(x.astype(np.float32)))
            if len(bad):
                raise QuantError(
                    f"{name} of row {bad[0][0]}, group {bad[0][1]} is {float(x[tuple(bad[0])])}; required is a finite number"
                )

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0])

    @property
    def k(self) -> int:
        return int(self.codes.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.k

    def dequantise(self) -> npt.NDArray[np.float32]:
        """The values, float32 [rows, K].

        ``sym`` and ``zero`` are exact; ``min`` rounds once, in the addition: products of a scale of 11 bits and a code fit float32.
        """
        f, k = self.format, self.k
        codes = self.codes.astype(np.float32)
        if f.kind == "min":
            assert self.offset is not None
            codes *= spread(self.scale, f, k)
            codes += spread(self.offset, f, k)
            return codes
        codes -= np.float32(f.midpoint) if self.offset is None else spread(self.offset, f, k)
        codes *= spread(self.scale, f, k)
        return codes

    def take(self, rows: npt.NDArray[np.int64] | slice) -> QuantMatrix:
        """Some rows, in the order asked for."""
        offset = None if self.offset is None else self.offset[rows]
        return QuantMatrix(self.format, self.codes[rows], self.scale[rows], offset)

    @staticmethod
    def stack(parts: Sequence[QuantMatrix]) -> QuantMatrix:
        """Matrices of one format and K, one below the other.

        Raises:
            QuantError: formats or K differ.
        """
        first = parts[0]
        for p in parts[1:]:
            if (p.format, p.k) != (first.format, first.k):
                raise QuantError(
                    f"{p.format} of K = {p.k} cannot stand below {first.format} of K = {first.k}; required is one format"
                )
        offset = None if first.offset is None else np.concatenate([p.offset for p in parts if p.offset is not None])
        return QuantMatrix(
            first.format, np.concatenate([p.codes for p in parts]), np.concatenate([p.scale for p in parts]), offset
        )  # fmt: skip

    def same(self, other: QuantMatrix) -> bool:
        """Equal format, codes, scales and offsets, bit for bit."""
        pairs = ((self.codes, other.codes), (self.scale, other.scale), (self.offset, other.offset))
        return self.format == other.format and self.shape == other.shape and all(
            a is b or (a is not None and b is not None and a.tobytes() == b.tobytes()) for a, b in pairs
        )  # fmt: skip
