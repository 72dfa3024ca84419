"""The packed bytes: every code and scale where docs/quantisation.md says, found by arithmetic of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk_core.quant import QuantFormat, quantise
from amk_core.quant.format import FORMATS
from amk_core.quant.layout import pack, unpack


def values(rows: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(fmt=st.sampled_from(FORMATS), rows=st.integers(1, 20), k=st.integers(1, 300), seed=st.integers(0, 9))
def test_unpacking_gives_back_what_was_packed(fmt: QuantFormat, rows: int, k: int, seed: int) -> None:
    m = quantise(values(rows, k, seed), fmt)
    data = pack(m)
    assert len(data) == fmt.tile_bytes(rows, k)
    assert len(data) % 16 == 0
    assert unpack(data, fmt, rows, k).same(m)


def code_at(data: np.ndarray, fmt: QuantFormat, k_total: int, row: int, k: int) -> int:
    """The code of one value, by the page's formula."""
    per_unit = 64 if fmt.bits == 8 else 128
    units = max(1, fmt.group // per_unit)
    entry = 2 if fmt.kind == "sym" else 4
    scales = 0 if fmt.group == 0 else units * per_unit // fmt.group * 8 * entry
    record_bytes = units * 512 + scales
    records = -(-k_total // (units * per_unit))
    row_group = records * record_bytes + (8 * entry if fmt.group == 0 else 0)
    unit = k // per_unit
    base = row // 8 * row_group + unit // units * record_bytes + unit % units * 512 + row % 8 * 64
    j = k % per_unit
    if fmt.bits == 8:
        return int(data[base + j].view(np.int8))
    word = int.from_bytes(data[base + j // 8 * 4 : base + j // 8 * 4 + 4].tobytes(), "little")
    v = j % 8
    return word >> 4 * (v // 2 + (4 if v % 2 else 0)) & 15


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.scale == "f16"], ids=str)
def test_codes_lie_where_the_page_says(fmt: QuantFormat) -> None:
    rows, k = 11, 576
    m = quantise(values(rows, k), fmt)
    data = pack(m)
    rng = np.random.default_rng(1)
    for row, col in zip(rng.integers(0, rows, 300).tolist(), rng.integers(0, k, 300).tolist(), strict=True):
        assert code_at(data, fmt, k, row, col) == int(m.codes[row, col])


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_scales_lie_behind_the_codes_of_their_record(fmt: QuantFormat) -> None:
    rows, k = 9, 576
    m = quantise(values(rows, k), fmt)
    data = pack(m)
    width = fmt.entry_bytes
    for row in (0, 5, 8):
        for g in range(fmt.groups(k)):
            if fmt.group == 0:
                at = row // 8 * fmt.group_bytes(k) + 9 * 512 + row % 8 * width
            else:
                per = fmt.record_k // fmt.group
                at = row // 8 * fmt.group_bytes(k) + g // per * fmt.record_bytes
                at += fmt.record_bytes - per * 8 * width + (g % per * 8 + row % 8) * width
            assert data[at : at + 2].tobytes() == m.scale[row, g].tobytes()
            if m.offset is not None:
                assert data[at + 2 : at + 4].tobytes() == m.offset[row, g].tobytes()


def test_what_pads_is_zero() -> None:
    """Rows behind the last one and values behind K: a kernel may read them, they add nothing to a product with padded zeros."""
    fmt = QuantFormat(8, 128)
    m = quantise(values(3, 100), fmt)
    data = pack(m)
    assert not data[3 * 64 : 512].any()  # rows 3 to 7 of the first unit
    assert not data[512 + 64 - (128 - 100) : 512 + 64].any()  # values 100 to 127 of row 0
