"""What the judge asks of an engine, ours and every baseline alike: fill a cache, decode from it, rewind, score a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class Engine(Protocol):
    """One way of running one model.

    ``name`` stands in the table; ``precision`` names storage and arithmetic ("fp32"), so that unequal rows can say so.
    """

    name: str
    precision: str

    def available(self) -> str | None:
        """None where this engine can run here, else the reason for the empty cell."""
        ...

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        """Fills the KV cache of ``batch`` sequences with ``prefix`` (token ids, may be empty), with room for ``room`` more."""
        ...

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        """Greedy: feeds ``first`` (one id a sequence) after the prefix; returns the ``tokens`` ids that follow, a list each.

        This is the timed call; stop ids are ignored.
        """
        ...

    def rewind(self) -> None:
        """Untimed: brings the cache back to the end of the prefix."""
        ...

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        """Teacher-forced logits of the last ``keep`` positions (0: of all), float32 [positions, vocabulary]."""
        ...


def chains_agree(chain: Sequence[int], scored: npt.NDArray[Any], slack: float = 0.0) -> int:
    """How many leading ids of a greedy chain are the argmax (lowest index wins) of ``scored`` [len(chain), vocabulary].

    Row i of ``scored`` is what predicts ``chain[i]``.  With ``slack``, for engines in lower precision than the reference, an id
    also counts whose logit lies below the row's largest by no more than this share of the row's largest absolute logit.
    """
    if len(scored) != len(chain):
        raise ValueError(f"{len(scored)} rows of logits for a chain of {len(chain)}")
    ids = np.asarray(chain)
    right = np.argmax(scored, axis=-1) == ids
    if slack > 0.0:
        inside = (ids >= 0) & (ids < scored.shape[1])
        chosen = np.take_along_axis(scored, np.where(inside, ids, 0)[:, None], axis=-1)[:, 0]
        right |= inside & (scored.max(axis=-1) - chosen <= slack * np.abs(scored).max(axis=-1))
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if wrong.size else len(chain)
