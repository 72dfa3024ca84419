"""Reading what compute-sanitizer says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from amk_bench.sanitizer import judge, run_tool

RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at amk::tile_argmax(int)+0xe20 in head.cuh:126
=========     and Read access at amk_run+0x3260 in head.cuh:40 [235104 hazards]
=========
target done
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "log", "clean"),
    [
        ("memcheck", "target done\n========= ERROR SUMMARY: 0 errors", True),
        ("memcheck", "target done\n========= ERROR SUMMARY: 3 errors", False),
        ("memcheck", "========= ERROR SUMMARY: 0 errors", False),  # the target died
        ("racecheck", "target done\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("racecheck", RACE, False),
        ("racecheck", "target done\n========= RACECHECK SUMMARY: 10 hazards displayed (0 errors, 10 warnings)", False),
        ("initcheck", "target done\n========= ERROR SUMMARY: 0 errors", True),
        ("memcheck", "========= Error: Device not supported", False),
    ],
)
def test_only_a_clean_run_to_the_end_is_clean(tool: str, log: str, clean: bool) -> None:
    assert judge(tool, log, 0).clean is clean


@pytest.mark.skipif(shutil.which("compute-sanitizer") is not None, reason="compute-sanitizer is here")
def test_without_the_tool_the_verdict_says_where_it_comes_from(tmp_path: Path) -> None:
    v = run_tool("memcheck", tmp_path, "fast")
    assert not v.clean
    assert "CUDA toolkit" in v.words


def test_the_target_runs_with_the_weights_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\necho "$@"\necho target done\necho "ERROR SUMMARY: 0 errors"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for weights, name in (("", "memcheck-fast.txt"), ("int4-g128,head=int8", "memcheck-fast-int4-g128.txt")):
        assert run_tool("memcheck", tmp_path, "fast", weights).clean
        assert (f"--weights {weights}" in (tmp_path / name).read_text()) is bool(weights)
