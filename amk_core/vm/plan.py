"""How a program is compiled for a card: the model's dimensions as constants, and what shared memory is used for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from amk_core.quant import QuantFormat
from amk_core.quant.format import BY_NAME
from amk_core.schedule import ops, pack
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import attn_block
from amk_core.vm import quant_tape

EXACT_WARPS, FAST_WARPS = 16, 8  # warps that execute tasks; in fast mode K is split over them, so they belong to the plan
UNIT_BYTES, UNIT_K = 512, 32
STATIC_BYTES = 3072  # shared memory the kernel declares itself, rounded up
MAX_FAST_ROWS, MAX_QUANT_ROWS = 64, 16  # activation rows of a step, with bf16 and with quantised weights
PIECE_UNITS = 64  # kPieceUnits of vm/ring.cuh
WIDE_BUDGET = 200_000  # bytes of shared memory that hold activations of many rows beside a ring of weights
MAX_INTEGER_K = 1 << 17  # products of two signed bytes that 32 bits add up
SAMPLER_BYTES = 16384
PAIR_SLOT_UNITS, PAIR_SLOTS = 64, 4  # a slot holds a piece of both row groups; fewer slots hide too little
PAIR_FLIGHT = (2, 1, 1)  # slots under way on a card with bulk copies
MARKED_FROM_ROWS = 2  # rows of a step from which builds hand marked values on by default, where that can be; 0: none does
LONG_FROM_ROWS = 3  # the same where normalised rows are longer than a piece, on a card with WIDE_BUDGET of shared memory


class ProgramError(ValueError):
    """The tables ask for something that the device VM does not run; the message names the task."""


@dataclass(frozen=True, slots=True)
class Dims:
    """What is a compile-time constant of a build."""

    exact: bool
    rows: int
    chunk: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    fused_combine: bool
    tagged: bool = False
    layers: QuantFormat | None = None  # format of the layers' matrices; None: bf16, in exact mode f32
    head: QuantFormat | None = None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @staticmethod
    def of(s: Schedule) -> Dims:
        """Read from the parameters of the tasks; they must all agree.

        Raises:
            ProgramError: an op is missing, opaque tasks, or tasks of different models in one schedule.
        """
        c = s.columns
        if (c.task_op == 0).any():
            raise ProgramError(f"task {int(np.flatnonzero(c.task_op == 0)[0])} is opaque; a VM runs real ops only")
        if (c.task_op >= ops.CODES["o_part"]).any():
            raise ProgramError("partial sums of ranks run on amk_core.vm.rank_vm.RankVM alone, by that name")
        _, down = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME["down_proj"])
        inter = {int(x) for x in np.unique(down["k"])} or {UNIT_K}  # a prefill of one layer has no MLP
        names = ("m", "chunk", "hidden", "n_heads", "n_kv", "head_dim", "vocab")
        one = agreed(s, ops.SPECS[1:], names, {"intermediate size": inter})
        fused = bool((c.task_op == ops.CODES["o_proj_combine"]).any())
        if fused and (c.task_op == ops.CODES["o_proj"]).any():
            raise ProgramError("some output projections merge attention partials and some do not; a device program has one kind")
        k = next((b for b in s.buffers if b.kind is Kind.KV), None)
        if k is None or k.dtype not in ("f32", "bf16"):
            raise ProgramError(f"keys are stored as {k.dtype if k else 'nothing'}, required is f32 (exact) or bf16 (fast)")
        return Dims(k.dtype == "f32", one["m"], one["chunk"], one["hidden"], one["intermediate size"], one["n_heads"], one["n_kv"],
                    one["head_dim"], one["vocab"], fused, any(b.tagged for b in s.buffers), *_formats(s))  # fmt: skip


def agreed(
    s: Schedule, specs: Iterable[ops.OpSpec], names: Iterable[str], more: Mapping[str, set[int]] = MappingProxyType({})
) -> dict[str, int]:
    """Parameters by name, on whose value all tasks of the ``specs`` agree, and ``more`` that must have one value.

    Raises:
        ProgramError: a parameter with no value, or with several.
    """
    c = s.columns
    seen: dict[str, set[int]] = {name: set() for name in names}
    for spec in specs:
        _, p = ops.params_of(c.task_op, c.par_off, c.par, spec)
        for name in seen.keys() & p.keys():
            seen[name] |= {int(x) for x in np.unique(p[name])}
    for name, values in {**seen, **more}.items():
        if len(values) != 1:
            raise ProgramError(f"the tasks name {sorted(values) or 'no'} {name}; a device program has exactly one")
    return {name: next(iter(values)) for name, values in {**seen, **more}.items()}


def constants(d: Dims, warps: int, trace: bool) -> dict[str, int]:
    """The macros that every build has."""
    return {
        "AMK_ROWS": d.rows, "AMK_CHUNK": d.chunk, "AMK_HIDDEN": d.hidden, "AMK_INTER": d.inter, "AMK_HEADS": d.heads,
        "AMK_KV_HEADS": d.kv_heads, "AMK_HEAD_DIM": d.head_dim, "AMK_VOCAB": d.vocab, "AMK_EXACT": int(d.exact),
        "AMK_WARPS": warps, "AMK_TRACE": int(trace), "AMK_FUSED_COMBINE": int(d.fused_combine),
        "AMK_TAGGED": int(d.tagged), "AMK_BLOCK": attn_block("exact" if d.exact else "fast", d.head_dim),
    }  # fmt: skip


def _formats(s: Schedule) -> tuple[QuantFormat | None, QuantFormat | None]:
    """Formats of the layers' matrices and of the head; of a schedule without a head those of the layers for both.

    Raises:
        ProgramError: the matrices of the layers differ in format.
    """
    used = pack.tiles(s)[:, 0]
    head = s.columns.task_op == ops.CODES["lm_head"]
    seen = [{s.buffers[int(b)].dtype for b in np.unique(used[which & (used >= 0)])} for which in (~head, head)]
    for what, dtypes in zip(("the layers' matrices are", "the head's tiles are"), seen, strict=True):
        if len(dtypes) > 1:
            raise ProgramError(f"{what} of {', '.join(sorted(dtypes))}; a device program has one format of them")
    layers, of_head = (BY_NAME.get(next(iter(x), "")) for x in seen)
    return layers, of_head if seen[1] else layers


@dataclass(frozen=True, slots=True)
class Build:
    """How a program is compiled for an architecture.

    Attributes:
        defines: macros.
        shared_bytes: dynamic shared memory of a CTA.
        threads: threads of a CTA.
    """

    defines: Mapping[str, int]
    shared_bytes: int
    threads: int


def units_of(k: Any) -> Any:
    """Units of 32 values in a row of K."""
    return (k + 31) // 32


def warp_units(k: int, fmt: QuantFormat | None) -> int:
    """Units of 32 values of K that the busiest warp has; warps take whole records of quantised weights."""
    if fmt is None:
        return -(-int(units_of(k)) // FAST_WARPS)
    return -(-int(quant_tape.records_of(k)) // FAST_WARPS) * quant_tape.RECORD_UNITS


def staged_bytes(units: int, fmt: QuantFormat | None) -> int:
    """Shared memory of one row's activations of so many units of K: bf16, or the bytes of kernels/weights.cuh."""
    return units * 64 if fmt is None else units // quant_tape.RECORD_UNITS * quant_tape.stage_bytes(fmt)


def piece_units(fmt: QuantFormat | None) -> int:
    """Units of 32 values of K in a piece of a long row group."""
    return PIECE_UNITS if fmt is None else quant_tape.PIECE_UNITS // quant_tape.loads(fmt) * quant_tape.RECORD_UNITS


def slot_records(slot_units: int, fmt: QuantFormat | None) -> int:
    """Units of the tape, of quantised weights records, that a slot of the ring holds."""
    return slot_units if fmt is None else slot_units // quant_tape.loads(fmt)


def unit_bytes(fmt: QuantFormat | None) -> int:
    return UNIT_BYTES if fmt is None else quant_tape.record_bytes(fmt)


def markable(d: Dims) -> bool:
    """Whether a marker may stand in for tags (kernels/marked.cuh): several rows of whole units, normalised ones not too long."""
    return d.tagged and ops.markable(d.rows, d.hidden, d.q_size, d.inter) and not (d.layers or d.head)


def plan_build(
    dims: Dims, arch: str, smem_bytes: int, *, trace: bool = False, flight: tuple[int, int, int] | None = None,
    pairs: bool = True, pair_slots: int = PAIR_SLOTS, marked: bool | None = None,
) -> Build:  # fmt: skip
    """Choose what shared memory is used for.

    Args:
        arch: ``sm_80`` ...
        smem_bytes: shared memory a block may opt in to.
        flight: slots of weights under way while the ring is empty, while something waits in it, and while that is so and the task
            warps wait for activations; default by architecture.
        pairs: one row of activations meets quantised weights two row groups at a time (kernels/quant_pairs.cuh), where shared
            memory holds ``pair_slots`` slots of them; else row group by row group, as several rows do.
        marked: values of several rows carry no tags; default: from MARKED_FROM_ROWS on, where that can be.

    Raises:
        ProgramError: the model does not fit the kernels or the card.
    """
    budget = smem_bytes - STATIC_BYTES
    d = dims
    long = bool(units_of(d.hidden) > PIECE_UNITS)
    if marked is None:
        quicker = not long or (d.rows >= LONG_FROM_ROWS and budget >= WIDE_BUDGET)
        marked = 0 < MARKED_FROM_ROWS <= d.rows and quicker and markable(d)
    elif marked and not markable(d):
        raise ProgramError(
            f"marked values serve tagged decoding of 2 to 16 rows with bf16 weights, whole units of {UNIT_K} values and at most "
            f"{ops.MARKED_VALUES} values in a normalised row; leave marked out"
        )
    integer = any(f is not None and f.activations for f in (d.layers, d.head))
    longest = max(d.hidden, d.inter, d.q_size)
    if integer and longest > MAX_INTEGER_K:
        raise ProgramError(
            f"rows of {longest} values with activations of 8 bits, whose integer sums take at most {MAX_INTEGER_K}; "
            "name the format without -a8"
        )
    warps = EXACT_WARPS if d.exact else FAST_WARPS
    defines = constants(d, warps, trace)
    if d.layers or d.head:  # other builds keep their machine code
        defines |= {"AMK_QUANT": 1, "AMK_LAYER_FORMAT": quant_tape.number(d.layers), "AMK_HEAD_FORMAT": quant_tape.number(d.head)}
    if d.hidden % 2 or d.head_dim % 2:
        raise ProgramError(f"hidden size {d.hidden} and head dimension {d.head_dim} must be even for the device VM")
    if d.tagged and (d.exact or d.chunk > 1 or d.rows > 16 or d.heads > 16 * d.kv_heads or d.hidden % 4 or d.inter % 4):
        raise ProgramError("tagged values serve fast decoding, four values at a time; lower with handoff='counter'")
    if d.exact:
        row = -(-max(d.hidden, d.inter, d.q_size) // 32) * 32 * 4 + 1024
        work = min(max(4 * row, SAMPLER_BYTES), budget // 1024 * 1024)
        if row > work:
            raise ProgramError(f"a row of {row} bytes does not fit {work} bytes of shared memory on {arch}")
        defines |= {"AMK_SLOTS": 1, "AMK_SLOT_UNITS": 16, "AMK_FLIGHT_HIGH": 1, "AMK_FLIGHT_MID": 1, "AMK_FLIGHT_LOW": 1}
        if d.layers or d.head:
            defines |= {"AMK_SLOT_BYTES": 16 * UNIT_BYTES}  # there is no ring
        return Build({**defines, "AMK_WORK_BYTES": work, "AMK_STAGE_BYTES": 0}, work, warps * 32)
    formats = (d.layers, d.head)
    most = MAX_QUANT_ROWS if any(formats) else MAX_FAST_ROWS
    if d.rows > most:
        kind = " of quantised weights" if any(formats) else ""
        raise ProgramError(
            f"{d.rows} rows a step (batch x chunk), the fast device path{kind} takes at most {most}; use a smaller chunk"
        )
    if d.head_dim % 32:
        raise ProgramError(f"head dimension {d.head_dim}, the fast device path takes multiples of 32; use mode='exact'")

    def per_warp(k: int) -> int:  # units of K
        return max(warp_units(k, d.layers), warp_units(k, d.head) if k == d.hidden else 0)

    def staged(k: int) -> int:
        each = [staged_bytes(warps * warp_units(k, f), f) for f in (formats if k == d.hidden else formats[:1])]
        return d.rows * max(each)

    cap = 72 * 1024 if budget >= WIDE_BUDGET else 24 * 1024
    wide = d.chunk > 16 and d.rows <= 32  # two tiles of rows: a short ring is enough where all weights serve twice the rows
    if (wide or integer) and budget >= WIDE_BUDGET:  # bytes of rows that come piece by piece are fetched twice
        cap = 128 * 1024

    def kept(k: int) -> int:  # bytes of the activations that are in shared memory at once; 0: none
        units = piece_units(d.layers)
        piece = d.rows * staged_bytes(units, d.layers)  # rows of activations longer than a piece may come piece by piece
        by_piece = 1 < d.rows <= (32 if wide else 16) and k == d.inter and units_of(k) > units
        if any(formats):  # integers are staged, or there are none
            return piece if by_piece and staged(k) > cap else staged(k)
        if by_piece and (piece <= cap or d.tagged):
            return piece
        return staged(k) if staged(k) <= cap or d.tagged else 0

    fixed = 2 * ((32 if d.rows > 8 else 16) * 8 + 4) * warps * 4 + d.rows * warps * 4  # two reduction buffers, sums of squares
    if integer:  # kByteFloats of kernels/activations.cuh
        fixed += (d.rows * warps + -(-d.rows // 4) * 4 + 256) * 4
    wanted = d.chunk * d.heads // d.kv_heads
    rows = 16 if wanted > 8 else 8  # query rows of a tile
    attention = (
        (2 * rows * (d.head_dim + 8) + 2 * d.head_dim) * 2 + rows * warps * 8 + warps * min(wanted, rows) * (d.head_dim + 4) * 4
    )  # fmt: skip

    def shared_memory(in_pairs: bool) -> tuple[int, int]:
        """Bytes of staged activations, and of all that is not the ring."""

        def beside(k: int) -> int:  # marked values go past shared memory, but for those of long rows that registers do not hold
            sides, held = (2, 9) if d.rows > 8 else (1, 8)  # of rows 0 to 8, and 8 to 16; kLongHeld of kernels/activations.cuh
            two = long and PIECE_UNITS < units_of(k) <= 2 * PIECE_UNITS
            return (sides * warp_units(k, None) - held) * warps * 512 if two else 0

        def at_once(k: int) -> int:
            units = piece_units(d.layers)
            if in_pairs and d.layers and k != d.hidden and units_of(k) > units:
                return staged_bytes(units, d.layers)
            return kept(k)

        stage = max((beside if marked else at_once)(k) for k in (d.hidden, d.q_size, d.inter))
        if d.fused_combine and staged(d.q_size) > stage:  # merged partials exist nowhere else
            stage = staged(d.q_size)
            if fixed + stage + 2 * 16 * UNIT_BYTES + 1024 > budget:
                raise ProgramError(
                    f"{d.rows} rows of merged attention do not fit {arch}; lower with fuse_combine=False, or take fewer rows a step"
                )
        per_lane = -(-per_warp(d.hidden) // 4)  # 16-byte loads a lane needs for the norm weights
        norm = 0 if in_pairs and all(formats) else per_lane * warps * 32 * 16  # pairs have the weights of the norm in registers
        tables = norm + 512  # and angles, fetched before the waits
        hidden_stage = stage if marked else (staged(d.hidden) if staged(d.hidden) <= stage else 0)
        return stage, -(-max(fixed + stage, fixed + hidden_stage + tables, attention, SAMPLER_BYTES) // 1024) * 1024

    in_pairs = pairs and any(formats) and d.rows == 1 and not integer
    for units in (PAIR_SLOT_UNITS,) * in_pairs + (32, 16) if any(formats) else (64, 32, 16):
        stage, work = shared_memory(in_pairs and units == PAIR_SLOT_UNITS)
        slot_bytes = max(slot_records(units, f) * unit_bytes(f) for f in formats)
        slots = min((budget - work) // slot_bytes, 8 * 64 // units)
        if slots >= (pair_slots if in_pairs and units == PAIR_SLOT_UNITS else 4) or (units == 16 and slots >= 2):
            break
    else:
        raise ProgramError(
            f"{arch} has {smem_bytes} bytes of shared memory a block; the fast path needs {work + 2 * slot_bytes}, of which "
            f"{d.rows} rows a step take {stage}; take fewer (batch x chunk)"
        )
    in_pairs = in_pairs and units == PAIR_SLOT_UNITS
    per = max(1, 64 // units)  # slots that make 32 KiB
    if flight is None:
        bulk = arch in ("sm_90", "sm_90a")  # its memory latency grows with what is under way
        # what is polled for many rows shares L2 with the stream; of 16 long ones so much that its slots come late
        few = d.tagged and not (marked and (4 < d.rows <= 8 if long else d.rows > 2))
        flight = ((3 * per, 2 * per, 2 * per) if few else (2 * per, per, per)) if bulk else (slots, slots, slots)
        if bulk and in_pairs:
            flight = PAIR_FLIGHT
    high, mid, low = (min(f, slots) for f in flight)
    defines |= {
        "AMK_SLOTS": slots, "AMK_SLOT_UNITS": units, "AMK_FLIGHT_HIGH": high, "AMK_FLIGHT_MID": mid, "AMK_FLIGHT_LOW": low,
        "AMK_WORK_BYTES": work, "AMK_STAGE_BYTES": stage,
    }  # fmt: skip
    if any(formats):
        defines |= {"AMK_SLOT_BYTES": slot_bytes, "AMK_PAIRS": int(in_pairs)}
    if marked:
        defines |= {"AMK_MARKED": 1}
    return Build(defines, work + slots * slot_bytes, (warps + 1) * 32)
