"""Claims: a thing against itself is a tie, two per cent are never called equal, five per cent are always found.

The statistics are held against recorded noise: the times of thousands of calls of a thing against itself, replayed in the order
they were taken, so that bursts, drifts and lost time slices stay what they were.  ``--full`` asks the same of this machine, in real
time.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from amk_bench.busy import OTHERS_LIMIT, witness
from amk_bench.clock import Clock, CpuClock, Sample
from amk_bench.pairing import abba
from amk_bench.reference_task import BYTES, ReferenceTask
from amk_bench.stats import Interval, Precision, bootstrap, noise_floor, outer_rank
from amk_bench.verdict import Verdict, judge

T = TypeVar("T")
RECORDINGS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "noise.json").read_text("utf-8"))["recordings"]
MOST_BLOCKS = 400
REPETITIONS = 200
REAL_BLOCKS = 2000


class Replay:
    """A clock on which a call takes what it says times the recorded noise of the next recorded call."""

    name = "replay"

    def __init__(self, noise: Sequence[float], start: int) -> None:
        self._noise, self._next = noise, start

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        result = work()
        seconds = float(result) * self._noise[self._next % len(self._noise)]  # type: ignore[arg-type]
        self._next += 1
        return Sample(seconds, seconds), result


def compared(clock: Clock, ours: Callable[[int], object], theirs: Callable[[int], object], seed: int, blocks: int) -> Interval:
    run = abba(clock, ours, theirs, blocks, seed=seed, enough=Precision())
    return bootstrap([block.log_ratio for block, _ in run], seed)


@functools.cache
def floors(which: int) -> tuple[float, ...]:
    """The noise floor as each repetition would measure it, somewhere in the recording."""
    noise, rng = relative(which), np.random.default_rng(which)
    starts = rng.integers(len(noise), size=REPETITIONS).tolist()
    return tuple(
        noise_floor(compared(Replay(noise, start), lambda _: 1.0, lambda _: 1.0, number, MOST_BLOCKS))
        for number, start in enumerate(starts)
    )


def relative(which: int) -> list[float]:
    us = np.asarray(RECORDINGS[which]["us"])
    values: list[float] = (us / np.median(us)).tolist()
    return values


def verdicts(which: int, slowdown: float, seed: int) -> Counter[str]:
    """Each repetition starts elsewhere in the recording, against a noise floor that was measured elsewhere too."""
    noise, rng = relative(which), np.random.default_rng((which, seed))
    seen: Counter[str] = Counter()
    for number, (floor, start) in enumerate(zip(floors(which), rng.integers(len(noise), size=REPETITIONS).tolist(), strict=True)):
        result = compared(Replay(noise, start), lambda _: 1.0 + slowdown, lambda _: 1.0, number, MOST_BLOCKS)
        seen[str(judge(result, floor))] += 1
    return seen


EACH = pytest.mark.parametrize("which", range(len(RECORDINGS)), ids=[str(r["name"]) for r in RECORDINGS])


@EACH
def test_a_over_a_is_a_tie_nineteen_times_in_twenty(which: int) -> None:
    seen = verdicts(which, 0.0, 1)
    assert seen[Verdict.TIE] >= 0.95 * REPETITIONS, seen
    assert not seen[Verdict.WIN], seen


@EACH
def test_two_per_cent_are_never_called_equal(which: int) -> None:
    seen = verdicts(which, 0.02, 2)
    assert seen[Verdict.LOSS] + seen[Verdict.AMBIGUOUS] == REPETITIONS, seen


@EACH
def test_five_per_cent_are_always_found(which: int) -> None:
    seen = verdicts(which, 0.05, 3)
    assert seen == {Verdict.LOSS: REPETITIONS}


def test_recordings_are_long_and_not_smooth() -> None:
    """A recording shorter than a run would repeat itself; one without spread would prove nothing."""
    for recording in RECORDINGS:
        us = np.asarray(recording["us"])
        assert us.size >= 2000
        assert us.min() > 0
        assert np.quantile(us, 0.99) > 1.003 * np.median(us)


def test_a_fixed_number_of_blocks_would_not_do() -> None:
    """The rule that asks for precision is needed: ten blocks on the shared machine leave most A/A runs undecided."""
    noise = relative(0)
    undecided = 0
    for number in range(40):
        run = abba(Replay(noise, 83 * number), lambda _: 1.0, lambda _: 1.0, 10, seed=number)
        undecided += judge(bootstrap([b.log_ratio for b, _ in run]), 0.01) is not Verdict.TIE
    assert undecided > 20


def test_outer_ranks_are_those_of_the_sign_test() -> None:
    """Two-sided 95 % ranks of the median as tabulated, and by simulation for n = 30."""
    assert [outer_rank(n) for n in (5, 6, 10, 20, 50, 100)] == [0, 1, 2, 6, 18, 40]
    ordered = np.sort(np.random.default_rng(5).standard_exponential((4000, 30)), axis=1)
    rank, median = outer_rank(30), np.log(2.0)
    inside = (ordered[:, rank - 1] <= median) & (median <= ordered[:, 30 - rank])
    assert 0.94 <= inside.mean() <= 0.99


def test_precision_looks_at_width_alone() -> None:
    """Shifting all blocks, or turning the sides round, changes no decision to stop."""
    rng = np.random.default_rng(6)
    for spread in (0.001, 0.02):
        values = rng.normal(0.0, spread, 100)
        stops = [Precision()(list(values[:n])) for n in range(101)]
        assert stops == [Precision()(list(3.0 - values[:n])) for n in range(101)]
        assert not any(stops[:20])
        assert stops[20] == (spread == 0.001)


def test_the_reference_task_takes_its_bytes_and_says_what_it_hashed() -> None:
    task, longer = ReferenceTask(), ReferenceTask(0.02)
    assert (task.bytes, longer.bytes) == (BYTES, 1_020_000)
    assert task(1) == task(1) != task(2)
    assert task(1) != longer(1)
    with pytest.raises(ValueError, match="slowdown"):
        ReferenceTask(-0.1)


def really(slowdown: float, seed: int) -> tuple[Verdict, float, float]:
    """(verdict, floor, share of the cores that others took) on this machine, in real time."""
    others = witness()
    floor = noise_floor(compared(CpuClock(), ReferenceTask(), ReferenceTask(), seed, REAL_BLOCKS))
    result = compared(CpuClock(), ReferenceTask(slowdown), ReferenceTask(), seed + 1, REAL_BLOCKS)
    return judge(result, floor), floor, others()


@pytest.mark.amk_full("the judge on this machine, in real time")
@pytest.mark.parametrize(("slowdown", "allowed"), [(0.0, {"TIE"}), (0.02, {"LOSS", "AMBIGUOUS"}), (0.05, {"LOSS"})])
def test_the_judge_on_this_machine(slowdown: float, allowed: set[str]) -> None:
    """A/A at least 19 of 20, planted slowdowns always.  Beside other work the answer stands all the same, it only takes longer."""
    got = [really(slowdown, 100 * number) for number in range(20)]
    wrong = [g for g in got if g[0] not in allowed]
    busy = max(g[2] for g in got)
    assert len(wrong) <= (1 if slowdown == 0.0 else 0), (
        f"{wrong} at {slowdown}; others took up to {100 * busy:.0f} %{'' if busy < OTHERS_LIMIT else ': a busy machine'}"
    )
