"""What aimed cases state of themselves is so: the validator says it, and so does the oracle where it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from amk_bench.mutation import aimed_last, aimed_model, aimed_rules
from amk_bench.mutation.aimed_model import Aimed
from amk_core import _native
from amk_core.schedule import oracle
from amk_core.schedule.tables import MAGIC, read_sections

MAKERS = (*aimed_model.SINGLE, *aimed_rules.SINGLE, *aimed_last.SINGLE)


@pytest.mark.parametrize("make", [*MAKERS, *aimed_last.HALF], ids=lambda make: make.__name__)
def test_the_validator_finds_what_an_aimed_case_states(make: Callable[[], Iterator[Aimed]]) -> None:
    for k, case in enumerate(make()):
        if 0 not in case.settings:
            continue
        answer = _native.validate(case.tables, False)
        if case.rules is None:
            assert all(f["undecided"] for f in answer["findings"]), k
        else:
            assert (answer["accepted"], set(answer["counts"])) == (not case.rules, case.rules), k


def test_the_oracle_agrees_with_what_aimed_cases_state() -> None:
    decided = 0
    for make in (m for m in MAKERS if m is not aimed_model.references):  # numbers that make no sense are not for the oracle
        for k, case in enumerate(make()):
            sections = read_sections(MAGIC, case.tables)
            steps, tasks = (int(x) for x in sections["header"][:2])
            largest = max(sections["buffers"].astype(float).reshape(-1, 9)[:, 3:5].prod(axis=1), default=0)
            if 0 not in case.settings or steps * tasks > 40 or largest > 2000:
                continue
            try:
                bits, _, undecided, _ = _native.oracle(case.tables, 20_000, True)
            except ValueError:
                continue
            if not undecided:
                decided += 1
                seen = {rule for n, rule in enumerate(oracle.RULES) if bits >> n & 1}
                assert bool(seen) == bool(case.rules), (make.__name__, k, seen, case.rules)
    assert decided > 150
