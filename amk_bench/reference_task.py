"""The CPU reference task: work of a known size, to ask the judge about itself.

It hashes a buffer, so that its time is proportional to its bytes, it needs one core, no memory bandwidth and nothing but the
standard library, and its output proves that it ran.  ``slowdown=0.02`` makes it two per cent longer: that is how a difference is
planted.
"""

from __future__ import annotations

import hashlib

BYTES = 1_000_000  # about half a millisecond with the SHA instructions of current processors


class ReferenceTask:
    """A callable that takes a call number and returns a digest of that number and all its bytes."""

    def __init__(self, slowdown: float = 0.0) -> None:
        if not 0.0 <= slowdown <= 10.0:
            raise ValueError(f"a slowdown of {slowdown}; 0 to 10 is required")
        self.bytes = round(BYTES * (1.0 + slowdown))
        self._data = bytes(self.bytes)

    def __call__(self, number: int) -> str:
        digest = hashlib.sha256(number.to_bytes(8, "little"))
        digest.update(self._data)
        return digest.hexdigest()
