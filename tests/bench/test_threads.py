"""The thread driver itself: it sees a race, a hang, a wrong value and a newer tag, and follows a witness."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from amk_bench.adversary import corroborate, threads
from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.adversary.threads import Case, Steer
from amk_core.schedule.ir import Schedule

ALL = (0, 2)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return threads.build(tmp_path_factory.mktemp("threads"))
    except threads.NoThreadSanitizer as e:
        pytest.skip(str(e))


def pair(threshold: int | None, life: str = "step", steps: int = 1) -> Json:
    """A writer on queue 0, a reader on queue 1 that waits for so many of its two signals, or not at all."""
    n = Net(2, steps)
    x, c = n.buffer(2, lifetime=life), n.counter()
    n.task(0, [], [access(x, ALL)], [], [(c, 1)])
    n.task(0, [], [], [], [(c, 1)])
    n.task(1, [access(x, ALL)], [], [(c, threshold)] if threshold else [], [])
    return n.json()


def observe(driver: Path, data: Json, runs: int = 6, **options: object) -> tuple[Case, list[threads.Observation]]:
    s = Schedule.from_json(data)
    case = Case(s, [v.min for v in s.variables for _ in range(v.count)], random.Random(0), **options)  # type: ignore[arg-type]
    return case, threads.run(driver, [case], runs, 3)


def test_an_ordered_pair_is_silent(driver: Path) -> None:
    case, seen = observe(driver, pair(1))
    assert len(seen) == 6
    for o in seen:
        assert (o.status, o.reports, o.done) == (threads.DONE, 0, (2, 1))
        assert o.seen == ((), (threads.FIRST_INSTANCE,))
        assert threads.judge(case, o, case.serial()) == []


def test_an_unordered_pair_is_reported_wherever_the_queues_meet(driver: Path) -> None:
    assert any(o.reports for o in observe(driver, pair(None))[1])
    (steered,) = observe(driver, pair(None), steer=Steer([0, 0], (0, 1)))[1]
    assert steered.reports > 0


def test_a_deadlock_is_told_from_a_slow_queue(driver: Path) -> None:
    data = pair(2)
    data["tasks"][1]["waits"] = [[0, 2, 0]]  # it waits for its own signal
    for o in observe(driver, data)[1]:
        assert (o.status, o.done) == (threads.HUNG, (1, 0))


def test_wrong_values_are_told_apart(driver: Path) -> None:
    nobody = pair(1)
    nobody["tasks"][0]["writes"] = []
    case, seen = observe(driver, nobody)
    assert {w for o in seen for w in threads.judge(case, o, case.serial())} == {"instance 2 reads what nobody wrote"}
    stale = pair(1, steps=2)
    stale["tasks"][2]["waits"] = [[0, 2, -1]]
    case, (o,) = observe(driver, stale, steer=Steer([2, 1], (0, 1), together=False))
    assert "instance 5 reads what is left of step 0" in threads.judge(case, o, case.serial())


def tagged(back: bool) -> Json:
    """A tagged element, written and read once a step; ``back``: the writer of the next step waits for the reader."""
    n = Net(2, 3)
    x = n.buffer(1, dtype="tag64", lifetime="persistent", tagged=True)
    c = n.counter()
    n.task(0, [], [access(x, (0, 1))], [(c, 1, -1)] if back else [])
    n.task(1, [access(x, (0, 1))], [], [], [(c, 1)])
    return n.json()


def test_a_tagged_hand_off_is_silent_and_gives_the_value_of_its_step(driver: Path) -> None:
    case, seen = observe(driver, tagged(True))
    for o in seen:
        assert (o.status, o.reports) == (threads.DONE, 0)
        assert o.seen[1] == (2, 3, 4)
        assert threads.judge(case, o, case.serial()) == []


def test_a_newer_tag_is_a_fault_and_not_a_value(driver: Path) -> None:
    (o,) = observe(driver, tagged(False), steer=Steer([1, 0], (1, 0), together=False))[1]
    assert (o.status, o.done[1], o.seen[1]) == (threads.NEWER_TAG, 0, ())


@pytest.mark.parametrize("blind", [False, True])
def test_a_launch_that_stops_runs_the_same_steps_on_every_queue(blind: bool, driver: Path) -> None:
    n = Net(2, 4)
    stop, c = n.buffer(1, rows=4, lifetime="host"), n.counter()
    sampler = n.task(0, [], [access(stop, (0, 1), affine(1))], [], [(c, 1)])
    n.task(1, [], [], [] if blind else [(c, 1, -1)])
    n.extra["stop"] = {"buffer": stop, "task": sampler}
    case, seen = observe(driver, n.json(), runs=20, stop_after=1)
    said = [threads.judge(case, o, case.serial()) for o in seen]
    if blind:
        assert any("queue 1 ran" in w for words in said for w in words)
    else:
        assert not any(said)
        assert {o.done for o in seen} == {(2, 2)}


def test_a_bad_verdict_fails_the_corroboration(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator that accepts everything: its accepted schedules are not silent."""
    real = corroborate.validate

    def gullible(s: Schedule, **options: bool) -> object:
        v = real(s, **options)
        return type(v)(True) if not v.rules & {"REF", "COUNT"} else v

    monkeypatch.setattr(corroborate, "validate", gullible)
    results = corroborate.run_batch(
        driver, [("overtaking_unsafe", 5, k) for k in range(6)] + [("random_tags", 5, k) for k in range(6)]
    )
    all_of_it = corroborate.total(row for row, _ in results)
    assert all_of_it.silent < all_of_it.accepted
    assert all_of_it.failures
