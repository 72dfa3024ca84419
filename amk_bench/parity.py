"""Parity in numbers: logit distance (P2), negative log-likelihood sums (P3), equal bits (P5, P6).  Pure numpy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Another fp32 summation order measured 1.7e-6 on SmolLM2; three times that separates an order from a wrong formula.
P2_LIMIT = 5e-6
# Another fp32 order measured 9e-8 on the sum over two windows and 2.4e-8 on 17; float64 RoPE angles alone give 5.6e-7.
P3_LIMIT = 2.5e-7
ROWS = 256  # rows widened to float64 at a time


@dataclass(frozen=True, slots=True)
class LogitDistance:
    """``max_abs``: largest absolute difference; ``largest``: largest absolute logit of the reference; ``row``: where."""

    max_abs: float
    largest: float
    row: int

    @property
    def relative(self) -> float:
        return self.max_abs / self.largest


def logit_distance(ours: npt.NDArray[Any], reference: npt.NDArray[Any]) -> LogitDistance:
    """Distance of two logit tables [positions, vocabulary]; NaN anywhere makes it infinite.  ValueError on unequal shapes."""
    if ours.shape != reference.shape or ours.ndim != 2 or ours.size == 0:
        raise ValueError(f"logits of shapes {ours.shape} and {reference.shape} cannot be compared")
    worst, row, largest = -1.0, 0, 0.0
    for start in range(0, len(ours), ROWS):
        theirs = reference[start : start + ROWS].astype(np.float64)
        gap = np.abs(ours[start : start + ROWS].astype(np.float64) - theirs).max(axis=1)
        gap = np.where(np.isnan(gap), np.inf, gap)
        largest = max(largest, float(np.abs(theirs).max()))
        if float(gap.max()) > worst:
            worst, row = float(gap.max()), start + int(gap.argmax())
    return LogitDistance(worst, largest, row)


def log_softmax(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Of each row, in float64."""
    wide = x.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def nll_sum(logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    """Sum of -log softmax(logits)[target], in nats, all in float64.  logits [n, vocabulary], targets [n]."""
    if len(logits) != len(targets):
        raise ValueError(f"{len(logits)} rows of logits for {len(targets)} targets")
    total = 0.0
    for start in range(0, len(logits), ROWS):
        wanted = np.asarray(targets[start : start + ROWS], dtype=np.int64)
        block = log_softmax(logits[start : start + ROWS])
        total -= float(block[np.arange(len(block)), wanted].sum())
    return total


def bits(array: npt.NDArray[Any]) -> str:
    """A digest of an array's exact bytes with its shape and type: equal digests mean equal bits."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def top2_margin(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Largest minus second largest logit of each row, float64 [positions]."""
    top = np.partition(logits, -2, axis=-1)[:, -2:].astype(np.float64)
    margin: npt.NDArray[np.float64] = top[:, 1] - top[:, 0]
    return margin
