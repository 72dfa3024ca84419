"""Z3, from the semantics alone, says the same as the validator: on deadlocks, on races, and on the runs that are printed for them.

Default: one schedule of every attack class.  ``--full``: EACH of every class (minutes).
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("z3", reason='needs z3-solver; run: pip install "amk[second-opinion]"')

from amk_bench.adversary import second_opinion
from amk_bench.adversary.net import Json, Net, access
from amk_bench.adversary.run import CLASSES
from amk_bench.adversary.z3_opinion import Execution, opinion
from amk_core.schedule import Schedule, validate

FULL_COMPARED = 2_000  # at least so many, after those whose REF or COUNT is broken


def test_z3_agrees_with_the_validator(request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("--full", default=False)
    rows = second_opinion.run(second_opinion.EACH if full else 1)
    total = second_opinion.totals(rows)
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(
            f"\n{second_opinion.table(rows)}" if full else f"\nZ3 agrees on {total.compared} schedules, {total.witnesses} witnesses"
        )
    assert total.disagreements == 0, "\n".join(total.failures[:5])
    assert total.n == len(CLASSES) * (second_opinion.EACH if full else 1)
    assert total.compared >= (FULL_COMPARED if full else len(CLASSES) / 2)
    assert min(total.deadlock, total.race, total.neither) > total.compared / 40  # a sample of one kind would prove little
    assert total.gave_up + total.too_large <= total.compared / 100


def ring(steps: int, rows: int) -> Json:
    """A writer that may lap its reader in a ring of ``rows`` rows."""
    n = Net(2, steps)
    x, c = n.buffer(1, rows=rows, lifetime="persistent"), n.counter()
    row = {"start": {"stride": 1, "mod": rows}, "length": 1}
    n.task(0, [], [access(x, (0, 1), row)], [], [(c, 1)])
    n.task(1, [access(x, (0, 1), row)], [], [(c, 1)])
    return n.json()


def test_a_race_of_a_late_step_is_found_by_writing_out_that_step() -> None:
    assert opinion(ring(3, 3)).race is False
    late = opinion(ring(4, 3))
    assert (late.deadlock, late.race) == (False, True)
    assert late.pair is not None
    assert set(late.pair) == {(0, 1), (3, 0)}  # the reader of step 0, lapped in step 3


def crossed(queues: int) -> Json:
    """Each queue's first task waits for the second task of the next queue."""
    n = Net(queues)
    c = [n.counter() for _ in range(queues)]
    for q in range(queues):
        n.task(q, waits=[(c[(q + 1) % queues], 1)])
        n.task(q, signals=[(c[q], 1)])
    return n.json()


def test_a_deadlock_over_three_queues() -> None:
    assert opinion(crossed(3)).deadlock is True
    free = crossed(3)
    free["tasks"][0]["waits"] = []
    assert opinion(free).deadlock is False


def test_signals_that_only_exist_behind_the_waiter_do_not_count() -> None:
    """Together the done tasks hold enough signals for each other; no order of them does."""
    n = Net(2)
    x, a, b = n.buffer(1), n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 1))], [(a, 1)], [(b, 1)])
    n.task(1, [], [access(x, (0, 1))], [(b, 1)], [(a, 1)])
    z = opinion(n.json())
    assert (z.deadlock, z.race) == (True, False)


def test_a_tag_makes_its_reader_wait_and_orders_nothing_else() -> None:
    n = Net(2)
    tag = n.buffer(1, dtype="tag64", lifetime="persistent", tagged=True)
    x = n.buffer(1)
    n.task(0, [], [access(tag, (0, 1)), access(x, (0, 1))])
    n.task(1, [access(tag, (0, 1)), access(x, (0, 1))])
    z = opinion(n.json())
    assert (z.deadlock, z.race) == (False, True)
    n.queues[:] = [[], [1, 0]]
    assert opinion(n.json()).deadlock is True


def test_witnesses_are_executions_and_wrong_ones_are_not() -> None:
    s = ring(4, 3)
    finding = next(f for f in validate(Schedule.from_json(s)).findings if f.rule == "RACE")
    assert finding.witness is not None
    run, both = Execution(s, 4), finding.witness["both_enabled"]
    done = list(finding.witness["completed"])
    assert run.confirms(done, both) is True
    assert run.confirms([done[0] - 1, done[1]], both) is False
    assert run.confirms(done, [both[0], both[0]]) is False
    stuck = Execution(crossed(2), 1)
    assert stuck.stuck_at([(0, 0), (1, 0)]) is True
    assert stuck.stuck_at([(0, 1)]) is False


def test_a_validator_that_sees_no_race_is_contradicted() -> None:
    """The comparison itself: with footprints blanked out the validator accepts what Z3 does not."""

    def blind(s: Schedule) -> Any:
        without = s.to_json()
        for t in without["tasks"]:
            t["reads"] = t["writes"] = []
        return validate(Schedule.from_json(without))

    row = second_opinion.Row("late_race")
    s = ring(4, 3)
    second_opinion.compare(s, blind(Schedule.from_json(s)), row, "by hand")
    assert (row.compared, row.disagreements) == (1, 1)
