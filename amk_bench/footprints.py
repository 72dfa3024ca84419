"""Does a task touch only what its contract declares?  One task alone, on poisoned and canaried memory, on either VM.

Writes are checked by canaries: every byte of memory holds something random, and only declared bytes may change.  Reads are checked
by poison: all bytes that the contract does not let the task read become 0xFF, which is NaN in every float format and -1 in
integers, and what the task certainly writes must come out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.schedule import footprint, ops
from amk_core.schedule.ir import DTYPE_BITS, MAYBE, WRITE, Buffer, Kind, Schedule
from amk_core.vm import marked

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
POISON = 0xFF


class Bench(Protocol):
    """A program whose memory can be read and written between tasks.

    Memory is told apart by name: each pool, ``table:NAME`` for every table outside the pools, and ``tape``.
    """

    schedule: Schedule
    marked: bool  # values of several rows carry no tags and lie in halves by the parity of the step

    def read(self) -> dict[str, Bytes]: ...

    def write(self, memory: Mapping[str, Bytes]) -> None: ...

    def tile(self, task: int) -> tuple[int, int]:
        """Bytes [start, end) of the tape that the task streams; (0, 0) where it streams none."""
        ...

    def run(self, task: int, variables: Sequence[int], steps: int) -> None:
        """The bodies of steps 0 to ``steps`` of one task, without waits and signals."""
        ...


@dataclass(frozen=True, slots=True)
class Masks:
    """Bytes by memory name: may be read, may be written, are certainly written."""

    reads: dict[str, Mask]
    writes: dict[str, Mask]
    certain: dict[str, Mask]


class Contracts:
    """The derived footprints of a schedule's tasks."""

    def __init__(self, s: Schedule) -> None:
        self.s = s
        self._f = footprint.derive(s.columns.task_op, s.columns.par_off, s.columns.par)

    def _range(self, affine: Any, variables: Sequence[int], step: int) -> tuple[int, int]:
        add, var, stride, mod, length, length_var, length_stride = (int(x) for x in affine)
        start = add + (variables[var] if var >= 0 else 0) + stride * step
        n = length + (variables[length_var] if length_var >= 0 else 0) + length_stride * step
        start = start % mod if mod else start
        return start, start + max(n, 0)

    def masks(self, bench: Bench, task: int, variables: Sequence[int], steps: int, memory: Mapping[str, Bytes]) -> Masks:
        """The union over the steps."""
        f, out = self._f, Masks(*({k: np.zeros(len(v), bool) for k, v in memory.items()} for _ in range(3)))
        for i in np.flatnonzero(f.task == task):
            buffer, flags = self.s.buffers[int(f.plain["buffer"][i])], int(f.plain["flags"][i])
            if buffer.kind is Kind.WEIGHT:
                start, end = bench.tile(task)
                out.reads["tape"][start:end] = True
                continue
            name, offset = (f"table:{buffer.name}", 0) if f"table:{buffer.name}" in memory else (buffer.pool, buffer.offset)
            size = DTYPE_BITS[buffer.dtype] // 8
            grid = np.zeros((buffer.rows, buffer.cols), bool)
            for step in range(steps):
                rows = (int(f.plain["r0"][i]), int(f.plain["r1"][i]))
                cols = (int(f.plain["c0"][i]), int(f.plain["c1"][i]))
                rows = self._range(f.row_affine[i], variables, step) if f.has_row_affine[i] else rows
                cols = self._range(f.col_affine[i], variables, step) if f.has_col_affine[i] else cols
                grid[rows[0] : rows[1], cols[0] : cols[1]] = True
            span = slice(offset, offset + buffer.bytes)
            touched = np.repeat(grid, size)
            if bench.marked and marked.is_marked(buffer):
                touched = _of_step_0(buffer, grid, writes=bool(flags & WRITE))
            for mask in (out.writes, *(() if flags & MAYBE else (out.certain,))) if flags & WRITE else (out.reads,):
                mask[name][span] |= touched
        return out


def _of_step_0(b: Buffer, grid: Mask, *, writes: bool) -> Mask:
    """The bytes of elements of marked values in step 0; who writes one puts the marker where the value of step 1 will be."""
    words = np.where(grid, np.uint32(0xFFFFFFFF), np.uint32(0))
    return marked.filled(b, words, words if writes else np.zeros_like(words)).astype(np.bool_)


def fill(s: Schedule, memory: Mapping[str, Bytes], rng: np.random.Generator, without_tags: bool = False) -> None:
    """Plausible values in every buffer; the bytes between buffers stay as they are.  Weights and tables are left alone."""
    for b in s.buffers:
        if b.kind in (Kind.WEIGHT, Kind.TABLE) or b.pool not in memory:
            continue
        raw = memory[b.pool][b.offset : b.offset + b.bytes]
        shape = (b.rows, b.cols)
        values: Any
        if b.name in ("token", "prompt"):
            values = rng.integers(0, 200, shape).astype(np.int32)
        elif b.name == "stop_ids":
            values = np.full(shape, -1, np.int32)
        elif b.dtype in ("i32", "b32") and b.name != "amax":
            values = np.zeros(shape, np.int32)
        else:
            values = rng.standard_normal(shape).astype(np.float32)
            if b.name.endswith("part"):  # {maximum, sum, values}: sums are positive
                values = np.abs(values) + np.float32(0.5)
            elif b.name == "amax":  # {maximum, index}
                values[:, 1::2] = rng.integers(0, 200, values[:, 1::2].shape).astype(np.int32).view(np.float32)
        if b.tagged:  # {value, tag of step 0}; values that are pairs of bf16 are floats whose low half is one too
            low = rng.standard_normal(shape).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
            pairs = b.name.endswith(marked.PAIRS)
            bits = values.view(np.uint32) & np.uint32(0xFFFF0000) | low if pairs else values.view(np.uint32)
            if without_tags and marked.is_marked(b):  # what a step later will be overwritten is anything
                values = marked.filled(b, bits, bits[::-1])
            else:
                values = np.stack([bits, np.ones(shape, np.uint32)], axis=-1)
        stored = values.astype(ml_dtypes.bfloat16) if b.dtype == "bf16" else values
        raw[:] = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)


def violation(bench: Bench, contracts: Contracts, task: int, variables: Sequence[int], steps: int, seed: int) -> str | None:
    """What a task does beyond its contract, or None.  Memory is left changed; tables and tape are put back."""
    s, rng = bench.schedule, np.random.default_rng(seed)
    steps = 1 if any(b.tagged for b in s.buffers) else steps  # tagged memory holds the values of one step
    whole = bench.read()
    before = {k: v.copy() for k, v in whole.items()}
    for pool in (p.id for p in s.pools if p.id in before):
        before[pool][:] = rng.integers(0, 256, len(before[pool]))
    fill(s, before, rng, bench.marked)
    m = contracts.masks(bench, task, variables, steps, before)
    bench.write(before)
    bench.run(task, variables, steps)
    first = bench.read()
    outside = {k: np.where(m.reads[k], v, np.uint8(POISON)) for k, v in before.items()}
    bench.write(outside)
    bench.run(task, variables, steps)
    second = bench.read()
    bench.write({k: v for k, v in whole.items() if k == "tape" or k.startswith("table:")})
    about = f"task {task} ({ops.BY_CODE[int(s.columns.task_op[task])].name})"
    for name in before:
        for base, after in ((before[name], first[name]), (outside[name], second[name])):
            stray = np.flatnonzero((after != base) & ~m.writes[name])
            if stray.size:
                return f"{about} changed byte {stray[0]} of {name} and {stray.size - 1} more, which its contract does not declare"
        differs = np.flatnonzero((first[name] != second[name]) & m.certain[name])
        if differs.size:
            return (
                f"{about}: byte {differs[0]} of {name} and {differs.size - 1} more depend on bytes outside the declared reads, "
                "or are not written though the contract says so"
            )
        alone = (first[name] == before[name]) & (second[name] == outside[name])
        loose = np.flatnonzero((first[name] != second[name]) & ~alone & m.writes[name])
        if loose.size:
            return f"{about}: byte {loose[0]} of {name}, a write that may happen, depends on bytes outside the declared reads"
    if all(np.array_equal(first[k], before[k]) for k in before) and any(v.any() for v in m.certain.values()):
        return f"{about} wrote nothing"
    return None


def chosen_tasks(s: Schedule, each: int = 3) -> list[int]:
    """Up to ``each`` tasks of every op, spread over the schedule, the first and the last among them."""
    out = []
    for code in np.unique(s.columns.task_op):
        ids = np.flatnonzero(s.columns.task_op == code)
        out += ids[np.unique(np.linspace(0, len(ids) - 1, each).round().astype(int))].tolist()
    return sorted(int(t) for t in out)


class CpuBench:
    """A program of the CPU VM on one bench; ``tables`` are the arrays it was bound to."""

    marked = False

    def __init__(self, vm: Any, s: Schedule, tables: Mapping[str, Any], tape: Bytes, task_weight: Any) -> None:
        self.vm, self.schedule, self._tape, self._where = vm, s, tape, task_weight
        pools = {p.id: vm.pool(p.id) for p in s.pools if s.pool_bytes(p.id) and p.id != "weights"}
        arrays = {f"table:{k}": v.view(np.uint8).reshape(-1) for k, v in tables.items()}
        self._memory: dict[str, Bytes] = {**pools, **arrays, "tape": tape}

    def read(self) -> dict[str, Bytes]:
        return {k: v.copy() for k, v in self._memory.items()}

    def write(self, memory: Mapping[str, Bytes]) -> None:
        for k, v in memory.items():
            self._memory[k][:] = v

    def tile(self, task: int) -> tuple[int, int]:
        start = int(self._where[task])
        if start < 0:
            return 0, 0
        from amk_core.schedule.pack import LANES, tiles

        _, a, e, k = tiles(self.schedule)[task].tolist()
        size = 4 if str(self.schedule.meta["mode"]) == "exact" else 2
        return start, start + (e - a) * -(-k // LANES) * LANES * size

    def run(self, task: int, variables: Sequence[int], steps: int) -> None:
        for step in range(steps):
            self.vm.run_task(task, step, list(variables))


class CudaBench:
    """A program of the CUDA VM on one bench."""

    def __init__(self, vm: Any) -> None:
        self.vm, self.schedule, self.marked = vm, vm.schedule, vm.marked
        names = {i: b.name for i, b in enumerate(vm.schedule.buffers)}
        self._memory = {**vm.memory.pools, **{f"table:{names[i]}": m for i, m in vm.memory.own.items()}, "tape": vm.tape}

    def read(self) -> dict[str, Bytes]:
        out = {}
        for name, m in self._memory.items():
            out[name] = np.empty(m.size, np.uint8)
            m.download(out[name])
        return out

    def write(self, memory: Mapping[str, Bytes]) -> None:
        for name, a in memory.items():
            self._memory[name].upload(a)

    def tile(self, task: int) -> tuple[int, int]:
        return self.vm.tile(task)  # type: ignore[no-any-return]

    def run(self, task: int, variables: Sequence[int], steps: int) -> None:
        self.vm.run_task(task, list(variables), steps)
