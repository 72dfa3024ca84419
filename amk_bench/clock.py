"""Clocks: how long a piece of work took, in seconds of the device that did it.

A :class:`Clock` measures one call.  The CPU's device time is its monotonic clock; a GPU clock reads the device and keeps the
host's reading beside it as a cross-check.  :data:`device_seconds` is the named timer through which already measured device
seconds enter pytest-benchmark: it advances only when told to, so ``end - start`` around a replayed call is exactly the sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")

# Bound at import: code under test that replaces ``time.perf_counter_ns`` later does not reach the clock.
_now_ns = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call.  ``device_s``: seconds on the device; ``host_s``: the host's monotonic reading around the same call."""

    device_s: float
    host_s: float

    def __post_init__(self) -> None:
        if not (self.device_s > 0.0 and self.host_s > 0.0):
            raise ValueError(f"a timed call took {self.device_s} s (device), {self.host_s} s (host); both must be positive")


class Clock(Protocol):
    """Measures one call; ``name`` goes into every result."""

    @property
    def name(self) -> str: ...

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        """Runs ``work`` once and returns its time with its result."""
        ...


@dataclass(frozen=True, slots=True)
class CpuClock:
    """The monotonic clock of the host; on a CPU, device and host time are the same reading."""

    name: str = "cpu.perf_counter_ns"

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        start_ns = _now_ns()
        result = work()
        seconds = max(_now_ns() - start_ns, 1) * 1e-9
        return Sample(seconds, seconds), result


class LedgerTimer:
    """A timer that shows the sum of what was entered; see :data:`device_seconds`."""

    __name__ = "device_seconds"

    def __init__(self) -> None:
        self._total_s = 0.0

    def __call__(self) -> float:
        return self._total_s

    def advance(self, seconds: float) -> None:
        """Enters ``seconds`` (positive) as the time of the call that runs now."""
        if not seconds > 0.0:
            raise ValueError(f"cannot enter {seconds} s: a measured time is positive")
        self._total_s += seconds


device_seconds = LedgerTimer()
