"""The public fixture ``amk_pair``: anybody's two callables, or two engines, through the whole protocol in one call."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.storage import Seconds

if TYPE_CHECKING:
    from amk_bench.cell import Cell, Plan
    from amk_bench.clock import Clock
    from amk_bench.engine import Engine
    from amk_bench.faults import Score
    from amk_bench.gate import Timing
    from amk_bench.paired import PairPlan
    from amk_bench.pairing import Block
    from amk_bench.results import LatencyRecord
    from amk_bench.session import Session

BLOCKS = {"quick": 8, "default": 16, "full": 32}


class PairedBenchmark:
    """``amk_pair``: gates, ABBA pairs, noise floor, verdict, a row of the table and of the result file.

    Usage::

        def test_matvec(amk_pair):
            amk_pair("matvec", ours, baseline, inputs=lambda seed: vector(seed), reference=exact, bytes_moved=W.nbytes, weights=W)

    One pair a test: parametrise for more.  An INVALID pair fails the test with the reason; a LOSS does not: assert on the verdict
    of the record that is returned where it has to.
    """

    def __init__(self, session: Session, record: Recorder, seconds: Seconds, progress: Progress) -> None:
        self._session = session
        self._record = record
        self._seconds = seconds
        self._progress = progress
        self._used = False

    def __call__(
        self, name: str, ours: Callable[..., Any], baseline: Callable[..., Any], *, inputs: Callable[[int], Any], **facts: Any
    ) -> LatencyRecord:
        """Measures two callables; ``facts`` are the other fields of :class:`amk_bench.paired.Pair`."""
        from amk_bench import values
        from amk_bench.paired import Pair, measure_pair

        pair = Pair(name, ours, baseline, inputs, **facts)
        clock, plan = self._instruments(values.on_gpu(inputs(0)))
        watch = functools.partial(self._watch, name)
        return self._keep(*measure_pair(pair, plan, clock, watch), seeds="fresh inputs for each call")

    def engines(
        self, ours: Engine, baseline: Engine, cell: Cell, plan: Plan, clock: Clock, score: Score, floor: float | None = None
    ) -> LatencyRecord:
        """Measures two engines in a cell (:func:`amk_bench.measure.compare`).

        Without ``floor``, ours is first timed against itself.
        """
        from amk_bench.measure import compare, noise
        from amk_bench.stats import noise_floor

        if floor is None:
            floor = noise_floor(noise(ours, cell, plan, clock))
        label = f"{cell.model} at position {cell.position}"
        watch = functools.partial(self._progress.over, label=label, total=plan.blocks)
        return self._keep(*compare(ours, baseline, cell, plan, clock, floor, score, watch), seeds=f"seed {plan.seed}")

    def _instruments(self, gpu: bool) -> tuple[Clock, PairPlan]:
        from amk_bench import instruments
        from amk_bench.paired import PairPlan

        blocks = BLOCKS[self._session.options.tier]
        if gpu:
            import torch

            from amk_bench.cuda_clock import CudaClock, TorchEvents

            least_s = instruments.for_this_card().least_s
            return CudaClock(TorchEvents()), PairPlan(torch.cuda.get_device_name(), blocks, least_s)
        from amk_bench import busy
        from amk_bench.clock import CpuClock

        machine = self._session.machine
        least_s = instruments.for_cpu(machine.cpu, machine.cores).least_s
        return CpuClock(), PairPlan(machine.cpu, blocks, least_s, witness=busy.witness)

    def _watch(self, name: str, run: Iterable[Block], count: int) -> Iterable[Block]:
        return self._progress.over(run, name, count)

    def _keep(self, record: LatencyRecord, timing: Timing | None, seeds: str) -> LatencyRecord:
        from amk_bench.faults import BUSY
        from amk_bench.pairing import samples_of

        if self._used:
            raise RuntimeError("amk_pair was used twice in one test: parametrise the test, one pair each")
        self._used = True
        self._record.latency(record)
        if record.floor is not None:
            note = f"{record.model}: {len(record.ours_samples_us) // 2} ABBA blocks, {record.tokens} calls a sample, {seeds}"
            self._record.note(note)
        if record.reason.startswith(BUSY):
            pytest.skip(record.reason)
        if timing is None:
            pytest.fail(f"{record.model}: INVALID: {record.reason}", pytrace=False)
        block = dataclasses.asdict(record)
        self._seconds.store([s.device_s for s in samples_of(timing.blocks, "a")], {"cell": block})
        return record
