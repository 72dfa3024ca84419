"""Caches between timed calls: what evicts them, outside the timed region, where a working set would otherwise sit in them."""

from __future__ import annotations

import contextlib
from typing import Any

from amk_bench.floor import CACHES_FOR_COLD


class CpuFlush:
    """Reads and writes a buffer of several last-level caches; called before a timed call."""

    def __init__(self, cache_bytes: int) -> None:
        import numpy as np

        self._buffer: Any = np.zeros(max(CACHES_FOR_COLD * cache_bytes, 1 << 20) // 8, np.uint64)

    def __call__(self) -> None:
        self._buffer += 1


class CudaFlush:
    """Writes a buffer of several L2s through the driver, gives back any L2 set aside for persisting data, and waits.

    ``device`` is an :class:`amk_core.vm.driver.Device`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._buffer = device.memory(CACHES_FOR_COLD * max(device.facts.l2_bytes, 1 << 20))
        self._byte = 0

    def __call__(self) -> None:
        self._device.activate()
        self._byte = (self._byte + 1) % 256
        self._buffer.fill(self._byte)
        reset_persisting_l2()


def reset_persisting_l2() -> None:
    """Lines that a kernel asked to keep in L2 become ordinary ones; waits for the device, also where there are no such lines."""
    from amk_core.vm.driver import CudaError, call

    call("cuCtxSynchronize")
    with contextlib.suppress(CudaError):
        call("cuCtxResetPersistingL2Cache")
