"""The figures of docs/performance.md are those of the committed run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk_bench import device_check
from amk_bench.clock import HOST_SLACK_S, TAIL_SLACK_S
from amk_bench.device_timing import Timing, report, table
from amk_bench.floor import Bandwidth
from amk_bench.report.kinds import KINDS

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_document_is_generated_from_the_newest_run() -> None:
    newest = max((ROOT / "reports" / "data" / "device").glob("*-timing.json"))
    text = (ROOT / "docs" / "performance.md").read_text()
    shown = text.split("<!-- table: begin -->\n")[1].split("\n<!-- table: end -->")[0]
    assert shown == table(json.loads(newest.read_text()))
    assert newest.name in text


def test_what_a_run_leaves_behind_is_what_the_report_takes() -> None:
    """A file that the writer makes and the reader refuses would be told only when a card has been paid for it."""
    facts = SimpleNamespace(arch="sm_90", name="NVIDIA H200")
    rows = [Timing("llama-3.2-1b", 128, 1, {}, 32, (656.0, 655.0, 657.0), 546.0)]
    made = json.loads(json.dumps(report(rows, facts, "0123456789ab", Bandwidth(4.5e12, 1 << 26, 1 << 32, "made up", None))))
    (kind,) = [k for k in KINDS if k.recognises(made)]
    assert kind.name == "timing"
    kind.holds(made)
    assert made["amk"]["timings"][0]["median_us"] == 656.0


def test_what_methodology_says_of_the_card_s_clocks_is_what_was_read() -> None:
    """An idle device says so in 3 to 6 us; host and device differ by 7 to 9 us, in one call of a hundred by 21."""
    newest = max((ROOT / "reports" / "data" / "device").glob("*-instruments.json"))
    assert newest.name in (ROOT / "docs" / "methodology.md").read_text()
    for clock in json.loads(newest.read_text())["clocks"].values():
        apart = np.subtract(clock["host_us"], clock["device_us"])
        assert 2.5 <= np.median(clock["tail_us"]) <= 6.0
        assert 6.5 <= np.median(apart) <= 9.0
        assert np.quantile(apart, 0.99) <= 21.0
        assert np.quantile(apart, 0.99) <= 1e6 * HOST_SLACK_S
        assert np.quantile(clock["tail_us"], 0.99) <= 1e6 * TAIL_SLACK_S


def test_medians_are_those_of_the_samples() -> None:
    for path in (ROOT / "reports" / "data" / "device").glob("*-timing.json"):
        for t in json.loads(path.read_text())["amk"]["timings"]:
            samples = sorted(t["samples_us"])
            assert t["median_us"] == samples[len(samples) // 2]
            assert t["weights"] == "random"


def test_what_is_traced_is_the_program_that_was_timed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A batched program's trace is of its batch: both are made from the same settings, but for the tracer."""
    made: list[tuple[Any, Any]] = []

    def timed_vm(model: str, context: int, device: Any, cache: Any, config: Any, **rest: Any) -> Any:
        made.append((config, {k: v for k, v in rest.items() if k != "shared"}))
        return SimpleNamespace(tape=SimpleNamespace(size=1))

    def measure(model: str, position: int, *rest: Any, **more: Any) -> Timing:
        return Timing(model, position, more["batch"], {}, 32, (1.0,), 1.0)

    from amk_core.vm import driver

    monkeypatch.setattr(driver, "Device", lambda: SimpleNamespace(facts="a card"))
    read = SimpleNamespace(bandwidth=lambda: SimpleNamespace(bytes_per_s=1e12))
    monkeypatch.setattr(device_check.instruments, "for_cuda", lambda device: read)
    monkeypatch.setattr(device_check, "timed_vm", timed_vm)
    monkeypatch.setattr(device_check, "measure", measure)
    monkeypatch.setattr(device_check, "trace", lambda vm, position: SimpleNamespace())
    monkeypatch.setattr(device_check, "traced", lambda *rest: None)
    monkeypatch.setattr(device_check.tracing, "table", lambda axis: "table")
    monkeypatch.setattr(device_check.tracing, "hand_offs", lambda axis: "hand-offs")
    config = '{"batch": 4, "positions": [16], "handoff": "counter", "flight": [2, 2, 1], "weights": "int8"}'
    assert device_check.main(["time", "--models", "smollm2-135m", "--config", config, "--trace"]) == 0
    settings = {"batch": 4, "flight": (2, 2, 1), "layers": 0, "weights": "int8"}
    assert made == [({"handoff": "counter"}, settings), ({"handoff": "counter"}, settings | {"trace": True})]
    assert capsys.readouterr().out.count("hand-offs") == 1
