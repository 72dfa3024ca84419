"""How far one model's next-token distributions are from another's on a text: perplexity, KL, top-1 agreement.  Pure numpy.

A quantised model is compared with the bf16 model that it stands for, position by position, all in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_bench.parity import log_softmax

ROWS = 128  # rows widened to float64 at a time


@dataclass(frozen=True, slots=True)
class Quality:
    """Sums over positions: negative log-likelihood of the text under either model, KL(reference || ours), equal top tokens."""

    positions: int
    nll: float
    reference_nll: float
    kl: float
    agree: int

    def __add__(self, other: Quality) -> Quality:
        return Quality(
            self.positions + other.positions, self.nll + other.nll, self.reference_nll + other.reference_nll, self.kl + other.kl,
            self.agree + other.agree,
        )  # fmt: skip

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.positions)

    @property
    def reference_perplexity(self) -> float:
        return math.exp(self.reference_nll / self.positions)

    @property
    def increase(self) -> float:
        """Perplexity over the reference's, less 1."""
        return self.perplexity / self.reference_perplexity - 1

    @property
    def mean_kl(self) -> float:
        """In nats a position."""
        return self.kl / self.positions

    @property
    def agreement(self) -> float:
        """Share of positions at which both models hold the same token most likely."""
        return self.agree / self.positions


def compare(logits: npt.NDArray[Any], reference: npt.NDArray[Any], targets: Sequence[int] | npt.NDArray[Any]) -> Quality:
    """Compare two logit tables [positions, vocabulary] on a text whose next tokens are ``targets``.

    Raises:
        ValueError: shapes that differ, or not one target a position.
    """
    if logits.shape != reference.shape or logits.ndim != 2 or len(targets) != len(logits) or not len(logits):
        raise ValueError(f"logits of shapes {logits.shape} and {reference.shape} and {len(targets)} targets cannot be compared")
    out = Quality(0, 0.0, 0.0, 0.0, 0)
    wanted = np.asarray(targets, np.int64)
    for start in range(0, len(logits), ROWS):
        part = slice(start, start + ROWS)
        ours, theirs = log_softmax(logits[part]), log_softmax(reference[part])
        at = np.arange(len(ours)), wanted[part]
        kl = float((np.exp(theirs) * (theirs - ours)).sum())
        agree = int((logits[part].argmax(axis=1) == reference[part].argmax(axis=1)).sum())
        out += Quality(len(ours), -float(ours[at].sum()), -float(theirs[at].sum()), kl, agree)
    return out


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens before the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
