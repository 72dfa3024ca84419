"""The kernels for ranks, their own code compiled for the host, on the records and the tape of the device VM.

What speaks to the card is replaced (rank_host.h): mbarriers and st.async by counting, the ring by the tape, tensor cores by sums.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from host_arrays import host_arrays
from host_compiler import compiled
from rank_cluster import Cards

from amk_bench.device_cases import device_tape
from amk_bench.rank_check import RankCase
from amk_core import resources
from amk_core.schedule import ops
from amk_core.schedule.ir import WRITE, Schedule
from amk_core.schedule.pack import aligned_zeros
from amk_core.vm import rank_program, reference
from amk_core.vm.program import Program, tile_span
from amk_core.vm.rank_mail import PART_FLOATS

HERE = Path(__file__).parent
BODIES = ("rank_attn.cuh", "rank_gemv.cuh", "rank_parts.cuh")
STAND_INS = ("rank_mail.cuh", "rank_access.cuh", "weights.cuh", "ring.cuh", "tagged.cuh")


def library(folder: Path, defines: dict[str, int]) -> ctypes.CDLL:
    for name in BODIES:
        shutil.copy(resources.kernels_dir() / name, folder / name)
    shutil.copy(HERE / "rank_host.h", folder / "common.cuh")
    for name in STAND_INS:
        (folder / name).write_text('#include "common.cuh"\n')
    flags = ["-O2", "-w", "-ffp-contract=off", "-shared", "-fPIC", f"-I{folder}", f"-I{HERE}", f"-I{resources.vm_dir()}"]
    flags += [f"-D{k}={v}" for k, v in defines.items()]
    return ctypes.CDLL(str(compiled(folder / "kernels.so", [HERE / "rank_host_main.cpp"], *flags)))


class Kernels(Cards):
    """A cluster whose tasks are the kernels' code; argmax and sampler are the reference's."""

    def __init__(self, c: RankCase, s: Schedule, folder: Path) -> None:
        dims = rank_program.rank_dims(s)
        plan = rank_program.plan_ranks(s, dims, "sm_90", 232_448)
        self.code = library(folder, dict(plan.defines))
        m = c.random_model()
        tape, where = device_tape(c, m, s, c.tiled(0, {}, "sm_90"))
        self.tape = tape
        self.arrays = host_arrays(s, m.bound(s))
        self.index = {b.name: i for i, b in enumerate(s.buffers)}
        c.fill(s, lambda name: self.arrays[self.index[name]])
        address: Callable[[int], int] = lambda b: int(self.arrays[b].ctypes.data)  # noqa: E731
        program = rank_program.build_rank_program(s, dims, address, where, 0)
        super().__init__(s, program, {})
        self.mails = [aligned_zeros(plan.defines["AMK_RANK_MAIL_BYTES"]) for _ in range(s.n_queues)]
        for a in self.mails:
            a[:] = 0xFF
        self.pointers = (ctypes.c_void_p * s.n_queues)(*[a.ctypes.data for a in self.mails])
        self.tiles = self.tile_places(program)

    @staticmethod
    def tile_places(program: Program) -> dict[int, list[int]]:
        """By task: where each slot of its tile begins on the tape."""
        starts, ends = tile_span(program.tiles)
        blocks = program.tiles["block"].astype(np.int64) * 512
        ids = program.tasks["id"][program.streams]
        return {int(t): list(range(int(a), int(e), int(b))) for t, a, e, b in zip(ids, starts, ends, blocks, strict=True)}

    def ready(self, q: int, steps: int) -> bool:
        step, at = self.place[q]
        if step < steps and len(self.records(q)):
            r = self.records(q)[at]
            p, word = self.params(int(r["id"])), int(r["par"][rank_program.ELEMENT_WORD])
            if "parts" in p:  # the tags as they stand in memory
                first, n = word & 0xFFFFFF, word >> 24
                elements = -(-(p["col1"] - p["col0"]) // PART_FLOATS)
                tags = self.arrays[p["parts"]].reshape(-1, 2)[first * n : (first + elements) * n, 1] >> np.uint64(32)
                self.parts[p["parts"]][1][first * n : (first + elements) * n] = tags
        return super().ready(q, steps)

    def execute(self, q: int, variables: list[int]) -> None:
        step, at = self.place[q]
        r, c, size = self.records(q)[at], self.s.columns, self.pool.cluster
        span = rank_program.tasks_of(r)
        together = self.records(q)["id"][at : at + span].tolist()
        t, op, first = int(r["id"]), ops.BY_CODE[int(r["op"])].name, q // size * size
        if r["par"][rank_program.ARRIVE_WORD] >= 0:
            self.barriers[q][r["par"][rank_program.ARRIVE_WORD]].arm(int(r["par"][rank_program.BYTES_WORD]))
        sent = np.zeros(16, np.int32)
        p = self.params(t)
        if op == "sample":
            reference.run(op, p, self.arrays, step, variables)
        else:
            record = aligned_zeros(r.nbytes)
            record[:] = np.frombuffer(r.tobytes(), np.uint8)
            places = [self.tape.ctypes.data + x for u in together for x in self.tiles.get(u, [])]
            slots = (ctypes.c_void_p * max(len(places), 1))(*places)
            v = np.array(variables, np.int32)
            mails = ctypes.byref(self.pointers, first * ctypes.sizeof(ctypes.c_void_p))
            failed = self.code.run_task(
                ctypes.c_void_p(record.ctypes.data), step, q % size, ctypes.c_void_p(v.ctypes.data), mails, slots,
                ctypes.c_void_p(sent.ctypes.data),
            )  # fmt: skip
            assert not failed, f"threads of task {t} ({op}) wait for each other"
        if op == "lm_head" and p["amax"] >= 0:
            tile_logits = self.arrays[p["logits"]][0, p["row0"] : p["row1"]]
            best = np.array([p["row0"] + tile_logits.argmax()], np.int32).view(np.float32)[0]
            self.arrays[p["amax"]][0, 2 * p["tile"] : 2 * p["tile"] + 2] = tile_logits.max(), best
        send = int(r["par"][rank_program.SEND_WORD])
        mine = [a for u in together for a in range(int(c.acc_off[u]), int(c.acc_off[u + 1]))]
        boxed = [a for a in mine if self.box[c.acc_buffer[a]] and c.acc_flags[a] & WRITE]
        area = sum(int((c.acc_r1[a] - c.acc_r0[a]) * (c.acc_c1[a] - c.acc_c0[a])) * 4 for a in boxed)
        for j in range(size):
            assert sent[j] == (area if send >> j & 1 else 0), f"task {t} ({op}) sends {sent[j]} bytes to CTA {j}"
            if send >> j & 1:
                self.barriers[first + j][send >> 16].arrive(int(sent[j]))
        for counter, amount in r["signals"][: r["n_signals"]].tolist():
            self.counters[counter] += amount
        self.place[q] = (step + (at + span == len(self.records(q))), (at + span) % len(self.records(q)))
