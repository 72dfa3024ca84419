"""The footprints that the contracts give to the tasks of a schedule, and where what it declares differs from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.contracts import MAX_BATCH, Ints
from amk_core.schedule.ir import MAYBE, WRITE, Schedule
from amk_core.schedule.ops import BY_CODE, MAX_PARTS, SPECS, params_of

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
