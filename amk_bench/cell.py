"""What is measured, and how much: a cell of the win/loss table, and the plan of its timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from amk_bench.conditions import Meter, NoMeter
from amk_bench.engine import Engine
from amk_bench.floor import Bandwidth
from amk_bench.gate import Subject
from amk_bench.stats import Precision

UNTIMED = 10**6  # call numbers from here on belong to gates and warm-up: their inputs are none of the timed ones


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure, and with what.

    Attributes:
        tokens: decode steps of a call.
        blocks: ABBA blocks at most; with ``precision`` fewer where the interval is narrow enough before.
        settle: runs untimed before each call.
        witness: starts watching the machine and returns what tells the share of it that others took (amk_bench.busy).
        meter: reads the device's state around each block.
        bandwidth: what the device reads from memory; without it there is no physical floor, and the result says so.
        probe: measures the bandwidth again, asked before a time is called impossible.
        reset: gives back cache lines that were set aside to persist; runs untimed before each call.
        flush: empties the caches; used before each call where a working set is below four of them.
        slack: for engines in lower precision than the reference: how far below the reference's best logit a chosen one may lie,
            as a share of the largest (:func:`amk_bench.engine.chains_agree`).
        energy_s: seconds for which each side runs for its joules a token; 0 leaves them out.
    """

    tokens: int
    blocks: int
    seed: int
    settle: Callable[[], None] = lambda: None
    witness: Callable[[], Callable[[], float]] = lambda: lambda: 0.0
    precision: Precision | None = None
    meter: Meter = field(default_factory=NoMeter)
    bandwidth: Bandwidth | None = None
    probe: Callable[[], Bandwidth] | None = None
    reset: Callable[[], None] = lambda: None
    flush: Callable[[], None] | None = None
    energy_s: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: the text that fills the cache (its length is the position) and how many sequences decode.

    ``ours_bytes`` and ``baseline_bytes``: what a step of each side has to read, from the model's shape and the side's precision
    (:func:`amk_bench.floor.step_bytes`), never from the engine's own words; 0 where unknown.  ``weights``: where they come from,
    where that is no checkpoint.
    """

    device: str
    model: str
    mode: str
    batch: int
    prefix: tuple[int, ...]
    vocabulary: tuple[int, ...] = field(repr=False)  # ids that first tokens are drawn from
    ours_bytes: int = 0
    baseline_bytes: int = 0
    weights: str = ""

    @property
    def position(self) -> int:
        return len(self.prefix)

    def subject(self, engine: Engine) -> Subject:
        return Subject(engine.name, self.model, self.batch, self.position)

    def first_ids(self, call: int, seed: int) -> list[int]:
        """Other first tokens for each call, the same ones for both sides."""
        rng = np.random.default_rng((seed, self.position, call))
        return [int(i) for i in rng.choice(np.asarray(self.vocabulary), size=self.batch)]


def flushed(cell: Cell, plan: Plan) -> bool:
    """Whether the caches are emptied before each call: where one side's working set is known and small against them."""
    sizes = [n for n in (cell.ours_bytes, cell.baseline_bytes) if n]
    return plan.flush is not None and plan.bandwidth is not None and any(map(plan.bandwidth.needs_flush, sizes))
