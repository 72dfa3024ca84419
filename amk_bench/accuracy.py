"""P4, accuracy-matched: is an engine at least as near to float64 as HuggingFace's bf16 is?

Errors are taken position by position against the float64 reference, ours and HuggingFace's on the same positions, and the upper
95 % bound of the mean of (ours - theirs) must not be above 0.  Neighbouring positions share their past, so blocks of them are
resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
CONFIDENCE = 0.95
BLOCK = 16  # positions that are resampled together
RESAMPLES = 4000
ROWS = 256  # rows widened to float64 at a time


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one engine, per position: KL divergence of its distribution from the reference's in nats, and the root mean square of the
    logit difference over the vocabulary."""

    kl: F64
    rms: F64

    def part(self, start: int, end: int) -> Errors:
        return Errors(self.kl[start:end], self.rms[start:end])


@dataclass(frozen=True, slots=True)
class Matched:
    """Ours against theirs in one measure: mean errors, and the upper bound of the mean difference."""

    measure: str
    ours: float
    theirs: float
    bound: float
    positions: int

    @property
    def passed(self) -> bool:
        return bool(self.bound <= 0)

    def __str__(self) -> str:
        return f"{self.measure} {self.ours:.2e} against {self.theirs:.2e}, bound {self.bound:+.1e}"


def errors(logits: Any, reference: Any) -> Errors:
    """Errors of a logit table against the float64 reference, both [positions, vocabulary]: numpy arrays or torch tensors.

    Raises:
        ValueError: shapes that differ.
    """
    import torch

    if tuple(logits.shape) != tuple(reference.shape) or len(logits.shape) != 2:
        raise ValueError(f"logits of shapes {tuple(logits.shape)} and {tuple(reference.shape)} cannot be compared")
    where = reference.device if isinstance(reference, torch.Tensor) else "cpu"
    kl, rms = [], []
    for start in range(0, len(logits), ROWS):
        x, ref = (torch.as_tensor(t[start : start + ROWS]).to(where, torch.float64) for t in (logits, reference))
        log_p, log_q = torch.log_softmax(ref, -1), torch.log_softmax(x, -1)
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1))
        rms.append((x - ref).square().mean(-1).sqrt())
    return Errors(*(torch.cat(t).cpu().numpy() for t in (kl, rms)))


def upper_bound(difference: F64, seed: int) -> float:
    """Upper bound, at CONFIDENCE, of the mean of per-position differences: a bootstrap over blocks of neighbouring positions.

    NaN anywhere makes it infinite.
    """
    if not np.isfinite(difference).all():
        return float("inf")
    n = len(difference)
    block = max(1, min(BLOCK, n // 8))
    starts = np.arange(0, n - block + 1)
    sums = np.convolve(difference, np.ones(block), "valid")
    rng = np.random.default_rng(seed)
    drawn = rng.choice(starts, size=(RESAMPLES, -(-n // block)))
    return float(np.quantile(sums[drawn].sum(axis=1) / (drawn.shape[1] * block), CONFIDENCE))


def matched(ours: Errors, theirs: Errors, seed: int) -> tuple[Matched, Matched]:
    """Both measures: KL and logits.

    Raises:
        ValueError: other positions on the two sides, or none.
    """
    if len(ours.kl) != len(theirs.kl) or len(ours.kl) == 0:
        raise ValueError(f"{len(ours.kl)} positions of ours and {len(theirs.kl)} of theirs cannot be paired")

    def one(measure: str, a: F64, b: F64) -> Matched:
        return Matched(measure, float(a.mean()), float(b.mean()), upper_bound(a - b, seed), len(a))

    return one("KL", ours.kl, theirs.kl), one("logits", ours.rms, theirs.rms)
