"""Claims: an honest engine is timed, a cheating one comes out INVALID with the reason and without a time."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from amk_bench.busy import busy_s, witness
from amk_bench.cell import UNTIMED, Cell, Plan
from amk_bench.clock import Sample
from amk_bench.conditions import POWER_CAPPED, Reading
from amk_bench.engine import F32, chains_agree
from amk_bench.faults import BUSY
from amk_bench.floor import Bandwidth
from amk_bench.measure import Run, compare, noise
from amk_bench.results import LatencyRecord
from amk_bench.stats import Precision, noise_floor
from amk_bench.verdict import Verdict

T = TypeVar("T")
VOCABULARY = 50
PREFIX = tuple(range(1, 8))
PLAN = Plan(tokens=3, blocks=6, seed=1)


class Clock:
    name = "synthetic"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timing = False
        self.noise = np.random.default_rng(3)

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        start = self.now_s
        result = work()
        return Sample(self.now_s - start, self.now_s - start), result


def following(ids: Sequence[int]) -> int:
    """The toy language: the next token depends on the whole text."""
    return sum((i + 1) * t for i, t in enumerate(ids)) % VOCABULARY


def score(ids: Sequence[int], keep: int) -> F32:
    out = np.zeros((keep, VOCABULARY), np.float32)
    for row in range(keep):
        out[row, following(ids[: len(ids) - keep + row + 1])] = 1.0
    return out


class Honest:
    """Decodes the toy language from its own cache; a step takes ``step_s`` with noise ``spread``."""

    precision = "fp32"
    spread = 0.002

    def __init__(self, clock: Clock, step_s: float, name: str = "honest") -> None:
        self.name = name
        self.clock = clock
        self.step_s = step_s
        self.cache: list[list[int]] = []
        self.prefix: tuple[int, ...] = ()

    def available(self) -> str | None:
        return None

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        self.prefix = tuple(prefix)
        self.cache = [list(prefix) for _ in range(batch)]

    def rewind(self) -> None:
        self.cache = [list(self.prefix) for _ in self.cache]

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        self.clock.now_s += tokens * self.step_s * (1 + self.spread * self.clock.noise.standard_normal())
        out: list[list[int]] = []
        for text, start in zip(self.cache, first, strict=True):
            text.append(start)
            for _ in range(tokens):
                text.append(following(text))
            out.append(text[-tokens:])
        return out

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        return score(ids, keep or len(ids))


class Stale(Honest):
    """Computes the first two calls (the gate's) and returns their output for ever after, very quickly."""

    calls = 0
    last: list[list[int]]

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        self.calls += 1
        if self.calls <= 2:
            self.last = super().decode(first, tokens)
        else:
            self.clock.now_s += 1e-6
        return self.last


class OnlyAtZero(Honest):
    """Forgets the prefix: right at position 0 only."""

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        self.cache = [[] for _ in self.cache]
        return super().decode(first, tokens)


class Short(Honest):
    """Writes one token fewer."""

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        return super().decode(first, tokens - 1)


class Lazy(Honest):
    """Returns lists that would compute their items when they are looked at."""

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        class Later(list[int]):
            pass

        return [Later(chain) for chain in super().decode(first, tokens)]


def cell(position: int = len(PREFIX), batch: int = 1) -> Cell:
    return Cell("toy", "toy", "exact", batch, PREFIX[:position], tuple(range(VOCABULARY)))


def measured(ours: Honest, theirs: Honest, where: Cell, floor: float = 0.01) -> LatencyRecord:
    record, timing = compare(ours, theirs, where, PLAN, ours.clock, floor, score)
    assert (timing is None) == (record.verdict == Verdict.INVALID)
    return record


@pytest.mark.parametrize("batch", [1, 3])
def test_honest_engines_get_ratio_times_and_gate(batch: int) -> None:
    clock = Clock()
    record = measured(Honest(clock, 0.010), Honest(clock, 0.020, "slow"), cell(batch=batch))
    assert record.verdict == Verdict.WIN
    assert record.ratio == pytest.approx(2.0, rel=0.01)
    assert record.ours_us == pytest.approx(10_000, rel=0.01)
    assert record.baseline_us == pytest.approx(20_000, rel=0.01)
    assert (record.gate, record.position, record.batch, record.tokens) == ("P1", len(PREFIX), batch, 3)
    assert len(record.ours_samples_us) == 2 * PLAN.blocks


def test_same_engine_is_a_tie_and_a_five_per_cent_slower_one_a_loss() -> None:
    clock = Clock()
    floor = noise_floor(noise(Honest(clock, 0.01), cell(), PLAN, clock))
    assert measured(Honest(clock, 0.0100), Honest(clock, 0.01, "other"), cell(), floor).verdict == Verdict.TIE
    assert measured(Honest(clock, 0.0105), Honest(clock, 0.01, "other"), cell(), floor).verdict == Verdict.LOSS


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [
        (Stale, "returned different tokens"),
        (OnlyAtZero, "gate of"),
        (Short, "not 1 lists of 3 ids"),
        (Lazy, "not 1 lists of 3 ids"),
    ],
)
def test_cheats_are_invalid_and_have_no_time(cheat: type[Honest], reason: str) -> None:
    clock = Clock()
    record = measured(cheat(clock, 0.001, "cheat"), Honest(clock, 0.01), cell())
    assert record.verdict == Verdict.INVALID
    assert reason in record.reason
    assert record.ours_us is None


def test_a_cheating_baseline_does_not_pass_either() -> None:
    clock = Clock()
    record = measured(Honest(clock, 0.01), OnlyAtZero(clock, 0.1, "strawman"), cell())
    assert record.reason.startswith("gate of strawman")


def test_right_at_position_zero_only_passes_there_and_nowhere_else() -> None:
    clock = Clock()
    assert measured(OnlyAtZero(clock, 0.001), Honest(clock, 0.01), cell(position=0)).verdict == Verdict.WIN
    assert measured(OnlyAtZero(clock, 0.001), Honest(clock, 0.01), cell(position=1)).verdict == Verdict.INVALID


CPU = Bandwidth(1e9, 1_000_000, 10**8, "toy")  # a step of 10 MB takes at least 8.55 ms


@pytest.mark.parametrize(("step_s", "verdict"), [(0.0120, "WIN"), (0.0080, "INVALID")])
def test_a_side_that_beats_the_memory_is_invalid(step_s: float, verdict: str) -> None:
    clock = Clock()
    plan = dataclasses.replace(PLAN, bandwidth=CPU)
    where = dataclasses.replace(cell(), ours_bytes=10_000_000, baseline_bytes=10_000_000)
    record, timing = compare(Honest(clock, step_s), Honest(clock, 0.05, "slow"), where, plan, clock, 0.01, score)
    assert record.verdict == verdict
    assert (timing is None) == record.reason.startswith("ours: a timed call took") == (verdict == "INVALID")
    if timing is not None:
        assert record.derived["ours_share"] == pytest.approx(10_000_000 / step_s / 1e9, rel=0.01)
        assert record.cache == "cold: working set 10.0 MB, cache 1.0 MB"
        turned, _ = compare(Honest(clock, 0.05), Honest(clock, 0.008, "fast"), where, plan, clock, 0.01, score)
        assert turned.reason.startswith("baseline: a timed call took")


def test_before_a_time_is_called_impossible_the_memory_is_measured_again() -> None:
    clock = Clock()
    where = dataclasses.replace(cell(), ours_bytes=10_000_000)
    for faster, verdict in ((2e9, "WIN"), (0.5e9, "INVALID")):
        plan = dataclasses.replace(PLAN, bandwidth=CPU, probe=lambda speed=faster: dataclasses.replace(CPU, bytes_per_s=speed))
        record, _ = compare(Honest(clock, 0.008), Honest(clock, 0.05, "slow"), where, plan, clock, 0.01, score)
        assert record.verdict == verdict
    assert record.derived == {}


def test_small_working_sets_are_flushed_before_each_call_and_large_ones_are_not() -> None:
    for size, calls in ((3_000_000, 4 * PLAN.blocks), (4_000_000, 0), (0, 0)):
        clock, flushes, resets = Clock(), [], []
        plan = dataclasses.replace(
            PLAN, bandwidth=CPU, flush=lambda done=flushes: done.append(1), reset=lambda done=resets: done.append(1)
        )
        where = dataclasses.replace(cell(), ours_bytes=size, baseline_bytes=size)
        record, _ = compare(Honest(clock, 0.01), Honest(clock, 0.05, "slow"), where, plan, clock, 0.01, score)
        assert len(flushes) == calls
        assert len(resets) == 4 * PLAN.blocks
        assert ("flushed before each call" in record.cache) == bool(calls)


def test_a_machine_that_misbehaves_gives_no_time_and_a_capped_one_is_labelled() -> None:
    class Told:
        name = "told"

        def __init__(self, reason: str) -> None:
            self.reason = reason

        def read(self) -> Reading:
            return Reading(clock_mhz=1000.0, reasons=(self.reason,))

    for reason, verdict in ((POWER_CAPPED, "WIN"), ("power brake", "INVALID")):
        clock = Clock()
        plan = dataclasses.replace(PLAN, meter=Told(reason))
        record, _ = compare(Honest(clock, 0.01), Honest(clock, 0.05, "slow"), cell(), plan, clock, 0.01, score)
        assert record.verdict == verdict
    clock = Clock()
    plan = dataclasses.replace(PLAN, meter=Told(POWER_CAPPED))
    record, _ = compare(Honest(clock, 0.01), Honest(clock, 0.05, "slow"), cell(), plan, clock, 0.01, score)
    assert record.label == "power-capped throughout"
    assert record.readings == {
        "clock_mhz": [1000.0] * (PLAN.blocks + 1), f"reason: {POWER_CAPPED}": [1.0] * (PLAN.blocks + 1)
    }  # fmt: skip
    assert record.derived["ours_cycles"] == pytest.approx(10_000 * 1000, rel=0.01)


class LeavesItRunning(Clock):
    """A device whose calls end after their window."""

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        sample, result = super().measure(work)
        return Sample(sample.device_s / 2, sample.host_s / 2, sample.device_s / 2), result


def test_a_call_that_leaves_work_behind_is_invalid() -> None:
    clock = LeavesItRunning()
    record = measured(Honest(clock, 0.01), Honest(clock, 0.05, "slow"), cell())
    assert record.reason.startswith("ours: the device was still working after the timed window in 12 of 12 calls")


def test_each_side_may_have_its_own_clock() -> None:
    clock, other = Clock(), Clock()
    record, timing = compare(
        Honest(clock, 0.01), Honest(other, 0.05, "slow"), cell(), PLAN, clock, 0.01, score, baseline_clock=other
    )
    assert timing is not None
    assert record.ratio == pytest.approx(5.0, rel=0.01)


class Late(Honest):
    """Returns at once, and writes its results into the returned lists before anybody looks."""

    timed = False

    def __init__(self, clock: Clock, step_s: float, name: str = "late") -> None:
        super().__init__(clock, step_s, name)
        self.owed: list[tuple[list[int], list[int]]] = []

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        right = super().decode(first, tokens)
        if not self.timed:
            return right
        self.clock.now_s -= 0.9 * tokens * self.step_s
        owed = [([0] * tokens, chain) for chain in right]
        self.owed += owed
        return [promised for promised, _ in owed]

    def pay(self) -> None:
        for promised, chain in self.owed:
            promised[:] = chain


def test_results_that_arrive_after_the_clock_has_stopped_do_not_count() -> None:
    clock = Clock()
    late = Late(clock, 0.01)

    def begin() -> Callable[[], float]:
        late.timed = True
        return lambda: 0.0

    def watch(run: Run) -> Run:
        for item in run:
            late.pay()
            yield item

    plan = dataclasses.replace(PLAN, witness=begin)
    record, timing = compare(late, Honest(clock, 0.01), cell(), plan, clock, 0.01, score, watch)
    assert timing is None
    assert "the two sides returned different tokens" in record.reason


def test_a_precise_run_stops_early_and_an_imprecise_one_goes_on() -> None:
    for noise_, blocks in ((0.001, 20), (0.03, 60)):
        clock = Clock()
        clock.noise = np.random.default_rng(4)
        plan = Plan(tokens=3, blocks=60, seed=1, precision=Precision())
        a, b = Honest(clock, 0.01), Honest(clock, 0.02, "slow")
        a.spread = b.spread = noise_
        record, timing = compare(a, b, cell(), plan, clock, 0.01, score)
        assert timing is not None
        assert len(timing.blocks) == blocks
        assert record.verdict == "WIN"


@pytest.mark.parametrize(("taken", "verdict"), [(0.09, "WIN"), (0.11, "INVALID")])
def test_a_busy_machine_gives_no_time_however_clear_the_ratio(taken: float, verdict: str) -> None:
    clock = Clock()
    plan = dataclasses.replace(PLAN, witness=lambda: lambda: taken)
    record, timing = compare(Honest(clock, 0.01), Honest(clock, 0.1, "slow"), cell(), plan, clock, 0.01, score)
    assert record.verdict == verdict
    assert record.reason.startswith(BUSY) == (timing is None) == (verdict == "INVALID")


def test_work_of_others_is_counted_on_our_cores_only() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 900 50 1 2 47 11 0\ncpu1 1000 0 0 0 0 0 0 0 0 0\nintr 5\n"
    assert busy_s(stat, {0}, 100.0) == 2.0
    assert busy_s(stat, {0, 1}, 100.0) == 12.0


def test_the_witness_sees_another_process() -> None:
    """One spinning child takes at least a third of one core on a machine of c cores, whatever else runs."""
    spin = [sys.executable, "-c", "while True: pass"]
    child = subprocess.Popen(spin)
    try:
        share = witness()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        assert share() > 0.33 / len(os.sched_getaffinity(0))
    finally:
        child.kill()
        child.wait()


def test_inputs_differ_between_calls_and_agree_between_sides() -> None:
    where = cell()
    drawn = [tuple(where.first_ids(call, 1)) for call in range(24)]
    assert len(set(drawn)) > 12
    assert where.first_ids(5, 1) == where.first_ids(5, 1)
    assert not {UNTIMED, UNTIMED + 1} & set(range(2 * PLAN.blocks))


def test_chains_agree_counts_the_leading_equal_ids_and_lowest_index_wins() -> None:
    scored = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 3.0]])
    assert chains_agree([0, 1, 2], scored) == 3
    assert chains_agree([1, 1, 2], scored) == 0
    assert chains_agree([0, 2, 2], scored) == 1
    with pytest.raises(ValueError, match="3 rows"):
        chains_agree([0, 1], scored)


class Keeps(Honest):
    """Shows its weights; in the timed part something writes to them."""

    def __init__(self, clock: Clock, step_s: float, name: str = "keeps") -> None:
        super().__init__(clock, step_s, name)
        self.weights = np.arange(6.0)
        self.writes = False
        self.calls = 0

    def constants(self) -> list[object]:
        return [self.weights]

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        self.calls += 1
        if self.writes and self.calls == 8:
            self.weights[3] = 0.0
        return super().decode(first, tokens)


def test_weights_that_change_while_it_runs_make_the_cell_invalid() -> None:
    clock = Clock()
    assert measured(Keeps(clock, 0.01), Honest(clock, 0.02), cell()).verdict == Verdict.WIN
    for ours_is_bad in (True, False):
        bad = Keeps(clock, 0.01)
        bad.writes = True
        sides = (bad, Honest(clock, 0.02)) if ours_is_bad else (Honest(clock, 0.02), bad)
        assert measured(*sides, cell()).reason == "keeps: its weights were changed while it ran"


@pytest.mark.parametrize("name", ["bootstrap", "RESAMPLES", "MIN_FLOOR"])
def test_statistics_that_an_engine_patches_make_the_cell_invalid(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    clock = Clock()

    class Patches(Keeps):
        def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
            if self.calls == 8:
                monkeypatch.setattr(f"amk_bench.stats.{name}", 1)
            return super().decode(first, tokens)

    reason = measured(Patches(clock, 0.01), Honest(clock, 0.02), cell()).reason
    monkeypatch.undo()
    assert reason == f"instruments were changed while it ran: amk_bench.stats.{name}"


def near(ids: Sequence[int], keep: int) -> F32:
    """The toy language, with a second token two per cent below the first."""
    out = score(ids, keep)
    return out + 0.98 * np.roll(out, 1, axis=1)


class Second(Honest):
    """Takes the second-best token after the first ``right`` of a chain."""

    right = 1

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        out = []
        for text, start in zip(self.cache, first, strict=True):
            text.append(start)
            for i in range(tokens):
                text.append((following(text) + (i >= self.right)) % VOCABULARY)
            out.append(text[-tokens:])
        self.clock.now_s += tokens * self.step_s
        return out


def test_near_ties_pass_with_slack_only_and_only_near_ones() -> None:
    clock = Clock()

    def judged(slack: float, text_score: Callable[[Sequence[int], int], F32]) -> LatencyRecord:
        plan = dataclasses.replace(PLAN, slack=slack)
        return compare(Second(clock, 0.01), Honest(clock, 0.02, "slow"), cell(), plan, clock, 0.01, text_score)[0]

    assert judged(0.03, near).verdict == Verdict.WIN
    assert judged(0.03, near).gate == "P1 within 3 %"
    assert judged(0.01, near).reason.startswith("gate of honest: greedy tokens: 1 of 3")
    assert judged(0.0, near).verdict == Verdict.INVALID
    assert judged(0.03, score).verdict == Verdict.INVALID, "nothing is near where the second token has no weight"


def test_slack_does_not_let_stale_outputs_through() -> None:
    clock = Clock()
    plan = dataclasses.replace(PLAN, slack=0.03)
    record, timing = compare(Stale(clock, 0.001, "cheat"), Honest(clock, 0.01), cell(), plan, clock, 0.01, near)
    assert timing is None
    assert record.reason.startswith("timed call ")
    assert " of ours: " in record.reason


def test_inputs_are_drawn_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, inside = Clock(), []
    real = Cell.first_ids

    def slow(self: Cell, call: int, seed: int) -> list[int]:
        inside.append(clock.timing)
        return real(self, call, seed)

    monkeypatch.setattr(Cell, "first_ids", slow)
    measure = clock.measure

    def flagged(work: Callable[[], T]) -> tuple[Sample, T]:
        clock.timing = True
        try:
            return measure(work)
        finally:
            clock.timing = False

    clock.measure = flagged  # type: ignore[method-assign]
    measured(Honest(clock, 0.01), Honest(clock, 0.02, "slow"), cell())
    assert len(inside) > 12
    assert not any(inside)
