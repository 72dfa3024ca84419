"""``amk replay`` and ``amk validate --explain --svg``: what they show, and their exit codes."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.adversary.run import CLASSES, schedule_json
from amk_core import cli
from amk_core.schedule import Schedule, validate
from amk_core.schedule.explain import explain
from amk_core.schedule.replay import INITIAL, ORDERS, Memory, launch, threads, two_orders


def put(tmp_path: Path, s: Json, name: str = "s.json") -> str:
    path = tmp_path / name
    path.write_text(json.dumps(s))
    return str(path)


def handoff(wait: bool = True, filled: bool = False) -> Json:
    n = Net(2)
    x, c = n.buffer(4, lifetime="persistent" if filled else "step", filled=filled), n.counter()
    n.task(0, [], [access(x, (0, 4))], [], [(c, 1)])
    n.task(1, [access(x, (2, 4))], [], [(c, 1)] if wait else [])
    return n.json()


def knot() -> Json:
    n = Net(2)
    a, b = n.counter(), n.counter()
    n.task(0, waits=[(b, 1)], signals=[(a, 1)])
    n.task(1, waits=[(a, 1)], signals=[(b, 1)])
    return n.json()


def test_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", put(tmp_path, handoff())]) == 0
    out = capsys.readouterr().out
    assert out.startswith("accepted\n")
    assert "declared footprints, no kernels" in out
    assert "2 of 2 tasks ran, 1 reads" in out


@pytest.mark.parametrize(("filled", "early"), [(False, "what nobody wrote"), (True, "initial data")])
def test_the_two_values_of_a_race(filled: bool, early: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", put(tmp_path, handoff(wait=False, filled=filled))]) == 1
    a, b = capsys.readouterr().out.split("order A: ")[1].split("order B: ")
    assert "T1 of step 0 reads in bytes [8:16) of pool global: the bytes of T0 of step 0\n" in a
    assert f"T1 of step 0 reads in bytes [8:16) of pool global: {early}\n" in b


def test_two_writers_leave_what_the_later_one_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(2)
    x = n.buffer(1)
    n.task(0, [], [access(x, (0, 1))])
    n.task(1, [], [access(x, (0, 1))])
    assert cli.main(["replay", put(tmp_path, n.json())]) == 1
    out = capsys.readouterr().out
    assert "wrong value shown: the bytes of T1 of step 0 or the bytes of T0 of step 0" in out


def test_the_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert cli.main(["replay", put(tmp_path, knot()), "--spin-timeout", "0.3"]) == 1
    assert 0.3 <= time.monotonic() - began < 20
    out = capsys.readouterr().out
    assert "0 of 2 tasks ran" in out
    assert "SM0#0 T0 of step 0: waits c1 >= 1 (has 0); gave up after 0.3 s" in out
    assert "SM1#0 T1 of step 0: waits c0 >= 1 (has 0); gave up after 0.3 s" in out


def test_stop_read_before_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(2, 2)
    flag = n.buffer(1, rows=2, lifetime="host")
    decides = n.task(0, [], [access(flag, (0, 1), affine(stride=1))])
    n.task(1)
    n.extra["stop"] = {"buffer": flag, "task": decides}
    assert cli.main(["replay", put(tmp_path, n.json())]) == 1
    out = capsys.readouterr().out
    assert "SM1 reads stop of step 0" in out
    assert "wrong value shown: the bytes of T0 of step 0 or what nobody wrote" in out


def test_an_uncovered_read_is_shown_by_a_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(1)
    x = n.buffer(2)
    n.task(0, [], [access(x, (0, 1))])
    n.task(0, [access(x, (0, 2))])
    assert cli.main(["replay", put(tmp_path, n.json())]) == 1
    assert "T1 of step 0 reads activation0 and finds the bytes of T0 of step 0 and what nobody wrote" in capsys.readouterr().out


def test_a_step_buffer_holds_nothing_of_the_step_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(1, 2)
    x = n.buffer(1, filled=True)
    n.task(0, [access(x, (0, 1))], [access(x, (0, 1))])
    assert cli.main(["replay", put(tmp_path, n.json())]) == 1
    assert "T0 of step 1 reads activation0 and finds the bytes of T0 of step 0" in capsys.readouterr().out


def test_shared_memory_is_each_queue_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(2)
    n.pool("smem", 64, per_queue=True)
    x = n.buffer(1, pool="smem")
    for q in (0, 1):
        n.task(q, [], [access(x, (0, 1))])
        n.task(q, [access(x, (0, 1))])
    assert cli.main(["replay", put(tmp_path, n.json())]) == 0
    assert "clean" in capsys.readouterr().out


def test_what_cannot_be_replayed_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = handoff()
    broken["tasks"][0]["signals"] = [[5, 1]]
    static = handoff()
    static["target"] = {"sms": 1, "smem_bytes": 0, "arch": "cpu"}
    path = tmp_path / "t.json"
    path.write_text("{")
    race = handoff(wait=False)
    for argv, said in (
        ([str(path)], "cannot be read"),
        ([str(tmp_path / "none.json")], "no such file"),
        ([put(tmp_path, broken, "broken.json")], "REF"),
        ([put(tmp_path, static, "static.json")], "a run shows nothing of FIT"),
        ([put(tmp_path, race, "race.json"), "--finding", "9"], "findings"),
    ):
        assert cli.main(["replay", *argv]) == 2
        assert said in capsys.readouterr().err


def test_a_chosen_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = Net(3)
    x, y = n.buffer(1), n.buffer(1)
    n.task(0, [], [access(x, (0, 1)), access(y, (0, 1))])
    n.task(1, [], [access(x, (0, 1))])
    n.task(2, [], [access(y, (0, 1))])
    path = put(tmp_path, n.json())
    assert [cli.main(["replay", path, "--finding", str(k)]) for k in (1, 2)] == [1, 1]
    first, second = capsys.readouterr().out.split("finding 2: ")
    assert ("T1 writes" in first, "T2 writes" in first) == (True, False)
    assert ("T1 writes" in second, "T2 writes" in second) == (False, True)


def test_memory_keeps_the_last_writer_of_every_byte() -> None:
    m = Memory()
    space = ("global", -1)
    m.write(space, 4, 12, INITIAL)
    m.write(space, 6, 8, (0, 1))
    m.write(space, 7, 10, (0, 2))
    assert m.read(space, 0, 14) == [
        (0, 4, None),
        (4, 6, INITIAL),
        (6, 7, (0, 1)),
        (7, 10, (0, 2)),
        (10, 12, INITIAL),
        (12, 14, None),
    ]
    assert m.read(("global", 0), 5, 6) == [(5, 6, None)]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_replays_agree_with_the_verdict(name: str) -> None:
    """Accepted: every order ends, finds what it needs, and the same.  A race with a run: the two orders differ."""
    for index in range(6):
        s = Schedule.from_json(schedule_json(name, 77, index))
        verdict = validate(s, certificate=False)
        if verdict.accepted:
            steps = min(s.steps, 4)
            runs = [launch(s, label, prefer, steps) for label, prefer in ORDERS] + [threads(s, steps, 30.0)]
            assert all(r.ran == steps * s.n_tasks and not r.unwritten and r.seen == runs[0].seen for r in runs), (
                f"{name}/77/{index}"
            )
        for f in verdict.findings[:4]:
            e = explain(s, f)
            if f.rule == "RACE" and e.state is not None:
                assert two_orders(e).differs, f"{name}/77/{index}: {f.message}"


def test_validate_explains_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, svg = put(tmp_path, handoff(wait=False)), tmp_path / "out.svg"
    assert cli.main(["validate", path, "--explain", "--svg", str(svg)]) == 1
    out = capsys.readouterr().out
    assert "finding 1: RACE RAW" in out
    assert "then both can start, and nothing orders them:" in out
    titles = [t.text for t in ET.parse(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert {"T0 at SM0#0", "T1 at SM1#0"} <= set(titles)
    assert cli.main(["validate", path, "--explain", "--json"]) == 1
    assert "finding 1: RACE RAW" in json.loads(capsys.readouterr().out)["explanations"][0]


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, handoff())
    assert cli.main(["validate", path, "--svg", str(tmp_path / "none" / "out.svg")]) == 2
    assert cli.main(["validate", path, path, "--svg", str(tmp_path / "out.svg")]) == 2
    assert "one FILE" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
    assert cli.main(["validate", path, "--svg", str(tmp_path / "out.svg")]) == 0
    ET.parse(tmp_path / "out.svg")
