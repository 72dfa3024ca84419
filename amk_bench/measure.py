"""One cell of the win/loss table: gates first, then paired timing, then the check of what the timed calls returned.

Everything here works on :class:`amk_bench.engine.Engine`, so that it is tested with engines made of arithmetic.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from amk_bench.busy import OTHERS_LIMIT
from amk_bench.clock import Clock
from amk_bench.engine import F32, Engine, chains_agree
from amk_bench.gate import Check, FailedGate, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block, TimedCall, abba
from amk_bench.results import LatencyRecord
from amk_bench.stats import Interval, bootstrap
from amk_bench.verdict import Verdict, judge

Score = Callable[[Sequence[int], int], F32]  # (ids, keep) -> teacher-forced reference logits of the last ``keep`` ids
GATE_CALLS = 2  # inputs a gate tries; the timed calls are checked besides
BUSY = "the machine was busy"  # how the reason begins when the machine, not an engine, is at fault
UNTIMED = 10**6  # call numbers from here on belong to gates and warm-up: their inputs are none of the timed ones


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: ``tokens`` decode steps a call, ``blocks`` ABBA blocks; ``settle`` runs untimed before each call.

    ``witness`` starts watching the machine and returns what tells the share of it that others took (amk_bench.busy).
    """

    tokens: int
    blocks: int
    seed: int
    settle: Callable[[], None] = lambda: None
    witness: Callable[[], Callable[[], float]] = lambda: lambda: 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: the text that fills the cache (its length is the position) and how many sequences decode."""

    device: str
    model: str
    mode: str
    batch: int
    prefix: tuple[int, ...]
    vocabulary: tuple[int, ...] = field(repr=False)  # ids that first tokens are drawn from

    @property
    def position(self) -> int:
        return len(self.prefix)

    def subject(self, engine: Engine) -> Subject:
        return Subject(engine.name, self.model, self.batch, self.position)

    def first_ids(self, call: int, seed: int) -> list[int]:
        """Other first tokens for each call, the same ones for both sides."""
        rng = np.random.default_rng((seed, self.position, call))
        return [int(i) for i in rng.choice(np.asarray(self.vocabulary), size=self.batch)]


def check_chain(cell: Cell, first: Sequence[int], chains: object, tokens: int, score: Score) -> Check:
    """A call's output against the reference: every chain has its length and is the reference's greedy choice throughout."""
    if not isinstance(chains, list) or len(chains) != cell.batch or any(len(c) != tokens for c in chains):
        return Check("greedy tokens", False, f"not {cell.batch} lists of {tokens} ids")
    agreed = 0
    for start, chain in zip(first, chains, strict=True):
        scored = score([*cell.prefix, start, *chain[:-1]], tokens)
        if not np.isfinite(scored).all():
            return Check("greedy tokens", False, "the reference's logits are not finite")
        agreed += chains_agree(chain, scored)
    return Check("greedy tokens", agreed == tokens * cell.batch, f"{agreed} of {tokens * cell.batch} as the reference")


def gate(engine: Engine, cell: Cell, plan: Plan, score: Score) -> PassedGate | FailedGate:
    """P1 in this very cell: the engine, decoding from its own cache, picks the tokens the reference picks.

    The engine has been prepared for the cell.
    """
    checks = []
    for call in range(GATE_CALLS):
        first = cell.first_ids(UNTIMED + call, plan.seed)
        engine.rewind()
        checks.append(check_chain(cell, first, engine.decode(first, plan.tokens), plan.tokens, score))
    engine.rewind()
    return open_gate(cell.subject(engine), "P1", checks)


def noise(engine: Engine, cell: Cell, plan: Plan, clock: Clock) -> Interval:
    """The engine against itself (A/A) in this cell."""
    engine.prepare(cell.prefix, cell.batch, plan.tokens + 1)
    run = _timed(engine, engine, cell, plan, clock)
    return bootstrap([block.log_ratio for block, _ in run], plan.seed)


def _timed(a: Engine, b: Engine, cell: Cell, plan: Plan, clock: Clock) -> Iterable[tuple[Block, list[TimedCall]]]:
    def before() -> None:
        a.rewind()
        b.rewind()
        plan.settle()

    def call(engine: Engine) -> Callable[[int], object]:
        return lambda number: engine.decode(cell.first_ids(number, plan.seed), plan.tokens)

    for engine in (a, b):
        engine.rewind()
        call(engine)(UNTIMED)
    return abba(clock, call(a), call(b), plan.blocks, before=before)


def compare(
    ours: Engine,
    baseline: Engine,
    cell: Cell,
    plan: Plan,
    clock: Clock,
    floor: float,
    score: Score,
    watch: Callable[[Iterable[tuple[Block, list[TimedCall]]]], Iterable[tuple[Block, list[TimedCall]]]] = lambda run: run,
) -> tuple[LatencyRecord, Timing | None]:
    """Measures one cell.  Never raises for a wrong engine: the record is INVALID and says why, and there is no Timing."""
    ours.prepare(cell.prefix, cell.batch, plan.tokens + 1)
    baseline.prepare(cell.prefix, cell.batch, plan.tokens + 1)
    gates = [gate(engine, cell, plan, score) for engine in (ours, baseline)]
    for opened, side in zip(gates, (ours, baseline), strict=True):
        if isinstance(opened, FailedGate):
            return invalid(cell, ours, baseline, f"gate of {side.name}: {opened.reason}"), None
    blocks: list[Block] = []
    calls: list[TimedCall] = []
    others = plan.witness()
    for block, outputs in watch(_timed(ours, baseline, cell, plan, clock)):
        blocks.append(block)
        calls += outputs
    taken = others()
    fault = _outputs_fault(cell, calls, plan, score)
    if fault:
        return invalid(cell, ours, baseline, fault), None
    if taken > OTHERS_LIMIT:
        reason = f"{BUSY}: other processes took {100 * taken:.0f} % of its cores during the timing; stop them and run again"
        return invalid(cell, ours, baseline, reason), None
    ours_gate, baseline_gate = gates
    assert isinstance(ours_gate, PassedGate)
    assert isinstance(baseline_gate, PassedGate)
    timing = Timing(ours_gate, baseline_gate, tuple(blocks), plan.tokens, clock.name)
    return _record(cell, ours, baseline, timing, floor, plan.seed), timing


def _outputs_fault(cell: Cell, calls: Sequence[TimedCall], plan: Plan, score: Score) -> str | None:
    """Both sides returned the same for the same inputs, and one call drawn at random is right."""
    by_number: dict[int, dict[str, object]] = {}
    for call in calls:
        by_number.setdefault(call.number, {})[call.side] = call.output
    for number, sides in by_number.items():
        if sides["A"] != sides["B"]:
            return f"timed call {number}: the two sides returned different tokens"
    chosen = calls[int(np.random.default_rng((plan.seed, cell.position)).integers(len(calls)))]
    check = check_chain(cell, cell.first_ids(chosen.number, plan.seed), chosen.output, plan.tokens, score)
    return None if check.passed else f"timed call {chosen.number}: {check.measured}"


def _precision(ours: Engine, baseline: Engine) -> str:
    return ours.precision if ours.precision == baseline.precision else f"{ours.precision} against {baseline.precision}"


def invalid(cell: Cell, ours: Engine, baseline: Engine, reason: str) -> LatencyRecord:
    """The cell's row when it has no time, and why."""
    return LatencyRecord(
        device=cell.device, model=cell.model, mode=cell.mode, precision=_precision(ours, baseline), batch=cell.batch,
        position=cell.position, baseline=baseline.name, verdict=Verdict.INVALID, reason=reason,
    )  # fmt: skip


def _record(cell: Cell, ours: Engine, baseline: Engine, timing: Timing, floor: float, seed: int) -> LatencyRecord:
    interval = bootstrap(timing.log_ratios, seed)
    a, b = timing.microseconds("a"), timing.microseconds("b")
    return LatencyRecord(
        device=cell.device, model=cell.model, mode=cell.mode, precision=_precision(ours, baseline), batch=cell.batch,
        position=cell.position, baseline=baseline.name, verdict=judge(interval, floor), gate=timing.ours.level,
        ours_us=statistics.median(a), baseline_us=statistics.median(b), ratio=interval.median, low=interval.low,
        high=interval.high, floor=floor, tokens=timing.tokens, clock=timing.clock, ours_samples_us=a, baseline_samples_us=b,
    )  # fmt: skip
