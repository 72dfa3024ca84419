"""Claims: intervals behave as intervals, verdicts follow from interval and floor alone, and a planted slowdown is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk_bench.clock import CpuClock, LedgerTimer, Sample
from amk_bench.pairing import Block, abba
from amk_bench.stats import MIN_FLOOR, Interval, bootstrap, noise_floor
from amk_bench.verdict import MIN_BLOCKS, TIE_LIMIT, Verdict, judge

T = TypeVar("T")
RATIOS = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=12)


@dataclass
class SyntheticClock:
    """Time passes only through ``spend``; each measured call spends what its work asked for."""

    now_s: float = 0.0
    name: str = "synthetic"
    order: list[str] = field(default_factory=list)

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        start = self.now_s
        result = work()
        return Sample(self.now_s - start, self.now_s - start), result


def side(clock: SyntheticClock, seconds: float, seed: int, noise: float = 0.003) -> Callable[[int], str]:
    """A call that takes ``seconds`` with log-normal noise."""
    rng = np.random.default_rng(seed)

    def call(number: int) -> str:
        clock.spend(seconds * math.exp(noise * rng.standard_normal()))
        return f"call {number}"

    return call


def run(ours_s: float, baseline_s: float, seed: int, blocks: int = 10) -> Interval:
    clock = SyntheticClock()
    done = [block for block, _ in abba(clock, side(clock, ours_s, seed), side(clock, baseline_s, seed + 1000), blocks)]
    return bootstrap([b.log_ratio for b in done])


@pytest.mark.parametrize("seed", range(20))
def test_a_over_a_is_a_tie_and_five_per_cent_slower_is_a_loss(seed: int) -> None:
    floor = noise_floor(run(1.0, 1.0, seed + 500))
    assert judge(run(1.0, 1.0, seed), floor) is Verdict.TIE
    assert judge(run(1.05, 1.0, seed), floor) is Verdict.LOSS
    assert judge(run(1.0, 1.05, seed), floor) is Verdict.WIN


def test_linear_drift_cancels_inside_a_block() -> None:
    """A machine that slows by 1 % a call: ABBA sees ratio 1, where AABB would see about 2 %."""
    clock = SyntheticClock()

    def drifting(_: int) -> None:
        clock.spend(1.0 + 0.01 * clock.now_s)

    for block, _ in abba(clock, drifting, drifting, 4):
        assert abs(block.log_ratio) < 2e-4


def test_blocks_alternate_and_pairs_get_the_same_inputs() -> None:
    clock = SyntheticClock()
    calls: list[tuple[str, int]] = []

    def note(name: str) -> Callable[[int], None]:
        def call(number: int) -> None:
            calls.append((name, number))
            clock.spend(1.0)

        return call

    done = list(abba(clock, note("A"), note("B"), 40, seed=1))
    for index, (block, outputs) in enumerate(done):
        assert [(c.side, c.number) for c in outputs] == calls[4 * index : 4 * index + 4]
        assert "".join(c.side for c in outputs) == block.order
        assert {c.number for c in outputs} == {2 * index, 2 * index + 1}
        assert [c.number for c in outputs if c.side == "A"] == [c.number for c in outputs if c.side == "B"]
    orders = [block.order for block, _ in done]
    assert all(sorted(orders[i : i + 2]) == ["ABBA", "BAAB"] for i in range(0, 40, 2))
    assert 2 < sum(order == "ABBA" for order in orders[::2]) < 18  # which one comes first is drawn
    assert orders == [block.order for block, _ in abba(clock, note("A"), note("B"), 40, seed=1)]
    with pytest.raises(ValueError, match="0 blocks"):
        next(abba(clock, note("A"), note("B"), 0))


def test_ratio_above_one_means_ours_is_faster() -> None:
    fast, slow = (Sample(1.0, 1.0),) * 2, (Sample(2.0, 2.0),) * 2
    assert math.exp(Block(fast, slow, "ABBA").log_ratio) == pytest.approx(2.0)


@given(RATIOS, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_bootstrap_interval_holds_the_median_and_lies_within_the_data(values: list[float], seed: int) -> None:
    result = bootstrap(values, seed, resamples=300)
    assert result.low <= result.median <= result.high
    assert result.median == pytest.approx(math.exp(float(np.median(values))))
    assert math.exp(min(values)) * (1 - 1e-12) <= result.low
    assert result.high <= math.exp(max(values)) * (1 + 1e-12)
    assert bootstrap(values, seed, resamples=300) == result


@given(RATIOS)
@settings(max_examples=60, deadline=None)
def test_swapping_the_sides_inverts_the_median(values: list[float]) -> None:
    swapped = bootstrap([-v for v in values], resamples=50)
    assert swapped.median == pytest.approx(1.0 / bootstrap(values, resamples=50).median)


def test_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    """200 experiments of 10 blocks with a true ratio of 1: a 95 % interval misses about 5 %, never 15 %."""
    rng = np.random.default_rng(7)
    missed = 0
    for seed in range(200):
        result = bootstrap(rng.normal(0.0, 0.02, size=10), seed, resamples=800)
        missed += not result.low <= 1.0 <= result.high
    assert missed <= 24


@given(st.floats(0.2, 5.0), st.floats(1.0, 1.5), st.floats(1.0, 1.5), st.floats(0.0, 0.3))
def test_verdict_is_exactly_where_the_interval_lies(median: float, down: float, up: float, floor: float) -> None:
    verdict = judge(Interval(median, median / down, median * up, 10), floor)
    mirrored = judge(Interval(1 / median, 1 / (median * up), down / median, 10), floor)
    opposite = {Verdict.WIN: Verdict.LOSS, Verdict.LOSS: Verdict.WIN}
    # Rounding of 1/x may move a value across the floor only when it stands on it.
    edges = [median / down, median * up]
    if all(abs(math.log(e)) - math.log1p(floor) > 1e-9 or abs(math.log(e)) - math.log1p(floor) < -1e-9 for e in edges):
        assert mirrored is opposite.get(verdict, verdict)
    assert (verdict is Verdict.WIN) == (median / down > 1 + floor)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.03, 1.10, "WIN"), (0.90, 0.97, "LOSS"), (0.995, 1.01, "TIE"), (1.01, 1.05, "AMBIGUOUS"), (0.90, 1.10, "AMBIGUOUS")],
)
def test_verdicts_at_a_floor_of_one_and_a_half_per_cent(low: float, high: float, expected: str) -> None:
    assert judge(Interval((low + high) / 2, low, high, 10), 0.015) == expected


def test_where_the_floor_is_wide_nothing_is_called_equal() -> None:
    inside = Interval(1.0, 0.999, 1.001, 10)
    assert judge(inside, TIE_LIMIT) is Verdict.TIE
    assert judge(inside, 1.01 * TIE_LIMIT) is Verdict.AMBIGUOUS


def test_a_floor_above_one_leaves_only_a_factor_to_be_seen_and_no_floor_is_refused() -> None:
    assert judge(Interval(2.0, 1.9, 2.1, 10), 1.6) is Verdict.AMBIGUOUS
    assert judge(Interval(4.0, 3.9, 4.1, 10), 1.6) is Verdict.WIN
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise floor"):
            judge(Interval(2.0, 1.9, 2.1, 10), bad)


def test_too_few_blocks_never_decide() -> None:
    assert judge(Interval(2.0, 1.9, 2.1, MIN_BLOCKS - 1), 0.01) is Verdict.AMBIGUOUS
    assert judge(Interval(2.0, 1.9, 2.1, MIN_BLOCKS), 0.01) is Verdict.WIN


def test_a_quiet_machine_still_has_a_floor_and_a_loud_one_a_higher() -> None:
    assert noise_floor(Interval(1.0, 1.0, 1.0, 5)) == MIN_FLOOR
    assert noise_floor(Interval(1.0, 0.95, 1.02, 5)) > 0.05


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf, 1.0]])
def test_bootstrap_refuses_what_is_no_measurement(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite log-ratio"):
        bootstrap(bad)


def test_clock_keeps_its_time_source_when_the_work_patches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter_ns", lambda: 0)
    sample, result = CpuClock().measure(lambda: sum(range(100_000)))
    assert result == 4_999_950_000
    assert sample.device_s > 1e-5


def test_ledger_advances_by_what_is_entered_only() -> None:
    ledger = LedgerTimer()
    start = ledger()
    ledger.advance(0.25)
    assert ledger() - start == 0.25
    with pytest.raises(ValueError, match="positive"):
        ledger.advance(0.0)
