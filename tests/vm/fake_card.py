"""A CUDA driver without a card: its memory is this process's, its launches are what the test says.  Every call is logged."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from amk_core.vm.program import LAUNCH


class Status(int):
    name: str

    def __new__(cls, name: str) -> Status:
        self = super().__new__(cls, 0 if name == "CUDA_SUCCESS" else 1)
        self.name = name
        return self


OK = Status("CUDA_SUCCESS")
Work = Callable[["FakeCard", Any], None]  # what a launch does, given its arguments (a LAUNCH record)


class _Names:
    """Any attribute is its own name, as the driver's enumerations are used."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeCard:
    """The module that ``amk_core.vm.driver`` calls.

    Args:
        memory_bytes: of the card; more cannot be allocated.
        facts: device attributes that differ from those of an H200.
        errors: function name -> error it returns.
    """

    def __init__(self, memory_bytes: int = 1 << 32, cards: int = 1, errors: dict[str, str] | None = None, **facts: int) -> None:
        self.memory_bytes, self.cards, self.errors = memory_bytes, cards, errors or {}
        self.facts = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
                      "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448, "L2_CACHE_SIZE": 62_914_560, "COOPERATIVE_LAUNCH": 1,
                      "DRIVER": 13_000, "RESIDENT": 1, **facts}  # fmt: skip
        self.log: Counter[str] = Counter()
        self.heap: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.alive: Counter[str] = Counter()  # streams, modules, events, graphs
        self.work: Work = lambda card, launch: None
        self.thread: threading.Thread | None = None
        self.captured: list[Callable[[], None]] | None = None
        self.aside: list[tuple[int, bytes]] = []  # copies that have returned and not landed yet
        self.CUdevice_attribute = _Names()
        self.CUfunction_attribute = _Names()
        self.CUlaunchAttributeID = _Names()
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def called(*args: Any) -> Any:
            self.log[name] += 1
            if name in self.errors:
                return (Status(self.errors[name]),)
            result = getattr(self, "_" + name)(*args)
            return (OK,) if result is None else (result,) if isinstance(result, Status) else (OK, result)

        return called

    # -- memory
    @property
    def used(self) -> int:
        return sum(self.sizes.values())

    def _cuMemAlloc(self, size: int) -> Any:
        if self.used + size > self.memory_bytes:
            return Status("CUDA_ERROR_OUT_OF_MEMORY")
        raw = np.full(size + 256, 0xFF, np.uint8)  # fresh memory of a card holds anything
        address = -(-raw.ctypes.data // 256) * 256
        self.heap[address], self.sizes[address] = raw, size
        return address

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        address = int(self._cuMemAlloc(size))
        del self.sizes[address]
        self.alive["pinned"] += 1
        return address

    def _cuMemHostGetDevicePointer(self, address: int, flags: int) -> int:
        return address

    def _land(self) -> None:
        for to, data in self.aside:
            ctypes.memmove(to, data, len(data))
        self.aside = []

    def _cuMemFree(self, address: int) -> None:
        self._land()
        del self.heap[address], self.sizes[address]

    def _cuMemFreeHost(self, address: int) -> None:
        self.alive["pinned"] -= 1
        del self.heap[address]

    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.memory_bytes - self.used, self.memory_bytes

    def _now_or_captured(self, work: Callable[[], None]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def _cuMemcpyHtoD(self, to: int, source: int, size: int) -> None:
        """The bytes are put aside; they land with the next synchronisation, and other streams do not wait for them."""
        self.aside.append((to, ctypes.string_at(source, size)))

    def _cuMemcpyDtoH(self, to: int, source: int, size: int) -> None:
        self._land()
        ctypes.memmove(to, source, size)

    def _cuMemcpyDtoD(self, to: int, source: int, size: int) -> None:
        self._land()
        ctypes.memmove(to, source, size)

    def _cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: Any) -> None:
        self._now_or_captured(lambda: (ctypes.memmove(to, source, size), None)[1])

    def _cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: Any) -> None:
        ctypes.memmove(to, source, size)

    def _cuMemsetD8Async(self, to: int, byte: int, size: int, stream: Any) -> None:
        self._now_or_captured(lambda: (ctypes.memset(to, byte, size), None)[1])

    def view(self, address: int, dtype: Any, n: int = 1) -> Any:
        """An array over memory of the card."""
        raw = (ctypes.c_uint8 * (np.dtype(dtype).itemsize * n)).from_address(int(address))
        return np.frombuffer(raw, dtype, n)

    # -- the device
    def _cuInit(self, flags: int) -> None: ...
    def _cuDeviceGetCount(self) -> int:
        return self.cards

    def _cuDeviceGet(self, index: int) -> int:
        return index

    def _cuDevicePrimaryCtxRetain(self, device: int) -> str:
        return "context"

    def _cuCtxSetCurrent(self, context: str) -> None: ...
    def _cuDeviceGetAttribute(self, name: str, device: int) -> int:
        return self.facts[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def _cuDeviceGetName(self, size: int, device: int) -> bytes:
        return b"Fake H200\0"

    def _cuDeviceTotalMem(self, device: int) -> int:
        return self.memory_bytes

    def _cuDriverGetVersion(self) -> int:
        return self.facts["DRIVER"]

    # -- programs
    def _made(self, what: str) -> str:
        self.alive[what] += 1
        return f"{what} {self.alive[what]}"

    def _cuModuleLoadData(self, data: bytes) -> str:
        assert data[:4] == b"\x7fELF"
        return self._made("module")

    def _cuModuleUnload(self, module: str) -> None:
        self.alive["module"] -= 1

    def _cuModuleGetFunction(self, module: str, name: bytes) -> str:
        return name.decode()

    def _cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> None: ...
    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: str, threads: int, shared: int) -> int:
        return self.facts["RESIDENT"]

    def _cuStreamCreate(self, flags: int) -> str:
        return self._made("stream")

    def _cuStreamDestroy(self, stream: str) -> None:
        self.alive["stream"] -= 1

    def _cuEventCreate(self, flags: int) -> str:
        return self._made("event")

    def _cuEventDestroy(self, event: str) -> None:
        self.alive["event"] -= 1

    def _cuEventRecord(self, event: str, stream: Any) -> None: ...
    def _cuEventElapsedTime(self, first: str, last: str) -> float:
        return 0.5

    def _join(self) -> None:
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _cuStreamSynchronize(self, stream: Any) -> None:
        if stream == 0:  # the default stream: those of launches are not ordered with it
            self._land()
        else:
            self._join()

    def _cuCtxSynchronize(self) -> None:
        self._land()
        self._join()

    def _cuStreamQuery(self, stream: Any) -> Status:
        busy = self.thread is not None and self.thread.is_alive()
        return Status("CUDA_ERROR_NOT_READY") if busy else OK

    @staticmethod
    def CUlaunchAttribute() -> Any:
        return SimpleNamespace(id=None, value=SimpleNamespace(clusterDim=SimpleNamespace(), cooperative=0))

    @staticmethod
    def CUlaunchConfig() -> Any:
        return SimpleNamespace()

    @staticmethod
    def _cluster(config: Any) -> int:
        (a,) = [a for a in config.attrs if a.id == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"]
        return int(a.value.clusterDim.x)

    def _cuOccupancyMaxActiveClusters(self, function: str, config: Any) -> int:
        return self.facts.get("CLUSTERS", self.facts["MULTIPROCESSOR_COUNT"] // self._cluster(config))

    def _cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> None:
        assert config.gridDimX % self._cluster(config) == 0
        self.log[f"clusters of {self._cluster(config)}"] += 1
        self.log["cooperative"] += sum(a.value.cooperative for a in config.attrs)
        self._cuLaunchCooperativeKernel(function, config.gridDimX, parameters)

    def _cuLaunchCooperativeKernel(self, function: str, grid: int, *rest: Any) -> None:
        launch = self.view(int(self.view(rest[-1], np.uint64)[0]), LAUNCH)[0].copy()  # parameters are copied at the call
        assert function == "amk_run"
        self.log[f"grid {grid}"] += 1

        def start() -> None:
            self.thread = threading.Thread(target=self.work, args=(self, launch))
            self.thread.start()

        self._now_or_captured(start)

    def _cuLaunchKernel(self, function: str, *rest: Any) -> None:
        assert function == "amk_pack"

    # -- graphs
    def _cuStreamBeginCapture(self, stream: Any, mode: int) -> None:
        self.captured = []

    def _cuStreamEndCapture(self, stream: Any) -> Any:
        graph, self.captured = self.captured, None
        self.alive["graph"] += 1
        return tuple(graph or ())

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self.alive["graph"] += 1
        return list(graph)

    def _cuGraphLaunch(self, graph: Any, stream: Any) -> None:
        for work in graph:
            work()

    def _cuGraphExecDestroy(self, graph: Any) -> None:
        self.alive["graph"] -= 1

    def _cuGraphDestroy(self, graph: Any) -> None:
        self.alive["graph"] -= 1
