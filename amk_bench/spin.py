"""A kernel whose time is what it is asked to be: the device's reference task, to ask clocks and judge about themselves.

Every SM runs one block that adds for a number of steps; the sums go to memory, so that the work is there.  Needs the CUDA driver
and NVRTC, not torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amk_bench.bandwidth import compiled

STEPS = 60_000  # about 150 us at 1.9 GHz: four cycles a dependent step
_THREADS = 128
_SOURCE = r"""
extern "C" __global__ void spin(unsigned steps, unsigned salt, unsigned* out) {
  unsigned x = salt + threadIdx.x;
  for (unsigned i = 0; i < steps; ++i) asm volatile("mad.lo.u32 %0, %0, 1664525, 1013904223;" : "+r"(x));
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
"""


class Spin:
    """Launches the kernel on ``stream``; a call takes its number and returns at once."""

    def __init__(self, device: Any, stream: Any, steps: int = STEPS) -> None:
        from amk_core.vm.driver import call, pointers

        self._call, self._pointers, self._stream = call, pointers, stream
        self.steps = steps
        self._blocks = device.facts.sms
        self._out = device.memory(4 * self._blocks * _THREADS)
        self._kernel = device.function(device.module(compiled(_SOURCE, device.facts.arch)), "spin")

    def __call__(self, number: int) -> None:
        args, alive = self._pointers(
            np.array([self.steps], np.uint32), np.array([number], np.uint32), np.array([self._out.address], np.uint64)
        )
        self._call("cuLaunchKernel", self._kernel, self._blocks, 1, 1, _THREADS, 1, 1, 0, self._stream, args.ctypes.data, 0)
        del alive

    def result(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """What the last call left, uint32 [SMs, 128]; waits for it."""
        self._call("cuCtxSynchronize")
        out = np.zeros((self._blocks, _THREADS), np.uint32)
        self._out.download(out)
        return out


def expected(number: int, steps: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """What :meth:`Spin.result` holds in each row, uint32 [128]: the linear congruence, ``steps`` times."""
    modulus = 1 << 32
    factor, offset, a, c = 1, 0, 1664525, 1013904223
    while steps:  # square and multiply: x -> a x + c, composed with itself
        if steps & 1:
            factor, offset = factor * a % modulus, (offset * a + c) % modulus
        a, c = a * a % modulus, (a * c + c) % modulus
        steps >>= 1
    start = (number + np.arange(_THREADS, dtype=np.uint64)) % modulus
    return ((start * np.uint64(factor) + np.uint64(offset)) % np.uint64(modulus)).astype(np.uint32)
