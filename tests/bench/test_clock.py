"""Claims: a device's clock sees what runs on its stream, and what runs elsewhere or later shows in its other readings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from amk_bench import cuda_clock
from amk_bench.clock import ODD_SHARE, TAIL_SLACK_S, Sample, disagreement
from amk_bench.cuda_clock import CudaClock

HOST_COST_S = 3e-6  # a launch or an event costs the host this much


@dataclass
class FakeDevice:
    """A device with streams: each ends its work at a moment; the host moves on its own clock and waits where it is told to."""

    name: str = "fake"
    host_s: float = 100.0
    ends_s: dict[str, float] = field(default_factory=dict)
    stamps: list[float] = field(default_factory=list)

    def launch(self, seconds: float, stream: str = "main") -> None:
        self.host_s += HOST_COST_S
        self.ends_s[stream] = max(self.ends_s.get(stream, 0.0), self.host_s) + seconds

    def _event(self) -> float:
        self.host_s += HOST_COST_S
        return max(self.ends_s.get("main", 0.0), self.host_s)

    def start(self) -> None:
        self.stamps = [self._event()]

    def stop(self) -> None:
        self.stamps.append(self._event())

    def wait(self) -> None:
        self.host_s = max(self.host_s, self.stamps[-1])

    def idle(self) -> None:
        self.host_s = max([self.host_s + 1e-6, *self.ends_s.values()])

    def elapsed_s(self) -> float:
        return self.stamps[1] - self.stamps[0]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice()
    monkeypatch.setattr(cuda_clock, "_now_ns", lambda: round(fake.host_s * 1e9))
    return fake


def samples(device: FakeDevice, work: Callable[[], object], count: int = 12) -> list[Sample]:
    clock = CudaClock(device)
    assert clock.name == "cuda.events.fake"
    return [clock.measure(work)[0] for _ in range(count)]


def test_work_on_the_stream_is_measured_and_the_clocks_agree(device: FakeDevice) -> None:
    got = samples(device, lambda: device.launch(2e-3))
    for s in got:
        assert s.device_s == pytest.approx(2e-3, rel=0.01)
        assert s.host_s == pytest.approx(s.device_s, rel=0.02)
        assert s.tail_s < 5e-6
    assert disagreement(got) is None


def test_the_window_opens_on_an_idle_device(device: FakeDevice) -> None:
    """Work that is still running when the call begins is no part of its time."""
    device.launch(5e-3, "other")
    (sample,) = samples(device, lambda: device.launch(1e-3), 1)
    assert sample.device_s == pytest.approx(1e-3, rel=0.02)


def test_a_call_that_waits_for_its_own_work_is_measured_whole(device: FakeDevice) -> None:
    def work() -> None:
        device.launch(1e-3, "side")
        device.idle()

    got = samples(device, work)
    assert got[0].device_s == pytest.approx(1e-3, rel=0.02)
    assert disagreement(got) is None


@pytest.mark.parametrize("hidden_s", [2e-3, 60e-6])
def test_work_on_a_side_stream_is_found_running_after_the_window(device: FakeDevice, hidden_s: float) -> None:
    def work() -> None:
        device.launch(10e-6)
        device.launch(hidden_s, "side")

    fault = disagreement(samples(device, work))
    assert fault is not None
    assert "still working after the timed window in 12 of 12 calls" in fault


def test_what_stays_hidden_is_below_what_a_verdict_is_given_for(device: FakeDevice) -> None:
    def work() -> None:
        device.launch(10e-3)
        device.launch(10e-3 + TAIL_SLACK_S, "side")

    (sample,) = samples(device, work, 1)
    assert (sample.device_s + sample.tail_s) / sample.device_s < 1.01


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_device_timer_that_lies_is_contradicted_by_the_host(device: FakeDevice, factor: float) -> None:
    true = device.elapsed_s
    device.elapsed_s = lambda: factor * true()  # type: ignore[method-assign]
    fault = disagreement(samples(device, lambda: device.launch(2e-3)))
    assert fault is not None
    assert fault.startswith("host and device clock disagree in 12 of 12 calls")


@pytest.mark.parametrize("odd", [Sample(1e-3, 9e-3), Sample(1e-3, 1e-3, 5e-3)])
def test_a_lost_core_is_forgiven_a_habit_is_not(odd: Sample) -> None:
    good = Sample(1e-3, 1.01e-3, 2e-6)
    assert disagreement([good] * 5 + [odd]) is None
    few = int(ODD_SHARE * 40)
    assert disagreement([good] * (40 - few) + [odd] * few) is None
    assert disagreement([good] * (39 - few) + [odd] * (few + 1)) is not None
    assert disagreement([odd, odd]) is not None


@pytest.mark.parametrize("bad", [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, -1e-9), (math.nan, 1.0, 0.0), (1.0, math.inf, 0.0)])
def test_a_sample_is_positive_and_finite(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"required|must be positive"):
        Sample(*bad)
