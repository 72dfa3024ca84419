"""P0 and footprints of the kernels for ranks, whose tasks do not run alone on a card: by the kernels' code on the host.

Every task of whole steps starts from what the tasks before it left.  What its contract says that it writes is near float64, in its
own CTA and in those that its record sends to; all else in global memory and in the cluster's mailboxes has the bits that it had.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rank_kernels import Kernels

from amk_bench.rank_check import RankCase, case
from amk_core.schedule import ops
from amk_core.schedule.ir import WRITE, Kind, Schedule
from amk_core.vm import rank_program, reference
from amk_core.vm.rank_mail import PART_FLOATS

# Relative to the largest value that a task writes: fp32 rounding after sums; one rounding of the inputs of a product to bf16.  Gate
# times up has two, keys and values another one where they are stored.  Only attention rounds where the reference of `fast` does.
SUM, PRODUCT = 2e-6, 2.0**-8
LIMITS = {"embed": 0.0, "rank_attn": SUM, "o_sum": SUM, "down_sum": SUM, "rank_qkv": 2 * PRODUCT, "gate_up": 2 * PRODUCT}
Array = Any


class Examined(Kernels):
    """Looks at everything that a task leaves."""

    def __init__(self, c: RankCase, s: Schedule, folder: Path) -> None:
        super().__init__(c, s, folder)
        m, self.worst = c.random_model(), defaultdict[str, float](float)
        self.constant: dict[int, Array] = {i: m.logical(b.name) for i, b in enumerate(s.buffers) if b.kind is Kind.WEIGHT}
        for i, b in enumerate(s.buffers):
            if b.kind is Kind.TABLE:
                self.constant[i] = self.floats(self.arrays[i]).astype(np.float64)

    @staticmethod
    def floats(a: Array) -> Array:
        return a.view(ml_dtypes.bfloat16) if a.dtype == np.uint16 else a.view(np.float32) if a.dtype == np.uint32 else a

    def boxes(self, q: int) -> dict[int, Array]:
        """The mailboxes of a queue's CTA as the schedule means them: a piece of attention is {maximum, sum, values}."""
        part, out = self.s.cluster_bytes(self.pool), {}
        for i, b in enumerate(self.s.buffers):
            if not self.box[i] or b.offset // part != q // self.pool.cluster:
                continue
            at = b.offset % part
            a = self.mails[q][at : at + b.bytes].view(np.float32).reshape(b.rows, b.cols)
            if b.name.endswith(".attn"):
                pieces = int(self.s.meta["attn_pieces"])
                d = b.cols // pieces - 2
                values, heads = np.split(a, [pieces * d], axis=1)
                both = [heads.reshape(b.rows, pieces, 2), values.reshape(b.rows, pieces, d)]
                a = np.concatenate(both, axis=2).reshape(b.rows, b.cols)
            out[i] = a.copy()
        return out

    def shared_values(self) -> dict[int, Array]:
        """Global memory, parts as [parts, values]."""
        out = {}
        for i, b in enumerate(self.s.buffers):
            if self.box[i] or i in self.constant:
                continue
            if not b.tagged:
                out[i] = self.floats(self.arrays[i]).copy()
                continue
            out[i] = np.zeros((b.rows, b.cols), np.float32)
            elements = self.arrays[i].reshape(-1).view(np.float32)[: b.bytes // 16 * 4].reshape(-1, PART_FLOATS + 1)
            for (c0, c1), first in self.columns[i].items():
                n = -(-(c1 - c0) // PART_FLOATS)
                mine = elements[first * b.rows : (first + n) * b.rows, :PART_FLOATS].reshape(n, b.rows, PART_FLOATS)
                out[i][:, c0:c1] = mine.transpose(1, 0, 2).reshape(b.rows, -1)[:, : c1 - c0]
        return out

    @property
    def columns(self) -> dict[int, dict[tuple[int, int], int]]:
        """By buffer of parts: its tiles, and the first element of each."""
        found: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        for r in self.program.tasks:
            p = self.params(int(r["id"]))
            if "parts" in p:
                found[p["parts"]][p["col0"], p["col1"]] = int(r["par"][rank_program.ELEMENT_WORD]) & 0xFFFFFF
        return found

    def written(self, i: int, tasks: list[int]) -> Array:
        """Where the contracts of the tasks say that a buffer is written, at places that do not move."""
        c, b = self.s.columns, self.s.buffers[i]
        mask = np.zeros((b.rows, b.cols), bool)
        for t in tasks:
            for a in range(int(c.acc_off[t]), int(c.acc_off[t + 1])):
                if c.acc_buffer[a] == i and c.acc_flags[a] & WRITE and c.acc_raff[a] < 0:
                    mask[c.acc_r0[a] : c.acc_r1[a], c.acc_c0[a] : c.acc_c1[a]] = True
        return mask

    def execute(self, q: int, variables: list[int]) -> None:
        step, at = self.place[q]
        r = self.records(q)[at]
        op, first = ops.BY_CODE[int(r["op"])].name, q // self.pool.cluster * self.pool.cluster
        tasks = self.records(q)["id"][at : at + rank_program.tasks_of(r)].tolist()
        ctas = range(first, first + self.pool.cluster)
        shared, mails = self.shared_values(), {j: self.boxes(j) for j in ctas}
        super().execute(q, variables)
        if op == "sample":
            return
        here = {**shared, **mails[q]}
        want: list[Array] = [self.constant.get(i, here.get(i)) for i in range(len(self.s.buffers))]
        want = [a.copy() if i in here else a for i, a in enumerate(want)]
        want = [a.astype(np.float64) if i in here and a.dtype == np.float32 else a for i, a in enumerate(want)]
        for t in tasks:
            reference.run(op, self.params(t), want, step, variables, fast=op == "rank_attn")
        send = int(r["par"][rank_program.SEND_WORD])
        self.hold(op, tasks, shared, self.shared_values(), want)
        for j in ctas:
            got = j == q or send >> (j - first) & 1
            self.hold(op, tasks, mails[j], self.boxes(j), want if got else None)

    def hold(self, op: str, tasks: list[int], before: dict[int, Array], after: dict[int, Array], want: list[Array] | None) -> None:
        for i, old in before.items():
            new, name = after[i], self.s.buffers[i].name
            mask = self.written(i, tasks)
            if want is None:
                mask[:] = False
            elif self.s.buffers[i].kind is Kind.KV:
                mask |= want[i].view(np.uint16) != old.view(np.uint16)
            elif self.s.buffers[i].kind is Kind.OUTPUT:
                mask |= want[i].astype(np.float32) != old
            same = np.ascontiguousarray(new).view(np.uint8) == np.ascontiguousarray(old).view(np.uint8)
            same = same.reshape(*old.shape, -1).all(axis=-1)
            assert (same | mask).all(), f"{op} of tasks {tasks} writes {name} at {np.argwhere(~same & ~mask)[:3].tolist()}"
            if want is None or not mask.any() or name == "amax":
                continue
            x, y = new.astype(np.float64)[mask], want[i].astype(np.float64)[mask]
            assert np.isfinite(x).all(), f"{op} of tasks {tasks} leaves values of {name} unwritten"
            self.worst[op] = max(self.worst[op], float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)))


@pytest.mark.parametrize(
    "c",
    [
        case("small", 3, 2, 9, 2),
        case("small", 1, 3, 3, 2, "logits"),
        case("small", 3, 2, 0, 3, "prefill"),
        case("small", 2, 4, 300, 1),
    ],
    ids=lambda c: c.name,
)
def test_every_task_writes_what_its_contract_says(c: RankCase, tmp_path: Path) -> None:
    s = c.schedule(0, {}, "sm_90")
    cards = Examined(c, s, tmp_path)
    order = cards.run(c.steps, c.variables, 3)
    assert len(order) == s.n_tasks * c.steps
    seen = {ops.BY_CODE[int(code)].name for code in np.unique(s.columns.task_op)} - {"sample"}
    assert set(cards.worst) == seen
    assert {op: x for op, x in cards.worst.items() if x > LIMITS.get(op, PRODUCT)} == {}
    assert all(x > 0 for op, x in cards.worst.items() if op != "embed")
