"""Programs for ranks without a card: index maps, what the records make a cluster do, what is refused, what compiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_card import FakeCard
from host_compiler import compiled
from rank_cluster import Cards, Stuck, alone, values_of

from amk_bench.device_cases import GRAPHS, Case
from amk_core import resources
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import ops, tables, validate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.targets import Target
from amk_core.vm import driver, nvrtc, rank_mail, rank_program
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout, fragment_order
from amk_core.vm.driver import CudaError, Device
from amk_core.vm.plan import Dims, ProgramError
from amk_core.vm.program import TASK, Program
from amk_core.vm.rank_mail import cluster_pool, plan_mail
from amk_core.vm.rank_vm import RankVM

H200 = Target.named("h200")
SPILL_LIMIT_BYTES, REGISTER_LIMIT = 0, 168
STEPS = 3


def ranked(
    name: str = "small", count: int = 3, cluster: int = 2, mode: Mode = "fast", context: int = 64, purpose: Purpose = "decode"
) -> Schedule:  # fmt: skip
    graph = GRAPHS[name] if name in GRAPHS else GRAPH_SHAPES[name]
    return lower_ranks(graph, Ranks(count, cluster), H200, Geometry(purpose, context=context), mode)


def build(s: Schedule, tiled: Schedule | None = None) -> Program:
    """Records of a schedule, on the tape of ``tiled``."""
    where = DeviceTapeLayout.of(tiled or s).locate(s)
    return rank_program.build_rank_program(s, rank_program.rank_dims(s), lambda b: 0x1000 * (b + 1), where, 1 << 40)


# -- index maps
@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[tuple[int, int], int]]:
    import subprocess

    source = Path(__file__).with_name("rank_maps_host.cpp")
    program = compiled(tmp_path_factory.mktemp("maps") / "maps", [source], f"-I{resources.vm_dir()}")
    out: dict[str, dict[tuple[int, int], int]] = {}
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        name, a, b, x = line.split()
        out.setdefault(name, {})[int(a), int(b)] = int(x)
    return out


def test_a_lane_finds_its_weights_where_the_tape_has_them(maps: Any) -> None:
    rows, k = 19, 72
    tile = np.arange(rows * k, dtype=np.uint16).reshape(rows, k) + 1
    data = fragment_order(tile)
    assert {(r, c): int(data[at]) for (r, c), at in maps["weight"].items()} == {
        (r, c): int(tile[r, c]) for r in range(rows) for c in range(k)
    }
    for (unit, lane), first in maps["lane"].items():  # a 16-byte load of lane l of a unit is row l / 4, eight values from lane_k on
        if first < k:
            assert maps["weight"][lane // 4, first] == (unit * 32 + lane) * 8


def test_parts_and_positions_have_one_place_each(maps: Any) -> None:
    assert sorted(maps["part"].values()) == list(range(14 * 5))
    assert sorted(maps["pieces"].values()) == list(range(8 * 66))
    assert all(at % 4 == dim % 4 for (_, dim), at in maps["pieces"].items() if dim < 64)
    for dim in (32, 64, 128, 256):
        lanes = dim // 8
        slots = list(maps[f"slot{dim}"].values())
        assert sorted(slots) == sorted(list(range(2 * 8 * 32 // lanes)) * lanes)
    for (last, piece), n in maps["length"].items():
        assert n == len(range(piece, last + 1, 8))
    assert list(maps["word"].values()) == [77, 15]


def test_words_and_numbers_are_those_of_the_device_sources() -> None:
    text = (resources.vm_dir() / "rank_maps.h").read_text()
    found = {name: int(x) for name, x in re.findall(r"constexpr int k(\w+) = (\d+);", text)}
    assert found == {
        "ElementWord": rank_program.ELEMENT_WORD, "ArriveWord": rank_program.ARRIVE_WORD, "BytesWord": rank_program.BYTES_WORD,
        "SendWord": rank_program.SEND_WORD, "MoreWord": rank_program.MORE_WORDS[0], "MoreWord2": rank_program.MORE_WORDS[1],
        "RankWarps": rank_program.FAST_WARPS, "PartFloats": rank_mail.PART_FLOATS,
    }  # fmt: skip
    words = {rank_program.ELEMENT_WORD, rank_program.ARRIVE_WORD, rank_program.BYTES_WORD, rank_program.SEND_WORD}
    assert min(words) >= max(len(ops.BY_NAME[name].params) for name in rank_program.OPS)
    assert max(words) < TASK["par"].shape[0]


# -- what the records make a cluster do
@pytest.mark.parametrize(("count", "cluster"), [(3, 2), (1, 3), (2, 4), (4, 1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_compute_what_the_schedule_means(count: int, cluster: int, seed: int) -> None:
    s = ranked(count=count, cluster=cluster)
    assert validate(s).accepted
    values, variables = values_of(s), [3, STEPS]
    cards = Cards(s, build(s), values)
    order = cards.run(STEPS, variables, seed)
    assert sorted(order) == sorted(list(range(s.n_tasks)) * STEPS)
    whole = alone(s, order, values, variables)
    index = {b.name: i for i, b in enumerate(s.buffers)}
    for name in ("logits", "out", "L1.k", "L1.v"):
        np.testing.assert_array_equal(cards.shared[index[name]], whole[index[name]])
    assert np.isfinite(cards.shared[index["logits"]]).all()


@pytest.mark.parametrize("purpose", ["prefill", "logits"])
@pytest.mark.parametrize(("name", "count", "cluster"), [("small", 3, 2), ("small", 1, 3), ("wide", 4, 1)])
def test_clusters_take_a_prompt_a_row_a_step(name: str, count: int, cluster: int, purpose: Purpose) -> None:
    s, decode = (ranked(name, count, cluster, purpose=p) for p in (purpose, "decode"))
    values, variables = values_of(s), [3, STEPS]
    values["prompt"][0, :STEPS] = 11, 5, 9
    cards = Cards(s, build(s, decode), values)
    order = cards.run(STEPS, variables, 1)
    assert sorted(order) == sorted(list(range(s.n_tasks)) * STEPS)
    whole = alone(s, order, values, variables)
    index = {b.name: i for i, b in enumerate(s.buffers)}
    last = f"L{GRAPHS[name].n_layers - 1}"
    for name in (f"{last}.k", f"{last}.v", *(("logits",) if purpose == "logits" else ())):
        np.testing.assert_array_equal(cards.shared[index[name]], whole[index[name]])
    rows = cards.shared[index[f"{last}.k"]][3 : 3 + STEPS]
    assert len({r.tobytes() for r in rows}) == STEPS
    assert ("logits" in index) == (purpose == "logits")
    assert {int(r["n_waits"]) for r in cards.program.tasks if r["op"] == ops.CODES["embed"]} == {1}


@pytest.mark.parametrize(
    ("word", "change"),
    [
        (rank_program.BYTES_WORD, lambda x: x + 4),
        (rank_program.SEND_WORD, lambda x: x & ~0xFFFF),
        (rank_program.ARRIVE_WORD, lambda x: np.where(x >= 0, (x + 1) % (x.max() + 1), x)),
        (rank_program.ELEMENT_WORD, lambda x: x + (np.arange(len(x)) == np.flatnonzero(x)[0])),
    ],
)
def test_records_with_another_word_do_not_pass(word: int, change: Callable[[Any], Any]) -> None:
    s = ranked()
    program = build(s)
    program.tasks["par"][:, word] = change(program.tasks["par"][:, word])
    values, variables = values_of(s), [3, STEPS]
    cards = Cards(s, program, values)
    try:
        order = cards.run(STEPS, variables, 0)
    except (Stuck, AssertionError, IndexError):
        return
    index = [b.name for b in s.buffers].index("logits")
    assert (cards.shared[index] != alone(s, order, values, variables)[index]).any()


def test_only_the_sampler_and_what_it_orders_stay_counters_in_global_memory() -> None:
    s = ranked("smol", 15, 8)
    program, mail = build(s), plan_mail(s, cluster_pool(s))
    used = {int(w[0]) for r in program.tasks for w in r["waits"][: r["n_waits"]]}
    assert {s.counters[k].name for k in used} == {"head", "sample"}
    assert mail.barriers == 3 * 5 + 1  # of a rank with heads: embedding, and five phases a layer, of which the last layer's too
    assert program.tasks["n_waits"].max() == 1


def test_rows_of_queries_keys_and_values_that_follow_each_other_are_one_record() -> None:
    program = build(ranked("smollm2-135m", 15, 8, context=256))
    mine = program.tasks[: program.queue_off[8]]  # of the first rank
    assert [rank_program.tasks_of(r) for r in mine].count(2) == 2 * 30  # two of its eight queues, in each layer
    more = mine["par"][mine["op"] == ops.CODES["rank_qkv"]][:, list(rank_program.MORE_WORDS)]
    assert {(int(w) & 0xFFFF, int(w) >> 16) for w in more[:, 0] if w} == {(576, 8), (768, 24)}  # a key's rows, a value's
    assert not more[:, 1].any()
    whole = build(ranked("small", 1, 1))
    assert max(rank_program.tasks_of(r) for r in whole.tasks) == 3  # one queue has all rows of a head


def test_smollm2_has_sixteen_bytes_for_three_sums() -> None:
    s = ranked("smollm2-135m", 15, 8, context=256)
    program = build(s)
    words = program.tasks["par"][:, rank_program.ELEMENT_WORD]
    sums = np.isin(program.tasks["op"], [ops.CODES["down_sum"]])
    assert {int(w) >> 24 for w in words[sums]} == {15}
    assert sorted({int(w) & 0xFFFFFF for w in words[sums]}) == list(range(0, 192, 24))


# -- refusals
def without_wait(s: Schedule, name: str) -> Schedule:
    json = s.to_json()
    for t in range(s.n_tasks):
        if ops.BY_CODE[int(s.columns.task_op[t])].name == name:
            json["tasks"][t]["waits"] = []
    return Schedule.from_json(json)


@pytest.mark.parametrize("name", ["rank_qkv", "rank_attn", "o_part", "gate_up", "down_part", "lm_head"])
def test_a_read_that_no_wait_of_its_queue_covers_is_refused(name: str) -> None:
    with pytest.raises(ProgramError, match=rf"\({name}\): reads what .* does not wait for a counter of the cluster"):
        build(without_wait(ranked(), name))


def spoil(op: str, param: str, value: int) -> Schedule:
    s = ranked()
    spec = ops.BY_NAME[op]
    t = int(np.flatnonzero(s.columns.task_op == spec.code)[0])
    s.columns.par[s.columns.par_off[t] + spec.params.index(param)] = value
    return s


def buffer(name: str) -> int:
    return [b.name for b in ranked().buffers].index(name)


@pytest.mark.parametrize(
    ("task", "param", "value", "message"),
    [
        ("rank_qkv", "row1", 3, "out of range or odd"),
        ("rank_qkv", "h", lambda: buffer("R1.h"), "h is not in the memory of its cluster"),
        ("rank_qkv", "h", lambda: buffer("logits"), r"the kernel expects 192"),
        ("rank_qkv", "cos", lambda: buffer("R0.h"), "cos is"),
        ("rank_attn", "piece", 8, "piece is out of range"),
        ("rank_attn", "kv_head", 2, "kv_head is out of range"),
        ("rank_attn", "heads", 9, "heads are out of range"),
        ("o_part", "out", lambda: buffer("R0.h"), "out is no buffer of 64 bits"),
        ("o_part", "k0", 8, "tile's K"),
        ("o_part", "row1", 94, "no sum takes columns"),
        ("down_part", "k0", 4, "tile's K"),
        ("o_sum", "n", 1, "takes all parts"),
        ("o_sum", "n", 17, "1 to 16 parts"),
        ("down_sum", "out", lambda: buffer("R1.h"), "written in place"),
        ("gate_up", "packed", 1, "activations of a rank are floats"),
        ("embed", "feed", 2, "columns or feed"),
        ("embed", "feed", 1, "the token buffer is too small"),
        ("lm_head", "ring", 2, "ring"),
        ("lm_head", "ring", 1, "logits is 1 by 515"),
        ("lm_head", "tile", 99, "amax is too small"),
        ("sample", "n_stop_ids", 99, "stop_ids is too small"),
    ],
)
def test_a_task_that_does_not_fit_the_kernels_is_refused(task: str, param: str, value: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=rf"{task}.*{message}"):
        build(spoil(task, param, value() if callable(value) else value))


def test_what_the_device_vm_for_ranks_does_not_serve_is_said() -> None:
    with pytest.raises(ProgramError, match="on a card ranks run in fast mode"):
        rank_program.rank_dims(ranked(mode="exact"))
    with pytest.raises(ProgramError, match=r"heads of 16 values.*lower without ranks"):
        rank_program.rank_dims(ranked("odd", 2, 4))
    with pytest.raises(ProgramError, match=r"task \d+ \(qkv\): the device VM for ranks runs embed, rank_qkv"):
        rank_program.rank_dims(lower(GRAPHS["small"], None, H200, Geometry(context=64), "fast"))
    with pytest.raises(ProgramError, match="RankVM alone, by that name"):
        Dims.of(ranked())
    s = ranked()
    dims = rank_program.rank_dims(s)
    with pytest.raises(ProgramError, match=r"sm_90 and later have; sm_89 has none: lower without ranks"):
        rank_program.plan_ranks(s, dims, "sm_89", H200.smem_bytes)
    with pytest.raises(ProgramError, match=r"leave 1 slots of weights on sm_120"):
        rank_program.plan_ranks(s, dims, "sm_120", 50_000)
    wide = ranked("big", 8, 8)
    with pytest.raises(ProgramError, match=r"rows have 4096 values; required are 2 slots and rows of at most 2048"):
        rank_program.plan_ranks(wide, rank_program.rank_dims(wide), "sm_90", H200.smem_bytes)


def test_pools_and_counters_that_make_no_clusters_are_refused() -> None:
    json = ranked().to_json()
    for p in json["pools"]:
        p["cluster"] = 0
    with pytest.raises(ProgramError, match="required is one in whole parts"):
        cluster_pool(Schedule.from_json(json))
    json = ranked().to_json()
    names = [c["name"] for c in json["counters"]]
    own, other = names.index("L0.R0.gate_up"), names.index("L1.R0.gate_up")
    first = next(t for t in json["tasks"] if [own, 1] in t["signals"])
    first["signals"].append([other, 1])
    json["counters"][other]["per_step"] += 1
    for t in json["tasks"]:
        t["waits"] = [[k, n + (k == other), *e] for k, n, *e in t["waits"]]
    with pytest.raises(ProgramError, match=r"\(gate_up\): signals two counters of its cluster"):
        build(Schedule.from_json(json))


# -- the machine, on a driver without a card
CASE = Case("ranks", "small", "fast", tokens=(4,), steps=4, context=64)


@pytest.fixture
def make(cubins: Path) -> Callable[..., RankVM]:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")

    def made(s: Schedule, kind: type[CudaVM] = RankVM) -> RankVM:
        vm = kind.__new__(kind)
        layout = DeviceTapeLayout.of(s)
        tape = np.zeros(layout.bytes, np.uint8)
        vm._start(tables.pack(s), layout.locate(s), tape, CASE.random_model().bound(s), {}, Device(), cache=cubins)
        assert isinstance(vm, RankVM)
        return vm

    return made


def test_a_launch_is_one_of_clusters_that_are_all_on_the_card(make: Callable[..., RankVM], monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    vm = make(ranked(count=3, cluster=2))
    seen: list[Any] = []
    card.work = lambda c, launch: seen.append(c.view(launch["tasks"], TASK, int(launch["n_tasks"])).copy())
    vm.launch(4, CASE.variables, poison=True)
    vm.wait()
    assert (card.log["clusters of 2"], card.log["cooperative"], card.log["grid 6"]) == (1, 1, 1)
    np.testing.assert_array_equal(seen[0]["par"], build(ranked(count=3, cluster=2)).tasks["par"])
    with pytest.raises(KeyError, match="shared memory of a cluster"):
        vm.buffer("R0.h")
    with pytest.raises(ProgramError, match="does not run alone"):
        vm.run_task(0)
    assert vm.buffer("logits").shape == (1, GRAPHS["small"].vocab_size)


def test_ranks_run_where_they_are_asked_for_by_name_and_fit(make: Callable[..., RankVM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", lambda: FakeCard(MULTIPROCESSOR_COUNT=5))
    with pytest.raises(ProgramError, match="RankVM alone, by that name"):
        make(ranked(), CudaVM)
    with pytest.raises(ProgramError, match="no task of this schedule belongs to a rank"):
        make(lower(GRAPHS["small"], None, H200, Geometry(context=64), "fast"))
    with pytest.raises(CudaError, match=r"3 clusters of 2 CTAs .*Fake H200 places 2; lower for at most 2 ranks"):
        make(ranked())


def test_large_clusters_are_asked_for(make: Callable[..., RankVM], monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    make(ranked("small", 2, 8))
    before = card.log["cuFuncSetAttribute"]
    make(ranked("small", 2, 16))
    assert card.log["cuFuncSetAttribute"] == 2 * before + 1


# -- what compiles
@pytest.mark.parametrize(
    ("model", "count", "cluster", "arch", "trace"),
    [
        ("smollm2-135m", 15, 8, "sm_90", False),
        ("smollm2-135m", 7, 16, "sm_90", True),
        ("llama-3.2-1b", 16, 8, "sm_90", False),
        ("small", 3, 2, "sm_120", False),
    ],
)
def test_kernels_for_ranks_compile_without_spills(
    model: str, count: int, cluster: int, arch: str, trace: bool, tmp_path: Path
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")
    s = ranked(model, count, cluster)
    smem = next(t.smem_bytes for t in Target.profiles() if t.arch == arch)
    plan = rank_program.plan_ranks(s, rank_program.rank_dims(s), arch, smem, trace=trace)
    kernel = nvrtc.build(plan.defines, arch, tmp_path, entry=nvrtc.RANK_ENTRY).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert 0 < kernel.registers <= REGISTER_LIMIT
    assert plan.shared_bytes + kernel.shared_bytes <= smem


def included(sources: dict[str, bytes], name: str) -> set[str]:
    """A source and everything that it includes."""
    seen, todo = set[str](), [name]
    while todo:
        at = todo.pop()
        if at in seen or at not in sources:
            continue
        seen.add(at)
        todo += re.findall(r'#include "([^"]+)"', sources[at].decode())
    return seen


def test_builds_without_ranks_have_nothing_of_them() -> None:
    """So their machine code is the one of sources that have never heard of ranks, on every architecture."""
    sources = nvrtc.sources()
    ranks = {n for n in sources if n.startswith("rank_")}
    assert ranks == {n for n in included(sources, nvrtc.RANK_ENTRY) if n.startswith("rank_")}
    plain = included(sources, nvrtc.ENTRY)
    assert not plain & ranks
    assert not any(b"RANK" in sources[n] for n in plain)
