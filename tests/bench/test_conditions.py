"""Claims about the machine's state: a capped card is labelled, a hot one gives no time, what does not answer is None."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from amk_bench import nvml
from amk_bench.conditions import POWER_CAPPED, CpuMeter, NoMeter, Reading, joules, summary
from amk_bench.nvml import NvmlMeter, NvmlMissing
from amk_core.vm import driver


class FakeNvml:
    """The part of pynvml that is used; ``answers`` by function name, absent ones are "not supported"."""

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: Any) -> None:
        self.answers = {"nvmlInit": None, "nvmlDeviceGetHandleByUUID": "card", "nvmlDeviceGetHandleByIndex": "card", **answers}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def query(*args: Any) -> Any:
            if name not in self.answers:
                raise self.NVMLError("Not Supported")
            value = self.answers[name]
            return value(*args[1:]) if callable(value) else value

        return query


L4 = FakeNvml(
    nvmlDeviceGetClockInfo=lambda kind: {1: 1545, 2: 6251}[kind],
    nvmlDeviceGetPowerUsage=71_900,
    nvmlDeviceGetTotalEnergyConsumption=5_000_000,
    nvmlDeviceGetTemperature=lambda kind: 61,
    nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x1,
    nvmlDeviceGetEnforcedPowerLimit=72_000,
    nvmlDeviceGetMaxClockInfo=lambda kind: {1: 2040, 2: 6251}[kind],
    nvmlDeviceGetEccMode=[1, 1],
    nvmlDeviceGetPersistenceMode=0,
)


def test_a_reading_has_units_and_words() -> None:
    assert NvmlMeter("GPU-1", library=L4).read() == Reading(1545.0, 6251.0, 71.9, 5000.0, 61.0, (POWER_CAPPED,))


def test_what_a_card_does_not_answer_is_none_and_older_names_are_asked() -> None:
    assert NvmlMeter(library=FakeNvml()).read() == Reading()
    old = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    assert NvmlMeter(library=old).read().reasons == ("hardware thermal slowdown",)


def test_policy_names_every_setting_also_the_unknown_ones() -> None:
    policy = NvmlMeter(library=L4).policy()
    assert policy == {
        "power_limit_w": "72", "application_sm_mhz": "unknown", "most_sm_mhz": "2040", "most_memory_mhz": "6251", "ecc": "on",
        "mig": "unknown", "persistence": "off",
    }  # fmt: skip


def test_no_library_and_no_card_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise FakeNvml.NVMLError("Driver Not Loaded")

    with pytest.raises(NvmlMissing, match="Driver Not Loaded; check nvidia-smi"):
        NvmlMeter(library=FakeNvml(nvmlInit=lambda: refuse()))
    assert nvml.policy_of("GPU-1", FakeNvml(nvmlInit=lambda: refuse())) == {}
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(NvmlMissing, match="pip install nvidia-ml-py"):
        NvmlMeter()


def test_a_card_is_found_by_the_name_that_nvidia_smi_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def activate(self) -> None:
            pass

    def call(name: str, *args: Any) -> Any:
        if name == "cuCtxGetDevice":
            return 7
        assert (name, args) == ("cuDeviceGetUuid", (7,))
        return types.SimpleNamespace(bytes=bytes(range(16)))

    def refuse(name: str, *args: Any) -> Any:
        raise driver.CudaError(name)

    monkeypatch.setattr(driver, "call", call)
    assert nvml.uuid_of(Device()) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    monkeypatch.setattr(driver, "call", refuse)
    assert nvml.uuid_of(Device()) == ""


def test_a_card_that_lives_at_its_power_limit_is_labelled_and_measured() -> None:
    capped, free = Reading(1500.0, reasons=(POWER_CAPPED,)), Reading(2000.0)
    always = summary([free, capped, capped, capped])
    assert (always.label, always.fault) == ("power-capped throughout", None)
    assert summary([free, capped, free]).label == "power-capped in 1 of 2 readings"
    assert summary([free, free]).label == ""


@pytest.mark.parametrize("reason", ["hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake"])
def test_a_card_that_throttles_gives_no_time(reason: str) -> None:
    hot, fine = Reading(reasons=(reason,)), Reading()
    fault = summary([fine, *[hot] * 2, *[fine] * 8]).fault
    assert fault is not None
    assert reason in fault
    assert summary([fine, hot, *[fine] * 9]).fault is None  # one in ten may be the moment a fan speeds up


def test_means_leave_out_the_reading_before_the_first_block_and_what_was_not_read() -> None:
    seen = summary([Reading(100.0, energy_j=10.0), Reading(1000.0, power_w=50.0, energy_j=20.0), Reading(2000.0, energy_j=40.0)])
    assert seen.values == {
        "clock_mhz": 1500.0,
        "clock_mhz_least": 1000.0,
        "clock_mhz_most": 2000.0,
        "power_w": 50.0,
        "energy_j": 30.0,
    }
    assert summary([NoMeter().read()]).values == {}


class Ticking:
    """A card that takes 100 W."""

    name = "toy"

    def __init__(self, watts: float | None = 100.0) -> None:
        self.now_s, self.watts = 0.0, watts

    def read(self) -> Reading:
        return Reading(energy_j=None if self.watts is None else self.watts * self.now_s)


def test_joules_a_token_are_energy_over_tokens() -> None:
    """100 W for calls of 10 ms with 4 tokens each: 0.25 J a token."""
    meter = Ticking()

    def call() -> None:
        meter.now_s += 0.01

    assert joules(meter, call, 4, 0.5, lambda: meter.now_s) == pytest.approx(0.25)
    assert joules(Ticking(None), call, 4, 0.5, lambda: meter.now_s) is None
    assert joules(Ticking(0.0), call, 4, 0.0, lambda: meter.now_s) is None


def test_the_cpu_meter_adds_packages_and_follows_a_counter_round(tmp_path: Path) -> None:
    for index in range(2):
        package = tmp_path / f"intel-rapl:{index}"
        package.mkdir()
        (package / "energy_uj").write_text("9000000\n")
        (package / "max_energy_range_uj").write_text("10000000\n")
    part = tmp_path / "intel-rapl:0:0"
    part.mkdir()
    (part / "energy_uj").write_text("1\n")
    meter = CpuMeter(tmp_path)
    first = meter.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000\n")  # 2 J later
    second = meter.read()
    assert first.energy_j == 18.0
    assert second.energy_j == 20.0
    assert second.others is not None
    assert 0.0 <= second.others <= 1.0
    assert CpuMeter(tmp_path / "none").read().energy_j is None
