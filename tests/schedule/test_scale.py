"""The kinds of the speed suite, small, and each with one wait weakened: judged like the readable reference does it."""

from __future__ import annotations

import dataclasses
import random

import pytest

from amk_bench.adversary import scale
from amk_bench.adversary.run import CLASSES
from amk_core.schedule import Schedule, check_certificate, reference, validate
from amk_core.schedule.tables import pack
from amk_core.schedule.walk import Walk

KINDS = [k for k in scale.KINDS if k != "real"]
QUEUES, TASKS, STEPS = 3, 24, 4


def small(kind: str) -> Schedule:
    steps = 1 if kind == "one step" else STEPS
    build = {
        "full joins": scale.full_joins, "grid barrier": scale.grid_barrier, "neighbours": scale.neighbours,
        "quorum": scale.quorum, "tagged": scale.tagged, "one step": scale.one_step,
    }[kind]  # fmt: skip
    return build(TASKS, QUEUES, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_safe_and_proved(kind: str) -> None:
    s = small(kind)
    v = validate(s)
    assert v.accepted, str(v)
    assert reference.validate(s).accepted
    assert v.certificate is not None
    assert check_certificate(pack(s), v.certificate) == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_wait_weaker(kind: str) -> None:
    """A threshold one lower: the reference and the validator agree, and some of these are unsafe."""
    s, rejected = small(kind), 0
    for w in range(len(s.columns.wait_t)):
        t = s.columns.wait_t.copy()
        t[w] = max(1, int(t[w]) - 1)
        weak = dataclasses.replace(s, columns=dataclasses.replace(s.columns, wait_t=t))
        mine, theirs = validate(weak), reference.validate(weak)
        assert (mine.accepted, mine.rules) == (theirs.accepted, theirs.rules), f"wait {w}: {mine}\n{theirs}"
        rejected += not mine.accepted
        if mine.certificate is not None:
            assert check_certificate(pack(weak), mine.certificate) == []
    assert rejected or kind == "one step"  # there every threshold is 1 already


def test_a_thousand_tasks_on_many_queues_share_their_clocks() -> None:
    """One row a phase, whatever the number of queues: what keeps a million tasks in memory."""
    s = scale.full_joins(1_000, 50, STEPS)
    certificate = validate(s).certificate
    assert certificate is not None
    assert len(certificate.row_off) - 1 == s.n_tasks // 50


@pytest.mark.parametrize("name", ["random_net", "loop", "token_feedback", "slow_drift", "alias_buffers"])
def test_every_race_has_a_run_in_which_both_tasks_can_start(name: str) -> None:
    races = 0
    for k in range(60):
        s = Schedule.from_json(CLASSES[name](random.Random(f"witness/{name}/{k}")))
        for f in validate(s).findings:
            if f.rule != "RACE" or f.undecided:
                continue
            races += 1
            assert f.witness is not None, f.message
            completed = f.witness["completed"]
            pair = [tuple(p) for p in f.witness["both_enabled"]]
            walk = Walk(s, steps=s.steps, tags=False)
            walk.run(completed)
            assert walk.done == completed
            heads = {walk.head(q): walk.missing(q) for q in range(s.n_queues)}
            assert all(p in heads and heads[p] is None for p in pair), f.message
    assert races
