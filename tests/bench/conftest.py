"""A small source tree with results of its own, losses and empty cells among them, for the tests of ``amk report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_results import result_document, timed_record


@pytest.fixture
def report_tree(tmp_path: Path) -> Path:
    """README and results: a loss, a win, an INVALID cell, cells left out, a failed claim."""
    data = tmp_path / "reports" / "data"
    data.mkdir(parents=True)
    (tmp_path / "README.md").write_text("before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n")
    invalid = {
        "device": "NVIDIA H200", "model": "llama-3.2-1b", "mode": "fast", "precision": "bf16", "batch": 1, "position": 4096,
        "baseline": "rival", "verdict": "INVALID", "reason": "its tokens <differ>",
    }  # fmt: skip
    cells = [timed_record(1.5), timed_record(0.8, position=1024), timed_record(2.5, baseline="weak rival"), invalid]
    claim = {"level": "P1", "claim": "greedy tokens", "measured": "3 of 4", "required": "all", "passed": False}
    left = [
        {"cell": "llama-3.2-1b at 128, batch 4 against vLLM", "reason": "vLLM is not installed", "command": "pip install vllm"},
        {"cell": "SGLang", "reason": "no wheel for this Python", "command": ""},
    ]
    told = [{"text": "llama-3.2-1b: rival: vllm: 0.12.0, torch: 2.11.0, graph: full", "values": {}}]
    doc = result_document(cells, parity=[claim], skipped=left, notes=told)
    (data / "a.json").write_text(json.dumps(doc))
    return tmp_path
