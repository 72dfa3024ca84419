"""The clock of a CUDA device: two events around a call on the stream that the call works on.

The window opens on an idle device and closes with the second event; after that the whole device is waited for, and the time this
takes is kept with the sample.  Events come from torch (:class:`TorchEvents`) or straight from the driver (:class:`DriverEvents`),
for programs that do not load torch.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from amk_bench.clock import Sample, _now_ns

T = TypeVar("T")

WAITS = 15  # idle waits that tell what one costs
WAIT_MOST_NS = 100_000  # an idle wait is not believed to cost more: work left running must not hide in it


class Events(Protocol):
    """A pair of events on one stream of one device."""

    @property
    def name(self) -> str: ...

    def start(self) -> None:
        """Enqueue the first event."""
        ...

    def stop(self) -> None:
        """Enqueue the second event."""
        ...

    def wait(self) -> None:
        """Until the second event has happened."""
        ...

    def idle(self) -> None:
        """Until no stream of the device has work left."""
        ...

    def elapsed_s(self) -> float:
        """Seconds between the two events, resolution about half a microsecond."""
        ...


class CudaClock:
    """Measures calls that work on the stream of ``events``; a call may wait for its own work or return at once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._wait_ns = -1  # what waiting for an idle device costs the host
        self.name = f"cuda.events.{events.name}"

    def _calibrate(self) -> int:
        """Nanoseconds of a wait for an idle device; the driver asks every context, so it depends on the machine."""
        costs = []
        for _ in range(WAITS):
            start_ns = _now_ns()
            self._events.idle()
            costs.append(_now_ns() - start_ns)
        return min(int(statistics.median(costs)), WAIT_MOST_NS)

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        events = self._events
        events.idle()
        if self._wait_ns < 0:
            self._wait_ns = self._calibrate()
        before_ns = _now_ns()
        events.start()
        result = work()
        events.stop()
        events.wait()
        after_ns = _now_ns()
        events.idle()
        idle_ns = _now_ns()
        # Events resolve half a microsecond: a window in which nothing ran may read zero.
        device_s = max(events.elapsed_s(), 1e-9)
        return Sample(device_s, (after_ns - before_ns) * 1e-9, max(idle_ns - after_ns - self._wait_ns, 0) * 1e-9), result


class TorchEvents:
    """Events through torch, on ``stream`` (a torch.cuda.Stream) or on the stream that is current when the call is made."""

    name = "torch"

    def __init__(self, stream: Any = None) -> None:
        import torch

        # Bound here, before any engine runs: replacing torch's functions later does not reach the clock.
        kind: Any = torch.cuda.Event
        self._record, self._wait, self._between = kind.record, kind.synchronize, kind.elapsed_time
        self._synchronize = torch.cuda.synchronize
        self._current = torch.cuda.current_stream
        self._stream = stream
        self._first, self._second = kind(enable_timing=True), kind(enable_timing=True)

    def _on(self) -> Any:
        return self._current() if self._stream is None else self._stream

    def start(self) -> None:
        self._record(self._first, self._on())

    def stop(self) -> None:
        self._record(self._second, self._on())

    def wait(self) -> None:
        self._wait(self._second)

    def idle(self) -> None:
        self._synchronize()

    def elapsed_s(self) -> float:
        return float(self._between(self._first, self._second)) * 1e-3


class DriverEvents:
    """Events through the CUDA driver, on ``stream`` of ``device`` (:class:`amk_core.vm.driver.Device`); no torch."""

    name = "driver"

    def __init__(self, device: Any, stream: Any) -> None:
        from amk_core.vm.driver import call

        device.activate()
        self._call = call
        self._device = device
        self._stream = stream
        self._first, self._second = call("cuEventCreate", 0), call("cuEventCreate", 0)

    def start(self) -> None:
        self._device.activate()
        self._call("cuEventRecord", self._first, self._stream)

    def stop(self) -> None:
        self._call("cuEventRecord", self._second, self._stream)

    def wait(self) -> None:
        self._call("cuEventSynchronize", self._second)

    def idle(self) -> None:
        self._device.activate()
        self._call("cuCtxSynchronize")

    def elapsed_s(self) -> float:
        return float(self._call("cuEventElapsedTime", self._first, self._second)) * 1e-3

    def __del__(self) -> None:
        for event in (getattr(self, "_first", None), getattr(self, "_second", None)):
            if event is not None:
                with contextlib.suppress(Exception):  # the interpreter or the context may be going away
                    self._call("cuEventDestroy", event)
