"""Clocks: how long a piece of work took, in seconds of the device that did it.

A :class:`Clock` measures one call.  The CPU's device time is its monotonic clock; a GPU clock (:mod:`amk_bench.cuda_clock`) reads
the device and keeps two readings of the host beside it: the same call, and how long the device went on afterwards.
:func:`disagreement` says when those readings do not tell one story.  :data:`device_seconds` is the named timer through which
already measured device seconds enter pytest-benchmark: it advances only when told to, so ``end - start`` around a replayed call is
exactly the sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")

# Bound at import: code under test that replaces ``time.perf_counter_ns`` later does not reach the clock.
_now_ns = time.perf_counter_ns

# What recording and waiting may cost the host beyond the device's own time; on an H200 7 to 9 us, in one call of a hundred 21 us.
HOST_SLACK_S = 50e-6
HOST_SHARE = 0.02
# What the device may still do after the timed window: no more than the smallest difference that a verdict is given for, and what
# an idle device takes to say so (3 to 6 us on an H200).
TAIL_SLACK_S = 25e-6
TAIL_SHARE = 0.01
# The host thread may lose its core between two readings.  A fifth of odd calls spoils at most 36 of 100 blocks, which moves their
# median no further than the 78th percentile of the honest ones: within the noise that the interval shows.
ODD_SHARE = 0.20
ODD_LEAST = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call.

    Attributes:
        device_s: seconds on the device.
        host_s: the host's monotonic reading around the same call.
        tail_s: seconds from the end of the window until the whole device was idle; 0 where device and host are one.
    """

    device_s: float
    host_s: float
    tail_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.device_s < math.inf and 0.0 < self.host_s < math.inf):
            raise ValueError(f"a timed call took {self.device_s} s (device), {self.host_s} s (host); both must be positive")
        if not 0.0 <= self.tail_s < math.inf:
            raise ValueError(f"a device was busy for {self.tail_s} s after a timed call; at least 0 is required")


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


def disagreement(samples: Sequence[Sample]) -> str | None:
    """Why the clocks of these calls do not agree; None where they do.

    The device worked on after the window closed (work on another stream, a kernel left running), or the host saw another time
    than the device (a patched timer, work that is hidden from the device's events).  Single odd calls are the machine's doing.
    """
    allowed = max(ODD_LEAST - 1, int(ODD_SHARE * len(samples)))
    late = [s.tail_s for s in samples if s.tail_s > TAIL_SLACK_S + TAIL_SHARE * s.device_s]
    if len(late) > allowed:
        return (
            f"the device was still working after the timed window in {len(late)} of {len(samples)} calls, "
            f"for up to {1e6 * max(late):.0f} us: everything a call starts must end inside it"
        )
    apart = [s for s in samples if abs(s.host_s - s.device_s) > HOST_SLACK_S + HOST_SHARE * s.host_s]
    if len(apart) > allowed:
        worst = max(apart, key=lambda s: abs(s.host_s - s.device_s))
        return (
            f"host and device clock disagree in {len(apart)} of {len(samples)} calls, "
            f"at worst {1e6 * worst.device_s:.0f} us on the device and {1e6 * worst.host_s:.0f} us on the host"
        )
    return None


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
