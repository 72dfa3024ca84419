"""Claims: the parity numbers are those of the definitions, computed another way, and NaN never passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk_bench import parity


def test_nll_sum_by_hand() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=np.float64))
    assert parity.nll_sum(logits, np.array([0, 2])) == pytest.approx(-math.log(0.5) - math.log(0.8), abs=1e-15)


def test_nll_sum_neither_overflows_nor_loses_digits() -> None:
    logits = np.array([[1e4, 1e4 - 1.0, -1e4]], dtype=np.float32)
    assert parity.nll_sum(logits, np.array([1])) == pytest.approx(1.0 + math.log1p(math.exp(-1.0)), rel=1e-12)


@given(st.integers(1, 600), st.floats(-50, 50))
@settings(max_examples=20, deadline=None)
def test_nll_sum_adds_over_rows_and_ignores_a_shift(rows: int, shift: float) -> None:
    rng = np.random.default_rng(rows)
    logits, targets = rng.normal(size=(rows, 7)), rng.integers(0, 7, rows)
    whole = parity.nll_sum(logits, targets)
    assert whole == pytest.approx(sum(parity.nll_sum(logits[i : i + 1], targets[i : i + 1]) for i in range(rows)), rel=1e-12)
    assert parity.nll_sum(logits + shift, targets) == pytest.approx(whole, rel=1e-9)


def test_logit_distance_finds_the_row_and_takes_the_scale_of_the_reference() -> None:
    reference = np.zeros((300, 4), np.float32)
    reference[7, 1] = -8.0
    ours = reference.copy()
    ours[290, 3] = 0.004
    found = parity.logit_distance(ours, reference)
    assert (found.row, found.largest) == (290, 8.0)
    assert found.relative == pytest.approx(0.0005)
    with pytest.raises(ValueError, match="cannot be compared"):
        parity.logit_distance(ours[:299], reference)


def test_nan_is_infinitely_far() -> None:
    reference = np.ones((3, 4), np.float32)
    ours = reference.copy()
    ours[1, 2] = np.nan
    assert parity.logit_distance(ours, reference).relative == math.inf


def test_bits_tell_zero_from_minus_zero_and_shape_from_shape() -> None:
    zero = np.zeros((2, 3), np.float32)
    assert parity.bits(zero) == parity.bits(zero.copy())
    assert parity.bits(zero) != parity.bits(-zero)
    assert parity.bits(zero) != parity.bits(zero.reshape(3, 2))
    assert parity.bits(zero) != parity.bits(zero.astype(np.float64))


def test_top2_margin() -> None:
    assert parity.top2_margin(np.array([[3.0, 1.0, 2.5], [4.0, 4.0, 0.0]])).tolist() == [0.5, 0.0]
