"""Explanations say what was derived by hand, and their runs lead where they claim, by a count made here."""

from __future__ import annotations

import dataclasses
import random
import xml.etree.ElementTree as ET

import pytest

from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.adversary.run import CLASSES, schedule_json
from amk_core.schedule import Schedule, validate
from amk_core.schedule.draw import MAX_ROWS, draw
from amk_core.schedule.explain import explain
from amk_core.schedule.explanation import SHOWN, Explanation
from amk_core.schedule.walk import Walk


def told(s: Json, rule: str) -> Explanation:
    schedule = Schedule.from_json(s)
    return explain(schedule, next(f for f in validate(schedule).findings if f.rule == rule))


def states(s: Json, e: Explanation) -> list[tuple[int, int]]:
    """Follow the steps of an explanation by the definitions alone; returns the instances that can start in the end.

    Asserts on the way that every step is the next of its queue and that its waits hold.
    """
    done, count = [0] * len(s["queues"]), [0] * len(s["counters"])

    def can_start(q: int) -> bool:
        n = len(s["queues"][q])
        step, task = done[q] // n, s["tasks"][s["queues"][q][done[q] % n]]
        return all(step + ep < 0 or count[c] >= (step + ep) * s["counters"][c]["per_step"] + t for c, t, ep in task["waits"])

    for x in e.steps:
        ids = s["queues"][x.queue]
        assert (x.step, x.task) == (done[x.queue] // len(ids), ids[done[x.queue] % len(ids)])
        assert can_start(x.queue)
        done[x.queue] += 1
        for c, amount in s["tasks"][x.task]["signals"]:
            count[c] += amount
    assert e.state is not None
    assert (list(e.state.completed), list(e.state.counters)) == (done, count)
    return [(done[q] // len(ids), ids[done[q] % len(ids)]) for q, ids in enumerate(s["queues"]) if ids and can_start(q)]


def race() -> Json:
    """T0 and T1 write the halves of x and signal c0; T2 waits for one of the two signals and reads both halves; T3 is apart."""
    n = Net(4)
    x = n.buffer(8)
    c = n.counter()
    n.task(0, [], [access(x, (0, 4))], [], [(c, 1)])
    n.task(1, [], [access(x, (4, 8))], [], [(c, 1)])
    n.task(2, [access(x, (0, 8))], [], [(c, 1)])
    n.task(3)
    return n.json()


def deadlock() -> Json:
    """T0 (queue 0) runs; T1 waits for T4, T3 for T2: each stands behind the other's waiter."""
    n = Net(2)
    a, b, c = n.counter(), n.counter(), n.counter()
    n.task(0, signals=[(c, 1)])
    n.task(0, waits=[(a, 1)])
    n.task(0, signals=[(b, 1)])
    n.task(1, waits=[(c, 1), (b, 1)])
    n.task(1, signals=[(a, 1)])
    return n.json()


def stop(steps: int = 3) -> Json:
    """T1 of queue 0 decides; T2 of queue 1 never waits for it."""
    n = Net(2, steps)
    flag, c = n.buffer(1, rows=steps, lifetime="host"), n.counter()
    n.task(0, signals=[(c, 1)])
    decides = n.task(0, [], [access(flag, (0, 1), affine(stride=1))])
    n.task(1, waits=[(c, 1)])
    n.extra["stop"] = {"buffer": flag, "task": decides}
    return n.json()


def test_a_race_is_run_with_no_more_than_it_needs() -> None:
    e = told(race(), "RACE")
    writer, reader = e.finding.tasks
    other = 1 - writer  # the one whose signal lets the reader start
    assert [(x.task, x.queue, x.position, x.changes) for x in e.steps] == [(other, other, 0, ((0, 0, 1),))]
    assert e.state is not None
    assert set(e.state.enabled) == {(0, writer), (0, 2)}
    assert reader == 2
    lo = 16 * writer
    assert e.common == (lo, lo + 16)
    assert [(t.task, t.write, t.rect) for t in e.accesses] == [
        (writer, True, (0, 1, 4 * writer, 4 * writer + 4)),
        (2, False, (0, 1, 0, 8)),
    ]
    text = e.text()
    half = f"cols [{4 * writer}:{4 * writer + 4})"
    for part in (
        f"SM{other}#0  T{other}  c0: 0 -> 1",
        f"SM{writer}#0  T{writer}  waits for nothing",
        "T2  waits for c0 >= 1 (has 1)",
        f"T{writer}  writes  activation0  rows [0:1)  {half}",
        "bytes [0:32)",
        "nearest repair: c0 >= 2",
    ):
        assert part in text
    assert "T3" not in text


def test_a_deadlock_names_every_blocked_queue_and_who_would_free_it() -> None:
    e = told(deadlock(), "LIVE")
    assert e.state is not None
    assert [
        (b.queue, b.position, b.task, b.missing.counter, b.missing.needs, b.missing.has, b.signallers) for b in e.state.blocked
    ] == [
        (0, 1, 1, 0, 1, 0, ((0, 4),)),
        (1, 0, 3, 1, 1, 0, ((0, 2),)),
    ]
    text = e.text()
    assert "1  SM0#0  T0  c2: 0 -> 1" in text
    assert "SM0#1  T1  waits c0 >= 1 (has 0)  to come from T4 at SM1#1" in text
    assert "SM1#0  T3  waits c1 >= 1 (has 0)  to come from T2 at SM0#2" in text
    assert states(deadlock(), e) == []


def test_a_queue_that_enters_a_step_before_it_is_decided() -> None:
    """T0 and T2 of step 0 are enough: queue 1 looks at stop[0] while T1 has not run."""
    e = told(stop(), "STOP")
    assert [(x.step, x.task) for x in e.steps] == [(0, 0), (0, 2)]
    assert e.state is not None
    assert e.state.enabled == ((0, 1), (1, 2))
    text = e.text()
    assert "SM1#0  enters step 1 and reads stop of step 0" in text
    assert "T1 of step 0  writes  activation0  rows [0:1)" in text


def test_a_tag_is_overwritten_under_its_reader() -> None:
    n = Net(2, 2)
    x = n.buffer(1, dtype="tag64", lifetime="persistent", tagged=True)
    n.task(0, [], [access(x, (0, 1))])
    n.task(1, [access(x, (0, 1))])
    e = told(n.json(), "TAG")
    assert [(x.step, x.task) for x in e.steps] == [(0, 0)]
    assert e.state is not None
    assert set(e.state.enabled) == {(0, 1), (1, 0)}
    assert e.tags


def test_a_race_of_later_steps_and_the_values_of_variables() -> None:
    """Row p of step 4 meets row 7 at p == 3 only; the writer has to be four steps ahead."""
    n = Net(2, 6)
    x = n.buffer(1, rows=16, lifetime="persistent", filled=True)
    n.extra["variables"] = {"p": {"count": 1, "min": 3, "max": 3}, "q": {"count": 1, "min": 0, "max": 9}}
    n.task(0, [], [access(x, (0, 1), affine(1, base="p"))])
    n.task(1, [access(x, (0, 1), (7, 8))])
    e = told(n.json(), "RACE")
    assert e.values == (3, 0)
    writer = next(t for t in e.accesses if t.write)
    assert (writer.step, writer.rect, e.common) == (4, (7, 8, 0, 1), (28, 32))
    assert "with p[0] = 3, q[0] = 0" in e.text()


def test_a_race_that_needs_another_queue_a_step_ahead() -> None:
    """T2 waits for two signals: one of each producer, or two of T0, which may lap T1."""
    n = Net(3, 2)
    x, c = n.buffer(1, lifetime="persistent", filled=True), n.counter()
    n.task(0, signals=[(c, 1)])
    n.task(1, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(2, [access(x, (0, 1))], [], [(c, 2)])
    e = told(n.json(), "RACE")
    assert e.state is not None
    assert [(x.step, x.task) for x in e.steps] == [(0, 0), (1, 0)]
    assert set(e.state.enabled) == {(0, 1), (0, 2)}


def test_a_long_run_is_shortened_in_the_middle() -> None:
    n = Net(2)
    x, c = n.buffer(1), n.counter()
    for _ in range(100):
        n.task(0)
    n.task(0, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(1, [], [access(x, (0, 1))])
    e = told(n.json(), "RACE")
    assert len(e.steps) == 100
    text = e.text()
    assert f"... {100 - SHOWN} more" in text
    assert "100  SM0#99" in text
    assert len(text.splitlines()) < SHOWN + 15


def test_rules_without_a_run_say_so() -> None:
    n = Net(1)
    x = n.buffer(1, kind="weight", lifetime="persistent", filled=True)
    n.task(0, [], [access(x, (0, 1))])
    e = told(n.json(), "RO")
    assert (e.steps, e.state) == ((), None)
    assert e.note in e.text()
    broken = race()
    broken["tasks"][0]["waits"] = [[7, 1, 0]]
    assert "no run" in told(broken, "REF").text()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_run_ends_where_both_tasks_can_start(name: str) -> None:
    """Findings of random attacks; tagged buffers aside, whose reads wait for more than counters."""
    for index in range(12):
        s = schedule_json(name, 31, index)
        schedule = Schedule.from_json(s)
        for f in validate(schedule, certificate=False).findings[:6]:
            e = explain(schedule, f)
            assert e.text().startswith(f.message.splitlines()[0])
            if f.rule == "RACE" and not f.undecided:
                assert e.state is not None, f"{name}/31/{index}: {f.message}"
                assert set(e.state.enabled) <= set(states(s, e))
                assert len(set(e.state.enabled)) == 2
            if f.rule == "LIVE" and not any(b.tagged for b in schedule.buffers):
                assert not [i for i in states(s, e) if i[0] == 0]
            if f.rule not in ("REF", "COUNT"):
                ET.fromstring(draw(schedule, e))


def test_the_order_of_a_run_does_not_change_where_it_ends() -> None:
    rng = random.Random(3)
    for index in range(20):
        schedule = Schedule.from_json(schedule_json("loop", 5, index))
        ends = set()
        for _ in range(4):
            rank = [rng.random() for _ in range(schedule.n_queues)]
            walk = Walk(schedule)
            walk.run(prefer=lambda q, rank=rank: rank[q])
            ends.add((tuple(walk.done), tuple(walk.count)))
        assert len(ends) == 1


def test_a_tagged_read_waits_for_the_writers_of_its_epoch() -> None:
    n = Net(2, 2)
    x = n.buffer(2, dtype="tag64", lifetime="persistent", tagged=True, filled=True)
    now = n.task(0, [access(x, (1, 2))])
    before = n.task(0, [access(x, (1, 2), epoch=-1)])
    n.task(1, [], [access(x, (0, 1))])
    writer = n.task(1, [], [access(x, (1, 2))])
    walk = Walk(Schedule.from_json(n.json()))
    assert [walk.tag_writers((i, t)) for t in (now, before) for i in (0, 1)] == [[(0, writer)], [(1, writer)], [], [(0, writer)]]


def test_shared_memory_of_two_queues_is_not_common() -> None:
    n = Net(2)
    n.pool("smem", 64, per_queue=True)
    own, x = n.buffer(1, pool="smem"), n.buffer(1)
    for q in (0, 1):
        n.task(q, [], [access(own, (0, 1)), access(x, (0, 1))])
    schedule = Schedule.from_json(n.json())
    (race,) = validate(schedule).findings
    e = explain(schedule, dataclasses.replace(race, buffer=None))
    assert {t.buffer for t in e.accesses} == {x}


SVG = "{http://www.w3.org/2000/svg}"


def test_the_drawing_marks_the_tasks_and_their_waits() -> None:
    e = told(race(), "RACE")
    root = ET.fromstring(draw(e.schedule, e))
    marked = {g.findtext(f"{SVG}text") for g in root.iter(f"{SVG}g") if g.get("class") == "task bad"}
    assert marked == {f"T{t}" for t in e.finding.tasks}
    assert len([p for p in root.iter(f"{SVG}path") if p.get("class") == "edge"]) == 2  # both signals that T2 waits for
    assert "c0 >= 1" in {t.text for t in root.iter(f"{SVG}text")}
    assert not list(root.iter(f"{SVG}script"))
    style = root.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    assert "url(" not in style


def test_a_drawing_of_a_large_schedule_stays_small_and_counts_what_it_leaves_out() -> None:
    n = Net(40)
    x = n.buffer(1)
    for q in range(40):
        for k in range(50):
            n.task(q, [], [access(x, (0, 1))] if (q, k) in ((3, 25), (33, 2)) else [])
    e = told(n.json(), "RACE")
    root = ET.fromstring(draw(e.schedule, e))
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    marked = [g.findtext(f"{SVG}text") for g in root.iter(f"{SVG}g") if g.get("class") == "task bad"]
    assert sorted(map(str, marked)) == ["T1652", "T175"]
    assert len([t for t in texts if t.startswith("SM")]) == MAX_ROWS
    assert any(f"{40 - MAX_ROWS} more queues" in t for t in texts)
    assert any(t.endswith(" more") for t in texts)


def test_names_are_escaped() -> None:
    s = race()
    s["buffers"][0]["name"] = "<script>&"
    e = told(s, "RACE")
    assert "<script>" not in draw(e.schedule, e)
