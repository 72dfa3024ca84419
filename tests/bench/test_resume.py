"""Claims: a run killed at any moment leaves whole files or none, and the next one goes on at the next cell and ends with all."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amk_bench import journal, results
from amk_bench.fingerprint import state_of
from amk_bench.journal import Journal, key_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("no_worker")
ROOT = Path(__file__).resolve().parents[2]
CELLS = 6
KILLS = 5

SUITE = f"""
import os, time
import pytest
from amk_bench.clock import Sample
from amk_bench.gate import Check, Subject, Timing, open_gate
from amk_bench.pairing import Block
from amk_bench.results import timed

@pytest.fixture(scope="module")
def model():
    with open("ran", "a") as file:
        file.write("model\\n")

@pytest.mark.parametrize("position", range({CELLS}))
def test_cell(model, amk_record, amk_seconds, position):
    gates = [open_gate(Subject(name, "m", 1, position), "P1", [Check("tokens", True, "all")]) for name in ("AMK", "HF eager")]
    block = Block((Sample(1e-4, 1e-4),) * 2, (Sample(2e-4, 2e-4),) * 2, "ABBA")
    time.sleep(float(os.environ.get("CELL_S", "0.05")))
    with open("ran", "a") as file:
        file.write(f"{{position}}\\n")
    amk_record.latency(timed(Timing(*gates, (block,) * 6, 1, "toy"), device="cpu", mode="exact", precision="fp32", floor=0.012))
    amk_seconds.store([1e-4] * 12, {{"position": position}})
"""


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytester.makeini("[pytest]")
    pytester.makeconftest('pytest_plugins = ["amk_bench.plugin"]')
    pytester.makepyfile(test_suite=SUITE)
    monkeypatch.setenv("AMK_HOME", str(pytester.path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester.path


def start(place: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--arch=cpu", "--benchmark-json=out.json", *args]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(place: Path, *args: str) -> str:
    run = start(place, *args)
    text, _ = run.communicate(timeout=120)
    assert run.returncode == 0, text
    return text


def ran(place: Path) -> list[str]:
    file = place / "ran"
    return file.read_text().split() if file.exists() else []


def whole(place: Path) -> None:
    """Every file with a result's name holds one; what was under way has another name."""
    for path in [*place.glob("home/**/*.json"), *place.glob("reports/**/*.json"), *place.glob("out.json")]:
        doc = json.loads(path.read_text("utf-8"))
        if path.name == "out.json":
            results.validate(doc["amk"])
        elif "reports" in path.parts:
            results.validate(doc)
        else:
            assert [results.from_json(r) for r in doc["records"]]


def cells(place: Path) -> list[int]:
    doc = json.loads((place / "out.json").read_text("utf-8"))
    assert len(doc["benchmarks"]) == CELLS
    return sorted(r.position for r in results.validate(doc["amk"]) if isinstance(r, results.LatencyRecord))


def measured(place: Path) -> list[str]:
    return [line for line in ran(place) if line != "model"]


def test_killed_at_random_moments_again_and_again_it_ends_with_every_cell(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments from before the first test to the end; after each, what has a result's name is whole; in the end, all is there."""
    monkeypatch.setenv("CELL_S", "0.15")
    rng = random.Random(20240)
    kept, ended = 0, False
    for _ in range(KILLS):
        goal = len(measured(place)) + rng.randrange(0, 3)
        run = start(place, "--update-reports")
        while run.poll() is None and len(measured(place)) < goal:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.3)
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=60)
        whole(place)
        left = len({path.name for path in place.glob("home/runs/*/run-*/*.json")})
        kept, ended = max(kept, left), ended or (place / "out.json").exists()
        if ended:
            break
        assert left >= len(set(measured(place))) - 1, "only the cell that was under way is lost"
    assert kept > 0, "no kill came between the first cell and the end"
    before = len(measured(place))
    text = finish(place, "--update-reports")
    whole(place)
    assert cells(place) == list(range(CELLS))
    assert (f"amk: {left} finished cells of a run that was killed are kept" in text) == (left > 0)
    assert len(measured(place)) - before == CELLS - left, "what was finished is not measured again"
    assert not list(place.glob("home/runs/*/run-*")), "a run that ends leaves no journal"
    finish(place)
    assert len(measured(place)) - before == 2 * CELLS - left, "a finished run is no reason to skip"


def interrupted(place: Path, count: int) -> None:
    """A run killed after ``count`` cells."""
    run = start(place)
    while len(measured(place)) < count + 1:
        time.sleep(0.005)
    run.kill()
    run.communicate(timeout=60)


def test_what_is_resumed_sets_nothing_up_and_no_resume_measures_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELL_S", "0.3")
    interrupted(place, CELLS - 2)
    monkeypatch.setenv("CELL_S", "0")
    (place / "ran").unlink()
    text = finish(place, "-k", "cell and (0 or 1)")
    assert ran(place) == [], "neither the model nor a cell ran"
    assert "test_cell[0]: kept from a run that was killed, measured" in text
    (place / "ran").unlink(missing_ok=True)
    monkeypatch.setenv("CELL_S", "0.3")
    interrupted(place, 2)
    (place / "ran").unlink()
    monkeypatch.setenv("CELL_S", "0")
    finish(place, "--no-resume")
    assert ran(place) == ["model", *map(str, range(CELLS))]


def test_another_test_file_model_or_tier_is_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELL_S", "0.3")
    interrupted(place, 2)
    monkeypatch.setenv("CELL_S", "0")
    (place / "ran").unlink()
    (place / "test_suite.py").write_text(SUITE + "\n# another text\n")
    finish(place)
    assert ran(place) == ["model", *map(str, range(CELLS))]


def test_a_run_beside_a_living_one_takes_nothing_from_it(tmp_path: Path) -> None:
    living = Journal(tmp_path)
    living.put("a" * 32, {"records": [1]})
    other = Journal(tmp_path)
    assert other.adopt() == 0
    living.close(ended=False)
    assert other.adopt() == 1
    assert other.get("a" * 32) == {"schema": results.SCHEMA, "records": [1]}
    assert other.get("b" * 32) is None
    assert Journal(tmp_path).adopt() == 0, "adopted cells belong to the one that adopted them"
    other.put("c" * 32, {"records": [2]})
    other.close(ended=True)
    assert list(tmp_path.glob("*")) == []


def test_damaged_and_old_journals_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(tmp_path)
    first.put("a" * 32, {"records": [1]})
    first.close(ended=False)
    (cell,) = tmp_path.glob("run-*/*.json")
    for text in ("{", "[]", '{"schema": 1, "records": []}', '{"schema": 2}'):
        cell.write_text(text)
        second = Journal(tmp_path)
        assert second.adopt() == 1
        assert second.get("a" * 32) is None
        second.close(ended=False)
    now = time.time()
    monkeypatch.setattr(journal.time, "time", lambda: now + journal.KEPT_S + 60)
    assert Journal(tmp_path).adopt() == 0
    assert list(tmp_path.glob("run-*")) == []


def test_a_disk_that_refuses_costs_the_resume_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = Journal(tmp_path / "file" / "below")
    nowhere.put("a" * 32, {"records": []})
    assert nowhere.adopt() == 0
    nowhere.close(ended=True)


def test_keys_depend_on_everything() -> None:
    base = ("suite.py", "test[0]", {"cpu": "x"}, "abc")
    others = [("other.py", *base[1:]), (base[0], "test[1]", *base[2:]), (*base[:2], {"cpu": "y"}, base[3]), (*base[:3], "abd")]
    assert len({key_of(*k) for k in (base, *others)}) == 5
    assert key_of(*base) == key_of(*base)


def test_the_state_of_a_tree_is_its_changes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        who = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, env=env)

    assert state_of(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "one")
    assert state_of(tmp_path) == ""
    (tmp_path / "a.py").write_text("2")
    two = state_of(tmp_path)
    (tmp_path / "out.json").write_text("{}")
    assert state_of(tmp_path) == two != ""
    (tmp_path / "b.py").write_text("")
    assert state_of(tmp_path) not in ("", two)
