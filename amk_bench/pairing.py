"""Paired timing: A and B alternate in ABBA blocks, so that drift of the machine falls on both alike.

The block is the replicate: its log-ratio is one observation for :mod:`amk_bench.stats`.  Of two blocks one, drawn at random, runs
BAAB: neither side always opens, and nothing periodic in the machine (a scheduler's time slices) falls into step with one side.
Every sample is kept.  A run ends after a number of blocks, or earlier once a rule says that it is precise enough; such a rule sees
the spread of what was measured, never which side is ahead.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from amk_bench.clock import Clock, Sample

Call = Callable[[int], object]  # takes the call number (0, 1, ...), so that inputs differ from call to call


@dataclass(frozen=True, slots=True)
class Block:
    """Two samples of each side, in the order ``order`` ("ABBA" or "BAAB")."""

    a: tuple[Sample, Sample]
    b: tuple[Sample, Sample]
    order: str

    @property
    def log_ratio(self) -> float:
        """log(time of B / time of A): positive where A is faster."""
        a, b = (sum(s.device_s for s in side) for side in (self.a, self.b))
        return math.log(b / a)


def samples_of(blocks: Sequence[Block], side: str) -> list[Sample]:
    """All samples of side "a" or "b", in the order they were taken."""
    return [s for block in blocks for s in (block.a if side == "a" else block.b)]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """What one timed call returned, for the check of outputs after the clock has stopped."""

    side: str
    number: int
    output: object


def abba(
    clock: Clock,
    a: Call,
    b: Call,
    blocks: int,
    *,
    before: Callable[[], None] = lambda: None,
    first_call: int = 0,
    clock_b: Clock | None = None,
    seed: int = 0,
    enough: Callable[[Sequence[float]], bool] | None = None,
) -> Iterator[tuple[Block, list[TimedCall]]]:
    """Runs at most ``blocks`` blocks and yields each with what its calls returned.

    Within a block, the i-th call of A and the i-th call of B get the same call number: the same inputs.  ``before`` runs untimed
    before each timed call.  ``clock_b`` measures side B where it works on another stream than A.  ``enough`` is asked after each
    block, with the log-ratios so far, whether to stop (:class:`amk_bench.stats.Precision`).  Raises ValueError when ``blocks`` < 1.
    """
    if blocks < 1:
        raise ValueError(f"{blocks} blocks asked for; at least 1 is needed")
    sides = {"A": (a, clock), "B": (b, clock_b or clock)}
    log_ratios: list[float] = []
    drawn = random.Random(seed)
    for index in range(blocks):
        if index % 2 == 0:
            orders = drawn.choice((("ABBA", "BAAB"), ("BAAB", "ABBA")))
        order = orders[index % 2]
        samples: dict[str, list[Sample]] = {"A": [], "B": []}
        outputs: list[TimedCall] = []
        for side in order:
            number = first_call + 2 * index + len(samples[side])
            before()
            call, timer = sides[side]
            sample, output = timer.measure(functools.partial(call, number))
            samples[side].append(sample)
            outputs.append(TimedCall(side, number, output))
        block = Block((samples["A"][0], samples["A"][1]), (samples["B"][0], samples["B"][1]), order)
        log_ratios.append(block.log_ratio)
        yield block, outputs
        if enough is not None and enough(log_ratios):
            return
