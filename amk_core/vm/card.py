"""What the programs of one model share on a card: tape, tables and KV cache, each there once."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.schedule import tables
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import DEFAULT_CHUNK
from amk_core.schedule.pack import Provider, Tape, TapeLayout
from amk_core.targets import Target
from amk_core.vm import nvrtc
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import Device, Memory, call, pointers
from amk_core.vm.plan import MAX_FAST_ROWS, MAX_QUANT_ROWS, PIECE_UNITS, UNIT_K, WIDE_BUDGET, Dims, ProgramError, plan_build
from amk_core.vm.rank_program import is_ranked
from amk_core.vm.rank_vm import RankVM

if TYPE_CHECKING:
    from amk_core.graph import ModelGraph
    from amk_core.programs import Programs
    from amk_core.quant.config import QuantConfig

WIDE_CHUNK = 32  # prompt tokens of a step where rows of activations are staged whole beside the ring


class Card:
    """One card and what a model keeps on it.

    Raises:
        CudaError: no driver or no card.
    """

    def __init__(self) -> None:
        self.device = Device()
        self._tape: tuple[TapeLayout | DeviceTapeLayout, Memory] | None = None
        self._kv: Memory | None = None
        self._tables: dict[str, Memory] = {}

    def target(self, queues: int | None = None) -> Target:
        """The card as a target for lowering: one queue an SM unless ``queues`` says fewer."""
        f = self.device.facts
        like = next((t for t in Target.profiles() if (t.arch, t.queues) == (f.arch, f.sms)), None)  # of what no card is asked here
        whole = Target(f.name, f.arch, f.sms, f.smem_bytes, like.dram_gb_s if like else 0, like.clusters if like else ())
        return replace(whole, queues=queues) if queues else whole

    def chunk(self, mode: str, batch: int, chunk: int | None, g: ModelGraph, quant: QuantConfig | None) -> int:
        """The prompt tokens of a step that the kernels take, at most ``chunk``; None: as many as are quickest."""
        if chunk is None:
            staged = (
                max(g.hidden_size, g.n_heads * g.head_dim) <= PIECE_UNITS * UNIT_K and self.device.facts.smem_bytes > WIDE_BUDGET
            )
            chunk = WIDE_CHUNK if mode == "fast" and batch == 1 and quant is None and staged else DEFAULT_CHUNK
        if mode == "exact":
            return chunk
        if quant is None:
            return max(1, min(chunk, MAX_FAST_ROWS // batch))
        for tokens in range(max(1, min(chunk, MAX_QUANT_ROWS // batch)), 1, -1):
            dims = Dims(False, batch * tokens, tokens, g.hidden_size, g.intermediate_size, g.n_heads, g.n_kv_heads, g.head_dim,
                        g.vocab_size, False, layers=quant.layers, head=quant.head)  # fmt: skip
            with contextlib.suppress(ProgramError):
                plan_build(dims, self.device.facts.arch, self.device.facts.smem_bytes)
                return tokens
        return 1

    def vm(self, model: Programs, schedule: Schedule, certificate: object, trace: bool = False) -> CudaVM:
        """A program of ``model``; the first one, which is the decode program, packs and uploads the weights.

        Raises:
            TapeError: the schedule is tiled otherwise than the first one.
            CudaOutOfMemory: the card is too small; the message says how much is needed.
            TooFewClusters: the card does not place so many ranks at once.
        """
        layout, tape = self._tape or self._pack(model, schedule)
        if self._kv is None:
            self._kv = self.device.memory(schedule.pool_bytes("kv"))
            self._kv.fill(0)
        bound: dict[str, Any] = {}
        for b in schedule.buffers:
            if b.kind is Kind.TABLE:
                key = f"{b.name} {b.rows}"
                if key not in self._tables:
                    self._tables[key] = self.device.upload(model.constant(b.name, b.dtype, b.rows))
                bound[b.name] = self._tables[key]
        kind = RankVM if is_ranked(schedule) else CudaVM
        vm = kind(
            tables.pack(schedule), certificate, task_weight=layout.locate(schedule), tape=tape, bound=bound,
            pools={"kv": self._kv}, device=self.device, trace=trace,
        )  # fmt: skip
        self._tape = layout, tape  # kept where the program fits: with fewer ranks the weights are cut otherwise
        return vm

    def _pack(self, model: Programs, schedule: Schedule) -> tuple[TapeLayout | DeviceTapeLayout, Memory]:
        """The weight tape on the card.  The one of fast mode is put in order there, one weight at a time."""
        if model.mode == "exact":
            layout = TapeLayout.of(schedule)
            return layout, self.device.upload(Tape.build(layout, model.weight).data)
        fragments = DeviceTapeLayout.of(schedule)
        build = plan_build(Dims.of(model.unshared("decode")), self.device.facts.arch, self.device.facts.smem_bytes)
        packer = Packer(self.device, nvrtc.build(build.defines, self.device.facts.arch).data)
        return fragments, packer.tape(fragments, model.weight)


class Packer:
    """Puts row-major bf16 weights in fragment order on the card (``amk_pack`` of any build)."""

    def __init__(self, device: Device, cubin: bytes) -> None:
        device.activate()
        self._device, self._module = device, device.module(cubin)
        self._pack = device.function(self._module, "amk_pack")

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            self._device.destroy("cuModuleUnload", self._module)

    def tape(self, layout: DeviceTapeLayout, provider: Provider) -> Memory:
        """The tape of a layout; ``provider`` as for :meth:`amk_core.schedule.pack.Tape.build`.

        Raises:
            TapeError: a weight of another shape than the schedule expects.
            CudaOutOfMemory: the card is too small.
        """
        tape = self._device.memory(layout.bytes)
        for w, name in enumerate(layout.weights):
            mine = layout.segments[layout.segments[:, 0] == w]
            matrix, want = provider(name), (int(mine[:, 2].max()), int(mine[0, 3]))
            layout.check(name, matrix, want)
            if name in layout.formats:  # put in order here: a quarter or half of the bytes, and each card reads the same
                for _, a, e, _k, offset in mine.tolist():
                    tape.upload(layout.tile(matrix, a, e), offset)
                continue
            rows = self._device.upload(matrix.astype(ml_dtypes.bfloat16, copy=False))
            self._put(rows, want[1], mine[:, [1, 2, 4]], tape)
        return tape

    def _put(self, rows: Memory, k: int, segments: npt.NDArray[np.int64], tape: Memory) -> None:
        """One weight; ``segments``: first row, end row and byte offset of each tile."""
        where = self._device.upload(segments)
        values = (np.array([rows.address], np.uint64), np.array([k], np.int32), np.array([where.address], np.uint64),
                  np.array([tape.address], np.uint64))  # fmt: skip
        args, _alive = pointers(*values)
        call("cuLaunchKernel", self._pack, 16, len(segments), 1, 256, 1, 1, 0, 0, args.ctypes.data, 0)
        call("cuCtxSynchronize")
