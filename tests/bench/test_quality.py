"""Quality of one logit table against another, on distributions small enough to compute by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amk_bench.quality import Quality, common_prefix, compare


def test_two_positions_by_hand() -> None:
    """p = (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2) against q = uniform and q = p."""
    reference = np.log([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    ours = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0 + math.log(2)]])
    q = compare(ours, reference, [0, 2])
    assert q.positions == 2
    assert q.kl == pytest.approx(0.5 * math.log(1.5) + 0.5 * math.log(0.75))
    assert q.nll == pytest.approx(math.log(3) + math.log(2))
    assert q.reference_nll == pytest.approx(2 * math.log(2))
    assert q.agreement == 1.0
    assert q.increase == pytest.approx(math.exp((math.log(3) - math.log(2)) / 2) - 1)


def test_sums_add_up_and_blocks_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(300, 17)).astype(np.float32), rng.normal(size=(300, 17)).astype(np.float32)
    t = rng.integers(0, 17, 300)
    whole, parts = compare(a, b, t), compare(a[:5], b[:5], t[:5]) + compare(a[5:], b[5:], t[5:])
    assert whole.positions == parts.positions
    assert whole.agree == parts.agree == int((a.argmax(1) == b.argmax(1)).sum())
    assert (whole.kl, whole.nll) == pytest.approx((parts.kl, parts.nll))
    assert compare(a, a, t).kl == pytest.approx(0, abs=1e-9)
    assert isinstance(whole, Quality)


def test_tables_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        compare(np.zeros((2, 3)), np.zeros((2, 4)), [0, 1])
    with pytest.raises(ValueError, match="1 targets"):
        compare(np.zeros((2, 3)), np.zeros((2, 3)), [0])


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 3]) == 3
    assert common_prefix([1, 2, 3], [1, 9, 3]) == 1
    assert common_prefix([], [1]) == 0
