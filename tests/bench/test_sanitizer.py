"""Reading what compute-sanitizer says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from amk_bench.sanitizer import SLOT, STEERING, explained, hazards, judge, run_tool

FILL = "amk::copy_slot(int, const unsigned char *, unsigned int, int)+0x{at:x} in ring.cuh:125"
TAKE = "void amk::WeightStream<(int)576>::next<(bool)1>(amk::Context, int)+0xb4d0 in gemv_fast.cuh:200"
CHECKED = f"""\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at {TAKE}
=========     and Write access at {FILL.format(at=0xF20)} [191952 hazards]
=========     and Write access at {FILL.format(at=0xF90)} [191952 hazards]
=========
target done
========= RACECHECK SUMMARY: 15 hazards displayed (15 errors, 0 warnings)
"""
RACE = """\
========= COMPUTE-SANITIZER
fast decode: 3 steps [1, 2, 3]
========= Error: Race reported between Write access at amk::{writer}(int)+0xe20 in x.cuh:126
=========     and Read access at amk_run+0x3260 in gemv_fast.cuh:40 [235104 hazards]
=========     and Read access at amk_run+0x7f20 in gemv_fast.cuh:44 [341248 hazards]
=========
========= Error: Race reported between Read access at amk::peek(volatile unsigned int &)+0xb30 in ring.cuh:36
=========     and Write access at amk::poke(volatile unsigned int &, unsigned int)+0x3510 in ring.cuh:43 [764 hazards]
=========
target done
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def test_hazards_are_read_block_by_block() -> None:
    found = hazards(RACE.format(writer="copy_slot"))
    assert len(found) == 2
    assert found[0].count("Read access") == 2
    assert [explained(h, STEERING) for h in found] == [True, True]
    assert [explained(h, SLOT) for h in found] == [True, False]
    assert not explained(hazards(RACE.format(writer="tile_argmax"))[0], STEERING)
    assert explained(hazards(CHECKED)[0], SLOT)
    assert not explained(hazards(CHECKED.replace("copy_slot", "other", 1))[0], SLOT)


@pytest.mark.parametrize(
    ("tool", "log", "clean"),
    [
        ("memcheck", "target done\n========= ERROR SUMMARY: 0 errors", True),
        ("memcheck", "target done\n========= ERROR SUMMARY: 3 errors", False),
        ("memcheck", "========= ERROR SUMMARY: 0 errors", False),  # the target died
        ("racecheck", "target done\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("racecheck", CHECKED, True),
        ("racecheck", RACE.format(writer="copy_slot"), False),  # steering words are atomic in this build
        ("racecheck-raw", RACE.format(writer="copy_slot"), True),
        ("racecheck-raw", RACE.format(writer="tile_argmax"), False),
        ("racecheck-raw", "========= Warning: Maximum number of hazards reached.\n" + RACE.format(writer="copy_slot"), False),
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
