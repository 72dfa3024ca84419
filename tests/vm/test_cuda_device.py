"""The CUDA VM on a card: bits, streaming, graphs, neighbours, faults, leaks, footprints.  Seeded random weights; no checkpoint."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import CASES, QUANT_CASES, Case, bits, distances, make_cuda, run_cpu, run_cuda
from amk_bench.footprints import Contracts, CudaBench, chosen_tasks, violation
from amk_core.schedule import ops, tables, validate
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.vm import CertificateRefused, LaunchAborted, VmFault, tracing
from amk_core.vm.card import Packer
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import CudaOutOfMemory, library_present

pytestmark = pytest.mark.skipif(
    not library_present(),
    reason="needs an NVIDIA card: no libcuda.so.1 on this machine; there run: pytest tests/vm/test_cuda_device.py",
)

STREAM = Case("stream", "small", "fast", steps=40, tokens=(40,))
PAIR = Case("pair", "small", "fast", batch=2, p0=(0, 0), tokens=(40, 40), steps=40)  # its phases are joined by counters


@pytest.fixture(scope="module")
def machine(device: Any) -> Any:
    """(VM, tokens of a whole launch) of the streaming case."""
    s = STREAM.schedule(device.facts.sms, {}, device.facts.arch)
    vm = make_cuda(STREAM, s, s, device, None)
    vm.launch(40, STREAM.variables)
    vm.wait()
    return vm, vm.buffer("out")[:40, 0].copy()


def again(vm: Any) -> None:
    STREAM.fill(vm.schedule, vm.buffer)


def cases(prefix: str | tuple[str, ...], mode: str) -> list[Case]:
    """Those of that name with stored weights, and all with quantised ones."""
    return [*(c for c in CASES if c.name.startswith(prefix)), *(c for c in QUANT_CASES if c.mode == mode)]


# -- bits
@pytest.mark.parametrize("case", cases("exact", "exact"), ids=lambda c: c.name)
def test_exact_gives_the_bits_of_the_cpu_vm(case: Case, device: Any) -> None:
    want = run_cpu(case)
    for queues, config in case.variants:
        got = run_cuda(case, min(queues, device.facts.sms), config, device)
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in want.items()}


@pytest.mark.parametrize("case", cases(("fast-small", "fast-heads"), "fast"), ids=lambda c: c.name)
def test_fast_is_as_accurate_as_the_cpu_vm_and_its_bits_do_not_depend_on_the_schedule(case: Case, device: Any) -> None:
    cpu = run_cpu(case)
    results = [run_cuda(case, min(queues, device.facts.sms), config, device) for queues, config in case.variants]
    for other in results[1:]:
        assert {k: bits(v) for k, v in other.items()} == {k: bits(v) for k, v in results[0].items()}
    mine, theirs = distances(case, results[0], cpu)
    assert mine <= 1.5 * theirs


def test_a_tape_packed_on_the_card_has_the_bytes_of_the_host(device: Any, machine: Any) -> None:
    vm, _ = machine
    layout = DeviceTapeLayout.of(vm.schedule)
    model = STREAM.random_model()
    tape = Packer(device, vm.cubin.data).tape(layout, model.logical)
    got = np.empty(layout.bytes, np.uint8)
    tape.download(got)
    np.testing.assert_array_equal(got, layout.build(model.logical))


def test_a_hundred_launches_give_equal_tokens(machine: Any) -> None:
    vm, want = machine
    for _ in range(100):
        again(vm)
        vm.launch(40, STREAM.variables, poison=True)
        vm.wait()
        assert np.array_equal(vm.buffer("out")[:40, 0], want)


# -- tokens on their way
def test_tokens_reach_the_host_one_by_one_while_the_launch_runs(machine: Any) -> None:
    vm, want = machine
    again(vm)
    vm.launch(40, STREAM.variables)
    seen, k = [], 0
    while k < 40:
        k = vm.poll(k + 1, 5.0)
        seen.append((time.perf_counter(), k))
        assert np.array_equal(vm.buffer("out")[:k, 0], want[:k])
    vm.wait()
    assert len(seen) >= 10, f"the tokens came in {len(seen)} pieces"
    assert seen[-1][0] - seen[0][0] > 0.0002


def test_a_stop_id_ends_the_launch_and_the_host_sees_it(machine: Any) -> None:
    vm, want = machine
    again(vm)
    vm.buffer("stop_ids")[0, 3] = want[9]
    first = int(np.flatnonzero(want == want[9])[0])
    vm.launch(40, STREAM.variables)
    assert vm.poll(40, 5.0) == first + 1
    result = vm.wait()
    assert (result.steps, result.stopped, int(vm.buffer("done")[0, 0])) == (first + 1, True, 1)


def test_launches_continue_where_the_last_one_stopped(machine: Any) -> None:
    vm, want = machine
    again(vm)
    vm.launch(7, [0, 7])
    vm.wait()
    vm.launch(33, [7, 33])
    vm.wait()
    assert np.array_equal(vm.buffer("out")[:33, 0], want[7:])


# -- graphs and neighbours
def test_a_launch_is_captured_in_a_graph_and_replayed(machine: Any) -> None:
    vm, want = machine
    again(vm)
    graph = vm.capture(10, [0, 10])
    vm.launch(1, [0, 1])  # brings token and flags to the card; the graph continues from there
    vm.wait()
    made = [int(vm.buffer("out")[0, 0])]
    for position in (1, 11, 21):
        vm.replay(graph, [position, 10])
        assert vm.wait().steps == 10
        made += vm.buffer("out")[:10, 0].tolist()
    assert made == want[:31].tolist()


def test_another_librarys_graph_takes_the_launch(machine: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no card")
    vm, want = machine
    again(vm)
    vm.launch(1, [0, 1])
    vm.wait()
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin()
        vm.enqueue(10, [1, 10], stream=torch.cuda.current_stream().cuda_stream)
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    vm.refresh("out")
    assert vm.buffer("out")[:10, 0].tolist() == want[1:11].tolist()


def test_machines_in_one_process_do_not_disturb_each_other(machine: Any, device: Any) -> None:
    vm, want = machine
    case = next(c for c in CASES if c.name == "exact-odd")
    alone = run_cuda(case, device.facts.sms, {}, device)
    s = case.schedule(device.facts.sms, {}, device.facts.arch)
    other = make_cuda(case, s, s, device, None)
    again(vm)
    for _ in range(5):  # both in flight: each needs the whole card, so one waits for the other
        vm.launch(40, STREAM.variables)
        other.launch(case.steps, case.variables)
        vm.wait()
        other.wait()
        assert np.array_equal(vm.buffer("out")[:40, 0], want)
        got = case.results(other.schedule, other.buffer)
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in alone.items()}
        again(vm)
        case.fill(other.schedule, other.buffer)


def test_a_traced_build_computes_the_same_and_its_records_are_in_order(machine: Any, device: Any) -> None:
    vm, want = machine
    m, s = STREAM.random_model(), vm.schedule
    layout = DeviceTapeLayout.of(s)
    traced = CudaVM.__new__(CudaVM)
    traced._start(tables.pack(s), layout.locate(s), layout.build(m.logical), m.bound(s), {}, device, trace=True)
    again(traced)
    traced.launch(40, STREAM.variables)
    traced.wait()
    assert np.array_equal(traced.buffer("out")[:40, 0], want)
    t = tracing.timeline(s, *traced.trace_records())
    assert (np.diff(t.us, axis=-1) >= 0).all()
    assert t.spread < 0.2  # groups of SMs have clocks of their own, which rise at their own pace
    assert tracing.causality_us(t) < 5.0
    assert sum(r.share for r in tracing.regions(t)) == pytest.approx(1.0)
    print(tracing.table(t))


# -- nothing hangs
def test_tables_without_a_certificate_are_refused(device: Any, machine: Any) -> None:
    vm, _ = machine
    layout = DeviceTapeLayout.of(vm.schedule)
    with pytest.raises(CertificateRefused):
        CudaVM(tables.pack(vm.schedule), None, task_weight=layout.locate(vm.schedule), tape=vm.tape, device=device)
    verdict = validate(vm.schedule)
    CudaVM(tables.pack(vm.schedule), verdict.certificate, task_weight=layout.locate(vm.schedule), tape=vm.tape,
           bound=STREAM.random_model().bound(vm.schedule), device=device)  # fmt: skip


@pytest.mark.parametrize("wait", [0, 40, -1])
def test_a_deadlock_ends_in_a_fault_report_within_two_seconds(wait: int, device: Any) -> None:
    s = PAIR.schedule(device.facts.sms, {"handoff": "counter"}, device.facts.arch)
    w = int(np.flatnonzero(s.columns.wait_e == 0)[wait])
    s.columns.wait_t[w] = 10_000
    stuck = make_cuda(PAIR, s, s, device, None)
    start = time.monotonic()
    stuck.launch(4, [0, 0, 4, 4], spin_timeout_s=1.0)
    with pytest.raises(VmFault) as fault:
        stuck.wait()
    print(f"{time.monotonic() - start:.3f} s from launch to report")
    assert time.monotonic() - start < 2.0
    report = fault.value.fault
    assert report.kind == "spin-timeout"
    assert report.has < report.needs
    c = s.columns
    mine = slice(int(c.wait_off[report.task]), int(c.wait_off[report.task + 1]))
    assert report.counter in c.wait_counter[mine].tolist()  # a task that really waits, though not always the first of the chain
    print(report)


def test_a_value_that_never_comes_ends_in_a_fault_report_within_two_seconds(device: Any) -> None:
    s = STREAM.schedule(device.facts.sms, {}, device.facts.arch)
    if not any(b.tagged for b in s.buffers):
        pytest.skip("values carry no tags in this program")
    embed = int(np.flatnonzero(s.columns.task_op == ops.CODES["embed"])[0])
    s.columns.wait_e[int(s.columns.wait_off[embed])] = 0  # the first task of a step waits for its last one
    mute = make_cuda(STREAM, s, s, device, None)
    start = time.monotonic()
    mute.launch(4, [0, 4], spin_timeout_s=1.0)
    with pytest.raises(VmFault) as fault:
        mute.wait()
    assert time.monotonic() - start < 2.0
    assert fault.value.fault.kind == "spin-timeout"
    print(fault.value.fault)


@pytest.mark.parametrize("case", [STREAM, PAIR], ids=lambda c: c.name)
@pytest.mark.parametrize("handoff", ["counter", "tagged"])
@pytest.mark.parametrize("seed", range(3))
def test_a_racing_program_ends(seed: int, handoff: str, case: Case, device: Any) -> None:
    """Waits are dropped at random: the results are anything, but the launch ends, by itself or by a fault."""
    s = case.schedule(device.facts.sms, {"handoff": handoff}, device.facts.arch)
    rng = np.random.default_rng(seed)
    s.columns.wait_t[:] = np.where(rng.random(len(s.columns.wait_t)) < 0.5, 1, s.columns.wait_t)
    racing = make_cuda(case, s, s, device, None)
    start = time.monotonic()
    racing.launch(40, case.variables, spin_timeout_s=0.5)
    with contextlib.suppress(VmFault):
        racing.wait()
    assert time.monotonic() - start < 2.0


def test_a_token_outside_the_vocabulary_is_a_fault_and_an_abort_ends_a_launch(machine: Any, device: Any) -> None:
    vm, _ = machine
    again(vm)
    vm.buffer("token")[0, 0] = 600
    vm.launch(4, [0, 4])
    with pytest.raises(VmFault, match="row 0 has token id 600"):
        vm.wait()
    s = PAIR.schedule(device.facts.sms, {"handoff": "counter"}, device.facts.arch)
    s.columns.wait_t[int(np.flatnonzero(s.columns.wait_e == 0)[40])] = 10_000
    stuck = make_cuda(PAIR, s, s, device, None)
    stuck.launch(4, [0, 0, 4, 4], spin_timeout_s=20.0)
    time.sleep(0.05)
    stuck.abort()
    start = time.monotonic()
    with pytest.raises(LaunchAborted):
        stuck.wait()
    assert time.monotonic() - start < 1.0


def test_a_full_card_is_a_clear_error_and_no_catastrophe(device: Any, machine: Any) -> None:
    with pytest.raises(CudaOutOfMemory, match=r"GB are needed, .* GB are free on .*; use a smaller context or batch"):
        device.memory(2 * device.facts.memory_bytes)
    vm, want = machine
    again(vm)
    vm.launch(40, STREAM.variables)
    vm.wait()
    assert np.array_equal(vm.buffer("out")[:40, 0], want)


# -- nothing leaks
def test_ten_thousand_launches_leave_the_memory_as_it_was(machine: Any, device: Any) -> None:
    vm, want = machine
    again(vm)
    vm.launch(1, [0, 1])
    vm.wait()
    before = device.free_bytes()
    for i in range(10_000):
        vm.enqueue(1, [1, 1])
        if i % 100 == 99:
            vm._running = True
            vm.wait()
    after = device.free_bytes()
    print(f"10000 launches: {before} bytes free before, {after} after")
    assert after == before
    again(vm)
    vm.launch(40, STREAM.variables)
    vm.wait()
    assert np.array_equal(vm.buffer("out")[:40, 0], want)


def test_machines_that_come_and_go_leave_the_memory_as_it_was(device: Any) -> None:
    s = STREAM.schedule(device.facts.sms, {}, device.facts.arch)
    free = []
    for _ in range(12):
        vm = make_cuda(STREAM, s, s, device, None)
        vm.launch(2, [0, 2])
        vm.wait()
        del vm
        gc.collect()
        free.append(device.free_bytes())
    print("free bytes after each machine:", free)
    assert free[-1] >= free[2]


# -- footprints
FOOTPRINTS = (
    Case("exact-decode", "odd", "exact", batch=3, p0=(0, 5, 130), tokens=(9, 0, 9), steps=2),
    Case("exact-logits", "odd", "exact", "logits", batch=2, chunk=5, p0=(0, 120), tokens=(7, 10), steps=2),
    Case("exact-prefill", "odd", "exact", "prefill", chunk=16, p0=(3,), tokens=(30,), steps=2),
    Case("fast-decode", "small", "fast", batch=3, p0=(0, 5, 130), tokens=(9, 0, 9), steps=2),
    Case("fast-one", "small", "fast", p0=(200,), tokens=(2,), steps=2),
    Case("fast-logits", "small", "fast", "logits", batch=2, chunk=5, p0=(0, 120), tokens=(7, 10), steps=2),
    Case("fast-prefill", "small", "fast", "prefill", chunk=16, p0=(3,), tokens=(30,), steps=2),
)
GUARD = 4096  # bytes behind every pool


@pytest.mark.parametrize("config", [{}, {"fuse_combine": False, "fuse_argmax": False, "attn_splits": 2}], ids=["fused", "apart"])
@pytest.mark.parametrize("case", FOOTPRINTS, ids=lambda c: c.name)
def test_no_task_touches_more_than_its_contract_declares(case: Case, config: dict[str, Any], device: Any) -> None:
    s = case.schedule(7, config, device.facts.arch)
    tiled = case.tiled(7, config, device.facts.arch)
    m = case.random_model()
    if case.mode == "exact":
        layout: Any = TapeLayout.of(tiled)
        tape = Tape.build(layout, m.logical).data
    else:
        layout = DeviceTapeLayout.of(tiled)
        tape = layout.build(m.logical)
    pools = {p.id: device.memory(s.pool_bytes(p.id) + GUARD) for p in s.pools if p.id != "weights"}
    vm = CudaVM.__new__(CudaVM)
    vm._start(tables.pack(s), layout.locate(s), tape, m.bound(s), pools, device)
    bench, contracts = CudaBench(vm), Contracts(s)
    wrong = [v for i, t in enumerate(chosen_tasks(s)) if (v := violation(bench, contracts, t, case.variables, case.steps, seed=i))]
    assert not wrong
