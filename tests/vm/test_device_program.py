"""What the host hands to the device VM: the tape's fragment order, the task records, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from amk_bench.device_cases import GRAPHS, RandomModel
from amk_core import resources
from amk_core.schedule import ops
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, Mode, lower
from amk_core.schedule.pack import TapeError, TapeLayout
from amk_core.targets import Target
from amk_core.vm import program
from amk_core.vm.device_tape import UNIT_BYTES, DeviceTapeLayout, fragment_order, tile_units
from amk_core.vm.driver import library_present
from amk_core.vm.plan import Dims, ProgramError


def small(mode: Mode = "fast", **config: Any) -> Schedule:
    return lower(GRAPHS["small"], ScheduleConfig(**config), Target("few", "cpu", 5), Geometry(context=64), mode)


def build(s: Schedule) -> program.Program:
    dims = Dims.of(s)
    where = TapeLayout.of(s).locate(s) if dims.exact else DeviceTapeLayout.of(s).locate(s)
    return program.build_program(s, dims, 16, lambda b: 0x1000 * (b + 1), where, 1 << 40)


def test_each_element_stands_where_its_lane_reads_it() -> None:
    rows, k = 11, 70
    tile = np.arange(rows * k, dtype=np.uint16).reshape(rows, k) + 1
    data = fragment_order(tile)
    assert data.nbytes == tile_units(rows, k) * UNIT_BYTES
    units = -(-k // 32)
    for r in range(16):
        for c in range(96):
            group, g, unit, t, i = r // 8, r % 8, c // 32, c % 32 // 8, c % 8
            got = data[((group * units + unit) * 32 + 4 * g + t) * 8 + i]
            assert got == (tile[r, c] if r < rows and c < k else 0)


def test_long_row_groups_take_turns_piece_by_piece() -> None:
    rows, k = 19, 32 * 70  # three groups, pieces of 64 and 6 units
    tile = np.arange(rows * k, dtype=np.uint16).reshape(rows, k)
    units = fragment_order(tile).reshape(-1, 32, 8)
    assert len(units) == tile_units(rows, k)
    places = [(g, u) for pair in ((0, 1), (2,)) for part in (range(64), range(64, 70)) for g in pair for u in part]
    for at, (group, unit) in enumerate(places):
        np.testing.assert_array_equal(units[at, 0], tile[8 * group, 32 * unit : 32 * unit + 8])


def test_the_tape_holds_every_weight_once_in_the_order_of_the_queues() -> None:
    s = small(tiles_per_queue=2)
    m = RandomModel(GRAPHS["small"], 1, "fast")
    layout = DeviceTapeLayout.of(s)
    data = layout.build(m.logical)
    where = layout.locate(s)
    order = s.columns.queue_task[where[s.columns.queue_task, 0] >= 0]
    ends = np.cumsum(where[order, 1] * UNIT_BYTES)
    np.testing.assert_array_equal(where[order, 0], np.concatenate([[0], ends[:-1]]))
    assert ends[-1] == layout.bytes == data.nbytes
    w, a, e, _, offset = layout.segments[3].tolist()
    matrix = m.logical(layout.weights[w])[a:e].astype(ml_dtypes.bfloat16)
    tile = data[offset : offset + tile_units(*matrix.shape) * UNIT_BYTES].view(np.uint16)
    assert tile[0] == matrix.view(np.uint16)[0, 0]
    assert int((tile != 0).sum()) == int((matrix != 0).sum())
    with pytest.raises(TapeError, match="mode='fast'"):
        DeviceTapeLayout.of(small("exact"))


def test_the_structures_have_the_sizes_that_the_device_sources_assert() -> None:
    text = (resources.vm_dir() / "device.h").read_text()
    sizes = {name: int(n) for name, n in re.findall(r"static_assert\(sizeof\((\w+)\) == (\d+)", text)}
    assert sizes == {"DeviceTask": program.TASK.itemsize, "Launch": program.LAUNCH.itemsize}
    fields = re.search(r"struct Launch \{(.*?)\};", text, re.S)
    assert fields is not None
    names = re.findall(r"(?:\*\s*|_t )(\w+);", re.sub(r"//.*", "", fields[1]).replace(", ", "; int32_t "))
    assert names == list(program.LAUNCH.names or ())


def test_records_carry_parameters_addresses_waits_and_signals(mode: Mode) -> None:
    s = small(mode, dependencies="head", tiles_per_queue=3)
    c, p = s.columns, build(s)
    np.testing.assert_array_equal(p.tasks["id"], c.queue_task)
    for record in p.tasks:
        t = int(record["id"])
        spec = ops.BY_CODE[int(record["op"])]
        words = c.par[c.par_off[t] : c.par_off[t + 1]]
        np.testing.assert_array_equal(record["par"][: len(words)], words)
        buffers = [n for n in spec.params[: program.N_BUFFER_PARAMS[spec.name]]]
        for i, name in enumerate(buffers):
            b = int(words[i])
            assert record["at"][i] == (0 if name == "w" or b < 0 else 0x1000 * (b + 1))
        waits = [
            (int(c.wait_counter[w]), s.counters[c.wait_counter[w]].per_step, int(c.wait_t[w]), int(c.wait_e[w]))
            for w in range(int(c.wait_off[t]), int(c.wait_off[t + 1]))
        ]
        more = p.more_waits[record["more_waits"] :] if len(waits) > program.INLINE_WAITS else []
        got = [*record["waits"][: min(len(waits), program.INLINE_WAITS)], *more[: max(0, len(waits) - program.INLINE_WAITS)]]
        assert record["n_waits"] == len(waits) == len(got)
        for (counter, per_step, threshold, epoch), word in zip(waits, got, strict=True):
            for step in (1, 7):
                assert word[0] == counter
                assert step * int(word[1]) + int(word[2]) == (step + epoch) * per_step + threshold
        assert record["n_signals"] == c.sig_off[t + 1] - c.sig_off[t]


def spoil(name: str, param: str, value: Callable[[Schedule], int]) -> Schedule:
    s = small()
    spec = ops.BY_NAME[name]
    t = int(np.flatnonzero(s.columns.task_op == spec.code)[0])
    s.columns.par[s.columns.par_off[t] + spec.params.index(param)] = value(s)
    return s


@pytest.mark.parametrize(
    ("name", "param", "value", "message"),
    [
        ("qkv", "h", lambda s: 10_000, "buffer parameter h does not exist"),
        ("qkv", "row1", lambda s: 10_000, "out of range"),
        ("attn", "split", lambda s: 99, "split"),
        ("attn", "kv_head", lambda s: 2, "kv_head"),
        ("attn", "block", lambda s: 64, "blocks do not cover"),
        ("gate_up", "act", lambda s: [b.name for b in s.buffers].index("embed"), "columns|bits|read-only"),
        ("down_proj", "h", lambda s: [b.name for b in s.buffers].index("act"), "in place"),
        ("down_proj", "out", lambda s: [b.name for b in s.buffers].index("act"), "columns"),
        ("down_proj", "packed", lambda s: 1, "packed"),
        ("lm_head", "tile", lambda s: 99, "amax"),
        ("sample", "n_stop_ids", lambda s: 99, "stop_ids"),
        ("embed", "vocab", lambda s: 9_999, "vocab"),
    ],
)
def test_a_task_that_does_not_fit_its_buffers_is_refused(
    name: str, param: str, value: Callable[[Schedule], int], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        build(spoil(name, param, value))


@pytest.mark.skipif(library_present(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_the_error_says_so() -> None:
    pytest.importorskip("cuda.bindings.driver")
    from amk_core.vm.driver import CudaError, Device

    with pytest.raises(CudaError, match=r"driver|card"):
        Device()
