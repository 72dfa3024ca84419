"""Claims: two results compare cell by cell with the baseline as control, and not at all when they are of different machines."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench import compare, results
from amk_bench.clock import Sample
from amk_bench.gate import Check, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block
from amk_core import cli

STAMP: dict[str, Any] = {
    "arch": "cpu", "device": "EPYC", "device_id": "", "driver": "", "cpu": "EPYC", "cores": 2, "os": "Linux 6", "python": "3.11.7",
    "libraries": {"torch": "2.13.0", "numpy": "2.4"}, "policy": {"cpu_governor": "performance"}, "commit": "abc",
    "command": "pytest", "seeds": {"all": 1},
}  # fmt: skip


def record(
    ours_us: float, baseline_us: float, position: int = 0, noise: float = 0.002, floor: float = 0.01
) -> results.LatencyRecord:
    made = [open_gate(Subject(name, "m", 1, position), "P1", [Check("tokens", True, "all")]) for name in ("AMK", "HF eager")]
    ours, theirs = (gate for gate in made if isinstance(gate, PassedGate))
    rng = np.random.default_rng(position)

    def pair(us: float) -> tuple[Sample, Sample]:
        first, second = (us * 1e-6 * float(np.exp(noise * rng.standard_normal())) for _ in range(2))
        return Sample(first, first), Sample(second, second)

    blocks = tuple(Block(pair(ours_us), pair(baseline_us), "ABBA") for _ in range(30))
    return results.timed(Timing(ours, theirs, blocks, 1, "toy"), device="EPYC", mode="exact", precision="fp32", floor=floor)


def doc(*records: results.Record, **stamp: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(results.document(records, {**STAMP, **stamp}, {})))
    return made


def one(before: results.LatencyRecord, after: results.LatencyRecord) -> compare.Change:
    (change,) = compare.compare(doc(before), doc(after)).changes
    return change


def test_what_became_slower_stands_first_with_both_times() -> None:
    before = doc(record(100, 200), record(100, 200, 16), record(100, 200, 128))
    after = doc(record(100, 200), record(110, 200, 16), record(90, 200, 128))
    result = compare.compare(before, after)
    assert [(c.verdict, c.name.split(", ")[2]) for c in result.changes] == [
        ("SLOWER", "position 16"), ("SAME", "position 0"), ("FASTER", "position 128"),
    ]  # fmt: skip
    slower = result.changes[0]
    assert (slower.before_us, slower.after_us) == pytest.approx((100, 110), rel=0.01)
    assert slower.relative == pytest.approx(100 / 110, rel=0.01)
    assert slower.low < slower.relative < slower.high


def test_a_machine_that_slowed_down_is_no_regression() -> None:
    """Both sides a fifth slower: the baseline, the same program in both runs, says that it was the machine."""
    change = one(record(100, 200), record(120, 240))
    assert change.ours == pytest.approx(1 / 1.2, rel=0.01)
    assert change.baseline == pytest.approx(1 / 1.2, rel=0.01)
    assert change.verdict == "SAME"


def test_noise_is_unclear_not_same() -> None:
    assert one(record(100, 200, noise=0.2), record(100, 200, 0, noise=0.2)).verdict == "UNCLEAR"
    assert one(record(100, 200, floor=0.1), record(103, 200, floor=0.01)).verdict == "UNCLEAR"


def test_cells_of_one_file_only_and_invalid_cells_are_told() -> None:
    bad = results.LatencyRecord("EPYC", "m", "exact", "fp32", 1, 16, "HF eager", "INVALID", reason="tokens differ")
    result = compare.compare(doc(record(1, 2), record(1, 2, 16)), doc(bad, record(1, 2, 512)))
    assert not result.changes
    told = "\n".join(result.only)
    assert "position 0, batch 1, against HF eager fp32: only in the first" in told
    assert "position 512, batch 1, against HF eager fp32: only in the second" in told
    assert "INVALID in the second: tokens differ" in told
    assert "no timed cell in common" in "\n".join(compare.lines(result))


def test_an_old_result_without_samples_is_told_and_not_compared() -> None:
    old = doc(record(1, 2))
    old["schema"] = 1
    for side in ("ours", "baseline"):
        del old["latency"][0][f"{side}_samples_us"]
    result = compare.compare(old, doc(record(1, 2)))
    assert not result.changes
    assert result.only == ("m, exact, position 0, batch 1, against HF eager fp32: no samples in the first",)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device": "NVIDIA L4"}, "device: 'EPYC' against 'NVIDIA L4'"),
        ({"driver": "580"}, "driver"),
        ({"libraries": {"torch": "2.12.0", "numpy": "2.4"}}, "libraries.torch: '2.13.0' against '2.12.0'"),
        ({"libraries": {"torch": "2.13.0"}}, "libraries.numpy: '2.4' against None"),
        ({"policy": {"cpu_governor": "powersave"}}, "policy.cpu_governor"),
        ({"cores": 4}, "cores: 2 against 4"),
        ({"python": "3.12.0"}, "python"),
    ],
)
def test_other_machines_and_setups_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    before, after = doc(record(1, 2)), doc(record(1, 2), **change)
    with pytest.raises(compare.Incomparable) as refusal:
        compare.compare(before, after)
    assert named in str(refusal.value)
    allowed = compare.compare(before, after, allow_different=True)
    assert len(allowed.changes) == 1
    assert any(named in line for line in compare.lines(allowed))


@pytest.mark.parametrize("change", [{"device_id": "uuid-2"}, {"commit": "def"}, {"command": "pytest x"}, {"seeds": {"all": 2}}])
def test_the_card_s_identity_and_the_commit_do_not_have_to_match(change: dict[str, Any]) -> None:
    assert compare.compare(doc(record(1, 2)), doc(record(1, 2), **change)).differences == ()


def test_command_reads_both_kinds_of_files_and_answers_1_for_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(doc(record(100, 200))))
    b.write_text(json.dumps({"benchmarks": [], "amk": doc(record(110, 200))}))
    assert cli.main(["report", "compare", str(a), str(b)]) == 1
    assert "SLOWER" in capsys.readouterr().out
    assert cli.main(["report", "compare", str(b), str(a)]) == 0
    assert "FASTER" in capsys.readouterr().out
    b.write_text(json.dumps(doc(record(100, 200), driver="580")))
    assert cli.main(["report", "compare", str(a), str(b)]) == 2
    assert "--allow-different" in capsys.readouterr().err
    assert cli.main(["report", "compare", str(a), str(b), "--allow-different"]) == 0
    capsys.readouterr()
    for text, said in (
        ("{", "not JSON"),
        ('{"benchmarks": []}', "was the plugin amk_bench loaded?"),
        ('{"schema": 7}', "schema 7"),
    ):
        b.write_text(text)
        assert cli.main(["report", "compare", str(a), str(b)]) == 2
        assert said in capsys.readouterr().err


def test_documents_are_not_changed_by_comparing() -> None:
    before, after = doc(record(1, 2)), doc(record(1, 2))
    kept = copy.deepcopy((before, after))
    compare.compare(before, after)
    assert (before, after) == kept
