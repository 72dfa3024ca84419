"""The CUDA driver, as little of it as the device VM needs: one device, its memory, modules, streams, events and launches.

Every failure is one clear error: no driver, no card, too old a driver, out of memory, wrong architecture.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class CudaError(RuntimeError):
    """The driver refused something, or there is no driver or card; the message says what to do."""


class CudaOutOfMemory(CudaError, MemoryError):
    """The card has not enough free memory."""


OLDEST_MAJOR = 8  # cp.async and the tensor-core shapes of the kernels

_HINTS = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin was built for another architecture; build for the card's own",
    "CUDA_ERROR_INVALID_SOURCE": "the cubin was built for another architecture or is damaged; delete $AMK_HOME/cubin",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler; update the driver or install amk[cuda12]",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the kernel driver and libcuda differ; reboot after a driver update",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "not all queues fit the card at once; lower for this card's SM count",
    "CUDA_ERROR_LAUNCH_FAILED": "the device program failed; the context is lost, start a new process",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "the device program touched memory that is not its own; the context is lost, start a new process",
}


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise CudaError(f"the CUDA backend needs cuda-bindings: pip install 'amk[cuda13]'. The import says: {e}") from None
    return driver


def call(name: str, *args: Any) -> Any:
    """Call a driver function; returns its single result, a tuple of several, or None.

    Raises:
        CudaOutOfMemory: the card's memory is full.
        CudaError: anything else.
    """
    driver = _driver()
    try:
        status, *rest = getattr(driver, name)(*args)
    except RuntimeError as e:  # the bindings cannot load libcuda or do not find the symbol
        raise CudaError(f"no usable CUDA driver on this machine: {e}; use backend='cpu', or install NVIDIA's driver") from None
    if int(status):
        error = status.name if hasattr(status, "name") else str(status)
        if error == "CUDA_ERROR_OUT_OF_MEMORY":
            raise CudaOutOfMemory(f"{name}: the card is out of memory")
        if error in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY", "CUDA_ERROR_NOT_INITIALIZED"):
            raise CudaError(
                f"{name}: no NVIDIA card is visible ({error}); check nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend='cpu'"
            )
        raise CudaError(f"{name}: {error}" + (f"; {_HINTS[error]}" if error in _HINTS else ""))
    if not rest:
        return None
    return rest[0] if len(rest) == 1 else tuple(rest)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the card itself says."""

    name: str
    arch: str
    sms: int
    smem_bytes: int
    memory_bytes: int
    l2_bytes: int
    cooperative: bool
    driver: int


class Memory:
    """Bytes on the card; freed with the object."""

    def __init__(self, device: Device, size: int) -> None:
        self.size = size
        self._owner: Any = None
        self._ptr: Any = None
        device.activate()
        try:
            self._ptr = call("cuMemAlloc", max(size, 256))
        except CudaOutOfMemory:
            free, total = call("cuMemGetInfo")
            raise CudaOutOfMemory(
                f"{size / 1e9:.2f} GB are needed, {free / 1e9:.2f} of {total / 1e9:.2f} GB are free on {device.facts.name}; "
                "use a smaller context or batch, another mode, or a larger card"
            ) from None
        self.address = int(self._ptr)
        self._device = device

    @classmethod
    def borrow(cls, device: Device, address: int, size: int, owner: Any) -> Memory:
        """Memory of another library on the same card; ``owner`` is kept alive as long as this object."""
        m = cls.__new__(cls)
        m.size, m.address, m._device, m._ptr, m._owner = size, address, device, None, owner
        return m

    def __del__(self) -> None:
        _release(self, "cuMemFree")

    def upload(self, array: npt.NDArray[Any], offset: int = 0, stream: Any = None) -> None:
        """Copy an array to ``offset``; with a stream the copy is only enqueued (the array must stay alive).

        Without one the bytes are there on return: the driver itself returns when it has put them aside, and launches run on streams
        that do not wait for the one of this copy.
        """
        a = np.ascontiguousarray(array)
        assert offset >= 0
        assert offset + a.nbytes <= max(self.size, 256)
        if a.nbytes == 0:
            return
        if stream is None:
            call("cuMemcpyHtoD", self.address + offset, a.ctypes.data, a.nbytes)
            call("cuStreamSynchronize", 0)
        else:
            call("cuMemcpyHtoDAsync", self.address + offset, a.ctypes.data, a.nbytes, stream)

    def download(self, array: npt.NDArray[Any], offset: int = 0, stream: Any = None) -> None:
        """Fill a contiguous array from ``offset``."""
        assert array.flags.c_contiguous
        assert offset + array.nbytes <= max(self.size, 256)
        if stream is None:
            call("cuMemcpyDtoH", array.ctypes.data, self.address + offset, array.nbytes)
        else:
            call("cuMemcpyDtoHAsync", array.ctypes.data, self.address + offset, array.nbytes, stream)

    def fill(self, byte: int, size: int | None = None, offset: int = 0, stream: Any = None) -> None:
        n = self.size - offset if size is None else size
        if n > 0:
            call("cuMemsetD8Async", self.address + offset, byte, n, stream or 0)


class HostMemory:
    """Pinned bytes of this machine that the card reads and writes where they are; zeros at first, freed with the object.

    ``address`` is their place as the card sees it, ``bytes`` a view of them here (valid as long as this object).
    """

    def __init__(self, device: Device, size: int) -> None:
        self._ptr: Any = None
        self.size, self._device = size, device
        device.activate()
        portable, mapped = 1, 2
        try:
            self._ptr = call("cuMemHostAlloc", max(size, 64), portable | mapped)
        except CudaOutOfMemory:
            raise CudaOutOfMemory(
                f"{size} bytes of pinned memory cannot be had on this machine; raise its limit of locked memory"
            ) from None
        self.address = int(call("cuMemHostGetDevicePointer", self._ptr, 0))
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(self._ptr)))
        self.bytes[:] = 0

    def __del__(self) -> None:
        _release(self, "cuMemFreeHost")


def _release(owner: Any, function: str) -> None:
    """Free what ``owner._ptr`` names, once; quiet when the interpreter or the context is going away."""
    pointer, owner._ptr = getattr(owner, "_ptr", None), None
    if pointer is not None:
        with contextlib.suppress(Exception):
            owner._device.activate()
            getattr(_driver(), function)(pointer)


class Graph:
    """A launch of ``steps`` that was captured; made by :meth:`amk_core.vm.cuda.CudaVM.capture`."""

    def __init__(self, device: Device, graph: Any, steps: int) -> None:
        self._device, self._graph, self._ptr, self.steps = device, graph, None, steps
        self._ptr = call("cuGraphInstantiate", graph, 0)

    def launch(self, stream: Any) -> None:
        self._device.activate()
        call("cuGraphLaunch", self._ptr, stream)

    def __del__(self) -> None:
        _release(self, "cuGraphExecDestroy")
        self._ptr, self._graph = self._graph, None
        _release(self, "cuGraphDestroy")


class Device:
    """One card, through its primary context.

    Raises:
        CudaError: no driver, no such card, or one that the device VM does not run on.
    """

    def __init__(self, index: int = 0) -> None:
        call("cuInit", 0)
        count = call("cuDeviceGetCount")
        if index >= count:
            raise CudaError(f"card {index} is asked for, {count} are visible; check nvidia-smi and CUDA_VISIBLE_DEVICES")
        self._device = call("cuDeviceGet", index)
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self.activate()
        attribute = _driver().CUdevice_attribute

        def ask(name: str) -> int:
            return int(call("cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), self._device))

        name = call("cuDeviceGetName", 128, self._device).decode().split("\0")[0]
        arch = f"sm_{ask('COMPUTE_CAPABILITY_MAJOR')}{ask('COMPUTE_CAPABILITY_MINOR')}"
        self.facts = DeviceFacts(
            name, arch, ask("MULTIPROCESSOR_COUNT"), ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            int(call("cuDeviceTotalMem", self._device)), ask("L2_CACHE_SIZE"), bool(ask("COOPERATIVE_LAUNCH")),
            int(call("cuDriverGetVersion")),
        )  # fmt: skip
        major = int(arch.removeprefix("sm_")[:-1])
        if major < OLDEST_MAJOR:
            raise CudaError(f"{name} is {arch}; the device VM needs sm_{OLDEST_MAJOR}0 or later (Ampere); use backend='cpu'")

    def activate(self) -> None:
        """Make the context current in this thread."""
        call("cuCtxSetCurrent", self._context)

    def memory(self, size: int) -> Memory:
        return Memory(self, size)

    def upload(self, array: npt.NDArray[Any]) -> Memory:
        m = Memory(self, array.nbytes)
        m.upload(array)
        return m

    def stream(self) -> Any:
        return call("cuStreamCreate", 1)  # non-blocking: not ordered with the default stream

    def module(self, cubin: bytes) -> Any:
        return call("cuModuleLoadData", cubin)

    def synchronize(self) -> None:
        """Wait for everything on the card."""
        self.activate()
        call("cuCtxSynchronize")

    def free_bytes(self) -> int:
        """Free memory of the card."""
        self.activate()
        return int(call("cuMemGetInfo")[0])

    def capture(self, stream: Any, work: Callable[[], None], steps: int) -> Graph:
        """What ``work`` enqueues on ``stream`` (a launch of ``steps``), as a graph; nothing runs."""
        self.activate()
        relaxed = _driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call("cuStreamBeginCapture", stream, relaxed)
        try:
            work()
        except BaseException:
            with contextlib.suppress(CudaError):
                call("cuGraphDestroy", call("cuStreamEndCapture", stream))
            raise
        return Graph(self, call("cuStreamEndCapture", stream), steps)

    def destroy(self, function: str, handle: Any) -> None:
        """Give a stream, an event or a module back; quiet when the context is going away."""
        with contextlib.suppress(Exception):
            self.activate()
            getattr(_driver(), function)(handle)

    def function(self, module: Any, name: str, shared_bytes: int = 0) -> Any:
        f = call("cuModuleGetFunction", module, name.encode())
        if shared_bytes > 48 * 1024:
            call(
                "cuFuncSetAttribute",
                f,
                _driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes,
            )
        return f

    def allow_large_clusters(self, function: Any) -> None:
        """Clusters of more than 8 CTAs, which not every card of an architecture has."""
        call("cuFuncSetAttribute", function, _driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)


def cluster_launch(grid: int, cluster: int, threads: int, shared_bytes: int, stream: Any = 0, *, cooperative: bool = True) -> Any:
    """What ``cuLaunchKernelEx`` and ``cuOccupancyMaxActiveClusters`` take: a grid of clusters, all of it on the card at once."""
    driver = _driver()
    kinds = driver.CUlaunchAttributeID

    def attribute(kind: Any) -> Any:
        a = driver.CUlaunchAttribute()
        a.id = kind
        return a

    dimension = attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    dimension.value.clusterDim.x, dimension.value.clusterDim.y, dimension.value.clusterDim.z = cluster, 1, 1
    together = attribute(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    together.value.cooperative = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.hStream = shared_bytes, stream
    attributes = [dimension, together] if cooperative else [dimension]
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def pointers(*values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint64], tuple[npt.NDArray[Any], ...]]:
    """The array of parameter addresses that a launch takes; the second item keeps the values alive."""
    return np.array([v.ctypes.data for v in values], np.uint64), values


def finished(stream: Any) -> bool:
    """Everything enqueued on the stream has ended (an error counts: the next synchronising call reports it)."""
    (status,) = _driver().cuStreamQuery(stream)
    return bool(status.name != "CUDA_ERROR_NOT_READY")


def library_present() -> bool:
    """libcuda can be loaded (nothing is started)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
