"""What a card does with the records of a program for ranks, task by task, with the reference's ops.

Every CTA has its own mailboxes, values go to the CTAs that the records name, barriers count bytes, and parts lie as elements of
three sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from amk_core.schedule import ops
from amk_core.schedule.ir import WRITE, Kind, Schedule
from amk_core.vm import reference
from amk_core.vm.program import Program
from amk_core.vm.rank_mail import PART_FLOATS, cluster_pool
from amk_core.vm.rank_program import ARRIVE_WORD, BYTES_WORD, ELEMENT_WORD, SEND_WORD, tasks_of

INLINE = 4


class Barrier:
    """An mbarrier of one arrival."""

    def __init__(self) -> None:
        self.phase, self.pending, self.bytes = 0, 1, 0

    def arm(self, n: int) -> None:
        assert self.pending == 1, "armed twice"
        self.pending, self.bytes = 0, self.bytes + n
        self._turn()

    def arrive(self, n: int) -> None:
        self.bytes -= n
        self._turn()

    def _turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, 1


class Stuck(AssertionError):
    """No queue can go on."""


class Cards:
    """Runs a program; ``values`` by buffer name, in the layouts of the schedule."""

    def __init__(self, s: Schedule, program: Program, values: Mapping[str, Any]) -> None:
        self.s, self.program, self.pool = s, program, cluster_pool(s)
        self.box = [b.pool == self.pool.id for b in s.buffers]
        shared = [np.array(values[b.name]) if b.name in values else np.zeros((b.rows, b.cols)) for b in s.buffers]
        self.shared = shared
        self.own = [
            [np.full((b.rows, b.cols), np.nan) if self.box[i] else shared[i] for i, b in enumerate(s.buffers)]
            for _ in range(s.n_queues)
        ]  # fmt: skip
        n_elements = {i: b.bytes // 16 for i, b in enumerate(s.buffers) if b.tagged}
        self.parts = {i: (np.full((n, PART_FLOATS), np.nan), np.zeros(n, int)) for i, n in n_elements.items()}
        self.counters = np.zeros(program.n_counters, int)
        n = int(program.tasks["par"][:, ARRIVE_WORD].max()) + 1
        self.barriers = [[Barrier() for _ in range(max(n, 1))] for _ in range(s.n_queues)]
        self.place = [(0, 0)] * s.n_queues  # step and place in the queue
        for q in range(s.n_queues):
            for r in self.records(q):
                if r["par"][ARRIVE_WORD] >= 0:
                    self.barriers[q][r["par"][ARRIVE_WORD]].arm(int(r["par"][BYTES_WORD]))

    def records(self, q: int) -> Any:
        return self.program.tasks[self.program.queue_off[q] : self.program.queue_off[q + 1]]

    def ready(self, q: int, steps: int) -> bool:
        step, at = self.place[q]
        if step == steps or not len(self.records(q)):
            return False
        r = self.records(q)[at]
        assert r["n_waits"] <= INLINE
        for counter, per_step, base in r["waits"][: r["n_waits"]].tolist():
            if self.counters[counter] < step * per_step + base:
                return False
        i = int(r["par"][ARRIVE_WORD])
        if i >= 0:
            assert self.barriers[q][i].phase <= step + 1, "a phase was completed before its step"
            if self.barriers[q][i].phase != step + 1:
                return False
        p = self.params(int(r["id"]))
        if "parts" in p:
            first, n = int(r["par"][ELEMENT_WORD]) & 0xFFFFFF, int(r["par"][ELEMENT_WORD]) >> 24
            elements = -(-(p["col1"] - p["col0"]) // PART_FLOATS)
            return bool((self.parts[p["parts"]][1][first * n : (first + elements) * n] == step + 1).all())
        return True

    def params(self, t: int) -> Any:
        c = self.s.columns
        return ops.BY_CODE[int(c.task_op[t])].decode(c.par[c.par_off[t] : c.par_off[t + 1]])

    def execute(self, q: int, variables: list[int]) -> None:
        step, at = self.place[q]
        r, c, size = self.records(q)[at], self.s.columns, self.pool.cluster
        span = tasks_of(r)
        t = int(r["id"])
        name, p, buffers = ops.BY_CODE[int(r["op"])].name, self.params(t), list(self.own[q])
        word = int(r["par"][ELEMENT_WORD])
        first, n = word & 0xFFFFFF, word >> 24
        if r["par"][ARRIVE_WORD] >= 0:
            self.barriers[q][r["par"][ARRIVE_WORD]].arm(int(r["par"][BYTES_WORD]))
        if "parts" in p:
            b, width = p["parts"], p["col1"] - p["col0"]
            elements = -(-width // PART_FLOATS)
            x = self.parts[b][0][first * n : (first + elements) * n].reshape(elements, n, PART_FLOATS)
            buffers[b] = np.full((n, self.s.buffers[b].cols), np.nan)
            buffers[b][:, p["col0"] : p["col1"]] = x.transpose(1, 0, 2).reshape(n, -1)[:, :width]
        if "part" in p:
            buffers[p["out"]] = np.full((n, self.s.buffers[p["out"]].cols), np.nan)
        together = [int(x) for x in self.records(q)["id"][at : at + span]]
        for u in together:
            reference.run(name, self.params(u), buffers, step, variables, fast=True)
        if "part" in p:
            y = buffers[p["out"]][p["part"], p["row0"] : p["row1"]]
            for e in range(-(-len(y) // PART_FLOATS)):
                values, tags = self.parts[p["out"]]
                place = (first + e) * n + p["part"]
                piece = y[e * PART_FLOATS : (e + 1) * PART_FLOATS]
                values[place, : len(piece)], tags[place] = piece, step + 1
        send, sent = int(r["par"][SEND_WORD]), 0
        for a in (a for u in together for a in range(int(c.acc_off[u]), int(c.acc_off[u + 1]))):
            b = int(c.acc_buffer[a])
            if not (self.box[b] and c.acc_flags[a] & WRITE):
                continue
            where = (slice(int(c.acc_r0[a]), int(c.acc_r1[a])), slice(int(c.acc_c0[a]), int(c.acc_c1[a])))
            sent += 4 * self.own[q][b][where].size
            for j in range(size):
                if send >> j & 1:
                    self.own[q // size * size + j][b][where] = self.own[q][b][where]
        for j in range(size):
            if send >> j & 1:
                assert j != q % size, "a task sends to itself"
                self.barriers[q // size * size + j][send >> 16].arrive(sent)
        for counter, amount in r["signals"][: r["n_signals"]].tolist():
            self.counters[counter] += amount
        self.place[q] = (step + (at + span == len(self.records(q))), (at + span) % len(self.records(q)))

    def run(self, steps: int, variables: list[int], seed: int) -> list[int]:
        """In an order that the seed draws; the tasks in it."""
        rng, order = np.random.default_rng(seed), []
        while True:
            able = [q for q in range(self.s.n_queues) if self.ready(q, steps)]
            if not able:
                break
            q = int(rng.choice(able))
            at = self.place[q][1]
            order += self.records(q)["id"][at : at + tasks_of(self.records(q)[at])].tolist()
            self.execute(q, variables)
        left = [q for q in range(self.s.n_queues) if len(self.records(q)) and self.place[q][0] < steps]
        if left:
            raise Stuck(f"queues {left} wait at {[self.place[q] for q in left]}")
        return order


def alone(s: Schedule, order: list[int], values: Mapping[str, Any], variables: list[int]) -> list[Any]:
    """The same tasks in the same order over one copy of every buffer, as the schedule means it; the buffers."""
    buffers = [np.array(values[b.name]) if b.name in values else np.zeros((b.rows, b.cols)) for b in s.buffers]
    done: dict[int, int] = {}
    c = s.columns
    for t in order:
        spec = ops.BY_CODE[int(c.task_op[t])]
        p = spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]])
        reference.run(spec.name, p, buffers, done.get(t, 0), variables, fast=True)
        done[t] = done.get(t, 0) + 1
    return buffers


def values_of(s: Schedule) -> dict[str, Any]:
    """Random weights, tables and KV rows, token 7, nothing that stops."""
    out: dict[str, Any] = {}
    for b in s.buffers:
        rng = np.random.default_rng(list(b.name.encode()))
        if b.kind is Kind.WEIGHT:
            out[b.name] = rng.standard_normal((b.rows, b.cols)) * b.cols**-0.5
        elif b.kind in (Kind.TABLE, Kind.KV):
            out[b.name] = rng.standard_normal((b.rows, b.cols))
        elif b.dtype in ("i32", "b32", "u32"):
            out[b.name] = np.full((b.rows, b.cols), 7 if b.name == "token" else -1 if b.name == "stop_ids" else 0)
        elif b.name == "amax":
            out[b.name] = np.zeros((b.rows, b.cols), np.float32)
    return out
