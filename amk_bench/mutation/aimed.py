"""Schedules aimed at mutants of the validator that no other case notices, module by module of the program."""

from __future__ import annotations

from collections.abc import Iterator

from amk_bench.mutation import aimed_bundles, aimed_order, aimed_search
from amk_core.schedule.ir import Schedule


def schedules() -> Iterator[Schedule]:
    """All of them; each is judged under every setting of the limits."""
    yield from aimed_search.schedules()
    yield from aimed_bundles.schedules()
    yield from aimed_order.schedules()


def unsafe() -> Iterator[Schedule]:
    """More of them, each of which breaks a rule by its making: too many states to be asked of the oracle."""
    yield from aimed_order.twice_broken()


def safe() -> Iterator[Schedule]:
    """Safe by their making, with ops that have no more than their code: nothing for the oracle either."""
    yield from aimed_order.never_dead()
