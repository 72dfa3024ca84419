"""Float64 reference of every op: what a task computes, written for reading, in numpy.

It works on the same parameters and buffer layouts as the VMs (ops.py) and shares no code with them; the parity suite and the
tests of the kernels compare against it.  With ``fast`` it rounds where the fast plan rounds (matmul inputs, queries, stored KV
is rounded by the caller's buffer dtype).

Buffers of tagged elements stand here as the values alone, pairs of bf16 side by side: ``act`` of 2 n columns for n elements.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.schedule.ops import near_blocks

F64 = npt.NDArray[np.float64]
Buffers = MutableSequence[npt.NDArray[Any]]  # by buffer id, [rows, cols]; weights unpadded; written in place


def slot(b: int, splits: int, blocks: int) -> int:
    """Where the partial of block b lies: blocks are dealt to the splits in turn, a split's blocks lie side by side."""
    return b % splits * blocks + b // splits


def round_bf16(x: F64) -> F64:
    """Nearest bfloat16, through float32 as the kernels do."""
    out: F64 = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return out


def rmsnorm(h: F64, w: F64, eps: float) -> F64:
    """Rows of h, each scaled to unit mean square, times w."""
    out: F64 = w * (h / np.sqrt((h * h).mean(axis=-1, keepdims=True) + eps))
    return out


def rotate(x: F64, cos: F64, sin: F64) -> F64:
    """Rotate pairs (2i, 2i + 1) of the last axis by the angle of pair i."""
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    return out


class Step:
    """One task in one step.  ``variables`` are the flattened launch variables."""

    def __init__(self, params: Mapping[str, Any], buffers: Buffers, step: int, variables: Sequence[int], fast: bool) -> None:
        self.p, self.b, self.step, self.v, self.fast = params, buffers, step, variables, fast

    def buf(self, name: str) -> npt.NDArray[Any]:
        out: npt.NDArray[Any] = self.b[self.p[name]]
        return out

    def x(self, name: str) -> F64:
        return self.buf(name).astype(np.float64)

    def matmul_input(self, x: F64) -> F64:
        return round_bf16(x) if self.fast else x

    def active(self, seq: int, c: int) -> bool:
        p = self.p
        batch = p.get("batch", p["m"])
        return bool(self.step * p.get("chunk", 1) + c < self.v[p["pos_var"] + batch + seq])

    def position(self, seq: int, c: int) -> int:
        return int(self.v[self.p["pos_var"] + seq]) + self.step * int(self.p.get("chunk", 1)) + c

    def embed(self) -> None:
        p = self.p
        for r in range(p["m"]):
            seq, c = divmod(r, p["chunk"])
            token = int(self.buf("token")[seq, 0 if p["feed"] == 0 else self.step * p["chunk"] + c])
            row = self.x("table")[token] * p["scale"] if token >= 0 else np.zeros(self.buf("table").shape[1])
            self.buf("out")[r, p["col0"] : p["col1"]] = row[p["col0"] : p["col1"]]

    def qkv(self) -> None:
        p, d = self.p, self.p["head_dim"]
        x = self.matmul_input(rmsnorm(self.x("h")[: p["m"], : p["hidden"]], self.x("norm_w")[0, : p["hidden"]], p["eps"]))
        y = np.zeros((p["m"], (p["n_heads"] + 2 * p["n_kv"]) * d))
        y[:, p["row0"] : p["row1"]] = x @ self.x("w")[p["row0"] : p["row1"]].T
        q_end, k_end = p["n_heads"] * d, (p["n_heads"] + p["n_kv"]) * d
        for r in range(p["m"]):
            seq, c = divmod(r, p["chunk"])
            if not self.active(seq, c):
                y[r] = 0
                self.buf("q")[r, p["row0"] : p["row1"] if p["packed"] else min(p["row1"], q_end)] = 0
                continue
            pos = self.position(seq, c)
            turned = rotate(y[r, :k_end].reshape(-1, d), self.x("cos")[pos], self.x("sin")[pos]).reshape(-1)
            row = np.concatenate([turned, y[r, k_end:]])
            if p["packed"]:  # new keys and values behind the queries too
                self.buf("q")[r, p["row0"] : p["row1"]] = row[p["row0"] : p["row1"]]
            for name, lo, hi, to in (("q", 0, q_end, r), ("k", q_end, k_end, None), ("v", k_end, len(row), None)):
                a, e = max(lo, p["row0"]), min(hi, p["row1"])
                if a < e:
                    self.buf(name)[seq * p["ctx"] + pos if to is None else to, a - lo : e - lo] = row[a:e]

    def attention(self, seq: int, c: int, head: int, positions: npt.NDArray[np.int64]) -> tuple[float, float, F64]:
        """(maximum, sum, weighted values) of one head over some positions."""
        p, d = self.p, self.p["head_dim"]
        q = self.matmul_input(self.x("q")[seq * p["chunk"] + c, head * d : (head + 1) * d])
        kv = head // p["group"] * d
        rows = seq * p["ctx"] + positions
        keys, values = (self.x(name)[rows, kv : kv + d] for name in ("k", "v"))
        if p["packed"] and positions[-1] == self.position(
            seq, c
        ):  # the newest ones come with the queries, rounded as the cache rounds
            new, end = self.x("q")[seq * p["chunk"] + c], p["n_heads"] * d
            keys[-1], values[-1] = (round_bf16(new[at : at + d]) for at in (end + kv, end + p["n_kv"] * d + kv))
        s = keys @ q * p["scale"]
        e = np.exp(s - s.max())
        return float(s.max()), float(e.sum()), e @ values

    def near(self, pos: int) -> bool:
        """Whether split 0 attends to all positions alone, without partials."""
        return bool(self.p["packed"]) and pos // self.p["block"] < near_blocks(self.p["head_dim"])

    def attn(self) -> None:
        p, d, seq = self.p, self.p["head_dim"], self.p["seq"]
        for c in range(p["chunk"]):
            if not self.active(seq, c):
                continue
            pos = self.position(seq, c)
            if self.near(pos):
                continue
            for b in range(p["split"], pos // p["block"] + 1, p["splits"]):
                where = np.arange(b * p["block"], min((b + 1) * p["block"], pos + 1))
                at = slot(b, p["splits"], p["blocks"]) * (d + 2)
                for j in range(p["group"]):
                    row = ((seq * p["n_kv"] + p["kv_head"]) * p["chunk"] + c) * p["group"] + j
                    m, total, o = self.attention(seq, c, p["kv_head"] * p["group"] + j, where)
                    self.buf("part")[row, at : at + d + 2] = [m, total, *o]
        if p["out"] >= 0:  # the task of split 0 merges all splits
            self.attn_combine()

    def merged(self, seq: int, kv_head: int) -> F64:
        """[chunk, group * d]: the attention output from the partials; zeros where a row is not active."""
        p, d = self.p, self.p["head_dim"]
        out = np.zeros((p["chunk"], p["group"] * d))
        for c in range(p["chunk"]):
            if not self.active(seq, c):
                continue
            if "packed" in p and self.near(self.position(seq, c)):
                for j in range(p["group"]):
                    _, total, o = self.attention(seq, c, kv_head * p["group"] + j, np.arange(self.position(seq, c) + 1))
                    out[c, j * d : (j + 1) * d] = o / total
                continue
            for j in range(p["group"]):
                row = self.x("part")[((seq * p["n_kv"] + kv_head) * p["chunk"] + c) * p["group"] + j].reshape(-1, d + 2)
                n = self.position(seq, c) // p["block"] + 1
                parts = row[[slot(b, p["splits"], p["blocks"]) for b in range(n)]]
                a = np.exp(parts[:, 0] - parts[:, 0].max())
                out[c, j * d : (j + 1) * d] = a @ parts[:, 2:] / (a @ parts[:, 1])
        return out

    def attn_combine(self) -> None:
        p = self.p
        width = p["group"] * p["head_dim"]
        rows, cols = p["seq"] * p["chunk"], p["kv_head"] * width
        self.buf("out")[rows : rows + p["chunk"], cols : cols + width] = self.merged(p["seq"], p["kv_head"])

    def residual(self, x: F64) -> None:
        p = self.p
        y = self.matmul_input(x) @ self.x("w")[p["row0"] : p["row1"]].T
        out, tile = self.buf("out" if "out" in p else "h"), (slice(p["m"]), slice(p["row0"], p["row1"]))
        out[tile] = self.buf("h")[tile] + y.astype(out.dtype)

    def o_proj(self) -> None:
        self.residual(self.x("x")[: self.p["m"], : self.p["k"]])

    down_proj = o_proj

    def o_proj_combine(self) -> None:
        p = self.p
        seqs = [np.concatenate([self.merged(s, h) for h in range(p["n_kv"])], axis=1) for s in range(p["batch"])]
        self.residual(np.concatenate(seqs))

    def rank_qkv(self) -> None:
        p, d = self.p, self.p["head_dim"]
        x = self.matmul_input(rmsnorm(self.x("h")[:1, : p["hidden"]], self.x("norm_w")[0, : p["hidden"]], p["eps"]))
        y, pos = np.zeros((p["n_heads"] + 2 * p["n_kv"]) * d), self.position(0, 0)
        tile = slice(p["row0"], p["row1"])
        y[tile] = (x @ self.x("w")[tile].T)[0]
        q_end, k_end = p["n_heads"] * d, (p["n_heads"] + p["n_kv"]) * d
        y[:k_end] = rotate(y[:k_end].reshape(-1, d), self.x("cos")[pos], self.x("sin")[pos]).reshape(-1)
        self.buf("q")[0, tile] = y[tile]
        for name, lo, hi in (("k", q_end, k_end), ("v", k_end, len(y))):
            a, e = max(lo, p["row0"]), min(hi, p["row1"])
            if a < e:
                self.buf(name)[pos, a - lo : e - lo] = y[a:e]

    def rank_attn(self) -> None:
        p, d, pos = self.p, self.p["head_dim"], self.position(0, 0)
        where = np.arange(p["piece"], pos + 1, p["pieces"])
        at, kv = p["piece"] * (d + 2), p["kv_head"] * d
        for head in range(p["head"], p["head"] + p["heads"]):
            to = self.buf("attn")[head, at : at + d + 2]
            if not len(where):
                to[...] = [np.finfo(np.float32).min, *[0] * (d + 1)]
                continue
            keys, values = (self.x(name)[where, kv : kv + d] for name in ("k", "v"))
            if where[-1] == pos:  # the newest ones come with the queries, rounded as the cache rounds
                new, end = self.x("q")[0], p["n_heads"] * d
                for cache, first in ((keys, end + kv), (values, end + p["n_kv"] * d + kv)):
                    cache[-1] = round_bf16(new[first : first + d]) if self.fast else new[first : first + d]
            s = keys @ self.matmul_input(self.x("q")[0, head * d : (head + 1) * d]) * p["scale"]
            e = np.exp(s - s.max())
            to[...] = [s.max(), e.sum(), *(e @ values)]

    def o_part(self) -> None:
        p, d = self.p, self.p["head_dim"]
        pieces = self.x("attn")[p["k0"] // d : p["k1"] // d, : p["pieces"] * (d + 2)].reshape(-1, p["pieces"], d + 2)
        a = np.exp(pieces[..., 0] - pieces[..., 0].max(axis=1, keepdims=True))
        merged = np.einsum("hp,hpd->hd", a, pieces[..., 2:]) / (a * pieces[..., 1]).sum(axis=1, keepdims=True)
        self.part(merged.reshape(1, -1))

    def down_part(self) -> None:
        self.part(self.x("x")[: self.p["m"], self.p["k0"] : self.p["k1"]])

    def part(self, x: F64) -> None:
        p, m, tile = self.p, self.p["m"], slice(self.p["row0"], self.p["row1"])
        self.buf("out")[p["part"] * m : (p["part"] + 1) * m, tile] = self.matmul_input(x) @ self.x("w")[tile].T

    def o_sum(self) -> None:
        p, m, cols = self.p, self.p["m"], slice(self.p["col0"], self.p["col1"])
        parts = self.x("parts")[: p["n"] * m, cols].reshape(p["n"], m, -1).sum(axis=0)
        self.buf("out")[:m, cols] = self.x("h")[:m, cols] + parts

    down_sum = o_sum

    def gate_up(self) -> None:
        p = self.p
        x = self.matmul_input(rmsnorm(self.x("h")[: p["m"], : p["hidden"]], self.x("norm_w")[0, : p["hidden"]], p["eps"]))
        y = x @ self.x("w")[2 * p["row0"] : 2 * p["row1"]].T
        g, u = y[:, 0::2], y[:, 1::2]
        self.buf("act")[: p["m"], p["row0"] : p["row1"]] = g / (1 + np.exp(-g)) * u

    def lm_head(self) -> None:
        p = self.p
        x = self.matmul_input(rmsnorm(self.x("h")[: p["m"], : p["hidden"]], self.x("norm_w")[0, : p["hidden"]], p["eps"]))
        y = (x @ self.x("w")[p["row0"] : p["row1"]].T).astype(np.float32)
        first = self.step * p["m"] if p["ring"] else 0
        self.buf("logits")[first : first + p["m"], p["row0"] : p["row1"]] = y
        if p["amax"] >= 0:
            best = y.argmax(axis=1)
            self.buf("amax")[: p["m"], 2 * p["tile"]] = y.max(axis=1)
            index = (p["row0"] + best).astype(np.int32).view(np.float32)
            self.buf("amax")[: p["m"], 2 * p["tile"] + 1] = index

    def sample(self) -> None:
        """Greedy rows only: temperature 0 in the control buffer."""
        p = self.p
        finished = []
        for seq in range(p["m"]):
            if not self.active(seq, 0):
                self.buf("token")[seq, 0] = self.buf("out")[self.step, seq] = -1
                continue
            token = int(self.buf("logits")[seq, : p["vocab"]].argmax())
            stops = self.buf("stop_ids")[seq, : p["n_stop_ids"]] if p["n_stop_ids"] else np.zeros(0, np.int32)
            self.buf("token")[seq, 0] = self.buf("out")[self.step, seq] = token
            self.buf("done")[seq, 0] = bool(self.buf("done")[seq, 0]) or token in stops
            finished.append(bool(self.buf("done")[seq, 0]))
        self.buf("stop")[self.step, 0] = all(finished)


def run(op: str, params: Mapping[str, Any], buffers: Buffers, step: int, variables: Sequence[int], fast: bool = False) -> None:
    """Apply one task of ``op`` to the buffers, in place."""
    getattr(Step(params, buffers, step, variables, fast), op)()
