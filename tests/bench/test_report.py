"""From committed files to rows: what is read is validated, the strongest rival counts, the worst stands first, gaps say why."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_up_results import result_document, timed_record

from amk_bench.fleet.cells import Folder, Outcome, State
from amk_bench.fleet.jobs import Job
from amk_bench.report import cards, evidence, exports, grid, mutants, pairs, rivals, series, shape, sources, waterfall
from amk_bench.report.outputs import Evidence, outputs, site
from amk_bench.report.sources import collect, read
from amk_bench.results import ResultError
from amk_core import cli

ROOT = Path(__file__).resolve().parents[2]


def put(tree: Path, name: str, doc: Any) -> None:
    path = tree / "reports" / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(doc if isinstance(doc, str) else json.dumps(doc))


@pytest.fixture(scope="module")
def committed() -> list[sources.Source]:
    return collect(ROOT)


def test_every_committed_file_has_a_kind_and_holds(committed: list[sources.Source]) -> None:
    found = {s.kind.name for s in committed}
    assert {"result", "timing", "instruments", "attack", "forgeries", "second-opinion", "threads", "speed", "lowerings"} <= found
    assert len({s.anchor for s in committed}) == len(committed)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("timing", lambda d: d["amk"]["timings"][0].update(median_us=1.0), r"timings\[0\]\.median_us: 1\.0, but its samples give"),
        ("timing", lambda d: d["amk"]["timings"][2].update(samples_us=[-1.0]), r"timings\[2\]\.samples_us: positive"),
        ("timing", lambda d: d["amk"]["timings"][1].pop("weights"), r"timings\[1\]\.weights: missing"),
        ("mutation", lambda d: d["deaths"].update(verdict=0), "deaths: .* are told for"),
        ("forgeries", lambda d: d["corruptions"][0].update(refused=-1), "is not n ="),
        ("second-opinion", lambda d: d["rows"][0].update(compared=0), "is not n ="),
        ("lowerings", lambda d: d["rows"][0].update(n="70"), r"rows\[0\]\.n: '70' is not int"),
        ("speed", lambda d: d["points"][0].update(validate_s=None), r"points\[0\]\.validate_s: None is not float"),
        ("result", lambda d: d["latency"][0].update(ours_us=9.0), "ours_us: 9.0, but its samples give"),
        ("result", lambda d: d.update(more=1), "more: not a field"),
    ],
)
def test_a_file_that_was_changed_is_refused_by_name(
    committed: list[sources.Source], tmp_path: Path, kind: str, change: Any, message: str
) -> None:
    source = next(s for s in committed if s.kind.name == kind and (kind != "result" or s.doc["latency"]))
    doc = json.loads((ROOT / source.path).read_text())
    change(doc)
    put(tmp_path, "changed.json", doc)
    with pytest.raises(ResultError, match=rf"reports/data/changed\.json: .*{message}"):
        collect(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[1]", '{"something": "else"}', "no json"])
def test_a_file_of_no_known_kind_is_refused(tmp_path: Path, text: str) -> None:
    put(tmp_path, "new.json", text)
    with pytest.raises(ResultError, match=r"reports/data/new\.json"):
        collect(tmp_path)


def test_shapes() -> None:
    s = {"a": int, "b?": [float], "c": (str, None.__class__), "*": bool}
    shape.check({"a": 1, "b": [1, 2.5], "c": None, "d": True}, s)
    for value, where in (
        ({"a": True, "c": ""}, r"document\.a: True is not int"),
        ({"c": ""}, r"document\.a: missing"),
        ({"a": 1, "c": 2}, r"document\.c: 2 is none of str, NoneType"),
        ({"a": 1, "c": "", "b": [float("nan")]}, r"document\.b\[0\]: nan is not float"),
        ({"a": 1, "c": "", "d": 0}, r"document\.d: 0 is not bool"),
    ):
        with pytest.raises(ResultError, match=where):
            shape.check(value, s)
    with pytest.raises(ResultError, match=r"document\.x: no such field"):
        shape.check({"x": 1}, {"a?": int})


def test_the_strongest_rival_counts_and_the_worst_cell_stands_first(report_tree: Path) -> None:
    e = Evidence.read(report_tree)
    assert [(p.record.verdict, p.record.position, p.rival) for p in e.best] == [
        ("LOSS", 1024, "rival"),
        ("INVALID", 4096, "rival"),
        ("WIN", 128, "rival"),
    ]
    assert pairs.tally(e.best) == "1 LOSS, 1 INVALID, 1 WIN of 3 cells"
    assert [p.rival for p in e.pairs] == ["rival", "rival", "rival", "weak rival"]
    loss = e.best[0]
    assert loss.rival_version == "vllm 0.12.0, torch 2.11.0"
    assert loss.precisions == ("bf16", "bf16")
    assert loss.weights == "random"
    assert loss.ours_interval is not None
    assert 100.0 <= loss.ours_interval[0] <= (loss.record.ours_us or 0) <= loss.ours_interval[1] <= 100.2
    assert loss.wall_us("ours") == (loss.record.ours_us or 0) + 2


def test_the_newest_record_of_a_cell_counts_even_where_it_is_invalid(report_tree: Path) -> None:
    newer = "2026-02-02T00:00:00+00:00"
    put(report_tree, "0.json", result_document([timed_record(3.0, position=1024)], created=newer))
    assert pairs.tally(Evidence.read(report_tree).best) == "1 INVALID, 2 WIN of 3 cells"
    broken = {k: v for k, v in timed_record(1.0).items() if isinstance(v, str | int) and k != "gate"}
    keep = ("device", "model", "mode", "precision", "batch", "position", "baseline")
    bad = {**{k: broken[k] for k in keep}, "verdict": "INVALID", "reason": "gate"}
    put(report_tree, "1.json", result_document([bad], created=newer))
    best = {p.record.position: p for p in Evidence.read(report_tree).best}
    assert best[128].rival == "weak rival", "the pair that still has a time"


def test_sides_of_unequal_precision_and_other_weights_are_told(tmp_path: Path) -> None:
    cells = [timed_record(1.5, precision="bf16 against int8")]
    put(tmp_path, "a.json", result_document(cells, options={"model": "m", "weights": "the checkpoint's weights"}))
    (pair,) = pairs.newest(collect(tmp_path))
    assert pair.precisions == ("bf16", "int8")
    assert pair.weights == "trained"
    assert pair.rival_version == ""
    assert pair.rival_as_run == "rival, int8"


def test_rivals_of_unequal_precision_do_not_hide_the_equal_ones(report_tree: Path) -> None:
    cells = [timed_record(0.5, precision="bf16 against int8", baseline="quantised")]
    put(report_tree, "b.json", result_document(cells))
    e = Evidence.read(report_tree)
    assert [(p.rival, p.record.position) for p in e.best][:2] == [("quantised", 128), ("rival", 1024)]
    assert ("rival", 128) in [(p.rival, p.record.position) for p in e.best]
    (device,) = grid.grid(e.best, e.gaps)
    assert [r.precision for r in device.rows if r.model == "llama-3.2-1b"] == ["bf16", "bf16", "bf16", "bf16 against int8"]
    (chart,) = series.against_position(e.pairs, e.files)
    assert "quantised, int8" in [line.name for line in chart.lines]


def test_every_cell_of_the_grid_is_a_pair_or_has_a_reason(report_tree: Path) -> None:
    e = Evidence.read(report_tree)
    (device,) = grid.grid(e.best, e.gaps)
    assert device.positions == (128, 1024, 4096)
    assert len(device.rows) == 4 * 3
    assert [r.model for r in device.rows[::3]] == ["llama-3.2-1b", "smollm2-135m", "tinyllama-1.1b", "llama-3.1-8b"]
    rows = {(r.model, r.batch): r.cells for r in device.rows}
    assert [isinstance(c, pairs.Pair) for c in rows["llama-3.2-1b", 1]] == [True] * 3
    left = rows["llama-3.2-1b", 4][0]
    assert isinstance(left, grid.Reason)
    assert left.text == "vLLM is not installed"
    assert left.command == "pip install vllm"
    beyond = rows["tinyllama-1.1b", 16][2]
    assert isinstance(beyond, grid.Reason)
    assert beyond.text == "the model's context ends at 2048"
    asked = rows["llama-3.1-8b", 4][1]
    assert isinstance(asked, grid.Reason)
    assert asked.text == grid.NOT_ASKED
    assert "--model llama-3.1-8b --batch 4 --positions 1024" in asked.command


def test_a_rival_that_no_run_can_have_hides_no_other_reason(tmp_path: Path) -> None:
    """Its reason stands once in the table of rivals and once below the pairs, however many cells name it."""
    (tmp_path / "reports" / "data").mkdir(parents=True)
    left = [
        {"cell": f"llama-3.2-1b at {at} against {name}", "reason": reason, "command": ""}
        for at in (128, 1024)
        for name, reason in (("mirage", "no adapter builds it"), ("vllm", "it ran out of memory"))
    ]
    slow = timed_record(1.5, position=4096)
    slow["derived"]["baseline_busy_us"] = 77.25
    for number, cell in ((1, slow), (2, timed_record(1.5, position=4096))):  # the newer run has no profile
        doc = result_document([cell], skipped=left, created=f"2026-01-0{number}T03:04:05+00:00")
        (tmp_path / "reports" / "data" / f"{number}.json").write_text(json.dumps(doc))
    e = Evidence.read(tmp_path)
    rows = {(r.model, r.batch): r.cells for r in grid.grid(e.best, e.gaps)[0].rows}
    assert [getattr(c, "text", "") for c in rows["llama-3.2-1b", 1]] == ["it ran out of memory"] * 2 + [""]
    table = rivals.table(e.pairs, e.gaps, e.files)
    assert "it ran out of memory" in table
    assert "no adapter builds it" not in table
    shown = site(e, tmp_path, tmp_path / "site", documented=False)["index.html"]
    assert shown.count("<div>no adapter builds it</div>") == 2
    assert ">2 cells<" in shown
    assert "GPU busy 77.25" in shown


@pytest.mark.parametrize(
    ("label", "told", "wanted"),
    [
        ("llama-3.2-1b (random weights)", "None", ("llama-3.2-1b", "random")),
        ("llama-3.2-1b, random weights", "None", ("llama-3.2-1b", "random")),
        ("smollm2-135m", "random weights, seed 7", ("smollm2-135m", "random")),
        ("smollm2-135m", "None", ("smollm2-135m", "trained")),
    ],
)
def test_names_of_models_and_their_weights(label: str, told: str, wanted: tuple[str, str]) -> None:
    assert pairs.named(label, told) == wanted


@pytest.mark.parametrize(
    ("cell", "where"),
    [
        ("tinyllama-1.1b at 1024, batch 4 against vllm", ("tinyllama-1.1b", "", 4, 1024, "vllm")),
        ("tinyllama-1.1b (random weights): latency at position 4096", ("tinyllama-1.1b", "random", 1, 4096, "")),
        ("smollm2-135m: latency against vllm", ("smollm2-135m", "", 1, None, "vllm")),
        ("latency of tinyllama-1.1b, random weights", ("tinyllama-1.1b", "random", 1, None, "")),
        ("P5: CPU and GPU give equal bits", ("", "", 0, None, "")),
    ],
)
def test_cells_that_runs_left_out_are_understood(tmp_path: Path, cell: str, where: tuple[Any, ...]) -> None:
    put(tmp_path, "a.json", result_document([], skipped=[{"cell": cell, "reason": "r"}], options={}))
    (gap,) = pairs.gaps(collect(tmp_path))
    assert (gap.model, gap.weights, gap.batch, gap.position, gap.rival) == where
    there = pairs.Cell("NVIDIA H200", where[0] or "any", "random", "fast", "bf16", where[2], where[3] or 128)
    assert gap.covers(there) is bool(where[0])
    assert not gap.covers(there._replace(device="other"))
    assert gap.covers(there._replace(weights="trained")) is (where[0] != "" and where[1] == "")


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA L4", "l4"), ("NVIDIA L40S", "l40s"), ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A10G", "a10g"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("AMD EPYC", None), ("NVIDIA GeForce RTX 4090", None),
    ],
)  # fmt: skip
def test_cards_by_the_driver_s_name(device: str, card: str | None) -> None:
    found = cards.card_of(device)
    assert (found and found.name) == card


def test_the_parts_of_a_step_add_up_to_it() -> None:
    def phase(name: str, last: float, execute: float, n: int = 1) -> dict[str, Any]:
        return {"name": name, "a_step": n, "last_signal": last, "execute_slowest": execute}

    slow = [phase("qkv", 5.0, 4.0, 10), phase("attn", 3.0, 2.5, 10)]
    parts = waterfall.split(85.0, 30.0, slow)
    assert parts == {"floor": 30.0, "products": 10.0, "attention": 25.0, "hand-offs": 15.0, "other": 5.0}
    # Weights that came during hand-offs: products shorter than the floor.
    parts = waterfall.split(85.0, 45.0, slow)
    assert parts == {"floor": 45.0, "products": 0.0, "attention": 25.0, "hand-offs": 10.0, "other": 5.0}
    assert sum(waterfall.split(78.0, 45.0, slow).values()) == pytest.approx(78.0)


def test_traces_in_logs_and_in_files_are_read_alike(committed: list[sources.Source], tmp_path: Path) -> None:
    (log,) = [s for s in committed if s.name == "20-trace.txt"]
    put(tmp_path, "20-trace.txt", log.doc)
    steps = {(s.model, s.position): s for s in waterfall.steps(collect(tmp_path), [])}
    assert sorted(steps) == [("llama-3.1-8b", 16), ("llama-3.1-8b", 2000), ("smollm2-135m", 16), ("smollm2-135m", 2000)]
    small = steps["smollm2-135m", 16]
    assert small.step_us == 347.8
    assert sum(small.parts.values()) == pytest.approx(347.8)
    assert small.parts["attention"] == pytest.approx(30 * 1.39)
    assert small.shares["gate_up"] == pytest.approx(0.334)
    phases = [
        {"name": "qkv", "a_step": 30, "last_signal": 2.0, "execute_slowest": 1.0},
        {"name": "attn", "a_step": 30, "last_signal": 1.0, "execute_slowest": 0.5},
    ]
    regions = [{"name": "qkv", "tasks": 1, "share": 0.75}, {"name": "between tasks", "tasks": 1, "share": 0.25}]
    trace = {
        "model": "smollm2-135m", "position": 128, "batch": 1, "config": {}, "weights": "random", "tape_bytes": 88_000_000,
        "steps": 3, "step_us": 95.0, "spread": 0.0, "off_us": 0.1, "regions": regions, "phases": phases,
    }  # fmt: skip
    (timing,) = [s for s in committed if s.name == "2026-11-30-h200-timing.json"]
    doc = json.loads((ROOT / timing.path).read_text())
    bandwidth = {"bytes_per_s": 4.4e12, "cache_bytes": 1, "buffer_bytes": 9, "method": "m", "datasheet_bytes_per_s": None}
    doc["amk"] |= {"bandwidth": bandwidth, "traces": [trace]}
    put(tmp_path, "2026-12-01-h200-timing.json", doc)
    found = [s for s in waterfall.steps(collect(tmp_path), []) if s.model == "smollm2-135m"]
    assert [s.position for s in found] == [128], "the file with a fingerprint stands in the log's stead"
    assert found[0].parts == pytest.approx({"floor": 20.0, "products": 10.0, "attention": 15.0, "hand-offs": 45.0, "other": 5.0})
    doc["amk"]["traces"][0]["regions"][0]["share"] = 0.5
    put(tmp_path, "2026-12-01-h200-timing.json", doc)
    with pytest.raises(ResultError, match=r"traces\[0\]: the shares of its regions add up to 0\.75"):
        collect(tmp_path)


def test_lines_of_the_charts(report_tree: Path, committed: list[sources.Source]) -> None:
    e = Evidence.read(report_tree)
    (chart,) = series.against_position(e.pairs, e.files)
    assert chart.xs == (128, 1024)
    assert [line.name for line in chart.lines] == [series.OURS, "rival", "weak rival"]
    assert [p.us for p in chart.lines[1].points] == pytest.approx([150.0, 80.0], rel=0.01)
    alone = [line for c in series.against_position([], committed) for line in c.lines]
    assert {line.name for line in alone} == {series.ALONE}
    history = series.history(committed)
    assert all(len(runs) > 1 for runs in history.values())
    runs = history["NVIDIA H200", "llama-3.2-1b", "random", "fast", 1, 128]
    assert [round(r.us) for r in runs[:2]] == [794, 658]


def test_what_is_said_of_the_validator_is_what_the_files_say(committed: list[sources.Source]) -> None:
    found = {f.claim: f for f in evidence.findings(committed)}
    oracle = found["The verdict is the exhaustive oracle's"]
    rows = [json.loads(line)["row"] for line in (ROOT / oracle.source.path).read_text().splitlines()]
    assert oracle.good is (sum(r["false_accepts"] + r["false_rejects"] + r["undecided"] for r in rows) == 0)
    assert oracle.tried == f"{sum(r['n'] for r in rows):,} seeded schedules".replace(",", "\u202f")
    assert not evidence.findings(committed)[0].good or all(f.good for f in found.values())
    for speed in evidence.speeds(committed):
        assert speed.validate_s <= speed.limit_s


def test_the_mutants_table_accounts_for_every_mutant(tmp_path: Path) -> None:
    deaths = {"verdict": 80, "crash": 4, "report": 6, "lives": 10}
    survivors = {"changes nothing": ["a"] * 7, "open: not looked at": ["b"] * 3}
    doc = {
        "target": "checker",
        "mutants": 100,
        "cases": 1234,
        "deaths": deaths,
        "survivors": survivors,
        "planted": 300,
        "stride": 3,
    }
    put(tmp_path, "m.json", doc)
    row = mutants.table(collect(tmp_path)).splitlines()[2]
    # killed 84 = 80 + 4; asked 87 = 100 - 7 argued - 6 reported; 84 / 87 = 96.55 %, never rounded up
    assert row == "| [checker](../reports/data/m.json), one in 3 of 300 | 100 | 1 234 | 84 | 6 | 10 | 7 | 3 | 96% |"


def test_csv_and_json_lines_hold_the_rows_with_file_and_command(report_tree: Path) -> None:
    e = Evidence.read(report_tree)
    rows = list(csv.DictReader(io.StringIO(exports.to_csv(e.pairs))))
    assert [r["verdict"] for r in rows] == ["LOSS", "INVALID", "WIN", "WIN"]
    assert rows[0] | {"ratio": "", "low": "", "high": "", "ours_low_us": "", "ours_high_us": ""} == {
        "verdict": "LOSS", "device": "NVIDIA H200", "model": "llama-3.2-1b", "weights": "random", "mode": "fast",
        "ours_precision": "bf16", "rival_precision": "bf16", "batch": "1", "position": "1024", "unit": "token", "ours_us": "100.1",
        "ours_low_us": "", "ours_high_us": "", "ours_wall_us": "102.1", "rival": "rival",
        "rival_version": "vllm 0.12.0, torch 2.11.0", "rival_us": "80.08", "rival_wall_us": "83.08", "rival_busy_us": "",
        "ratio": "", "low": "",
        "high": "", "noise_floor": "0.01", "gate": "P1",
        "ours_bandwidth_share": "0.7", "rival_bandwidth_share": "0.5", "cache": "", "label": "",
        "reason": "",
        "created": "2026-01-02T03:04:05+00:00",
        "commit": "abc123", "file": "reports/data/a.json", "command": "python -m amk_bench.baselines.run --out FILE",
    }  # fmt: skip
    assert rows[1]["ratio"] == ""
    assert rows[1]["reason"] == "its tokens <differ>"
    lines = [json.loads(x) for x in exports.to_jsonl(e.pairs, grid.grid(e.best, e.gaps), e.gaps, e.files).splitlines()]
    kinds = [line["type"] for line in lines]
    assert {k: kinds.count(k) for k in dict.fromkeys(kinds)} == {"pair": 4, "empty": 33, "left out": 2, "parity": 1}
    assert all(line["reason"] for line in lines if line["type"] in ("empty", "left out"))


def test_the_command_writes_all_and_notices_what_is_stale(report_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["report", "--root", str(report_tree)]
    assert cli.main([*argv, "check"]) == 1
    assert "README.md: is not what reports/data gives" in capsys.readouterr().err
    assert cli.main(argv) == 0
    assert cli.main([*argv, "check"]) == 0
    first = {name: (report_tree / name).read_bytes() for name in outputs(report_tree)}
    assert sorted(first) == ["README.md", "reports/site/index.html", "reports/site/results.csv", "reports/site/results.jsonl"]
    assert cli.main(argv) == 0
    assert first == {name: (report_tree / name).read_bytes() for name in first}
    text = (report_tree / "README.md").read_text()
    (report_tree / "README.md").write_text(text.replace("100.1 (", "99.1 ("))
    assert cli.main([*argv, "check"]) == 1
    (report_tree / "README.md").write_text(text)
    page = report_tree / "reports" / "site" / "index.html"
    page.write_text(page.read_text().replace("100.1", "99.1"))
    assert cli.main([*argv, "check"]) == 1
    page.unlink()
    assert cli.main([*argv, "check"]) == 1


def test_the_command_says_what_is_wrong(report_tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--root", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err
    (report_tree / "README.md").write_text("no markers")
    assert cli.main(["report", "--root", str(report_tree)]) == 2
    assert "README.md: the file needs <!-- table: begin -->" in capsys.readouterr().err
    shutil.rmtree(report_tree / "reports" / "data")
    put(report_tree, "broken.json", "{")
    assert cli.main(["report", "--root", str(report_tree)]) == 2
    assert "reports/data/broken.json" in capsys.readouterr().err


def test_a_fleet_run_has_a_page_that_says_what_became_of_every_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def job(device: str, model: str, *positions: int) -> Job:
        return Job(device, "rivals", model, "bf16", 1, positions, ("python", "{out}"), 60.0)

    night, out = tmp_path / "night", tmp_path / "page"
    done, dead, gone = job("h200", "llama-3.2-1b", 128), job("h200", "llama-3.1-8b", 128, 1024), job("l4", "llama-3.2-1b", 128)
    folder = Folder(night)
    folder.ask([done, dead, gone])
    document = json.dumps(result_document([timed_record(0.9)])).encode()
    folder.settle(done, Outcome(State.FINISHED, document=document, code=0, log="printed \N{GREEK SMALL LETTER MU}s"))
    folder.settle(dead, Outcome(State.LOST, "its node died"))
    folder.settle(gone, Outcome(State.ABSENT, "no node offers l4"))
    (night / "strange.json").write_text('{"no": "kind"}')
    (night / "lines.jsonl").write_text('{"other": 1}\n')
    (night / "bench.json").write_text(json.dumps({"benchmarks": [], "amk": result_document([timed_record(2.0, position=1024)])}))
    assert cli.main(["report", "page", str(night), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "left out: strange.json: no kind of result" in said
    assert "left out: lines.jsonl" in said
    assert "2 pairs" in said
    page = (out / "index.html").read_text()
    assert f'href="../night/results/{done.key}.json"' in page
    assert "lost: its node died" in page
    assert "absent: no node offers l4" in page
    assert "docs/" not in page
    e = Evidence.read(night, Path(), lambda text: None)
    (device,) = grid.grid(e.best, e.gaps)
    cells = next(r.cells for r in device.rows if (r.model, r.batch) == ("llama-3.1-8b", 1))
    assert [c.text for c in cells if isinstance(c, grid.Reason)] == ["lost: its node died", "lost: its node died", grid.NOT_ASKED]
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    assert cli.main(["report", "page", str(night), "--out", str(out)]) == 0
    assert first == {p.name: p.read_bytes() for p in out.iterdir()}
    assert cli.main(["report", "page", str(night), "--out", str(night / "page")]) == 2
    assert "lies within" in capsys.readouterr().err


def test_all_that_is_generated_in_this_tree_is_what_the_committed_results_give() -> None:
    stale = [
        name for name, text in outputs(ROOT).items() if not (ROOT / name).is_file() or (ROOT / name).read_text("utf-8") != text
    ]
    assert not stale, "run: amk report"


def test_one_file_is_read_under_its_name(report_tree: Path) -> None:
    source = read(report_tree, report_tree / "reports" / "data" / "a.json")
    assert source.path == "reports/data/a.json"
    assert source.device == "NVIDIA H200"
    assert source.command == "python -m amk_bench.baselines.run --out FILE"
