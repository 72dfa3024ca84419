"""The figures of docs/performance.md are those of the committed run."""

from __future__ import annotations

import json
from pathlib import Path

from amk_bench.device_timing import table

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_document_is_generated_from_the_newest_run() -> None:
    newest = max((ROOT / "reports" / "data" / "device").glob("*-timing.json"))
    text = (ROOT / "docs" / "performance.md").read_text()
    shown = text.split("<!-- table: begin -->\n")[1].split("\n<!-- table: end -->")[0]
    assert shown == table(json.loads(newest.read_text()))
    assert newest.name in text


def test_medians_are_those_of_the_samples() -> None:
    for path in (ROOT / "reports" / "data" / "device").glob("*-timing.json"):
        for t in json.loads(path.read_text())["amk"]["timings"]:
            samples = sorted(t["samples_us"])
            assert t["median_us"] == samples[len(samples) // 2]
            assert t["weights"] == "random"
