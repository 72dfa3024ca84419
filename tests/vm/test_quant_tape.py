"""Quantised weights on the device tape: what lanes read is what the matrix holds, on the host and without a card."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from host_compiler import compiled

from amk_bench.device_cases import GRAPHS, RandomModel
from amk_core.quant import QuantFormat, QuantMatrix, quantise
from amk_core.quant import layout as quant_layout
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import FORMATS as ALL
from amk_core.quant.format import QuantError
from amk_core.quant.source import QuantWeights
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.pack import TapeError
from amk_core.targets import Target
from amk_core.vm import program, quant_tape
from amk_core.vm.device_tape import DeviceTapeLayout, quant_order, tile_shape
from amk_core.vm.plan import Dims, ProgramError, plan_build

ROOT = Path(__file__).parents[2]
FORMATS = [f for f in ALL if not f.activations]  # the others have the same bytes; their products: test_integer_product.py
SHAPES = [(11, 576), (16, 200)]


def matrix(fmt: QuantFormat, rows: int, k: int) -> QuantMatrix:
    rng = np.random.default_rng([rows, k, fmt.bits])
    return quantise(rng.normal(size=(rows, k)).astype(np.float32) * rng.uniform(0.01, 3.0, (rows, 1)).astype(np.float32), fmt)


def without_products(text: str) -> str:
    """kernels/weights.cuh without the instructions that a host stands in for."""
    for name in ("mma_bf16", "mma_s8", "mma_s8_from"):
        start = text.index(f"__device__ __forceinline__ void {name}(")
        text = text[:start] + text[text.index("\n}\n", start) + 3 :]
    assert "asm" not in text
    return text


def host_text() -> str:
    """The same without its includes."""
    text = without_products((ROOT / "kernels" / "weights.cuh").read_text())
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("#include", "#pragma once")))


@pytest.fixture(scope="module", params=[0, 1], ids=["rows", "halves"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quant")
    own = folder / "weights.inc"
    own.write_text(host_text())
    cases = " ".join(f"CASE({quant_tape.number(f)})" for f in FORMATS)
    flags = ["-O1", "-ffp-contract=off", "-pthread", f'-DWEIGHTS_TEXT="{own}"', f"-DFORMATS={cases}", f"-DHALVES={request.param}"]
    return compiled(folder / "quant", [Path(__file__).with_name("quant_host.cpp")], *flags, f"-I{ROOT / 'vm'}")


def run(
    host: Path, mode: str, fmt: QuantFormat, rows: int, k: int, data: np.ndarray, folder: Path, x: np.ndarray | None = None
) -> np.ndarray:
    tape, activations = folder / "tape.bin", folder / "activations.bin"
    data.tofile(tape)
    (np.zeros(k, np.float32) if x is None else x).tofile(activations)
    command = [str(host), mode, str(quant_tape.number(fmt)), str(k), str(rows), str(tape), str(activations)]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.returncode
    return np.frombuffer(done.stdout, np.float32)


@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_exact_mode_computes_the_values_of_the_matrix_from_the_packed_bytes(
    fmt: QuantFormat, rows: int, k: int, host: Path, tmp_path: Path
) -> None:
    m = matrix(fmt, rows, k)
    got = run(host, "exact", fmt, rows, k, quant_layout.pack(m), tmp_path).reshape(rows, k)
    np.testing.assert_array_equal(got, m.dequantise())


def integers(x: np.ndarray) -> np.ndarray:
    """Activations as the kernels round them: integers of 21 bits over a power of two for each 128 of them."""
    out = np.zeros(len(x))
    for at in range(0, len(x), 128):
        part = x[at : at + 128].astype(np.float64)
        unit = 2.0 ** (np.floor(np.log2(max(np.abs(part).max(), 1e-30))) + 1 - 21)
        out[at : at + 128] = np.rint(part / unit) * unit
    return out


@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_a_warp_gives_the_product_of_the_matrix_and_the_activations(
    fmt: QuantFormat, rows: int, k: int, host: Path, tmp_path: Path
) -> None:
    m = matrix(fmt, rows, k)
    tape = quant_order(m)
    groups, records = -(-rows // 8), -(-k // 128)
    assert tape.nbytes == groups * records * quant_tape.record_bytes(fmt) == tile_shape(rows, k, fmt)[1]
    rng = np.random.default_rng(5)
    x = (rng.normal(size=k) * np.exp(rng.normal(size=k) * 2)).astype(np.float32)  # outliers among them
    got = run(host, "fast", fmt, rows, k, tape, tmp_path, x)[:rows]
    values, rounded = m.dequantise().astype(np.float64), integers(x)
    size = np.abs(values) @ np.abs(rounded) + (np.abs(m.offset.astype(float)).max() if fmt.kind == "min" else 0) * np.abs(x).sum()  # type: ignore[union-attr]
    assert (np.abs(got - values @ rounded) <= 1e-6 * size).all()


def test_one_weight_and_one_activation_at_a_time_meet_exactly(host: Path, tmp_path: Path) -> None:
    """Any other order of bytes, limbs or scales would give 0 or another number."""
    for name in ("int8-g32", "int4-g32-min", "int4-g64-zero", "int4-g128"):
        fmt = QuantFormat.parse(name)
        m = matrix(fmt, 8, 200)
        tape = quant_order(m)
        for k in (0, 5, 31, 32, 77, 127, 128, 199):
            x = np.zeros(200, np.float32)
            x[k] = np.float32(1234.5678)
            got = run(host, "fast", fmt, 8, 200, tape, tmp_path, x)[:8]
            want = m.dequantise()[:, k].astype(np.float64) * integers(x)[k]
            np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-3)


def test_activations_give_the_same_bits_whether_they_are_handed_on_as_pairs_of_bf16_or_as_floats(
    host: Path, tmp_path: Path
) -> None:
    fmt = QuantFormat.parse("int4-g64-zero")
    m = matrix(fmt, 16, 576)
    x = np.random.default_rng(8).normal(size=576).astype(np.float32)
    pairs, floats, unrounded = (run(host, how, fmt, 16, 576, quant_order(m), tmp_path, x) for how in ("pairs", "floats", "fast"))
    np.testing.assert_array_equal(pairs, floats)
    assert (pairs != unrounded).any()


def test_the_kernel_takes_what_was_handed_on_in_these_two_ways_and_no_other() -> None:
    text = (ROOT / "kernels" / "gemv_quant.cuh").read_text()
    polled, plain = text.split("auto stage = ")[1].split("stage(0, true);")[0].split("constexpr int kMost = Source::kHalves")
    for branch, taken in ((polled, "x = Limbs::of_pairs(from[0].x, from[0].z);"), (plain, "x = Limbs::of_floats(x);")):
        assert re.search(r"if constexpr \(Source::kNormed\) \{[^{}]*\} else \{\s*" + re.escape(taken), branch)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_activation_that_is_not_finite_shows(bad: float, host: Path, tmp_path: Path) -> None:
    fmt = QuantFormat.parse("int8-g128")
    x = np.ones(200, np.float32)
    x[3] = bad
    assert np.isnan(run(host, "fast", fmt, 16, 200, quant_order(matrix(fmt, 16, 200)), tmp_path, x)).all()


def test_activations_of_any_size_keep_their_values(host: Path, tmp_path: Path) -> None:
    fmt = QuantFormat.parse("int8-g128")
    m = matrix(fmt, 16, 200)
    for size in (0.0, 1e-30, 1e-10, 1.0, 1e10, 1e30):
        x = np.full(200, size, np.float32)
        got = run(host, "fast", fmt, 16, 200, quant_order(m), tmp_path, x)
        np.testing.assert_allclose(got, m.dequantise().astype(np.float64) @ x, rtol=1e-5, atol=size * 1e-3)


def test_every_format_has_its_own_number() -> None:
    numbers = [quant_tape.number(f) for f in ALL]
    assert len(set(numbers)) == len(ALL)
    assert 0 not in numbers
    assert quant_tape.number(QuantFormat.parse("int4-g128-zero-bf16")) == 41286
    assert quant_tape.number(QuantFormat.parse("int8-g32-a8-bf16")) == 1_080_325
    assert quant_tape.number(None) == 0


def test_a_zero_point_that_is_no_small_integer_is_refused_with_its_place() -> None:
    m = matrix(QuantFormat.parse("int4-g64-zero"), 8, 128)
    offset = m.offset.copy()  # type: ignore[union-attr]
    offset[3, 1] = 7.5
    with pytest.raises(QuantError, match=r"row 3, group 1 is 7\.5"):
        quant_tape.records(dataclasses.replace(m, offset=offset))


# -- schedules
def quantised(weights: str, model: str = "small", **config: object) -> Schedule:
    few = Target("few", "cpu", 5)
    return lower(GRAPHS[model], ScheduleConfig(**config), few, Geometry(context=64), "fast", QuantConfig.parse(weights))  # type: ignore[arg-type]


def provider(weights: str, model: str = "small") -> QuantWeights:
    m = RandomModel(GRAPHS[model], 1, "fast")
    return QuantWeights(GRAPHS[model], QuantConfig.parse(weights), m.weight)


@pytest.mark.parametrize("weights", ["int8-g128,head=int8", "int4-g32-min,head=stored", "int4-g128"])
def test_the_tape_holds_every_tile_where_the_program_says(weights: str) -> None:
    s = quantised(weights, tiles_per_queue=2)
    source = provider(weights)
    layout = DeviceTapeLayout.of(s)
    data = layout.build(source.on_tape)
    dims = Dims.of(s)
    build = plan_build(dims, "sm_90", 232_448)
    p = program.build_program(s, dims, build.defines["AMK_SLOT_UNITS"], lambda b: 0x1000 * (b + 1), layout.locate(s), 1 << 40)
    start, end = program.tile_span(p.tiles)
    np.testing.assert_array_equal(start[1:], end[:-1])
    assert (start[0], end[-1]) == (0, layout.bytes)
    w, a, e, _, offset = layout.segments[-1].tolist()
    name = layout.weights[w]
    tile = layout.tile(source.on_tape(name), a, e)
    np.testing.assert_array_equal(data[offset : offset + tile.nbytes], tile)
    shape = p.tiles["offset"] >> np.uint64(program.OFFSET_BITS)
    head = source.config.head
    assert set(shape.tolist()) == {program.unit_shape(source.config.layers), program.unit_shape(head)}
    assert (program.unit_shape(None), program.unit_shape(QuantFormat.parse("int8"))) == (32, 65 | 2 << 8)
    slot = build.defines["AMK_SLOT_BYTES"]
    per_unit = (end - start) // p.tiles["units"]
    short = p.tiles["block"] * per_unit  # blocks of whole row groups that fit a slot
    assert int(short.max()) <= slot


def test_a_weight_in_another_format_than_the_schedule_expects_is_refused() -> None:
    layout = DeviceTapeLayout.of(quantised("int8"))
    with pytest.raises(TapeError, match="given as int4-g64, the schedule expects int8"):
        layout.build(provider("int4-g64,head=int8").on_tape)
    with pytest.raises(TapeError, match="given as stored, the schedule expects int8"):
        layout.build(RandomModel(GRAPHS["small"], 1, "fast").logical)


def test_layers_of_two_formats_are_no_device_program() -> None:
    s = quantised("int8")
    i = next(i for i, b in enumerate(s.buffers) if b.name == "L1.qkv")
    buffers = list(s.buffers)
    buffers[i] = dataclasses.replace(buffers[i], dtype="int4-g64")
    with pytest.raises(ProgramError, match="int4-g64, int8; a device program has one format"):
        Dims.of(dataclasses.replace(s, buffers=tuple(buffers)))


def test_a_task_whose_weight_has_another_format_than_the_kernels_is_refused() -> None:
    s = quantised("int8")
    dims = dataclasses.replace(Dims.of(s), layers=QuantFormat.parse("int8-g128"))
    with pytest.raises(ProgramError, match=r"the weight is not \[rows, 192\] of int8-g128"):
        program.check_tasks(s, dims)
