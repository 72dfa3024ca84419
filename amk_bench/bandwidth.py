"""Probes of memory bandwidth: plain streaming reads, the best of several shapes, kept per device in a cache file.

On a GPU a kernel of 16-byte loads, compiled at run time, over a buffer of many L2s; on a CPU the native module's reader.  Of
several probes the fastest counts: the floor must never be higher than what the device can do, so a probe on a busy machine only
raises it towards the truth.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amk_bench.floor import CACHES_FOR_COLD, Bandwidth

VERSION = 1  # of the probes; another version measures anew
REPEATS = 12  # passes of a shape
CPU_LEAST_BYTES = 128 << 20
GPU_LEAST_BYTES = 4 << 30  # about a millisecond on the fastest cards: a launch is a few thousandths of it
MEMORY_SHARE = 4  # a probe takes at most this part (a quarter) of the free memory
AHEADS = (0, 256, 1024)  # words of prefetch distance; which one is best differs between processors
BLOCKS_PER_SM = (2, 4, 8, 16, 32)
THREADS = (256, 512, 1024)

KERNEL = r"""
// Every thread reads 16 bytes at a time with 8 loads in flight; sink keeps the loads alive and is never written in practice.
extern "C" __global__ void read16(const uint4* data, unsigned long long n, unsigned salt, uint4* sink) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  uint4 sum = make_uint4(0, 0, 0, 0);
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = data[i + k * step];
#pragma unroll
    for (int k = 0; k < 8; ++k) { sum.x ^= v[k].x; sum.y ^= v[k].y; sum.z ^= v[k].z; sum.w ^= v[k].w; }
  }
  for (; i < n; i += step) { sum.x ^= data[i].x; sum.y ^= data[i].y; sum.z ^= data[i].z; sum.w ^= data[i].w; }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == salt) sink[0] = sum;
}
"""
SALT = 0x9E3779B9  # no sum of equal words: the buffer is filled with one byte


def last_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache this core sees; 0 where the system does not say."""
    sizes = [0]
    for path in root.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
        digits = text[:-1] if unit else text
        sizes.append(int(digits) << unit if digits.isdigit() else 0)
    return max(sizes)


def probe_cpu(threads: int, cache_bytes: int | None = None, repeats: int = REPEATS) -> Bandwidth:
    """The processor's, read by ``threads`` threads (as many as the engines use)."""
    import numpy as np

    from amk_core import _native
    from amk_core.machine import memory

    cache = last_cache_bytes() if cache_bytes is None else cache_bytes
    size = max(2 * CACHES_FOR_COLD * cache, CPU_LEAST_BYTES)
    size = max(min(size, memory()[1] // MEMORY_SHARE), CACHES_FOR_COLD * cache + (1 << 20))
    words = np.ones(size // 8, np.uint64)  # written once, so that every page is there
    best, ahead = min((min(_native.read_passes(words, threads, repeats, ahead)), ahead) for ahead in AHEADS)
    return Bandwidth(words.nbytes / best, cache, words.nbytes, f"{threads} threads, 64-bit words, prefetch {8 * ahead} bytes ahead")


def probe_cuda(device: Any, repeats: int = REPEATS) -> Bandwidth:
    """A card's, through the driver alone; ``device`` is an :class:`amk_core.vm.driver.Device`.

    Raises CudaError or CompileError where the card or the compiler does not answer.
    """
    import numpy as np

    from amk_bench.cuda_clock import DriverEvents
    from amk_core.vm.driver import call, pointers

    facts = device.facts
    free, _ = call("cuMemGetInfo")
    size = max(2 * CACHES_FOR_COLD * facts.l2_bytes, GPU_LEAST_BYTES)
    size = max(min(size, int(free) // MEMORY_SHARE), CACHES_FOR_COLD * facts.l2_bytes + (1 << 20)) // 16 * 16
    data, sink = device.memory(size), device.memory(16)
    stream = device.stream()
    data.fill(1, stream=stream)
    read = device.function(device.module(compiled(KERNEL, facts.arch)), "read16")
    events = DriverEvents(device, stream)
    args, alive = pointers(
        np.array([data.address], np.uint64), np.array([size // 16], np.uint64), np.array([SALT], np.uint32),
        np.array([sink.address], np.uint64),
    )  # fmt: skip
    best_s, shape = float("inf"), ""
    for blocks in BLOCKS_PER_SM:
        for threads in THREADS:
            if blocks * threads > 2048 * 4:  # four waves are enough
                continue
            for _ in range(repeats):
                events.start()
                call("cuLaunchKernel", read, blocks * facts.sms, 1, 1, threads, 1, 1, 0, stream, args.ctypes.data, 0)
                events.stop()
                events.wait()
                seconds = events.elapsed_s()
                if seconds < best_s:
                    best_s, shape = seconds, f"{blocks} blocks an SM of {threads} threads, 16-byte loads, 8 in flight"
    del alive
    return Bandwidth(size / best_s, facts.l2_bytes, size, shape, datasheet(facts.name))


def compiled(source: str, arch: str) -> bytes:
    """Machine code of a small program of the judge's own, which never depends on the VM's sources.

    Raises CompileError where NVRTC is missing or refuses.
    """
    from amk_core.vm.nvrtc import CompileError, compiler_arch

    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError(f"probes of a card need NVRTC: pip install 'amk[cuda13]'. The import says: {error}") from None

    def call(function: str, *args: Any) -> Any:
        status, *rest = getattr(nvrtc, function)(*args)
        if int(status):
            raise CompileError(f"{function}, probe for {arch}: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return rest[0] if rest else None

    program = call("nvrtcCreateProgram", source.encode(), b"probe.cu", 0, [], [])
    try:
        call("nvrtcCompileProgram", program, 1, [f"--gpu-architecture={compiler_arch(arch)}".encode()])
        code: bytes = b" " * call("nvrtcGetCUBINSize", program)
        call("nvrtcGetCUBIN", program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# Vendors' figures, 1e9 bytes a second; the first entry whose words all stand in the card's name counts.
DATASHEETS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("H200",), 4800), (("GH200", "96"), 4000), (("H100", "NVL"), 3900), (("H100", "PCIe"), 2000), (("H100",), 3352),
    (("A100", "80GB", "PCIe"), 1935), (("A100", "80GB"), 2039), (("A100",), 1555), (("B200",), 8000), (("L40S",), 864),
    (("L40",), 864), (("L4",), 300), (("A10G",), 600), (("A10",), 600), (("RTX", "5090"), 1792), (("RTX", "4090"), 1008),
    (("RTX", "3090"), 936),
)  # fmt: skip


def datasheet(card: str) -> float | None:
    """The vendor's bandwidth of a card by its name, bytes a second; None for an unknown card."""
    words = card.replace("-", " ").split()
    return next((1e9 * gb_s for wanted, gb_s in DATASHEETS if all(w in words for w in wanted)), None)


def cache_file(folder: Path, identity: Mapping[str, Any]) -> Path:
    """Where the bandwidth of a device is kept; ``identity``: everything it depends on (card, driver, clocks policy, threads)."""
    text = json.dumps([VERSION, dict(identity)], sort_keys=True)
    return folder / f"bandwidth-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def known(path: Path) -> Bandwidth | None:
    """What an earlier probe left; None where there is none or the file is not one."""
    try:
        return Bandwidth(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def measured(path: Path, probe: Callable[[], Bandwidth], *, again: bool = False) -> Bandwidth:
    """The kept bandwidth of a device, probing where there is none or ``again`` is asked for; the faster of both is kept."""
    from amk_bench.results import write_atomically

    kept = known(path)
    if kept is not None and not again:
        return kept
    seen = probe()
    best = seen if kept is None or seen.bytes_per_s > kept.bytes_per_s else kept
    if best is not kept:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs a probe
            write_atomically(path, asdict(best), replace=True)
    return best
