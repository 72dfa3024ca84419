"""Formats: names, sizes, and values that no format can hold, refused by name."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from amk_core.quant import QuantError, QuantFormat, QuantMatrix, quantise
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import BY_NAME, FORMATS

BOTH_SCALES = [f for f in FORMATS if f.scale == "f16"]


def values(rows: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)


def test_names_are_unique_and_parse_back() -> None:
    assert len(BY_NAME) == len(FORMATS) == 34
    assert all(QuantFormat.parse(f.name) == f for f in FORMATS)
    assert QuantFormat(4, 128, "zero", "bf16").name == "int4-g128-zero-bf16"
    assert QuantFormat(8, 0).name == "int8"
    assert QuantFormat(8, 32, "sym", "bf16", 8).name == "int8-g32-a8-bf16"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ((5, 64), "bits"),
        ((8, 48), "group"),
        ((4, 0), "group"),
        ((8, 64, "zero"), "kind"),
        ((4, 64, "sym", "f32"), "scale"),
        ((4, 64, "sym", "f16", 8), "activations is 8; required is 0 for 4 bits"),
        ((8, 64, "sym", "f16", 4), "required is 0 or 8"),
    ],
)
def test_a_format_that_does_not_exist_is_refused(fields: tuple, word: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(QuantError, match=word):
        QuantFormat(*fields)


def test_sizes_against_a_count_by_hand() -> None:
    """SmolLM2's K = 576: what a row group of 8 rows takes."""
    assert QuantFormat(8, 0).group_bytes(576) == 8 * 576 + 16  # nine units of 64, one scale a row
    assert QuantFormat(8, 128).group_bytes(576) == 5 * (1024 + 16)  # four records of 128 and a padded one
    assert QuantFormat(4, 128).group_bytes(576) == 5 * (512 + 16)
    assert QuantFormat(4, 64).group_bytes(576) == 5 * (512 + 32)
    assert QuantFormat(4, 32, "min").group_bytes(576) == 5 * (512 + 4 * 8 * 4)
    assert QuantFormat(4, 128).tile_bytes(9, 128) == 2 * 528  # a row group more for the ninth row
    assert QuantFormat(4, 128).groups(576) == 5
    assert QuantFormat(8, 0).groups(576) == 1


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_value_is_within_half_a_step(fmt: QuantFormat) -> None:
    """|value - weight| <= scale / 2, and a little for the rounding of the scale (and of the minimum) itself."""
    w = values(7, 200)
    m = quantise(w, fmt)
    step = np.repeat(m.scale.astype(np.float64), fmt.group or 200, axis=1)[:, :200]
    eps = 2.0**-11 if fmt.scale == "f16" else 2.0**-8
    slack = np.abs(w).max() * eps * (2 if fmt.kind == "min" else 1) + (15 * step * eps if fmt.kind != "sym" else 0)
    if fmt.kind == "zero":
        slack = slack + step / 2  # the zero point is rounded to an integer too: the ends of the range move by half a step
    assert (np.abs(m.dequantise() - w) <= step / 2 + slack).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_rounding_what_was_rounded_changes_nothing(fmt: QuantFormat) -> None:
    """Codes of the de-quantised values under the same scales are the same codes."""
    from amk_core.quant.rounding import codes

    m = quantise(values(5, 96), fmt)
    assert np.array_equal(codes(m.dequantise(), fmt, m.scale, m.offset), m.codes)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_a_group_of_zeros_is_exact(fmt: QuantFormat) -> None:
    w = values(3, 300)
    w[1] = 0
    w[2, 128:256] = 0
    got = quantise(w, fmt).dequantise()
    assert not got[1].any()
    if fmt.group:
        assert not got[2, 128:256].any()
    assert np.isfinite(got).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("value", [0.75, -0.3, 1e-6])
def test_a_group_of_equal_values_keeps_its_value(fmt: QuantFormat, value: float) -> None:
    """Within the rounding of a scale; a value below the least float16 scale keeps an absolute error of half of it."""
    got = quantise(np.full((2, 256), value, np.float32), fmt).dequantise()
    eps = 2.0**-11 if fmt.scale == "f16" else 2.0**-8
    assert np.abs(got - value).max() <= abs(value) * eps + (2.0**-25 * 15 if fmt.scale == "f16" else 0)


@pytest.mark.parametrize("fmt", BOTH_SCALES, ids=str)
def test_an_outlier_row_leaves_the_others_alone(fmt: QuantFormat) -> None:
    w = values(6, 256)
    alone = quantise(w, fmt)
    w[4] *= 4096
    with_outlier = quantise(w, fmt)
    others = np.array([0, 1, 2, 3, 5])
    assert with_outlier.take(others).same(alone.take(others))
    assert np.array_equal(with_outlier.dequantise()[4], 4096 * alone.dequantise()[4])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name_and_place(bad: float) -> None:
    w = values(4, 64)
    w[2, 17] = bad
    with pytest.raises(QuantError, match=r"L3\.down holds .* at row 2, column 17"):
        quantise(w, QuantFormat(8, 64), "L3.down")


def test_a_range_beyond_the_scale_dtype_is_refused_and_bf16_holds_it() -> None:
    w = values(2, 64)
    w[1, 3] = 3e7
    with pytest.raises(QuantError, match=r"row 1, group 0 needs a scale .* bf16"):
        quantise(w, QuantFormat(8, 64))
    got = quantise(w, QuantFormat(8, 64, "sym", "bf16")).dequantise()
    assert abs(got[1, 3] / 3e7 - 1) < 2.0**-8
    with pytest.raises(QuantError, match="minimum"):
        quantise(np.where(w > 1, w, -1e6).astype(np.float32)[:1], QuantFormat(4, 64, "min"))


def test_matrices_that_make_no_sense_are_refused() -> None:
    m = quantise(values(4, 64), QuantFormat(4, 32, "zero"))
    assert m.offset is not None
    with pytest.raises(QuantError, match="0 to 15"):
        QuantMatrix(m.format, m.codes + np.uint8(16), m.scale, m.offset)
    with pytest.raises(QuantError, match=r"scale is .* required"):
        QuantMatrix(m.format, m.codes, m.scale[:, :1], m.offset)
    with pytest.raises(QuantError, match="offset of row 0, group 1 is inf"):
        QuantMatrix(m.format, m.codes, m.scale, np.where([[0, 1]], np.float16(np.inf), m.offset).astype(np.float16))
    with pytest.raises(QuantError, match="absent"):
        QuantMatrix(m.format, m.codes, m.scale)
    with pytest.raises(QuantError, match="cannot stand below"):
        QuantMatrix.stack([m, quantise(values(4, 64), QuantFormat(4, 64, "zero"))])


def test_the_kinds_mean_what_they_say() -> None:
    """One row by hand, each kind against its formula."""
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32) % 16
    scale, offset = np.array([[0.5]], np.float16), np.array([[3]], np.float16)
    sym = QuantMatrix(QuantFormat(4, 32), codes, scale).dequantise()
    zero = QuantMatrix(QuantFormat(4, 32, "zero"), codes, scale, offset).dequantise()
    low = QuantMatrix(QuantFormat(4, 32, "min"), codes, scale, offset).dequantise()
    for j in range(32):
        assert sym[0, j] == 0.5 * (j % 16 - 8)
        assert zero[0, j] == 0.5 * (j % 16 - 3)
        assert low[0, j] == 0.5 * (j % 16) + 3
    signed = QuantMatrix(QuantFormat(8, 0, "sym", "bf16"), np.array([[-128, 127]], np.int8), np.array([[0.25]], ml_dtypes.bfloat16))
    assert signed.dequantise().tolist() == [[-32.0, 31.75]]


def test_a_config_parses_back() -> None:
    for text in ("int8", "int4-g128,head=stored", "int4-g64-min,head=int8-g128", "int8,head=int8,embed=head"):
        config = QuantConfig.parse(text)
        assert QuantConfig.parse(str(config)) == config
    assert QuantConfig.parse("int4-g64").head == QuantFormat(8, 0)
    assert QuantConfig.parse("int4-g64-bf16").head == QuantFormat(8, 0, "sym", "bf16")


@pytest.mark.parametrize(
    "text", ["int7", "int8,tail=1", "int8,head", "int8,head=int8,head=int8", "int8,embed=x", "int8,head=stored,embed=head"]
)
def test_a_config_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(QuantError):
        QuantConfig.parse(text)
