"""The CUDA VM: runs certified tables in one cooperative launch for many steps, one CTA a queue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule import ops, tables
from amk_core.schedule.ir import DTYPE_BITS, Kind, Lifetime, Schedule
from amk_core.vm import Fault, LaunchAborted, LaunchResult, VmFault, nvrtc
from amk_core.vm.driver import CudaError, Device, Memory, call, finished, pointers
from amk_core.vm.plan import Build, Dims, ProgramError, plan_build
from amk_core.vm.program import COUNTER_STRIDE, FAULT, LAUNCH, build_program

SPIN_TIMEOUT_S = 2.0  # far above any task on a GPU; a fault, not a performance limit
NO_HALT = 0xFFFFFFFF
_VIEW: Mapping[str, Any] = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "b32": np.uint32, "bf16": np.uint16}
_FAULT_KINDS = {1: "spin-timeout", 2: "token-range"}
_CONTROL = np.dtype([("halt", "<u4"), ("published", "<u4"), ("pad", "<u4", 14), ("fault", FAULT)])
_ALIGN = 256


class CudaVM:
    """One program on one card.

    Args:
        tables: the bytes of ``tables.pack``.
        certificate: of exactly these bytes.
        task_weight: exact mode: int64 [n_tasks] (``TapeLayout.locate``); fast mode: int64 [n_tasks, 2]
            (``DeviceTapeLayout.locate``).
        tape: the weight tape: host bytes, or :class:`~amk_core.vm.driver.Memory` already on the card (shared by programs).
        bound: arrays for buffers of kind table or input, by name; tables are copied to the card once, inputs before each launch.
            A table may also be given as ``Memory``.
        pools: memory for pools that programs share, by pool id, for instance ``other.pool("kv")``.
        device: the card; default: the first one.
        trace: build with the tracer.

    Raises:
        CertificateRefused: the tables are not certified.
        ProgramError: the tables ask for something that the kernels do not run.
        CudaError, CompileError: no card, no driver, no compiler, out of memory, or too few SMs for the queues.
    """

    def __init__(
        self, tables: bytes, certificate: object, *, task_weight: npt.NDArray[np.int64], tape: npt.NDArray[np.uint8] | Memory,
        bound: Mapping[str, npt.NDArray[Any] | Memory] | None = None, pools: Mapping[str, Memory] | None = None,
        device: Device | None = None, trace: bool = False, cache: Path | None = None,
    ) -> None:  # fmt: skip
        from amk_core.vm.cpu import check

        check(tables, certificate)
        self._start(tables, task_weight, tape, bound or {}, pools or {}, device or Device(), trace, cache)

    def _start(
        self, data: bytes, task_weight: npt.NDArray[np.int64], tape: npt.NDArray[np.uint8] | Memory,
        bound: Mapping[str, npt.NDArray[Any] | Memory], pools: Mapping[str, Memory], device: Device, trace: bool,
        cache: Path | None, flight: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self._s = s = tables.unpack(data)
        self._device, facts = device, device.facts
        self._dims = dims = Dims.of(s)
        self._running = False
        if not facts.cooperative:
            raise CudaError(f"{facts.name} has no cooperative launch, which the device VM needs; use backend='cpu'")
        if len(s.variable_names()) > 64:
            raise ProgramError(f"{len(s.variable_names())} launch variables, the device VM takes at most 64")
        self.build: Build = plan_build(dims, facts.arch, facts.smem_bytes, trace=trace, flight=flight)
        self.cubin = nvrtc.build(self.build.defines, facts.arch, cache)
        module = device.module(self.cubin.data)
        self._module = module
        self._run = device.function(module, "amk_run", self.build.shared_bytes)
        resident = int(call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self._run, self.build.threads, self.build.shared_bytes))
        if resident * facts.sms < s.n_queues:
            raise CudaError(
                f"{s.n_queues} queues need as many CTAs on the card at once; {facts.name} holds {resident * facts.sms} "
                f"({facts.sms} SMs); lower the model for this card"
            )
        self._tape = tape if isinstance(tape, Memory) else device.upload(tape)
        self._allocate(bound, pools)
        program = build_program(s, dims, self.build.defines["AMK_SLOT_UNITS"], self._address, task_weight, self._tape.address)
        if not dims.exact and len(program.tiles):
            end = int((program.tiles["offset"] + program.tiles["units"].astype(np.uint64) * np.uint64(512)).max())
            if end > self._tape.size:
                raise ProgramError(f"the schedule streams up to byte {end} of a tape of {self._tape.size}")
        self._kept = [
            device.upload(np.ascontiguousarray(a).view(np.uint8).reshape(-1))
            for a in (program.tasks, program.queue_off, program.tiles, program.tile_off, program.more_waits, program.more_signals)
        ]
        self._counters = device.memory(max(1, program.n_counters) * COUNTER_STRIDE * 4)
        self._control = device.memory(_CONTROL.itemsize)
        self._variables = device.memory(4 * 64)
        self._trace = device.memory(16 * s.steps * s.n_tasks if trace else 16)
        self._anchors = device.memory(32 * s.n_queues)
        self._stream, self._side = device.stream(), device.stream()
        self._launch = np.zeros(1, LAUNCH)
        for name, m in zip(("tasks", "queue_off", "tiles", "tile_off", "waits", "signals"), self._kept, strict=True):
            self._launch[name] = m.address
        self._launch["tape"], self._launch["counters"] = self._tape.address, self._counters.address
        self._launch["halt"] = self._control.address
        self._launch["published"] = self._control.address + 4
        self._launch["fault"] = self._control.address + _CONTROL.fields["fault"][1]  # type: ignore[index]
        self._launch["variables"] = self._variables.address
        self._launch["trace"], self._launch["anchors"] = self._trace.address, self._anchors.address
        self._launch["n_variables"], self._launch["n_tasks"] = len(s.variable_names()), s.n_tasks
        self._steps = 0

    # -- memory
    def _allocate(self, bound: Mapping[str, npt.NDArray[Any] | Memory], pools: Mapping[str, Memory]) -> None:
        s = self._s
        self._names = {b.name: i for i, b in enumerate(s.buffers)}
        self._mirrors: dict[str, npt.NDArray[Any]] = {}
        self._inputs: dict[int, npt.NDArray[Any]] = {}
        self._own: dict[int, Memory] = {}
        extent: dict[str, int] = {p.id: 0 for p in s.pools}
        for name, a in bound.items():
            i = self._names.get(name)
            if i is None or s.buffers[i].kind not in (Kind.TABLE, Kind.INPUT):
                raise ProgramError(f"buffer {name!r} is bound, but it does not exist or is neither a table nor an input")
            want = s.buffers[i].bytes
            have = a.size if isinstance(a, Memory) else a.nbytes
            if have != want:
                raise ProgramError(f"buffer {name!r} is bound to {have} bytes, required are {want}")
            if isinstance(a, Memory):
                self._own[i] = a
            else:
                self._own[i] = self._device.upload(
                    a.view(np.uint8).reshape(-1) if a.flags.c_contiguous else np.ascontiguousarray(a).view(np.uint8).reshape(-1)
                )
                if s.buffers[i].kind is Kind.INPUT:
                    self._inputs[i] = a
        for i, b in enumerate(s.buffers):
            if i in self._own or b.kind is Kind.WEIGHT:
                continue
            if b.pool not in extent or b.offset < 0 or b.offset % 16:
                raise ProgramError(f"buffer {b.name!r} lies in no pool, or its offset {b.offset} is not a multiple of 16")
            if b.kind is Kind.TABLE:
                self._own[i] = self._device.memory(b.bytes)
                continue
            extent[b.pool] = max(extent[b.pool], b.offset + b.bytes)
        self._pools: dict[str, Memory] = {}
        for p in s.pools:
            if p.bytes is not None and extent[p.id] > p.bytes:
                raise ProgramError(f"buffers of pool {p.id!r} end at byte {extent[p.id]} of {p.bytes}")
            if p.per_queue and extent[p.id]:
                raise ProgramError(f"pool {p.id!r} is per queue; the device VM manages shared memory itself")
            if p.id in pools:
                if pools[p.id].size < extent[p.id]:
                    raise ProgramError(f"pool {p.id!r} is given {pools[p.id].size} bytes, required are {extent[p.id]}")
                self._pools[p.id] = pools[p.id]
            elif extent[p.id]:
                self._pools[p.id] = self._device.memory(extent[p.id])
                self._pools[p.id].fill(0)
        call("cuCtxSynchronize")

    def _address(self, b: int) -> int:
        m, offset = self._place(b)
        return m.address + offset

    def _place(self, b: int) -> tuple[Memory, int]:
        if b in self._own:
            return self._own[b], 0
        buffer = self._s.buffers[b]
        return self._pools[buffer.pool], buffer.offset

    def pool(self, name: str) -> Memory:
        """A pool's memory on the card, to be shared with another program."""
        return self._pools[name]

    @property
    def schedule(self) -> Schedule:
        return self._s

    def buffer(self, name: str) -> npt.NDArray[Any]:
        """A host copy [rows, cols] of a buffer (bf16 as uint16), taken now if it was not asked for before.

        What the host writes into it reaches the card with the next launch; after :meth:`wait` it holds what the card left.
        """
        if name not in self._mirrors:
            b = self._s.buffers[self._names[name]]
            if b.kind is Kind.WEIGHT:
                raise KeyError(f"{name} is a weight; weights lie in the tape")
            view = _VIEW.get(b.dtype, np.uint8)
            n = b.rows * b.cols if b.dtype in _VIEW else b.bytes
            self._mirrors[name] = np.zeros(n, view).reshape((b.rows, b.cols) if b.dtype in _VIEW else (-1,))
            if not self._running:
                self.refresh(name)
        return self._mirrors[name]

    def refresh(self, *names: str) -> None:
        """Copy buffers from the card into their host copies."""
        self._device.activate()
        for name in names:
            m, offset = self._place(self._names[name])
            m.download(self._mirrors[name], offset)

    # -- launches
    def launch(
        self, steps: int, variables: Sequence[int], *, spin_timeout_s: float = SPIN_TIMEOUT_S,
        perturb_seed: int | None = None, poison: bool = False,
    ) -> None:  # fmt: skip
        """See :class:`amk_core.vm.VirtualMachine`."""
        if self._running:
            raise ValueError("a launch is in flight; wait for it or abort it first")
        if perturb_seed is not None:
            raise ValueError("the CUDA VM cannot perturb its timing; leave perturb_seed out")
        self._check(steps, variables)
        self._device.activate()
        s = self._s
        if poison:
            initial = set(s.columns.init_buffer.tolist())
            for i, b in enumerate(s.buffers):
                if b.lifetime is Lifetime.STEP and b.kind is not Kind.WEIGHT and i not in initial and i not in self._own:
                    m, offset = self._place(i)
                    m.fill(0xFF, b.bytes, offset, self._stream)
        for name, mirror in self._mirrors.items():
            i = self._names[name]
            if s.buffers[i].kind is not Kind.OUTPUT and not (poison and s.buffers[i].lifetime is Lifetime.STEP):
                m, offset = self._place(i)
                m.upload(mirror, offset, self._stream)
        for i, a in self._inputs.items():
            self._own[i].upload(a, 0, self._stream)
        self.enqueue(steps, variables, spin_timeout_s)
        self._running = True

    def _check(self, steps: int, variables: Sequence[int]) -> None:
        s, d = self._s, self._dims
        if not 1 <= steps <= s.steps:
            raise ValueError(f"steps is {steps}, required is 1 to {s.steps}")
        ranges = [(v.min, v.max) for v in s.variables for _ in range(v.count)]
        if len(variables) != len(ranges):
            raise ValueError(f"{len(variables)} launch variables given, required are {len(ranges)}")
        for i, (x, (lo, hi)) in enumerate(zip(variables, ranges, strict=True)):
            if not lo <= x <= hi:
                raise ValueError(f"launch variable {i} is {x}, its declared range is {lo} to {hi}")
        if not hasattr(self, "_geometries"):
            c, found = s.columns, set()
            for name in ("qkv", "attn"):
                _, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
                found |= set(zip(p["pos_var"].tolist(), p["ctx"].tolist(), p["partial"].tolist(), strict=True))
            self._geometries = found
        batch = d.rows // d.chunk
        for pos_var, ctx, partial in self._geometries:
            for seq in range(batch):
                p0, n = int(variables[pos_var + seq]), int(variables[pos_var + batch + seq])
                tokens = min(n, steps * d.chunk)
                if p0 < 0 or n < 0 or p0 + tokens > ctx:
                    raise ValueError(f"sequence {seq}: {n} tokens from position {p0} do not fit {ctx} positions")
                if partial == 0 and tokens < steps * d.chunk:
                    raise ValueError(
                        f"sequence {seq} has {n} active tokens, but the schedule promises a row for each of {steps * d.chunk}; "
                        "launch fewer steps, or lower with partial accesses"
                    )

    def enqueue(self, steps: int, variables: Sequence[int], spin_timeout_s: float = SPIN_TIMEOUT_S) -> None:
        """Everything of a launch that runs on the card, on this machine's stream: clear counters, set variables, start."""
        self._host_control = np.zeros(1, _CONTROL)
        self._host_control["halt"] = NO_HALT
        self._host_variables = np.array([int(v) for v in variables], np.int32)
        self._control.upload(self._host_control, 0, self._stream)
        self._variables.upload(self._host_variables, 0, self._stream)
        self._counters.fill(0, stream=self._stream)
        self._launch["bound_ns"] = int(min(spin_timeout_s, 1e6) * 1e9)
        self._launch["steps"] = steps
        self._steps = steps
        self.start_kernel()

    def start_kernel(self) -> None:
        """The cooperative launch alone."""
        args, self._alive = pointers(self._launch)
        call("cuLaunchCooperativeKernel", self._run, self._s.n_queues, 1, 1, self.build.threads, 1, 1, self.build.shared_bytes,
             self._stream, args.ctypes.data)  # fmt: skip

    def wait(self) -> LaunchResult:
        """See :class:`amk_core.vm.VirtualMachine`."""
        self._device.activate()
        call("cuStreamSynchronize", self._stream)
        self._running = False
        self._control.download(self._host_control)
        for name in self._mirrors:
            self.refresh(name)
        control = self._host_control[0]
        fault = control["fault"]
        if int(fault["kind"]):
            kind = _FAULT_KINDS.get(int(fault["kind"]), "unknown")
            token = kind == "token-range"
            raise VmFault(Fault(
                kind, int(fault["task"]), ops.BY_CODE[int(fault["op"])].name, int(fault["queue"]), int(fault["position"]),
                int(fault["step"]), -1 if token else int(fault["counter"]), int(fault["row"]) if token else -1, int(fault["has"]),
                int(fault["needs"]),
            ))  # fmt: skip
        done = int(control["published"]) if self._s.stop is not None else self._steps
        if int(control["halt"]) == 0:
            raise LaunchAborted(f"aborted after {int(control['published'])} steps")
        return LaunchResult(done, done < self._steps)

    def poll(self, steps: int = 0, timeout_s: float = 0.0) -> int:
        """See :class:`amk_core.vm.VirtualMachine`; host copies of output buffers are brought up to date."""
        if not self._running:
            return int(self._host_control[0]["published"])
        self._device.activate()
        word, end = np.zeros(2, np.uint32), time.monotonic() + timeout_s
        while True:
            self._control.download(word, 0, self._side)
            call("cuStreamSynchronize", self._side)
            if int(word[1]) >= steps or time.monotonic() >= end or finished(self._stream):
                break
            time.sleep(50e-6)
        for name, mirror in self._mirrors.items():
            i = self._names[name]
            if self._s.buffers[i].kind is Kind.OUTPUT and mirror.nbytes <= 1 << 16:
                m, offset = self._place(i)
                m.download(mirror, offset, self._side)
        call("cuStreamSynchronize", self._side)
        return int(word[1])

    @property
    def running(self) -> bool:
        """A launch is in flight and has not reached its end."""
        return self._running and not finished(self._stream)

    def abort(self) -> None:
        """See :class:`amk_core.vm.VirtualMachine`."""
        if self._running:
            self._device.activate()
            zero = np.zeros(1, np.uint32)
            self._control.upload(zero, 0, self._side)
            call("cuStreamSynchronize", self._side)

    # -- measuring
    def time_launches(
        self, steps: int, variables: Sequence[int], repeats: int, spin_timeout_s: float = SPIN_TIMEOUT_S
    ) -> list[float]:
        """Seconds of device time of each of ``repeats`` launches (events around the cooperative launch alone)."""
        self._check(steps, variables)
        self._device.activate()
        first, last = call("cuEventCreate", 0), call("cuEventCreate", 0)
        out = []
        for _ in range(repeats):
            start = self.start_kernel

            def timed(start: Any = start) -> None:
                call("cuEventRecord", first, self._stream)
                start()
                call("cuEventRecord", last, self._stream)

            self.start_kernel = timed  # type: ignore[method-assign]
            try:
                self.enqueue(steps, variables, spin_timeout_s)
            finally:
                del self.start_kernel
            self._running = True
            self.wait()
            out.append(float(call("cuEventElapsedTime", first, last)) * 1e-3)
        return out

    def variables(self, position: int, tokens: int) -> list[int]:
        """Launch variables of sequences that all stand at ``position`` and have ``tokens`` tokens to come."""
        batch = self._dims.rows // self._dims.chunk
        return [position] * batch + [tokens] * batch

    @property
    def tape_bytes(self) -> int:
        return self._tape.size

    def trace_records(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """(records [steps, tasks in queue order, 4], anchors [queues, 2, 2]) of the last launch of a traced build."""
        records = np.zeros((self._steps, self._s.n_tasks, 4), np.uint32)
        anchors = np.zeros((self._s.n_queues, 2, 2), np.uint64)
        self._trace.download(records)
        self._anchors.download(anchors)
        return records, anchors


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a storage dtype that is a whole number of bytes."""
    return DTYPE_BITS[dtype] // 8


def pack_on_device(device: Device, module: Any, layout: Any, name: str, weights: Memory, tape: Memory) -> None:
    """Pack one weight (row-major bf16 on the card) into a fragment-order tape on the card."""
    w = layout.weights.index(name)
    mine = layout.segments[layout.segments[:, 0] == w]
    segments = device.upload(np.ascontiguousarray(mine[:, [1, 2, 4]]))
    f = device.function(module, "amk_pack")
    args, _alive = pointers(
        np.array([weights.address], np.uint64), np.array([int(mine[0, 3])], np.int32), np.array([segments.address], np.uint64),
        np.array([tape.address], np.uint64),
    )  # fmt: skip
    call("cuLaunchKernel", f, 16, len(mine), 1, 256, 1, 1, 0, 0, args.ctypes.data, 0)
    call("cuCtxSynchronize")
