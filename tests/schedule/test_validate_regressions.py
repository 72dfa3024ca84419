"""The predecessor's false accepts and rejects by name, and verdicts against the exhaustive oracle on every class of attack."""

from __future__ import annotations

import random

import pytest

from amk_bench.adversary.net import Json, Net, access
from amk_bench.adversary.regressions import REGRESSIONS, Regression
from amk_bench.adversary.run import CLASSES, schedule_json
from amk_core.schedule import Schedule, check_certificate, oracle, validate
from amk_core.schedule.tables import pack


@pytest.mark.parametrize("known", REGRESSIONS, ids=lambda r: r.name)
def test_named_regressions(known: Regression) -> None:
    v = validate(Schedule.from_json(known.build()))
    assert v.accepted is (known.rule is None), str(v)
    if known.rule is not None:
        assert known.rule in v.rules


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_same_verdict_as_the_oracle(name: str) -> None:
    for index in range(25):
        schedule = Schedule.from_json(schedule_json(name, 20_26, index))
        tables = pack(schedule)
        truth = oracle.label(schedule, tables, atomic=True)
        verdict = validate(schedule)
        if truth.undecided is None or truth.unsafe:
            assert verdict.accepted is truth.safe, f"{name}/2026/{index}: {truth} but\n{verdict}"
        if verdict.accepted:
            assert verdict.certificate is not None
            assert check_certificate(tables, verdict.certificate) == []


def chain(length: int, queues: int, broken: int | None = None) -> Json:
    """A chain of tasks over queues, each reading what the one before wrote; ``broken``: this task does not wait."""
    n = Net(queues)
    buffers = [n.buffer(1) for _ in range(length - 1)] + [n.buffer(1, kind="output", lifetime="persistent")]
    done = [n.counter() for _ in range(length)]
    for i in range(length):
        reads = [access(buffers[i - 1], (0, 1))] if i else []
        waits = [(done[i - 1], 1)] if i and i != broken else []
        n.task(i % queues, reads, [access(buffers[i], (0, 1))], waits, [(done[i], 1)])
    return n.json()


def test_no_check_is_skipped_for_size() -> None:
    """The predecessor stopped checking races above 8 000 tasks."""
    assert validate(Schedule.from_json(chain(9_001, 3))).accepted
    v = validate(Schedule.from_json(chain(9_001, 3, broken=8_999)))
    assert {8_998, 8_999} <= {t for f in v.findings if f.rule == "RACE" for t in f.tasks}


def test_ids_that_differ_from_positions_are_refused() -> None:
    s = chain(4, 2)
    s["tasks"][1], s["tasks"][2] = s["tasks"][2], s["tasks"][1]
    assert validate(Schedule.from_json(s)).rules == {"REF"}


def test_queue_order_is_taken_as_it_stands() -> None:
    """Nothing re-sorts the queues: the same tasks in another order are another schedule."""
    s = chain(6, 2)
    assert validate(Schedule.from_json(s)).accepted
    s["queues"][0] = s["queues"][0][::-1]
    assert "LIVE" in validate(Schedule.from_json(s)).rules


def test_verdict_does_not_depend_on_the_numbering() -> None:
    rng = random.Random(5)
    s = schedule_json("loop", 1, 3)
    want = validate(Schedule.from_json(s)).accepted
    for _ in range(5):
        to = list(range(len(s["tasks"])))
        rng.shuffle(to)
        tasks: list[Json] = [{} for _ in to]
        for old, new in enumerate(to):
            tasks[new] = {**s["tasks"][old], "id": new}
        renamed = {**s, "tasks": tasks, "queues": [[to[t] for t in q] for q in s["queues"]]}
        assert validate(Schedule.from_json(renamed)).accepted is want
