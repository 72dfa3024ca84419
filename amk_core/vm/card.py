"""What the programs of one model share on a card: tape, tables and KV cache, each there once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from amk_core.schedule import tables
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.pack import Tape, TapeLayout, logical_weight
from amk_core.targets import Target
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import Device, Memory
from amk_core.vm.plan import MAX_FAST_ROWS

if TYPE_CHECKING:
    from amk_core.runtime import Model


class Card:
    """One card and what a model keeps on it.

    Raises:
        CudaError: no driver or no card.
    """

    def __init__(self) -> None:
        self.device = Device()
        self._layout: TapeLayout | DeviceTapeLayout | None = None
        self._tape: Memory | None = None
        self._kv: Memory | None = None
        self._tables: dict[str, Memory] = {}

    def target(self, queues: int | None = None) -> Target:
        """The card as a target for lowering: one queue an SM unless ``queues`` says fewer."""
        f = self.device.facts
        whole = Target(f.name, f.arch, f.sms, f.smem_bytes)
        return replace(whole, queues=queues) if queues else whole

    @staticmethod
    def chunk(mode: str, batch: int, chunk: int) -> int:
        """The prompt tokens of a step that the kernels take, at most ``chunk``."""
        return chunk if mode == "exact" else max(1, min(chunk, MAX_FAST_ROWS // batch))

    def vm(self, model: Model, schedule: Schedule, certificate: object) -> CudaVM:
        """A program of ``model``; the first one, which is the decode program, packs and uploads the weights.

        Raises:
            TapeError: the schedule is tiled otherwise than the first one.
            CudaOutOfMemory: the card is too small; the message says how much is needed.
        """
        if self._layout is None or self._tape is None:
            self._layout, data = self._pack(model, schedule)
            self._tape = self.device.upload(data)
        if self._kv is None:
            self._kv = self.device.memory(schedule.pool_bytes("kv"))
            self._kv.fill(0)
        bound: dict[str, Any] = {}
        for b in schedule.buffers:
            if b.kind is Kind.TABLE:
                key = f"{b.name} {b.rows}"
                if key not in self._tables:
                    self._tables[key] = self.device.upload(
                        np.ascontiguousarray(model.constant(b.name, b.dtype, b.rows)).view(np.uint8)
                    )
                bound[b.name] = self._tables[key]
        return CudaVM(
            tables.pack(schedule), certificate, task_weight=self._layout.locate(schedule), tape=self._tape, bound=bound,
            pools={"kv": self._kv}, device=self.device,
        )  # fmt: skip

    @staticmethod
    def _pack(model: Model, schedule: Schedule) -> tuple[TapeLayout | DeviceTapeLayout, Any]:
        def weight(name: str) -> Any:
            return logical_weight(model.graph, model.imported.weights.get, name)

        if model.mode == "exact":
            layout = TapeLayout.of(schedule)
            return layout, Tape.build(layout, weight).data
        fragments = DeviceTapeLayout.of(schedule)
        return fragments, fragments.build(weight)
