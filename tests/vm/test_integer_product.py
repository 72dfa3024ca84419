"""Products with activations of 8 bits, the kernel's own code on the host: the bits of the CPU VM's rule, for 1 to 16 rows."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from host_compiler import compiled
from test_integer import product as on_the_cpu
from test_quant_product import product_library, run_product

from amk_core import resources
from amk_core.quant import QuantFormat, QuantMatrix, quantise
from amk_core.vm import quant_tape
from amk_core.vm.plan import FAST_WARPS

PLAIN, HALVES, WEIGHTED = range(3)  # Kind of product_host.cpp
UNITS = 32  # of a slot
SHORT = (("int8-a8", 576), ("int8-g32-a8", 576))  # a tail; records for some warps only
# Rows that share a slot, records for some warps only, several slots, row groups that take turns.
CASES = (*SHORT, ("int8-a8", 2048), ("int8-a8", 2816), ("int8-g128-a8", 2048), ("int8-g64-a8-bf16", 4352))
EVERY_CASE = (1, 7, 16)  # rows of activations


@pytest.fixture(scope="module", params=range(1, 17))
def rows(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def library(rows: int, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return product_library(tmp_path_factory.mktemp("bytes"), CASES if rows in EVERY_CASE else SHORT, rows)


def matrix(name: str, k: int, rows: int = 45) -> QuantMatrix:
    """Six row groups, the last one short: more than a reduction takes at once where there are many rows of activations."""
    rng = np.random.default_rng([k, len(name)])
    weight = rng.normal(size=(rows, k)).astype(np.float32) * rng.uniform(0.01, 3.0, (rows, 1)).astype(np.float32)
    m = quantise(weight, QuantFormat.parse(name))
    m.codes[3, :5] = -128  # as checkpoints of others may have them
    return m


def activations(rows: int, k: int) -> np.ndarray:
    """Rows of several sizes: with an outlier, of zeros, up to 1e30, tiny, infinite, with NaN, where there are so many."""
    rng = np.random.default_rng([rows, k])
    x = (rng.normal(size=(rows, k)) * 2.0 ** rng.integers(-20, 20, (rows, 1))).astype(np.float32)
    for r, at, value in ((0, 11, 1e3), (3, 0, 1e30), (5, k - 1, np.inf), (6, 9, np.nan)):
        if r < rows:
            x[r, at] = value
    x[2:3], x[4:5] = 0.0, np.float32(1e-39) * np.sign(x[4:5])
    return x


def as_bf16(x: np.ndarray) -> np.ndarray:
    """As attention and gates hand it on."""
    bits = x.view(np.uint32)
    out = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)
    return np.where(np.isfinite(x), out, x)


def documented(x: np.ndarray, m: QuantMatrix) -> np.ndarray:
    """One row of activations times a matrix: as the CPU VM with one scale a row; of groups each warp has its own records."""
    if m.format.group == 0 or not np.isfinite(x).all():
        return on_the_cpu(x, m)
    scale = max(np.abs(x).max() / np.float32(127), np.float32(2.0**-126))
    q = np.rint(x / scale).astype(np.int64)
    warps = np.zeros((FAST_WARPS, m.rows), np.float32)
    for g, first in enumerate(range(0, m.k, m.format.group)):
        here = slice(first, first + m.format.group)
        dot = (m.codes[:, here].astype(np.int64) @ q[here]).astype(np.longdouble)
        total = warps[first // 128 % FAST_WARPS]
        total[:] = (dot * m.scale[:, g].astype(np.longdouble) + total.astype(np.longdouble)).astype(np.float32)
    four = [(warps[i] + warps[i + 1]) + (warps[i + 2] + warps[i + 3]) for i in (0, 4)]
    return (four[0] + four[1]) * scale


def test_products_have_the_documented_bits(rows: int, library: ctypes.CDLL) -> None:
    for name, k in CASES if rows in EVERY_CASE else SHORT:
        m, x = matrix(name, k), activations(rows, k)
        want = np.stack([documented(row, m) for row in as_bf16(x)])
        for kind in (PLAIN, HALVES):
            np.testing.assert_array_equal(run_product(library, UNITS, m, x, kind, rows), want, f"{name}, K {k}, {kind}")


def test_activations_that_come_piece_by_piece_give_the_same_bits(tmp_path: Path) -> None:
    name, k, rows = "int8-a8", 4352, 5
    piece = rows * 16 * quant_tape.STAGE_BYTES_A8
    library = product_library(tmp_path, [(name, k)], rows, stage=piece)
    m, x = matrix(name, k), activations(rows, k)
    want = np.stack([documented(row, m) for row in as_bf16(x)])
    np.testing.assert_array_equal(run_product(library, UNITS, m, x, PLAIN, rows), want)


def test_normalised_rows_are_multiplied_without_their_norm_which_comes_at_the_end(rows: int, library: ctypes.CDLL) -> None:
    name, k = "int8-a8", 576
    m, x = matrix(name, k), activations(rows, k)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, k).astype(np.float32)
    got = run_product(library, UNITS, m, np.concatenate([x, weight[None]]), WEIGHTED, rows)
    for r in range(rows):
        inverse = 1 / np.sqrt((x[r].astype(np.float64) ** 2).mean() + 1e-5)
        want = documented(as_bf16(x[r] * weight), m) * np.float64(inverse)
        if r == 3:  # its sum of squares is beyond float32
            assert not np.abs(got[r]).any()
        else:
            np.testing.assert_allclose(got[r], want, rtol=1e-6)


QUOTIENTS = """#include "quant.h"
using namespace amk;
extern "C" void quotients(const float* x, int rows, int n, float* scale, int8_t* out) {
  for (int r = 0; r < rows; ++r) {
    uint32_t most = 0;
    for (int i = 0; i < n; ++i) most = bits_of(x[r * n + i]) << 1 >> 1 > most ? bits_of(x[r * n + i]) << 1 >> 1 : most;
    const ByteScale by = bytes_over(most);
    scale[r] = byte_scale(most);
    for (int i = 0; i < n; ++i) out[r * n + i] = int8_t(byte_of(by, x[r * n + i]));
  }
}
"""


def test_integers_are_those_of_a_division_near_every_tie_too(tmp_path: Path) -> None:
    (tmp_path / "quotients.cpp").write_text(QUOTIENTS)
    flags = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{resources.vm_dir()}"]
    code = ctypes.CDLL(str(compiled(tmp_path / "quotients.so", [tmp_path / "quotients.cpp"], *flags)))
    rng = np.random.default_rng(9)
    exponents = np.concatenate([np.arange(-149, 128), rng.integers(-149, 128, 700)])
    most = np.minimum(rng.uniform(1, 2, len(exponents)) * 2.0**exponents, np.finfo(np.float32).max).astype(np.float32)[:, None]
    scale = np.maximum(most / np.float32(127), np.float32(2.0**-126))
    ties = (np.arange(-126.5, 127) * scale.astype(np.float64)).astype(np.float32)
    ties = np.clip(ties, -most, most)
    near = [most, *(ties + np.float32(n) * np.spacing(ties) for n in range(-3, 4)), rng.uniform(-1, 1, (len(most), 99)) * most]
    x = np.ascontiguousarray(np.clip(np.concatenate(near, axis=1), -most, most).astype(np.float32))
    got, seen = np.zeros(x.shape, np.int8), np.zeros(len(x), np.float32)
    code.quotients(ctypes.c_void_p(x.ctypes.data), *x.shape, ctypes.c_void_p(seen.ctypes.data), ctypes.c_void_p(got.ctypes.data))
    np.testing.assert_array_equal(seen, scale[:, 0])
    np.testing.assert_array_equal(got, np.rint(x / scale).astype(np.int64))
