"""The ring through which tokens reach the host while a launch runs.

The sampler writes one 64-bit word a sequence and step into pinned memory of the host: the token below, a sequence number above.  A
word is there when its number is the expected one; it is indivisible, so nothing else orders it.  Numbers go on over launches, so
that nothing has to be cleared between them; row i of a launch is written in step i only, so that nothing is overwritten unread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SPAN = 1 << 32  # sequence numbers


class TokenRing:
    """The host's side of the ring.

    Args:
        words: uint64 [steps * sequences], zeros, written by the card.
    """

    def __init__(self, words: npt.NDArray[np.uint64], steps: int, sequences: int) -> None:
        self._words = words.reshape(steps, sequences)
        self._next = 0  # the number before the first step of the next launch
        self._base = self._steps = self._seen = 0

    def arm(self, steps: int) -> int:
        """Expect a launch of ``steps``; returns the number before its first step.  No launch may be in flight."""
        if self._next + len(self._words) >= _SPAN:
            self._words[:] = 0
            self._next = 0
        self._base, self._steps, self._seen = self._next, steps, 0
        self._next += steps
        return self._base

    def arrived(self) -> int:
        """Whole steps of the launch that are here; looks at each row once."""
        while self._seen < self._steps:
            number = self._base + self._seen + 1
            if any(int(w) >> 32 != number for w in self._words[self._seen]):
                break
            self._seen += 1
        return self._seen

    def tokens(self, first: int, end: int) -> npt.NDArray[np.int32]:
        """int32 [end - first, sequences] of steps that have arrived."""
        return (self._words[first:end] & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
