"""Claims: a result file is whole or absent, says its schema, and what does not follow the schema is refused by field."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench import fingerprint, results, table
from amk_bench.clock import Sample
from amk_bench.gate import Check, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block
from amk_bench.results import LatencyRecord, NoteRecord, ParityRecord, ResultError, SkipRecord
from amk_bench.verdict import Verdict
from amk_core.machine import Gpu, Machine

BASE: dict[str, Any] = {
    "device": "cpu", "model": "m", "mode": "exact", "precision": "fp32", "batch": 1, "position": 0, "baseline": "HF eager",
}  # fmt: skip


def measured(ratio: float = 2.0, position: int = 0) -> LatencyRecord:
    """Six blocks of 20 us a token of ours against ``ratio`` times as much."""
    made = [open_gate(Subject(name, "m", 1, position), "P1", [Check("tokens", True, "8 of 8")]) for name in ("AMK", "HF eager")]
    (ours, theirs) = (gate for gate in made if isinstance(gate, PassedGate))
    blocks = tuple(
        Block((Sample(20e-6, 25e-6, 1e-6),) * 2, (Sample(20e-6 * ratio * (1 + 0.01 * i), 50e-6),) * 2, "ABBA") for i in range(6)
    )
    return results.timed(Timing(ours, theirs, blocks, 1, "toy"), device="cpu", mode="exact", precision="fp32", floor=0.01, seed=3)


WIN = measured()
RECORDS = [
    ParityRecord("P2", "logits", "1e-6", "<= 5e-6", True, value=1e-6, limit=5e-6),
    WIN,
    SkipRecord("cell", "no card", "pytest suites --arch=sm_89"),
    NoteRecord("floor", {"noise_floor": 0.01}),
]


def doc() -> dict[str, Any]:
    made = results.document(RECORDS, {"arch": "cpu", "device": "AMD EPYC / 2", "commit": "abc+dirty"}, {"tier": "quick"})
    return json.loads(json.dumps(made))


def test_documents_survive_json() -> None:
    assert sorted(map(repr, results.validate(doc()))) == sorted(map(repr, RECORDS))
    assert doc()["schema"] == 2


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda d: d.update(schema=3), "schema 3"),
        (lambda d: d.pop("skipped"), "skipped: missing"),
        (lambda d: d.update(extra=1), "extra: not a field"),
        (lambda d: d["latency"][0].update(ratio="fast"), "latency.ratio"),
        (lambda d: d["latency"][0].update(ratio=True), "latency.ratio"),
        (lambda d: d["latency"][0].update(verdict="HUGE WIN"), "latency.verdict"),
        (lambda d: d["latency"][0].update(ours_us=None), "needs a passed gate"),
        (lambda d: d["latency"][0].update(gate=""), "needs a passed gate"),
        (lambda d: d["latency"][0].update(speed=3), "latency.speed"),
        (lambda d: d["latency"][0].update(made_by=1), "latency.made_by"),
        (lambda d: d["latency"][0].update(checks=[]), "latency.checks"),
        (lambda d: d["latency"][0].update(checks=[{"side": 1}]), "latency.checks"),
        (lambda d: d["latency"][0].update(host={"ours_us": "x"}), "latency.host"),
        (lambda d: d["latency"][0].update(ours_samples_us=[]), "samples"),
        (lambda d: d["latency"][0]["ours_samples_us"].append(3.0), "13 and 12 samples"),
        (lambda d: d["latency"][0]["ours_samples_us"].__setitem__(slice(0, 12), [10.0] * 12), "latency.ours_us"),
        (lambda d: d["latency"][0].update(ratio=2.04), "latency.ratio: 2.04"),
        (lambda d: d["latency"][0].update(low=2.01), "latency.low"),
        (lambda d: d["latency"][0].update(verdict="LOSS"), "latency.verdict: LOSS"),
        (lambda d: d["latency"][0].update(floor=1.5), "latency.verdict: WIN"),
        (lambda d: d.update(fingerprint=None), "fingerprint"),
        (lambda d: d["parity"][0].pop("passed"), "passed"),
        (lambda d: d["parity"][0].update(passed=1), "parity.passed"),
        (lambda d: d.update(notes={}), "notes: a list"),
    ],
)
def test_damage_is_named(damage: Callable[[dict[str, Any]], object], field: str) -> None:
    broken = doc()
    damage(broken)
    with pytest.raises(ResultError, match=field):
        results.validate(broken)


def test_an_invalid_cell_carries_a_reason_and_no_time() -> None:
    assert LatencyRecord(**BASE, verdict="INVALID", reason="tokens differ").ratio is None
    with pytest.raises(ResultError, match="says why"):
        LatencyRecord(**BASE, verdict="INVALID")
    with pytest.raises(ResultError, match="no time"):
        LatencyRecord(**BASE, verdict="INVALID", reason="tokens differ", ours_us=3.0)


def test_a_time_cannot_be_written_down_by_hand() -> None:
    """Whatever the fields say: without a Timing, whose gates have passed, there is no record with a time."""
    fields = {k: v for k, v in results.to_json(WIN).items() if k != "type"}
    with pytest.raises(TypeError, match=r"made by amk_bench\.results\.timed"):
        LatencyRecord(**fields)
    with pytest.raises(TypeError, match=r"made by amk_bench\.results\.timed"):
        LatencyRecord(**fields, made_by=object())
    with pytest.raises(TypeError, match=r"made by amk_bench\.results\.timed"):
        dataclasses.replace(WIN, made_by=None)
    with pytest.raises(TypeError, match="made from a Timing"):
        results.timed({"blocks": []}, device="cpu", mode="exact", precision="fp32", floor=0.01)  # type: ignore[arg-type]
    with pytest.raises(ResultError, match="no time"):
        LatencyRecord(**BASE, verdict="INVALID", reason="x", ours_samples_us=[1.0])


def test_a_timed_record_keeps_every_sample_and_what_its_gates_saw() -> None:
    assert (WIN.verdict, WIN.gate, WIN.tokens, WIN.clock, WIN.baseline) == ("WIN", "P1", 1, "toy", "HF eager")
    assert WIN.ratio == pytest.approx(2.0 * 1.025, rel=1e-3)
    assert WIN.ours_samples_us == pytest.approx([20.0] * 12)
    assert WIN.host["ours_us"] == pytest.approx([25.0] * 12)
    assert WIN.host["ours_tail_us"] == pytest.approx([1.0] * 12)
    assert WIN.checks == [{"side": side, "name": "tokens", "measured": "8 of 8"} for side in ("ours", "baseline")]


def test_schema_1_is_read_and_its_figures_are_checked_where_it_has_samples() -> None:
    old = doc()
    for name in ("seed", "label", "cache", "checks", "host", "derived", "conditions"):
        del old["latency"][0][name]
    old.update(schema=1)
    old["fingerprint"]["seeds"] = {"all": 3}
    assert len(results.validate(old)) == 4
    damaged = json.loads(json.dumps(old))
    damaged["latency"][0]["ratio"] *= 1.01
    with pytest.raises(ResultError, match=r"latency\.ratio"):
        results.validate(damaged)
    for side in ("ours", "baseline"):
        del old["latency"][0][f"{side}_samples_us"]
    assert len(results.validate(old)) == 4


def test_every_committed_result_follows_from_its_samples() -> None:
    committed = sorted((Path(__file__).parents[2] / "reports" / "data").glob("*.json"))
    assert committed
    for path in committed:
        records = results.validate(json.loads(path.read_text("utf-8")))
        assert all(r.ours_samples_us for r in records if isinstance(r, LatencyRecord) and r.ours_us)


def test_numbers_of_numpy_and_enumerations_become_plain() -> None:
    record = dataclasses.replace(RECORDS[0], value=np.float64(2.0), measured=Verdict.WIN)
    plain = results.to_json(record)
    assert type(plain["measured"]) is str
    assert type(plain["value"]) is float


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reports" / "run.json"
    results.write_atomically(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(FileExistsError):
        results.write_atomically(path, {"a": 2})
    results.write_atomically(path, {"a": 3}, replace=True)
    with pytest.raises(ValueError, match="JSON"):
        results.write_atomically(path, {"a": float("nan")}, replace=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        results.write_atomically(path, {"a": 4}, replace=True)
    assert json.loads(path.read_text()) == {"a": 3}
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


def test_report_names_are_file_names() -> None:
    name = results.report_name(doc())
    assert name.endswith("_cpu_AMD-EPYC-2_abc+dirty.json".replace("_", "-"))
    assert not set(name) & set(' /\\:*?"<>|')


def test_losses_stand_first_with_absolute_times_beside_ratios() -> None:
    loss = measured(0.5, position=512)
    invalid = LatencyRecord(**{**BASE, "position": 16}, verdict="INVALID", reason="NaN")
    lines, verdicts = table.win_loss([WIN, loss, invalid])
    assert [v for v in verdicts if v] == ["INVALID", "LOSS", "WIN"]
    row = lines[verdicts.index("LOSS")]
    for text in ("512", "20.00", "10.25", "0.512x", "0.502 .. 0.52", "P1", "HF eager fp32"):
        assert text in row
    assert table.tally([WIN, loss, invalid]) == "1 INVALID, 1 LOSS, 1 WIN of 3 cells"
    ascii_lines, _ = table.win_loss([WIN], ascii_only=True)
    assert "\n".join(ascii_lines).isascii()


def test_what_is_to_be_known_of_the_machine_is_told() -> None:
    capped = dataclasses.replace(
        WIN,
        label="power-capped throughout",
        derived={"ours_share": 0.5, "measured_gb_s": 4000.0, "ours_joules": 0.125},
        made_by=results._KEY,
    )
    half = dataclasses.replace(WIN, derived={"ours_share": 0.75, "measured_gb_s": 4000.0}, made_by=results._KEY)
    assert table.machine([capped, half, WIN]) == [
        "1 of 3 cells: power-capped throughout",
        "ours: 50 to 75 % of the 4000 GB/s that this device was measured to read",
        "ours: 0.125 to 0.125 joules a token",
    ]
    assert table.machine([WIN]) == []


def test_failed_parity_stands_first() -> None:
    good, bad = RECORDS[0], ParityRecord("P3", "perplexity", "1e-3", "<= 2.5e-7", False)
    assert isinstance(good, ParityRecord)
    lines, held = table.parity([good, bad])
    assert [h for h in held if h is not None] == [False, True]
    assert "FAIL" in lines[held.index(False)]


def test_skips_with_one_reason_are_told_once() -> None:
    lines = table.skipped([SkipRecord("a", "no card", "run it"), SkipRecord("b", "no card", "run it"), SkipRecord("c", "no net")])
    assert lines == ["a, b: no card", "    run: run it", "c: no net"]


def test_fingerprint_hashes_the_card_and_compares_what_matters(tmp_path: Path) -> None:
    machine = Machine(
        "Linux", "3", "EPYC", "x86-64-v4", 2, 2**34, 2**33, None, (Gpu("NVIDIA L4", "sm_89", 1, "580.1", "GPU-secret"),), {}
    )
    one = fingerprint.take(machine, "sm_89", "NVIDIA L4", ["pytest", "suites"], {"all": 1}, tmp_path)
    assert one.driver == "580.1"
    assert "secret" not in json.dumps(one.to_json())
    assert one.device_id.startswith("uuid-")
    assert one.commit == "unknown"
    other = {**one.to_json(), "commit": "other", "command": "pytest x", "device_id": "uuid-2"}
    assert fingerprint.differences(one.to_json(), other) == []
    assert fingerprint.differences(one.to_json(), {**other, "driver": "570.0"}) == ["driver: '580.1' against '570.0'"]
