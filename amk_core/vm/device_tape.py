"""The weight tape of the tensor-core path: every queue's tiles in the order in which it streams them, in fragment order.

A tile of R rows by K is ``[row group of 8][unit of 32 values of K][lane][8]`` in bf16, rows and K padded by zeros: lane
``(g, t) = (lane // 4, lane % 4)`` of a unit holds row g, values ``8t .. 8t + 8``.  A unit is 512 bytes, one 16-byte load a lane,
and the B operand of two ``mma.m16n8k16``.  Rows of more than 64 units are cut into pieces of 64, and two row groups take turns
piece by piece, so that a piece of the activations serves both.  Quantised weights are tiles of records in the same order, see
:mod:`amk_core.vm.quant_tape`.  The layout depends on the tiling alone, so schedules with the same tiling share a tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.quant import QuantFormat, QuantMatrix
from amk_core.schedule.ir import Schedule
from amk_core.schedule.pack import Matrix, Provider, TapeError, TapeLayout
from amk_core.vm import quant_tape

GROUP_ROWS, UNIT_K, UNIT_BYTES = 8, 32, 512
PIECE_UNITS = 64  # units of a row group that lie side by side where another row group takes turns


def tile_units(rows: int, k: int) -> int:
    """Units of a tile of ``rows`` by ``k``."""
    return -(-rows // GROUP_ROWS) * -(-k // UNIT_K)


def fragment_order(rows: Matrix) -> npt.NDArray[np.uint16]:
    """One tile [rows, k] (bfloat16, or uint16 bit patterns) as the bit patterns the tape holds."""
    n, k = rows.shape
    groups, units = -(-n // GROUP_ROWS), -(-k // UNIT_K)
    padded = np.zeros((groups * GROUP_ROWS, units * UNIT_K), np.uint16)
    padded[:n, :k] = rows.view(np.uint16)
    # [group, g, unit, t, 8] -> [group, unit, g, t, 8]; a lane is (g, t)
    tile = padded.reshape(groups, GROUP_ROWS, units, 4, 8).transpose(0, 2, 1, 3, 4)
    return _in_turns(tile, PIECE_UNITS)


def _in_turns(tile: Matrix, piece: int) -> Matrix:
    """[row group, unit, ...] flat; units beyond one piece in pieces, two row groups in turns."""
    groups, units = tile.shape[:2]
    if units > piece:
        return np.concatenate(
            [tile[g : g + 2, u : u + piece].reshape(-1) for g in range(0, groups, 2) for u in range(0, units, piece)]
        )
    return np.ascontiguousarray(tile).reshape(-1)


def quant_order(m: QuantMatrix) -> npt.NDArray[np.uint8]:
    """One quantised tile as the bytes the tape holds (QuantError as :func:`quant_tape.records`)."""
    return _in_turns(quant_tape.records(m), quant_tape.PIECE_UNITS // quant_tape.loads(m.format))


def tile_shape(rows: int, k: int, fmt: QuantFormat | None) -> tuple[int, int]:
    """(units, bytes) of a tile; a unit of quantised weights is a record."""
    if fmt is None:
        units = tile_units(rows, k)
        return units, units * UNIT_BYTES
    units = -(-rows // GROUP_ROWS) * int(quant_tape.records_of(k))
    return units, units * quant_tape.record_bytes(fmt)


@dataclass(frozen=True, slots=True)
class DeviceTapeLayout:
    """Where each tile lies.

    Attributes:
        weights: names of the weights on the tape.
        segments: int64 [n, 5]: index into ``weights``, first row, end row, K, byte offset; in tape order.
        bytes: length of the tape.
        formats: of the quantised weights, by name; the others are bf16.
    """

    weights: tuple[str, ...]
    segments: npt.NDArray[np.int64]
    bytes: int
    formats: Mapping[str, QuantFormat] = field(default_factory=dict)

    @staticmethod
    def of(s: Schedule) -> DeviceTapeLayout:
        """The tape of a schedule whose weights are bf16 or quantised.

        Raises:
            TapeError: a weight row is streamed twice or never, or weights that are not quantised are not bf16.
        """
        plain = TapeLayout.of(s)
        if plain.dtype != "bf16":
            seen = ", ".join(sorted({plain.dtype_of(name) for name in plain.weights}))
            raise TapeError(f"the tensor-core tape holds bf16 weights, the schedule has {seen}; lower it with mode='fast'")
        segments = plain.segments.copy()
        formats = [plain.formats.get(name) for name in plain.weights]
        size = [tile_shape(e - a, k, formats[w])[1] for w, a, e, k, _ in segments.tolist()]
        ends = np.cumsum(np.array(size, np.int64))
        segments[:, 4] = np.concatenate([[0], ends[:-1]])
        return DeviceTapeLayout(plain.weights, segments, int(ends[-1]), plain.formats)

    def locate(self, s: Schedule) -> npt.NDArray[np.int64]:
        """[n_tasks, 2]: byte offset and units of each task's tile, -1 for tasks that stream none (TapeError as TapeLayout)."""
        plain = TapeLayout("bf16", self.weights, self.segments, self.bytes, self.formats).locate(s)
        size = {o: tile_shape(e - a, k, self.formats.get(self.weights[w]))[0] for w, a, e, k, o in self.segments.tolist()}
        return np.array([(int(o), size[int(o)]) if o >= 0 else (-1, -1) for o in plain], np.int64).reshape(-1, 2)

    def build(self, provider: Provider) -> npt.NDArray[np.uint8]:
        """The bytes, packed on the host; ``provider`` as for :meth:`amk_core.schedule.pack.Tape.build`."""
        data = np.zeros(self.bytes, np.uint8)
        for w, name in enumerate(self.weights):
            mine = self.segments[self.segments[:, 0] == w]
            matrix = provider(name)
            want = (int(mine[:, 2].max()), int(mine[0, 3]))
            self.check(name, matrix, want)
            for _, a, e, _k, offset in mine.tolist():
                tile = self.tile(matrix, a, e)
                data[offset : offset + tile.nbytes] = tile
        return data

    def check(self, name: str, matrix: Matrix | QuantMatrix, want: tuple[int, int]) -> None:
        """A weight as the provider gives it has the shape and the format of the schedule (TapeError)."""
        if matrix.shape != want:
            raise TapeError(f"weight {name} is {list(matrix.shape)}, the schedule expects {list(want)}")
        seen = matrix.format if isinstance(matrix, QuantMatrix) else None
        if seen != self.formats.get(name):
            raise TapeError(
                f"weight {name} is given as {seen or 'stored'}, the schedule expects {self.formats.get(name) or 'bf16'}"
            )

    @staticmethod
    def tile(matrix: Matrix | QuantMatrix, first: int, end: int) -> npt.NDArray[np.uint8]:
        """The bytes of rows [first, end) of a weight."""
        if isinstance(matrix, QuantMatrix):
            return quant_order(matrix.take(slice(first, end)))
        return fragment_order(np.ascontiguousarray(matrix[first:end]).astype(ml_dtypes.bfloat16, copy=False)).view(np.uint8)
