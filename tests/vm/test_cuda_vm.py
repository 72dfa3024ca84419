"""The CUDA VM's host side on a driver without a card: what it refuses, what it enqueues, how tokens arrive, what it gives back."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_card import FakeCard

from amk_bench.device_cases import Case
from amk_core.schedule import tables, validate
from amk_core.schedule.ir import Schedule
from amk_core.vm import CertificateRefused, LaunchAborted, VmFault, cuda, driver
from amk_core.vm.control import BLOCK
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import CudaError, CudaOutOfMemory, Device
from amk_core.vm.program import TASK

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")

CASE = Case("fake", "small", "fast", batch=2, p0=(0, 3), tokens=(6, 6), steps=6, context=128)
QUEUES = 6


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return CASE.schedule(QUEUES, {}, "sm_90")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    return plug(monkeypatch, FakeCard())


def plug(monkeypatch: pytest.MonkeyPatch, card: FakeCard) -> FakeCard:
    monkeypatch.setattr(driver, "_driver", lambda: card)
    return card


@pytest.fixture
def make(schedule: Schedule, cubins: Path) -> Callable[..., CudaVM]:
    verdict = validate(schedule)
    layout = DeviceTapeLayout.of(schedule)
    bound = CASE.random_model().bound(schedule)

    def made(**changes: Any) -> CudaVM:
        whole = {"task_weight": layout.locate(schedule), "tape": np.zeros(layout.bytes, np.uint8), "bound": bound, "cache": cubins}
        whole |= changes
        certificate = whole.pop("certificate", verdict.certificate)
        return CudaVM(whole.pop("tables", tables.pack(schedule)), certificate, **whole)

    return made


def decode(card: FakeCard, launch: Any, stop_after: int | None = None, pause_s: float = 0.0) -> None:
    """What the sampler does: tokens 100 * step + sequence, each with its number."""
    variables = card.view(launch["variables"], np.int32, int(launch["n_variables"]) + 1)
    ring = card.view(launch["ring"], np.uint64, 2 * int(launch["steps"]))
    for step in range(int(launch["steps"])):
        time.sleep(pause_s)
        number = (int(variables[-1]) + step + 1) & 0xFFFFFFFF
        for seq in range(2):
            ring[2 * step + seq] = number << 32 | (100 * step + seq)
        if stop_after == step:
            card.view(launch["halt"], np.uint32)[0] = step + 1
            return


# -- refusals
@pytest.mark.parametrize(
    ("card", "message"),
    [
        (FakeCard(cards=0), r"card 0 is asked for, 0 are visible"),
        (FakeCard(errors={"cuInit": "CUDA_ERROR_NO_DEVICE"}), r"no NVIDIA card is visible .*backend='cpu'"),
        (FakeCard(errors={"cuInit": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}), r"reboot after a driver update"),
        (FakeCard(COMPUTE_CAPABILITY_MAJOR=7, COMPUTE_CAPABILITY_MINOR=5), r"Fake H200 is sm_75; .* sm_80 or later"),
        (FakeCard(COOPERATIVE_LAUNCH=0), r"no cooperative launch.*backend='cpu'"),
        (FakeCard(DRIVER=12_040), r"driver of Fake H200 supports CUDA 12\.4.*NVRTC 13.*update the driver.*amk\[cuda12\]"),
        (FakeCard(MULTIPROCESSOR_COUNT=4), r"6 queues need as many CTAs on the card at once; Fake H200 holds 4 \(4 SMs\); lower"),
        (FakeCard(errors={"cuModuleLoadData": "CUDA_ERROR_NO_BINARY_FOR_GPU"}), r"built for another architecture"),
        (FakeCard(errors={"cuModuleLoadData": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}), r"driver is older than the compiler"),
    ],
)
def test_what_a_card_cannot_do_is_said_with_the_way_out(
    card: FakeCard, message: str, make: Callable[..., CudaVM], monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(monkeypatch, card)
    with pytest.raises(CudaError, match=message):
        make()
    gc.collect()
    assert card.used == 0
    assert not +card.alive


def test_without_libcuda_the_error_names_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(driver, "_driver", Missing)
    with pytest.raises(CudaError, match=r"no usable CUDA driver on this machine: .*backend='cpu', or install NVIDIA's driver"):
        Device()


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_card_that_is_too_small_says_how_much_is_missing(
    share: float, make: Callable[..., CudaVM], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plug(monkeypatch, FakeCard())
    vm = make()
    need = whole.used
    del vm
    small = plug(monkeypatch, FakeCard(memory_bytes=int(need * share)))
    with pytest.raises(CudaOutOfMemory, match=r"0\.\d+ GB are needed, 0\.\d+ of 0\.\d+ GB are free on Fake H200; use a smaller"):
        make()
    gc.collect()
    assert small.used == 0


@pytest.mark.parametrize("how", ["none", "other", "bytes"])
def test_tables_without_their_own_certificate_never_reach_the_card(how: str, make: Callable[..., CudaVM], card: FakeCard) -> None:
    other = validate(CASE.schedule(QUEUES, {"tiles_per_queue": 2}, "sm_90")).certificate
    with pytest.raises(CertificateRefused):
        make(certificate={"none": None, "other": other, "bytes": b"no certificate"}[how])
    assert not card.log


def test_a_changed_table_is_refused(make: Callable[..., CudaVM], schedule: Schedule, card: FakeCard) -> None:
    data = bytearray(tables.pack(schedule))
    data[-9] ^= 1
    with pytest.raises((CertificateRefused, ValueError)):
        make(tables=bytes(data))
    assert not card.log


# -- launches
def test_between_tokens_nothing_is_enqueued_and_the_driver_is_not_asked(
    make: Callable[..., CudaVM], card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "QUIET_S", 60.0)  # tokens come in time, however busy this machine is
    vm = make()
    card.work = lambda c, launch: decode(c, launch, pause_s=0.002)
    vm.buffer("out")
    card.log.clear()
    vm.enqueue(6, [0, 3, 6, 6])
    # two fills: counters and tags
    assert dict(card.log) == {"cuMemcpyHtoDAsync": 1, "cuMemsetD8Async": 2, "cuLaunchCooperativeKernel": 1, f"grid {QUEUES}": 1}
    vm._running = True
    card.log.clear()
    counts = [0]
    while counts[-1] < 6:
        k = vm.poll(counts[-1] + 1, 5.0)
        assert vm.buffer("out")[k - 1].tolist() == [100 * (k - 1), 100 * (k - 1) + 1]
        counts.append(k)
    assert counts == sorted(set(counts))
    assert not card.log
    assert vm.wait().steps == 6


def test_a_launch_that_dies_is_noticed_while_waiting_for_tokens(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    card.work = lambda c, launch: None
    vm.launch(6, [0, 3, 6, 6])
    start = time.monotonic()
    assert vm.poll(1, 30.0) == 0
    assert time.monotonic() - start < 5.0
    assert not vm.running
    vm.wait()


def test_tokens_that_came_before_anyone_asked_for_the_buffer_are_in_it(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    card.work = decode
    vm.enqueue(6, [0, 3, 6, 6])
    vm._running = True
    assert vm.poll(6, 5.0) == 6
    assert vm.buffer("out")[:6].tolist() == [[100 * i, 100 * i + 1] for i in range(6)]
    vm.wait(refresh=False)


def test_numbers_go_on_over_launches_and_old_words_are_never_taken(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    card.work = decode
    vm.launch(6, [0, 3, 6, 6])
    assert vm.wait().steps == 6
    card.work = lambda c, launch: None  # writes nothing: the words of the launch before are still there
    vm.launch(6, [0, 3, 6, 6])
    assert vm.poll(1, 0.05) == 0
    assert vm.wait().steps == 0
    vm._ring._next = (1 << 32) - 3  # the numbers wrap
    card.work = decode
    for _ in range(2):
        vm.launch(6, [0, 3, 6, 6])
        assert vm.wait().steps == 6


def test_a_stop_ends_the_launch_early(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    card.work = lambda c, launch: decode(c, launch, stop_after=2)
    vm.launch(6, [0, 3, 6, 6])
    assert vm.poll(6, 5.0) == 3
    result = vm.wait()
    assert (result.steps, result.stopped) == (3, True)


def test_a_captured_launch_runs_again_with_other_variables(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    seen = []

    def work(c: FakeCard, launch: Any) -> None:
        seen.append(c.view(launch["variables"], np.int32, 4).tolist())
        decode(c, launch)

    card.work = work
    graph = vm.capture(4, [0, 3, 4, 4])
    assert not seen
    assert card.captured is None
    vm.launch(2, [0, 3, 2, 2])  # a launch of other steps in between
    assert vm.wait().steps == 2
    seen.clear()
    for position in (0, 4, 8):
        card.log.clear()
        vm.replay(graph, [position, position, 4, 4])
        assert {k for k in card.log if k.startswith("cuM") or "Launch" in k} == {"cuGraphLaunch"}
        assert vm.wait().steps == 4
    assert seen == [[p, p, 4, 4] for p in (0, 4, 8)]
    with pytest.raises(ValueError, match="launch variable 0 is 10000"):
        vm.replay(graph, [10_000, 0, 4, 4])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"kind": 1, "task": 3, "op": 5, "counter": 2, "has": 1, "needs": 4}, r"T3 o_proj .* waits c2 >= 4 \(has 1\)"),
        ({"kind": 1, "op": 5, "counter": -1, "needs": 2}, r"polls for values of step 1, none has come and nothing moves"),
        ({"kind": 1, "op": 5, "counter": -1, "has": 1, "needs": 2}, r"those of step 0 are there and nothing moves"),
        ({"kind": 1, "op": 5, "counter": -1, "has": 2, "needs": 2}, r"not all have come and nothing moves"),
        ({"kind": 1, "op": 5, "counter": -1, "has": 3, "needs": 2}, r"wants a value of step 1, which step 2 has overwritten"),
        ({"kind": 2, "op": 1, "row": 1, "has": 600, "needs": 515}, r"T0 embed .*: row 1 has token id 600, the vocabulary has 515"),
        (
            {"kind": 4, "task": 9, "op": 7, "queue": 5, "counter": 12, "has": -2, "needs": 96},
            r"waits at barrier 12 of its CTA for 96 bytes .*0xfffffffffffffffe\) and nothing moves",
        ),
        ({"kind": 3, "task": 9, "op": 7, "queue": 5, "step": 2}, r"T9 gate_up \(Q5#0, step 2\): the weights .* did not arrive"),
    ],
)
def test_a_fault_is_told_by_name(record: dict[str, int], message: str, make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()

    def fail(c: FakeCard, launch: Any) -> None:
        control = c.view(launch["halt"], BLOCK)
        control["halt"] = 0
        for name, value in record.items():
            control["fault"][name] = value

    card.work = fail
    vm.launch(6, [0, 3, 6, 6])
    with pytest.raises(VmFault, match=message):
        vm.wait()
    card.work = decode
    vm.launch(6, [0, 3, 6, 6])  # the next launch starts clean
    assert vm.wait().steps == 6


def test_an_abort_is_no_fault(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()

    def until_aborted(c: FakeCard, launch: Any) -> None:
        while c.view(launch["halt"], np.uint32)[0]:
            time.sleep(0.001)

    card.work = until_aborted
    vm.launch(6, [0, 3, 6, 6])
    with pytest.raises(ValueError, match="a launch is in flight"):
        vm.launch(6, [0, 3, 6, 6])
    assert vm.running
    vm.abort()
    with pytest.raises(LaunchAborted):
        vm.wait()


@pytest.mark.parametrize(
    ("steps", "variables", "message"),
    [
        (0, [0, 3, 6, 6], "steps is 0"),
        (129, [0, 3, 6, 6], "steps is 129, required is 1 to 128"),
        (6, [0, 3, 6], "3 launch variables given, required are 4"),
        (6, [-1, 3, 6, 6], "launch variable 0 is -1"),
    ],
)
def test_a_launch_outside_the_declared_ranges_is_refused(
    steps: int, variables: list[int], message: str, make: Callable[..., CudaVM], card: FakeCard
) -> None:
    with pytest.raises(ValueError, match=message):
        make().launch(steps, variables)


def test_one_task_runs_alone_without_waits_and_with_its_own_tile(make: Callable[..., CudaVM], card: FakeCard) -> None:
    from amk_core.vm.program import TASK, TILE

    vm = make()
    streaming = [t for t in range(vm.schedule.n_tasks) if vm._program.streams[vm._program.tasks["id"] == t][0]]
    layout = DeviceTapeLayout.of(vm.schedule).locate(vm.schedule)
    seen: dict[int, Any] = {}

    def look(c: FakeCard, launch: Any) -> None:
        task = c.view(launch["tasks"], TASK)[0].copy()
        ends = c.view(launch["queue_off"], np.int32, 2).tolist(), c.view(launch["tile_off"], np.int32, 2).tolist()
        tile = c.view(launch["tiles"], TILE)[0].copy() if ends[1] == [0, 1] else None
        seen[int(task["id"])] = (int(task["n_waits"]), int(task["n_signals"]), ends, tile)

    card.work = look
    tasks_off = vm._launch["tasks"].copy()
    for t in (0, streaming[0], streaming[-1], vm.schedule.n_tasks - 1):
        vm.run_task(t, [0, 3, 6, 6])
        waits, signals, (queue, _), tile = seen[t]
        assert (waits, signals, queue) == (0, 0, [0, 1])
        assert (tile is not None) == (t in streaming)
        if tile is not None:
            assert [int(tile["offset"]), int(tile["units"])] == layout[t].tolist()
    assert card.log["grid 1"] == 4
    assert (vm._launch["tasks"] == tasks_off).all()


def test_only_what_the_host_changed_goes_to_the_card(make: Callable[..., CudaVM], card: FakeCard) -> None:
    """Another program may have written to a shared pool meanwhile: a stale host copy must not undo that."""
    a = make()
    b = make(pools={"kv": a.pool("kv")})
    card.work = decode
    keys = a.buffer("L1.k")
    a.buffer("token")[:] = 7
    a.launch(1, [0, 3, 1, 1])
    a.wait()
    assert a.memory.read("token").tolist() == [[7], [7]]
    b.memory.write("L1.k", np.full_like(keys, 5))
    a.launch(1, [0, 3, 1, 1])
    a.wait()
    assert (keys == 5).all()
    keys[3] = 9
    a.launch(1, [0, 3, 1, 1])
    a.wait()
    assert (b.memory.read("L1.k")[3] == 9).all()
    assert (b.memory.read("L1.k")[4] == 5).all()


def test_a_replay_may_be_given_the_tokens_it_starts_from(make: Callable[..., CudaVM], card: FakeCard) -> None:
    vm = make()
    seen = []

    def work(c: FakeCard, launch: Any) -> None:
        seen.append(vm.memory.read("token").ravel().tolist())
        decode(c, launch)

    card.work = work
    graph = vm.capture(4, [0, 3, 4, 4], feed=True)
    for first in ([5, 6], [9, 1]):
        vm.replay(graph, [0, 3, 4, 4], first)
        assert vm.poll(4, 5.0) == 4
        vm.wait(refresh=False)
        assert vm.tokens(2).tolist() == [[0, 1], [100, 101]]
    assert seen == [[5, 6], [9, 1]]


def test_a_token_that_the_host_gives_again_reaches_the_card_again(make: Callable[..., CudaVM], card: FakeCard) -> None:
    """The card's token has moved on meanwhile, unseen by the host copy."""
    vm = make()

    def sample(c: FakeCard, launch: Any) -> None:
        decode(c, launch)
        memory, offset = vm.memory.place(vm.memory.index("token"))
        c.view(memory.address + offset, np.int32, 2)[:] = 77

    card.work = lambda c, launch: decode(c, launch)
    graph = vm.capture(2, [0, 3, 2, 2])
    vm.buffer("token")[:] = 5
    vm.launch(1, [0, 3, 1, 1])
    vm.wait()
    card.work = sample
    vm.replay(graph, [0, 3, 2, 2])
    vm.wait(refresh=False)
    assert vm.memory.read("token").tolist() == [[77], [77]]
    seen = []

    def look(c: FakeCard, launch: Any) -> None:
        seen.extend(vm.memory.read("token").ravel().tolist())
        decode(c, launch)

    card.work = look
    vm.buffer("token")[:] = 5
    vm.launch(1, [0, 3, 1, 1])
    vm.wait()
    assert seen == [5, 5]


def test_a_launch_finds_everything_that_was_copied_before_it(make: Callable[..., CudaVM], card: FakeCard) -> None:
    """Copies without a stream return before they have landed, and a launch runs on a stream that does not wait for them."""
    vm = make()
    found: list[int] = []

    def look(c: FakeCard, launch: Any) -> None:
        ids = c.view(launch["tasks"], TASK, int(launch["n_tasks"]))["id"]
        found.append(int((np.sort(ids) == np.arange(len(ids))).all()))
        decode(c, launch)

    card.work = look
    vm.launch(6, [0, 3, 6, 6])
    vm.wait()

    def one(c: FakeCard, launch: Any) -> None:
        found.append(int(c.view(launch["tasks"], TASK)["id"][0]))

    card.work = one
    for task in (5, 0, 7):
        vm.run_task(task, [0, 3, 6, 6])
    assert found == [1, 5, 0, 7]


# -- what is given back
def test_ten_machines_leave_nothing_on_the_card(make: Callable[..., CudaVM], card: FakeCard) -> None:
    card.work = decode
    for _ in range(10):
        vm = make()
        vm.launch(6, [0, 3, 6, 6])
        vm.wait()
        vm.time_launches(6, [0, 3, 6, 6], 2)
        graph = vm.capture(2, [0, 3, 2, 2])
        del vm, graph
        gc.collect()
        assert card.used == 0
        assert not +card.alive
        assert not card.heap


def test_machines_live_side_by_side(make: Callable[..., CudaVM], card: FakeCard) -> None:
    a, b = make(), make()
    card.work = decode
    for vm in (a, b, a):
        vm.launch(6, [0, 3, 6, 6])
        assert vm.wait().steps == 6
    assert a.pool("io").address != b.pool("io").address
    shared = make(pools={"kv": a.pool("kv")})
    assert shared.pool("kv") is a.pool("kv")
    a.close()
    b.launch(6, [0, 3, 6, 6])
    assert b.wait().steps == 6
