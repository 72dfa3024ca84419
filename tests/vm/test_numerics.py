"""The elementary functions of the numeric plan against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from amk_core import _native

F32 = np.float32
EXP_ULPS = 1.08  # the worst of all floats in [-87.3, 0], found by trying them


def ulps(got: Any, want: Any) -> Any:
    """Distance to a float64 value in units of the last place of its float32 rounding."""
    return np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(want.astype(F32))).astype(np.float64)


def test_exp_is_within_its_bound_on_the_softmax_range() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-87.3, 0, 2_000_001), -(10.0 ** rng.uniform(-30, 1.9, 500_000)), [0.0, -0.0]]).astype(F32)
    assert ulps(_native.exp_f32(x), np.exp(x.astype(np.float64))).max() <= EXP_ULPS


def test_exp_is_sane_everywhere() -> None:
    x = np.linspace(0, 88.7, 200_001).astype(F32)
    assert ulps(_native.exp_f32(x), np.exp(x.astype(np.float64))).max() <= EXP_ULPS
    below = np.linspace(-103.9, -87.4, 100_001).astype(F32)  # results below the normal range
    assert np.abs(_native.exp_f32(below) - np.exp(below.astype(np.float64))).max() <= 2.0**-149
    edge = np.array([-np.inf, -1e30, -104.0, 88.8, 1e30, np.inf, np.nan, 0.0, -0.0], F32)
    want = np.array([0, 0, 0, np.inf, np.inf, np.inf, np.nan, 1, 1], F32)
    np.testing.assert_array_equal(_native.exp_f32(edge), want)


@pytest.mark.parametrize("isa", _native.cpu_isas())
def test_exp_has_the_same_bits_on_every_isa(isa: str) -> None:
    x = np.concatenate([np.linspace(-110, 95, 300_007), [np.nan, np.inf, -np.inf]]).astype(F32)
    got, want = _native.exp_f32(x, isa), _native.exp_f32(x, "baseline")
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_log_is_within_two_ulp() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(0, 2, 500_000), 2.0 ** rng.uniform(-126, 127, 500_000), 1 - 2.0 ** -np.arange(1, 25)]).astype(
        F32
    )
    x = x[(x >= 2.0**-126) & (x != 1)]
    assert ulps(_native.log_f32(x), np.log(x.astype(np.float64))).max() <= 2.0
    assert _native.log_f32(np.ones(1, F32))[0] == 0


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 500_000, np.uint32)
    ties = (np.arange(0x3F80, 0x4080, dtype=np.uint32) << 16) | 0x8000
    x = (
        np.concatenate([bits, ties, ties - 1, ties + 1, [0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000001]])
        .astype(np.uint32)
        .view(F32)
    )
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(F32)
    np.testing.assert_array_equal(_native.round_bf16(x).view(np.uint32), want.view(np.uint32))
    assert np.isnan(_native.round_bf16(np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(F32))).all()


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [  # known answers published with the generator (Random123, kat_vectors)
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
         [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ],
)  # fmt: skip
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], want: list[int]) -> None:
    assert _native.philox(counter, key) == want
