"""Claims on a card: its clock measures what runs, sees what is hidden, and the judge decides about it as about anything else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from amk_bench import bandwidth, coldness, instruments, nvml
from amk_bench.clock import Sample, disagreement
from amk_bench.conditions import joules
from amk_bench.cuda_clock import CudaClock, DriverEvents, TorchEvents
from amk_bench.floor import Bandwidth, violation
from amk_bench.pairing import abba
from amk_bench.spin import STEPS, Spin, expected
from amk_bench.stats import Precision, bootstrap, noise_floor
from amk_bench.verdict import Verdict, judge
from amk_core.vm.driver import CudaError, Device, call

Work = Callable[[int], object]


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        return Device()
    except CudaError as error:
        pytest.skip(f"needs an NVIDIA card: {error}")


@pytest.fixture(scope="module")
def stream(device: Device) -> Any:
    return device.stream()


@pytest.fixture(scope="module", params=["driver", "torch"])
def clock(request: pytest.FixtureRequest, device: Device, stream: Any) -> CudaClock:
    if request.param == "driver":
        return CudaClock(DriverEvents(device, stream))
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs torch with CUDA")
    return CudaClock(TorchEvents(torch.cuda.ExternalStream(int(stream))))


@pytest.fixture
def spin(device: Device, stream: Any) -> Iterator[Spin]:
    yield Spin(device, stream)
    call("cuCtxSynchronize")


def timed(clock: CudaClock, work: Work, calls: int = 40) -> list[Sample]:
    for number in range(3):
        work(number)
    return [clock.measure(lambda number=number: work(number))[0] for number in range(calls)]  # type: ignore[misc]


def median_s(samples: list[Sample]) -> float:
    return float(np.median([s.device_s for s in samples]))


def test_the_reference_kernel_computes_what_it_claims(spin: Spin) -> None:
    spin(12345)
    assert (spin.result() == expected(12345, STEPS)).all()


def test_expected_is_the_recurrence() -> None:
    """By hand, without a card: three steps from 5, modulo 2**32."""
    x = 5
    for _ in range(3):
        x = (x * 1664525 + 1013904223) % 2**32
    assert int(expected(5, 3)[0]) == x
    assert int(expected(4, 3)[1]) == x


def test_honest_work_is_measured_in_proportion_and_the_clocks_agree(
    clock: CudaClock, spin: Spin, device: Device, stream: Any
) -> None:
    """Each two more portions of work take the same time more; what a call costs besides is part of every window."""
    runs = [timed(clock, Spin(device, stream, portions * STEPS)) for portions in (1, 3, 5)]
    assert [disagreement(run) for run in runs] == [None] * 3
    one, three, five = (median_s(run) for run in runs)
    assert (five - three) / (three - one) == pytest.approx(1.0, rel=0.03)
    assert one - 0.5 * (three - one) < 50e-6


def test_work_on_a_side_stream_is_found(clock: CudaClock, device: Device) -> None:
    hidden = Spin(device, device.stream())
    fault = disagreement(timed(clock, hidden))
    assert fault is not None
    assert "still working after the timed window" in fault


def test_part_of_the_work_on_a_side_stream_is_found(clock: CudaClock, spin: Spin, device: Device) -> None:
    """Half of it: the window closes after the half that stays on the stream."""
    hidden = Spin(device, device.stream(), 2 * STEPS)

    def work(number: int) -> None:
        hidden(number)
        spin(number)

    assert disagreement(timed(clock, work)) is not None


def test_a_side_stream_that_is_joined_is_measured_whole(clock: CudaClock, spin: Spin, device: Device) -> None:
    hidden = Spin(device, device.stream(), 2 * STEPS)

    def work(number: int) -> None:
        hidden(number)
        call("cuCtxSynchronize")

    samples = timed(clock, work)
    assert disagreement(samples) is None
    assert median_s(samples) == pytest.approx(2 * median_s(timed(clock, spin)), rel=0.2)


@pytest.fixture(scope="module")
def read(device: Device) -> Bandwidth:
    return bandwidth.probe_cuda(device)


def test_the_bandwidth_is_plausible_and_below_the_datasheet(read: Bandwidth) -> None:
    print(f"\nbandwidth: {read}")
    share = read.share_of_datasheet()
    assert read.buffer_bytes > 4 * read.cache_bytes > 0
    assert share is None or 0.7 < share <= 1.0


def test_a_kernel_that_only_claims_to_read_is_below_the_floor(clock: CudaClock, spin: Spin, read: Bandwidth) -> None:
    samples = timed(clock, spin)
    size = int(2 * median_s(samples) * read.bytes_per_s) + read.cache_bytes
    assert violation(samples, size, read.least_s(size), read) is not None
    assert violation(samples, size, 0.4 * read.least_s(size), read) is None


def test_a_flush_evicts_and_its_own_time_is_outside(device: Device, stream: Any, read: Bandwidth) -> None:
    """Copying a quarter of the cache: after a flush it comes from memory, at no more than the bandwidth."""
    source = device.memory(read.cache_bytes // 2)
    target = device.memory(read.cache_bytes // 2)
    clock = CudaClock(DriverEvents(device, stream))
    flush = coldness.CudaFlush(device)

    def copy(number: int) -> None:
        call("cuMemcpyDtoDAsync", target.address, source.address, read.cache_bytes // 4, stream)

    warm = [clock.measure(lambda: copy(0))[0] for _ in range(60)]
    cold = []
    for _ in range(60):
        flush()
        cold.append(clock.measure(lambda: copy(0))[0])
    print(f"\nwarm {1e6 * median_s(warm):.1f} us, after a flush {1e6 * median_s(cold):.1f} us")
    assert median_s(cold) - median_s(warm) > 0.5 * read.cache_bytes / 4 / read.bytes_per_s


def test_the_card_tells_its_state(device: Device, spin: Spin) -> None:
    try:
        meter = nvml.NvmlMeter(nvml.uuid_of(device))
    except nvml.NvmlMissing as error:
        pytest.skip(str(error))
    seen = meter.read()
    print(f"\n{seen}\n{meter.policy()}")
    assert seen.clock_mhz is not None
    assert 100 < seen.clock_mhz < 5000
    assert seen.temperature_c is not None
    assert 0 < seen.temperature_c < 110

    def work() -> None:
        for number in range(20):
            spin(number)
        call("cuCtxSynchronize")

    import time

    spent = joules(meter, work, 20, 0.5, time.monotonic)
    print(f"joules a launch: {spent}")
    if seen.energy_j is not None:
        assert spent is not None
        assert 1e-4 < spent < 1.0


def test_instruments_of_a_card(device: Device, tmp_path: Any) -> None:
    tools = instruments.for_cuda(device, folder=tmp_path)
    first = tools.bandwidth()
    assert first is not None
    assert tools.bandwidth() == first
    assert tools.least_s(10**6) == 0.0
    assert tools.least_s(10**9) > 0.0


@pytest.mark.parametrize(("slowdown", "allowed"), [(0.0, {"TIE"}), (0.02, {"LOSS", "AMBIGUOUS"}), (0.05, {"LOSS"})])
def test_the_judge_on_a_card(device: Device, stream: Any, slowdown: float, allowed: set[str]) -> None:
    """A/A at least 19 of 20, planted slowdowns always."""
    clock = CudaClock(DriverEvents(device, stream))
    plain, slower = Spin(device, stream), Spin(device, stream, round(STEPS * (1 + slowdown)))
    seen: Counter[Verdict] = Counter()
    floors = []
    for number in range(20):
        intervals = []
        for ours in (plain, slower):
            run = abba(clock, ours, plain, 200, seed=number, enough=Precision())
            intervals.append(bootstrap([block.log_ratio for block, _ in run], number))
        floors.append(noise_floor(intervals[0]))
        seen[judge(intervals[1], floors[-1])] += 1
    print(f"\n{slowdown}: {dict(seen)}, floors up to {100 * max(floors):.2f} %")
    wrong = sum(count for verdict, count in seen.items() if verdict not in allowed)
    assert wrong <= (1 if slowdown == 0.0 else 0)
    assert math.isfinite(max(floors))
