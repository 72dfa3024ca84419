"""The check of several rows on a card, without one: what it compares, what it prints, when it fails."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_card import FakeCard

from amk_bench import device_timing, rows_check
from amk_bench.device_cases import bits, graph
from amk_bench.rows_check import CHUNKS, CONTEXT, WAYS, give_past, prompt_name, schedule_dims
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import driver, nvrtc
from amk_core.vm.device_memory import DeviceBuffers
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import Device, Memory
from amk_core.vm.plan import ProgramError


class Machine:
    """A program whose logits are its ``answer`` and whose step takes ``us``."""

    def __init__(self, batch: int, answer: float, us: float) -> None:
        self.us = us
        self.buffers = {"token": np.zeros((batch, 1)), "done": np.zeros((batch, 1)), "out": np.zeros((128, batch), np.int32)}
        self.buffers["logits"] = np.full((batch, 4), answer, np.float32)
        self.schedule = SimpleNamespace(buffers=())
        self.buffers |= {name: np.full((1, 4), answer, np.float32) for name in ("L15.k", "L15.v", "prompt")}
        self.memory = SimpleNamespace(read=self.buffer, write=lambda name, ids: None)

    def buffer(self, name: str) -> Any:
        return self.buffers[name]

    def variables(self, position: int, steps: int) -> list[int]:
        return [position, steps]

    def launch(self, steps: int, variables: list[int]) -> None:
        self.buffers["out"][:steps] = 7

    def wait(self) -> None: ...

    def close(self) -> None: ...

    def time_launches(self, steps: int, variables: list[int], repeats: int, refresh: bool = True) -> list[float]:
        return [self.us * steps * 1e-6] * repeats


def run(monkeypatch: pytest.MonkeyPatch, answer: Any) -> int:
    def timed_vm(model: str, context: int, device: Any, cache: Any, config: Any, **how: Any) -> Machine:
        if "chunk" in how:
            return Machine(1, answer({"marked": how["chunk"] > 16}), 1000.0 - how["chunk"])
        return Machine(how["batch"], answer(how), 600.0 + 10 * how["batch"] - 5 * how["marked"])

    ready = (
        {(prompt_name(chunk), 0): "100 registers" for chunk in CHUNKS}
        | {(way.name, b): "100 registers" for way in WAYS for b in (1, 4)}
        | {(WAYS[2].name, 4): "not here: too long"}
    )
    monkeypatch.setattr(driver, "Device", lambda: SimpleNamespace(facts="a card"))
    monkeypatch.setattr(rows_check, "prepare", lambda *rest: ready)
    monkeypatch.setattr(rows_check, "timed_vm", timed_vm)
    return rows_check.main(["--batches", "1,4", "--prompt", "256"])


def test_equal_bits_end_in_a_table_of_times_and_ratios(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, lambda how: 1.0) == 0
    out = capsys.readouterr().out
    assert "| tagged | 610.0 (1.00) | 640.0 (1.05) |" in out
    assert "| marked |  | 635.0 (1.04) |" in out
    assert f"batch  4 {WAYS[2].name:36s} not here: too long" in out
    assert out.count("same bits as the first way") == 2
    assert out.count("sequence 0 as alone") == 3
    assert "| 16 rows a step | 7.87 |" in out  # eight steps of 984 us
    assert "| 32 rows a step | 3.87 |" in out


def test_other_bits_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, lambda how: 1.0 + how["marked"]) == 1
    out = capsys.readouterr().out
    assert "OTHER BITS" in out
    assert "DIFFERS from alone" in out
    assert out.count("OTHER keys or values") == 1


def test_every_way_is_a_plan_of_its_own_where_it_can_be() -> None:
    plans = [way.plan(schedule_dims("llama-3.2-1b", 4, "sm_90", 4, 232_448), "sm_90", 232_448) for way in WAYS]
    assert len({(tuple(sorted({**p.defines, **way.macros}.items()))) for p, way in zip(plans, WAYS, strict=True)}) == len(WAYS)
    with pytest.raises(ProgramError, match="marked"):
        WAYS[1].plan(replace(schedule_dims("llama-3.1-8b", 2, "sm_90", 4, 232_448), hidden=4128), "sm_90", 232_448)


SMALL = graph("few", 515, 192, 320, 2, 6, 2, 32, context=2 * CONTEXT)


def test_the_first_sequence_has_the_same_past_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    pasts = []
    for batch in (1, 2, 16):
        s = lower(SMALL, None, Target("card", "sm_90", 4, 232_448), Geometry("decode", batch, 1, 256), "fast")
        memory = DeviceBuffers(s, Device(), {}, {})
        names = [f"L{i}.{kind}" for i in range(2) for kind in "kv"]
        assert not any(memory.read(name).any() for name in names)
        give_past(memory, s, 130)
        rows = [memory.read(name) for name in names]
        assert all(r[:130].all() and not r[130:].any() for r in rows)
        pasts.append([bits(r[:130]) for r in rows])
    assert len(set(pasts[0])) == 4
    assert pasts[1] == pasts[0] == pasts[2]


def test_programs_whose_tiles_stand_in_another_order_multiply_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    device, target = Device(), Target("card", "sm_90", 7, 232_448)

    def layout(batch: int, **config: Any) -> DeviceTapeLayout:
        return DeviceTapeLayout.of(lower(SMALL, ScheduleConfig(**config), target, Geometry("decode", batch, 1, 256), "fast"))

    def weight(name: str) -> Any:
        shape = next(b.shape for b in few.buffers if b.name == name)
        return np.random.default_rng(list(name.encode())).random(shape, np.float32).astype(ml_dtypes.bfloat16)

    few = lower(SMALL, None, target, Geometry("decode", 1, 1, 256), "fast")
    one, other = layout(1), layout(3)
    assert not np.array_equal(one.segments, other.segments)
    tape = device.upload(one.build(weight))
    moved = device_timing.rearranged(device, tape, one, other)
    got = np.empty(other.bytes, np.uint8)
    moved.download(got)
    np.testing.assert_array_equal(got, other.build(weight))
    assert device_timing.rearranged(device, tape, one, one) is tape
    assert device_timing.rearranged(device, tape, one, layout(1, tiles_per_queue=2)) is tape


def test_the_whole_check_finds_its_buffers_on_the_host_side_of_the_vm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a card that does nothing: all programs leave what they found."""
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    for module in (rows_check, device_timing):
        monkeypatch.setattr(module, "GRAPH_SHAPES", {SMALL.name: SMALL})
    empty = SimpleNamespace(data=b"\x7fELF", kernel=lambda name: SimpleNamespace(registers=0, spill_store_bytes=0))
    monkeypatch.setattr(nvrtc, "build", lambda *rest: empty)

    def random_memory(device: Any, size: int, *rest: Any) -> Memory:
        memory = Memory(device, size)
        memory.upload(np.resize(np.random.default_rng(size).integers(0, 99, 997, np.uint8), size))
        return memory

    monkeypatch.setattr(device_timing, "random_memory", random_memory)
    names = [*(way.name for way in WAYS), *(prompt_name(chunk) for chunk in CHUNKS)]
    ready = {(name, b): "100 registers" for name in names for b in (0, 1, 4)}
    monkeypatch.setattr(rows_check, "prepare", lambda *rest: ready)
    assert rows_check.main(["--model", SMALL.name, "--batches", "1,4", "--prompt", "256"]) == 0
    out = capsys.readouterr().out
    assert out.count("sequence 0 as alone") == len(WAYS)
    assert out.count("same keys and values") == len(CHUNKS)
    assert "FAIL" not in out
