"""The exhaustive oracle against schedules whose answer can be seen by hand."""

from __future__ import annotations

import random

import pytest

from amk_bench.adversary import generators
from amk_bench.adversary.net import Json, Net, access, affine
from amk_core.schedule import oracle
from amk_core.schedule.ir import Schedule


def rules(s: Json) -> set[str]:
    label = oracle.label(Schedule.from_json(s))
    assert label.undecided is None
    return set(label.rules)


def handoff(wait: int = 1, steps: int = 1, back: bool = True) -> Json:
    """T0 on Q0 writes x, T1 on Q1 reads it and writes the output; with steps, T0 waits for T1 of the step before."""
    n = Net(2, steps)
    x, y = n.buffer(1), n.buffer(1, kind="output", lifetime="persistent")
    ready, free = n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 1))], [(free, 1, -1)] if back else [], [(ready, 1)])
    n.task(1, [access(x, (0, 1))], [access(y, (0, 1))], [(ready, 1)] if wait else [], [(free, 1)])
    return n.json()


def test_ordered_handoff_is_safe_for_every_number_of_steps() -> None:
    assert [rules(handoff(steps=t)) for t in (1, 2, 5)] == [set()] * 3


def test_missing_wait_races_and_missing_back_edge_races_from_the_second_step() -> None:
    assert "RACE" in rules(handoff(wait=0))
    assert rules(handoff(back=False)) == set()
    assert rules(handoff(back=False, steps=2)) == {"RACE"}


def test_crossed_waits_deadlock() -> None:
    n = Net(2)
    a, b = n.counter(), n.counter()
    n.task(0, waits=[(b, 1)], signals=[(a, 1)])
    n.task(1, waits=[(a, 1)], signals=[(b, 1)])
    assert rules(n.json()) == {"LIVE"}


def test_a_deadlock_of_a_short_launch_is_seen() -> None:
    """T1 of step 0 needs 2 signals and its producer gives one a step: only the second step of the producer would free it."""
    n = Net(2, 2)
    a = n.counter()
    n.task(0, signals=[(a, 1)])
    n.task(1, waits=[(a, 2)], signals=[(a, 1)])
    assert "LIVE" in rules(n.json())


@pytest.mark.parametrize(("threshold", "expected"), [(1, {"RACE"}), (2, set())])
def test_partial_threshold_is_a_join_only_when_it_is_full(threshold: int, expected: set[str]) -> None:
    n = Net(3)
    x, c = n.buffer(2), n.counter()
    n.task(0, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(1, [], [access(x, (1, 2))], [], [(c, 1)])
    n.task(2, [access(x, (0, 2))], [], [(c, threshold)])
    assert rules(n.json()) == expected


def test_partial_threshold_on_a_chain_is_an_order() -> None:
    n = Net(2)
    x, c = n.buffer(2), n.counter()
    n.task(0, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(0, [], [access(x, (1, 2))], [], [(c, 1)])
    n.task(1, [access(x, (0, 1))], [], [(c, 1)])
    assert rules(n.json()) == set()
    n.tasks[2]["reads"] = [access(x, (0, 2))]
    assert rules(n.json()) == {"RACE"}


def test_poison_between_steps_and_persistent_bytes() -> None:
    def once(lifetime: str, filled: bool, steps: int) -> set[str]:
        n = Net(1, steps)
        x = n.buffer(1, lifetime=lifetime, filled=filled)
        n.task(0, [access(x, (0, 1))])
        return rules(n.json())

    assert once("step", False, 1) == {"COVER"}
    assert once("step", True, 1) == set()
    assert once("step", True, 2) == {"COVER"}
    assert once("persistent", True, 2) == set()


def test_maybe_counts_for_races_and_not_for_cover() -> None:
    n = Net(2)
    x = n.buffer(1)
    n.task(0, [], [access(x, (0, 1), maybe=True)])
    n.task(0, [access(x, (0, 1))])
    assert rules(n.json()) == {"COVER"}
    n.tasks[1]["reads"][0]["maybe"] = True
    assert rules(n.json()) == set()
    n.task(1, [access(x, (0, 1), maybe=True)])
    assert rules(n.json()) == {"RACE"}


def test_every_value_of_a_variable_is_tried() -> None:
    """Rows p0 and p1 of two sequences collide only where the variables meet; row p0 + 3 leaves the buffer only at p0 == 5."""
    n = Net(2)
    x = n.buffer(1, rows=8)
    n.extra["variables"] = {"p": {"count": 2, "min": 0, "max": 5}}
    n.task(0, [], [access(x, (0, 1), affine(base="p[0]"))])
    n.task(1, [], [access(x, (0, 1), affine(base="p[1]", add=6, mod=8))])
    assert rules(n.json()) == {"RACE"}
    n.tasks[1]["writes"] = [access(x, (0, 1), (6, 7))]
    assert rules(n.json()) == set()
    n.tasks[0]["writes"][0]["rows"]["start"]["add"] = 3
    assert rules(n.json()) == {"REF"}


def test_physical_bytes_alias_and_sub_byte_elements_round_outward() -> None:
    n = Net(2)
    x, y = n.buffer(4, dtype="i4"), n.buffer(2, offset=64)
    z = n.buffer(2, offset=68)
    n.task(0, [], [access(x, (0, 1)), access(y, (0, 1))])
    n.task(1, [], [access(x, (2, 3)), access(z, (1, 2))])
    assert rules(n.json()) == set()
    n.tasks[1]["writes"] = [access(x, (1, 2))]
    assert rules(n.json()) == {"RACE"}
    n.tasks[0]["writes"] = [access(y, (1, 2))]
    n.tasks[1]["writes"] = [access(z, (0, 1))]
    assert rules(n.json()) == {"RACE"}


def test_shared_memory_pools_are_one_per_queue() -> None:
    n = Net(2)
    n.pool("smem", 4, per_queue=True)
    x = n.buffer(1, pool="smem")
    n.task(0, [], [access(x, (0, 1))])
    n.task(1, [], [access(x, (0, 1))])
    assert rules(n.json()) == set()
    n.extra["target"] = {"sms": 1, "smem_bytes": 2, "arch": "sm_90"}
    assert rules(n.json()) == {"FIT"}


def test_tagged_hand_off() -> None:
    """A tagged read needs no counter; the writer of the next step must be ordered after the reader by counters."""

    def net(steps: int, back: bool, epoch: int = 0, plain: bool = False) -> Json:
        n = Net(2, steps)
        x = n.buffer(1, dtype="tag64", lifetime="persistent", tagged=True, filled=epoch != 0)
        y, c = n.buffer(1, lifetime="persistent", filled=True), n.counter()
        n.task(0, [], [access(x, (0, 1)), *([access(y, (0, 1))] if plain else [])], [(c, 1, -1)] if back else [])
        n.task(
            1, [access(x, (0, 1), **({"epoch": -1} if epoch else {})), *([access(y, (0, 1))] if plain else [])], signals=[(c, 1)]
        )
        return n.json()

    assert rules(net(1, back=False)) == set()
    assert rules(net(3, back=True)) == set()
    assert rules(net(3, back=False)) == {"TAG"}
    assert "RACE" in rules(net(1, back=False, plain=True))
    assert "TAG" in rules(net(2, back=True, epoch=-1))  # the reader of the tag before runs beside the next writer


def test_a_tagged_read_before_its_writer_in_one_queue_deadlocks() -> None:
    n = Net(1)
    x = n.buffer(1, dtype="tag64", tagged=True)
    n.task(0, [access(x, (0, 1))])
    n.task(0, [], [access(x, (0, 1))])
    assert "LIVE" in rules(n.json())


def test_stop_must_be_seen_by_every_queue() -> None:
    def net(seen: bool, steps: int) -> Json:
        n = Net(2, steps)
        x, c = n.buffer(1, rows=4, lifetime="host"), n.counter()
        t = n.task(0, [], [access(x, (0, 1), affine(stride=1))], [], [(c, 1)])
        n.task(1, waits=[(c, 1, -1)] if seen else [])
        n.extra["stop"] = {"buffer": x, "task": t}
        return n.json()

    assert rules(net(True, 4)) == set()
    assert rules(net(False, 4)) == {"STOP"}
    assert rules(net(False, 1)) == set()


def test_async_proxy_needs_its_fences() -> None:
    def net(read_fence: list[str], write_fence: list[str]) -> Json:
        n = Net(1)
        x, y = n.buffer(1), n.buffer(1)
        n.task(0, [], [access(x, (0, 1))])
        n.task(0, [access(x, (0, 1), proxy="async")], [access(y, (0, 1), proxy="async")], fences=read_fence + write_fence)
        n.task(0, [access(y, (0, 1))])
        return n.json()

    assert rules(net(["proxy.async"], ["bulk.wait_group"])) == set()
    assert rules(net([], ["bulk.wait_group"])) == {"PROXY"}
    assert rules(net(["proxy.async"], ["bulk.wait_group.read"])) == {"PROXY"}


def test_count_and_structure() -> None:
    s = handoff()
    s["counters"][0]["per_step"] = 2
    assert rules(s) == {"COUNT"}
    s = handoff()
    s["tasks"][1]["waits"][0][1] = 2
    assert rules(s) == {"COUNT"}
    s = handoff()
    s["queues"] = [[0, 1], [1]]
    assert rules(s) == {"REF"}
    s = handoff()
    s["steps"], s["tasks"][0]["signals"] = 2**20, [[0, 2**11]]
    s["counters"][0]["per_step"] = 2**11
    assert rules(s) == {"COUNT"}


def test_read_only_bytes_and_unwritten_output() -> None:
    n = Net(1)
    w, o = n.buffer(2, kind="weight", lifetime="persistent", filled=True), n.buffer(2, kind="output", lifetime="persistent")
    n.task(0, [access(w, (0, 2))], [access(o, (0, 2))])
    assert rules(n.json()) == set()
    n.tasks[0]["writes"] = [access(o, (0, 1))]
    assert rules(n.json()) == {"COVER"}
    n.tasks[0]["writes"] = [access(o, (0, 2)), access(w, (0, 1))]
    assert rules(n.json()) == {"RO"}


def test_a_race_that_first_appears_late() -> None:
    """The producer may run ahead by four steps before a ring of four rows is overwritten under its reader."""

    def net(steps: int) -> Json:
        n = Net(2, steps)
        x, c = n.buffer(1, rows=4, lifetime="persistent", filled=True), n.counter()
        n.task(0, [], [access(x, (0, 1), affine(stride=1, mod=4))], [], [(c, 1)])
        n.task(1, [access(x, (0, 1), affine(stride=1, mod=4))], [], [(c, 1)])
        return n.json()

    assert [rules(net(t)) for t in (4, 5)] == [set(), {"RACE"}]


@pytest.mark.parametrize("seed", range(60))
def test_atomic_and_event_exploration_agree(seed: int) -> None:
    s = Schedule.from_json(generators.random_net(random.Random(seed)))
    assert oracle.label(s).rules == oracle.label(s, atomic=True).rules


@pytest.mark.parametrize("seed", range(40))
def test_placed_programs_of_one_step_are_safe(seed: int) -> None:
    assert rules(generators.placed(random.Random(seed))) == set()


def test_a_join_opens_early_when_one_producer_laps_the_other() -> None:
    """Two producers give one each, the reader waits for both; two steps of the fast one count as much as one of each."""
    n = Net(3, 2)
    x, c = n.buffer(2, lifetime="persistent"), n.counter()
    n.task(0, signals=[(c, 1)])
    n.task(1, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(2, [access(x, (0, 1))], [], [(c, 2)])
    assert rules({**n.json(), "steps": 1}) == set()
    assert rules(n.json()) == {"RACE"}


def test_a_small_budget_is_undecided_not_safe() -> None:
    label = oracle.label(Schedule.from_json(handoff(steps=5)), max_states=3)
    assert label.undecided
    assert not label.safe
