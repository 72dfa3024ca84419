"""Certificates under attack: one number changed.  The checker refuses it, or what it still says is true in every state."""

from __future__ import annotations

import random

import pytest

from amk_bench.adversary.certificates import corrupt, truthful
from amk_bench.adversary.generators import loop, placed, random_net
from amk_core.schedule import Schedule, check_certificate, oracle, validate
from amk_core.schedule.tables import pack

DEFAULT_N, FULL_N, QUICK_N = 2_000, 20_000, 1_000
PER_CERTIFICATE = 10
MAX_STATES = 1_500  # so that the truth of a corrupted certificate can be walked in Python


def test_corrupted_certificates_are_refused_or_harmless(request: pytest.FixtureRequest) -> None:
    config = request.config
    n = (
        FULL_N
        if config.getoption("--full", default=False)
        else QUICK_N
        if config.getoption("--quick", default=False)
        else DEFAULT_N
    )
    rng, tried, harmless, lies = random.Random("certificates"), 0, 0, []
    fields: dict[str, int] = {}
    while tried < n:
        source = rng.choice((loop, loop, placed, random_net))
        s = Schedule.from_json(source(rng))
        v = validate(s)
        if not v.accepted or oracle.label(s, atomic=True).states > MAX_STATES:
            continue
        assert v.certificate is not None
        tables = pack(s)
        assert check_certificate(tables, v.certificate) == []
        for _ in range(min(PER_CERTIFICATE, n - tried)):
            field, bad = corrupt(rng, v.certificate)
            tried += 1
            fields[field] = fields.get(field, 0) + 1
            if not check_certificate(tables, bad):
                harmless += 1
                if not truthful(s, bad):
                    lies.append((field, s.to_json(), bad.to_json()))
    print(
        f"{n} corruptions ({', '.join(f'{k} {v}' for k, v in sorted(fields.items()))}): {n - harmless} refused, {harmless} harmless"
    )
    assert tried == n
    assert not lies, lies[0]
    assert harmless < n / 2
