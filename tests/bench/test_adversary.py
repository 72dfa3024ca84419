"""The attack suite itself: deterministic, complete, resumable, and able to see a bad validator."""

from __future__ import annotations

from pathlib import Path

import pytest

from amk_bench.adversary import run as attack
from amk_bench.adversary.regressions import REGRESSIONS, Regression
from amk_core.schedule import oracle
from amk_core.schedule.ir import Schedule

HARDLY_EVER_SAFE = {"dangling_reference", "wrong_per_step", "permuted_ids"}
ALWAYS_SAFE = {"overtaking_safe", "real_lowering"}
HARDLY_EVER_UNSAFE = {"placed"}
PER_CLASS = 30


def accept(_: Schedule) -> attack.Judgement:
    return attack.Judgement(True, False, frozenset())


def refuse(_: Schedule) -> attack.Judgement:
    return attack.Judgement(False, False, frozenset({"RACE"}))


def perfect(s: Schedule) -> attack.Judgement:
    label = oracle.label(s)
    return attack.Judgement(label.safe, False, label.rules)


@pytest.mark.parametrize("name", sorted(attack.CLASSES))
def test_every_class_draws_safe_and_unsafe_schedules_within_the_oracle(name: str) -> None:
    row = attack.run_batch(name, 1, 0, PER_CLASS, accept)
    assert row.n == PER_CLASS
    assert row.too_large == 0
    if name in ALWAYS_SAFE:
        assert row.unsafe == 0
    else:
        assert row.unsafe > 0 or name in HARDLY_EVER_UNSAFE
        assert row.unsafe < PER_CLASS or name in HARDLY_EVER_SAFE


@pytest.mark.parametrize("known", REGRESSIONS, ids=lambda r: r.name)
def test_the_oracle_agrees_with_the_answer_by_hand(known: Regression) -> None:
    label = oracle.label(Schedule.from_json(known.build()))
    assert label.undecided is None
    assert (known.rule in label.rules) if known.rule else label.safe


def test_schedules_are_the_same_every_time() -> None:
    for name in attack.CLASSES:
        assert attack.schedule_json(name, 3, 7) == attack.schedule_json(name, 3, 7)
    assert attack.schedule_json("loop", 3, 7) != attack.schedule_json("loop", 4, 7)


@pytest.mark.parametrize("n", [attack.DEFAULT_N, attack.FULL_N, 100])
def test_the_plan_has_exactly_the_asked_size(n: int) -> None:
    assert sum(count for _, count in attack.plan(n)) == n


def test_too_small_a_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="one schedule of every class"):
        attack.plan(20)


def test_bad_judges_are_seen_and_a_perfect_one_passes() -> None:
    total = attack.totals(attack.run(200, judge=accept))
    assert total.n == 200
    assert total.false_accepts == total.unsafe > 0
    assert total.false_rejects == 0
    total = attack.totals(attack.run(200, judge=refuse))
    assert total.false_accepts == 0
    assert total.false_rejects == 200 - total.unsafe > 0
    total = attack.totals(attack.run(200, judge=perfect))
    assert (total.false_accepts, total.false_rejects, total.failures) == (0, 0, [])


def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "attack.jsonl"
    rows = attack.run(200, judge=accept, out=out)
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:10]) + "\n" + lines[10][:20])  # stopped in the middle of a line
    seen: list[str] = []
    again = attack.run(200, judge=accept, out=out, progress=seen.append)
    assert len(seen) == len(lines) - 10
    assert [(r.name, r.n, r.unsafe, r.false_accepts) for r in again] == [(r.name, r.n, r.unsafe, r.false_accepts) for r in rows]


def test_the_table_has_a_line_a_class_and_a_total() -> None:
    rows = attack.run(100, judge=perfect)
    lines = attack.table(rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert lines[-1].split()[:2] == ["total", "100"]
