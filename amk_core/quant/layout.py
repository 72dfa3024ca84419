"""The bytes of a quantised tile: what the weight tape holds and the kernels read.

A tile is ``[row group of 8][record]``; a record is ``[unit][row of 8][64 bytes]`` of codes and behind them ``[group][row of 8]``
scales.  docs/quantisation.md draws it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import GROUP_ROWS, UNIT_BYTES, QuantFormat
from amk_core.quant.matrix import SCALE_NUMPY, QuantMatrix

ROW_BYTES = UNIT_BYTES // GROUP_ROWS  # codes of one row in a unit
# Nibble j of a 32-bit word holds value NIBBLES[j] of its eight: the even ones in the low half, the odd ones in the high half.
NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)

Bytes = npt.NDArray[np.uint8]


def pack(m: QuantMatrix) -> Bytes:
    """The rows of a matrix as one tile, uint8 [format.tile_bytes(rows, K)]."""
    f, n, k = m.format, -(-m.rows // GROUP_ROWS), m.k
    records = -(-k // f.record_k)
    padded = np.full((n * GROUP_ROWS, records * f.record_k), 0, m.codes.dtype)
    padded[: m.rows, :k] = m.codes
    # [n, 8, records, units, 64 bytes] -> [n, records, units, 8, 64]
    rows = _row_bytes(padded, f).reshape(n, GROUP_ROWS, records, f.record_k // f.unit_k, ROW_BYTES)
    body = np.ascontiguousarray(rows.transpose(0, 2, 3, 1, 4)).reshape(n, records, -1)
    entries = _entries(m, n)
    if f.group == 0:
        return np.concatenate([body.reshape(n, -1), entries.reshape(n, -1)], axis=1).reshape(-1)
    per = f.record_k // f.group
    filled = np.zeros((n, records * per, GROUP_ROWS * f.entry_bytes), np.uint8)
    filled[:, : entries.shape[1]] = entries
    return np.concatenate([body, filled.reshape(n, records, -1)], axis=2).reshape(-1)


def unpack(data: Bytes, fmt: QuantFormat, rows: int, k: int) -> QuantMatrix:
    """The inverse of :func:`pack`."""
    n, records = -(-rows // GROUP_ROWS), -(-k // fmt.record_k)
    units = fmt.record_k // fmt.unit_k
    groups, words = fmt.groups(k), fmt.entry_bytes // 2
    by_group = data.reshape(n, fmt.group_bytes(k))
    if fmt.group == 0:
        body, tail = by_group[:, : records * UNIT_BYTES], by_group[:, records * UNIT_BYTES :]
        entries = tail.reshape(n, 1, GROUP_ROWS, fmt.entry_bytes)
    else:
        by_record = by_group.reshape(n, records, fmt.record_bytes)
        body, tail = by_record[:, :, : units * UNIT_BYTES], by_record[:, :, units * UNIT_BYTES :]
        entries = tail.reshape(n, -1, GROUP_ROWS, fmt.entry_bytes)[:, :groups]
    rows_first = body.reshape(n, records, units, GROUP_ROWS, ROW_BYTES).transpose(0, 3, 1, 2, 4)
    codes = _codes(np.ascontiguousarray(rows_first).reshape(n * GROUP_ROWS, -1), fmt)[:rows, :k]
    table = np.ascontiguousarray(entries.transpose(0, 2, 1, 3)).view(SCALE_NUMPY[fmt.scale]).reshape(n * GROUP_ROWS, groups, words)
    scale, offset = table[:rows, :, 0].copy(), (table[:rows, :, 1].copy() if words == 2 else None)
    return QuantMatrix(fmt, codes, scale, offset)


def _row_bytes(codes: npt.NDArray[Any], fmt: QuantFormat) -> Bytes:
    """Codes [rows, K] as bytes [rows, K * bits / 8]; K a multiple of 8."""
    if fmt.bits == 8:
        return codes.view(np.uint8)
    eight = codes.reshape(codes.shape[0], -1, 8)[:, :, NIBBLES]
    packed: Bytes = (eight[:, :, 0::2] | eight[:, :, 1::2] << 4).astype(np.uint8)
    return packed.reshape(codes.shape[0], -1)


def _codes(rows: Bytes, fmt: QuantFormat) -> npt.NDArray[Any]:
    if fmt.bits == 8:
        return rows.view(np.int8).copy()
    nibbles = np.stack([rows & 15, rows >> 4], axis=2).reshape(rows.shape[0], -1, 8)
    return np.ascontiguousarray(nibbles[:, :, np.argsort(NIBBLES)]).reshape(rows.shape[0], -1)


def _entries(m: QuantMatrix, n: int) -> Bytes:
    """Scales, with their offsets beside them: bytes [n, groups, 8 * entry_bytes]."""
    words = m.format.entry_bytes // 2
    table = np.zeros((n * GROUP_ROWS, m.scale.shape[1], words), m.scale.dtype)
    table[: m.rows, :, 0] = m.scale
    if m.offset is not None:
        table[: m.rows, :, 1] = m.offset
    by_group = np.ascontiguousarray(table.reshape(n, GROUP_ROWS, -1, words).transpose(0, 2, 1, 3))
    return by_group.view(np.uint8).reshape(n, m.scale.shape[1], -1)
