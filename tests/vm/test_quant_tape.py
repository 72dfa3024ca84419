"""Quantised weights on the device tape: what lanes read is what the matrix holds, on the host and without a card."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest
from host_compiler import compiled

from amk_bench.device_cases import GRAPHS, RandomModel
from amk_core.quant import QuantFormat, QuantMatrix, quantise
from amk_core.quant import layout as quant_layout
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import FORMATS, QuantError
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
SHAPES = [(11, 576), (16, 200)]


def matrix(fmt: QuantFormat, rows: int, k: int) -> QuantMatrix:
    rng = np.random.default_rng([rows, k, fmt.bits])
    return quantise(rng.normal(size=(rows, k)).astype(np.float32) * rng.uniform(0.01, 3.0, (rows, 1)).astype(np.float32), fmt)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quant")
    text = (ROOT / "kernels" / "weights.cuh").read_text()
    own = folder / "weights.inc"
    own.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith(("#include", "#pragma once"))))
    cases = " ".join(f"CASE({quant_tape.number(f)})" for f in FORMATS)
    flags = ["-O1", "-ffp-contract=off", f'-DWEIGHTS_TEXT="{own}"', f"-DFORMATS={cases}", f"-I{ROOT / 'vm'}"]
    return compiled(folder / "quant", [Path(__file__).with_name("quant_host.cpp")], *flags)


def run(host: Path, mode: str, fmt: QuantFormat, rows: int, k: int, data: np.ndarray, folder: Path) -> np.ndarray:
    file = folder / "tape.bin"
    data.tofile(file)
    done = subprocess.run([str(host), mode, str(quant_tape.number(fmt)), str(k), str(rows), str(file)], capture_output=True)
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


@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_what_the_lanes_take_of_the_records_is_the_matrix(fmt: QuantFormat, rows: int, k: int, host: Path, tmp_path: Path) -> None:
    m = matrix(fmt, rows, k)
    tape = quant_order(m)
    groups, records, per = -(-rows // 8), -(-k // 128), 128 // quant_tape.group_of(fmt)
    assert tape.nbytes == groups * records * quant_tape.record_bytes(fmt) == tile_shape(rows, k, fmt)[1]
    out = run(host, "fast", fmt, rows, k, tape, tmp_path).reshape(groups, records, 8, 4, 32 + 4 * per)  # lane: (g, t)
    codes = out[..., :32].reshape(groups, records, 8, 4, 4, 8)  # [group, record, g, t, s, i] -> row, value 32 s + 8 t + i
    codes = codes.transpose(0, 2, 1, 4, 3, 5).reshape(groups * 8, records * 128)
    entries = out[..., 32:].reshape(groups, records, 8, 4, 2, per, 2)
    np.testing.assert_array_equal(entries, np.broadcast_to(entries[:, :, :1], entries.shape))  # all g alike
    # [group, record, t, entry, group of K, one of two rows] -> [entry, row 2 t + one, group of K]
    entries = entries[:, :, 0].transpose(3, 0, 2, 5, 1, 4).reshape(2, groups * 8, records * per)
    scale, minimum = (np.repeat(x, quant_tape.group_of(fmt), axis=1)[:rows, :k].astype(np.float64) for x in entries)
    value = codes[:rows, :k] * scale + minimum
    np.testing.assert_array_equal(value.astype(np.float32), m.dequantise())


def test_every_format_has_its_own_number() -> None:
    numbers = [quant_tape.number(f) for f in FORMATS]
    assert len(set(numbers)) == len(FORMATS)
    assert 0 not in numbers
    assert quant_tape.number(QuantFormat.parse("int4-g128-zero-bf16")) == 41286
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
