"""No number in the README without a committed file behind it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_up_results import result_document, timed_record

from amk_bench.report import readme
from amk_bench.report.outputs import Evidence, replaced

ROOT = Path(__file__).resolve().parents[2]
# A measured quantity: a number with a unit of time, speed, size or ratio.
MEASURED = re.compile(r"\d[\d .,]*\s?(?:%|ns\b|µs\b|us\b|ms\b|s\b|seconds|minutes|tokens|tok/s|[KMGT]i?B\b)|\d\s?x\b|\bx\s?\d")


def test_the_rest_of_the_readme_states_no_measured_number() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    text = replaced(text, "")
    text = re.sub(r"^<!-- run.*?^```\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)  # what runs is checked when it runs
    assert not MEASURED.findall(text)


@pytest.mark.parametrize("text", ["27.7 tokens/s", "2.5x", "2 x", "512 MB", "under 6 minutes", "0.2 s", "95 %"])
def test_the_reader_of_numbers(text: str) -> None:
    assert MEASURED.search(text)


def test_the_readme_s_table_is_generated_from_the_committed_results() -> None:
    e = Evidence.read(ROOT)
    text = (ROOT / "README.md").read_text("utf-8")
    assert text == replaced(text, readme.block(e.best, e.files)), "run: amk report"


def test_the_table_shows_the_worst_first_and_names_each_file() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| (LOSS|INVALID|AMBIGUOUS|TIE|WIN) \|", line)]
    order = ["LOSS", "INVALID", "AMBIGUOUS", "TIE", "WIN"]
    verdicts = [order.index(row.split(" ")[1]) for row in rows]
    assert verdicts == sorted(verdicts)
    assert rows
    for row in rows:
        (path,) = re.findall(r"\((reports/data/[^)]+)\)", row) or [""]
        assert (ROOT / path).is_file() or "INVALID" in row


def test_no_loss_is_left_to_the_page(tmp_path: Path) -> None:
    cells = [timed_record(0.8, position=n) for n in range(readme.ROWS + 3)] + [
        timed_record(2.0, position=n) for n in range(100, 104)
    ]
    data = tmp_path / "reports" / "data"
    data.mkdir(parents=True)
    (data / "a.json").write_text(json.dumps(result_document(cells)))
    e = Evidence.read(tmp_path)
    text = readme.block(e.best, e.files)
    assert text.count("| LOSS |") == readme.ROWS + 3
    assert "| WIN |" not in text
    assert "And 4 WIN in [the report]" in text


def test_no_results_say_so() -> None:
    assert readme.block([], []) == readme.NOTHING
