"""The Schedule IR: what runs, in columns.

A :class:`Schedule` is a set of in-order queues of tasks with declared footprints, monotone counters and waits.  Everything is
held in integer arrays ("columns"): the validator, the certificate checker, the packer and both VMs read the very same arrays,
so what is validated is what runs.  ``Schedule.from_json`` / ``to_json`` speak the interchange format ``amk.schedule/1``.

The meaning of every field is defined in ``docs/schedule_ir.md``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import FORMATS

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

FORMAT = "amk.schedule/1"


class ScheduleFormatError(ValueError):
    """The interchange text cannot be read as a schedule (rule REF): unknown field, wrong type, integer out of range."""


class Kind(enum.IntEnum):
    ACTIVATION = 0
    WEIGHT = 1
    TABLE = 2
    KV = 3
    INPUT = 4
    OUTPUT = 5
    TOKEN = 6


class Lifetime(enum.IntEnum):
    STEP = 0
    PERSISTENT = 1
    HOST = 2


# Storage bits per element.  Tagged buffers use an 8-byte {value, tag} element: dtype "tag64".
DTYPE_BITS: Mapping[str, int] = {
    "f64": 64, "i64": 64, "u64": 64, "tag64": 64,
    "f32": 32, "i32": 32, "u32": 32, "b32": 32,
    "bf16": 16, "f16": 16, "i16": 16, "u16": 16,
    "i8": 8, "u8": 8, "i4": 4, "u4": 4,
    **{f.name: f.bits for f in FORMATS},  # quantised weights; group and kind of the format go with the name
}  # fmt: skip
DTYPES: tuple[str, ...] = tuple(DTYPE_BITS)

# Bits of the access flags column.
WRITE, MAYBE, ASYNC, PREV_EPOCH = 1, 2, 4, 8
# Bits of the task fences column and their interchange names.
FENCES: Mapping[str, int] = {"proxy.async": 1, "bulk.wait_group": 2, "bulk.wait_group.read": 4}


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory pool; ``bytes`` is None for an unbounded one.  ``per_queue`` pools (shared memory) exist once per queue.

    ``cluster``: the pool is cut into equal parts, part k for queues [k * cluster, (k + 1) * cluster) alone.  A card keeps a copy
    of its cluster's part in the shared memory of each CTA; a write goes to all copies.
    """

    id: str
    bytes: int | None = None
    per_queue: bool = False
    cluster: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row-major matrix inside a pool; ``offset`` in bytes, ``shape`` in elements (leading dimensions fold into rows)."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    pool: str = "global"
    offset: int = 0
    lifetime: Lifetime = Lifetime.STEP
    tagged: bool = False

    @property
    def rows(self) -> int:
        rows = 1
        for n in self.shape[:-1]:
            rows *= n
        return rows

    @property
    def cols(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def bytes(self) -> int:
        return (self.rows * self.cols * DTYPE_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    per_step: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A launch variable: ``count`` integers, each anywhere in [min, max], fixed during a launch."""

    name: str
    count: int
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class TargetLimits:
    sms: int
    smem_bytes: int
    arch: str


@dataclass(frozen=True, slots=True)
class Affine:
    """A half-open range that moves with the step i and with launch variables.

    start(i)  = add + var + stride * i, taken modulo ``mod`` where that is given
    length(i) = length + length_var + length_stride * i
    """

    add: int = 0
    var: int = -1  # flattened variable index, -1: none
    stride: int = 0
    mod: int = 0  # 0: none
    length: int = 1
    length_var: int = -1
    length_stride: int = 0

    def row(self) -> tuple[int, int, int, int, int, int, int]:
        return (self.add, self.var, self.stride, self.mod, self.length, self.length_var, self.length_stride)


AFFINE_FIELDS = 7


@dataclass(slots=True)
class Columns:
    """The integer columns.  CSR offsets have one entry more than there are rows.

    Access columns: ``acc_r0/r1/c0/c1`` are the half-open plain ranges; where ``acc_raff``/``acc_caff`` is not -1 it is a row
    of ``affine`` that replaces them.  ``acc_label`` is the value identity that rule FLOW compares (contracts.py); -1 for opaque.
    """

    task_op: I32
    task_fences: I32
    par_off: I64
    par: I32
    wait_off: I64
    wait_counter: I32
    wait_t: I64
    wait_e: I32
    sig_off: I64
    sig_counter: I32
    sig_amount: I64
    acc_off: I64
    acc_buffer: I32
    acc_flags: I32
    acc_label: I32
    acc_r0: I64
    acc_r1: I64
    acc_c0: I64
    acc_c1: I64
    acc_raff: I32
    acc_caff: I32
    affine: I64  # [n, AFFINE_FIELDS]
    queue_off: I64
    queue_task: I32
    init_buffer: I32
    init_r0: I64
    init_r1: I64
    init_c0: I64
    init_c1: I64
    init_raff: I32
    init_caff: I32


COLUMN_DTYPES: Mapping[str, Any] = {
    name: (np.int32 if kind == "I32" else np.int64) for name, kind in Columns.__annotations__.items()
}


@dataclass(slots=True)
class Schedule:
    """A schedule for up to ``steps`` steps.  Build it with :meth:`from_json` or with ``amk_core.schedule.lower``."""

    steps: int
    pools: tuple[Pool, ...]
    buffers: tuple[Buffer, ...]
    counters: tuple[Counter, ...]
    columns: Columns
    variables: tuple[Variable, ...] = ()
    target: TargetLimits | None = None
    stop: tuple[int, int] | None = None  # (buffer, task): the task that writes stop[i] once in step i
    meta: Mapping[str, int | str] = field(default_factory=dict)  # numeric plan and launch geometry, see lower.py
    defects: tuple[str, ...] = ()  # what the reader saw and could not represent; ``validate`` reports each as rule REF

    @property
    def n_tasks(self) -> int:
        return len(self.columns.task_op)

    @property
    def n_queues(self) -> int:
        return len(self.columns.queue_off) - 1

    def queue(self, q: int) -> list[int]:
        """Task ids of queue q in execution order."""
        c = self.columns
        return [int(t) for t in c.queue_task[c.queue_off[q] : c.queue_off[q + 1]]]

    def pool_bytes(self, pool: str) -> int:
        """Size of a pool by id, 0 for an unbounded one; KeyError where there is none."""
        return {p.id: p.bytes for p in self.pools}[pool] or 0

    def cluster_bytes(self, pool: Pool) -> int:
        """Bytes that each cluster has of a pool cut into parts; 0 where the parts are not whole."""
        parts = -(-self.n_queues // pool.cluster) if pool.cluster > 0 else 0
        size = pool.bytes or 0
        return size // parts if parts and size > 0 and size % parts == 0 and not pool.per_queue else 0

    def variable_names(self) -> list[str]:
        """Flattened names, ``p0[0]``, ``p0[1]`` ..., in the order of flattened variable indices."""
        return [f"{v.name}[{i}]" for v in self.variables for i in range(v.count)]

    # ---- interchange -----------------------------------------------------------------------------------------------
    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        """Read the interchange object.

        Raises:
            ScheduleFormatError: for anything that is not the documented format.  References that do not exist and numbers
                that make no sense are kept and reported by ``validate`` (rule REF).
        """
        from amk_core.schedule import reader

        return reader.read(data)

    @classmethod
    def loads(cls, text: str | bytes) -> Schedule:
        """Parse JSON text (duplicate keys, NaN and nesting beyond the format are refused)."""
        from amk_core.schedule import reader

        return reader.read(reader.parse_json(text))

    def to_json(self) -> dict[str, Any]:
        """The interchange object; ``from_json(to_json(s))`` has the same tables as ``s``."""
        from amk_core.schedule import writer

        return writer.write(self)


def columns_from(parts: Mapping[str, Sequence[int] | npt.NDArray[Any]]) -> Columns:
    """Build :class:`Columns` from any integer sequences (int64 values that do not fit an int32 column raise OverflowError)."""
    out: dict[str, Any] = {}
    for name, dtype in COLUMN_DTYPES.items():
        arr = np.asarray(parts[name], dtype=np.int64)
        if dtype is np.int32 and arr.size and (arr.min() < -(2**31) or arr.max() >= 2**31):
            raise OverflowError(f"column {name}: a value does not fit 32 bits")
        out[name] = np.ascontiguousarray(arr.astype(dtype))
    out["affine"] = out["affine"].reshape(-1, AFFINE_FIELDS)
    return Columns(**out)
