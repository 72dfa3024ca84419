"""No number in the README without a committed file behind it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from amk_bench.report import readme
from amk_core import cli

ROOT = Path(__file__).resolve().parents[2]
# A measured quantity: a number with a unit of time, speed, size or ratio.
MEASURED = re.compile(r"\d[\d .,]*\s?(?:%|ns\b|µs\b|us\b|ms\b|s\b|seconds|minutes|tokens|tok/s|[KMGT]i?B\b)|\d\s?x\b|\bx\s?\d")


def result(device: str = "Some CPU", created: str = "2026-01-02T03:04:05+00:00", ratio: float = 2.5) -> dict[str, Any]:
    cell = {
        "device": device, "model": "smollm2-135m", "mode": "exact", "precision": "fp32", "batch": 1, "baseline": "HF eager",
        "gate": "P1 P2", "ours_us": 20000.0, "low": ratio - 0.25, "high": ratio + 0.25, "floor": 0.02,
    }  # fmt: skip
    lat = [
        {**cell, "position": 0, "verdict": "WIN", "ratio": ratio, "baseline_us": 20000.0 * ratio},
        {**cell, "position": 512, "verdict": "LOSS", "ratio": 0.8, "low": 0.7, "high": 0.9, "baseline_us": 16000.0},
    ]
    fingerprint = {"device": device, "arch": "cpu", "cores": 2, "libraries": {"torch": "2.13.0"}, "commit": "abc123"}
    parity = [{"level": "P1", "claim": "greedy", "measured": "equal", "required": "equal", "passed": True}]
    head = {"schema": 1, "created": created, "fingerprint": fingerprint, "options": {}}
    return {**head, "parity": parity, "latency": lat, "skipped": [], "notes": []}


def test_the_readme_s_table_is_generated_from_the_committed_results() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text == readme.replaced(text, readme.block(ROOT / "reports" / "data")), "run: amk report"


def test_the_rest_of_the_readme_states_no_measured_number() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    text = readme.replaced(text, "")
    text = re.sub(r"^<!-- run.*?^```\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)  # what runs is checked when it runs
    assert not MEASURED.findall(text)


@pytest.mark.parametrize("text", ["27.7 tokens/s", "2.5x", "2 x", "512 MB", "under 6 minutes", "0.2 s", "95 %"])
def test_the_reader_of_numbers(text: str) -> None:
    assert MEASURED.search(text)


def test_losses_stand_first_and_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(result()))
    lines = readme.block(tmp_path).splitlines()
    rows = [line for line in lines if line.startswith(("| WIN", "| LOSS"))]
    assert [r.split(" | ")[0] for r in rows] == ["| LOSS", "| WIN"]
    assert "| 0 | 1 | HF eager fp32 | 20 000 | 50 000 | 2.50 (2.25 to 2.75) |" in rows[1]
    assert "1 LOSS, 1 WIN of 2 cells; 1 of 1 parity claims hold" in lines[-1]
    assert "[a.json](reports/data/a.json)" in lines[-1]


def test_the_newest_result_of_each_device_counts(tmp_path: Path) -> None:
    (tmp_path / "b_old.json").write_text(json.dumps(result(created="2026-01-01T00:00:00+00:00", ratio=9.0)))
    (tmp_path / "a_new.json").write_text(json.dumps(result()))
    (tmp_path / "c.json").write_text(json.dumps(result(device="Other CPU")))
    assert [p.name for p, _ in readme.newest(tmp_path)] == ["c.json", "a_new.json"]


def test_no_results_say_so_and_a_broken_one_is_named(tmp_path: Path) -> None:
    assert readme.block(tmp_path / "absent") == readme.NOTHING
    (tmp_path / "bad.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match=r"bad\.json.*schema 99"):
        readme.block(tmp_path)


def test_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "R.md", tmp_path / "data"
    data.mkdir()
    (data / "a.json").write_text(json.dumps(result()))
    page.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    argv = ["report", "--readme", str(page), "--data", str(data)]
    assert cli.main([*argv, "--check"]) == 1
    assert cli.main(argv) == 0
    assert cli.main([*argv, "--check"]) == 0
    assert page.read_text().startswith(f"before\n{readme.BEGIN}\n| verdict |")
    assert page.read_text().endswith(f"{readme.END}\nafter\n")
    page.write_text("no markers")
    assert cli.main(argv) == 2
    assert readme.BEGIN in capsys.readouterr().err
