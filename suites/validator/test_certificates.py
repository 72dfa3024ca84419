"""Certificates under attack: one field changed, or moved onto other tables.  Refused, or what is let through is true.

Default: 2 000 corruptions and 1 000 transplants.  ``--quick``: half.  ``--full``: 20 000 and 10 000.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from amk_bench.adversary import forgeries
from amk_bench.adversary.certificates import truthful
from amk_bench.adversary.forgeries import KINDS, TRANSPLANT_OPERATORS, Row, forge, weaker
from amk_bench.adversary.generators import loop
from amk_bench.adversary.net import Net, access, affine
from amk_core.schedule import Schedule, check_certificate, validate
from amk_core.schedule.tables import pack, table_hash

SIZES = {"quick": (1_000, 500), "default": (2_000, 1_000), "full": (forgeries.CORRUPTIONS, forgeries.TRANSPLANTS)}


def size(config: pytest.Config) -> tuple[int, int]:
    full, quick = (config.getoption(x, default=False) for x in ("--full", "--quick"))
    return SIZES["full" if full else "quick" if quick else "default"]


def show(request: pytest.FixtureRequest, *tables: str) -> None:
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for text in tables:
            print(f"\n{text}")


def failures(rows: Iterable[Row]) -> str:
    return "\n".join(f"{r.name}: {f}" for r in rows for f in r.failures[:1])[:4000]


def test_corrupted_certificates_are_refused_or_harmless(request: pytest.FixtureRequest) -> None:
    n = size(request.config)[0]
    kinds, sources = forgeries.corruptions(n)
    total = forgeries.total(kinds)
    if n == forgeries.CORRUPTIONS:
        show(request, forgeries.table("corrupted field", kinds), forgeries.table("certificate of", sources))
    else:
        show(request, f"{n} corruptions: {total.refused} refused, {total.harmless} harmless, {total.lies} neither")
    assert total.n == n
    assert total.lies == 0, failures(kinds)
    assert total.harmless < n / 5
    assert {r.name for r in kinds if r.n} == set(KINDS)
    assert all(r.n for r in sources)


def test_certificates_moved_onto_unsafe_mutants_are_refused(request: pytest.FixtureRequest) -> None:
    """With the hash recomputed: what must refuse them is the proof."""
    n = size(request.config)[1]
    rows = forgeries.transplants(n)
    total = forgeries.total(rows)
    if n == forgeries.TRANSPLANTS:
        show(request, forgeries.table("transplanted onto", rows, unsafe=True))
    else:
        show(request, f"{n} transplants, {total.unsafe} onto unsafe mutants: {total.lies} of those accepted")
    assert total.n >= n
    assert total.lies == 0, failures(rows)
    assert total.unsafe > n / 5
    assert total.harmless > n / 20  # mutants that are still safe keep a certificate that holds: the refusals are not for show
    assert {r.name for r in rows if r.n} == set(TRANSPLANT_OPERATORS)


def accepted_loop() -> tuple[Schedule, Any]:
    """A loop whose certificate holds something for other queues."""
    for seed in range(100):
        s = Schedule.from_json(loop(random.Random(seed)))
        c = validate(s).certificate
        if c is not None and len(c.row_value) > 4:
            return s, c
    raise AssertionError("no loop with a certificate was drawn")


def test_the_judge_of_harmless_knows_a_lie() -> None:
    s, c = accepted_loop()
    assert truthful(s, c)
    assert weaker(c, c)
    high = dataclasses.replace(c, row_value=c.row_value + 1)
    assert not weaker(c, high)
    assert not truthful(s, high)
    low = dataclasses.replace(c, row_value=c.row_value - 1)
    assert weaker(c, low)
    assert not weaker(low, c)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_forgery_changes_the_certificate(kind: str) -> None:
    rng = random.Random(kind)
    for seed in range(100):
        c = validate(Schedule.from_json(loop(random.Random(seed)))).certificate
        bad = None if c is None else forge(rng, c, kind)
        if c is not None and bad is not None:
            assert any(not np.array_equal(getattr(c, f.name), getattr(bad, f.name)) for f in dataclasses.fields(c))
            return
    raise AssertionError(f"{kind}: nothing to change in any certificate")


def test_a_certificate_for_three_steps_does_not_serve_for_four() -> None:
    """A writer laps its reader in a ring of three rows in the fourth step, and not before."""
    n = Net(2, 3)
    x, c = n.buffer(1, rows=3, lifetime="persistent"), n.counter()
    row = affine(1, mod=3)
    n.task(0, [], [access(x, (0, 1), row)], [], [(c, 1)])
    n.task(1, [access(x, (0, 1), row)], [], [(c, 1)])
    s = Schedule.from_json(n.json())
    certificate = validate(s).certificate
    assert certificate is not None
    assert check_certificate(pack(s), certificate) == []
    longer = Schedule.from_json(n.json() | {"steps": 4})
    assert validate(longer).rules == {"RACE"}
    assert check_certificate(pack(longer), dataclasses.replace(certificate, table_hash=table_hash(pack(longer)))) != []
