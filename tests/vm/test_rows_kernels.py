"""Fast steps of several rows by the kernels' own code, compiled for the host: marked values give the bits of tagged ones, and
chunks of 32 rows those of 16.

Instructions are replaced (rows_host.h): the ring by the tape, tensor cores by sums, polls by loads that must find their value.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_arrays import host_arrays
from host_compiler import compiled
from host_text import host_text, part

from amk_bench.device_cases import CASES, GRAPHS, Array, Case, bits, device_tape, distances, graph, run_cpu
from amk_bench.footprints import Bytes, Contracts, Masks, chosen_tasks, violation
from amk_core import resources
from amk_core.schedule import ops
from amk_core.schedule.ir import Buffer, Kind, Schedule
from amk_core.schedule.pack import aligned_zeros
from amk_core.vm import marked as marked_values
from amk_core.vm import reference
from amk_core.vm.plan import Dims, ProgramError, markable, plan_build
from amk_core.vm.program import TILE, build_program, tile_span

HERE, SMEM = Path(__file__).parent, 232_448
# In the order in which they include each other: the functions of each that the host replaces.
KERNELS: dict[str, str] = {
    "common.cuh": "report sync_tasks any_thread load_shared_f32 load_shared_f32x2 load_shared_f32x4 load_shared_i32 load_table "
    "load_table_x4 exp_fast reciprocal_fast rsqrt_fast pack_bf16",
    "weights.cuh": "mma_bf16 mma_s8 mma_s8_from",
    "tagged.cuh": "load_elements store_elements store_element peek poke poll_is_over",
    "marked.cuh": "load_marked_pairs load_marked_word store_marked_pair store_marked_floats",
    "finish.cuh": "",
    "activations.cuh": "copy_16 copy_4",
    "combine.cuh": "",
    "gemv_exact.cuh": "",
    "gemv_fast.cuh": "",
    "rows_finish.cuh": "",
    "gemv_rows.cuh": "",
    "integer_rows.cuh": "",
    "gemv_quant.cuh": "",
    "attention_exact.cuh": "",
    "attention_work.cuh": "load_shared_u32x4 transpose_8x8",
    "attention_long.cuh": "fetch_cache",
    "attention_short.cuh": "",
    "attention_fast.cuh": "",
    "embed.cuh": "",
}
CURSOR = """
#ifndef AMK_QUANT
#define AMK_QUANT 0
#endif
#ifndef AMK_PAIRS
#define AMK_PAIRS 0
#endif
constexpr int kSlots = AMK_SLOTS, kSlotUnits = AMK_SLOT_UNITS, kUnitBytes = 512, kPieceUnits = 64;
%s
static TileRef tile;  // of the task that runs
struct RingCursor {  // every slot of the tile in the loader's order
  TileRuns runs{tile};
  const uint8_t* at = tape_at;
  const uint8_t* wait() const { return at; }
  void release(int, int) {
    __syncwarp();
    const uint32_t units = runs.run < runs.unit.slot ? runs.run : runs.unit.slot;
    at += units * runs.unit.bytes, runs.take(units);
  }
  void keep(int) const {
    if (runs.left != 0) std::abort();  // the task leaves weights behind
  }
};
inline void tile_argmax(const Context, const float*) {}
inline bool run_sample(const Context) { std::abort(); }
inline void atomicMin(uint32_t*, uint32_t) {}
inline void report(const Fault&) { std::abort(); }
"""


def text() -> str:
    """The kernels' text, and the dispatch of tasks."""
    kernels, vm = resources.kernels_dir(), resources.vm_dir()
    out = ['#include "rows_host.h"']
    for name, replaced in KERNELS.items():
        t = host_text((kernels / name).read_text(), replaced.split())
        if name == "common.cuh":
            t = t.replace(
                "extern __shared__ __align__(128) uint8_t dynamic_shared[];",
                "alignas(128) static uint8_t dynamic_shared[AMK_WORK_BYTES];",
            )
            t = t.replace("__shared__ Shared shared;", "static Shared shared;").replace("constexpr int kThreads = kWarps * 32;", "")
            t = t.replace("int thread;", "int thread = current;")
            ring = (vm / "ring.cuh").read_text()
            runs = ring[ring.index("// The units of one tile") : ring.index("// The loader warp's whole life")]
            t += "namespace amk {\n" + CURSOR % runs + "}\n"
        out.append(t)
    scheduler = (vm / "scheduler.cu").read_text()
    product = scheduler[scheduler.index("// A matrix of K columns") : scheduler.index("// Between tasks nothing")]
    out.append("namespace amk {\n" + part((vm / "waits.cuh").read_text(), r"^enum Outcome ") + host_text(product) + "}\n")
    return "\n".join(out)


MAP = """#include "marked_map.h"
using namespace amk;
extern "C" void words(int rows, int k, int* floats, int* pairs) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < k; ++i) *floats++ = marked_float(r, i, rows), *pairs++ = marked_pair(r, i & ~1, rows);
}
"""


class Kernels:
    """A program whose tasks are the kernels' code, in the order of the schedule; argmax and sampler are the reference's."""

    def __init__(self, c: Case, s: Schedule, folder: Path, marked: bool = False) -> None:
        dims = Dims.of(s)
        plan = plan_build(dims, "sm_90", SMEM, marked=marked)
        (folder / "rows_text.h").write_text(text())
        flags = ["-O2", "-w", "-ffp-contract=off", "-shared", "-fPIC", f"-I{folder}", f"-I{HERE}", f"-I{resources.vm_dir()}"]
        flags += [f"-D{k}={v}" for k, v in plan.defines.items()]
        self.code = ctypes.CDLL(
            str(compiled(folder / f"rows-{len(list(folder.iterdir()))}.so", [HERE / "rows_host_main.cpp"], *flags))
        )
        m = c.random_model()
        self.tape, where = device_tape(c, m, s, s)
        self.arrays = host_arrays(s, m.bound(s), 0xFF if marked else 0)
        self.index = {b.name: i for i, b in enumerate(s.buffers)}
        c.fill(s, self.array)
        self.s, self.case = s, c
        units, at = plan.defines["AMK_SLOT_UNITS"], int(self.tape.ctypes.data)
        p = build_program(s, dims, units, lambda b: int(self.arrays[b].ctypes.data), where, at)
        self.records = aligned_zeros(p.tasks.nbytes).view(p.tasks.dtype)
        self.records[:] = p.tasks
        self.tiles = dict(zip(p.tasks["id"][p.streams].tolist(), p.tiles, strict=True))

    def array(self, name: str) -> Any:
        return self.arrays[self.index[name]]

    def run(self) -> dict[str, Array]:
        v = np.array(self.case.variables, np.int32)
        for step in range(self.case.steps):
            for at in np.argsort(self.records["id"]):
                self.task(self.records[at : at + 1], step, v)
        return self.case.results(self.s, self.array)

    def marked(self, step: int) -> dict[str, Array]:
        """The words of the step's half of every buffer of marked values, by element."""
        held = {b.name: b for b in self.s.buffers if marked_values.is_marked(b)}
        return {name: marked_values.halves(b, self.array(name))[step % 2] for name, b in held.items()}

    def task(self, record: Any, step: int, v: Array) -> None:
        t, op = int(record["id"][0]), ops.BY_CODE[int(record["op"][0])].name
        c = self.s.columns
        p = ops.BY_NAME[op].decode(c.par[c.par_off[t] : c.par_off[t + 1]])
        if op == "sample":
            reference.run(op, p, self.arrays, step, v.tolist())
            return
        tile = self.tiles.get(t, np.zeros((), TILE))
        weights = ctypes.c_void_p(self.tape.ctypes.data + int(tile_span(tile)[0]))
        of = np.array(tile)
        failed = self.code.run_task(
            ctypes.c_void_p(record.ctypes.data),
            step,
            ctypes.c_void_p(v.ctypes.data),
            len(v),
            weights,
            ctypes.c_void_p(of.ctypes.data),
        )
        assert not failed, f"threads of task {t} ({op}) wait for each other"


# Normalised rows and those of the output projection are longer than a piece: warps have 8 or 9 units, which registers do not hold.
TALL = graph("tall", 64, 2080, 64, 1, 66, 6, 32)
LONG = graph("long", 96, 1088, 2112, 1, 8, 2, 64)  # warps have 4 or 5 units of K; the down projection two pieces, one of them short


@pytest.fixture(autouse=True)
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for g in (LONG, TALL):
        monkeypatch.setitem(GRAPHS, g.name, g)  # type: ignore[arg-type]


def case(name: str, **changes: Any) -> Case:
    return replace(next(c for c in CASES if c.name == name), **{"sampled": False, **changes})


ROWS = (
    case("fast-small-batch"),  # three sequences that end apart, in one block of attention and in two
    case("fast-small-batch", batch=2, p0=(255, 40), tokens=(4, 4), steps=4, context=512),  # into the second block
    case("fast-smol-batch", p0=(0, 3, 1, 7), tokens=(1,) * 4, steps=1, context=64),  # a warp has three units of K, some two
    case("fast-heads-near", batch=2, p0=(190, 3), tokens=(3, 3), steps=3),  # from one quarter of a block into the next
    case("fast-wide-batch", model="long", p0=tuple(range(16)), tokens=(1,) * 14 + (0, 1), steps=1, context=64),
    case("fast-wide-batch", model="tall", p0=tuple(range(16)), tokens=(1,) * 16, steps=1, context=64),
    case("fast-smol-batch", model="tall", batch=3, p0=(0, 3, 1), tokens=(1,) * 3, steps=1, context=64),
)


@pytest.mark.parametrize("c", ROWS, ids=lambda c: f"{c.model}-{c.batch}")
def test_marked_values_give_the_bits_of_tagged_ones(c: Case, tmp_path: Path) -> None:
    s = c.schedule(3, {"handoff": "tagged"}, "sm_90")
    kernels = [Kernels(c, s, tmp_path, marked) for marked in (False, True)]
    tagged, marked = (k.run() for k in kernels)
    assert {k: bits(v) for k, v in marked.items()} == {k: bits(v) for k, v in tagged.items()}
    handed_on = kernels[1].marked(c.steps - 1)
    assert {"embedded", "L0.attn", "L0.mid", "L0.act", "L0.h"} <= handed_on.keys()
    for name, words in handed_on.items():
        elements = np.ascontiguousarray(kernels[0].array(name)).view(np.uint32).reshape(*words.shape, 2)
        np.testing.assert_array_equal(elements[..., 1], c.steps)
        np.testing.assert_array_equal(words, elements[..., 0])
    assert all(
        (words == marked_values.UNWRITTEN).all() for words in kernels[1].marked(c.steps).values()
    )  # what the next step writes
    if c.model == "small":
        mine, theirs = distances(c, marked, run_cpu(c))
        assert 0 < mine <= 1.5 * theirs


# Of heads of 128 values a warp has two tiles of the first half of a block, one of the third quarter and one of the last.
LONG_HEADS = (
    case("fast-heads-near", steps=12, tokens=(12,)),  # into the second half
    case("fast-heads-near", p0=(187,), steps=9, tokens=(9,)),  # from one quarter into the next
    case("fast-heads-far", steps=8, tokens=(8,)),  # into the second block
)


@pytest.mark.parametrize("c", LONG_HEADS, ids=lambda c: str(c.p0[0]))
def test_bits_of_long_heads_depend_on_neither_hand_off_nor_splits(c: Case, tmp_path: Path) -> None:
    runs = [
        Kernels(c, c.schedule(3, {"handoff": handoff, "attn_splits": splits}, "sm_90"), tmp_path).run()
        for handoff, splits in (("tagged", 0), ("tagged", 1), ("counter", 1))
    ]
    assert len({tuple(bits(v) for v in run.values()) for run in runs}) == 1
    mine, theirs = distances(c, runs[0], run_cpu(c))
    assert 0 < mine <= 1.5 * theirs


def test_bits_of_long_heads_do_not_depend_on_the_chunk(tmp_path: Path) -> None:
    """Keys and values of the second layer have been through the attention of the first."""
    ends, n = (6, 133, 196, 262), 6

    def cache(chunk: int) -> list[bytes]:
        c = case("fast-heads-near", batch=len(ends), chunk=chunk, purpose="logits", steps=-(-n // chunk), context=512)
        c = replace(c, p0=tuple(end - n for end in ends), tokens=(n,) * len(ends))
        k = Kernels(c, c.schedule(3, {}, "sm_90"), tmp_path)
        k.run()
        rows = [k.array(name).reshape(len(ends), -1, k.array(name).shape[-1]) for name in ("L1.k", "L1.v")]
        return [bits(r[i, end - n : end]) for i, end in enumerate(ends) for r in rows]

    one_by_one = cache(1)
    assert all(any(rows) for rows in one_by_one)
    for chunk in (4, 6):  # a tile of eight rows, and one of sixteen
        assert cache(chunk) == one_by_one


@pytest.mark.parametrize(("rows", "k"), [(2, 32), (3, 96), (16, 2048), (5, 576)])
def test_marked_values_have_a_word_each_and_a_warp_reads_them_in_a_row(rows: int, k: int, tmp_path: Path) -> None:
    source = tmp_path / "map.cpp"
    source.write_text(MAP)
    code = ctypes.CDLL(str(compiled(tmp_path / "map.so", [source], "-shared", "-fPIC", f"-I{resources.vm_dir()}")))
    floats, pairs = (np.full((rows, k), -1, np.int32) for _ in range(2))
    code.words(rows, k, ctypes.c_void_p(floats.ctypes.data), ctypes.c_void_p(pairs.ctypes.data))
    for name, cols, of_kernels in (("L0.h", k, floats), ("L0.act", k // 2, pairs[:, ::2])):
        b = Buffer(name, Kind.ACTIVATION, "tag64", (rows, cols), tagged=True)
        np.testing.assert_array_equal(marked_values.places(b), of_kernels)
    assert sorted(floats.reshape(-1).tolist()) == list(range(rows * k))
    assert sorted(pairs[:, ::2].reshape(-1).tolist()) == list(range(rows * k // 2))
    unit = min(8, rows)
    for first in (0, 4):  # either access of the lanes of a warp: four values of each eight, of up to eight rows
        taken = floats[:unit, :32].reshape(unit, 4, 8)[:, :, first : first + 4].reshape(-1)
        assert sorted(taken.tolist()) == list(range(int(taken.min()), int(taken.min()) + len(taken)))
    assert sorted(pairs[:unit, :32:2].reshape(-1).tolist()) == list(range(16 * unit))


class HostBench:
    """A program of the kernels on the footprints' bench."""

    def __init__(self, kernels: Kernels, marked: bool) -> None:
        self.kernels, self.schedule, self.marked = kernels, kernels.s, marked
        pools = {p.id: np.zeros(kernels.s.pool_bytes(p.id), np.uint8) for p in kernels.s.pools}
        self.buffers = [b for b in kernels.s.buffers if b.kind is not Kind.WEIGHT]
        tables = {f"table:{b.name}": self.bytes_of(b) for b in self.buffers if b.kind is Kind.TABLE}
        self.memory: dict[str, Bytes] = {**pools, **tables, "tape": kernels.tape.view(np.uint8).reshape(-1)}

    def bytes_of(self, b: Buffer) -> Bytes:
        raw: Bytes = self.kernels.array(b.name).view(np.uint8).reshape(-1)
        return raw

    def read(self) -> dict[str, Bytes]:
        return {k: v.copy() for k, v in self.memory.items()}

    def write(self, memory: Any) -> None:
        for k, v in memory.items():
            self.memory[k][:] = v

    def tile(self, task: int) -> tuple[int, int]:
        if task not in self.kernels.tiles:
            return 0, 0
        start, end = tile_span(self.kernels.tiles[task])
        return int(start), int(end)

    def run(self, task: int, variables: Any, steps: int) -> None:
        inside = [(self.bytes_of(b), self.memory[b.pool][b.offset :][: b.bytes]) for b in self.buffers if b.kind is not Kind.TABLE]
        for mine, pool in inside:
            mine[:] = pool
        records = self.kernels.records
        for step in range(steps):
            self.kernels.task(records[records["id"] == task], step, np.array(variables, np.int32))
        for mine, pool in inside:
            pool[:] = mine


@pytest.mark.parametrize("marked", [False, True], ids=["tagged", "marked"])
def test_no_task_of_several_rows_touches_more_than_its_contract_declares(marked: bool, tmp_path: Path) -> None:
    c = Case("rows", "small", "fast", batch=3, p0=(0, 5, 130), tokens=(9, 0, 9), steps=2)
    s = c.schedule(7, {"attn_splits": 2, "fuse_argmax": False}, "sm_90")
    bench, contracts = HostBench(Kernels(c, s, tmp_path, marked), marked), Contracts(s)
    tasks = [t for t in chosen_tasks(s) if int(s.columns.task_op[t]) != ops.CODES["sample"]]
    assert not [v for i, t in enumerate(tasks) if (v := violation(bench, contracts, t, c.variables, 1, seed=i))]

    class Lie(Contracts):
        """Half of what a task writes is not declared."""

        def masks(self, *rest: Any) -> Masks:
            m = super().masks(*rest)
            hit = np.flatnonzero(m.writes["tag"])
            m.writes["tag"][hit[: len(hit) // 2]] = False
            m.certain["tag"] &= m.writes["tag"]
            return m

    task = int(np.flatnonzero(s.columns.task_op == ops.CODES["down_proj"])[0])
    assert "does not declare" in str(violation(bench, Lie(s), task, c.variables, 1, seed=1))


def test_marked_values_are_for_several_rows_in_whole_units() -> None:
    def dims(name: str, **changes: Any) -> Dims:
        return Dims.of(case(name, **changes).schedule(3, {"handoff": "tagged"}, "sm_90"))

    assert markable(dims("fast-small-batch"))
    assert not markable(dims("fast-small-batch", batch=1, p0=(0,), tokens=(1,)))
    assert markable(dims("fast-big-batch"))
    taller = replace(dims("fast-big-batch"), hidden=4128)  # a normalised row of more than two pieces
    assert not markable(taller)
    with pytest.raises(ProgramError, match="at most 4096 values in a normalised row; leave marked out"):
        plan_build(taller, "sm_90", SMEM, marked=True)
    plain, marked = (plan_build(dims("fast-wide-batch"), "sm_90", SMEM, marked=m).defines for m in (False, None))
    assert "AMK_MARKED" not in plain
    assert marked["AMK_MARKED"] == 1
    assert marked["AMK_SLOTS"] > plain["AMK_SLOTS"]  # no shared memory for activations
    assert "AMK_MARKED" not in plan_build(taller, "sm_90", SMEM).defines
    for rows, arch, smem in ((2, "sm_90", SMEM), (4, "sm_86", 101_376)):  # not quicker, and not measured
        assert "AMK_MARKED" not in plan_build(replace(dims("fast-big-batch"), rows=rows), arch, smem).defines
    long = [plan_build(replace(dims("fast-big-batch"), rows=n), "sm_90", SMEM).defines for n in (3, 4, 8, 16)]
    assert all(d["AMK_MARKED"] == 1 for d in long)
    fragments = [d["AMK_STAGE_BYTES"] // 4096 for d in long]
    assert fragments == [16 - 8, 16 - 8, 16 - 8, 32 - 9]  # but for those that registers hold
    assert [(d["AMK_SLOTS"], d["AMK_SLOT_UNITS"]) for d in long] == [(5, 64)] * 3 + [(6, 32)]
    assert [d["AMK_FLIGHT_HIGH"] for d in long] == [3, 3, 2, 6]
    flights = [
        plan_build(dims("fast-small-batch", batch=n, p0=(0,) * n, tokens=(1,) * n), arch, SMEM).defines["AMK_FLIGHT_HIGH"]
        for arch in ("sm_90", "sm_80")
        for n in (2, 3)
    ]
    assert flights == [3, 2, marked["AMK_SLOTS"], marked["AMK_SLOTS"]]


def test_a_chunk_of_32_rows_gives_the_bits_of_chunks_of_16(tmp_path: Path) -> None:
    seen = []
    for chunk, steps in ((32, 1), (16, 2)):
        c = Case("chunks", "long", "fast", "logits", chunk=chunk, steps=steps, tokens=(30,), p0=(250,), context=512)
        s = c.schedule(3, {}, "cpu" if chunk == 16 else "sm_90")  # attention merged by every tile, and once
        assert Dims.of(s).fused_combine == (chunk == 16)
        seen.append({k: bits(v) for k, v in Kernels(c, s, tmp_path).run().items()})
    assert seen[0] == seen[1]


def test_chunks_of_32_rows_stage_a_row_of_one_piece_and_longer_ones_piece_by_piece() -> None:
    for chunk, stage in ((16, 16 * 2048 * 2), (32, 32 * 2048 * 2)):
        c = Case("chunks", "wide", "fast", "prefill", chunk=chunk, steps=1, tokens=(chunk,))
        plan = plan_build(Dims.of(c.schedule(3, {}, "sm_90")), "sm_90", SMEM).defines
        assert plan["AMK_STAGE_BYTES"] == stage
        assert plan["AMK_SLOTS"] >= 4
