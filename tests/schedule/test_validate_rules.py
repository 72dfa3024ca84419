"""Every rule: a schedule that breaks it, and a twin that differs in the repair only and is accepted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from amk_bench.adversary.net import Json, Net, access, affine
from amk_core.schedule import Schedule, Verdict, check_certificate, validate
from amk_core.schedule.tables import pack


def judge(s: Json) -> Verdict:
    schedule = Schedule.from_json(s)
    v = validate(schedule)
    if v.accepted:
        assert v.certificate is not None
        assert check_certificate(pack(schedule), v.certificate) == []
    return v


def rules(s: Json) -> set[str]:
    return set(judge(s).rules)


def edit(s: Json, path: str, value: Any) -> Json:
    """A copy with one leaf replaced; the path is dotted."""
    out = copy.deepcopy(s)
    *front, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: Any = out
    for p in front:
        at = at[p]
    at[last] = value
    return out


def handoff(steps: int = 1, wait: int = 1, back: bool = True, **extra: Any) -> Json:
    """T0 on Q0 writes x, T1 on Q1 reads it and writes y; over steps, T0 waits for T1 of the step before."""
    n = Net(2, steps)
    x, y = n.buffer(4), n.buffer(4, kind="output", lifetime="persistent")
    ready, free = n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 4))], [(free, 1, -1)] if back else [], [(ready, 1)])
    n.task(1, [access(x, (0, 4), **extra)], [access(y, (0, 4))], [(ready, 1)] if wait else [], [(free, 1)])
    return n.json()


@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_race_free_handoff_is_accepted_for_any_number_of_steps(steps: int) -> None:
    assert rules(handoff(steps)) == set()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps", 0), ("steps", 2**31), ("queues.0", [0, 0]), ("queues.0", []), ("queues.0", [5]), ("tasks.1.waits.0", [9, 1, 0]),
        ("tasks.0.signals.0", [-1, 1]), ("tasks.0.writes.0.buffer", 7), ("tasks.0.writes.0.cols", [0, 5]),
        ("tasks.0.writes.0.cols", [3, 1]), ("tasks.0.writes.0.rows", [-1, 1]), ("buffers.0.offset", -4),
        ("buffers.0.offset", 2**62), ("buffers.0.pool", "nowhere"), ("pools.0.bytes", 8), ("pools.0.bytes", -1),
        ("buffers.0.id", 1), ("tasks.0.id", 1),
        ("tasks.0.op", "unheard_of"), ("stop", {"buffer": 0, "task": 9}), ("tasks.0.writes.0.cols", affine(1, 4)),
        ("variables", {"p": {"count": 1, "min": 2, "max": 1}}),
    ],
)  # fmt: skip
def test_ref(path: str, value: Any) -> None:
    s = handoff(2)
    assert rules(s) == set()
    assert rules(edit(s, path, value)) == {"REF"}


@pytest.mark.parametrize(
    ("path", "value"),
    [("counters.0.per_step", 2), ("tasks.1.waits.0", [0, 2, 0]), ("tasks.1.waits.0", [0, 0, 0]), ("tasks.0.signals.0", [0, -1]),
     ("steps", 2**31 - 1)],
)  # fmt: skip
def test_count(path: str, value: Any) -> None:
    s = handoff(2)
    if path == "steps":
        s["tasks"][0]["signals"][0], s["counters"][0]["per_step"] = [0, 2], 2
        assert "COUNT" not in rules(edit(s, path, 2**30 - 1))
    assert rules(edit(s, path, value)) == {"COUNT"}


def test_live_names_the_cycle_through_waits_and_queue_order() -> None:
    n = Net(2)
    a, b = n.counter(), n.counter()
    n.task(0, waits=[(b, 1)])
    n.task(0, signals=[(a, 1)])
    n.task(1, waits=[(a, 1)])
    n.task(1, signals=[(b, 1)])
    s = n.json()
    v = judge(s)
    assert v.rules == {"LIVE"}
    assert set(v.findings[0].tasks) == {0, 2}
    assert "DEADLOCK" in v.findings[0].message
    assert rules(edit(s, "queues.0", [1, 0])) == set()


def test_live_failure_does_not_hide_a_race_in_the_reached_prefix() -> None:
    n = Net(2)
    x = n.buffer(1, lifetime="persistent")
    c = n.counter()
    for q in (0, 1):
        n.task(q, [], [access(x, (0, 1))])
        n.task(q, waits=[(c, 1)], signals=[(c, 1)])
    assert rules(n.json()) == {"LIVE", "RACE"}


@pytest.mark.parametrize(("kind", "read_first"), [("RAW", False), ("WAR", True)])
def test_race_and_its_witness(kind: str, read_first: bool) -> None:
    n = Net(2)
    x = n.buffer(4, lifetime="persistent", filled=True)
    n.task(0, [access(x, (0, 2))] if read_first else [], [] if read_first else [access(x, (0, 2))])
    n.task(1, [] if read_first else [access(x, (1, 4))], [access(x, (1, 4))] if read_first else [])
    s = n.json()
    v = judge(s)
    race = next(f for f in v.findings if f.rule == "RACE")
    assert race.message.startswith(f"RACE {kind}")
    assert (race.byte_range, race.queue_positions) == ((4, 8), ((0, 0), (1, 0)))
    assert race.witness == {"completed": [0, 0], "both_enabled": [[0, 0], [0, 1]]}
    disjoint = edit(s, "tasks.1.writes.0.cols" if read_first else "tasks.1.reads.0.cols", [2, 4])
    assert rules(disjoint) == set()


def test_race_over_steps_is_exact_for_the_declared_steps() -> None:
    """T0 may run ahead of T1 as far as the queue allows; without the way back the second write races with the first read."""
    assert rules(handoff(1, back=False)) == set()
    v = judge(handoff(2, back=False))
    assert v.rules == {"RACE"}
    assert not v.undecided


def late(steps: int) -> Json:
    """The writer is held back 4 steps by a ring of 5 rows: the first overlap is at distance 5."""
    n = Net(2, steps)
    ring, out = n.buffer(1, rows=5, lifetime="persistent"), n.buffer(1, kind="output", lifetime="persistent")
    c = n.counter()
    n.task(0, [], [access(ring, (0, 1), affine(1, 1, mod=5))], [], [(c, 1)])
    n.task(1, [access(ring, (0, 1), affine(1, 1, mod=5))], [access(out, (0, 1))], [(c, 1)])
    return n.json()


@pytest.mark.parametrize(("steps", "expected"), [(5, set()), (6, {"RACE"}), (10_000, {"RACE"})])
def test_race_that_first_appears_at_step_5(steps: int, expected: set[str]) -> None:
    v = judge(late(steps))
    assert v.rules == expected
    assert not v.undecided


def test_partial_threshold_is_no_join() -> None:
    n = Net(3)
    x, out = n.buffer(2), n.buffer(2, kind="output", lifetime="persistent")
    c = n.counter()
    n.task(0, [], [access(x, (0, 1))], [], [(c, 1)])
    n.task(1, [], [access(x, (1, 2))], [], [(c, 1)])
    n.task(2, [access(x, (0, 2))], [access(out, (0, 2))], [(c, 2)])
    s = n.json()
    assert rules(s) == set()
    v = judge(edit(s, "tasks.2.waits.0", [0, 1, 0]))
    assert "RACE" in v.rules
    assert any(f.repair == "c0 >= 2" for f in v.findings)


def test_cover_reads_outputs_and_poison() -> None:
    s = handoff()
    assert rules(edit(s, "tasks.0.writes.0.cols", [0, 3])) == {"COVER"}
    assert rules(edit(s, "tasks.0.writes.0.maybe", True)) == {"COVER"}
    assert rules(edit(edit(s, "tasks.0.writes.0.maybe", True), "tasks.1.reads.0.maybe", True)) == set()
    assert rules(edit(s, "tasks.1.writes.0.cols", [1, 4])) == {"COVER"}
    n = Net(1, 2)
    x, out = n.buffer(1, filled=True), n.buffer(1, kind="output", lifetime="persistent")
    n.task(0, [access(x, (0, 1))], [access(out, (0, 1))])
    t = n.json()
    assert rules(t) == {"COVER"}  # initial data of a step buffer does not survive step 0
    assert rules(edit(t, "steps", 1)) == set()
    assert rules(edit(t, "buffers.0.lifetime", "persistent")) == set()


def kv(first_row: int = 0, stride: int = 1, last: int = 1, steps: int = 50) -> Json:
    """Appends row p0 + i and reads rows [0, p0 + i + last) of a cache whose rows below p0 are initial."""
    n = Net(2, steps)
    cache, out = n.buffer(2, rows=200, kind="kv", lifetime="persistent"), n.buffer(1, kind="output", lifetime="persistent")
    n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": 100}}
    n.initial.append({"buffer": cache, "rows": {"start": 0, "length": {"base": "p0"}}, "cols": [0, 2]})
    c, back = n.counter(), n.counter()
    n.task(0, [], [access(cache, (0, 2), affine(stride, 1, base="p0", add=first_row))], [(back, 1, -1)], [(c, 1)])
    rows = {"start": 0, "length": {"base": "p0", "stride": 1, "add": last}}
    n.task(1, [access(cache, (0, 2), rows)], [access(out, (0, 1))], [(c, 1)], [(back, 1)])
    return n.json()


@pytest.mark.parametrize(("name", "last"), [("a", 0), ("a[0]", 0), ("b[0]", 5), ("b[1]", 5), ("c", 3), ("d", 4)])
def test_each_of_several_variables_has_its_own_range(name: str, last: int) -> None:
    """The row that a variable names is inside a buffer of ``last + 1`` rows, and outside one that is a row shorter."""
    bounds = {"a": (1, 0), "b": (2, 5), "c": (1, 3), "d": (1, 4)}
    for rows in (last + 1, max(1, last)):
        n = Net(1)
        n.extra["variables"] = {v: {"count": count, "min": 0, "max": top} for v, (count, top) in bounds.items()}
        n.task(0, [], [access(n.buffer(1, rows), (0, 1), affine(base=name))])
        assert rules(n.json()) == ({"REF"} if rows <= last else set())
        assert Schedule.from_json(n.json()).to_json()["tasks"] == n.json()["tasks"] or name in ("a", "c", "d")


def test_cover_of_a_growing_cache_by_induction() -> None:
    assert rules(kv()) == set()
    assert rules(kv(steps=1)) == set()
    assert rules(kv(last=2)) == {"COVER"}
    assert rules(kv(first_row=1)) == {"COVER"}
    assert "COVER" in rules(kv(stride=2))
    assert rules(kv(last=0)) == set()


def test_ro_also_by_alias() -> None:
    s = handoff()
    assert rules(edit(s, "buffers.0.kind", "input")) >= {"RO"}
    n = Net(1)
    w = n.buffer(4, kind="weight", lifetime="persistent", filled=True)
    x = n.buffer(2, lifetime="persistent", offset=8)
    n.task(0, [access(w, (0, 2))], [access(x, (0, 1))])
    t = n.json()
    assert rules(t) == {"RO"}
    assert rules(edit(t, "buffers.1.offset", 16)) == set()


def stopping(wait: bool) -> Json:
    n = Net(2, 4)
    stop = n.buffer(1, rows=4, kind="output", lifetime="host")
    c = n.counter()
    n.task(0, [], [access(stop, (0, 1), affine(1, 1))], [], [(c, 1)])
    n.task(1, [], [], [(c, 1, -1)] if wait else [])
    n.extra["stop"] = {"buffer": stop, "task": 0}
    return n.json()


def test_stop_is_seen_by_every_queue() -> None:
    assert rules(stopping(True)) == set()
    assert rules(stopping(False)) == {"STOP"}
    s = stopping(True)
    s["tasks"][1]["writes"] = [access(0, (0, 1), (3, 4))]
    assert "STOP" in rules(s)


def test_fit() -> None:
    s = handoff()
    s["pools"].append({"id": "smem", "bytes": 1000, "per_queue": True})
    fits = {"sms": 2, "smem_bytes": 1000, "arch": "sm_90"}
    assert rules({**s, "target": fits}) == set()
    for change in ({"sms": 1}, {"smem_bytes": 999}, {"arch": "sm_42"}):
        assert rules({**s, "target": {**fits, **change}}) == {"FIT"}
    assert rules({**edit(s, "pools.1.bytes", None), "target": fits}) == {"FIT"}


def test_proxy_fence_and_completion() -> None:
    s = handoff(proxy="async")
    assert rules(s) == {"PROXY"}
    assert rules(edit(s, "tasks.1.fences", ["proxy.async"])) == set()
    store = edit(handoff(), "tasks.0.writes.0.proxy", "async")
    assert rules(store) == {"PROXY"}
    assert rules(edit(store, "tasks.0.fences", ["bulk.wait_group.read"])) == {"PROXY"}
    assert rules(edit(store, "tasks.0.fences", ["bulk.wait_group"])) == set()


def tagged(back: bool, steps: int = 3) -> Json:
    """A tagged hand-off without a counter wait on the reader; the writer of the next step waits for the reader."""
    n = Net(2, steps)
    x = n.buffer(4, dtype="tag64", lifetime="persistent", tagged=True)
    out = n.buffer(4, kind="output", lifetime="persistent")
    free = n.counter()
    n.task(0, [], [access(x, (0, 4))], [(free, 1, -1)] if back else [])
    n.task(1, [access(x, (0, 4))], [access(out, (0, 4))], [], [(free, 1)])
    return n.json()


def test_tag_overwrite_alignment_alias_and_writers() -> None:
    assert rules(tagged(True)) == set()
    assert rules(tagged(False)) == {"TAG"}
    assert rules(tagged(False, 1)) == set()
    assert rules(edit(tagged(True), "buffers.0.offset", 36)) == {"TAG"}
    assert "TAG" in rules(edit(tagged(True), "buffers.1.offset", 0))
    two = tagged(True)
    two["tasks"].append({"id": 2, "waits": [[0, 1, -1]], "writes": [access(0, (0, 1))]})
    two["queues"][0].append(2)
    assert rules(two) == {"TAG"}
    itself = tagged(True)
    itself["tasks"][1]["writes"].append(access(0, (0, 1)))
    assert rules(itself) == {"LIVE"}  # it polls for what it writes after the poll
    assert rules(edit(tagged(True), "tasks.1.reads.0.cols", [0, 4]) | {"queues": [[0, 1], []]}) == set()
    assert rules(tagged(True) | {"queues": [[], [1, 0]]}) == {"LIVE"}  # polls for what comes later on its own queue


def test_flow_ordered_clobber_of_a_real_lowering() -> None:
    from amk_core.graph import GRAPH_SHAPES
    from amk_core.schedule.lower import lower
    from amk_core.targets import Target

    s = lower(GRAPH_SHAPES["smollm2-135m"], target=Target.cpu(2))
    assert validate(s).accepted
    c = s.columns
    residual = [t for t in range(s.n_tasks) if c.acc_label[c.acc_off[t]] >= 0]
    c.acc_label[c.acc_off[residual[5]]] += 1  # now it needs another layer's value at the same bytes
    assert validate(s).rules == {"FLOW"}


def test_per_queue_pools_are_apart_and_initial_in_each() -> None:
    n = Net(2)
    n.pool("smem", 64, per_queue=True)
    x = n.buffer(4, pool="smem", filled=True)
    for q in (0, 1):
        n.task(q, [access(x, (0, 4))], [access(x, (0, 4))])
    s = n.json()
    assert rules(s) == set()
    assert "RACE" in rules(edit(s, "pools.1.per_queue", False))


def test_sub_byte_neighbours_share_a_byte() -> None:
    n = Net(2)
    x = n.buffer(8, dtype="i4", lifetime="persistent")
    n.task(0, [], [access(x, (0, 3))])
    n.task(1, [], [access(x, (3, 8))])
    s = n.json()
    assert rules(s) == {"RACE"}
    s = edit(edit(s, "tasks.0.writes.0.cols", [0, 4]), "tasks.1.writes.0.cols", [4, 8])
    assert rules(s) == set()


def test_findings_are_capped_and_counted() -> None:
    n = Net(2)
    x = n.buffer(100, lifetime="persistent")
    for q in (0, 1):
        for k in range(100):
            n.task(q, [], [access(x, (k, k + 1))])
    v = judge(n.json())
    assert (v.counts["RACE"], len(v.findings)) == (100, 20)
    assert "... and 80 more RACE" in str(v)
