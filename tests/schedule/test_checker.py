"""The certificate checker, both engines: right ones pass, wrong ones do not, and nothing crashes it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from amk_bench.adversary import run as attack
from amk_bench.adversary.certificates import corrupt, truthful
from amk_bench.adversary.generators import loop, placed
from amk_bench.adversary.mutations import OPERATORS
from amk_bench.adversary.net import Json, Net, access, affine
from amk_core import _native
from amk_core.schedule import Certificate, Schedule, check_certificate, oracle, validate
from amk_core.schedule.tables import pack, table_hash

ENGINES = ("native", "python")


def both(tables: bytes, c: Certificate) -> list[str]:
    """Errors of the native engine.  The Python one asks for every pair, so it may only be stricter about pairs without order."""
    native, python = (check_certificate(tables, c, engine=e) for e in ENGINES)  # type: ignore[arg-type]
    assert python or not native, native
    assert native or not python or "not ordered" in python[0], python
    return native


def certified(s: Json) -> tuple[Schedule, bytes, Certificate]:
    schedule = Schedule.from_json(s)
    v = validate(schedule)
    assert v.accepted, str(v)
    assert v.certificate is not None
    return schedule, pack(schedule), v.certificate


def pipeline(steps: int = 3) -> Json:
    n = Net(2, steps)
    x, ready, free = n.buffer(1), n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 1))], [(free, 1, -1)], [(ready, 1)])
    n.task(1, [access(x, (0, 1))], [], [(ready, 1)], [(free, 1)])
    return n.json()


@pytest.mark.parametrize("name", sorted(attack.CLASSES))
def test_every_accept_has_a_certificate_that_holds(name: str) -> None:
    for index in range(6):
        s = Schedule.from_json(attack.schedule_json(name, 11, index))
        v = validate(s)
        if v.accepted:
            assert v.certificate is not None
            assert both(pack(s), v.certificate) == []
            assert both(pack(s), Certificate.from_bytes(v.certificate.to_bytes())) == []


def test_one_missing_clock_is_refused_with_the_reason() -> None:
    _, tables, c = certified(pipeline())
    empty = dataclasses.replace(
        c, row=np.zeros_like(c.row), row_off=np.zeros(2, np.int64), row_queue=c.row_queue[:0], row_value=c.row_value[:0]
    )
    if c.unroll == 0:
        assert "conflict and are not ordered" in both(tables, empty)[0]


def test_a_clock_that_claims_too_much_is_refused() -> None:
    """T1 of step i follows T0 of step i; that it follows T0 of step i + 1 is a lie."""
    _, tables, c = certified(pipeline())
    assert c.unroll == 0
    more = dataclasses.replace(c, row_value=(c.row_value + 1).astype(np.int32))
    assert both(tables, more)


def test_a_replay_that_jumps_a_wait_is_refused() -> None:
    _, tables, c = certified(pipeline())
    assert both(tables, dataclasses.replace(c, replay=c.replay[::-1].copy()))
    assert both(tables, dataclasses.replace(c, replay=c.replay[:1]))
    assert both(tables, dataclasses.replace(c, replay=np.array([0, 0], np.int32)))


def test_a_sorted_queue_is_another_schedule() -> None:
    """What is validated is what runs: tables whose queue order was changed do not match, even when the hash is forged."""
    n = Net(2)
    x, c = n.buffer(1), n.counter()
    n.task(0, waits=[(c, 1)])
    first = n.task(1, [], [access(x, (0, 1))])
    n.task(1, [access(x, (0, 1))], [], [], [(c, 1)])
    s = n.json()
    _, _, certificate = certified(s)
    s["queues"][1] = [first + 1, first]
    other = pack(Schedule.from_json(s))
    assert "SHA-256" in check_certificate(other, certificate)[0]
    assert both(other, dataclasses.replace(certificate, table_hash=table_hash(other)))


@pytest.mark.parametrize("engine", ENGINES)
def test_garbage_is_answered_not_raised(engine: str) -> None:
    _, tables, c = certified(pipeline())
    raw = c.to_bytes()
    assert check_certificate(tables, raw, engine=engine) == []  # type: ignore[arg-type]
    for cut in (0, 3, 16, 100, len(raw) - 1):
        assert check_certificate(tables, raw[:cut], engine=engine)  # type: ignore[arg-type]
    forged = dataclasses.replace(c, table_hash=table_hash(b"AMKT"))
    assert check_certificate(b"AMKT", forged, engine=engine)  # type: ignore[arg-type]
    none = dataclasses.replace(c, row_off=c.row_off[:0], row_queue=c.row_queue[:0], row_value=c.row_value[:0])
    assert check_certificate(tables, none, engine=engine)  # type: ignore[arg-type]


def test_single_field_corruptions_are_refused_or_true() -> None:
    rng, accepted, tried = random.Random(1), 0, 0
    while tried < 300:
        s = Schedule.from_json(loop(rng) if rng.random() < 0.7 else placed(rng))
        v = validate(s)
        if not v.accepted or v.certificate is None or oracle.label(s, atomic=True).states > 1500:
            continue
        tables = pack(s)
        for _ in range(15):
            what, bad = corrupt(rng, v.certificate)
            tried += 1
            if not both(tables, bad):
                accepted += 1
                assert truthful(s, bad), what
    assert 0 < accepted < tried / 2


@pytest.mark.parametrize(
    "operator",
    ["drop_wait", "threshold_minus_one", "flip_epoch", "alias_buffers", "swap_in_queue", "swap_across", "grow_tile", "late_wait"],
)
def test_the_certificate_of_the_original_does_not_cover_an_unsafe_mutant(operator: str) -> None:
    rng, seen = random.Random(operator), 0
    for _ in range(400):
        original = placed(rng, rng.choice((1, 2, 3)))
        v = validate(Schedule.from_json(original))
        OPERATORS[operator](rng, original)
        s = Schedule.from_json(original)
        label = oracle.label(s)
        if v.certificate is None or not label.rules & {"LIVE", "RACE"}:
            continue
        seen += 1
        tables = pack(s)
        assert both(tables, dataclasses.replace(v.certificate, table_hash=table_hash(tables)))
        if seen == 12:
            return
    assert seen > 0


def test_many_steps_are_decided_by_the_ends_of_their_ranges() -> None:
    """A row a step, written and read behind a counter: rows of different steps never meet, over 20 000 steps too."""
    n = Net(2, 20_000)
    x, c = n.buffer(1, rows=20_000, lifetime="persistent"), n.counter()
    row = affine(stride=1)
    n.task(0, [], [access(x, (0, 1), row)], [], [(c, 1)])
    n.task(1, [access(x, (0, 1), row)], [], [(c, 1)])
    _, tables, c20 = certified(n.json())
    assert check_certificate(tables, c20) == []


@pytest.mark.parametrize("dtype", ["f32", "i4"])
@pytest.mark.parametrize("row", [(0, 1), (300, 301), (699, 700)])
def test_a_meeting_in_the_middle_of_many_steps_is_seen(dtype: str, row: tuple[int, int]) -> None:
    """A fixed row and one that moves past it meet in one step of 700: the ends of the steps say nothing about it."""
    n = Net(2, 700)
    c, back = n.counter(), n.counter()
    n.task(0, waits=[(back, 1, -1)], signals=[(c, 1)])
    n.task(1, waits=[(c, 1, -1)], signals=[(back, 1)])
    s = n.json()
    _, _, clocks = certified(s)
    x = n.buffer(2, rows=700, dtype=dtype, lifetime="persistent", filled=True)
    n.tasks[0]["writes"] = [access(x, (0, 2), row)]
    n.tasks[1]["reads"] = [access(x, (0, 2), affine(stride=1))]
    racy = Schedule.from_json(n.json())
    assert "RACE" in validate(racy).rules
    assert "not ordered" in both(pack(racy), dataclasses.replace(clocks, table_hash=table_hash(pack(racy))))[0]


@pytest.mark.parametrize("add", [2**61, 2**62 - 1, 2**62])
@pytest.mark.parametrize("rows", [affine(1), (0, 2)])
def test_columns_far_outside_do_not_wrap(rows: Any, add: int) -> None:
    """Two accesses to one column beyond all buffers: their ends lie beyond 64 bits, and they conflict all the same."""
    n = Net(2, 3)
    n.task(0), n.task(1)
    _, _, clocks = certified(n.json())
    x = n.buffer(6, rows=4, lifetime="persistent", filled=True)
    n.tasks[0]["writes"] = [access(x, affine(0, add=add, length=2**62), rows)]
    n.tasks[1]["reads"] = [access(x, affine(0, add=add), rows)]
    racy = Schedule.from_json(n.json())
    assert "REF" in validate(racy).rules
    assert both(pack(racy), dataclasses.replace(clocks, table_hash=table_hash(pack(racy))))


def test_damaged_tables_are_refused_or_safe() -> None:
    """Random words of the tables change and the hash is forged: no crash, and nothing unsafe is let through."""
    rng, let_through = random.Random(3), 0
    for index in range(30):
        s = Schedule.from_json(attack.schedule_json(rng.choice(("placed", "loop", "moving_ranges", "random_tags")), 31, index))
        v = validate(s)
        if v.certificate is None:
            continue
        tables = pack(s)
        for _ in range(20):
            raw = bytearray(tables)
            at = rng.randrange(16, len(raw) // 4) * 4 if rng.random() < 0.8 else rng.randrange(4) * 4
            raw[at : at + 4] = rng.choice((0, 1, 2, -1, 2**31 - 1, -(2**31), rng.randrange(40))).to_bytes(4, "little", signed=True)
            forged = dataclasses.replace(v.certificate, table_hash=table_hash(bytes(raw)))
            if check_certificate(bytes(raw), forged):
                continue
            let_through += 1
            bits, _, undecided, _ = _native.oracle(bytes(raw), 50_000, True)
            assert undecided or not bits & (1 << oracle.RULES.index("LIVE") | 1 << oracle.RULES.index("RACE"))
    assert let_through > 0
