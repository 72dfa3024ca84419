"""Why a measurement says nothing: outputs that are wrong, a time that memory does not allow, a machine that others use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from amk_bench.busy import OTHERS_LIMIT
from amk_bench.cell import Cell, Plan, flushed
from amk_bench.clock import disagreement
from amk_bench.conditions import Reading, summary
from amk_bench.engine import F32, chains_agree
from amk_bench.floor import violation
from amk_bench.gate import Check
from amk_bench.pairing import Block, TimedCall, samples_of
from amk_bench.stats import MAX_FLOOR

Score = Callable[[Sequence[int], int], F32]  # (ids, keep) -> teacher-forced reference logits of the last ``keep`` ids
BUSY = "the machine was busy"  # how the reason begins when the machine, not an engine, is at fault
CHECKED_APART = 4  # call numbers of which both outputs are scored where the sides returned different tokens


def _concrete(chains: object, batch: int, tokens: int) -> bool:
    """Plain lists of plain integers: nothing that could still be computed when it is looked at, after the clock has stopped."""
    return (
        type(chains) is list
        and len(chains) == batch
        and all(type(c) is list and len(c) == tokens and all(type(i) is int for i in c) for c in chains)
    )


def check_chain(
    cell: Cell, first: Sequence[int], chains: object, tokens: int, score: Score, slack: float = 0.0
) -> Check:  # fmt: skip
    """A call's output against the reference: every chain has its length and is the reference's greedy choice throughout.

    ``slack``: see :func:`amk_bench.engine.chains_agree`.
    """
    if not _concrete(chains, cell.batch, tokens):
        return Check("greedy tokens", False, f"not {cell.batch} lists of {tokens} ids")
    assert isinstance(chains, list)
    agreed = 0
    for start, chain in zip(first, chains, strict=True):
        scored = score([*cell.prefix, start, *chain[:-1]], tokens)
        if not np.isfinite(scored).all():
            return Check("greedy tokens", False, "the reference's logits are not finite")
        agreed += chains_agree(chain, scored, slack)
    return Check("greedy tokens", agreed == tokens * cell.batch, f"{agreed} of {tokens * cell.batch} as the reference")


def outputs_fault(cell: Cell, calls: Sequence[TimedCall], plan: Plan, score: Score) -> str | None:
    """Both sides returned the same for the same inputs, and one call drawn at random is right.

    With slack, sides may part at a near tie; then both outputs of the first such calls are held to the reference.
    """
    by_number: dict[int, dict[str, object]] = {}
    for call in calls:
        by_number.setdefault(call.number, {})[call.side] = call.output
    apart = [number for number, sides in by_number.items() if sides["A"] != sides["B"]]
    if apart and not plan.slack:
        return f"timed call {apart[0]}: the two sides returned different tokens"
    drawn = calls[int(np.random.default_rng((plan.seed, cell.position)).integers(len(calls)))]
    for chosen in [drawn, *(call for call in calls if call.number in apart[:CHECKED_APART])]:
        first = cell.first_ids(chosen.number, plan.seed)
        check = check_chain(cell, first, chosen.output, plan.tokens, score, plan.slack)
        if not check.passed:
            side = "ours" if chosen.side == "A" else "the baseline"
            return f"timed call {chosen.number} of {side}: {check.measured}"
    return None


def machine_fault(blocks: Sequence[Block], readings: Sequence[Reading], taken: float) -> str | None:
    """Why nothing can be said from these blocks: clocks that disagree, a card that throttles, a machine that others use."""
    for side, name in (("a", "ours"), ("b", "baseline")):
        apart = disagreement(samples_of(blocks, side))
        if apart:
            return f"{name}: {apart}"
    unwell = summary(readings).fault if readings else None
    return unwell or others_fault(taken)


def others_fault(taken: float) -> str | None:
    """Why a machine of whose cores others took the share ``taken`` is no place to measure; None where it is one."""
    if taken > OTHERS_LIMIT:
        return f"{BUSY}: other processes took {100 * taken:.0f} % of its cores during the timing; stop them and run again"
    return None


def noise_fault(name: str, floor: float) -> str | None:
    """Why nothing can be said against this noise floor of ``name``; None where something can."""
    if floor > MAX_FLOOR:
        return f"{BUSY}: {name} differs from itself by {100 * floor:.0f} %; stop other programs and run again"
    return None


def least_s(bytes_a_step: int, cell: Cell, plan: Plan) -> float:
    """The physical floor of a call: its first step finds the caches flushed or not, the others find what the one before left."""
    assert plan.bandwidth is not None
    first = plan.bandwidth.least_s(bytes_a_step, flushed(cell, plan))
    return first + (plan.tokens - 1) * plan.bandwidth.least_s(bytes_a_step)


def floor_fault(blocks: Sequence[Block], cell: Cell, plan: Plan) -> tuple[str | None, Plan]:
    """Why a side is faster than memory allows.  Before that is said, the bandwidth is measured again: the higher one counts."""

    def found(plan: Plan) -> str | None:
        if plan.bandwidth is None:
            return None
        for side, name, size in (("a", "ours", cell.ours_bytes), ("b", "baseline", cell.baseline_bytes)):
            fault = violation(samples_of(blocks, side), size * plan.tokens, least_s(size, cell, plan), plan.bandwidth)
            if fault:
                return f"{name}: {fault}"
        return None

    fault = found(plan)
    if fault and plan.probe is not None and plan.bandwidth is not None:
        again = plan.probe()
        if again.bytes_per_s > plan.bandwidth.bytes_per_s:
            plan = replace(plan, bandwidth=again)
            fault = found(plan)
    return fault, plan
