"""P4's arithmetic on logits whose errors are known."""

from __future__ import annotations

import numpy as np
import pytest

from amk_bench.accuracy import Errors, errors, matched, upper_bound


def noisy(reference: np.ndarray, scale: float, seed: int) -> np.ndarray:
    return (reference + scale * np.random.default_rng(seed).standard_normal(reference.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((320, 500)) * 3


def test_errors_are_those_of_the_definition(reference: np.ndarray) -> None:
    x = noisy(reference, 0.1, 1)
    e = errors(x, reference)
    i = 300  # in the second piece
    p, q = (np.exp(r - r.max()) / np.exp(r - r.max()).sum() for r in (reference[i], x[i].astype(np.float64)))
    assert e.kl[i] == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-9)
    assert e.rms[i] == pytest.approx(float(np.sqrt(((x[i] - reference[i]) ** 2).mean())), rel=1e-9)
    assert errors(reference, reference).kl.max() < 1e-14
    with pytest.raises(ValueError, match="cannot be compared"):
        errors(x[:5], reference)


@pytest.mark.parametrize(("ours", "theirs", "passes"), [(0.01, 0.1, True), (0.08, 0.1, True), (0.12, 0.1, False)])
def test_only_a_smaller_error_is_accuracy_matched(reference: np.ndarray, ours: float, theirs: float, passes: bool) -> None:
    a, b = errors(noisy(reference, ours, 1), reference), errors(noisy(reference, theirs, 2), reference)
    for m in matched(a, b, seed=3):
        assert m.passed is passes
        assert m.bound >= m.ours - m.theirs
        assert m.positions == 320


def test_the_bound_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = sum(upper_bound(rng.standard_normal(400), seed) >= 0 for seed in range(300))
    assert 0.90 <= covered / 300 <= 0.99


def test_neighbours_that_share_their_error_widen_the_bound() -> None:
    rng = np.random.default_rng(6)
    single = rng.standard_normal(640)
    shared = np.repeat(rng.standard_normal(40), 16)
    single, shared = ((x - x.mean()) / x.std() for x in (single, shared))
    assert upper_bound(shared, 1) > 2 * upper_bound(single, 1)


def test_a_nan_never_passes() -> None:
    good = Errors(np.full(20, 1.0), np.full(20, 1.0))
    bad = Errors(np.array([np.nan, *[0.0] * 19]), np.zeros(20))
    kl, rms = matched(bad, good, 0)
    assert not kl.passed
    assert rms.passed
    with pytest.raises(ValueError, match="paired"):
        matched(good, Errors(np.ones(3), np.ones(3)), 0)
