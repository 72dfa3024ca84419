"""Verdicts: what an interval of ratios says once the machine's own noise is taken into account."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amk_bench.stats import Interval

MIN_BLOCKS = 5  # with fewer, no percentile interval of a median reaches 90 % coverage
# A tie is a claim of equality.  Where the noise floor is wider than this, two sides that differ by two per cent would pass for
# equal, so nothing is claimed there.
TIE_LIMIT = 0.015


class Verdict(enum.StrEnum):
    """Ordered as tables show them: what speaks against us first."""

    INVALID = "INVALID"
    LOSS = "LOSS"
    AMBIGUOUS = "AMBIGUOUS"
    TIE = "TIE"
    WIN = "WIN"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


def judge(interval: Interval, floor: float) -> Verdict:
    """WIN or LOSS where the whole interval lies outside the noise floor, TIE where it lies inside, else AMBIGUOUS.

    ``floor`` is relative (0.01: one per cent).  A ratio above 1 means ours is faster.  Fewer than ``MIN_BLOCKS`` blocks never
    decide, and a floor above ``TIE_LIMIT`` allows no tie.  Raises ValueError for a floor that is negative or not finite.
    """
    if not 0.0 <= floor < math.inf:
        raise ValueError(f"noise floor {floor} is not a finite number from 0 on")
    return Verdict.AMBIGUOUS if interval.blocks < MIN_BLOCKS else placed(interval.low, interval.high, floor)


def placed(low: float, high: float, floor: float) -> Verdict:
    """Where the interval of a ratio lies against the noise floor, however many blocks it rests on."""
    upper = 1.0 + floor
    lower = 1.0 / upper
    if low > upper:
        return Verdict.WIN
    if high < lower:
        return Verdict.LOSS
    if floor <= TIE_LIMIT and low >= lower and high <= upper:
        return Verdict.TIE
    return Verdict.AMBIGUOUS
