"""Statistics of paired timing: bootstrap over blocks of the log-ratio; and the noise floor from an A/A run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000  # the interval's end points move by under 2 % of its width between seeds
CONFIDENCE = 0.95

# Half the width of an interval that tells a tie at MIN_FLOOR from a slowdown of two per cent: two and a half of it fit between.
HALF_WIDTH = 0.004
FEWEST_BLOCKS = 20  # before that many, the spread itself is not known well enough to stop by
ASKED_EVERY = 5  # blocks between two looks at the interval

# Under this, a difference is not claimed on any machine, however quiet its A/A run was: code layout alone moves a time by as much.
MIN_FLOOR = 0.01
# Beyond this a machine shows one and the same thing as half as fast again: no comparison on it says anything.
MAX_FLOOR = 0.5
# An A/A run of a few blocks underestimates what the next one shows; half as much again covers most of that.
FLOOR_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Interval:
    """Ratio of times B/A (above 1: A is faster): median over blocks with its 95 % interval."""

    median: float
    low: float
    high: float
    blocks: int

    def __post_init__(self) -> None:
        if not (0.0 < self.low <= self.median <= self.high and math.isfinite(self.high)):
            raise ValueError(f"not an interval of ratios: {self.low} <= {self.median} <= {self.high}")
        if self.blocks < 1:
            raise ValueError(f"{self.blocks} blocks; at least 1 is needed")

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a difference of logarithms: 0.004 is 0.4 % to either side."""
        return 0.5 * math.log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class Precision:
    """Says when a run is precise enough: its 95 % interval is at most ``half_width`` to either side, in log-ratio.

    The rule looks at the interval's width alone, so that stopping favours no verdict.  The interval it looks at is that of the sign
    test, between two order statistics: exact for any distribution, and never narrower by the luck of a resampling.
    """

    half_width: float = HALF_WIDTH
    fewest: int = FEWEST_BLOCKS
    every: int = ASKED_EVERY

    def __call__(self, log_ratios: Sequence[float]) -> bool:
        blocks = len(log_ratios)
        if blocks < self.fewest or (blocks - self.fewest) % self.every:
            return False
        rank = outer_rank(blocks)
        ordered = sorted(log_ratios)
        return rank > 0 and ordered[blocks - rank] - ordered[rank - 1] <= 2.0 * self.half_width


def outer_rank(n: int) -> int:
    """The rank r for which the r-th smallest and r-th largest of n values enclose their median with at least 95 % confidence.

    0 where n is too small for that (Conover, Practical Nonparametric Statistics, 3.2).
    """
    below, rank = 0.0, 0
    while below + math.comb(n, rank) * 0.5**n <= (1.0 - CONFIDENCE) / 2.0:
        below += math.comb(n, rank) * 0.5**n
        rank += 1
    return rank


def bootstrap(log_ratios: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Percentile bootstrap of the median log-ratio, resampling whole blocks; seeded, hence repeatable.

    Raises ValueError on an empty or non-finite input.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"need at least one finite log-ratio a block, got {list(log_ratios)!r}")
    draws = np.random.default_rng(seed).integers(0, values.size, size=(resamples, values.size))
    medians = np.median(values[draws], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    middle = float(np.median(values))
    # Quantile interpolation may pass the sample median by one rounding.
    low, high = min(float(low), middle), max(float(high), middle)
    return Interval(math.exp(middle), math.exp(low), math.exp(high), int(values.size))


def noise_floor(a_over_a: Interval) -> float:
    """The relative difference that this machine shows between a thing and itself; what lies inside is no difference."""
    shown = max(abs(math.log(a_over_a.low)), abs(math.log(a_over_a.high)))
    return max(MIN_FLOOR, math.expm1(FLOOR_MARGIN * shown))
