"""Claims about the loop, with a runner made of lists and a clock made of a number: it ends, keeps, resumes and tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_tools import job, no_litter  # type: ignore[import-not-found]

from amk_bench.fleet.cells import Folder, Outcome, State
from amk_bench.fleet.devices import FleetError
from amk_bench.fleet.drive import Drive
from amk_bench.fleet.jobs import Job

DONE = Outcome(State.FINISHED, document=b"{}", code=0, node="n", card="c", seconds=2.0, log="said\n")


class Pretend:
    """Answers each job with the next of its outcomes, a turn after it was started; time passes a second a turn."""

    name = "pretend"

    def __init__(self, slots: dict[str, list[str]], outcomes: dict[str, list[Outcome | None]] | None = None) -> None:
        self._slots, self._outcomes = slots, outcomes or {}
        self.started: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.closed = 0
        self.clock = 0.0
        self.each_turn: Callable[[Pretend], None] = lambda runner: None
        self._waiting: list[Job] = []
        self.most = 0

    def slots(self) -> dict[str, list[str]]:
        return self._slots

    def offers(self) -> str:
        return "what there is"

    def remedy(self, device: str) -> str:
        return f"bring {device}"

    def start(self, job: Job, slot: str) -> None:
        self.started.append((job.model, slot))
        self._waiting.append(job)
        self.most = max(self.most, len(self._waiting))

    def wait(self, timeout_s: float) -> list[tuple[Job, Outcome]]:
        self.clock += 1.0
        self.each_turn(self)
        out = []
        for own in list(self._waiting):
            outcome = self._outcomes.get(own.model, [DONE]).pop(0) if self._outcomes.get(own.model) else DONE
            if outcome is not None:
                self._waiting.remove(own)
                out.append((own, outcome))
            else:
                self._outcomes[own.model].insert(0, None)
        return out

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job.model)
        self._waiting = [w for w in self._waiting if w.key != job.key]

    def close(self) -> None:
        self.closed += 1


def drive(folder: Path, runner: Pretend, **settings: float) -> Drive:
    return Drive(Folder(folder), runner, now=lambda: runner.clock, **settings)  # type: ignore[arg-type]


def states(folder: Path) -> dict[str, State]:
    return {cell.job.model: cell.state for cell in Folder(folder).cells()}


def test_every_card_has_one_job_at_a_time(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0", "b/0"]})
    cells = drive(tmp_path, runner).run([job(model=str(i)) for i in range(7)])
    assert [c.state for c in cells] == [State.FINISHED] * 7
    assert runner.most == 2
    assert runner.closed == 1
    assert (tmp_path / "logs" / f"{cells[0].job.key}.txt").read_text() == "said\n"
    no_litter(tmp_path)


def test_a_device_that_nobody_offers_has_its_reason_within_the_stated_time_and_the_rest_is_measured(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0"]})
    cells = drive(tmp_path, runner, absent_s=20.0).run([job(device="rtx5090", model="x"), job(model="y")])
    assert [c.state for c in cells] == [State.ABSENT, State.FINISHED]
    assert cells[0].reason == "no node offers rtx5090 within 20 s: what there is; bring rtx5090"
    assert runner.clock <= 22
    assert runner.started == [("y", "a/0")]


def test_a_device_that_comes_late_is_used(tmp_path: Path) -> None:
    runner = Pretend({})
    runner.each_turn = lambda r: r._slots.update({"h200": ["a/0"]}) if r.clock == 10 else None
    (cell,) = drive(tmp_path, runner, absent_s=20.0).run([job()])
    assert cell.state is State.FINISHED


def test_a_lost_job_runs_again_and_a_failed_one_does_not(tmp_path: Path) -> None:
    lost, failed = Outcome(State.LOST, "node died", node="a/0"), Outcome(State.FAILED, "no result", code=3)
    runner = Pretend({"h200": ["a/0"]}, {"l": [lost], "f": [failed], "g": [lost, lost, DONE]})
    cells = drive(tmp_path, runner, retries=1).run([job(model=m) for m in "lfg"])
    assert [c.state for c in cells] == [State.FINISHED, State.FAILED, State.LOST]
    assert cells[0].attempts == ("lost on a/0: node died",)
    assert cells[2].reason == "node died"
    assert [m for m, _ in runner.started] == ["l", "f", "g", "l", "g"]


def test_a_node_that_has_just_lost_a_job_is_left_alone_for_a_while(tmp_path: Path) -> None:
    lost = Outcome(State.LOST, "worker died", node="a/0")
    runner = Pretend({"h200": ["a/0", "b/0"]}, {"x": [lost]})
    drive(tmp_path, runner, shun_s=10.0).run([job(model=m) for m in "xyz"])
    assert runner.started[:2] == [("x", "a/0"), ("y", "b/0")]
    assert {slot for _, slot in runner.started[2:]} == {"b/0"}
    alone = Pretend({"h200": ["a/0"]}, {"x": [lost]})
    drive(tmp_path / "alone", alone, shun_s=10.0).run([job(model="x")])
    assert alone.started == [("x", "a/0")] * 2
    assert 10 <= alone.clock <= 14


def test_a_lost_job_whose_node_does_not_come_back_says_both(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0"]}, {"m": [Outcome(State.LOST, "node died", node="a/0")]})
    runner.each_turn = lambda r: r._slots.clear()
    (cell,) = drive(tmp_path, runner, absent_s=5.0).run([job()])
    assert cell.state is State.LOST
    assert cell.reason.startswith("lost on a/0: node died; no node offers h200 within 5 s")


def test_a_job_that_never_answers_is_given_up_and_its_card_is_used_again(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0"]}, {"hangs": [None]})
    cells = drive(tmp_path, runner, retries=0, queue_s=10.0).run([job(model="hangs", limit_s=5.0), job(model="next")])
    assert [c.state for c in cells] == [State.LOST, State.FINISHED]
    assert runner.cancelled == ["hangs"]
    assert cells[0].reason == "no answer within 75 s"


def test_a_job_whose_node_went_away_without_a_word_is_lost(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0", "b/0"]}, {"x": [None]})
    runner.each_turn = lambda r: r._slots.update({"h200": ["b/0"]}) if r.clock == 3 else None
    cells = drive(tmp_path, runner, gone_s=10.0, retries=0).run([job(model="x"), job(model="y")])
    assert [c.state for c in cells] == [State.LOST, State.FINISHED]
    assert cells[0].reason == "its node left the cluster, or cannot be reached"
    assert runner.cancelled == ["x"]
    assert 13 <= runner.clock <= 15


def test_a_node_that_was_away_for_a_moment_keeps_its_job(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0"]}, {"x": [None]})

    def blink(r: Pretend) -> None:
        r._slots["h200"] = [] if r.clock % 12 in (1, 2, 3, 4) else ["a/0"]
        if r.clock == 30:
            r._outcomes["x"] = [DONE]

    runner.each_turn = blink
    assert [c.state for c in drive(tmp_path, runner, gone_s=10.0).run([job(model="x")])] == [State.FINISHED]


def test_finished_cells_are_not_run_again_and_others_are(tmp_path: Path) -> None:
    failed = Outcome(State.FAILED, "no result")
    jobs = [job(model=m) for m in "abc"]
    drive(tmp_path, Pretend({"h200": ["a/0"]}, {"b": [failed]})).run(jobs)
    runner = Pretend({"h200": ["a/0"]})
    drive(tmp_path, runner).run(jobs)
    assert [m for m, _ in runner.started] == ["b"]
    runner = Pretend({"h200": ["a/0"]})
    drive(tmp_path, runner).run(jobs, again=True)
    assert [m for m, _ in runner.started] == ["a", "b", "c"]


def test_a_later_request_adds_to_the_plan(tmp_path: Path) -> None:
    drive(tmp_path, Pretend({"h200": ["a/0"]})).run([job(model="a")])
    drive(tmp_path, Pretend({"h200": ["a/0"]})).run([job(model="b")])
    assert states(tmp_path) == {"a": State.FINISHED, "b": State.FINISHED}


def test_an_interrupt_stops_what_runs_and_leaves_a_folder_that_goes_on(tmp_path: Path) -> None:
    runner = Pretend({"h200": ["a/0"]}, {"b": [None]})

    def press(r: Pretend) -> None:
        if r.clock == 3:
            raise KeyboardInterrupt

    runner.each_turn = press
    with pytest.raises(KeyboardInterrupt):
        drive(tmp_path, runner).run([job(model=m) for m in "abc"])
    assert states(tmp_path) == {"a": State.FINISHED, "b": State.STOPPED, "c": State.PENDING}
    assert runner.closed == 1
    again = Pretend({"h200": ["a/0"]})
    drive(tmp_path, again).run([job(model=m) for m in "abc"])
    assert [m for m, _ in again.started] == ["b", "c"]


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with Folder(tmp_path).owned():
        assert Folder(tmp_path).is_owned()
        with pytest.raises(FleetError, match="another fleet run works in this folder"), Folder(tmp_path).owned():
            raise AssertionError
    assert not Folder(tmp_path).is_owned()


def test_a_cell_that_cannot_be_read_or_has_lost_its_result_runs_again(tmp_path: Path) -> None:
    jobs = [job(model=m) for m in "abc"]
    drive(tmp_path, Pretend({"h200": ["a/0"]})).run(jobs)
    folder = Folder(tmp_path)
    (tmp_path / "cells" / f"{jobs[0].key}.json").write_text('{"sch')
    folder.result(jobs[1]).unlink()
    assert [c.state for c in folder.cells()] == [State.PENDING, State.PENDING, State.FINISHED]
    assert "cannot be read" in folder.cell(jobs[0]).reason
    runner = Pretend({"h200": ["a/0"]})
    drive(tmp_path, runner).run(jobs)
    assert [m for m, _ in runner.started] == ["a", "b"]


def test_a_job_cut_off_with_its_run_is_shown_as_stopped(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.ask([job()])
    folder.begin(job(), "a/0")
    with folder.owned():
        assert Folder(tmp_path).cells()[0].state is State.RUNNING
    assert Folder(tmp_path).cells()[0].state is State.STOPPED


def test_a_plan_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 9, "jobs": []}))
    with pytest.raises(FleetError, match="not a file of this version"):
        Folder(tmp_path).jobs()
