"""Schedules at the borders of the rules: the reference, the native validator and the oracle agree on every one."""

from __future__ import annotations

import pytest

from amk_bench.adversary.net import Json
from amk_bench.mutation.edges import edges
from amk_bench.mutation.reference import comparable
from amk_core.schedule import Schedule, check_certificate, oracle, reference, validate
from amk_core.schedule.tables import pack

ALL = edges()


@pytest.mark.parametrize("data", [s for _, s in ALL], ids=[name for name, _ in ALL])
def test_reference_native_and_oracle_agree(data: Json) -> None:
    s = Schedule.from_json(data)
    truth, native, mine = oracle.label(s), validate(s), reference.validate(s)
    assert truth.undecided is None
    assert not native.undecided, str(native)
    assert mine.accepted == native.accepted == truth.safe, (sorted(mine.rules), str(native), sorted(truth.rules), truth.notes)
    assert comparable(mine.rules) == comparable(native.rules), str(native)
    if native.certificate is not None:
        for engine in ("native", "python"):
            assert check_certificate(pack(s), native.certificate, engine=engine) == []


def test_both_sides_of_every_border_are_there() -> None:
    for group in {name.split("/")[0] for name, _ in ALL}:
        safe = [oracle.label(Schedule.from_json(s)).safe for name, s in ALL if name.startswith(group)]
        assert 0 < sum(safe) < len(safe), group
