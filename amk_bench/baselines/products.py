"""Weight-only products of PyTorch: a matrix of 8- or 4-bit codes with its scales, in place of a weight tensor.

8 bits: the codes widened and multiplied by their scales inside the product, which a compiler fuses to one reduction for one row of
activations; torch's own ``_weight_int8pack_mm`` has a thread an output on a GPU and is no rival.  4 bits: ``_weight_int4pack_mm``,
which computes ``(code - 8) * scale + zero`` in registers of tensor cores, scale and zero in the type of the activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

INT4_GROUPS = (32, 64, 128, 256)
INT4_TILES = (8, 4, 2)  # tiles of 16 values of K that lie side by side; more are quicker
INT4_LEAST = (8, 0)  # compute capability of the kernel


class NoProduct(ValueError):
    """torch has no product for this matrix; the message says what it takes."""


@dataclass(slots=True)
class Int8:
    """Codes of 8 bits and their scales."""

    codes: Any
    scale: Any

    def tensors(self) -> list[Any]:
        return [self.codes, self.scale]


class Int8Rows(Int8):
    """One scale a row: [N, K] int8, [N] float32."""

    def product(self, x: Any) -> Any:
        return (F.linear(x, self.codes.to(x.dtype)) * self.scale).to(x.dtype)


class Int8Groups(Int8):
    """A scale for each group of K: [N, groups, width] int8, [N, groups, 1] float32."""

    def product(self, x: Any) -> Any:
        return F.linear(x, (self.codes * self.scale).to(x.dtype).flatten(1))


@dataclass(slots=True)
class Int4Groups:
    """torch's own layout of ``codes``; ``scales`` [groups, N, 2]: scale and zero."""

    codes: Any
    group: int
    scales: Any

    def product(self, x: Any) -> Any:
        kernel = torch.ops.aten._weight_int4pack_mm if x.is_cuda else torch.ops.aten._weight_int4pack_mm_for_cpu
        return kernel(x, self.codes, self.group, self.scales)

    def tensors(self) -> list[Any]:
        return [self.codes, self.scales]


WeightOnly = Int8Rows | Int8Groups | Int4Groups


def linear(x: Any, w: Any) -> Any:
    """x w^T for a tensor or a quantised matrix."""
    return F.linear(x, w) if isinstance(w, torch.Tensor) else w.product(x)


def int8(codes: Any, group: int, scale: Any) -> Int8Rows | Int8Groups:
    """Codes int8 [N, K], scales [N, groups] of ``group`` values, 0: of the row.  NoProduct where groups do not divide K."""
    n, k = codes.shape
    if group == 0:
        return Int8Rows(codes, scale[:, 0].float())
    if k % group:
        raise NoProduct(f"K = {k} ends in a shorter group; required is a multiple of {group}, or one scale a row")
    return Int8Groups(codes.view(n, k // group, group), scale.float()[:, :, None].contiguous())


def int4(codes: Any, group: int, scale: Any, zero: Any, dtype: Any) -> Int4Groups:
    """Codes uint8 [N, K] of 0 to 15; ``scale`` and ``zero`` [N, groups] of the values ``(code - 8) * scale + zero``.

    Raises:
        NoProduct: shapes or a GPU that the kernel does not take.
    """
    n, k = codes.shape
    tiles = next((t for t in INT4_TILES if k % (16 * t) == 0), 0)
    if n % 8 or not tiles or group not in INT4_GROUPS or k % group:
        raise NoProduct(
            f"a matrix of {n} x {k} in groups of {group}; required are N a multiple of 8, K of {16 * INT4_TILES[-1]} and of the "
            f"group, which is one of {', '.join(map(str, INT4_GROUPS))}"
        )
    if codes.is_cuda and torch.cuda.get_device_capability(codes.device) < INT4_LEAST:
        raise NoProduct(f"the kernel needs compute capability {INT4_LEAST[0]}.{INT4_LEAST[1]}")
    if codes.is_cuda:  # two codes a byte, the first of each pair in the high nibble
        packed = torch.ops.aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)
    else:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), tiles)
    return Int4Groups(packed, group, torch.stack((scale, zero), 2).to(dtype).transpose(0, 1).contiguous())
