"""Claim: the suites run for a card that is not here: what needs none runs, the rest says why, and the result is a whole file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amk_bench import results
from amk_core import machine

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.usefixtures("no_worker"),
    pytest.mark.amk_full("the suites for a card that is not here"),
    pytest.mark.skipif(any(g.arch == "sm_89" for g in machine.find_gpus()), reason="this machine has an sm_89 card"),
]


def suites(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "suites", "--arch=sm_89", "--quick", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})


def test_exit_code_0_with_reasons_and_a_file_that_pytest_benchmark_reads(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = suites(tmp_path, f"--benchmark-json={out}")
    assert done.returncode == 0, done.stdout[-4000:]
    data = json.loads(out.read_text())
    records = results.validate(data["amk"])
    skipped = [r for r in records if isinstance(r, results.SkipRecord)]
    assert not [r for r in skipped if r.broken]
    missing = [r for r in skipped if "no sm_89 card on this machine" in r.reason]
    assert missing
    assert all("--arch=sm_89" in r.command for r in missing)
    assert not [r for r in records if isinstance(r, results.LatencyRecord)]
    notes = [r.text for r in records if isinstance(r, results.NoteRecord)]
    assert any("validator" in text for text in notes), "the validator ran"
    assert len([text for text in notes if text.startswith("compile gate, sm_89: ")]) == 12
    compare = [sys.executable, "-m", "pytest_benchmark", "compare", str(out)]
    read = subprocess.run(compare, cwd=ROOT, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr


def test_require_hardware_is_a_failure(tmp_path: Path) -> None:
    done = suites(tmp_path, "--require-hardware", "-k", "latency")
    assert done.returncode != 0
    assert "--require-hardware, and no sm_89 card" in done.stdout
