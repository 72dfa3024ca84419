"""The CUDA VM: runs certified tables in one cooperative launch for many steps, one CTA a queue."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule import ops, tables
from amk_core.schedule.ir import Schedule
from amk_core.schedule.pack import tile_bytes, tiles
from amk_core.vm import LaunchAborted, LaunchResult, VmFault, nvrtc
from amk_core.vm.control import MAX_VARIABLES, Control
from amk_core.vm.device_memory import DeviceBuffers
from amk_core.vm.driver import CudaError, Device, Graph, HostMemory, Memory, call, finished, pointers
from amk_core.vm.launch_ranges import LaunchRanges
from amk_core.vm.plan import Build, Dims, ProgramError, plan_build
from amk_core.vm.program import COUNTER_STRIDE, LAUNCH, Program, build_program, tile_span
from amk_core.vm.token_ring import TokenRing

SPIN_TIMEOUT_S = 2.0  # far above any task on a GPU; a fault, not a performance limit
QUIET_S = 1e-3  # without a token for so long, the driver is asked whether the launch is still there
POLL_S = 2e-5


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

    Several machines may live in one process and on one card; their launches run one after the other where they do not fit at once.

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
        self._start(tables, task_weight, tape, bound or {}, pools or {}, device or Device(), trace=trace, cache=cache)

    def _start(
        self, data: bytes, task_weight: npt.NDArray[np.int64], tape: npt.NDArray[np.uint8] | Memory,
        bound: Mapping[str, npt.NDArray[Any] | Memory], pools: Mapping[str, Memory], device: Device, *, trace: bool = False,
        cache: Path | None = None, flight: tuple[int, int, int] | None = None, macros: Mapping[str, int] | None = None,
        options: Sequence[str] = (), marked: bool | None = None,
    ) -> None:  # fmt: skip
        """Without the certificate: the door of tests and measurements.  ``macros``, ``options``: more for the build."""
        self._running, self._handles, self._marked = False, [], marked
        self._s = s = tables.unpack(data)
        self._device, facts = device, device.facts
        self._dims = dims = self._constants(s)
        self._sequences = dims.rows // dims.chunk
        self._ranges = LaunchRanges(s, self._sequences, dims.chunk)
        if not facts.cooperative:
            raise CudaError(f"{facts.name} has no cooperative launch, which the device VM needs; use backend='cpu'")
        if facts.driver // 1000 < nvrtc.version()[0]:
            have, need = f"{facts.driver // 1000}.{facts.driver % 1000 // 10}", ".".join(map(str, nvrtc.version()))
            raise CudaError(
                f"the driver of {facts.name} supports CUDA {have}, the compiler here is NVRTC {need}, whose code it cannot load; "
                f"update the driver, or run: pip install 'amk[cuda{facts.driver // 1000}]'"
            )
        if len(s.variable_names()) > MAX_VARIABLES:
            raise ProgramError(f"{len(s.variable_names())} launch variables, the device VM takes at most {MAX_VARIABLES}")
        self.build: Build = self._plan(trace, flight)
        self.cubin = nvrtc.build({**self.build.defines, **(macros or {})}, facts.arch, cache, options, self._entry)
        device.activate()
        module = device.module(self.cubin.data)
        self._handles.append(("cuModuleUnload", module))
        self._run = device.function(module, "amk_run", self.build.shared_bytes)
        self._check_room()
        self._tape = tape if isinstance(tape, Memory) else device.upload(tape)
        self.memory = DeviceBuffers(s, device, bound, pools, self._clusters)
        program = self._records(task_weight)
        if not dims.exact and len(program.tiles):
            end = int(tile_span(program.tiles)[1].max())
            if end > self._tape.size:
                raise ProgramError(f"the schedule streams up to byte {end} of a tape of {self._tape.size}")
        self._kept = {
            "tasks": device.upload(program.tasks), "queue_off": device.upload(program.queue_off),
            "tiles": device.upload(program.tiles), "tile_off": device.upload(program.tile_off),
            "waits": device.upload(program.more_waits), "signals": device.upload(program.more_signals),
        }  # fmt: skip
        self._program = program
        self._counters = device.memory(max(1, program.n_counters) * COUNTER_STRIDE * 4)
        self._control = Control(device)
        self._ring_memory = HostMemory(device, 8 * s.steps * self._sequences)
        self._ring = TokenRing(self._ring_memory.bytes.view(np.uint64), s.steps, self._sequences)
        self._trace = device.memory(16 * s.steps * s.n_tasks if trace else 16)
        self._anchors = device.memory(32 * s.n_queues)
        self._stream, self._side = device.stream(), device.stream()
        self._handles += [("cuStreamDestroy", self._stream), ("cuStreamDestroy", self._side)]
        self._launch = np.zeros(1, LAUNCH)
        for name, m in self._kept.items():
            self._launch[name] = m.address
        self._launch["tape"], self._launch["counters"] = self._tape.address, self._counters.address
        for name in ("halt", "fault", "variables"):
            self._launch[name] = self._control.address(name)
        self._launch["ring"] = self._ring_memory.address
        self._launch["trace"], self._launch["anchors"] = self._trace.address, self._anchors.address
        self._launch["n_variables"], self._launch["n_tasks"] = len(s.variable_names()), s.n_tasks
        self._steps = self._streamed = 0
        self._grid, self._single = s.n_queues, False
        c = s.columns
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME["sample"])
        # Where the program samples: the buffer of its tokens, the one that is fed, and pinned memory for what is fed first.
        self._out = s.buffers[int(p["out"][0])].name if len(ids) else None
        self._fed = int(p["token"][0]) if len(ids) else -1
        self._feed = HostMemory(device, 4 * self._sequences)
        if self._out is not None:
            self.memory.mirror(self._out, fresh=False)  # poll() fills it, whenever it is asked for first

    pairs = True  # one row meets quantised weights in pairs, where the plan finds room; off for measurements

    # -- what programs for ranks do otherwise
    _entry = nvrtc.ENTRY  # the source that is compiled
    _clusters = False  # pools of clusters are shared memory

    def _constants(self, s: Schedule) -> Dims:
        return Dims.of(s)

    def _plan(self, trace: bool, flight: tuple[int, int, int] | None) -> Build:
        facts = self._device.facts
        return plan_build(
            self._dims, facts.arch, facts.smem_bytes, trace=trace, flight=flight, pairs=self.pairs, marked=self._marked
        )

    def _check_room(self) -> None:
        """All queues are on the card at once (CudaError)."""
        s, facts = self._s, self._device.facts
        resident = int(call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self._run, self.build.threads, self.build.shared_bytes))
        if resident * facts.sms < s.n_queues:
            raise CudaError(
                f"{s.n_queues} queues need as many CTAs on the card at once; {facts.name} holds {resident * facts.sms} "
                f"({facts.sms} SMs); lower the model for this card"
            )

    def _records(self, task_weight: npt.NDArray[np.int64]) -> Program:
        units, m = self.build.defines["AMK_SLOT_UNITS"], self.memory
        return build_program(self._s, self._dims, units, m.address, task_weight, self._tape.address)

    @property
    def marked(self) -> bool:
        """Values of several rows carry no tags: their buffers are read and filled by :mod:`amk_core.vm.marked`."""
        return "AMK_MARKED" in self.build.defines

    @property
    def unwritten(self) -> int:
        """What the bytes of tagged pools hold before a launch: no tag of any step, and the marker of marked values."""
        return 0xFF if self.marked else 0

    def close(self) -> None:
        """End a launch in flight and give streams and machine code back; memory goes with the last reference to it."""
        if self._running:
            self.abort()
            with contextlib.suppress(CudaError):
                call("cuStreamSynchronize", self._stream)
            self._running = False
        for function, handle in reversed(self._handles):
            self._device.destroy(function, handle)
        self._handles = []

    def __del__(self) -> None:
        if getattr(self, "_handles", None):
            with contextlib.suppress(Exception):
                self.close()

    def pool(self, name: str) -> Memory:
        """A pool's memory on the card, to be shared with another program."""
        return self.memory.pools[name]

    @property
    def schedule(self) -> Schedule:
        return self._s

    @property
    def stream(self) -> Any:
        """The stream on which launches run."""
        return self._stream

    def buffer(self, name: str) -> npt.NDArray[Any]:
        """A host copy [rows, cols] of a buffer (bf16 as uint16), taken now if it was not asked for before.

        What the host writes into it reaches the card with the next launch; after :meth:`wait` it holds what the card left.
        """
        return self.memory.mirror(name, fresh=not self._running)

    def refresh(self, *names: str) -> None:
        """Copy buffers from the card into their host copies."""
        self.memory.refresh(names)

    # -- launches
    def _need_idle(self) -> None:
        if self._running:
            raise ValueError("a launch is in flight; wait for it or abort it first")

    def launch(
        self, steps: int, variables: Sequence[int], *, spin_timeout_s: float = SPIN_TIMEOUT_S,
        perturb_seed: int | None = None, poison: bool = False,
    ) -> None:  # fmt: skip
        """See :class:`amk_core.vm.VirtualMachine`."""
        self._need_idle()
        if perturb_seed is not None:
            raise ValueError("the CUDA VM cannot perturb its timing; leave perturb_seed out")
        self._ranges.check(steps, variables)
        self._device.activate()
        if poison:
            self.memory.poison(self._stream)
        self.memory.upload(self._stream, poisoned=poison)
        self.enqueue(steps, variables, spin_timeout_s)
        self._running = True

    def _arm(self, steps: int, variables: Sequence[int]) -> None:
        """What the next launch finds: no halt, no fault, its variables, its place in the ring."""
        self._control.arm(variables, self._ring.arm(steps if self._out else 0))
        self._steps, self._streamed = steps, 0

    def enqueue(
        self, steps: int, variables: Sequence[int], spin_timeout_s: float = SPIN_TIMEOUT_S, stream: Any = None, feed: bool = False
    ) -> None:  # fmt: skip
        """Everything of a launch that runs on the card: one copy, cleared counters, the cooperative launch.

        The copy takes what stands in pinned memory when it runs, so other variables have to wait until this launch has ended.
        ``stream``: of this process on this card, for instance another library's that is being captured; default: the machine's own.
        ``feed``: bring the tokens of :meth:`feed` to the card first.
        """
        self._arm(steps, variables)
        stream = self._stream if stream is None else stream
        if feed:
            m, offset = self.memory.place(self._fed)
            m.upload(self._feed.bytes, offset, stream)
        self._control.upload(stream)
        self._counters.fill(0, stream=stream)
        for pool in () if self._single else self.memory.tagged:  # no tag of an earlier launch is left
            self.memory.pools[pool].fill(self.unwritten, stream=stream)
        self._launch["bound_ns"] = int(min(spin_timeout_s, 1e6) * 1e9)
        self._launch["steps"] = steps
        self.start_kernel(stream)

    def start_kernel(self, stream: Any) -> None:
        """The cooperative launch alone."""
        args, self._alive = pointers(self._launch)
        call("cuLaunchCooperativeKernel", self._run, self._grid, 1, 1, self.build.threads, 1, 1, self.build.shared_bytes,
             stream, args.ctypes.data)  # fmt: skip

    def capture(
        self, steps: int, variables: Sequence[int], spin_timeout_s: float = SPIN_TIMEOUT_S, feed: bool = False
    ) -> Graph:  # fmt: skip
        """A launch of ``steps`` as a CUDA graph, for :meth:`replay`; nothing runs.  Buffers stay as the card has them.

        ``feed``: every replay is given the tokens it starts from; else it goes on from those on the card.
        """
        self._need_idle()
        self._ranges.check(steps, variables)
        return self._device.capture(self._stream, lambda: self.enqueue(steps, variables, spin_timeout_s, feed=feed), steps)

    def replay(self, graph: Graph, variables: Sequence[int], first: Sequence[int] | None = None) -> None:
        """Start a captured launch with other variables, and, where it was captured with ``feed``, from the tokens ``first``."""
        self._need_idle()
        if first is not None:
            self._feed.bytes.view(np.int32)[:] = first
        self._ranges.check(graph.steps, variables)
        self._arm(graph.steps, variables)
        graph.launch(self._stream)
        self._running = True

    def _place(self, task: int) -> tuple[int, int]:
        """Where a task stands in the program, and where its tile does, if it has one; both stand in queue order."""
        place = int(np.flatnonzero(self._program.tasks["id"] == task)[0])
        return place, int(self._program.streams[:place].sum())

    def run_task(self, task: int, variables: Sequence[int], steps: int = 1, spin_timeout_s: float = SPIN_TIMEOUT_S) -> None:
        """The body of one task alone, without waits and signals, in steps 0 to ``steps``; buffers stay as the card has them.

        A task with tagged inputs finds only those of one step: ask for one, and store elements {value, 1}, or, of marked values,
        those of the even half (:mod:`amk_core.vm.marked`).
        """
        p = self._program
        place, tile = self._place(task)
        record = p.tasks[place : place + 1].copy()
        record["n_waits"] = record["n_signals"] = 0
        mine = p.tiles[tile : tile + int(p.streams[place])]
        whole = self._launch.copy()
        arrays = {"tasks": record, "queue_off": np.array([0, 1], np.int32), "tiles": mine,
                  "tile_off": np.array([0, len(mine)], np.int32)}  # fmt: skip
        kept = {name: self._device.upload(a) for name, a in arrays.items()}
        try:
            for name, memory in kept.items():
                self._launch[name] = memory.address
            self._grid, self._single = 1, True
            self.enqueue(steps, variables, spin_timeout_s)
            self._running = True
            self.wait()
        finally:
            self._launch[:], self._grid, self._single = whole, self._s.n_queues, False

    def tokens(self, steps: int) -> npt.NDArray[np.int32]:
        """[steps, sequences]: the ids of the first steps of the last launch, from the ring."""
        return self._ring.tokens(0, steps)

    def wait(self, refresh: bool = True) -> LaunchResult:
        """See :class:`amk_core.vm.VirtualMachine`.

        Without ``refresh`` host copies stay as they are, and the next :meth:`launch` brings those of tokens to the card.
        """
        self._device.activate()
        try:
            call("cuStreamSynchronize", self._stream)
        finally:
            self._running = False
        left, fault = self._control.read()
        if refresh:
            self.memory.refresh()
        else:
            self.memory.forget()
        done = self._ring.arrived() if self._out else self._steps
        if fault is not None:
            raise VmFault(fault)
        if left:
            raise LaunchAborted(f"aborted after {done} steps")
        return LaunchResult(done, done < self._steps)

    def poll(self, steps: int = 0, timeout_s: float = 0.0) -> int:
        """See :class:`amk_core.vm.VirtualMachine`; the host copy of the tokens is brought up to date.

        Looks at the ring, which the card writes into this machine's memory; while tokens come the driver is not asked.
        """
        if self._out is None:
            return self._steps if not self.running else 0
        now = time.monotonic()
        end, asked = now + timeout_s, now
        while (k := self._ring.arrived()) < steps and now < end:
            time.sleep(POLL_S)
            now = time.monotonic()
            if now - asked > QUIET_S:
                if not self.running:
                    k = self._ring.arrived()
                    break
                asked = now
        if k > self._streamed:
            self.memory.mirrors[self._out][self._streamed : k] = self._ring.tokens(self._streamed, k)
            self._streamed = k
        return k

    @property
    def running(self) -> bool:
        """A launch is in flight and has not reached its end."""
        if not self._running:
            return False
        self._device.activate()
        return not finished(self._stream)

    def abort(self) -> None:
        """See :class:`amk_core.vm.VirtualMachine`."""
        if self._running:
            self._device.activate()
            self._control.halt(self._side)

    # -- measuring
    def time_launches(
        self, steps: int, variables: Sequence[int], repeats: int, spin_timeout_s: float = SPIN_TIMEOUT_S, refresh: bool = True
    ) -> list[float]:
        """Seconds of device time of each of ``repeats`` launches (events around the cooperative launch alone)."""
        self._ranges.check(steps, variables)
        self._device.activate()
        first, last = call("cuEventCreate", 0), call("cuEventCreate", 0)
        start, out = self.start_kernel, []

        def timed(stream: Any) -> None:
            call("cuEventRecord", first, stream)
            start(stream)
            call("cuEventRecord", last, stream)

        self.start_kernel = timed  # type: ignore[method-assign]
        try:
            for _ in range(repeats):
                self.enqueue(steps, variables, spin_timeout_s)
                self._running = True
                self.wait(refresh)
                out.append(float(call("cuEventElapsedTime", first, last)) * 1e-3)
        finally:
            del self.start_kernel
            for event in (first, last):
                self._device.destroy("cuEventDestroy", event)
        return out

    def variables(self, position: int, tokens: int) -> list[int]:
        """Launch variables of sequences that all stand at ``position`` and have ``tokens`` tokens to come."""
        return [position] * self._sequences + [tokens] * self._sequences

    @property
    def tape(self) -> Memory:
        """The weight tape on the card."""
        return self._tape

    def tile(self, task: int) -> tuple[int, int]:
        """Bytes [start, end) of the tape that a task reads; (0, 0) where it reads none."""
        place, at = self._place(task)
        if self._dims.exact:
            buffer, first, end, k = (int(x) for x in tiles(self._s)[task])
            start = int(self._program.tasks["weight"][place]) - self._tape.address
            return (start, start + tile_bytes(self._s.buffers[buffer].dtype, end - first, k)) if first >= 0 else (0, 0)
        if not self._program.streams[place]:
            return 0, 0
        starts, ends = tile_span(self._program.tiles[at : at + 1])
        return int(starts[0]), int(ends[0])

    def trace_records(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """(records [steps, tasks in queue order, 4], anchors [queues, 2, 2]) of the last launch of a traced build."""
        records = np.zeros((self._steps, self._s.n_tasks, 4), np.uint32)
        anchors = np.zeros((self._s.n_queues, 2, 2), np.uint64)
        self._trace.download(records)
        self._anchors.download(anchors)
        return records, anchors
