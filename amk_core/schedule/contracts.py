"""What each op touches: its accesses, from the parameters of all its tasks as columns.

Labels.  Every write of a real op carries the identity of the value it produces, ``label(op, layer)``; every read carries the
identity it needs.  Rule FLOW compares them byte by byte with the last must-ordered writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
CONTROL_WORDS = 8  # per sequence: temperature(f32), top_k, top_p(f32), seed low, seed high, reserved x 3
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


def embed(p: Mapping[str, Ints]) -> list[Access]:
    batch = p["m"] // np.maximum(p["chunk"], 1)
    feedback = p["feed"] == 0
    return [
        # feed 0: the token the sampler of the step before wrote; feed 1: the next chunk of the prompt
        Access(p["token"], (0, batch), (0, 1), value("sample"), present=feedback),
        Access(p["token"], (0, batch), (0, -1, p["chunk"], 0, p["chunk"], -1, 0), present=~feedback),
        Access(p["table"], (0, p["vocab"]), (p["col0"], p["col1"])),
        Access(p["out"], (0, p["m"]), (p["col0"], p["col1"]), value("embed"), write=True),
    ]


def qkv(p: Mapping[str, Ints]) -> list[Access]:
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


def attn(p: Mapping[str, Ints]) -> list[Access]:
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


def attn_combine(p: Mapping[str, Ints]) -> list[Access]:
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


def o_proj(p: Mapping[str, Ints]) -> list[Access]:
    x = Access(p["x"], (0, p["m"]), (0, p["k"] >> p["packed"]), value("attn_combine", p["layer"]))
    return [x, *_residual(p, hidden_in(p["layer"]), "o_proj")]


def o_proj_combine(p: Mapping[str, Ints]) -> list[Access]:
    width = p["splits"] * p["blocks"] * (p["head_dim"] + 2)
    part = Access(p["part"], (0, p["m"] * p["n_heads"]), (0, width), value("attn", p["layer"]), maybe=1)
    return [part, *_residual(p, hidden_in(p["layer"]), "o_proj")]


def gate_up(p: Mapping[str, Ints]) -> list[Access]:
    return [
        Access(p["h"], (0, p["m"]), (0, p["hidden"]), value("o_proj", p["layer"])),
        Access(p["norm_w"], (0, 1), (0, p["hidden"])),
        Access(p["w"], (2 * p["row0"], 2 * p["row1"]), (0, p["hidden"])),
        Access(
            p["act"], (0, p["m"]), (p["row0"] >> p["packed"], p["row1"] >> p["packed"]), value("gate_up", p["layer"]), write=True
        ),
    ]


def down_proj(p: Mapping[str, Ints]) -> list[Access]:
    x = Access(p["x"], (0, p["m"]), (0, p["k"] >> p["packed"]), value("gate_up", p["layer"]))
    return [x, *_residual(p, value("o_proj", p["layer"]), "down_proj")]


def lm_head(p: Mapping[str, Ints]) -> list[Access]:
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


def sample(p: Mapping[str, Ints]) -> list[Access]:
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


def rank_qkv(p: Mapping[str, Ints]) -> list[Access]:
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


def rank_attn(p: Mapping[str, Ints]) -> list[Access]:
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


def o_part(p: Mapping[str, Ints]) -> list[Access]:
    d = np.maximum(p["head_dim"], 1)
    attn = Access(p["attn"], (p["k0"] // d, p["k1"] // d), (0, p["pieces"] * (d + 2)), value("attn", p["layer"]))
    return _part(p, attn, "o_part")


def down_part(p: Mapping[str, Ints]) -> list[Access]:
    return _part(p, Access(p["x"], (0, p["m"]), (p["k0"], p["k1"]), value("gate_up", p["layer"])), "down_part")


def o_sum(p: Mapping[str, Ints]) -> list[Access]:
    return _sum(p, "o_part", hidden_in(p["layer"]), "o_proj")


def down_sum(p: Mapping[str, Ints]) -> list[Access]:
    return _sum(p, "down_part", value("o_proj", p["layer"]), "down_proj")
