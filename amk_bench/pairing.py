"""Paired timing: A and B alternate in ABBA blocks, so that drift of the machine falls on both alike.

The block is the replicate: its log-ratio is one observation for :mod:`amk_bench.stats`.  Odd blocks run BAAB, so that neither
side always opens.  Every sample is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True, slots=True)
class TimedCall:
    """What one timed call returned, for the check of outputs after the clock has stopped."""

    side: str
    number: int
    output: object


def abba(
    clock: Clock, a: Call, b: Call, blocks: int, *, before: Callable[[], None] = lambda: None, first_call: int = 0
) -> Iterator[tuple[Block, list[TimedCall]]]:
    """Runs ``blocks`` blocks and yields each with what its calls returned.

    Within a block, the i-th call of A and the i-th call of B get the same call number: the same inputs.  ``before`` runs untimed
    before each timed call.  Raises ValueError when ``blocks`` < 1.
    """
    if blocks < 1:
        raise ValueError(f"{blocks} blocks asked for; at least 1 is needed")
    sides = {"A": a, "B": b}
    for index in range(blocks):
        order = "ABBA" if index % 2 == 0 else "BAAB"
        samples: dict[str, list[Sample]] = {"A": [], "B": []}
        outputs: list[TimedCall] = []
        for side in order:
            number = first_call + 2 * index + len(samples[side])
            before()
            sample, output = clock.measure(lambda call=sides[side], number=number: call(number))  # type: ignore[misc]
            samples[side].append(sample)
            outputs.append(TimedCall(side, number, output))
        yield Block((samples["A"][0], samples["A"][1]), (samples["B"][0], samples["B"][1]), order), outputs
