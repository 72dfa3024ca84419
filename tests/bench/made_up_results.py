"""Result documents made up for the tests of ``amk report``: their figures follow from their samples."""

from __future__ import annotations

import math
import statistics
from typing import Any

from amk_bench.stats import bootstrap
from amk_bench.verdict import judge

BLOCKS = 8


def timed_record(ratio: float, **fields: Any) -> dict[str, Any]:
    """A cell of schema 2 whose figures follow from its samples; the rival takes ``ratio`` times ours."""
    ours = [100.0 + 0.1 * (i % 3) for i in range(2 * BLOCKS)]
    theirs = [ratio * (100.0 + 0.1 * ((i + 1) % 3)) for i in range(2 * BLOCKS)]
    logs = [math.log((theirs[i] + theirs[i + 1]) / (ours[i] + ours[i + 1])) for i in range(0, 2 * BLOCKS, 2)]
    found = bootstrap(logs, 5)
    record = {
        "device": "NVIDIA H200", "model": "llama-3.2-1b", "mode": "fast", "precision": "bf16", "batch": 1, "position": 128,
        "baseline": "rival", "verdict": str(judge(found, 0.01)), "gate": "P1", "ours_us": statistics.median(ours),
        "baseline_us": statistics.median(theirs),
        "ratio": found.median, "low": found.low, "high": found.high, "floor": 0.01, "tokens": 16, "seed": 5,
        "ours_samples_us": ours, "baseline_samples_us": theirs, "checks": [{"side": "ours", "name": "tokens", "measured": "equal"}],
        "host": {"ours_us": [x + 2 for x in ours], "baseline_us": [x + 3 for x in theirs]},
        "derived": {"ours_share": 0.7, "baseline_share": 0.5, "measured_gb_s": 4400.0, "datasheet_gb_s": 4800.0},
    }  # fmt: skip
    return {**record, **fields}


def result_document(latency: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A result file of a card, with random weights."""
    fingerprint = {
        "device": "NVIDIA H200", "arch": "sm_90", "commit": "abc123", "command": "python -m amk_bench.baselines.run --out FILE",
        "libraries": {"torch": "2.11.0"},
    }  # fmt: skip
    doc = {
        "schema": 2, "created": "2026-01-02T03:04:05+00:00", "fingerprint": fingerprint, "latency": latency,
        "options": {"model": "llama-3.2-1b", "batch": 1, "weights": "random weights, seed 7"}, "parity": [],
        "skipped": [], "notes": [],
    }  # fmt: skip
    return {**doc, **fields}
