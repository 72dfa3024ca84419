"""Certified tables -> what the device VM runs: task records with resolved addresses, waits, signals and tiles.

The structures mirror ``vm/device.h``.  Everything the kernels take for granted (dimensions that are compile-time constants, row
strides, dtypes, sizes of buffers) is checked here against the tables, so that no task can touch a byte outside its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.quant import QuantFormat
from amk_core.quant.format import BY_NAME
from amk_core.schedule import contracts, ops, pack
from amk_core.schedule.ir import DTYPE_BITS, Kind, Schedule
from amk_core.schedule.lower import attn_block
from amk_core.vm import quant_tape
from amk_core.vm.plan import PAIR_SLOT_UNITS, UNIT_BYTES, Dims, ProgramError, slot_records, unit_bytes, units_of

INLINE_WAITS, INLINE_SIGNALS = 4, 2
TASK = np.dtype(
    {
        "names": ["op", "id", "n_waits", "n_signals", "par", "at", "waits", "signals", "more_waits", "more_signals", "weight"],
        "formats": ["<i4", "<i4", "<i4", "<i4", ("<i4", 24), ("<u8", 8), ("<i4", (4, 3)), ("<i4", (2, 2)), "<i4", "<i4", "<u8"],
        "offsets": [0, 4, 8, 12, 16, 112, 176, 224, 240, 244, 248],
        "itemsize": 256,
    }
)
TILE = np.dtype([("offset", "<u8"), ("units", "<u4"), ("block", "<u4")])
LAUNCH = np.dtype(
    [(name, "<u8") for name in
     ("tasks", "queue_off", "tiles", "tile_off", "waits", "signals", "tape", "counters", "halt", "variables", "fault",
      "ring", "trace", "anchors", "bound_ns")]
    + [(name, "<i4") for name in ("steps", "n_variables", "n_tasks", "reserved")]
)  # fmt: skip
FAULT = np.dtype(
    [(n, "<i4") for n in ("kind", "task", "op", "queue", "position", "counter", "step", "row")] + [("has", "<i8"), ("needs", "<i8")]
)
COUNTER_STRIDE = 16
STRIDE_WORD = 22
OFFSET_BITS = 48  # of a tile; see TileUnits of vm/ring.cuh
N_BUFFER_PARAMS: Mapping[str, int] = {
    "embed": 3, "qkv": 8, "attn": 5, "attn_combine": 2, "o_proj": 4, "o_proj_combine": 3, "gate_up": 4, "down_proj": 4,
    "lm_head": 5, "sample": 8, "o_part": 3, "down_part": 3, "o_sum": 3, "down_sum": 3, "rank_qkv": 8, "rank_attn": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """Arrays that go to the device as they are."""

    tasks: npt.NDArray[Any]  # TASK, in queue order
    queue_off: npt.NDArray[np.int32]
    tiles: npt.NDArray[Any]  # TILE, in queue order
    tile_off: npt.NDArray[np.int32]
    streams: npt.NDArray[np.bool_]  # in queue order: the task has a tile in ``tiles``
    more_waits: npt.NDArray[np.int32]  # [n, 3]
    more_signals: npt.NDArray[np.int32]  # [n, 2]
    n_counters: int


def unit_shape(fmt: QuantFormat | None) -> int:
    """What stands above the offset of a tile where some weights are quantised: a unit's bytes over 16, and its loads of codes."""
    return unit_bytes(fmt) // 16 | (quant_tape.loads(fmt) << 8 if fmt else 0)


def block_units(k: Any, fmt: QuantFormat | None, slot_units: int) -> Any:
    """Units of the blocks that a tile of rows of K is cut into: whole row groups that fill a slot, or one longer row group.

    Where one slot holds pairs of row groups of quantised weights, these are whole pairs, or one longer pair.
    """
    slot = slot_records(slot_units, fmt)
    group = units_of(k) if fmt is None else quant_tape.records_of(k) * (2 if slot_units == PAIR_SLOT_UNITS else 1)
    return np.where(group <= slot, slot // np.minimum(group, slot) * group, group)


def tile_span(tiles: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First byte and end of tiles on the tape."""
    offset = (tiles["offset"] & np.uint64((1 << OFFSET_BITS) - 1)).astype(np.int64)
    sixteenths = (tiles["offset"] >> np.uint64(OFFSET_BITS) & np.uint64(255)).astype(np.int64)
    return offset, offset + tiles["units"].astype(np.int64) * np.where(sixteenths > 0, sixteenths * 16, UNIT_BYTES)


def check_tasks(s: Schedule, d: Dims) -> None:
    """Every task fits the compiled kernels: buffers exist, have the dtype, the row stride and at least the rows the body touches.

    Raises:
        ProgramError: names the first task that does not.
    """
    c = s.columns
    n_buf = len(s.buffers)
    cols = np.array([b.cols for b in s.buffers] + [0], np.int64)
    rows = np.array([b.rows for b in s.buffers] + [0], np.int64)
    bits = np.array([DTYPE_BITS[b.dtype] for b in s.buffers] + [0], np.int64)
    kind = np.array([int(b.kind) for b in s.buffers] + [-1], np.int64)
    dtype = np.array([b.dtype for b in s.buffers] + [""])
    tagged = np.array([b.tagged for b in s.buffers] + [False], bool)
    block = attn_block("exact" if d.exact else "fast", d.head_dim)
    pair = 2 if d.tagged else 1  # values of an element of packed rows
    steps, wide = s.steps, 32 if d.exact else 16
    batch = d.rows // d.chunk

    def need(ids: Any, bad: Any, what: str) -> None:
        where = np.flatnonzero(np.broadcast_to(np.asarray(bad, bool), (len(ids),)))
        if len(where):
            task = int(ids[where[0]])
            raise ProgramError(f"task {task} ({ops.BY_CODE[int(c.task_op[task])].name}): {what}")

    for spec in ops.SPECS[1:]:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, spec)
        if not len(ids):
            continue
        name = spec.name

        def buf(
            param: str, width: int, least_rows: Any, col: Any, *, bits_: int = 32, writes: bool = False, ids: Any = ids, p: Any = p,
            optional: bool = False, handed: bool = False,
        ) -> None:  # fmt: skip
            b, bits_ = p[param], 64 if handed and d.tagged else bits_
            need(ids, (b < (-1 if optional else 0)) | (b >= n_buf), f"buffer parameter {param} does not exist")
            there = b >= 0
            need(ids, there & (cols[b] != col), f"rows of {param} have {cols[b][0]} columns, the kernel expects {np.max(col)}")
            need(ids, there & (rows[b] < least_rows), f"{param} has {rows[b][0]} rows, the task needs {np.max(least_rows)}")
            need(ids, there & (bits[b] != bits_), f"{param} has elements of {bits[b][0]} bits, required are {bits_}")
            need(ids, there & (tagged[b] != (handed and d.tagged)), f"{param} is tagged where plain values are required, or plain")
            need(ids, there & (kind[b] == int(Kind.WEIGHT)), f"{param} is a weight; weights are read from the tape")
            if writes:
                need(ids, there & ((kind[b] == int(Kind.TABLE)) | (kind[b] == int(Kind.INPUT))), f"{param} is read-only")

        def tile(lo: Any, hi: Any, k: int, total: Any, fmt: QuantFormat | None = d.layers, ids: Any = ids, p: Any = p) -> None:
            w = p["w"]
            need(ids, (w < 0) | (w >= n_buf), "the weight does not exist")
            stored = str(fmt) if fmt else ("f32" if d.exact else "bf16")
            need(
                ids,
                (kind[w] != int(Kind.WEIGHT)) | (cols[w] != k) | (dtype[w] != stored),
                f"the weight is not [rows, {k}] of {stored}",
            )
            need(
                ids,
                (lo < 0) | (lo >= hi) | (hi > rows[w]) | (hi > total) | (lo % 2 != 0),
                "rows of the tile are out of range or odd",
            )
            need(ids, (hi % 2 != 0) & (hi < total), "a tile boundary cuts a pair of rows")

        if "packed" in p:
            need(ids, p["packed"] != int(d.tagged), "packed goes with tagged values")
        if "pos_var" in p:
            need(ids, (p["pos_var"] < 0) | (p["pos_var"] + 2 * batch > len(s.variable_names())), "launch variables are missing")
        if "ctx" in p:
            need(ids, (p["ctx"] < 1) | (p["ctx"] * batch >= 2**31), "ctx is out of range")
        if "block" in p:
            enough = p["splits"] * p["blocks"] * block >= p["ctx"]
            need(
                ids,
                (p["block"] != block) | (p["splits"] < 1) | (p["blocks"] < 1) | ~enough,
                "attention blocks do not cover ctx",
            )
            width = p["splits"] * p["blocks"] * (d.head_dim + 2)
        if "seq" in p:
            need(ids, (p["seq"] < 0) | (p["seq"] >= batch) | (p["kv_head"] < 0) | (p["kv_head"] >= d.kv_heads), "seq or kv_head")
        if name == "embed":
            need(ids, (p["col0"] < 0) | (p["col0"] >= p["col1"]) | (p["col1"] > d.hidden), "columns are out of range")
            need(ids, (p["feed"] < 0) | (p["feed"] > 1) | ((p["feed"] == 0) & (d.chunk != 1)), "feed")
            b = p["token"]
            need(ids, (b < 0) | (b >= n_buf), "buffer parameter token does not exist")
            least = np.where(p["feed"] == 0, 1, steps * d.chunk)
            need(ids, (rows[b] < batch) | (cols[b] < least) | (bits[b] != 32), "the token buffer is too small")
            buf("table", wide, p["vocab"], d.hidden, bits_=wide)
            buf("out", 32, d.rows, d.hidden, writes=True, handed=True)
        elif name == "qkv":
            tile(p["row0"], p["row1"], d.hidden, d.q_size + 2 * d.kv_size)
            need(ids, p["row1"] % 2 != 0, "a tile boundary cuts a pair of rows")
            buf("h", 32, d.rows, d.hidden, handed=True)
            buf("norm_w", 32, 1, d.hidden)
            for t in ("cos", "sin"):
                buf(t, 32, p["ctx"], d.head_dim // 2)
            buf("q", 32, d.rows, d.q_size + (2 * d.kv_size if d.tagged else 0), writes=True, handed=True)
            for t in ("k", "v"):
                buf(t, wide, batch * p["ctx"], d.kv_size, bits_=wide, writes=True)
        elif name == "attn":
            need(ids, (p["split"] < 0) | (p["split"] >= p["splits"]), "split is out of range")
            buf("q", 32, d.rows, d.q_size + (2 * d.kv_size if d.tagged else 0), handed=True)
            for t in ("k", "v"):
                buf(t, wide, batch * p["ctx"], d.kv_size, bits_=wide)
            buf("part", 32, d.rows * d.heads, width, writes=True, handed=True)
            need(ids, (p["out"] >= 0) != ((p["split"] == 0) & d.tagged), "the task of split 0 merges tagged partials, and no other")
            buf("out", 32, d.rows, d.q_size // pair, writes=True, optional=True, handed=True)
        elif name == "attn_combine":
            buf("part", 32, d.rows * d.heads, width)
            buf("out", 32, d.rows, d.q_size, writes=True)
        elif name in ("o_proj", "o_proj_combine", "down_proj"):
            k = d.inter if name == "down_proj" else d.q_size
            need(ids, p["k"] != k, f"k is not {k}")
            tile(p["row0"], p["row1"], k, d.hidden)
            if name == "o_proj_combine":
                buf("part", 32, d.rows * d.heads, width)
            else:
                buf("x", 32, d.rows, k // pair, handed=True)
                buf("out", 32, d.rows, d.hidden, writes=True, handed=True)
                need(ids, (p["h"] != p["out"]) != d.tagged, "a tagged residual stream is written anew, a plain one in place")
            buf("h", 32, d.rows, d.hidden, writes=True, handed=True)
        elif name == "gate_up":
            tile(2 * p["row0"], 2 * p["row1"], d.hidden, 2 * d.inter)
            buf("h", 32, d.rows, d.hidden, handed=True)
            buf("norm_w", 32, 1, d.hidden)
            buf("act", 32, d.rows, d.inter // pair, writes=True, handed=True)
        elif name == "lm_head":
            tile(p["row0"], p["row1"], d.hidden, d.vocab, d.head)
            need(ids, (p["ring"] < 0) | (p["ring"] > 1), "ring")
            buf("h", 32, d.rows, d.hidden, handed=True)
            buf("norm_w", 32, 1, d.hidden)
            buf("logits", 32, np.where(p["ring"] == 1, steps * d.rows, d.rows), d.vocab, writes=True)
            a = p["amax"]
            need(ids, (a < -1) | (a >= n_buf), "buffer parameter amax does not exist")
            need(
                ids,
                (a >= 0) & ((rows[a] < d.rows) | (bits[a] != 32) | (p["tile"] < 0) | (2 * p["tile"] + 2 > cols[a])),
                "amax is too small",
            )
        elif name == "sample":
            need(ids, d.chunk != 1, "the sampler takes one token a sequence")
            buf("logits", 32, d.rows, d.vocab)
            buf("amax", 32, d.rows, 2 * p["tiles"], optional=True)
            buf("control", 32, d.rows, contracts.CONTROL_WORDS)
            b = p["stop_ids"]
            need(ids, (p["n_stop_ids"] > 0) & ((b < 0) | (b >= n_buf)), "buffer parameter stop_ids does not exist")
            need(
                ids,
                (p["n_stop_ids"] > 0) & ((rows[b] < d.rows) | (cols[b] < p["n_stop_ids"]) | (bits[b] != 32)),
                "stop_ids is too small",
            )
            buf("token", 32, d.rows, 1, writes=True)
            buf("out", 32, steps, d.rows, writes=True)
            buf("stop", 32, steps, 1, writes=True)
            buf("done", 32, d.rows, 1, writes=True)


def build_program(
    s: Schedule, dims: Dims, slot_units: int, address: Callable[[int], int], weight: npt.NDArray[np.int64], tape_address: int
) -> Program:
    """Task records with addresses.

    Args:
        slot_units: units of a slot of the ring (fast mode).
        address: buffer id -> device address.
        weight: exact mode: [n_tasks] byte offset of each tile in the row-major tape; fast mode: [n_tasks, 2] offset and units.
        tape_address: device address of the tape.
    """
    check_tasks(s, dims)
    return assemble(s, dims, slot_units, address, weight, tape_address)


def assemble(
    s: Schedule, dims: Dims, slot_units: int, address: Callable[[int], int], weight: npt.NDArray[np.int64], tape_address: int,
    keep_wait: npt.NDArray[np.bool_] | None = None, keep_signal: npt.NDArray[np.bool_] | None = None,
) -> Program:  # fmt: skip
    """:func:`build_program` of tasks that were checked; of the waits and signals of the columns only those that are kept."""
    c = s.columns
    n = s.n_tasks
    tasks = np.zeros(n, TASK)
    tasks["op"], tasks["id"] = c.task_op, np.arange(n)
    per_step = np.array([k.per_step for k in s.counters] + [0], np.int64)
    cache: dict[int, int] = {}

    def where(b: int) -> int:
        if b not in cache:
            cache[b] = address(b)
        return cache[b]

    for spec in ops.SPECS[1:]:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, spec)
        if not len(ids):
            continue
        tasks["par"][ids[:, None], np.arange(len(spec.params))[None]] = np.stack([p[k] for k in spec.params], axis=1)
        for i, param in enumerate(spec.params[: N_BUFFER_PARAMS[spec.name]]):
            if param != "w":
                tasks["at"][ids, i] = [where(int(b)) if b >= 0 else 0 for b in p[param]]
        stride = {"embed": "token", "sample": "stop_ids", "lm_head": "amax"}.get(spec.name)
        if stride:
            tasks["par"][ids, STRIDE_WORD] = [s.buffers[int(b)].cols if b >= 0 else 0 for b in p[stride]]
    wait = np.stack([c.wait_counter, per_step[c.wait_counter], c.wait_t + c.wait_e * per_step[c.wait_counter]], axis=1).astype(
        np.int64
    )
    signal = np.stack([c.sig_counter, c.sig_amount], axis=1).astype(np.int64)
    kept_wait = np.ones(len(wait), bool) if keep_wait is None else keep_wait
    kept_signal = np.ones(len(signal), bool) if keep_signal is None else keep_signal
    more_waits, more_signals = [np.zeros((1, 3), np.int64)], [np.zeros((1, 2), np.int64)]
    at_w = at_s = 1
    for t in range(n):
        ws, gs = slice(c.wait_off[t], c.wait_off[t + 1]), slice(c.sig_off[t], c.sig_off[t + 1])
        w, g = wait[ws][kept_wait[ws]], signal[gs][kept_signal[gs]]
        tasks["n_waits"][t], tasks["n_signals"][t] = len(w), len(g)
        tasks["waits"][t, : min(len(w), INLINE_WAITS)] = w[:INLINE_WAITS]
        tasks["signals"][t, : min(len(g), INLINE_SIGNALS)] = g[:INLINE_SIGNALS]
        if len(w) > INLINE_WAITS:
            tasks["more_waits"][t] = at_w
            more_waits.append(w[INLINE_WAITS:])
            at_w += len(w) - INLINE_WAITS
        if len(g) > INLINE_SIGNALS:
            tasks["more_signals"][t] = at_s
            more_signals.append(g[INLINE_SIGNALS:])
            at_s += len(g) - INLINE_SIGNALS
    order = c.queue_task
    tiles = np.zeros(0, TILE)
    tile_off = np.zeros(s.n_queues + 1, np.int32)
    has = np.zeros(n, bool)
    if dims.exact:
        tasks["weight"] = np.where(weight >= 0, weight + tape_address, 0)
    else:
        has = weight[order, 0] >= 0
        tiles = np.zeros(int(has.sum()), TILE)
        tiles["offset"], tiles["units"] = weight[order[has], 0], weight[order[has], 1]
        buffer, _, _, k = pack.tiles(s)[order[has]].T
        for b in np.unique(buffer):
            fmt, mine = BY_NAME.get(s.buffers[int(b)].dtype), buffer == b
            tiles["block"][mine] = block_units(k[mine], fmt, slot_units)
            if dims.layers or dims.head:
                tiles["offset"][mine] |= np.uint64(unit_shape(fmt) << OFFSET_BITS)
        tile_off = np.concatenate([[0], np.cumsum(has)])[c.queue_off].astype(np.int32)
    return Program(
        tasks[order], c.queue_off.astype(np.int32), tiles, tile_off, has, np.concatenate(more_waits).astype(np.int32),
        np.concatenate(more_signals).astype(np.int32), len(s.counters),
    )  # fmt: skip
