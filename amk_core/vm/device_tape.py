"""The weight tape of the tensor-core path: every queue's tiles in the order in which it streams them, in fragment order.

A tile of R rows by K is ``[row group of 8][unit of 32 values of K][lane][8]`` in bf16, rows and K padded by zeros: lane
``(g, t) = (lane // 4, lane % 4)`` of a unit holds row g, values ``8t .. 8t + 8``.  A unit is 512 bytes, one 16-byte load a lane,
and the B operand of two ``mma.m16n8k16``.  Rows of more than 64 units are cut into pieces of 64, and two row groups take turns
piece by piece, so that a piece of the activations serves both.  The layout depends on the tiling alone, so schedules with the
same tiling share a tape.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.schedule.ir import Schedule
from amk_core.schedule.pack import Matrix, Provider, TapeError, TapeLayout

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
    if units > PIECE_UNITS:
        parts = [
            tile[g : g + 2, u : u + PIECE_UNITS].reshape(-1) for g in range(0, groups, 2) for u in range(0, units, PIECE_UNITS)
        ]
        return np.concatenate(parts)
    return np.ascontiguousarray(tile).reshape(-1)


@dataclass(frozen=True, slots=True)
class DeviceTapeLayout:
    """Where each tile lies.

    Attributes:
        weights: names of the weights on the tape.
        segments: int64 [n, 5]: index into ``weights``, first row, end row, K, byte offset; in tape order.
        bytes: length of the tape.
    """

    weights: tuple[str, ...]
    segments: npt.NDArray[np.int64]
    bytes: int

    @staticmethod
    def of(s: Schedule) -> DeviceTapeLayout:
        """The tape of a schedule whose weights are bf16.

        Raises:
            TapeError: a weight row is streamed twice or never, or the weights are not bf16.
        """
        plain = TapeLayout.of(s)
        if plain.dtype != "bf16" or plain.formats:
            seen = ", ".join(sorted({plain.dtype_of(name) for name in plain.weights}))
            raise TapeError(f"the tensor-core tape holds bf16 weights, the schedule has {seen}; lower it with mode='fast'")
        segments = plain.segments.copy()
        units = -(-(segments[:, 2] - segments[:, 1]) // GROUP_ROWS) * -(-segments[:, 3] // UNIT_K)
        ends = np.cumsum(units * UNIT_BYTES)
        segments[:, 4] = np.concatenate([[0], ends[:-1]])
        return DeviceTapeLayout(plain.weights, segments, int(ends[-1]))

    def locate(self, s: Schedule) -> npt.NDArray[np.int64]:
        """[n_tasks, 2]: byte offset and units of each task's tile, -1 for tasks that stream none (TapeError as TapeLayout)."""
        plain = TapeLayout("bf16", self.weights, self.segments, self.bytes).locate(s)
        size = {int(o): tile_units(int(e - a), int(k)) for _, a, e, k, o in self.segments}
        return np.array([(int(o), size[int(o)]) if o >= 0 else (-1, -1) for o in plain], np.int64).reshape(-1, 2)

    def build(self, provider: Provider) -> npt.NDArray[np.uint8]:
        """The bytes, packed on the host; ``provider`` as for :meth:`amk_core.schedule.pack.Tape.build`."""
        data = np.zeros(self.bytes, np.uint8)
        for w, name in enumerate(self.weights):
            mine = self.segments[self.segments[:, 0] == w]
            matrix = provider(name)
            want = (int(mine[:, 2].max()), int(mine[0, 3]))
            if matrix.shape != want:
                raise TapeError(f"weight {name} is {list(matrix.shape)}, the schedule expects {list(want)}")
            for _, a, e, _k, offset in mine.tolist():
                tile = fragment_order(np.ascontiguousarray(matrix[a:e]).astype(ml_dtypes.bfloat16, copy=False))
                data[offset : offset + tile.nbytes] = tile.view(np.uint8)
        return data
