"""The operations a task may perform, and what each one touches.

This is the one table of ops: name, code, parameters and *contract*.  A contract derives the footprint of a task from its
parameters alone; the validator rejects a declared footprint that differs, the conformance tests check that the kernels touch
nothing else.  Contracts are vectorised: they see the parameters of all tasks of one op as columns.

Labels.  Every write of a real op carries the identity of the value it produces, ``label(op, layer)``; every read carries the
identity it needs.  Rule FLOW compares them byte by byte with the last must-ordered writer.

Layouts.  ``m = batch * chunk`` rows a step; row r is token ``r % chunk`` of sequence ``r // chunk``.  Query and key heads are
stored pair-interleaved: element pair (2i, 2i+1) of a head is (i, i + head_dim/2) of the HuggingFace layout, so a rotary pair is
adjacent and a tile of any even size is closed under rotation.  Gate and up rows alternate: row 2j is gate j, row 2j+1 is up j.

Ranks.  A rank's memory holds a row for all queries, keys and values of the step, of which it fills its own (``rank_qkv``).
``rank_attn`` takes every ``pieces``-th position for some heads and leaves {maximum, sum, values} in its piece of their rows;
``o_part`` merges the pieces.  Parts: a rank multiplies [k0, k1) of K with columns of the weight that have a buffer of their own,
and leaves its sums in rows [part * m, (part + 1) * m); ``o_sum`` and ``down_sum`` add the n parts of an element to the residual
stream, in a fixed tree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from amk_core.schedule.ir import Schedule

Ints = npt.NDArray[np.int64]
WRITE, MAYBE = 1, 2  # the same bits as ir.WRITE and ir.MAYBE
MAX_PARTS = 16  # partial sums of an element: places of the tree in which they are added
MAX_BATCH = 256  # sequences of one launch; a contract lists the cache rows of each


@dataclass(frozen=True, slots=True)
class Access:
    """One access of every task of an op; each field is a scalar or a column.  ``rows``/``cols`` are (start, stop), or an
    affine 7-tuple (see ir.Affine)."""

    buffer: Any
    rows: Sequence[Any]
    cols: Sequence[Any]
    label: Any = -1
    write: bool = False
    maybe: Any = 0
    present: Any = True


Contract = Callable[[Mapping[str, Ints]], list[Access]]


@dataclass(frozen=True, slots=True)
class OpSpec:
    name: str
    code: int
    params: tuple[str, ...]
    floats: frozenset[str]
    contract: Contract
    weight: str = ""  # canonical name of the weight the op streams, with {layer} and other parameters; "" for none

    def encode(self, params: Mapping[str, Any]) -> list[int]:
        """Parameters as int32 words in table order (floats as their bit pattern)."""
        out = []
        for name in self.params:
            x = params[name]
            if isinstance(x, bool) or not isinstance(x, int | float) or (name not in self.floats and not isinstance(x, int)):
                raise TypeError(f"{name} is {str(x)[:40]!r}, a number is required")
            if name in self.floats:
                out.append(int(struct.unpack("<i", struct.pack("<f", x))[0]))
            elif not -(2**31) <= x < 2**31:
                raise ValueError(f"{name} is {str(x)[:40]}, which does not fit 32 bits")
            else:
                out.append(int(x))
        return out

    def decode(self, words: Sequence[int] | npt.NDArray[np.int32]) -> dict[str, int | float]:
        out: dict[str, int | float] = {}
        for name, w in zip(self.params, words, strict=True):
            out[name] = struct.unpack("<f", struct.pack("<i", int(w)))[0] if name in self.floats else int(w)
        return out


CODES = {
    "opaque": 0, "embed": 1, "qkv": 2, "attn": 3, "attn_combine": 4, "o_proj": 5, "o_proj_combine": 6,
    "gate_up": 7, "down_proj": 8, "lm_head": 9, "sample": 10, "o_part": 11, "down_part": 12, "o_sum": 13, "down_sum": 14,
    "rank_qkv": 15, "rank_attn": 16,
}  # fmt: skip
LAYER_BITS = 16


def value(op: str, layer: Any = 0) -> Any:
    """Label of the value that ``op`` of ``layer`` produces (int, or a column of ints)."""
    return (CODES[op] << LAYER_BITS) + layer


def hidden_in(layer: Ints) -> Any:
    """Label of the residual stream at the entry of ``layer``: the embedding, or the down projection before it."""
    return np.where(layer == 0, value("embed"), value("down_proj", layer - 1))


def _embed(p: Mapping[str, Ints]) -> list[Access]:
    batch = p["m"] // np.maximum(p["chunk"], 1)
    feedback = p["feed"] == 0
    return [
        # feed 0: the token the sampler of the step before wrote; feed 1: the next chunk of the prompt
        Access(p["token"], (0, batch), (0, 1), value("sample"), present=feedback),
        Access(p["token"], (0, batch), (0, -1, p["chunk"], 0, p["chunk"], -1, 0), present=~feedback),
        Access(p["table"], (0, p["vocab"]), (p["col0"], p["col1"])),
        Access(p["out"], (0, p["m"]), (p["col0"], p["col1"]), value("embed"), write=True),
    ]


def _qkv(p: Mapping[str, Ints]) -> list[Access]:
    d, m, chunk, layer = p["head_dim"], p["m"], p["chunk"], p["layer"]
    q_end, k_end = p["n_heads"] * d, (p["n_heads"] + p["n_kv"]) * d
    v_end = k_end + p["n_kv"] * d
    out = [
        Access(p["h"], (0, m), (0, p["hidden"]), hidden_in(layer)),
        Access(p["norm_w"], (0, 1), (0, p["hidden"])),
        Access(p["w"], (p["row0"], p["row1"]), (0, p["hidden"])),
        Access(p["cos"], (0, p["ctx"]), (0, d // 2), present=p["row0"] < k_end),
        Access(p["sin"], (0, p["ctx"]), (0, d // 2), present=p["row0"] < k_end),
    ]
    # packed: the new keys and values stand behind the queries too, for attention in the same step
    lo, hi = p["row0"], np.where(p["packed"] == 1, p["row1"], np.minimum(p["row1"], q_end))
    out.append(Access(p["q"], (0, m), (lo, hi), value("qkv", layer), write=True, present=lo < hi))
    for buf, begin, end in (("k", q_end, k_end), ("v", k_end, v_end)):
        lo, hi = np.maximum(p["row0"], begin), np.minimum(p["row1"], end)
        for b in range(min(int(p["batch"].max(initial=0)), MAX_BATCH)):
            rows = (b * p["ctx"], p["pos_var"] + b, chunk, 0, chunk, -1, 0)
            present = (lo < hi) & (b < p["batch"])
            cols = (lo - begin, hi - begin)
            out.append(Access(p[buf], rows, cols, value("qkv", layer), write=True, maybe=p["partial"], present=present))
    return out


def _part_rows(p: Mapping[str, Ints]) -> tuple[Any, Any]:
    """Rows of the partial-attention buffer that belong to (sequence, kv head): [batch][n_kv][chunk][group] rows."""
    r0 = (p["seq"] * p["n_kv"] + p["kv_head"]) * p["chunk"] * p["group"]
    return r0, r0 + p["chunk"] * p["group"]


def _attn(p: Mapping[str, Ints]) -> list[Access]:
    d, chunk, seq, layer, packed = p["head_dim"], p["chunk"], p["seq"], p["layer"], p["packed"] == 1
    width, made = p["blocks"] * (d + 2), value("qkv", layer)
    q0, q1 = p["kv_head"] * p["group"] * d, (p["kv_head"] + 1) * p["group"] * d
    k0, v0 = (p["n_heads"] + p["kv_head"]) * d, (p["n_heads"] + p["n_kv"] + p["kv_head"]) * d
    rows = (seq * chunk, (seq + 1) * chunk)
    # every row up to this step's last one; packed: the rows of the steps before, the newest stand behind the queries
    kv_rows = (seq * p["ctx"], -1, 0, 0, np.where(packed, 0, chunk), p["pos_var"] + seq, chunk)
    kv_cols = (p["kv_head"] * d, (p["kv_head"] + 1) * d)
    merges = p["out"] >= 0
    return [
        Access(p["q"], rows, (q0, q1), made),
        Access(p["q"], rows, (k0, k0 + d), made, present=packed),
        Access(p["q"], rows, (v0, v0 + d), made, present=packed),
        Access(p["k"], kv_rows, kv_cols, made, maybe=p["partial"]),
        Access(p["v"], kv_rows, kv_cols, made, maybe=p["partial"]),
        Access(p["part"], _part_rows(p), (width, p["splits"] * width), value("attn", layer), maybe=1,
               present=merges & (p["splits"] > 1)),
        Access(p["part"], _part_rows(p), (p["split"] * width, (p["split"] + 1) * width), value("attn", layer), write=True, maybe=1),
        Access(p["out"], rows, (q0 >> p["packed"], q1 >> p["packed"]), value("attn_combine", layer), write=True, present=merges),
    ]  # fmt: skip


def _attn_combine(p: Mapping[str, Ints]) -> list[Access]:
    d, chunk, seq, layer = p["head_dim"], p["chunk"], p["seq"], p["layer"]
    q0 = p["kv_head"] * p["group"] * d
    return [
        Access(p["part"], _part_rows(p), (0, p["splits"] * p["blocks"] * (d + 2)), value("attn", layer), maybe=1),
        Access(p["out"], (seq * chunk, (seq + 1) * chunk), (q0, q0 + p["group"] * d), value("attn_combine", layer), write=True),
    ]  # fmt: skip


def _residual(p: Mapping[str, Ints], source: Any, produced: str) -> list[Access]:
    tile = (p["row0"], p["row1"])
    return [
        Access(p["w"], tile, (0, p["k"])),
        Access(p["h"], (0, p["m"]), tile, source),
        Access(p.get("out", p["h"]), (0, p["m"]), tile, value(produced, p["layer"]), write=True),
    ]


def _o_proj(p: Mapping[str, Ints]) -> list[Access]:
    x = Access(p["x"], (0, p["m"]), (0, p["k"] >> p["packed"]), value("attn_combine", p["layer"]))
    return [x, *_residual(p, hidden_in(p["layer"]), "o_proj")]


def _o_proj_combine(p: Mapping[str, Ints]) -> list[Access]:
    width = p["splits"] * p["blocks"] * (p["head_dim"] + 2)
    part = Access(p["part"], (0, p["m"] * p["n_heads"]), (0, width), value("attn", p["layer"]), maybe=1)
    return [part, *_residual(p, hidden_in(p["layer"]), "o_proj")]


def _gate_up(p: Mapping[str, Ints]) -> list[Access]:
    return [
        Access(p["h"], (0, p["m"]), (0, p["hidden"]), value("o_proj", p["layer"])),
        Access(p["norm_w"], (0, 1), (0, p["hidden"])),
        Access(p["w"], (2 * p["row0"], 2 * p["row1"]), (0, p["hidden"])),
        Access(
            p["act"], (0, p["m"]), (p["row0"] >> p["packed"], p["row1"] >> p["packed"]), value("gate_up", p["layer"]), write=True
        ),
    ]


def _down_proj(p: Mapping[str, Ints]) -> list[Access]:
    x = Access(p["x"], (0, p["m"]), (0, p["k"] >> p["packed"]), value("gate_up", p["layer"]))
    return [x, *_residual(p, value("o_proj", p["layer"]), "down_proj")]


def _lm_head(p: Mapping[str, Ints]) -> list[Access]:
    m, tile = p["m"], p["tile"]
    # ring 1: the logits of step i are rows [i * m, (i + 1) * m) of a host buffer; ring 0: rows [0, m), every step anew
    ring = p["ring"] == 1
    return [
        Access(p["h"], (0, m), (0, p["hidden"]), hidden_in(p["layer"])),
        Access(p["norm_w"], (0, 1), (0, p["hidden"])),
        Access(p["w"], (p["row0"], p["row1"]), (0, p["hidden"])),
        Access(p["logits"], (0, m), (p["row0"], p["row1"]), value("lm_head"), write=True, present=~ring),
        Access(p["logits"], (0, -1, m, 0, m, -1, 0), (p["row0"], p["row1"]), value("lm_head"), write=True, present=ring),
        Access(p["amax"], (0, m), (2 * tile, 2 * tile + 2), value("lm_head"), write=True, present=p["amax"] >= 0),
    ]


def _sample(p: Mapping[str, Ints]) -> list[Access]:
    m = p["m"]
    step_row = (0, -1, 1, 0, 1, -1, 0)
    return [
        Access(p["logits"], (0, m), (0, p["vocab"]), value("lm_head")),
        Access(p["amax"], (0, m), (0, 2 * p["tiles"]), value("lm_head"), present=p["amax"] >= 0),
        Access(p["control"], (0, m), (0, CONTROL_WORDS)),
        Access(p["stop_ids"], (0, m), (0, p["n_stop_ids"]), present=p["n_stop_ids"] > 0),
        Access(p["done"], (0, m), (0, 1), value("sample")),
        Access(p["token"], (0, m), (0, 1), value("sample"), write=True),
        Access(p["out"], step_row, (0, m), value("sample"), write=True),
        Access(p["stop"], step_row, (0, 1), value("sample"), write=True),
        Access(p["done"], (0, m), (0, 1), value("sample"), write=True),
    ]


def _rank_qkv(p: Mapping[str, Ints]) -> list[Access]:
    d, layer = p["head_dim"], p["layer"]
    q_end, k_end = p["n_heads"] * d, (p["n_heads"] + p["n_kv"]) * d
    out = [
        Access(p["h"], (0, 1), (0, p["hidden"]), hidden_in(layer)),
        Access(p["norm_w"], (0, 1), (0, p["hidden"])),
        Access(p["w"], (p["row0"], p["row1"]), (0, p["hidden"])),
        Access(p["cos"], (0, p["ctx"]), (0, d // 2), present=p["row0"] < k_end),
        Access(p["sin"], (0, p["ctx"]), (0, d // 2), present=p["row0"] < k_end),
        Access(p["q"], (0, 1), (p["row0"], p["row1"]), value("qkv", layer), write=True),
    ]
    for buf, begin, end in (("k", q_end, k_end), ("v", k_end, k_end + p["n_kv"] * d)):
        lo, hi = np.maximum(p["row0"], begin), np.minimum(p["row1"], end)
        rows = (0, p["pos_var"], 1, 0, 1, -1, 0)
        out.append(Access(p[buf], rows, (lo - begin, hi - begin), value("qkv", layer), write=True, present=lo < hi))
    return out


def _rank_attn(p: Mapping[str, Ints]) -> list[Access]:
    d, layer, head, kv = p["head_dim"], p["layer"], p["head"], p["kv_head"]
    made, earlier, cols = value("qkv", layer), (0, -1, 0, 0, 0, p["pos_var"], 1), (kv * d, (kv + 1) * d)
    k0, v0 = (p["n_heads"] + kv) * d, (p["n_heads"] + p["n_kv"] + kv) * d
    piece = (p["piece"] * (d + 2), (p["piece"] + 1) * (d + 2))
    return [
        Access(p["q"], (0, 1), (head * d, (head + p["heads"]) * d), made),
        Access(p["q"], (0, 1), (k0, k0 + d), made),
        Access(p["q"], (0, 1), (v0, v0 + d), made),
        Access(p["k"], earlier, cols, made),
        Access(p["v"], earlier, cols, made),
        Access(p["attn"], (head, head + p["heads"]), piece, value("attn", layer), write=True),
    ]


def _part(p: Mapping[str, Ints], x: Access, produced: str) -> list[Access]:
    m, layer = p["m"], p["layer"]
    return [
        x,
        Access(p["w"], (p["row0"], p["row1"]), (0, p["k1"] - p["k0"])),
        Access(p["out"], (p["part"] * m, (p["part"] + 1) * m), (p["row0"], p["row1"]), value(produced, layer), write=True),
    ]


def _sum(p: Mapping[str, Ints], parts: str, before: Any, produced: str) -> list[Access]:
    m, layer, cols = p["m"], p["layer"], (p["col0"], p["col1"])
    return [
        Access(p["parts"], (0, p["n"] * m), cols, value(parts, layer)),
        Access(p["h"], (0, m), cols, before),
        Access(p["out"], (0, m), cols, value(produced, layer), write=True),
    ]


def _o_part(p: Mapping[str, Ints]) -> list[Access]:
    d = np.maximum(p["head_dim"], 1)
    attn = Access(p["attn"], (p["k0"] // d, p["k1"] // d), (0, p["pieces"] * (d + 2)), value("attn", p["layer"]))
    return _part(p, attn, "o_part")


def _down_part(p: Mapping[str, Ints]) -> list[Access]:
    return _part(p, Access(p["x"], (0, p["m"]), (p["k0"], p["k1"]), value("gate_up", p["layer"])), "down_part")


def _o_sum(p: Mapping[str, Ints]) -> list[Access]:
    return _sum(p, "o_part", hidden_in(p["layer"]), "o_proj")


def _down_sum(p: Mapping[str, Ints]) -> list[Access]:
    return _sum(p, "down_part", value("o_proj", p["layer"]), "down_proj")


CONTROL_WORDS = 8  # per sequence: temperature(f32), top_k, top_p(f32), seed low, seed high, reserved x 3


def _spec(name: str, params: str, contract: Contract, floats: str = "", weight: str = "") -> OpSpec:
    return OpSpec(name, CODES[name], tuple(params.split()), frozenset(floats.split()), contract, weight)


_ATTN = "m chunk batch ctx seq kv_head n_heads n_kv group head_dim splits blocks block pos_var layer"
SPECS: tuple[OpSpec, ...] = (
    _spec("opaque", "", lambda p: []),
    _spec("embed", "token table out m chunk feed col0 col1 vocab scale", _embed, "scale"),
    _spec(
        "qkv",
        "h norm_w w cos sin q k v m chunk batch ctx row0 row1 hidden n_heads n_kv head_dim pos_var partial layer packed eps",
        _qkv, "eps", "L{layer}.qkv",
    ),
    _spec("attn", f"q k v part out {_ATTN} split partial packed scale", _attn, "scale"),
    _spec("attn_combine", f"part out {_ATTN}", _attn_combine),
    _spec("o_proj", "x w h out m row0 row1 k layer packed", _o_proj, "", "L{layer}.o"),
    _spec(
        "o_proj_combine",
        "part w h m row0 row1 k chunk batch ctx n_heads n_kv group head_dim splits blocks block pos_var layer",
        _o_proj_combine, "", "L{layer}.o",
    ),
    _spec("gate_up", "h norm_w w act m row0 row1 hidden layer packed eps", _gate_up, "eps", "L{layer}.gate_up"),
    _spec("down_proj", "x w h out m row0 row1 k layer packed", _down_proj, "", "L{layer}.down"),
    _spec("lm_head", "h norm_w w logits amax m row0 row1 tile ring hidden layer eps", _lm_head, "eps", "head"),
    _spec("sample", "logits amax control stop_ids token out stop done m tiles vocab n_stop_ids pos_var", _sample),
    _spec("o_part", "attn w out m row0 row1 k0 k1 head_dim pieces part layer", _o_part, "", "L{layer}.o.{k0}-{k1}"),
    _spec("down_part", "x w out m row0 row1 k0 k1 part layer", _down_part, "", "L{layer}.down.{k0}-{k1}"),
    _spec("o_sum", "parts h out m col0 col1 n layer", _o_sum),
    _spec("down_sum", "parts h out m col0 col1 n layer", _down_sum),
    _spec(
        "rank_qkv", "h norm_w w cos sin q k v m ctx row0 row1 hidden n_heads n_kv head_dim pos_var layer eps",
        _rank_qkv, "eps", "L{layer}.qkv",
    ),
    _spec(
        "rank_attn", "q k v attn m ctx kv_head head heads n_heads n_kv head_dim pieces piece pos_var layer scale", _rank_attn,
        "scale",
    ),
)  # fmt: skip
BY_NAME: Mapping[str, OpSpec] = {s.name: s for s in SPECS}
BY_CODE: Mapping[int, OpSpec] = {s.code: s for s in SPECS}

ACC_FIELDS = ("buffer", "flags", "label", "r0", "r1", "c0", "c1")


@dataclass(frozen=True, slots=True)
class Footprints:
    """Derived access columns of all tasks of real ops, sorted by task: plain fields, and 7-column affine rows (or -1 index)."""

    task: Ints
    plain: dict[str, Ints]
    row_affine: Ints  # [n, 7]; meaningful where has_row_affine
    col_affine: Ints
    has_row_affine: npt.NDArray[np.bool_]
    has_col_affine: npt.NDArray[np.bool_]


def params_of(
    task_op: npt.NDArray[Any], par_off: npt.NDArray[Any], par: npt.NDArray[Any], spec: OpSpec
) -> tuple[Ints, dict[str, Ints]]:
    """(task ids, parameter columns) of every task of one op."""
    ids = np.flatnonzero(task_op == spec.code).astype(np.int64)
    grid = par[par_off[ids][:, None] + np.arange(len(spec.params))] if len(ids) else np.empty((0, len(spec.params)), np.int64)
    return ids, {name: grid[:, j].astype(np.int64) for j, name in enumerate(spec.params)}


def derive(task_op: npt.NDArray[Any], par_off: npt.NDArray[Any], par: npt.NDArray[Any]) -> Footprints:
    """The footprints that the contracts give to every task of a real op, in contract order (reads first)."""
    cols: list[Ints] = []  # each row: task, j, buffer, flags, label, r0, r1, c0, c1, has_r, has_c, 7 row affine, 7 col affine
    for spec in SPECS[1:]:
        ids, p = params_of(task_op, par_off, par, spec)
        n = len(ids)
        if n == 0:
            continue
        for j, a in enumerate(spec.contract(p)):
            row = np.zeros((n, 25), np.int64)
            row[:, 0], row[:, 1], row[:, 2], row[:, 4] = ids, j, a.buffer, a.label
            row[:, 3] = (WRITE if a.write else 0) + np.where(np.asarray(a.maybe) != 0, MAYBE, 0)
            for rng, plain, has, aff in ((a.rows, 5, 9, 11), (a.cols, 7, 10, 18)):
                if len(rng) == 2:
                    row[:, plain], row[:, plain + 1] = rng
                else:
                    row[:, has] = 1
                    for k in range(7):
                        row[:, aff + k] = rng[k]
            cols.append(row[np.broadcast_to(np.asarray(a.present, bool), n)])
    all_ = np.concatenate(cols) if cols else np.zeros((0, 25), np.int64)
    all_ = all_[np.lexsort((all_[:, 1], all_[:, 0]))]
    return Footprints(
        all_[:, 0].copy(), {f: all_[:, 2 + i].copy() for i, f in enumerate(ACC_FIELDS)}, all_[:, 11:18].copy(),
        all_[:, 18:25].copy(), all_[:, 9] != 0, all_[:, 10] != 0,
    )  # fmt: skip


def _signature(s: Schedule) -> tuple[npt.NDArray[np.int64], Footprints, npt.NDArray[np.bool_]]:
    """(mismatch per derived access, derived footprints, task has the right number of accesses)."""
    c = s.columns
    f = derive(c.task_op, c.par_off, c.par)
    count = np.bincount(f.task, minlength=s.n_tasks) if s.n_tasks else np.zeros(0, np.int64)
    right = (c.acc_off[1:] - c.acc_off[:-1] == count) | (c.task_op == 0)
    keep = right[f.task] if len(f.task) else np.zeros(0, bool)
    first = np.concatenate([[0], np.cumsum(count)])
    where = c.acc_off[f.task] + np.arange(len(f.task)) - first[f.task]  # index of the declared access
    where = np.where(keep, where, 0)
    bad = ~keep
    if len(c.acc_buffer):
        for name in ("buffer", "flags"):
            bad = bad | (getattr(c, f"acc_{name}")[where] != f.plain[name])
        for lo, hi, aff, has, rows in (
            ("r0", "r1", c.acc_raff, f.has_row_affine, f.row_affine),
            ("c0", "c1", c.acc_caff, f.has_col_affine, f.col_affine),
        ):
            index = aff[where]
            bad = bad | ((index >= 0) != has)
            plain = (getattr(c, f"acc_{lo}")[where] != f.plain[lo]) | (getattr(c, f"acc_{hi}")[where] != f.plain[hi])
            bad = bad | (~has & plain)
            if len(c.affine):
                bad = bad | (has & (c.affine[np.clip(index, 0, len(c.affine) - 1)] != rows).any(axis=1))
    return np.where(bad, where, -1), f, right


def label(s: Schedule) -> None:
    """Fill ``acc_label`` of every task whose declared footprint is the derived one (others keep -1 and are rejected by REF)."""
    c = s.columns
    if not (c.task_op != 0).any():
        return
    bad, f, right = _signature(s)
    ok = np.ones(s.n_tasks, bool)
    ok[f.task[bad >= 0]] = False
    ok &= right
    first = np.concatenate([[0], np.cumsum(np.bincount(f.task, minlength=s.n_tasks))])
    where = c.acc_off[f.task] + np.arange(len(f.task)) - first[f.task]
    keep = ok[f.task]
    c.acc_label[where[keep]] = f.plain["label"][keep]


def _out_of_range(p: Mapping[str, Ints], n_variables: int) -> list[tuple[int, str]]:
    """(index, message) of the tasks of one op whose parameters make no sense together."""
    one = np.ones(len(next(iter(p.values()))), bool)
    positive = "m chunk batch ctx hidden n_heads n_kv group head_dim splits blocks block k vocab tiles".split()  # noqa: SIM905
    checks = [(f"{name} is at least 1", p[name] >= 1) for name in positive if name in p]
    checks += [(f"{name} is at least 0", p[name] >= 0) for name in ("layer", "tile", "n_stop_ids", "pos_var") if name in p]
    checks += [
        (f"{name} is 0 or 1", (p[name] == 0) | (p[name] == 1)) for name in ("feed", "ring", "partial", "packed") if name in p
    ]
    for first, last in (("row0", "row1"), ("col0", "col1"), ("k0", "k1")):
        if first in p:
            checks.append((f"0 <= {first} < {last}", (p[first] >= 0) & (p[first] < p[last])))
    for part, whole in (("seq", "batch"), ("kv_head", "n_kv"), ("split", "splits")):
        if part in p and whole in p:
            checks.append((f"0 <= {part} < {whole}", (p[part] >= 0) & (p[part] < p[whole])))
    if "n" in p:
        checks.append((f"1 <= n <= {MAX_PARTS}", (p["n"] >= 1) & (p["n"] <= MAX_PARTS)))
    if "pieces" in p:
        checks.append(("pieces is at least 1", p["pieces"] >= 1))
        checks.append(("one token of one sequence", p["m"] == 1))
    if "piece" in p:
        checks.append(("0 <= piece < pieces", (p["piece"] >= 0) & (p["piece"] < p["pieces"])))
        checks.append(("0 <= kv_head < n_kv", (p["kv_head"] >= 0) & (p["kv_head"] < p["n_kv"])))
        there = (p["head"] >= 0) & (p["heads"] >= 1) & (p["head"] + p["heads"] <= p["n_heads"])
        checks.append(("0 <= head < head + heads <= n_heads", there))
    if "pieces" in p and "k0" in p:
        whole = (p["k0"] % np.maximum(p["head_dim"], 1) == 0) & (p["k1"] % np.maximum(p["head_dim"], 1) == 0)
        checks.append(("a part of the output projection is of whole heads", whole))
    if "pos_var" in p and "batch" not in p and "ctx" in p:
        checks.append(("pos_var names a variable of the sequence", p["pos_var"] + 1 <= n_variables))
    if "part" in p and "k0" in p:
        checks.append((f"0 <= part < {MAX_PARTS}", (p["part"] >= 0) & (p["part"] < MAX_PARTS)))
    if "packed" in p and "row0" in p:
        even = (p["row0"] % 2 == 0) & (p["row1"] % 2 == 0)
        checks.append(("a tile of packed pairs starts and ends at a pair", (p["packed"] == 0) | even))
    if "packed" in p and "chunk" in p:
        checks.append(("packed rows are one token of each sequence", (p["packed"] == 0) | (p["chunk"] == 1)))
    if "out" in p and "split" in p:
        checks.append(("the task that merges is the one of split 0", (p["out"] < 0) | (p["split"] == 0)))
    if "batch" in p:
        checks.append((f"batch is at most {MAX_BATCH}", p["batch"] <= MAX_BATCH))
        checks.append(("m == batch * chunk", p["m"] == p["batch"] * p["chunk"]))
    elif "chunk" in p:
        checks.append(("chunk divides m", p["m"] % np.maximum(p["chunk"], 1) == 0))
    if "head_dim" in p:
        checks.append(("head_dim is even", p["head_dim"] % 2 == 0))
    if "n_heads" in p:
        checks.append(("n_kv divides n_heads", p["n_heads"] % np.maximum(p["n_kv"], 1) == 0))
    if "group" in p:
        checks.append(("n_heads == n_kv * group", p["n_heads"] == p["n_kv"] * p["group"]))
    if "pos_var" in p and "batch" in p:
        checks.append(("pos_var names a variable of every sequence", p["pos_var"] + p["batch"] <= n_variables))
    failed = [(text, np.flatnonzero(~(ok & one))) for text, ok in checks]
    return [(int(k), f"a parameter is out of range, required is: {text}") for text, bad in failed for k in bad]


def problems(s: Schedule) -> list[tuple[int, str]]:
    """(task, message) for every task of a real op whose declared footprint is not its contract's, or whose weight buffer is not
    the one that the op and layer name."""
    c = s.columns
    out: list[tuple[int, str]] = []
    if not (c.task_op != 0).any():
        return out
    bad, f, right = _signature(s)
    wrong = np.zeros(s.n_tasks, bool)
    wrong[f.task[bad >= 0]] = True
    wrong |= ~right
    for t in np.flatnonzero(wrong):
        name = BY_CODE[int(c.task_op[t])].name
        out.append((int(t), f"declared footprint differs from the contract of {name} with these parameters"))
    for spec in SPECS[1:]:
        ids, p = params_of(c.task_op, c.par_off, c.par, spec)
        out += [(int(ids[k]), text) for k, text in _out_of_range(p, sum(v.count for v in s.variables))]
        if not spec.weight:
            continue
        for k, (t, w) in enumerate(zip(ids, p["w"], strict=True)):
            want = spec.weight.format(**{name: int(column[k]) for name, column in p.items()})
            seen = s.buffers[w].name if 0 <= w < len(s.buffers) else f"#{w}"
            if seen != want:
                out.append((int(t), f"streams weight {seen}, required is {want}"))
    return out
