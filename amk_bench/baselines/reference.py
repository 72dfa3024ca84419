"""What the torch baselines are held to: HuggingFace in float32 on the same weights, and how far HuggingFace in bf16 is from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amk_bench.baselines.hf import HfEager
from amk_bench.cell import Cell
from amk_bench.engine import F32
from amk_bench.results import ParityRecord

STEPS = 4  # decode steps of a parity check
# An engine may be twice as far from float32 as HuggingFace in the engine's own precision is in the same steps: another order of
# rounding measures 0.6 to 1.3 of it, a wrong formula or a skipped layer ten times and more.
TIMES_HF = 2.0
LEAST_LIMIT = 5e-6  # where HuggingFace itself is the float32 reference


def distance(seen: F32, wanted: F32) -> float:
    """Largest absolute difference over the largest absolute reference logit; infinite where anything is not finite."""
    if seen.shape != wanted.shape or not np.isfinite(seen).all():
        return float("inf")
    return float(np.abs(seen - wanted).max() / np.abs(wanted).max())


@dataclass(slots=True)
class Limits:
    """``hf_error``: of HuggingFace in the engines' precision; ``logits``: what an engine may have; ``slack``: a chosen token's."""

    hf_error: float

    @property
    def logits(self) -> float:
        return max(LEAST_LIMIT, TIMES_HF * self.hf_error)

    @property
    def slack(self) -> float:
        """The best logit may be too low by the error and the chosen one too high by it."""
        return 2.0 * self.logits if self.hf_error else 0.0


class Reference:
    """Float32 HuggingFace in one cell at a time; the prefix is computed once and kept.

    Sequences of a batch are computed one after the other: their caches side by side, in float32, would not fit a card.
    """

    def __init__(self, full: HfEager, low: HfEager | None) -> None:
        self._full, self._low = full, low
        self._prefix: tuple[int, ...] | None = None

    def enter(self, cell: Cell, seed: int) -> tuple[list[list[int]], F32, Limits]:
        """Forced ids [STEPS][batch], their float32 logits [STEPS, batch, vocabulary], and the limits of this cell."""
        forced = [cell.first_ids(2 * 10**6 + step, seed) for step in range(STEPS)]
        wanted = _traced(self._full, cell, forced)
        error = 0.0
        if self._low is not None:
            error = distance(_traced(self._low, cell, forced), wanted)
            self._low.prepare((), 1, STEPS + 1)  # its cache is not needed any more
        self._prefix = tuple(cell.prefix)
        return forced, wanted, Limits(error)

    def score(self, ids: Sequence[int], keep: int) -> F32:
        """As :meth:`amk_bench.engine.Engine.logits`; quick where the text begins with the cell's prefix."""
        assert self._prefix is not None
        n = len(self._prefix)
        if tuple(ids[:n]) != self._prefix or len(ids) - n != keep:
            return self._full.logits(ids, keep)
        self._full.rewind()
        return self._full.extend(list(ids[n:]))


def _traced(model: HfEager, cell: Cell, forced: list[list[int]]) -> F32:
    """Logits [STEPS, batch, vocabulary] of ``forced`` after the cell's prefix, which is computed once."""
    model.prepare(cell.prefix, 1, STEPS + 1)
    return np.concatenate([model.trace([[ids[b]] for ids in forced]) for b in range(cell.batch)], axis=1)


def check_logits(engine: Any, cell: Cell, forced: list[list[int]], wanted: F32, limits: Limits) -> ParityRecord:
    """P2 of one engine in one cell, through the step that is timed (its method ``trace``)."""
    engine.prepare(cell.prefix, cell.batch, STEPS + 1)
    error = distance(engine.trace(forced), wanted)
    return ParityRecord(
        "P2", f"{engine.name}, {cell.model}, position {cell.position}, batch {cell.batch}: timed step's logits against HF fp32",
        f"{error:.2e}", f"<= {limits.logits:.2e}", error <= limits.logits, where=cell.device, value=min(error, 1e9),
        limit=limits.logits, detail=f"HF bf16 itself: {limits.hf_error:.2e}",
    )  # fmt: skip
