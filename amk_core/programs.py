"""The programs of a loaded model: a schedule for each purpose, its certificate, the weight tape and the VM that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.importer import ImportedModel
from amk_core.importer.rope import rope_tables
from amk_core.quant.source import QuantWeights
from amk_core.schedule import tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.schedule.pack import TAPE_DTYPES, Tape, TapeLayout, aligned_zeros, logical_weight
from amk_core.schedule.validate import Verdict, validate
from amk_core.targets import Target
from amk_core.vm.cpu import CpuVM

Backend = Literal["cpu", "cuda"]


class RequestError(ValueError):
    """A request the loaded model cannot serve; the message says what was asked, what is possible and what to do."""


class ScheduleRejected(RuntimeError):
    """Lowering produced a schedule that the validator does not accept; nothing was run."""

    def __init__(self, purpose: str, verdict: Verdict) -> None:
        self.verdict = verdict
        first = verdict.findings[0].message if verdict.findings else "no finding"
        super().__init__(f"the {purpose} schedule is rejected with {len(verdict.findings)} findings; the first: {first}")


@dataclass(slots=True)
class Program:
    """A schedule that was accepted, its tables and the VM that runs them."""

    schedule: Schedule
    verdict: Verdict
    geometry: Geometry
    vm: Any  # a CpuVM or a CudaVM


@dataclass(slots=True)
class Programs:
    """A checkpoint and what is built from it, a program for each purpose; :class:`amk_core.runtime.Model` runs them."""

    imported: ImportedModel
    mode: Mode
    target: Target
    batch: int
    chunk: int
    context: int
    config: ScheduleConfig
    perturb_seed: int | None = None  # random delays around every task, for tests of determinism
    spin_timeout_s: float = 60.0  # a wait longer than this is a fault, not a hang
    backend: Backend = "cpu"
    quantised: QuantWeights | None = None  # the weights that are multiplied with, where they are not the checkpoint's own
    ranks: Ranks | None = None  # that share every step, which then takes one row
    ranks_are_chosen: bool = False  # by the cost model, so that fewer or none will do where the card does not place them
    _programs: dict[Purpose, Program] = field(default_factory=dict)
    _tape: Tape | None = None
    _kv: npt.NDArray[np.uint8] | None = None
    _card: Any = None  # amk_core.vm.card.Card, what the programs share on a device
    _constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def graph(self) -> ModelGraph:
        return self.imported.graph

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules built so far, by purpose."""
        return {str(k): p.schedule for k, p in self._programs.items()}

    @property
    def tape(self) -> Tape:
        """The weight tape in this machine's memory (built by the first program of the CPU backend)."""
        self.program("decode")
        assert self._tape is not None
        return self._tape

    def geometry(self, purpose: Purpose) -> Geometry:
        if purpose == "decode":
            return Geometry("decode", self.batch, 1, self.context)
        chunk = 1 if self.ranks is not None else self.chunk  # a prompt by ranks has the bits of decoding: a row a step
        return Geometry(purpose, self.batch if purpose == "prefill" else 1, chunk, self.context)

    def program(self, purpose: Purpose) -> Program:
        """Lower, validate and load the schedule of a purpose (once).

        Raises:
            ScheduleRejected: the validator found something; nothing is run.
        """
        if purpose in self._programs:
            return self._programs[purpose]
        if purpose != "decode":
            self.program("decode")  # it streams every weight and needs the most KV: the others share its tape and its pool
        while True:
            schedule = self._lower(purpose)
            verdict = validate(schedule)
            if not verdict.accepted or verdict.certificate is None:
                raise ScheduleRejected(purpose, verdict)
            if self.backend != "cuda":
                vm: Any = self._cpu_vm(schedule, verdict.certificate)
                break
            from amk_core.vm.rank_vm import TooFewClusters

            try:
                vm = self._card.vm(self, schedule, verdict.certificate)
                break
            except TooFewClusters as e:
                if not self.ranks_are_chosen or self.ranks is None or purpose != "decode":
                    raise
                self.ranks = Ranks(e.fit, self.ranks.cluster) if e.fit > 1 else None
        self._programs[purpose] = Program(schedule, verdict, self.geometry(purpose), vm)
        return self._programs[purpose]

    def _lower(self, purpose: Purpose) -> Schedule:
        if self.ranks is None:
            return self.unshared(purpose)
        queues = max(self.target.queues, self.ranks.queues) if self.backend == "cpu" else self.target.queues
        target = replace(self.target, queues=queues)
        return lower_ranks(self.graph, self.ranks, target, self.geometry(purpose), self.mode, self.config)

    def unshared(self, purpose: Purpose) -> Schedule:
        """The schedule of a purpose without ranks."""
        quant = None if self.quantised is None else self.quantised.config
        return lower(self.graph, self.config, self.target, self.geometry(purpose), self.mode, quant)

    def traced(self) -> Any:
        """The decode program once more, built with the tracer, on the same weights and KV rows; a CudaVM.

        Raises:
            RequestError: the model is not on a card.
        """
        if self._card is None:
            raise RequestError("only a model on a card can be traced; load it with backend='cuda'")
        program = self.program("decode")
        return self._card.vm(self, program.schedule, program.verdict.certificate, trace=True)

    def _cpu_vm(self, schedule: Schedule, certificate: object) -> CpuVM:
        if self._tape is None:
            self._tape = Tape.build(TapeLayout.of(schedule), self.weight)
        if self._kv is None:
            self._kv = aligned_zeros(schedule.pool_bytes("kv"))
        return CpuVM(
            tables.pack(schedule),
            certificate,
            task_weight=self._tape.layout.locate(schedule),
            tape=self._tape.data,
            tape_dtype=self._tape.layout.dtype,
            bound={b.name: self.constant(b.name, b.dtype, b.rows) for b in schedule.buffers if b.kind is Kind.TABLE},
            pools={"kv": self._kv},
        )

    def weight(self, name: str) -> Any:
        """A weight buffer of the schedule as the tape takes it."""
        if self.quantised is not None:
            return self.quantised.on_tape(name)
        return logical_weight(self.graph, self.imported.weights.get, name)

    def constant(self, name: str, dtype: str, rows: int) -> npt.NDArray[Any]:
        """A table buffer: embedding, norm weights, rotary tables (padded with zero rows behind the trained context)."""
        if name not in self._constants:
            if name.startswith("rope."):
                cos, sin = rope_tables(self.graph.rope, min(rows, self.graph.context))
                pad = ((0, rows - len(cos)), (0, 0))
                self._constants["rope.cos"], self._constants["rope.sin"] = np.pad(cos, pad), np.pad(sin, pad)
            else:
                a = np.asarray(self.imported.weights.get(name) if self.quantised is None else self.quantised.dense(name))
                a = a.reshape(1, -1) if a.ndim == 1 else a
                self._constants[name] = np.ascontiguousarray(a.astype(TAPE_DTYPES[dtype], copy=False))
        return self._constants[name]
