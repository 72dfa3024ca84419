"""Claims: instruments measure the bandwidth once and keep it, ask for it only where it matters, and say when there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amk_bench import bandwidth, instruments, record_noise
from amk_bench.cell import Plan
from amk_bench.coldness import CpuFlush
from amk_bench.conditions import CpuMeter, NoMeter
from amk_bench.floor import Bandwidth
from amk_bench.instruments import Instruments
from amk_core.vm import driver

READ = Bandwidth(1e9, 1000, 10**6, "toy")


class Probe:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Bandwidth:
        self.asked += 1
        return READ


def made(folder: Path, probe: Probe) -> Instruments:
    return Instruments(probe, bandwidth.cache_file(folder, {"toy": 1}), READ.cache_bytes, NoMeter(), lambda: lambda: None)


def test_bandwidth_is_measured_once_and_only_for_what_exceeds_the_cache(tmp_path: Path) -> None:
    probe = Probe()
    tools = made(tmp_path, probe)
    assert tools.least_s(READ.cache_bytes) == 0.0
    assert probe.asked == 0
    assert tools.least_s(101_000) == READ.least_s(101_000) > 0.0
    assert made(tmp_path, probe).least_s(101_000) > 0.0
    assert probe.asked == 1


def test_a_plan_is_equipped_with_everything(tmp_path: Path) -> None:
    probe = Probe()
    plan = made(tmp_path, probe).equip(Plan(4, 6, 1), energy_s=0.5)
    assert (plan.tokens, plan.blocks, plan.seed, plan.bandwidth, plan.energy_s) == (4, 6, 1, READ, 0.5)
    assert plan.flush is not None
    assert plan.probe is not None
    assert plan.probe() == READ
    assert probe.asked == 2


def test_without_a_card_nothing_is_measured_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise driver.CudaError("no NVIDIA card is visible")

    monkeypatch.setattr(driver, "Device", refuse)
    tools = instruments.for_this_card()
    assert tools.missing == "no NVIDIA card is visible"
    assert tools.bandwidth() is None
    assert tools.least_s(10**12) == 0.0
    plan = tools.equip(Plan(4, 6, 1))
    assert (plan.bandwidth, plan.probe, plan.flush) == (None, None, None)


def test_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "probe_cpu", lambda threads: READ if threads == 2 else None)
    tools = instruments.for_cpu("toy", 2, tmp_path)
    assert isinstance(tools.meter, CpuMeter)
    assert tools.bandwidth() == READ
    assert tools.kept != instruments.for_cpu("toy", 1, tmp_path).kept
    assert tools.cache_bytes == bandwidth.last_cache_bytes()


def test_a_flush_touches_four_caches() -> None:
    flush = CpuFlush(1 << 20)
    assert flush._buffer.nbytes == 4 << 20
    flush()
    flush()
    assert (flush._buffer == 2).all()


def test_a_recording_holds_every_call_in_order() -> None:
    (recording,) = record_noise.recordings(False, 20)
    assert recording["clock"] == "cpu.perf_counter_ns"
    assert len(recording["us"]) == 20
    assert np.median(recording["us"]) > 10.0
    assert json.dumps(recording)
