"""The CUDA driver, as little of it as the device VM needs: one device, its memory, modules, streams, events and launches.

Every failure is one clear error: no driver, no card, too old a driver, out of memory, wrong architecture.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class CudaError(RuntimeError):
    """The driver refused something, or there is no driver or card; the message says what to do."""


class CudaOutOfMemory(CudaError, MemoryError):
    """The card has not enough free memory."""


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
        if getattr(self, "_ptr", None) is not None:
            try:
                self._device.activate()
                _driver().cuMemFree(self._ptr)
            except Exception:  # the interpreter or the context is going away
                pass

    def upload(self, array: npt.NDArray[Any], offset: int = 0, stream: Any = None) -> None:
        """Copy an array to ``offset``; with a stream the copy is only enqueued (the array must stay alive)."""
        a = np.ascontiguousarray(array)
        assert offset >= 0
        assert offset + a.nbytes <= max(self.size, 256)
        if a.nbytes == 0:
            return
        if stream is None:
            call("cuMemcpyHtoD", self.address + offset, a.ctypes.data, a.nbytes)
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


class Device:
    """One card, through its primary context."""

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
