"""The weight tape: every queue's weights in the order in which it will stream them.

A tape is a permutation of the named weight rows of a model: the layout is a function of the schedule alone, is checked to hold
every row exactly once, and carries a hash; the bytes carry another.  Schedules with the same tiling (decode, prefill, logits of
one model) share one tape.

A tile is row-major ``[rows][k_padded]`` with K padded by zeros to a multiple of LANES, or, of a quantised weight, as
``amk_core.quant.layout`` packs it; it starts on TILE_ALIGN bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.quant import QuantFormat, QuantMatrix
from amk_core.quant import layout as quant_layout
from amk_core.quant.format import BY_NAME
from amk_core.schedule.ir import Kind, Schedule

LANES = 32  # partial sums of a dot product: part of the numeric plan
TILE_ALIGN = 64
TAPE_DTYPES: dict[str, npt.DTypeLike] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}

Matrix = npt.NDArray[Any]
Provider = Callable[[str], Any]  # name of a weight buffer -> Matrix or QuantMatrix [rows, k], in the row order of ops.py


def aligned_zeros(size: int) -> npt.NDArray[np.uint8]:
    """``size`` zero bytes that start on TILE_ALIGN."""
    raw = np.zeros(size + TILE_ALIGN, np.uint8)
    start = -raw.ctypes.data % TILE_ALIGN
    return raw[start : start + size]


class TapeError(ValueError):
    """The schedule's tiles are not a permutation of the weights, or a weight does not have the shape the schedule expects."""


def tile_bytes(dtype: str, rows: int, k: int) -> int:
    """Bytes of a tile, before it is padded to TILE_ALIGN."""
    if dtype in BY_NAME:
        return BY_NAME[dtype].tile_bytes(rows, k)
    return rows * -(-k // LANES) * LANES * np.dtype(TAPE_DTYPES[dtype]).itemsize


def tiles(s: Schedule) -> npt.NDArray[np.int64]:
    """[n_tasks, 4]: weight buffer id, first row, end row, K of the tile a task streams; -1 where it streams none."""
    c = s.columns
    is_weight = np.array([b.kind is Kind.WEIGHT for b in s.buffers], bool)
    cols = np.array([b.cols for b in s.buffers], np.int64)
    out = np.full((s.n_tasks, 4), -1, np.int64)
    access = np.flatnonzero(is_weight[c.acc_buffer]) if len(c.acc_buffer) else np.zeros(0, np.int64)
    task = np.searchsorted(c.acc_off, access, side="right") - 1
    if len(np.unique(task)) != len(task):
        raise TapeError("a task streams two weights; the tape gives each task one tile")
    buffer = c.acc_buffer[access]
    out[task] = np.stack([buffer, c.acc_r0[access], c.acc_r1[access], cols[buffer]], axis=1)
    return out


@dataclass(frozen=True, slots=True)
class TapeLayout:
    """Where each tile lies.

    Attributes:
        dtype: ``f32`` or ``bf16``, of the weights that are not quantised.
        weights: names of the weights on the tape.
        segments: int64 [n, 5]: index into ``weights``, first row, end row, K, byte offset; in tape order.
        bytes: length of the tape.
        formats: of the quantised weights, by name.
    """

    dtype: str
    weights: tuple[str, ...]
    segments: npt.NDArray[np.int64]
    bytes: int
    formats: Mapping[str, QuantFormat] = field(default_factory=dict)

    @staticmethod
    def of(s: Schedule) -> TapeLayout:
        """Queue by queue, tile by tile, as the schedule consumes them.

        Raises:
            TapeError: a weight row is streamed twice or never.
        """
        tile = tiles(s)
        order = s.columns.queue_task[tile[s.columns.queue_task, 0] >= 0]
        used = sorted({int(b) for b in tile[order, 0]})
        formats = {s.buffers[b].name: BY_NAME[s.buffers[b].dtype] for b in used if s.buffers[b].dtype in BY_NAME}
        dtypes = {s.buffers[b].dtype for b in used if s.buffers[b].name not in formats}
        if len(dtypes) > 1 or not dtypes <= set(TAPE_DTYPES):
            raise TapeError(f"weights of dtypes {', '.join(sorted(dtypes))}; a tape has one of {', '.join(TAPE_DTYPES)}")
        dtype = dtypes.pop() if dtypes else ("bf16" if s.meta.get("mode") == "fast" else "f32")
        for b in used:
            mine = tile[order][tile[order, 0] == b]
            mine = mine[np.argsort(mine[:, 1])]
            edges = np.concatenate([[0], mine[:, 2]])
            if (mine[:, 1] != edges[:-1]).any() or edges[-1] != s.buffers[b].rows:
                raise TapeError(f"tiles of {s.buffers[b].name} do not hold each of its {s.buffers[b].rows} rows exactly once")
        index = {b: i for i, b in enumerate(used)}
        size = np.array([tile_bytes(s.buffers[b].dtype, e - a, k) for b, a, e, k in tile[order].tolist()], np.int64)
        padded = -(-size // TILE_ALIGN) * TILE_ALIGN
        offset = np.concatenate([[0], np.cumsum(padded)])
        columns = [[index[int(b)] for b in tile[order, 0]], tile[order, 1], tile[order, 2], tile[order, 3], offset[:-1]]
        segments = np.ascontiguousarray(np.array(columns, np.int64).T.reshape(-1, 5))
        return TapeLayout(dtype, tuple(s.buffers[b].name for b in used), segments, int(offset[-1]), formats)

    def hash(self) -> str:
        """SHA-256 of names, dtypes and segments."""
        h = hashlib.sha256(
            repr((self.dtype, self.weights, self.bytes, sorted(f"{n} {f}" for n, f in self.formats.items()))).encode()
        )
        h.update(self.segments.tobytes())
        return h.hexdigest()

    def dtype_of(self, name: str) -> str:
        """The dtype of a weight on the tape: its format's name, or ``dtype``."""
        return self.formats[name].name if name in self.formats else self.dtype

    def locate(self, s: Schedule) -> npt.NDArray[np.int64]:
        """Byte offset of each task's tile, -1 for tasks that stream none.

        Raises:
            TapeError: the schedule streams a tile that is not on this tape.
        """
        where = {(self.weights[int(w)], int(a), int(e), int(k)): int(off) for w, a, e, k, off in self.segments}
        out = np.full(s.n_tasks, -1, np.int64)
        tile = tiles(s)
        for t in np.flatnonzero(tile[:, 0] >= 0):
            b, a, e, k = (int(x) for x in tile[t])
            key = (s.buffers[b].name, a, e, k)
            if key not in where or s.buffers[b].dtype != self.dtype_of(key[0]):
                raise TapeError(
                    f"task {t} streams rows [{a}, {e}) of {key[0]} as {s.buffers[b].dtype}, "
                    f"which is no tile of this {self.dtype_of(key[0])} tape; "
                    "lower both schedules with the same ScheduleConfig, target and mode"
                )
            out[t] = where[key]
        return out


@dataclass(frozen=True, slots=True)
class Tape:
    """Layout and bytes (uint8, 64-byte aligned)."""

    layout: TapeLayout
    data: npt.NDArray[np.uint8]

    def hash(self) -> str:
        """SHA-256 of the bytes: equal before and after a run, or something wrote to the weights."""
        return hashlib.sha256(self.data.data).hexdigest()

    @staticmethod
    def build(layout: TapeLayout, provider: Provider) -> Tape:
        """Copy every weight into its tiles, one weight in memory at a time.

        Args:
            provider: gives a weight by name as [rows, k], any float dtype; float32 and bfloat16 are converted exactly or
                rounded to nearest even. A weight that is quantised on the tape it gives as a QuantMatrix of that format.

        Raises:
            TapeError: a weight of another shape or format than the schedule expects.
        """
        data = aligned_zeros(layout.bytes)
        dtype = np.dtype(TAPE_DTYPES[layout.dtype])
        for w, name in enumerate(layout.weights):
            mine = layout.segments[layout.segments[:, 0] == w]
            want = (int(mine[:, 2].max()), int(mine[0, 3]))
            matrix = provider(name)
            if matrix.shape != want:
                raise TapeError(f"weight {name} is {list(matrix.shape)}, the schedule expects {list(want)}")
            quantised = isinstance(matrix, QuantMatrix)
            seen = matrix.format.name if quantised else layout.dtype
            if seen != layout.dtype_of(name):
                raise TapeError(f"weight {name} is given as {seen}, the schedule expects {layout.dtype_of(name)}")
            for _, a, e, k, offset in mine.tolist():
                if quantised:
                    packed = quant_layout.pack(matrix.take(slice(a, e)))
                    data[offset : offset + packed.nbytes] = packed
                    continue
                k_padded = -(-k // LANES) * LANES
                tile = data[offset : offset + (e - a) * k_padded * dtype.itemsize].view(dtype).reshape(e - a, k_padded)
                tile[:, :k] = matrix[a:e]
        return Tape(layout, data)


def interleave_pairs(rows: Matrix, heads: int) -> Matrix:
    """Reorder head rows from halves (i, i + d/2) to adjacent pairs (2i, 2i + 1): [heads * d, k] -> the same shape."""
    n, k = rows.shape
    d = n // heads
    return np.ascontiguousarray(rows.reshape(heads, 2, d // 2, k).swapaxes(1, 2)).reshape(n, k)


def logical_weight(graph: ModelGraph, get: Callable[[str], Matrix], name: str) -> Matrix:
    """A weight buffer of the schedule, [rows, k] in the row order of ops.py, from the checkpoint's matrices by canonical name."""
    layer, _, part = name.rpartition(".")
    first, dash, last = part.partition("-")
    if dash:  # columns of a matrix that ranks share
        return get(layer)[:, int(first) : int(last)]
    if name == "head":
        return get("embed" if graph.tied_head else "head")
    if part == "qkv":
        q = interleave_pairs(get(f"{layer}.q"), graph.n_heads)
        k = interleave_pairs(get(f"{layer}.k"), graph.n_kv_heads)
        return np.concatenate([q, k, get(f"{layer}.v")])
    if part == "gate_up":
        gate, up = get(f"{layer}.gate"), get(f"{layer}.up")
        return np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])
    return get(name)
