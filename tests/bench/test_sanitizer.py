"""Reading what compute-sanitizer says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from amk_bench.sanitizer import explained, hazards, judge, run_tool

RACE = """\
========= COMPUTE-SANITIZER
fast decode: 3 steps [1, 2, 3]
========= Error: Race reported between Write access at amk_run+0xe20 in {writer}:126
=========     and Read access at amk_run+0x3260 in gemv_fast.cuh:40 [235104 hazards]
=========     and Read access at amk_run+0x7f20 in gemv_fast.cuh:44 [341248 hazards]
=========
========= Error: Race reported between Read access at amk_run+0xb70 in ring.cuh:142
=========     and Write access at amk_run+0x33b0 in ring.cuh:181 [436 hazards]
=========
target done
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def test_hazards_are_read_block_by_block() -> None:
    found = hazards(RACE.format(writer="ring.cuh"))
    assert len(found) == 2
    assert found[0].count("Read access") == 2
    assert [explained(h) for h in found] == [True, True]
    assert not explained(hazards(RACE.format(writer="head.cuh"))[0])


@pytest.mark.parametrize(
    ("tool", "log", "clean"),
    [
        ("memcheck", "target done\n========= ERROR SUMMARY: 0 errors", True),
        ("memcheck", "target done\n========= ERROR SUMMARY: 3 errors", False),
        ("memcheck", "========= ERROR SUMMARY: 0 errors", False),  # the target died
        ("racecheck", "target done\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("racecheck", RACE.format(writer="ring.cuh"), False),
        ("racecheck-raw", RACE.format(writer="ring.cuh"), True),
        ("racecheck-raw", RACE.format(writer="head.cuh"), False),
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
