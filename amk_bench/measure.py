"""One cell of the win/loss table: gates first, then paired timing, then the check of what the timed calls returned.

Everything here works on :class:`amk_bench.engine.Engine`, so that it is tested with engines made of arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable

import numpy as np

from amk_bench import values
from amk_bench.cell import UNTIMED, Cell, Plan, flushed
from amk_bench.clock import Clock
from amk_bench.conditions import Summary, joules, summary
from amk_bench.engine import Engine
from amk_bench.faults import Score, check_chain, floor_fault, machine_fault, outputs_fault
from amk_bench.gate import FailedGate, PassedGate, Timing, open_gate
from amk_bench.pairing import Block, TimedCall, abba
from amk_bench.results import LatencyRecord, timed
from amk_bench.seal import Seal
from amk_bench.stats import Interval, bootstrap
from amk_bench.verdict import Verdict

GATE_CALLS = 2  # inputs a gate tries; the timed calls are checked besides
Run = Iterable[tuple[Block, list[TimedCall]]]
Result = tuple[LatencyRecord, Timing | None]
Sitting = Generator[None, None, Result]


def _copied(chains: object) -> object:
    """A copy made inside the timed window: what an engine writes into its lists later does not count."""
    return [list(c) if type(c) is list else c for c in chains] if type(chains) is list else chains


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


def _timed(a: Engine, b: Engine, cell: Cell, plan: Plan, clock: Clock, clock_b: Clock) -> Run:
    flush = plan.flush if flushed(cell, plan) else None

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
    fault = fault or outputs_fault(cell, calls, plan, score) or machine_fault(blocks, readings, taken)
    if fault is None:
        fault, plan = floor_fault(blocks, cell, plan)
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


def _cache(cell: Cell, plan: Plan) -> str:
    """Working sets against the cache, in words."""
    if plan.bandwidth is None:
        return "bandwidth not measured; no floor"
    told = {
        plan.bandwidth.explain(size, flushed(cell, plan)) if size else "working set unknown; no floor"
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


def _precision(ours: Engine, baseline: Engine) -> str:
    return ours.precision if ours.precision == baseline.precision else f"{ours.precision} against {baseline.precision}"


def invalid(cell: Cell, ours: Engine, baseline: Engine, reason: str) -> LatencyRecord:
    """The cell's row when it has no time, and why."""
    return LatencyRecord(
        device=cell.device, model=cell.model, mode=cell.mode, precision=_precision(ours, baseline), batch=cell.batch,
        position=cell.position, baseline=baseline.name, verdict=Verdict.INVALID, reason=reason,
        weights=cell.weights,
    )  # fmt: skip
