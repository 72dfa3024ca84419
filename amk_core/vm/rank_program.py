"""Certified tables of ranks -> what the device VM for ranks runs: constants, checks, and records with mailboxes and barriers.

:mod:`amk_core.vm.rank_mail` says how values travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule import contracts, ops, pack
from amk_core.schedule.ir import DTYPE_BITS, Kind, Pool, Schedule
from amk_core.schedule.ops import MAX_PARTS
from amk_core.vm.plan import (
    FAST_WARPS,
    SAMPLER_BYTES,
    STATIC_BYTES,
    UNIT_BYTES,
    UNIT_K,
    Build,
    Dims,
    ProgramError,
    agreed,
    constants,
    units_of,
)
from amk_core.vm.program import Program, assemble
from amk_core.vm.rank_mail import PART_FLOATS, SUMS, cluster_pool, part_words, plan_mail, task_name

ELEMENT_WORD, ARRIVE_WORD, BYTES_WORD, SEND_WORD = 19, 20, 21, 23  # of vm/rank_maps.h
SLOT_UNITS, MAX_UNITS, MAX_SLOTS = 40, 64, 12  # of a slot of the ring about; a row of K lies in one slot
MORE_WORDS = (19, 22)  # of rank_qkv, which has neither elements nor a stride
HEADS_AT_ONCE = 4  # of attention
AHEAD_LOADS = 12  # of 16 bytes, that a lane has of a tile's weights before the activations come: 48 registers
OPS = ("embed", "rank_qkv", "rank_attn", "o_part", "o_sum", "gate_up", "down_part", "down_sum", "lm_head", "sample")
_MAILBOXES: Mapping[str, tuple[str, ...]] = {
    "embed": ("out",), "rank_qkv": ("h", "q"), "rank_attn": ("q", "attn"), "o_part": ("attn",), "o_sum": ("h", "out"),
    "gate_up": ("h", "act"), "down_part": ("x",), "down_sum": ("h", "out"), "lm_head": ("h",),
}  # fmt: skip


def is_ranked(s: Schedule) -> bool:
    """The schedule shares its model between ranks."""
    return bool((s.columns.task_op >= ops.CODES["o_part"]).any())


def rank_dims(s: Schedule) -> Dims:
    """The constants of a build for ranks, from the tasks, which must agree.

    Raises:
        ProgramError: other ops, a mode or a shape that the kernels for ranks do not run.
    """
    c = s.columns
    for t in np.flatnonzero(~np.isin(c.task_op, [ops.CODES[name] for name in OPS])):
        raise ProgramError(f"{task_name(s, int(t))}: the device VM for ranks runs {', '.join(OPS)}")
    one = agreed(s, [ops.BY_NAME[name] for name in OPS], ("m", "hidden", "n_heads", "n_kv", "head_dim", "vocab"))
    _, down = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME["down_part"])
    inter = int(down["k1"].max(initial=0)) or UNIT_K  # a prompt's program of one layer has no MLP
    kv = {b.dtype for b in s.buffers if b.kind is Kind.KV}
    used = {s.buffers[int(b)].dtype for b in np.unique(pack.tiles(s)[:, 0]) if b >= 0}
    if kv != {"bf16"} or used != {"bf16"}:
        raise ProgramError(f"keys are {sorted(kv)}, weights {sorted(used)}; on a card ranks run in fast mode, with bf16 weights")
    d = one["head_dim"]
    if one["m"] != 1 or d % 32 or d > 256 or d & (d - 1) or one["hidden"] % 8:
        raise ProgramError(
            f"{one['m']} rows, heads of {d} values, {one['hidden']} hidden ones; required are one row, heads of 32, 64, "
            "128 or 256 and a multiple of 8; lower without ranks"
        )
    return Dims(False, 1, 1, one["hidden"], inter, one["n_heads"], one["n_kv"], d, one["vocab"], False, tagged=True)


def check_rank_tasks(s: Schedule, d: Dims, pool: Pool) -> None:
    """Every task fits the compiled kernels.

    Raises:
        ProgramError: names the first task that does not.
    """
    c, n_buf, part = s.columns, len(s.buffers), s.cluster_bytes(pool)
    cols = np.array([b.cols for b in s.buffers] + [0], np.int64)
    rows = np.array([b.rows for b in s.buffers] + [0], np.int64)
    bits = np.array([DTYPE_BITS[b.dtype] for b in s.buffers] + [0], np.int64)
    kind = np.array([int(b.kind) for b in s.buffers] + [-1], np.int64)
    tagged = np.array([b.tagged for b in s.buffers] + [False], bool)
    home = np.array([b.offset // part if b.pool == pool.id else -1 for b in s.buffers] + [-1], np.int64)  # cluster of a mailbox
    cluster = np.zeros(s.n_tasks, np.int64)
    cluster[c.queue_task] = np.repeat(np.arange(s.n_queues), np.diff(c.queue_off)) // pool.cluster

    for name in OPS:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
        if not len(ids):
            continue

        def need(bad: Any, what: str, ids: Any = ids) -> None:
            where = np.flatnonzero(np.broadcast_to(np.asarray(bad, bool), (len(ids),)))
            if len(where):
                raise ProgramError(f"{task_name(s, int(ids[where[0]]))}: {what}")

        def buf(
            param: str, width: Any, least_rows: Any, *, bits_: int = 32, writes: bool = False, tag: bool = False, name: str = name,
            p: Any = p, ids: Any = ids,
        ) -> None:  # fmt: skip
            b = p[param]
            need((b < 0) | (b >= n_buf), f"buffer parameter {param} does not exist")
            need((kind[b] == int(Kind.WEIGHT)) | (bits[b] != bits_) | (tagged[b] != tag), f"{param} is no buffer of {bits_} bits")
            need(
                (rows[b] < least_rows) | (cols[b] != width),
                f"{param} is {rows[b][0]} by {cols[b][0]}, the kernel expects {np.max(width)}",
            )
            own = param in _MAILBOXES.get(name, ())
            need(
                home[b] != np.where(own, cluster[ids], -1),
                f"{param} is {'not in the memory of its cluster' if own else 'a mailbox'}",
            )
            if writes:
                need((kind[b] == int(Kind.TABLE)) | (kind[b] == int(Kind.INPUT)), f"{param} is read-only")

        def tile(lo: Any, hi: Any, k: Any, even: int = 2, p: Any = p) -> None:
            w = p["w"]
            need((w < 0) | (w >= n_buf) | (kind[w] != int(Kind.WEIGHT)) | (cols[w] != k), "the weight is not one of the tile's K")
            cut = (lo % even != 0) | ((hi % even != 0) & (hi < rows[w]))
            need((lo < 0) | (lo >= hi) | (hi > rows[w]) | cut, "rows of the tile are out of range or odd")
            need((k % 8 != 0) | (units_of(k) > MAX_UNITS), f"K of a tile is no multiple of 8, or more than {MAX_UNITS * 32}")

        if "pos_var" in p:
            need((p["pos_var"] < 0) | (p["pos_var"] + 2 > len(s.variable_names())), "launch variables are missing")
        if "ctx" in p:
            need((p["ctx"] < 1), "ctx is out of range")
        if name in ("rank_qkv", "gate_up", "lm_head"):
            buf("h", d.hidden, 1)
            buf("norm_w", d.hidden, 1)
            twice = 2 if name == "gate_up" else 1
            tile(twice * p["row0"], twice * p["row1"], np.full(len(ids), d.hidden))
        if name in ("rank_qkv", "rank_attn"):
            buf("q", d.q_size + 2 * d.kv_size, 1)
            for t in ("k", "v"):
                buf(t, d.kv_size, p["ctx"], bits_=16)
        if name == "embed":
            cut = (p["col0"] < 0) | (p["col0"] >= p["col1"]) | (p["col1"] > d.hidden)
            need(cut | (p["feed"] < 0) | (p["feed"] > 1), "columns or feed")
            b = p["token"]
            few = cols[b] < np.where(p["feed"] == 0, 1, s.steps)  # the sampler's token, or those of a prompt
            need((b < 0) | (b >= n_buf) | (bits[b] != 32) | few, "the token buffer is too small")
            buf("table", d.hidden, p["vocab"], bits_=16)
            buf("out", d.hidden, 1, writes=True)
        elif name == "rank_qkv":
            need((p["row1"] % 2 != 0) | (p["row1"] > d.q_size + 2 * d.kv_size), "a tile boundary cuts a pair of rows")
            for t in ("cos", "sin"):
                buf(t, d.head_dim // 2, p["ctx"])
        elif name == "rank_attn":
            need(p["pieces"] % 2 != 0, "an odd number of pieces does not lie on 16 bytes")
            need((p["pieces"] < 1) | (p["piece"] < 0) | (p["piece"] >= p["pieces"]), "piece is out of range")
            need((p["head"] < 0) | (p["heads"] < 1) | (p["head"] + p["heads"] > d.heads), "heads are out of range")
            need((p["kv_head"] < 0) | (p["kv_head"] >= d.kv_heads), "kv_head is out of range")
            buf("attn", p["pieces"] * (d.head_dim + 2), p["head"] + p["heads"], writes=True)
        elif name in ("o_part", "down_part"):
            tile(p["row0"], p["row1"], p["k1"] - p["k0"], 1)
            need((p["k0"] < 0) | (p["k0"] % 8 != 0), "K of the part does not begin on 8 values")
            buf("out", d.hidden, p["part"] + 1, bits_=64, tag=True)
            if name == "o_part":
                need((p["k0"] % d.head_dim != 0) | (p["k1"] % d.head_dim != 0), "a part of the output projection is of whole heads")
                buf("attn", p["pieces"] * (d.head_dim + 2), p["k1"] // d.head_dim)
            else:
                buf("x", cols[p["x"]], 1)
                need(p["k1"] > cols[p["x"]], "the part is longer than its activations")
        elif name in ("o_sum", "down_sum"):
            need((p["h"] != p["out"]), "the residual stream of a rank is written in place")
            need((p["n"] < 1) | (p["n"] > MAX_PARTS), f"a sum has 1 to {MAX_PARTS} parts")
            need((p["col0"] < 0) | (p["col0"] >= p["col1"]) | (p["col1"] > d.hidden), "columns are out of range")
            buf("parts", d.hidden, p["n"], bits_=64, tag=True)
            buf("h", d.hidden, 1, writes=True)
            need(rows[p["parts"]] != p["n"], "a sum takes all parts of its buffer")
        elif name == "gate_up":
            need(p["packed"] != 0, "activations of a rank are floats")
            buf("act", cols[p["act"]], 1, writes=True)
            need(p["row1"] > cols[p["act"]], "the tile is longer than its activations")
        elif name == "lm_head":
            need((p["ring"] < 0) | (p["ring"] > 1), "ring")
            buf("logits", d.vocab, np.where(p["ring"] == 1, s.steps, 1), writes=True)
            a = p["amax"]
            need(
                (a >= n_buf) | ((a >= 0) & ((bits[a] != 32) | (p["tile"] < 0) | (2 * p["tile"] + 2 > cols[a]))), "amax is too small"
            )
        elif name == "sample":
            buf("logits", d.vocab, 1)
            need((p["amax"] >= n_buf) | ((p["amax"] >= 0) & (cols[p["amax"]] < 2 * p["tiles"])), "amax is too small")
            buf("control", contracts.CONTROL_WORDS, 1)
            b = p["stop_ids"]
            need((p["n_stop_ids"] > 0) & ((b < 0) | (cols[b] < p["n_stop_ids"]) | (bits[b] != 32)), "stop_ids is too small")
            for t in ("token", "done"):
                buf(t, 1, 1, writes=True)
            buf("out", 1, s.steps, writes=True)
            buf("stop", 1, s.steps, writes=True)


def plan_ranks(
    s: Schedule, dims: Dims, arch: str, smem_bytes: int, *, trace: bool = False, flight: tuple[int, int, int] | None = None
) -> Build:
    """What shared memory is used for: work, ring, mailboxes and their barriers; ``flight`` as of ``plan_build``.

    Raises:
        ProgramError: an architecture without clusters, or a model that does not fit.
    """
    if int(arch.removeprefix("sm_").rstrip("af")) < 90:
        raise ProgramError(f"ranks are clusters of CTAs, which sm_90 and later have; {arch} has none: lower without ranks")
    d, pool = dims, cluster_pool(s)
    barriers, mail = plan_mail(s, pool).barriers, s.cluster_bytes(pool)
    tile = pack.tiles(s)
    tile = tile[tile[:, 0] >= 0]
    units, rows = int(units_of(tile[:, 3]).max()), int((tile[:, 2] - tile[:, 1]).max())
    rows = max(rows, joined_rows(s))
    elements = -(-widest_sum(s) // PART_FLOATS)
    sums = FAST_WARPS * 4 * (1 + -(-rows // 8) * 8)
    attention = FAST_WARPS * min(d.heads // d.kv_heads, HEADS_AT_ONCE) * (d.head_dim + 2) * 4
    work = -(-max(sums, attention, SAMPLER_BYTES) // 1024) * 1024
    taken = work + mail + 8 * barriers + STATIC_BYTES
    per_slot = slot_units(d, units)
    slots = min((smem_bytes - taken) // (per_slot * UNIT_BYTES), MAX_SLOTS)
    if units > MAX_UNITS or slots < 2:
        raise ProgramError(
            f"mailboxes of {mail} bytes and {work} of work leave {max(slots, 0)} slots of weights on {arch}, rows have "
            f"{units * 32} values; required are 2 slots and rows of at most {MAX_UNITS * 32}"
        )
    high, mid, low = (min(f, slots) for f in flight or (4, 3, 3))
    defines = {
        **constants(d, FAST_WARPS, trace),
        "AMK_SLOTS": slots, "AMK_SLOT_UNITS": per_slot, "AMK_FLIGHT_HIGH": high, "AMK_FLIGHT_MID": mid, "AMK_FLIGHT_LOW": low,
        "AMK_WORK_BYTES": work, "AMK_STAGE_BYTES": 0, "AMK_RANK_CLUSTER": pool.cluster, "AMK_RANK_MAIL_BYTES": mail,
        "AMK_RANK_BARRIERS": max(barriers, 1), "AMK_RANK_SUM_PASSES": max(1, -(-elements // (FAST_WARPS * 2))),
        "AMK_RANK_O_UNITS": warp_units(s, "o_part"), "AMK_RANK_DOWN_UNITS": warp_units(s, "down_part"),
        "AMK_RANK_AHEAD": ahead_loads(tile[:, 3], per_slot, slots),
    }  # fmt: skip
    shared = work + slots * per_slot * UNIT_BYTES + mail + 8 * max(barriers, 1)
    return Build(defines, shared, (FAST_WARPS + 1) * 32)


def joined_rows(s: Schedule) -> int:
    """Most rows, each tile's a multiple of 8, that :func:`join_rows` may make one product of."""
    _, p = ops.params_of(s.columns.task_op, s.columns.par_off, s.columns.par, ops.BY_NAME["rank_qkv"])
    most = np.sort(-(-(p["row1"] - p["row0"]) // 8) * 8)[-1 - len(MORE_WORDS) :]
    return int(most.sum())


def slot_units(d: Dims, units: int) -> int:
    """Units of a slot of the ring, where the longest row has ``units``: of rows of the hidden size whole pairs of row groups, which
    are multiplied together."""
    pair = 2 * int(units_of(np.array([d.hidden]))[0])
    return max(max(1, SLOT_UNITS // pair) * pair, units) if pair <= MAX_UNITS else MAX_UNITS


def ahead_loads(k: npt.NDArray[np.int64], per_slot: int, slots: int) -> int:
    """AHEAD_LOADS where the slots that they come from are in the ring at once, for tiles of rows of ``k`` values; else 0."""
    units = np.unique(units_of(k))
    pairs = AHEAD_LOADS // (2 * -(-units // FAST_WARPS))  # of row groups
    return AHEAD_LOADS if (-(-pairs // -(-(per_slot // units) // 2)) <= slots).all() else 0


def warp_units(s: Schedule, name: str) -> int:
    """Units of K that the busiest warp has of the tiles of an op."""
    _, p = ops.params_of(s.columns.task_op, s.columns.par_off, s.columns.par, ops.BY_NAME[name])
    return max(1, -(-int(units_of(p["k1"] - p["k0"]).max(initial=1)) // FAST_WARPS))


def widest_sum(s: Schedule) -> int:
    """Most columns that a task adds the parts of."""
    c, most = s.columns, 0
    for name in SUMS:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
        if len(ids):
            most = max(most, int((p["col1"] - p["col0"]).max()))
    return most


def build_rank_program(
    s: Schedule, dims: Dims, address: Callable[[int], int], weight: npt.NDArray[np.int64], tape_address: int
) -> Program:
    """Task records with addresses; of a mailbox, its offset in the part.

    Args:
        address: buffer id -> device address, of buffers outside the pool of clusters.
        weight: [n_tasks, 2] offset and units of each tile.

    Raises:
        ProgramError: a task does not fit the kernels.
    """
    pool = cluster_pool(s)
    check_rank_tasks(s, dims, pool)
    mail, part = plan_mail(s, pool), s.cluster_bytes(pool)

    def where(b: int) -> int:
        buffer = s.buffers[b]
        return buffer.offset % part if buffer.pool == pool.id else address(b)

    longest = int(units_of(pack.tiles(s)[:, 3]).max())
    program = assemble(s, dims, slot_units(dims, longest), where, weight, tape_address, mail.keep_wait, mail.keep_signal)
    ids, par = program.tasks["id"], program.tasks["par"]
    par[:, ELEMENT_WORD] = part_words(s)[ids]
    par[:, ARRIVE_WORD], par[:, BYTES_WORD] = mail.arrive[ids], mail.expects[ids]
    par[:, SEND_WORD] = (mail.barrier << 16 | mail.send)[ids]
    join_rows(program)
    return program


def join_rows(program: Program) -> None:
    """The record of a ``rank_qkv`` does up to two tasks right behind it on its queue too, which wait for nothing and signal nothing
    but what it signals: they are one product over the same row."""
    spec = ops.BY_NAME["rank_qkv"]
    rows = [spec.params.index(name) for name in ("row0", "row1")]
    same = [i for i in range(len(spec.params)) if i not in rows]
    tasks = program.tasks
    for first, end in itertools.pairwise(program.queue_off.tolist()):
        at = first
        while at < end:
            n = 1
            while tasks["op"][at] == spec.code and n <= len(MORE_WORDS) and at + n < end:
                mine, other = tasks[at], tasks[at + n]
                alike = (
                    other["op"] == spec.code
                    and (other["par"][same] == mine["par"][same]).all()
                    and (other["at"] == mine["at"]).all()
                )
                alone = other["n_waits"] == other["n_signals"] == mine["n_signals"] == 0 and other["par"][ARRIVE_WORD] < 0
                row0, row1 = other["par"][rows].tolist()
                if not (alike and alone and other["par"][SEND_WORD] == mine["par"][SEND_WORD] and row1 < 1 << 15):
                    break
                mine["par"][MORE_WORDS[n - 1]] = row0 | (row1 - row0) << 16
                n += 1
            at += n


def tasks_of(record: Any) -> int:
    """Tasks of its queue that a record does."""
    more = int(np.count_nonzero(record["par"][list(MORE_WORDS)])) if record["op"] == ops.CODES["rank_qkv"] else 0
    return 1 + more
