"""Schedules aimed at mutants of the validator that no other case notices, module by module of the program."""

from __future__ import annotations

from collections.abc import Iterator

from amk_bench.mutation import aimed_search
from amk_core.schedule.ir import Schedule


def schedules() -> Iterator[Schedule]:
    """All of them; each is judged under every setting of the limits."""
    yield from aimed_search.schedules()
