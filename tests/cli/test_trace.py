"""``amk trace``: without a card it says so; with recorded times it prints the tables and writes the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from amk_bench.device_cases import GRAPHS
from amk_core import cli
from amk_core.commands import trace
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import tracing
from amk_core.vm.driver import library_present


@pytest.mark.skipif(library_present(), reason="this machine has an NVIDIA driver")
def test_without_a_card_the_error_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.bindings.driver")
    assert cli.main(["trace", "smollm2-135m"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "no usable CUDA driver on this machine" in error
    assert "Traceback" not in error


def test_a_negative_position_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "smollm2-135m", "--position", "-1"]) == 2
    assert "--position is -1" in capsys.readouterr().err


class Vm:
    """A traced machine whose launch took one microsecond a task."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self.buffers: dict[str, Any] = {}
        self.launched: list[Any] = []

    def buffer(self, name: str) -> Any:
        return self.buffers.setdefault(name, np.ones((1, 1), np.int32))

    def variables(self, position: int, tokens: int) -> list[int]:
        return [position, tokens]

    def launch(self, steps: int, variables: list[int]) -> None:
        self.launched.append((steps, variables))

    def wait(self) -> None: ...

    def trace_records(self) -> tuple[Any, Any]:
        s, steps = self.schedule, self.launched[-1][0]
        records = np.zeros((steps, s.n_tasks, 4), np.uint32)
        anchors = np.zeros((s.n_queues, 2, 2), np.uint64)
        for q in range(s.n_queues):
            a, e = int(s.columns.queue_off[q]), int(s.columns.queue_off[q + 1])
            for step in range(steps):
                records[step, a:e] = 1000 * (step * (e - a) + np.arange(e - a))[:, None] + np.array([0, 100, 900, 1000])
            anchors[q] = [[0, 0], [1000 * steps * (e - a), 1000 * steps * (e - a)]]
        return records, anchors


def test_the_tables_and_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = lower(GRAPHS["small"], None, Target("Some card", "sm_90", 3, 232_448), Geometry(context=128), "fast")
    vm = Vm(schedule)

    class Model:
        batch, graph, target = 1, GRAPHS["small"], Target("Some card", "sm_90", 3, 232_448)
        filled: ClassVar[list[Any]] = []

        def program(self, purpose: str) -> Any:
            return type("Program", (), {"schedule": schedule, "geometry": Geometry(context=128)})

        def prefill(self, prompts: Any) -> None:
            self.filled.extend(prompts)

        def traced(self) -> Vm:
            return vm

    monkeypatch.setattr("amk_core.load", lambda *a, **k: Model())
    assert cli.main(["trace", "small", "--position", "40", "--tokens", "3", "--perfetto", str(tmp_path / "t.json")]) == 0
    out = capsys.readouterr().out
    assert "small fast on Some card, 3 queues, position 40" in out
    assert "down_proj" in out
    assert vm.launched == [(3, [40, 3])]
    assert len(Model.filled[0]) == 40
    assert vm.buffers["done"].tolist() == [[0]]
    slices = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in slices) == 3 * 3 * schedule.n_tasks
    with pytest.raises(ValueError, match="200 steps"):
        trace.record(Model(), 0, 200)
    assert tracing.BETWEEN in out
