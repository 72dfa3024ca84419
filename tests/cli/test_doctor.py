"""``amk doctor``: what follows from the facts, and both ways to print it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from amk_core import cli
from amk_core.commands import doctor
from amk_core.machine import Gpu, Machine

PLAIN = Machine("Linux", "3.11.7", "Some CPU", "x86-64-v3", 2, 8 << 30, 6 << 30, "/usr/bin/c++: c++ 12", (), {"torch": "2.13.0"})
MODEL = ["smollm2-135m"]


def runs(m: Machine, native: str = "", models: list[str] = MODEL) -> dict[str, bool]:
    return {a.name: a.runs for a in doctor.abilities(m, native, models)}


def test_a_laptop_with_the_model_runs_everything_but_the_device() -> None:
    assert [*runs(PLAIN).values()] == [True, True, True, False, False]


def test_a_missing_model_skips_its_suites_and_names_the_command() -> None:
    abilities = {a.name: a for a in doctor.abilities(PLAIN, "", [])}
    suites = abilities["suites on SmolLM2-135M"]
    assert not suites.runs
    assert suites.command == "amk model fetch smollm2-135m"
    assert abilities["run models on the CPU VM"].runs


def test_without_the_native_module_nothing_runs_and_every_reason_says_so() -> None:
    abilities = doctor.abilities(PLAIN, "cannot load", MODEL)
    assert not any(a.runs for a in abilities)
    assert all("cannot load" in a.reason for a in abilities[:3])


def test_too_little_memory_is_said_in_numbers() -> None:
    cpu = doctor.abilities(replace(PLAIN, available_bytes=10**9), "", MODEL)[1]
    assert not cpu.runs
    assert "1.0 GB" in cpu.reason


NVRTC = {"cuda-bindings": "13.0", "nvidia-cuda-nvrtc": "13.0"}


@pytest.mark.parametrize(
    ("arch", "libraries", "native", "compiles", "device", "said"),
    [
        (None, NVRTC, "", True, False, "no NVIDIA card"),
        ("sm_89", NVRTC, "", True, True, ""),
        ("sm_89", {}, "", False, False, "NVRTC"),
        ("sm_75", NVRTC, "", True, False, "sm_75"),
        ("sm_89", NVRTC, "cannot load", True, False, "cannot load"),
    ],
)
def test_the_device_needs_a_known_card_a_compiler_and_the_native_module(
    arch: str | None, libraries: dict[str, str], native: str, compiles: bool, device: bool, said: str
) -> None:
    cards = (Gpu("Some card", arch, 24 << 30, "580"),) if arch else ()
    compiling, card = doctor.abilities(replace(PLAIN, gpus=cards, libraries=libraries), native, MODEL)[-2:]
    assert (compiling.runs, card.runs) == (compiles, device)
    assert said in card.reason


def test_no_ability_is_skipped_without_a_reason() -> None:
    for native, models in (("", []), ("broken", MODEL)):
        assert all(a.runs or a.reason for a in doctor.abilities(PLAIN, native, models))


def test_json_and_page_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == (1 if data["native"] else 0)
    assert cli.main(["doctor"]) == code
    page = capsys.readouterr().out
    assert data["cpu"] in page
    for ability in data["abilities"]:
        assert ability["name"] in page


def test_suites_prints_a_folder_for_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--suites"]) == 0
    assert Path(*shlex.split(capsys.readouterr().out)).is_dir()


def test_json_never_shows_what_identifies_a_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    card = Gpu("NVIDIA L4", "sm_89", 24 << 30, "580", "GPU-secret")
    monkeypatch.setattr(doctor, "probe", lambda: replace(PLAIN, gpus=(card,)))
    for argv in (["doctor", "--json"], ["doctor"]):
        cli.main(argv)
        out = capsys.readouterr().out
        assert "NVIDIA L4" in out
        assert "GPU-secret" not in out
