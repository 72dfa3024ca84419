"""The reference validator: same verdict as the oracle, same verdict and same set of rules as the native validator."""

from __future__ import annotations

import random

import pytest

from amk_bench.adversary import run as attack
from amk_bench.adversary.net import Json, Net, access
from amk_bench.adversary.regressions import REGRESSIONS
from amk_core.schedule import Schedule, oracle, reference, validate

PER_CLASS = 4
SEED = 21


def comparable(rules: frozenset[str]) -> frozenset[str]:
    """What both must agree on: bytes that are raced for have no certain writer, tags that are broken no certain value, and behind
    a deadlock only the prefix counts, which depends on the number of steps that are written out."""
    if "LIVE" in rules:
        return rules & {"LIVE", "RO", "FIT"}
    if "RACE" in rules:
        rules -= {"COVER", "FLOW"}
    return rules - {"COVER"} if "TAG" in rules else rules


@pytest.mark.parametrize("name", sorted(attack.CLASSES))
def test_reference_oracle_and_native_validator_agree(name: str) -> None:
    for index in range(PER_CLASS):
        s = Schedule.from_json(attack.schedule_json(name, SEED, index))
        mine, native, truth = reference.validate(s), validate(s, witness=False, certificate=False), oracle.label(s)
        where = f"{name}/{SEED}/{index}"
        assert mine.accepted == truth.safe, (where, sorted(mine.rules), sorted(truth.rules), truth.notes)
        if native.undecided:
            continue  # the native one may give up on a drift, or on clobbers that depend on a variable; the suite counts them
        assert mine.accepted == native.accepted, (where, sorted(mine.rules), str(native))
        assert comparable(mine.rules) == comparable(native.rules), (where, str(native))


def test_reference_knows_the_named_regressions() -> None:
    for known in REGRESSIONS:
        try:
            v = reference.validate(Schedule.from_json(known.build()))
        except reference.TooLarge:
            continue
        assert (known.rule in v.rules) if known.rule else v.accepted, known.name


def chain(threshold: int) -> Json:
    """Three writers on one queue, one counter; a reader on another one waits for ``threshold`` of them and reads the first two."""
    n = Net(2)
    x, c = n.buffer(3), n.counter()
    for i in range(3):
        n.task(0, [], [access(x, (i, i + 1))], [], [(c, 1)])
    n.task(1, [access(x, (0, 2))], [], [(c, threshold)])
    return n.json()


def test_clocks_of_partial_thresholds() -> None:
    assert reference.validate(Schedule.from_json(chain(1))).rules == {"RACE", "COVER"}
    assert reference.validate(Schedule.from_json(chain(2))).accepted
    assert reference.validate(Schedule.from_json(chain(3))).accepted


def test_a_schedule_that_is_not_small_is_refused_by_name() -> None:
    n = Net(1, 500)
    n.task(0)
    with pytest.raises(reference.TooLarge, match="500 steps"):
        reference.validate(Schedule.from_json(n.json()))


def test_rules_of_the_prefix_that_a_deadlock_leaves() -> None:
    """Where LIVE fails, the other rules cover what runs: the race in front of the deadlock is found, the one behind is not."""

    def net(behind: bool) -> Json:
        n = Net(2)
        x, a, b = n.buffer(1), n.counter(), n.counter()
        for q, (own, other) in enumerate(((a, b), (b, a))):
            if not behind:
                n.task(q, [], [access(x, (0, 1))])
            n.task(q, waits=[(other, 1)], signals=[(own, 1)])
            if behind:
                n.task(q, [], [access(x, (0, 1))])
        return n.json()

    for behind, expected in ((False, {"LIVE", "RACE"}), (True, {"LIVE"})):
        s = Schedule.from_json(net(behind))
        assert reference.validate(s).rules == validate(s).rules == expected


def test_random_schedules_agree_with_the_oracle() -> None:
    rng = random.Random(5)
    for index in range(40):
        name = rng.choice(("random_net", "loop", "slow_drift", "stale_tag", "stop_seen_by_one_queue"))
        s = Schedule.from_json(attack.schedule_json(name, 99, index))
        assert reference.validate(s).accepted == oracle.label(s).safe, (name, index)
