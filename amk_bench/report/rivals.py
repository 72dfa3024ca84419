"""The table of docs/baselines.md: what the committed runs of :mod:`amk_bench.baselines.run` say, a row a model and position."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amk_bench.results import LatencyRecord, ParityRecord, SkipRecord, validate
from amk_bench.table import microseconds

PATTERN = "*-baselines-*.json"


def runs(folder: Path) -> list[Mapping[str, Any]]:
    """The documents of a folder, validated, by file name; ResultError names what is wrong."""
    docs = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob(PATTERN))]
    for doc in docs:
        validate(doc)
    return docs


def _cell(record: LatencyRecord | None) -> str:
    if record is None:
        return "not run"
    if record.ratio is None or record.low is None or record.high is None:
        return f"{record.verdict}: {record.reason}"
    return f"{microseconds(record.baseline_us)} ({record.ratio:.2f}, {record.low:.2f} to {record.high:.2f})"


def table(docs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: microseconds a token of AMK, and of each baseline with the ratio and its interval; a ratio below 1 is a loss."""
    records = {doc["options"]["model"]: validate(doc) for doc in docs}
    cells = {m: [r for r in rs if isinstance(r, LatencyRecord)] for m, rs in records.items()}
    names = list(dict.fromkeys(r.baseline for rs in cells.values() for r in rs))
    lines = ["| model | position | AMK CUDA VM | " + " | ".join(names) + " |", "| --- | ---: | ---: |" + " --- |" * len(names)]
    for model, mine in cells.items():
        positions = sorted({r.position for r in mine})
        for position in positions:
            here = {r.baseline: r for r in mine if r.position == position}
            ours = next((r.ours_us for r in here.values() if r.ours_us), None)
            lines.append(f"| {model} | {position} | {microseconds(ours)} | {' | '.join(_cell(here.get(n)) for n in names)} |")
        left = sum(isinstance(r, SkipRecord) for r in records[model])
        claims = [r for r in records[model] if isinstance(r, ParityRecord)]
        if left:
            held = f"{sum(c.passed for c in claims)} of {len(claims)} parity claims hold"
            lines.append(
                f"| {model} | {'others' if mine else 'all'} | | {left} cells not timed; {held} |" + " |" * (len(names) - 1)
            )
    return "\n".join(lines)
