"""The buffers of a program on a card: pools and bound arrays there, host copies here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.ir import Kind, Lifetime, Schedule
from amk_core.vm.driver import Device, Memory, call
from amk_core.vm.plan import ProgramError

_VIEW: Mapping[str, Any] = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "b32": np.uint32, "bf16": np.uint16}
Array = npt.NDArray[Any]


class DeviceBuffers:
    """Where every buffer of a schedule lies on a card.

    Args:
        bound: arrays for buffers of kind table or input, by name; tables are copied once, inputs before each launch.
        pools: memory for pools that programs share; the others are allocated and filled with zeros.
        clusters: pools of clusters are shared memory, which is not here.

    Raises:
        ProgramError: a binding or a pool does not fit.
        CudaOutOfMemory: the card is full.
    """

    def __init__(
        self, s: Schedule, device: Device, bound: Mapping[str, Array | Memory], pools: Mapping[str, Memory], clusters: bool = False
    ) -> None:
        self._s, self._device = s, device
        self._names = {b.name: i for i, b in enumerate(s.buffers)}
        self.mirrors: dict[str, Array] = {}
        self._clean: dict[str, bytes] = {}  # what the card and the host copy held when they were last equal
        self.pools: dict[str, Memory] = {}
        self.tagged = sorted({b.pool for b in s.buffers if b.tagged})  # pools that are cleared before each launch
        if any(b.pool in self.tagged and not b.tagged for b in s.buffers):
            raise ProgramError("tagged and plain buffers share a pool; tagged ones are cleared before each launch")
        self._inputs: dict[int, Array] = {}
        self.own: dict[int, Memory] = {}  # buffers outside the pools, by id
        for name, a in bound.items():
            self._bind(name, a)
        extent: dict[str, int] = {p.id: 0 for p in s.pools}
        for i, b in enumerate(s.buffers):
            if i in self.own or b.kind is Kind.WEIGHT:
                continue
            if b.pool not in extent or b.offset < 0 or b.offset % 16:
                raise ProgramError(f"buffer {b.name!r} lies in no pool, or its offset {b.offset} is not a multiple of 16")
            if b.kind is Kind.TABLE:
                self.own[i] = device.memory(b.bytes)
                continue
            extent[b.pool] = max(extent[b.pool], b.offset + b.bytes)
        for p in s.pools:
            if p.bytes is not None and extent[p.id] > p.bytes:
                raise ProgramError(f"buffers of pool {p.id!r} end at byte {extent[p.id]} of {p.bytes}")
            if p.cluster and clusters:
                continue
            if p.cluster and extent[p.id]:
                raise ProgramError(f"pool {p.id!r} is for clusters of {p.cluster} queues, which only RankVM launches")
            if p.per_queue and extent[p.id]:
                raise ProgramError(f"pool {p.id!r} is per queue; the device VM manages shared memory itself")
            if p.id in pools:
                if pools[p.id].size < extent[p.id]:
                    raise ProgramError(f"pool {p.id!r} is given {pools[p.id].size} bytes, required are {extent[p.id]}")
                self.pools[p.id] = pools[p.id]
            elif extent[p.id]:
                self.pools[p.id] = device.memory(extent[p.id])
                self.pools[p.id].fill(0)
        call("cuCtxSynchronize")

    def _bind(self, name: str, a: Array | Memory) -> None:
        i = self._names.get(name)
        if i is None or self._s.buffers[i].kind not in (Kind.TABLE, Kind.INPUT):
            raise ProgramError(f"buffer {name!r} is bound, but it does not exist or is neither a table nor an input")
        want, have = self._s.buffers[i].bytes, a.size if isinstance(a, Memory) else a.nbytes
        if have != want:
            raise ProgramError(f"buffer {name!r} is bound to {have} bytes, required are {want}")
        if isinstance(a, Memory):
            self.own[i] = a
            return
        self.own[i] = self._device.upload(a)
        if self._s.buffers[i].kind is Kind.INPUT:
            self._inputs[i] = a

    def index(self, name: str) -> int:
        """The id of a buffer; KeyError where there is none."""
        return self._names[name]

    def place(self, b: int) -> tuple[Memory, int]:
        """Memory and offset of a buffer."""
        if b in self.own:
            return self.own[b], 0
        buffer = self._s.buffers[b]
        return self.pools[buffer.pool], buffer.offset

    def address(self, b: int) -> int:
        m, offset = self.place(b)
        return m.address + offset

    def mirror(self, name: str, fresh: bool) -> Array:
        """The host copy [rows, cols] of a buffer; a new one is taken from the card if ``fresh``."""
        if name not in self.mirrors:
            b = self._s.buffers[self._names[name]]
            if b.kind is Kind.WEIGHT:
                raise KeyError(f"{name} is a weight; weights lie in the tape")
            if b.pool not in self.pools and self._names[name] not in self.own:
                raise KeyError(f"{name} lies in the shared memory of a cluster, which is gone after a launch")
            view = _VIEW.get(b.dtype, np.uint8)
            n = b.rows * b.cols if b.dtype in _VIEW else b.bytes
            self.mirrors[name] = np.zeros(n, view).reshape((b.rows, b.cols) if b.dtype in _VIEW else (-1,))
            self._clean[name] = self.mirrors[name].tobytes()
            if fresh:
                self.refresh([name])
        return self.mirrors[name]

    def refresh(self, names: Iterable[str] | None = None) -> None:
        """Copy buffers (default: all that have a host copy) from the card into their host copies."""
        self._device.activate()
        for name in list(self.mirrors) if names is None else names:
            m, offset = self.place(self._names[name])
            m.download(self.mirrors[name], offset)
            if self._s.buffers[self._names[name]].kind is not Kind.OUTPUT:
                self._clean[name] = self.mirrors[name].tobytes()

    def forget(self) -> None:
        """The card has gone on: host copies of tokens do not say what is there, so the next upload takes them as they are."""
        for name in self.mirrors:
            if self._s.buffers[self._names[name]].kind is Kind.TOKEN:
                self._clean[name] = b""

    def read(self, name: str) -> Array:
        """A buffer as the card has it, in a new array of the shape of its host copy."""
        self._device.activate()
        a = np.empty_like(self.mirror(name, fresh=True))
        m, offset = self.place(self._names[name])
        m.download(a, offset)
        return a

    def write(self, name: str, a: Array) -> None:
        """Put a buffer on the card at once; ``a`` has its bytes."""
        self.mirror(name, fresh=False)[...] = a
        m, offset = self.place(self._names[name])
        m.upload(self.mirrors[name], offset)
        self._clean[name] = self.mirrors[name].tobytes()

    def upload(self, stream: Any, *, poisoned: bool) -> None:
        """Host copies that the host has changed to the card, but for outputs and, after :meth:`poison`, buffers of a step.

        The others are left as the card has them: another program may have written to a shared pool meanwhile.
        """
        for name, mirror in self.mirrors.items():
            b = self._s.buffers[self._names[name]]
            wanted = b.kind is not Kind.OUTPUT and not (poisoned and b.lifetime is Lifetime.STEP)
            if wanted and mirror.tobytes() != self._clean[name]:
                m, offset = self.place(self._names[name])
                m.upload(mirror, offset, stream)
                self._clean[name] = mirror.tobytes()
        for i, a in self._inputs.items():
            self.own[i].upload(a, 0, stream)

    def poison(self, stream: Any) -> None:
        """Fill every buffer of a step that is not initial with NaN."""
        initial = set(self._s.columns.init_buffer.tolist())
        for i, b in enumerate(self._s.buffers):
            here = b.kind is not Kind.WEIGHT and b.pool in self.pools and i not in self.own
            if b.lifetime is Lifetime.STEP and here and i not in initial:
                m, offset = self.place(i)
                m.fill(0xFF, b.bytes, offset, stream)
