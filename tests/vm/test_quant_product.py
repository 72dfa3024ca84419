"""The quantised product of one row of activations, the kernel's own code on the host: every loop has the documented bits."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from host_compiler import compiled
from test_quant_tape import without_products

from amk_core import resources
from amk_core.quant import QuantFormat, QuantMatrix, quantise
from amk_core.vm import program, quant_tape
from amk_core.vm.device_tape import quant_order, tile_shape
from amk_core.vm.plan import FAST_WARPS, slot_records, unit_bytes

HERE = Path(__file__).parent
# (format, K): short rows that share a slot, records for some warps only, a pair of row groups a slot, pieces, a short last piece.
CASES = (
    ("int4-g128", 576), ("int4-g128", 2048), ("int4-g128", 4096), ("int4-g128", 5632), ("int4-g64-zero-bf16", 1536),
    ("int4-g32-min", 5632), ("int8-g128", 576), ("int8-g128", 2048), ("int8", 4096), ("int8-g32", 2816),
)  # fmt: skip
ROWS = (8, 27, 144)  # one row group; an odd number of them, the last one short; two reductions
LOOPS = {"one by one": (0, 32), "pairs": (1, 64)}  # AMK_PAIRS, units of a slot


def product_library(
    folder: Path, cases: Iterable[tuple[str, int]], rows: int = 1, pairs: int = 0, units: int = 32, stage: int | None = None
) -> ctypes.CDLL:
    """The products of these formats and K, whole rows of activations staged if no ``stage`` of so many bytes is asked for."""
    kernels, cases = resources.kernels_dir(), list(cases)
    for name in ("gemv_quant.cuh", "integer_rows.cuh", "quant_pairs.cuh", "quant_row.cuh", "gemv_fast.cuh"):
        shutil.copy(kernels / name, folder / name)
    (folder / "weights.cuh").write_text(without_products((kernels / "weights.cuh").read_text()))
    activations = (kernels / "activations.cuh").read_text()
    (folder / "activations.cuh").write_text(re.sub(r"asm volatile\((?:[^()]|\([^()]*\))*\);", ";", activations))
    shutil.copy(HERE / "product_host.h", folder / "common.cuh")
    for name in ("ring.cuh", "finish.cuh", "tagged.cuh", "marked.cuh"):
        (folder / name).write_text('#include "common.cuh"\n')
    ring = (resources.vm_dir() / "ring.cuh").read_text()
    first, end = ring.index("// The units of one tile"), ring.index("// The loader warp's whole life")
    (folder / "tile_runs.inc").write_text(ring[first:end])
    formats = [QuantFormat.parse(name) for name, _ in cases]
    products = " ".join(f"PRODUCT({quant_tape.number(f)},{k})" for f, (_, k) in zip(formats, cases, strict=True))
    if stage is None:
        widest = FAST_WARPS * -(-int(quant_tape.records_of(max(k for _, k in cases))) // FAST_WARPS)
        stage = rows * widest * max(map(quant_tape.stage_bytes, formats))
    one = quant_tape.number(formats[0])
    defines = {
        "AMK_ROWS": rows, "AMK_HIDDEN": 576, "AMK_WARPS": FAST_WARPS, "AMK_QUANT": 1, "AMK_PAIRS": pairs, "AMK_SLOT_UNITS": units,
        "AMK_SLOT_BYTES": max(slot_records(units, f) * unit_bytes(f) for f in formats), "AMK_STAGE_BYTES": stage,
        "AMK_WORK_BYTES": -(-stage // 128) * 128 + rows * 1664 + 32_768, "AMK_LAYER_FORMAT": one, "AMK_HEAD_FORMAT": one,
    }  # fmt: skip
    flags = ["-O0", "-w", "-ffp-contract=off", "-shared", "-fPIC", f"-I{folder}", f"-I{HERE}", f"-I{resources.vm_dir()}"]
    flags += [*(f"-D{k}={v}" for k, v in defines.items()), f"-DPRODUCTS={products}"]
    return ctypes.CDLL(str(compiled(folder / "product.so", [HERE / "product_host.cpp"], *flags)))


def run_product(library: ctypes.CDLL, slot_units: int, m: QuantMatrix, x: np.ndarray, kind: int = 0, rows: int = 1) -> np.ndarray:
    """``x`` [rows, K] times a matrix; ``kind`` as product_host.cpp has it."""
    tape, out = quant_order(m), np.full((rows, m.rows), np.nan, np.float32)
    offset = program.unit_shape(m.format) << program.OFFSET_BITS
    block = int(program.block_units(np.array([m.k]), m.format, slot_units)[0])
    failed = library.run_product(
        quant_tape.number(m.format), m.k, ctypes.c_void_p(tape.ctypes.data), ctypes.c_uint64(offset),
        tile_shape(m.rows, m.k, m.format)[0], block, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), m.rows, kind,
    )  # fmt: skip
    assert not failed, ("", "threads wait for each other", "no such case", "a read outside a slot, or slots left over")[failed]
    return out


@pytest.fixture(scope="module", params=LOOPS)
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, int]:
    """The library of a loop, and the units of its slots."""
    pairs, units = LOOPS[request.param]
    return product_library(tmp_path_factory.mktemp("product"), CASES, pairs=pairs, units=units), units


def product(code: tuple[ctypes.CDLL, int], m: QuantMatrix, x: np.ndarray, halves: bool = False) -> np.ndarray:
    library, units = code
    return run_product(library, units, m, x, int(halves))[0]


def documented(m: QuantMatrix, x: np.ndarray) -> np.ndarray:
    """docs/quantisation.md, "Sums", step by step: what every loop has to give, bit for bit."""
    f, records = m.format, int(quant_tape.records_of(m.k))
    group = quant_tape.group_of(f)
    codes, act = np.zeros((m.rows, records * 128), np.int64), np.zeros(records * 128, np.float32)
    codes[:, : m.k] = m.codes.astype(np.int64) - (8 if f.bits == 4 and f.kind == "sym" else 0)
    act[: m.k] = (x.view(np.uint32) + 0x7FFF + (x.view(np.uint32) >> 16 & 1) & 0xFFFF0000).view(np.float32)  # handed on as bf16
    per = records * 128 // group
    table = np.zeros((2, m.rows, per), np.float32)
    for of, which in ((0, m.scale), (1, m.offset)):
        if which is not None:
            table[of, :, : which.shape[1] if f.group else per] = which.astype(np.float32)
    if f.kind == "zero":
        codes -= np.repeat(table[1], group, axis=1).astype(np.int64)
    total = np.zeros((3, FAST_WARPS, m.rows), np.float32)  # [limb][warp][row]
    for record in range(records):
        part = act[record * 128 : record * 128 + 128]
        e = max(int(np.abs(part).max().view(np.uint32)) >> 23, 21)
        q = np.rint(np.ldexp(part.astype(np.float64), 147 - e)).astype(np.int64)
        low = ((q + 128) & 255) - 128
        middle = (((q - low >> 8) + 128) & 255) - 128
        high = (q - low - (middle << 8)) >> 16
        factor = np.ldexp(np.float32(1), e - 147)
        for i in range(record * 128 // group, (record + 1) * 128 // group):
            here = slice(i * group - record * 128, (i + 1) * group - record * 128)
            for n, limb in enumerate((high, middle, low)):
                w = np.float32(factor * np.float32(256.0) ** (2 - n))
                dot = codes[:, i * group : (i + 1) * group] @ limb[here]
                add_up(total[n, record % FAST_WARPS], dot, table[0, :, i] * w)
                if f.kind == "min":
                    add_up(total[n, record % FAST_WARPS], np.full(m.rows, limb[here].sum()), table[1, :, i] * w)
    warps = (total[0] + total[1]) + total[2]
    four = [(warps[i] + warps[i + 1]) + (warps[i + 2] + warps[i + 3]) for i in (0, 4)]
    return four[0] + four[1]


def add_up(total: np.ndarray, dot: np.ndarray, factor: np.ndarray) -> None:
    """total = fma(dot, factor, total) in float32: products are exact in 64 bits of mantissa."""
    total[:] = (dot.astype(np.longdouble) * factor.astype(np.longdouble) + total.astype(np.longdouble)).astype(np.float32)


@pytest.mark.parametrize(("name", "k"), CASES)
def test_every_loop_has_the_documented_bits(name: str, k: int, code: tuple[ctypes.CDLL, int]) -> None:
    rng = np.random.default_rng([k, len(name)])
    for rows in ROWS:
        weight = rng.normal(size=(rows, k)).astype(np.float32) * rng.uniform(0.01, 3.0, (rows, 1)).astype(np.float32)
        m = quantise(weight, QuantFormat.parse(name))
        x = (rng.normal(size=k) * np.exp(rng.normal(size=k) * 2)).astype(np.float32)
        np.testing.assert_array_equal(product(code, m, x, halves=rows == ROWS[0]), documented(m, x))


def test_an_activation_that_is_not_finite_shows(code: tuple[ctypes.CDLL, int]) -> None:
    m = quantise(np.random.default_rng(1).normal(size=(27, 2048)).astype(np.float32), QuantFormat.parse("int4-g128"))
    x = np.ones(2048, np.float32)
    x[700] = np.inf
    assert np.isnan(product(code, m, x)).all()
