"""Activations of 8 bits on the CPU VM: integer sums, bit for bit those of numpy on any instruction set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk_core import _native
from amk_core.graph import GRAPH_SHAPES
from amk_core.quant import QuantFormat, QuantMatrix, quantise
from amk_core.quant.config import QuantConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm.plan import Dims, ProgramError, plan_build

ISAS = [n for n in _native.cpu_isas() if n != "auto"]


def product(x: np.ndarray[Any, Any], w: QuantMatrix) -> np.ndarray[Any, Any]:
    """The documented product of one row of activations with a matrix, all in float32 but for the integers."""
    most = np.abs(x).max()
    if not np.isfinite(most):
        return np.full(w.rows, np.nan, np.float32)
    scale = max(most / np.float32(127), np.float32(2.0**-126))
    q = np.rint(x / scale).astype(np.int64)
    assert np.abs(q).max() <= 127
    total, width = np.zeros(w.rows, np.longdouble), w.format.group or w.k
    for g, first in enumerate(range(0, w.k, width)):
        sums = (w.codes[:, first : first + width].astype(np.int64) @ q[first : first + width]).astype(np.float32)
        total = (sums.astype(np.longdouble) * w.scale[:, g].astype(np.longdouble) + total).astype(np.float32).astype(np.longdouble)
    out: np.ndarray[Any, Any] = total.astype(np.float32) * np.float32(scale)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["int8-a8", "int8-g32-a8", "int8-g128-a8-bf16"])
@pytest.mark.parametrize("k", [36, 576, 1100])
def test_a_product_is_an_integer_sum_with_a_scale_on_either_side(
    name: str, k: int, isa: str, case: Callable[..., Any], lab: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(k)
    rows, m = 13, 6
    w = quantise(rng.standard_normal((rows, k)).astype(np.float32), QuantFormat.parse(name))
    w.codes[3, :5] = -128  # as checkpoints of others may have them
    x = (rng.standard_normal((m, k)) * 2.0 ** rng.integers(-30, 30, (m, 1))).astype(np.float32)
    x[2], x[3, 0], x[5] = 0.0, 1e30, np.float32(1e-44)
    x[4, k - 1] = np.inf
    c = case("down_proj", "plain")
    c.params |= {"m": m, "row0": 0, "row1": rows, "k": k}
    c.arrays = {"x": x, "w": w, "h": np.zeros((m, rows), np.float32)}
    c.dtypes = {"w": name}
    bench = lab(c, isa)
    bench.fill()
    bench.run()
    want = np.stack([product(row, w) for row in x])
    assert np.isnan(want[4]).all()
    assert not want[2].any()
    np.testing.assert_array_equal(bench.result("h"), want)


def test_rows_that_no_integer_of_32_bits_sums_are_refused(case: Callable[..., Any], lab: Callable[..., Any]) -> None:
    k = (1 << 17) + 32
    c = case("down_proj", "plain")
    c.params |= {"row0": 0, "row1": 8, "k": k}
    w = QuantMatrix(QuantFormat.parse("int8-a8"), np.full((8, k), 127, np.int8), np.ones((8, 1), np.float16))
    c.arrays, c.dtypes = {"x": np.ones((1, k), np.float32), "w": w, "h": np.zeros((1, 8), np.float32)}, {"w": "int8-a8"}
    with pytest.raises(ValueError, match=f"K is {k}, integer sums with activations of 8 bits take at most 131072"):
        lab(c)


def test_the_cuda_vm_takes_them_where_integers_hold_the_sums() -> None:
    s = lower(GRAPH_SHAPES["smollm2-135m"], None, Target.cpu(4), Geometry(context=16), "fast", QuantConfig.parse("int8-a8"))
    dims = Dims.of(s)
    assert plan_build(dims, "sm_90", 232_448).defines["AMK_LAYER_FORMAT"] == 1_080_000
    with pytest.raises(ProgramError, match=r"rows of 131104 values .* at most 131072; name the format without -a8"):
        plan_build(dataclasses.replace(dims, inter=(1 << 17) + 32), "sm_90", 232_448)
