"""P0: every op against its float64 reference, on odd shapes, with outputs poisoned beforehand; and equal bits on every ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk_core import _native

# float32 rounding of sums of a few thousand terms; measured errors are 10 to 30 times smaller
TOLERANCE = 2e-5
STORED_BF16 = 2**-8  # half a unit in the last place of a stored bfloat16, relative


def test_op_agrees_with_the_float64_reference(
    op: str, shape: str, mode: str, case: Callable[..., Any], lab: Callable[..., Any]
) -> None:
    c = case(op, shape, mode=mode)
    bench = lab(c)
    bench.fill()
    want = bench.want()
    written = bench.mask(write=True, maybe=False)
    read = bench.mask(write=False)
    pool = bench.vm.pool("main")
    pool[written & ~read] = 0xFF  # poison: NaN unless it is written
    bench.run()
    changed = 0
    for name in bench.names:
        if name == "w":
            continue
        got, expect = bench.result(name), want[name]
        if got.dtype == np.int32:
            np.testing.assert_array_equal(got, expect, err_msg=name)
        else:
            where = expect != c.arrays[name]
            changed += int(where.sum())
            limit = STORED_BF16 if c.dtype(name) == "bf16" else TOLERANCE
            scale = max(1.0, float(np.abs(expect[where]).max(initial=0)))
            bits = c.dtype(name) == "b32"  # values and indices side by side: NaN patterns are legal
            if bits:
                np.testing.assert_array_equal(got.view(np.uint32)[:, 1::2], expect.astype(np.float32).view(np.uint32)[:, 1::2])
                got, expect = got[:, 0::2], expect[:, 0::2]
            assert np.isfinite(got).all(), f"{name} holds poison"
            assert np.abs(got - expect).max() <= limit * scale, name
    assert changed or op == "sample"


def test_every_isa_gives_equal_bits(op: str, shape: str, mode: str, case: Callable[..., Any], lab: Callable[..., Any]) -> None:
    results = {}
    for isa in _native.cpu_isas():
        bench = lab(case(op, shape, seed=1, mode=mode), isa)
        assert bench.vm.isa == isa
        bench.fill()
        bench.run()
        results[isa] = bench.vm.pool("main").tobytes()
    assert len(set(results.values())) == 1, f"{op}: bits differ between {', '.join(results)}"


@pytest.mark.parametrize("rows", range(1, 17))
def test_any_number_of_rows_gives_the_bits_of_one_row(rows: int, case: Callable[..., Any], lab: Callable[..., Any]) -> None:
    """The numeric plan does not know how many rows share a weight, nor how many rows a tile has."""
    rng = np.random.default_rng(rows)
    c = case("down_proj", "large")
    x = rng.standard_normal((rows, c.params["k"])).astype(np.float32)
    h = rng.standard_normal((rows, c.arrays["h"].shape[1])).astype(np.float32)
    tile = {"row0": 5, "row1": 5 + 3 * rows + 1}

    def run(first: int, last: int) -> Any:
        one = case("down_proj", "large")
        one.params |= {"m": last - first, **tile}
        one.arrays |= {"x": x[first:last], "h": h[first:last]}
        bench = lab(one)
        bench.fill()
        bench.run()
        return bench.result("h")

    together = run(0, rows)
    np.testing.assert_array_equal(together, np.concatenate([run(r, r + 1) for r in range(rows)]))


def dot_f32(a: Any, b: Any) -> np.float32:
    """The documented dot product, in numpy: fma through float64 is exact to the last bit but for double rounding, so products
    are chosen to fit 24 bits."""
    n = -(-len(a) // 32) * 32
    a, b = np.pad(a, (0, n - len(a))), np.pad(b, (0, n - len(b)))
    total = None
    for k in range(0, n, 1024):
        lanes = np.zeros(32, np.float32)
        for i in range(k, min(k + 1024, n), 32):
            lanes = (a[i : i + 32].astype(np.float64) * b[i : i + 32] + lanes).astype(np.float32)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        total = lanes[0] if total is None else total + lanes[0]
    return np.float32(total)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 576, 1024, 1025, 3000])
def test_dot_follows_the_documented_order(k: int, case: Callable[..., Any], lab: Callable[..., Any]) -> None:
    """Twelve-bit factors make products exact, so the rounding of every addition is visible in the last bits."""
    rng = np.random.default_rng(k)
    c = case("down_proj", "plain")
    rows = 11
    x = (rng.integers(-2048, 2048, (1, k)) * 2.0 ** rng.integers(-6, 7, (1, k))).astype(np.float32)
    w = (rng.integers(-2048, 2048, (rows, k)) * 2.0 ** rng.integers(-6, 7, (rows, k))).astype(np.float32)
    c.params |= {"row0": 0, "row1": rows, "k": k}
    c.arrays = {"x": x, "w": w, "h": np.zeros((1, rows), np.float32)}
    bench = lab(c)
    bench.fill()
    bench.run()
    np.testing.assert_array_equal(bench.result("h")[0], [dot_f32(x[0], row) for row in w])
