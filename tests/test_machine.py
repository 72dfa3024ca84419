"""Facts about the machine, from texts whose meaning is known."""

from __future__ import annotations

import pytest

from amk_core import machine

V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = V2 + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = V3 + " avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("sse2", "x86-64"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V4.replace(" f16c", ""), "x86-64-v2"),  # a level needs all below it
    ],
)
def test_isa_level_is_the_highest_complete_one(flags: str, level: str) -> None:
    text = f"processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu {flags}\n"
    assert machine.parse_cpuinfo(text) == ("Some CPU @ 3 GHz", level)


def test_cards_as_nvidia_smi_prints_them() -> None:
    text = "NVIDIA L4, 8.9, 23034, 580.95.05\nNVIDIA H200, 9.0, 143771, 580.95.05\nNo devices were found\n"
    l4, h200 = machine.parse_smi(text)
    assert (l4.arch, h200.arch) == ("sm_89", "sm_90")
    assert l4.memory_bytes == 23034 * 1024 * 1024
    assert h200.name == "NVIDIA H200"


def test_no_driver_means_no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.find_gpus() == ()
    assert machine.find_compiler() is None


def test_versions_leave_out_what_is_absent() -> None:
    found = machine.library_versions(["numpy", "no-such-distribution"])
    assert list(found) == ["numpy"]


def test_probe_sees_this_machine() -> None:
    m = machine.probe()
    assert m.cores >= 1
    assert 0 < m.available_bytes <= m.memory_bytes
    assert m.libraries["torch"].startswith("2.")
