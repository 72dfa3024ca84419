"""GGUF blocks as they are: Q4_0, Q4_1 and Q8_0 tensors become codes, scales and minima without being de-quantised.

Block layouts (32 values of K): https://github.com/ggml-org/ggml, ``block_q4_0``, ``block_q4_1``, ``block_q8_0``.  All multi-byte
numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix

BLOCK = 32
FORMATS: Mapping[str, QuantFormat] = MappingProxyType({
    "Q4_0": QuantFormat(4, BLOCK),  # f16 d, 16 bytes of nibbles: d * (q - 8)
    "Q4_1": QuantFormat(4, BLOCK, "min"),  # f16 d, f16 m, 16 bytes of nibbles: d * q + m
    "Q8_0": QuantFormat(8, BLOCK),  # f16 d, 32 signed bytes: d * q
})  # fmt: skip
BLOCK_BYTES: Mapping[str, int] = MappingProxyType({"Q4_0": 18, "Q4_1": 20, "Q8_0": 34})


def read(data: npt.NDArray[Any], kind: str, rows: int, k: int, name: str = "the tensor") -> QuantMatrix:
    """The blocks of a tensor [rows, K], stored row by row.

    Raises:
        QuantError: a GGUF type other than the three, or bytes that do not make whole blocks.
    """
    if kind not in FORMATS:
        raise QuantError(
            f"{name} is stored as {kind}; only {', '.join(FORMATS)} are run as they are. Name a format to round the weights to "
            f"(int8, int4-g64, ...), or run the de-quantised weights."
        )
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if k % BLOCK or raw.size != rows * (k // BLOCK) * BLOCK_BYTES[kind]:
        raise QuantError(f"{name} of {rows} x {k} has {raw.size} bytes; required are whole blocks of {BLOCK} values ({kind})")
    block = raw.reshape(rows, k // BLOCK, BLOCK_BYTES[kind])
    scale = _half(block[:, :, 0:2])
    if kind == "Q8_0":
        codes = np.ascontiguousarray(block[:, :, 2:]).view(np.int8).reshape(rows, k)
        return QuantMatrix(FORMATS[kind], codes, scale)
    head = 4 if kind == "Q4_1" else 2
    nibbles = block[:, :, head:]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(rows, k)  # low nibbles are the first 16 values
    return QuantMatrix(FORMATS[kind], codes, scale, _half(block[:, :, 2:4]) if kind == "Q4_1" else None)


def _half(pairs: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(pairs).view("<f2")[:, :, 0].astype(np.float16)
