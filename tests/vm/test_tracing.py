"""Records of a traced launch, made up with known times: the tables and the Perfetto file say those times again."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import GRAPHS
from amk_core import resources
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import ops
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import nvrtc, tracing
from amk_core.vm.plan import Dims, plan_build

TICK_NS = 1e3 / 1755  # an SM clock of 1.755 GHz
STEPS, WAIT, SIGNAL, GAP = 4, 0.6, 0.4, 0.1  # microseconds
EXECUTE = {name: 0.5 + 0.25 * code for name, code in ops.CODES.items()}


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return lower(
        GRAPHS["small"],
        ScheduleConfig(tiles_per_queue=2, handoff="counter"),
        Target("h", "sm_90", 5, 232_448),
        Geometry(context=64),
        "fast",
    )


def made_up(s: Schedule, wrap: bool = True) -> tuple[Any, Any]:
    """Every queue does its tasks one after the other; queues start at other times, and their clocks stand anywhere."""
    rng = np.random.default_rng(4)
    records = np.zeros((STEPS, s.n_tasks, 4), np.uint32)
    anchors = np.zeros((s.n_queues, 2, 2), np.uint64)
    c = s.columns
    for q in range(s.n_queues):
        zero_us = float(rng.uniform(0, 5))
        base, early = int(rng.integers(1 << 34, 1 << 40)), int(rng.integers(1000, 50_000))
        base = base // (1 << 32) * (1 << 32) + early
        if wrap:  # the low word of the clock overflows within the launch
            base += (1 << 32) - 2 * early
        now = zero_us
        for step in range(STEPS):
            for place in range(c.queue_off[q], c.queue_off[q + 1]):
                name = ops.BY_CODE[int(c.task_op[c.queue_task[place]])].name
                times = now + np.cumsum([0.0, WAIT, EXECUTE[name], SIGNAL])
                records[step, place] = [(base + round((x - zero_us) * 1e3 / TICK_NS)) % (1 << 32) for x in times]
                now = float(times[-1]) + GAP
        for i, at in enumerate((zero_us, now)):
            ticks = base + round((at - zero_us) * 1e3 / TICK_NS)
            anchors[q, i] = ticks, 7_000_000 + int(at * 1e3) // 32 * 32  # the card's timer ticks every 32 ns
    return records, anchors


def test_regions_give_the_times_that_went_in(schedule: Schedule) -> None:
    t = tracing.timeline(schedule, *made_up(schedule))
    assert t.spread < 0.002
    found = {r.name: r for r in tracing.regions(t)}
    assert set(found) == {"embed", "qkv", "attn", "o_proj_combine", "gate_up", "down_proj", "lm_head", "sample", tracing.BETWEEN}
    for name, r in found.items():
        if name == tracing.BETWEEN:
            continue
        assert r.wait == pytest.approx(WAIT, rel=0.02)
        assert r.execute == pytest.approx(EXECUTE[name], rel=0.02)
        assert r.slowest == pytest.approx(EXECUTE[name], rel=0.02)
        assert r.hand_off == pytest.approx(SIGNAL, rel=0.02)
        assert r.execute_a_step == pytest.approx(EXECUTE[name] * r.tasks / schedule.n_queues, rel=0.02)
    assert sum(r.tasks for n, r in found.items() if n != tracing.BETWEEN) == schedule.n_tasks


def test_shares_add_up_to_one_and_the_gaps_are_told(schedule: Schedule) -> None:
    t = tracing.timeline(schedule, *made_up(schedule))
    found = tracing.regions(t)
    assert sum(r.share for r in found) == pytest.approx(1.0, abs=1e-12)
    steps = STEPS - 1
    tasks = np.diff(schedule.columns.queue_off) * steps
    spent = GAP * (tasks - 1).sum()
    whole = spent + sum((WAIT + EXECUTE[r.name] + SIGNAL) * r.tasks * steps for r in found if r.name != tracing.BETWEEN)
    assert found[-1].share == pytest.approx(spent / whole, rel=0.05)
    assert tracing.step_us(t) == pytest.approx(whole / schedule.n_queues / steps, rel=0.02)


def test_phases_follow_each_other_and_add_up_to_the_step_but_for_its_first(schedule: Schedule) -> None:
    t = tracing.timeline(schedule, *made_up(schedule))
    told = tracing.summary(t)
    assert json.loads(json.dumps(told)) == told
    assert [p["name"] for p in told["phases"]][-2:] == ["lm_head", "sample"]
    c = schedule.columns
    place = np.empty(schedule.n_tasks, np.int64)
    place[c.queue_task] = np.arange(schedule.n_tasks)
    first, last = (place[np.flatnonzero(c.task_op == ops.CODES[name])] for name in ("embed", "sample"))
    spans = t.us[1:, last, tracing.SIGNALLED].max(axis=1) - t.us[1:, first, tracing.SIGNALLED].max(axis=1)
    assert sum(p["a_step"] * p["last_signal"] for p in told["phases"]) == pytest.approx(float(spans.mean()))
    assert told["step_us"] == tracing.step_us(t)
    assert told["steps"] == STEPS - 1


def test_a_clock_that_wraps_changes_nothing(schedule: Schedule) -> None:
    a, b = (tracing.timeline(schedule, *made_up(schedule, wrap)) for wrap in (False, True))
    np.testing.assert_allclose(a.us, b.us, atol=0.1)
    assert (np.diff(b.us, axis=-1) >= 0).all()


def test_sms_with_clocks_of_their_own_come_onto_one_axis(schedule: Schedule) -> None:
    records, anchors = made_up(schedule, wrap=False)
    even = tracing.timeline(schedule, records, anchors)
    for q in range(0, schedule.n_queues, 2):  # every other queue's clock is 0.2 % faster
        a, e = int(schedule.columns.queue_off[q]), int(schedule.columns.queue_off[q + 1])
        base = int(anchors[q, 0, 0])
        ticks = (records[:, a:e].astype(np.int64) - base) % (1 << 32)
        records[:, a:e] = (base + (ticks * 1.002).round().astype(np.int64)) % (1 << 32)
        anchors[q, 1, 0] = base + round((int(anchors[q, 1, 0]) - base) * 1.002)
    odd = tracing.timeline(schedule, records, anchors)
    assert odd.spread == pytest.approx(0.002, abs=0.001)
    np.testing.assert_allclose(odd.us, even.us, atol=0.1)


def test_a_task_that_is_ready_before_its_producers_have_signalled_is_measured(schedule: Schedule) -> None:
    c = schedule.columns
    us = np.zeros((2, schedule.n_tasks, 4))
    t = tracing.Timeline(schedule, us, 0.0)
    assert tracing.causality_us(t) == 0.0
    order = {int(task): place for place, task in enumerate(c.queue_task)}
    producer = int(np.flatnonzero(c.task_op == ops.CODES["down_proj"])[0])
    us[1, order[producer], tracing.SIGNALLED] = 3.5
    assert tracing.causality_us(t) == 3.5


def test_records_of_another_schedule_are_refused(schedule: Schedule) -> None:
    records, anchors = made_up(schedule)
    with pytest.raises(ValueError, match=r"required are \[steps, \d+, 4\]"):
        tracing.timeline(schedule, records[:, 1:], anchors)


def test_the_perfetto_file_holds_every_task_with_its_times(schedule: Schedule, tmp_path: Path) -> None:
    t = tracing.timeline(schedule, *made_up(schedule))
    n = tracing.write_perfetto(t, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len(events) == n
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 3 * STEPS * schedule.n_tasks
    bodies = [e for e in slices if e["name"] not in ("wait", "signal")]
    ids = {(e["args"]["step"], e["args"]["task"]) for e in bodies}
    assert ids == set(itertools.product(range(STEPS), range(schedule.n_tasks)))
    for e in bodies[:: schedule.n_tasks // 7]:
        assert e["dur"] == pytest.approx(EXECUTE[e["name"]], abs=0.01)
    by_queue: dict[int, list[Any]] = {}
    for e in slices:
        by_queue.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in by_queue.values():  # a thread's slices do not overlap
        ordered = sorted(spans)
        assert all(a[1] <= b[0] + 0.01 for a, b in itertools.pairwise(ordered))


def test_the_table_and_the_hand_offs_name_every_phase(schedule: Schedule) -> None:
    t = tracing.timeline(schedule, *made_up(schedule))
    text = tracing.table(t)
    assert re.search(r"\d us a step over 3 steps; SM clocks differ by 0\.\d+ %, the time axis is off by at most \d+\.\d+ us", text)
    phases = ("qkv", "attn", "o_proj_combine", "gate_up", "down_proj", "lm_head", "sample")
    for name in phases:
        assert re.search(rf"^{name} +\d+ \|", text, re.M)
        assert re.search(rf"^{name} +\d+ \|", tracing.hand_offs(t), re.M)


def section(elf: bytes, name: str) -> bytes:
    """The bytes of a section of a 64-bit little-endian ELF file."""
    table, size, count, names = (int.from_bytes(elf[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62), (62, 64)))

    def header(i: int) -> tuple[int, int, int]:
        h = elf[table + i * size :]
        return int.from_bytes(h[:4], "little"), int.from_bytes(h[24:32], "little"), int.from_bytes(h[32:40], "little")

    _, start, length = header(names)
    text = elf[start : start + length]
    for i in range(count):
        at, offset, n = header(i)
        if text[at : text.index(b"\0", at)].decode() == name:
            return elf[offset : offset + n]
    raise AssertionError(f"no section {name}")


def without_tracer(source: bytes) -> bytes:
    """A source of the device VM with every mention of the tracer taken out."""
    kept = []
    for line in source.decode().splitlines():
        if "trace.cuh" in line or re.fullmatch(r"\s*Trace trace;|\s*Trace::\w+\(.*\);", line):
            continue
        line = re.sub(r"if \((\w+\.)?\w+( == 0)?\) trace\.\w+\([^;]*\);", "", line)
        kept.append(re.sub(r"\btrace\.\w+\(.*\);", "", line))
    return "\n".join(kept).encode()


def test_without_tracing_the_machine_code_is_that_of_sources_without_a_tracer(mode: Any, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")
    s = lower(GRAPH_SHAPES["smollm2-135m"], None, Target("few", "sm_90", 4, 232_448), Geometry(context=64), mode)
    whole = nvrtc.sources()
    include = [n for n, t in whole.items() if b"trace.cuh" in t]
    assert nvrtc.ENTRY in include
    stripped = {n: without_tracer(t) if n in include else t for n, t in whole.items() if n != "trace.cuh"}
    assert not [n for n in include if b"race" in re.sub(rb"//.*", b"", stripped[n])]
    options = lambda traced: [  # noqa: E731
        "--gpu-architecture=sm_90a", *nvrtc.OPTIONS,
        *(f"-D{k}={v}" for k, v in plan_build(Dims.of(s), "sm_90", 232_448, trace=traced).defines.items()),
    ]  # fmt: skip
    compiler = nvrtc._nvrtc()
    without, _ = nvrtc._compile(compiler, stripped, options(False), "sm_90")
    off, _ = nvrtc._compile(compiler, whole, options(False), "sm_90")
    assert section(off, ".text.amk_run") == section(without, ".text.amk_run")
    if mode == "fast":
        on, _ = nvrtc._compile(compiler, whole, options(True), "sm_90")
        assert section(on, ".text.amk_run") != section(off, ".text.amk_run")
    assert resources.vm_dir().joinpath("trace.cuh").is_file()
