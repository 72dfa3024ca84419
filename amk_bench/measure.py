"""One cell of the win/loss table: gates first, then paired timing, then the check of what the timed calls returned.

Everything here works on :class:`amk_bench.engine.Engine`, so that it is tested with engines made of arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from amk_bench import values
from amk_bench.busy import OTHERS_LIMIT
from amk_bench.clock import Clock, disagreement
from amk_bench.conditions import Meter, NoMeter, Reading, Summary, joules, summary
from amk_bench.engine import F32, Engine, chains_agree
from amk_bench.floor import Bandwidth, violation
from amk_bench.gate import Check, FailedGate, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block, TimedCall, abba, samples_of
from amk_bench.results import LatencyRecord, timed
from amk_bench.seal import Seal
from amk_bench.stats import MAX_FLOOR, Interval, Precision, bootstrap
from amk_bench.verdict import Verdict

Score = Callable[[Sequence[int], int], F32]  # (ids, keep) -> teacher-forced reference logits of the last ``keep`` ids
GATE_CALLS = 2  # inputs a gate tries; the timed calls are checked besides
Run = Iterable[tuple[Block, list[TimedCall]]]
Result = tuple[LatencyRecord, Timing | None]
Sitting = Generator[None, None, Result]
BUSY = "the machine was busy"  # how the reason begins when the machine, not an engine, is at fault
CHECKED_APART = 4  # call numbers of which both outputs are scored where the sides returned different tokens
UNTIMED = 10**6  # call numbers from here on belong to gates and warm-up: their inputs are none of the timed ones


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure, and with what.

    Attributes:
        tokens: decode steps of a call.
        blocks: ABBA blocks at most; with ``precision`` fewer where the interval is narrow enough before.
        settle: runs untimed before each call.
        witness: starts watching the machine and returns what tells the share of it that others took (amk_bench.busy).
        meter: reads the device's state around each block.
        bandwidth: what the device reads from memory; without it there is no physical floor, and the result says so.
        probe: measures the bandwidth again, asked before a time is called impossible.
        reset: gives back cache lines that were set aside to persist; runs untimed before each call.
        flush: empties the caches; used before each call where a working set is below four of them.
        slack: for engines in lower precision than the reference: how far below the reference's best logit a chosen one may lie,
            as a share of the largest (:func:`amk_bench.engine.chains_agree`).
        energy_s: seconds for which each side runs for its joules a token; 0 leaves them out.
    """

    tokens: int
    blocks: int
    seed: int
    settle: Callable[[], None] = lambda: None
    witness: Callable[[], Callable[[], float]] = lambda: lambda: 0.0
    precision: Precision | None = None
    meter: Meter = field(default_factory=NoMeter)
    bandwidth: Bandwidth | None = None
    probe: Callable[[], Bandwidth] | None = None
    reset: Callable[[], None] = lambda: None
    flush: Callable[[], None] | None = None
    energy_s: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: the text that fills the cache (its length is the position) and how many sequences decode.

    ``ours_bytes`` and ``baseline_bytes``: what a step of each side has to read, from the model's shape and the side's precision
    (:func:`amk_bench.floor.step_bytes`), never from the engine's own words; 0 where unknown.  ``weights``: where they come from,
    where that is no checkpoint.
    """

    device: str
    model: str
    mode: str
    batch: int
    prefix: tuple[int, ...]
    vocabulary: tuple[int, ...] = field(repr=False)  # ids that first tokens are drawn from
    ours_bytes: int = 0
    baseline_bytes: int = 0
    weights: str = ""

    @property
    def position(self) -> int:
        return len(self.prefix)

    def subject(self, engine: Engine) -> Subject:
        return Subject(engine.name, self.model, self.batch, self.position)

    def first_ids(self, call: int, seed: int) -> list[int]:
        """Other first tokens for each call, the same ones for both sides."""
        rng = np.random.default_rng((seed, self.position, call))
        return [int(i) for i in rng.choice(np.asarray(self.vocabulary), size=self.batch)]


def _concrete(chains: object, batch: int, tokens: int) -> bool:
    """Plain lists of plain integers: nothing that could still be computed when it is looked at, after the clock has stopped."""
    return (
        type(chains) is list
        and len(chains) == batch
        and all(type(c) is list and len(c) == tokens and all(type(i) is int for i in c) for c in chains)
    )


def _copied(chains: object) -> object:
    """A copy made inside the timed window: what an engine writes into its lists later does not count."""
    return [list(c) if type(c) is list else c for c in chains] if type(chains) is list else chains


def check_chain(
    cell: Cell, first: Sequence[int], chains: object, tokens: int, score: Score, slack: float = 0.0
) -> Check:  # fmt: skip
    """A call's output against the reference: every chain has its length and is the reference's greedy choice throughout.

    ``slack``: see :func:`amk_bench.engine.chains_agree`.
    """
    if not _concrete(chains, cell.batch, tokens):
        return Check("greedy tokens", False, f"not {cell.batch} lists of {tokens} ids")
    assert isinstance(chains, list)
    agreed = 0
    for start, chain in zip(first, chains, strict=True):
        scored = score([*cell.prefix, start, *chain[:-1]], tokens)
        if not np.isfinite(scored).all():
            return Check("greedy tokens", False, "the reference's logits are not finite")
        agreed += chains_agree(chain, scored, slack)
    return Check("greedy tokens", agreed == tokens * cell.batch, f"{agreed} of {tokens * cell.batch} as the reference")


def gate(engine: Engine, cell: Cell, plan: Plan, score: Score) -> PassedGate | FailedGate:
    """P1 in this very cell: the engine, decoding from its own cache, picks the tokens the reference picks.

    The engine has been prepared for the cell.
    """
    checks = []
    for call in range(GATE_CALLS):
        first = cell.first_ids(UNTIMED + call, plan.seed)
        engine.rewind()
        checks.append(check_chain(cell, first, engine.decode(first, plan.tokens), plan.tokens, score, plan.slack))
    engine.rewind()
    level = f"P1 within {100 * plan.slack:.2g} %" if plan.slack else "P1"
    return open_gate(cell.subject(engine), level, checks)


def noise(engine: Engine, cell: Cell, plan: Plan, clock: Clock) -> Interval:
    """The engine against itself (A/A) in this cell."""
    engine.prepare(cell.prefix, cell.batch, plan.tokens + 1)
    run = _timed(engine, engine, cell, plan, clock, clock)
    return bootstrap([block.log_ratio for block, _ in run], plan.seed)


def _flushed(cell: Cell, plan: Plan) -> bool:
    """Whether the caches are emptied before each call: where one side's working set is known and small against them."""
    sizes = [n for n in (cell.ours_bytes, cell.baseline_bytes) if n]
    return plan.flush is not None and plan.bandwidth is not None and any(map(plan.bandwidth.needs_flush, sizes))


def _timed(a: Engine, b: Engine, cell: Cell, plan: Plan, clock: Clock, clock_b: Clock) -> Run:
    flush = plan.flush if _flushed(cell, plan) else None

    def before() -> None:
        a.rewind()
        b.rewind()
        plan.reset()
        if flush is not None:
            flush()
        plan.settle()

    # Drawn before any clock starts: drawing from a large vocabulary takes longer than a step.
    first = {number: cell.first_ids(number, plan.seed) for number in (*range(2 * plan.blocks), UNTIMED)}

    def call(engine: Engine) -> Callable[[int], object]:
        return lambda number: _copied(engine.decode(first[number], plan.tokens))

    for engine in (a, b):
        engine.rewind()
        call(engine)(UNTIMED)
    seed = plan.seed + cell.position
    return abba(clock, call(a), call(b), plan.blocks, before=before, clock_b=clock_b, seed=seed, enough=plan.precision)


def compare(
    ours: Engine,
    baseline: Engine,
    cell: Cell,
    plan: Plan,
    clock: Clock,
    floor: float,
    score: Score,
    watch: Callable[[Run], Run] = lambda run: run,
    baseline_clock: Clock | None = None,
) -> Result:
    """Measures one cell.  Never raises for a wrong engine: the record is INVALID and says why, and there is no Timing.

    ``baseline_clock`` measures the baseline where it works on another stream than ours, or in another process.
    """
    return ended(sittings(ours, baseline, cell, plan, clock, floor, score, watch, baseline_clock))


def ended(work: Sitting) -> Result:
    """What is left of a measurement, in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def sittings(
    ours: Engine,
    baseline: Engine,
    cell: Cell,
    plan: Plan,
    clock: Clock,
    floor: float,
    score: Score,
    watch: Callable[[Run], Run] = lambda run: run,
    baseline_clock: Clock | None = None,
    halves: bool = False,
) -> Sitting:
    """:func:`compare` as a generator.  With ``halves`` it pauses half-way, so that an engine can be restarted there.

    After the pause both sides are prepared again, and go through their gates again.
    """
    seal, weights = Seal.put(), [weights_digest(engine) for engine in (ours, baseline)]

    def enter() -> tuple[list[PassedGate], str | None]:
        passed = []
        for engine in (ours, baseline):
            engine.prepare(cell.prefix, cell.batch, plan.tokens + 1)
        for engine in (ours, baseline):
            opened = gate(engine, cell, plan, score)
            if isinstance(opened, FailedGate):
                return [], f"gate of {engine.name}: {opened.reason}"
            passed.append(opened)
        return passed, None

    gates, refused = enter()
    if refused is not None:
        return invalid(cell, ours, baseline, refused), None
    blocks: list[Block] = []
    calls: list[TimedCall] = []
    readings = [plan.meter.read()]
    others = plan.witness()
    for block, outputs in watch(_timed(ours, baseline, cell, plan, clock, baseline_clock or clock)):
        blocks.append(block)
        calls += outputs
        readings.append(plan.meter.read())
        if halves and len(blocks) == (plan.blocks + 1) // 2 < plan.blocks:
            yield
            gates, refused = enter()
            if refused is not None:
                return invalid(cell, ours, baseline, f"after a restart, {refused}"), None
    taken = others()
    fault = seal.broken()
    for engine, before in zip((ours, baseline), weights, strict=True):
        if fault is None and weights_digest(engine) != before:
            fault = f"{engine.name}: its weights were changed while it ran"
    fault = fault or _outputs_fault(cell, calls, plan, score) or machine_fault(blocks, readings, taken)
    if fault is None:
        fault, plan = _floor_fault(blocks, cell, plan)
    if fault:
        return invalid(cell, ours, baseline, fault), None
    name = clock.name if baseline_clock is None or baseline_clock.name == clock.name else f"{clock.name}; {baseline_clock.name}"
    timing = Timing(gates[0], gates[1], tuple(blocks), plan.tokens, name)
    energy = _energy(ours, baseline, cell, plan)
    seen = summary(readings)
    record = timed(
        timing, device=cell.device, mode=cell.mode, precision=_precision(ours, baseline), floor=floor, seed=plan.seed,
        label=seen.label, cache=_cache(cell, plan), derived={**_rates(timing, cell, plan, seen), **energy},
        conditions={**seen.values, "others": taken, "readings": float(len(readings))}, readings=seen.series,
        weights=cell.weights,
    )  # fmt: skip
    return record, timing


def weights_digest(engine: Engine) -> str | None:
    """A checksum of the weights an engine shows (its method ``constants`` returns arrays or tensors); None where it shows none."""
    constants = getattr(engine, "constants", None)
    return values.digest(constants()) if callable(constants) else None


def machine_fault(blocks: Sequence[Block], readings: Sequence[Reading], taken: float) -> str | None:
    """Why nothing can be said from these blocks: clocks that disagree, a card that throttles, a machine that others use."""
    for side, name in (("a", "ours"), ("b", "baseline")):
        apart = disagreement(samples_of(blocks, side))
        if apart:
            return f"{name}: {apart}"
    unwell = summary(readings).fault if readings else None
    return unwell or others_fault(taken)


def others_fault(taken: float) -> str | None:
    """Why a machine of whose cores others took the share ``taken`` is no place to measure; None where it is one."""
    if taken > OTHERS_LIMIT:
        return f"{BUSY}: other processes took {100 * taken:.0f} % of its cores during the timing; stop them and run again"
    return None


def noise_fault(name: str, floor: float) -> str | None:
    """Why nothing can be said against this noise floor of ``name``; None where something can."""
    if floor > MAX_FLOOR:
        return f"{BUSY}: {name} differs from itself by {100 * floor:.0f} %; stop other programs and run again"
    return None


def _least_s(bytes_a_step: int, cell: Cell, plan: Plan) -> float:
    """The physical floor of a call: its first step finds the caches flushed or not, the others find what the one before left."""
    assert plan.bandwidth is not None
    first = plan.bandwidth.least_s(bytes_a_step, _flushed(cell, plan))
    return first + (plan.tokens - 1) * plan.bandwidth.least_s(bytes_a_step)


def _floor_fault(blocks: Sequence[Block], cell: Cell, plan: Plan) -> tuple[str | None, Plan]:
    """Why a side is faster than memory allows.  Before that is said, the bandwidth is measured again: the higher one counts."""

    def found(plan: Plan) -> str | None:
        if plan.bandwidth is None:
            return None
        for side, name, size in (("a", "ours", cell.ours_bytes), ("b", "baseline", cell.baseline_bytes)):
            fault = violation(samples_of(blocks, side), size * plan.tokens, _least_s(size, cell, plan), plan.bandwidth)
            if fault:
                return f"{name}: {fault}"
        return None

    fault = found(plan)
    if fault and plan.probe is not None and plan.bandwidth is not None:
        again = plan.probe()
        if again.bytes_per_s > plan.bandwidth.bytes_per_s:
            plan = replace(plan, bandwidth=again)
            fault = found(plan)
    return fault, plan


def _cache(cell: Cell, plan: Plan) -> str:
    """Working sets against the cache, in words."""
    if plan.bandwidth is None:
        return "bandwidth not measured; no floor"
    told = {
        plan.bandwidth.explain(size, _flushed(cell, plan)) if size else "working set unknown; no floor"
        for size in (cell.ours_bytes, cell.baseline_bytes)
    }
    return "; ".join(sorted(told))


def _rates(timing: Timing, cell: Cell, plan: Plan, seen: Summary) -> dict[str, float]:
    """What follows from the median times: GB/s and shares of bandwidth, cycles a token."""
    out: dict[str, float] = {}
    if plan.bandwidth is not None:
        out["measured_gb_s"] = plan.bandwidth.bytes_per_s * 1e-9
        out["cache_bytes"] = float(plan.bandwidth.cache_bytes)
        if plan.bandwidth.datasheet_bytes_per_s:
            out["datasheet_gb_s"] = plan.bandwidth.datasheet_bytes_per_s * 1e-9
    for side, name, size in (("a", "ours", cell.ours_bytes), ("b", "baseline", cell.baseline_bytes)):
        us = float(np.median(timing.microseconds(side)))
        if "clock_mhz" in seen.values:
            out[f"{name}_cycles"] = us * seen.values["clock_mhz"]
        if size:
            out[f"{name}_bytes"] = float(size)
            out[f"{name}_gb_s"] = size / us * 1e-3
            if plan.bandwidth is not None:
                out[f"{name}_share"] = size / us * 1e6 / plan.bandwidth.bytes_per_s
            if "datasheet_gb_s" in out:
                out[f"{name}_share_datasheet"] = size / us * 1e-3 / out["datasheet_gb_s"]
    return out


def _energy(ours: Engine, baseline: Engine, cell: Cell, plan: Plan) -> dict[str, float]:
    """Joules a token and sequence of each side, measured on their own after the timing."""
    out: dict[str, float] = {}
    if plan.energy_s <= 0:
        return out
    for name, engine in (("ours", ours), ("baseline", baseline)):

        def call(engine: Engine = engine) -> None:
            engine.rewind()
            engine.decode(cell.first_ids(UNTIMED, plan.seed), plan.tokens)

        found = joules(plan.meter, call, plan.tokens * cell.batch, plan.energy_s, time.monotonic)
        if found is not None:
            out[f"{name}_joules"] = found
    return out


def _outputs_fault(cell: Cell, calls: Sequence[TimedCall], plan: Plan, score: Score) -> str | None:
    """Both sides returned the same for the same inputs, and one call drawn at random is right.

    With slack, sides may part at a near tie; then both outputs of the first such calls are held to the reference.
    """
    by_number: dict[int, dict[str, object]] = {}
    for call in calls:
        by_number.setdefault(call.number, {})[call.side] = call.output
    apart = [number for number, sides in by_number.items() if sides["A"] != sides["B"]]
    if apart and not plan.slack:
        return f"timed call {apart[0]}: the two sides returned different tokens"
    drawn = calls[int(np.random.default_rng((plan.seed, cell.position)).integers(len(calls)))]
    for chosen in [drawn, *(call for call in calls if call.number in apart[:CHECKED_APART])]:
        first = cell.first_ids(chosen.number, plan.seed)
        check = check_chain(cell, first, chosen.output, plan.tokens, score, plan.slack)
        if not check.passed:
            side = "ours" if chosen.side == "A" else "the baseline"
            return f"timed call {chosen.number} of {side}: {check.measured}"
    return None


def _precision(ours: Engine, baseline: Engine) -> str:
    return ours.precision if ours.precision == baseline.precision else f"{ours.precision} against {baseline.precision}"


def invalid(cell: Cell, ours: Engine, baseline: Engine, reason: str) -> LatencyRecord:
    """The cell's row when it has no time, and why."""
    return LatencyRecord(
        device=cell.device, model=cell.model, mode=cell.mode, precision=_precision(ours, baseline), batch=cell.batch,
        position=cell.position, baseline=baseline.name, verdict=Verdict.INVALID, reason=reason,
        weights=cell.weights,
    )  # fmt: skip
