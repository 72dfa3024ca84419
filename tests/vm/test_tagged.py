"""Tagged hand-offs: the same bits as with counters, validated, and bounded when a value never comes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import CASES, GRAPHS, Case, bits, run_cpu
from amk_bench.footprints import Contracts, CpuBench, chosen_tasks, violation
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import check_certificate, tables, validate
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, Mode, lower
from amk_core.schedule.ops import BY_NAME, CODES
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.targets import Target
from amk_core.vm import VmFault
from amk_core.vm.cpu import CpuVM

TAGGED = {"handoff": "tagged"}
CONFIGS: tuple[tuple[int, dict[str, Any]], ...] = (
    (2, {}),
    (5, {"attn_splits": 2, "tiles_per_queue": 2, "row_align": 2}),
    (3, {"placement": "strided", "embed_tiles": 2, "fuse_qkv": False, "fuse_argmax": False}),
    (3, {"placement": "blocked", "sampler_queue": 1, "head_tiles_per_queue": 2}),
)


def tagged(queues: int = 3, mode: Mode = "fast", batch: int = 1, **config: Any) -> Schedule:
    return lower(GRAPHS["small"], ScheduleConfig(**TAGGED, **config), Target.cpu(queues), Geometry(batch=batch, context=64), mode)


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


@pytest.mark.parametrize("name", ["fast-small", "fast-small-long", "fast-small-batch", "fast-heads-near", "fast-heads-far"])
def test_tagged_and_counted_schedules_give_the_same_bits(name: str) -> None:
    want = run_cpu(case(name), 2, {"handoff": "counter"})
    for queues, config in CONFIGS:
        got = run_cpu(case(name), queues, {**TAGGED, **config})
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in want.items()}, (queues, config)


def test_attention_of_the_first_split_without_an_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone merges what others leave, and of near blocks it leaves nothing for others to merge."""
    c, made = case("fast-small"), Case.schedule

    def broken(self: Case, queues: int, config: dict[str, Any], arch: str) -> Schedule:
        s = made(self, queues, config, arch)
        task = int(np.flatnonzero(s.columns.task_op == CODES["attn"])[0])
        s.columns.par[s.columns.par_off[task] + BY_NAME["attn"].params.index("out")] = -1
        return s

    monkeypatch.setattr(Case, "schedule", broken)
    with pytest.raises(ValueError, match="the task of split 0 merges the partials: its out is missing"):
        run_cpu(c, 2, dict(TAGGED))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("queues", "config"), CONFIGS)
def test_tagged_lowerings_are_accepted_with_a_certificate(queues: int, config: dict[str, Any], batch: int) -> None:
    s = tagged(queues, batch=batch, **config)
    assert any(b.tagged for b in s.buffers)
    verdict = validate(s)
    assert verdict.accepted, [str(f) for f in verdict.findings]
    assert not check_certificate(tables.pack(s), verdict.certificate)
    assert len(s.counters) == 2  # the head's, which drains the step, and the sampler's


def test_more_queues_than_head_tiles_drain_too() -> None:
    s = tagged(132)
    assert s.n_queues > len([t for t in s.columns.task_op if t == 9])
    assert validate(s).accepted


def test_only_fast_decoding_is_tagged(mode: Mode) -> None:
    config, target = ScheduleConfig(**TAGGED), Target.cpu(3)
    for geometry in (Geometry(context=64), Geometry(batch=2, context=64), Geometry("prefill", chunk=4, context=64)):
        s = lower(GRAPHS["small"], config, target, geometry, mode)
        assert any(b.tagged for b in s.buffers) == (mode == "fast" and geometry.chunk == 1)


def test_rows_that_do_not_fit_beside_the_weights_are_counted() -> None:
    """A third of what a block may hold is for the activations of a step."""
    for smem, batch, want in ((232_448, 16, True), (101_376, 8, True), (101_376, 16, False), (101_376, 1, True)):
        target = Target("card", "sm_90", 132, smem)
        s = lower(GRAPH_SHAPES["llama-3.2-1b"], ScheduleConfig(), target, Geometry(batch=batch, context=64), "fast")
        assert any(b.tagged for b in s.buffers) == want


def test_without_the_order_of_steps_a_value_could_be_overwritten() -> None:
    """The sampler waits for one task of the head less: what the missing one reads may be written anew."""
    s = tagged()
    sampler = int(np.flatnonzero(s.columns.task_op == 10)[0])
    w = int(s.columns.wait_off[sampler])
    s.columns.wait_t[w] -= 1
    assert "TAG" in validate(s).rules


def test_a_queue_that_does_not_wait_for_the_sampler_is_refused() -> None:
    s = tagged()
    late = [w for w in range(len(s.columns.wait_e)) if s.columns.wait_e[w] == -1]
    s.columns.wait_e[late[-1]] = 0  # its first task now waits for the sampler of its own step, which waits for the task
    assert not validate(s).accepted


def test_a_read_that_may_happen_waits_too() -> None:
    """Two queues whose maybe reads want each other's later writes: a deadlock, if both happen."""

    def task(t: int) -> dict[str, Any]:
        mine, other = [[0, 1], [t, t + 1]], [[0, 1], [1 - t, 2 - t]]
        return {
            "id": t,
            "reads": [{"buffer": 0, "rows": other[0], "cols": other[1], "maybe": True}],
            "writes": [{"buffer": 0, "rows": mine[0], "cols": mine[1], "maybe": True}],
        }

    s = Schedule.from_json(
        {
            "format": "amk.schedule/1", "queues": [[0], [1]], "counters": [], "tasks": [task(0), task(1)],
            "buffers": [{"id": 0, "dtype": "tag64", "shape": [1, 2], "tagged": True}],
        }
    )  # fmt: skip
    assert "LIVE" in validate(s).rules


def program(s: Schedule) -> CpuVM:
    """A program that no validator has seen."""
    m = case("fast-small").random_model()
    layout = TapeLayout.of(s)
    vm = CpuVM.__new__(CpuVM)
    vm._start(tables.pack(s), layout.locate(s), Tape.build(layout, m.logical).data, layout.dtype, m.bound(s), {}, None)
    case("fast-small").fill(s, vm.buffer)
    return vm


def test_a_value_that_never_comes_ends_in_a_fault_that_names_the_reader() -> None:
    s = tagged()
    embed = int(np.flatnonzero(s.columns.task_op == 1)[0])
    s.columns.wait_e[int(s.columns.wait_off[embed])] = 0  # the first task of the step waits for its last one
    vm = program(s)
    vm.launch(2, [0, 2], spin_timeout_s=0.3)
    with pytest.raises(VmFault) as e:
        vm.wait()
    assert e.value.fault.kind == "spin-timeout"
    assert e.value.fault.counter == -1 or e.value.fault.op == "embed"
    assert "nothing moves" in str(e.value)


def test_a_value_that_was_overwritten_is_a_fault_at_once_and_never_a_value() -> None:
    """One tile of the head alone waits for the sampler of the step behind, and nobody waits for the tile: its input is gone."""
    s = tagged(2).to_json()
    head = [t["id"] for t in s["tasks"] if t["op"] == "lm_head"]
    sampler = next(t for t in s["tasks"] if t["op"] == "sample")
    sampled = next(c["id"] for c in s["counters"] if c["name"] == "sample")
    s["queues"] = [[t["id"] for t in s["tasks"] if t["id"] != head[-1]], [head[-1]]]
    s["tasks"][head[-1]]["waits"], sampler["waits"] = [[sampled, 2]], []  # two samplings
    racing = Schedule.from_json(s)
    assert not validate(racing).accepted
    vm = program(racing)
    start = time.monotonic()
    vm.launch(2, [0, 2], spin_timeout_s=60.0)
    with pytest.raises(VmFault) as e:
        vm.wait()
    assert time.monotonic() - start < 30.0  # not the bound: a newer tag never goes away
    fault = e.value.fault
    assert (fault.kind, fault.task, fault.op, fault.step) == ("spin-timeout", head[-1], "lm_head", 0)
    assert (fault.counter, fault.has, fault.needs) == (-1, 2, 1)  # the tag that was seen and the one that was asked for
    assert "wants a value of step 0, which step 1 has overwritten" in str(fault)


def test_tagged_tasks_touch_what_their_contracts_declare() -> None:
    """Position 300: two blocks of attention, so that the task of split 0 takes partials of others too."""
    s = lower(GRAPHS["small"], ScheduleConfig(**TAGGED), Target.cpu(3), Geometry(context=512), "fast")
    m, layout = case("fast-small").random_model(), TapeLayout.of(s)
    bound, tape, where = m.bound(s), Tape.build(layout, m.logical).data, layout.locate(s)
    vm = CpuVM.__new__(CpuVM)
    vm._start(tables.pack(s), where, tape, layout.dtype, bound, {}, None)
    bench, contracts = CpuBench(vm, s, bound, tape, where), Contracts(s)
    wrong = [v for t in chosen_tasks(s) if (v := violation(bench, contracts, t, [300, 1], 1, seed=t))]
    assert not wrong


def test_tagged_tasks_of_several_sequences_touch_what_their_contracts_declare() -> None:
    """Three sequences, of which one is not active and one has two blocks of attention."""
    s = lower(GRAPHS["small"], ScheduleConfig(**TAGGED), Target.cpu(3), Geometry(batch=3, context=512), "fast")
    m, layout = case("fast-small").random_model(), TapeLayout.of(s)
    bound, tape, where = m.bound(s), Tape.build(layout, m.logical).data, layout.locate(s)
    vm = CpuVM.__new__(CpuVM)
    vm._start(tables.pack(s), where, tape, layout.dtype, bound, {}, None)
    bench, contracts = CpuBench(vm, s, bound, tape, where), Contracts(s)
    variables = [5, 300, 7, 1, 1, 0]
    wrong = [v for t in chosen_tasks(s) if (v := violation(bench, contracts, t, variables, 1, seed=t))]
    assert not wrong


def test_tags_of_an_earlier_launch_do_not_count() -> None:
    """Two launches from the same state give the same tokens, whatever tags the first one left."""
    s = tagged()
    vm = program(s)
    c, tokens = case("fast-small"), []
    for seed in (1, 2):
        c.fill(s, vm.buffer)
        vm.launch(6, [0, 6], perturb_seed=seed, poison=True)
        vm.wait()
        tokens.append(vm.buffer("out")[:6, 0].tolist())
    assert tokens[0] == tokens[1]
