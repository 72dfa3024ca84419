"""Two ways to compute one thing, measured against each other: gates first, then ABBA pairs, then the checks that catch a cheat.

This is the judge for anything that is a function: it knows nothing of models.  Both sides get their own copies of inputs that
nobody could know before the call, what they return is copied inside the timed window and checked after it, and the instruments
are sealed.
"""

from __future__ import annotations

import functools
import secrets
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amk_bench import values
from amk_bench.clock import Clock, disagreement
from amk_bench.faults import noise_fault, others_fault
from amk_bench.gate import Check, FailedGate, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block, abba, samples_of
from amk_bench.results import LatencyRecord, timed
from amk_bench.seal import Seal
from amk_bench.stats import bootstrap, noise_floor
from amk_bench.verdict import Verdict

# Largest error over largest reference value, by declared precision: another order of summing thousands of terms stays a tenth
# under these, and the next lower precision (tf32 under fp32, fp8 under bf16) is ten times over.
LIMITS = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 4e-3, "bf16": 2e-2}
GATE_INPUTS = 3
PROBES = 2
CHECKED = 4  # timed samples a side, drawn after the clock has stopped, whose outputs are compared with the reference
MIN_SAMPLE_S = 2e-3  # a sample of many short calls lasts this long, so that the clock's own cost is a thousandth of it
MAX_CALLS = 1000
LEAST_GPU_CALLS = 2  # what is copied on the stream inside the window must not always be the last thing in it


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared.

    Attributes:
        name: the case, as the table shows it.
        ours, baseline: called with one input, or with the items of a tuple; with ``weights``, called with those once and returning
            such a function.
        inputs: a seed -> an input: other seeds, other inputs; the same seed, the same input.
        reference: what is right, called like a contender (with ``weights``: ``reference(weights, input)``).  Without it and without
            ``check``, the two sides have to agree.
        check: instead of ``reference``: ``check(input, output)`` returns None, or what is wrong.
        weights: constant data: arrays that both sides read, checksummed before and after; or a function, seed -> arrays, in which
            case both sides are loaded twice, with different contents at the same addresses.
        probes: a seed -> an input of another shape, for the gate alone.
        bytes_moved: what one call must at least read and write, for the physical floor; None where there is none.
        precision, baseline_precision: what each side declares ("fp32", "bf16", ...).
        limit: largest error over largest reference value; by default that of the declared precision.
        position, batch: what the table shows for this cell.
    """

    name: str
    ours: Callable[..., Any]
    baseline: Callable[..., Any]
    inputs: Callable[[int], Any]
    reference: Callable[..., Any] | None = None
    check: Callable[[Any, Any], str | None] | None = None
    weights: Any = None
    probes: Callable[[int], Any] | None = None
    bytes_moved: int | None = None
    precision: str = "fp32"
    baseline_precision: str | None = None
    limit: float | None = None
    ours_name: str = "ours"
    baseline_name: str = "baseline"
    position: int = 0
    batch: int = 1

    def limit_of(self, side: str) -> float:
        """The error that ``side`` ("A": ours, "B": the baseline) may have; ValueError for a precision without a known limit."""
        declared = self.precision if side == "A" else (self.baseline_precision or self.precision)
        if self.limit is not None:
            return self.limit
        if declared not in LIMITS:
            raise ValueError(f"precision {declared!r} is none of {', '.join(LIMITS)}; give limit= (largest error / largest value)")
        return LIMITS[declared]

    @property
    def shown_precision(self) -> str:
        other = self.baseline_precision or self.precision
        return self.precision if other == self.precision else f"{self.precision} against {other}"


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How much to measure.  ``least_s``: bytes a call moves -> seconds under which nobody believes it; None: no floor is known.

    ``witness``: as in :class:`amk_bench.cell.Plan`.  ``draw``: a fresh seed; not to be guessed by what is measured.
    """

    device: str
    blocks: int = 12
    least_s: Callable[[int], float] | None = None
    witness: Callable[[], Callable[[], float]] = lambda: lambda: 0.0
    draw: Callable[[], int] = lambda: secrets.randbits(32)
    min_sample_s: float = MIN_SAMPLE_S


@dataclass(slots=True)
class _Side:
    """One contender and what its timed samples returned: sample number -> copies of a drawn output and of the last one."""

    letter: str
    name: str
    call: Callable[..., Any]
    claim: str = ""  # whose declared precision it is held to, where that is not its own letter's
    live: Any = None
    kept: dict[int, list[Any]] = field(default_factory=dict)

    def run(self, x: Any) -> Any:
        return self.call(*x) if type(x) is tuple else self.call(x)


def _wrong(pair: Pair, side: str, weights: Any, x: Any, out: Any) -> str | None:
    """Why ``out`` is not the result for ``x``; None where it is, or where only the other side can tell."""
    if pair.check is not None:
        return pair.check(x, out)
    if pair.reference is None:
        return None if values.difference(out, out) == 0.0 else "not finite"
    args = x if type(x) is tuple else (x,)
    wanted = pair.reference(weights, *args) if callable(pair.weights) else pair.reference(*args)
    error = values.difference(out, wanted)
    limit = pair.limit_of(side)
    return None if error <= limit else f"error {error:.2g} of the largest value, at most {limit:.2g} is allowed"


def _gate_call(pair: Pair, side: _Side, weights: Any, seed: int, inputs: Callable[[int], Any]) -> str | None:
    """One call under full inspection: what is wrong with it, None where nothing is."""
    x = inputs(seed)
    before = values.digest(x)
    out = side.run(x)
    copied = values.snapshot(out)
    if values.digest(x) != before:
        return "it changed its input"
    if values.overlap(out, [x, weights] if weights is not None else x):
        return "its output lies in the memory of its input or weights"
    said = _wrong(pair, side.claim or side.letter, weights, inputs(seed), copied)
    values.poison(out)
    return said


def gate(pair: Pair, side: _Side, load: Callable[[Any], Callable[..., Any]] | None, weights: Any, plan: PairPlan) -> list[Check]:
    """Checks of one side on inputs of fresh seeds; with ``load``, on two sets of weights at one address."""
    checks = []

    def inspect(name: str, rounds: int, inputs: Callable[[int], Any]) -> None:
        drawn = [plan.draw() for _ in range(rounds)]
        for seed in [*drawn, drawn[0]]:  # the first again: what only its first call computed is poisoned by now
            said = _gate_call(pair, side, weights, seed, inputs)
            checks.append(Check(name, said is None, said or "right"))

    try:
        if load is not None:
            side.call = load(weights)
            inspect("first weights", 1, pair.inputs)
            values.overwrite(weights, pair.weights(plan.draw()))
            side.call = load(weights)
        inspect("result" if load is None else "other weights at the same address", GATE_INPUTS, pair.inputs)
        if pair.probes is not None:
            inspect("other shapes", PROBES, pair.probes)
    except Exception as error:
        checks.append(Check("runs", False, f"{type(error).__name__}: {error}"))
    return checks


class _Run:
    """The timed samples: fresh inputs before each block, copies inside each window, inspection after it."""

    def __init__(self, pair: Pair, plan: PairPlan, sides: tuple[_Side, _Side], clock: Clock, calls: int) -> None:
        self.pair, self.plan, self.sides, self.clock, self.calls = pair, plan, sides, clock, calls
        self.seeds: dict[int, list[int]] = {}
        self.drawn: dict[int, int] = {}
        self.faults: list[str] = []
        self._inputs: dict[tuple[str, int], list[Any]] = {}
        self._digests: dict[tuple[str, int], str] = {}

    def blocks(self, count: int) -> Iterable[Block]:
        turns = 0

        def before() -> None:
            nonlocal turns
            self._settle()
            if turns % 4 == 0:  # a block is four samples of two numbers
                self._fill(turns // 2)
                self._fill(turns // 2 + 1)
            turns += 1

        a, b = self.sides
        for index, (block, _) in enumerate(
            abba(self.clock, self._timed(a), self._timed(b), count, before=before, seed=self.plan.draw())
        ):
            self._settle()
            self._check_inputs(2 * index)
            self._check_inputs(2 * index + 1)
            yield block

    def _fill(self, number: int) -> None:
        self.seeds[number] = [self.plan.draw() for _ in range(self.calls)]
        self.drawn[number] = self.plan.draw() % self.calls
        for side in self.sides:
            batch = [self.pair.inputs(seed) for seed in self.seeds[number]]
            self._inputs[side.letter, number] = batch
            self._digests[side.letter, number] = values.digest(batch)

    def _timed(self, side: _Side) -> Callable[[int], object]:
        def sample(number: int) -> object:
            drawn = self.drawn[number]
            kept = []
            out = None
            for index, x in enumerate(self._inputs[side.letter, number]):
                out = side.run(x)
                if index == drawn:  # no contender knows which: results that come later, or all at once at the end, are not there
                    kept.append(values.snapshot(out))
            side.live, side.kept[number] = out, kept
            return None

        return sample

    def _settle(self) -> None:
        """After a sample: a copy of its last output, then poison in its place."""
        for side in self.sides:
            if side.live is None:
                continue
            number = next(reversed(side.kept))
            kept = side.kept[number]
            kept.append(values.snapshot(side.live))
            if self.drawn[number] == self.calls - 1 and values.digest(kept[0]) != values.digest(kept[1]):
                self.faults.append(f"{side.name}: timed sample {number}: its output changed after the call had returned")
            values.poison(side.live)
            side.live = None

    def _check_inputs(self, number: int) -> None:
        for side in self.sides:
            if values.digest(self._inputs.pop((side.letter, number))) != self._digests.pop((side.letter, number)):
                self.faults.append(f"{side.name}: timed sample {number}: it changed its input")

    def fault(self, weights: Any) -> str | None:
        """What the timed samples returned, against the other side and, for drawn ones, against the reference."""
        if self.faults:
            return self.faults[0]
        a, b = self.sides
        limit = sum(self.pair.limit_of(s.claim or s.letter) for s in self.sides) if self.pair.check is None else None
        suspects = [
            number
            for number in a.kept
            if limit is not None
            and any(not values.difference(x, y) <= limit for x, y in zip(a.kept[number], b.kept[number], strict=True))
        ]
        fair = [number for number in a.kept if number not in suspects]
        chosen = np.random.default_rng(self.plan.draw()).permutation(fair)[:CHECKED].tolist()
        for side in self.sides:
            for number in [*suspects[:1], *chosen]:
                for index, out in zip((self.drawn[number], self.calls - 1), side.kept[number], strict=True):
                    said = _wrong(self.pair, side.claim or side.letter, weights, self.pair.inputs(self.seeds[number][index]), out)
                    if said is not None:
                        return f"{side.name}: timed sample {number}: {said}"
        if suspects:
            return f"timed sample {suspects[0]}: the two sides differ by more than their limits allow"
        return None


def _calls_a_sample(pair: Pair, plan: PairPlan, sides: Iterable[_Side], clock: Clock) -> int:
    """So many that the quicker side's sample lasts ``plan.min_sample_s``."""
    quickest = float("inf")
    gpu = False
    for side in sides:
        for _ in range(GATE_INPUTS):
            x = pair.inputs(plan.draw())
            gpu = gpu or values.on_gpu(x)
            sample, _ = clock.measure(functools.partial(side.run, x))
            quickest = min(quickest, sample.device_s)
    return max(LEAST_GPU_CALLS if gpu else 1, min(MAX_CALLS, int(plan.min_sample_s / quickest) + 1))


def _invalid(pair: Pair, plan: PairPlan, reason: str) -> tuple[LatencyRecord, None]:
    record = LatencyRecord(
        device=plan.device, model=pair.name, mode=pair.ours_name, precision=pair.shown_precision, batch=pair.batch,
        position=pair.position, baseline=pair.baseline_name, verdict=Verdict.INVALID, reason=reason, unit="call",
    )  # fmt: skip
    return record, None


def _inputs_fault(pair: Pair, plan: PairPlan) -> str | None:
    """Inputs have to be repeatable, and different from call to call: else a cached output would pass for a computed one."""
    seed, other = plan.draw(), plan.draw()
    if values.digest(pair.inputs(seed)) != values.digest(pair.inputs(seed)):
        return "inputs(seed) is not the same twice for one seed: draw from numpy.random.default_rng(seed) or a torch generator"
    if values.digest(pair.inputs(seed)) == values.digest(pair.inputs(other)):
        return "inputs(seed) does not depend on its seed: a cached output would pass for a computed one"
    return None


def measure_pair(
    pair: Pair, plan: PairPlan, clock: Clock, watch: Callable[[Iterable[Block], int], Iterable[Block]] = lambda run, _: run
) -> tuple[LatencyRecord, Timing | None]:
    """Measures one pair.  Never raises for a wrong contender: the record is INVALID and says why, and there is no Timing.

    Raises ValueError for a precision that has no limit.  ``watch(blocks, count)`` passes the blocks on (progress).
    """
    names = {"A": pair.ours_name, "B": pair.baseline_name}
    for letter in names:
        pair.limit_of(letter)
    said = _inputs_fault(pair, plan)
    if said is not None:
        return _invalid(pair, plan, said)
    seal = Seal.put()
    loaded = callable(pair.weights)
    weights = pair.weights(plan.draw()) if loaded else pair.weights
    sides = (_Side("A", names["A"], pair.ours), _Side("B", names["B"], pair.baseline))
    untouched = None if loaded or weights is None else values.digest(weights)
    gates: list[PassedGate] = []
    level = "check" if pair.check is not None else "reference" if pair.reference is not None else "agree"
    for side, make in zip(sides, (pair.ours, pair.baseline), strict=True):
        subject = Subject(side.name, pair.name, pair.batch, pair.position)
        opened = open_gate(subject, level, gate(pair, side, make if loaded else None, weights, plan))
        if isinstance(opened, FailedGate):
            return _invalid(pair, plan, f"gate of {side.name}: {opened.reason}")
        gates.append(opened)
    if loaded:  # the second side's gate has written other weights into the arrays the first side was loaded from
        sides[0].call = pair.ours(weights)
    before = values.digest(weights) if weights is not None else None
    if untouched is not None and before != untouched:
        return _invalid(pair, plan, "the weights were changed during the gates")
    try:
        calls = _calls_a_sample(pair, plan, sides, clock)
        twice = (_Side("A", names["A"], sides[0].call), _Side("B", names["A"], sides[0].call, "A"))
        self_run = _Run(pair, plan, twice, clock, calls)
        floor = noise_floor(bootstrap([block.log_ratio for block in self_run.blocks(plan.blocks)]))
        run = _Run(pair, plan, sides, clock, calls)
        others = plan.witness()
        blocks = list(watch(run.blocks(plan.blocks), plan.blocks))
        taken = others()
        said = seal.broken()
        if said is None and before is not None and values.digest(weights) != before:
            said = "the weights were changed while it ran"
        said = said or self_run.fault(weights) or run.fault(weights)
    except Exception as error:
        return _invalid(pair, plan, seal.broken() or f"a timed call failed: {type(error).__name__}: {error}")
    for letter in ("a", "b"):
        said = said or disagreement(samples_of(blocks, letter))
    said = said or others_fault(taken) or noise_fault(pair.ours_name, floor)
    if said is not None:
        return _invalid(pair, plan, said)
    timing = Timing(gates[0], gates[1], tuple(blocks), calls, clock.name)
    said = _below_the_floor(pair, plan, timing)
    if said is not None:
        return _invalid(pair, plan, said)
    return _record(pair, plan, timing, floor, plan.draw()), timing


def _below_the_floor(pair: Pair, plan: PairPlan, timing: Timing) -> str | None:
    if pair.bytes_moved is None or plan.least_s is None:
        return None
    least_us = 1e6 * plan.least_s(pair.bytes_moved)
    for side, name in (("a", pair.ours_name), ("b", pair.baseline_name)):
        microseconds = statistics.median(timing.microseconds(side))
        if microseconds < least_us:
            return (
                f"{name} took {microseconds:.3g} us a call; moving {pair.bytes_moved:,} bytes takes this device {least_us:.3g} us "
                "at the bandwidth it has been seen to reach: it did not do the work"
            )
    return None


def _record(pair: Pair, plan: PairPlan, timing: Timing, floor: float, seed: int) -> LatencyRecord:
    return timed(
        timing, device=plan.device, mode=pair.ours_name, precision=pair.shown_precision, floor=floor, seed=seed, unit="call"
    )
