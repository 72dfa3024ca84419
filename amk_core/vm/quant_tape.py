"""Records of quantised weights on the tape of fast mode: 8 rows by 128 values of K, in the order in which lanes read them.

A record is ``[512 bytes of codes][lane][16 bytes]``, once of 4 bits and twice of 8, and behind the codes the scales
``[group][row of 8]`` of 2 bytes, and the offsets likewise: minima, or zero points as integers.  Lane ``(g, t)`` has values
``32 s + 8 t .. 32 s + 8 t + 8`` of row g for s = 0 to 3: what it has of four stored units.  8 bits: two words an s.  4 bits: one,
byte i with value i in its low nibble and value 4 + i in its high one; ``sym`` in two's complement.  The scale of a whole row is in
every record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import GROUP_ROWS, KINDS, QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix

RECORD_K, RECORD_UNITS = 128, 4
STAGE_BYTES, STAGE_BYTES_A8 = 400, 256  # of the activations of a row that meet a record: kStageBytes of kernels/weights.cuh
PIECE_UNITS = 32  # kQuantPiece of vm/ring.cuh: 512-byte units of codes of a row group that lie side by side

Bytes = npt.NDArray[np.uint8]


def number(fmt: QuantFormat | None) -> int:
    """A format as the device sources name it (``vm/quant.h``); 0: not quantised."""
    if fmt is None:
        return 0
    integer = 1_000_000 if fmt.activations else 0
    return integer + fmt.bits * 10_000 + fmt.group * 10 + KINDS.index(fmt.kind) + (5 if fmt.scale == "bf16" else 0)


def loads(fmt: QuantFormat) -> int:
    """512-byte units of codes in a record."""
    return fmt.bits // 4


def stage_bytes(fmt: QuantFormat) -> int:
    """Shared memory of the activations of a row that meet a record."""
    return STAGE_BYTES_A8 if fmt.activations else STAGE_BYTES


def group_of(fmt: QuantFormat) -> int:
    """Values of K that share a scale in a record."""
    return fmt.group or RECORD_K


def record_bytes(fmt: QuantFormat) -> int:
    return 512 * loads(fmt) + RECORD_K // group_of(fmt) * GROUP_ROWS * fmt.entry_bytes


def records_of(k: Any) -> Any:
    """Records in a row of K."""
    return -(-k // RECORD_K)


def records(m: QuantMatrix) -> Bytes:
    """The rows of a matrix as uint8 [row groups, records, record bytes].

    Raises:
        QuantError: a zero point that is no integer from 0 to 127.
    """
    f, n, r = m.format, -(-m.rows // GROUP_ROWS), int(records_of(m.k))
    codes = np.zeros((n * GROUP_ROWS, r * RECORD_K), np.uint8)
    codes[: m.rows, : m.k] = m.codes.view(np.uint8)
    if f.bits == 8:  # [n, g, record, load, half, t, 8] -> [n, record, load, g, t, half, 8]
        lanes: Bytes = codes.reshape(n, GROUP_ROWS, r, 2, 2, 4, 8).transpose(0, 2, 3, 1, 5, 4, 6)
    else:  # [n, g, record, s, t, 4 bytes] -> [n, record, g, t, s, 4 bytes]
        eight = (codes ^ 8 if f.kind == "sym" else codes).reshape(n, GROUP_ROWS, r, 4, 4, 8)
        lanes = (eight[..., :4] | eight[..., 4:] << 4).astype(np.uint8).transpose(0, 2, 1, 4, 3, 5)
    parts = [np.ascontiguousarray(lanes).reshape(n, r, -1), _entries(m.scale.view(np.uint16), f, n, r)]
    if m.offset is not None and f.kind == "min":
        parts.append(_entries(m.offset.view(np.uint16), f, n, r))
    elif m.offset is not None:
        zero = m.offset.astype(np.float32)
        bad = np.argwhere((zero != np.rint(zero)) | (zero < 0) | (zero > 127))
        if len(bad):
            raise QuantError(
                f"the zero point of row {bad[0][0]}, group {bad[0][1]} is {float(zero[tuple(bad[0])])}; the CUDA VM takes integers "
                f"from 0 to 127 in mode fast. Use mode='exact', or round the weights anew."
            )
        parts.append(_entries(zero.astype(np.uint16), f, n, r))
    return np.concatenate(parts, axis=2)


def _entries(table: npt.NDArray[np.uint16], fmt: QuantFormat, n: int, r: int) -> Bytes:
    """Scales or offsets [rows, groups] as bytes [row groups, records, group and row of 8]."""
    per = RECORD_K // group_of(fmt)
    if fmt.group == 0:
        table = np.repeat(table, r, axis=1)
    whole = np.zeros((n * GROUP_ROWS, r * per), np.uint16)
    whole[: table.shape[0], : table.shape[1]] = table
    ordered = np.ascontiguousarray(whole.reshape(n, GROUP_ROWS, r, per).transpose(0, 2, 3, 1))
    return ordered.view(np.uint8).reshape(n, r, -1)
