"""The physical floor: no step is faster than the bytes it has to read, at the bandwidth this very device has been seen to reach.

A decode step reads every weight once.  What the last cache may still hold from the step before need not come from memory, so the
floor counts ``working set - cache`` where the caches are warm and the whole working set where they were flushed; a working set that
fits the cache has no floor.  The bandwidth is measured (:mod:`amk_bench.bandwidth`), the datasheet's figure stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amk_bench.clock import Sample

# A probe and a kernel may differ by this much in how well they stream; a time that undercuts the floor by more is no time.
MARGIN = 0.05
# A working set below this many caches is partly served from them unless they are flushed between calls.
CACHES_FOR_COLD = 4


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What a device reads from its memory.

    Attributes:
        bytes_per_s: the best pass of the best shape.
        cache_bytes: the last cache before memory (L2 of a GPU, L3 of a CPU).
        buffer_bytes: what one pass read.
        method: how it was read, in words.
        datasheet_bytes_per_s: what the vendor says, None where unknown.
    """

    bytes_per_s: float
    cache_bytes: int
    buffer_bytes: int
    method: str
    datasheet_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or self.cache_bytes < 0:
            raise ValueError(f"a bandwidth of {self.bytes_per_s} B/s with a cache of {self.cache_bytes} bytes was measured")
        if self.buffer_bytes <= CACHES_FOR_COLD * self.cache_bytes:
            raise ValueError(
                f"{self.buffer_bytes} bytes were read, the cache holds {self.cache_bytes}; more than {CACHES_FOR_COLD} times as "
                "many are required, or the cache is measured instead of the memory"
            )

    def share_of_datasheet(self) -> float | None:
        return self.bytes_per_s / self.datasheet_bytes_per_s if self.datasheet_bytes_per_s else None

    def needs_flush(self, working_set: int) -> bool:
        """Calls on this working set find much of it in the cache unless that is flushed between them."""
        return working_set < CACHES_FOR_COLD * self.cache_bytes

    def least_s(self, working_set: int, flushed: bool = False) -> float:
        """Seconds below which reading ``working_set`` bytes once is not believed; 0 where the cache may hold them all."""
        from_memory = working_set if flushed else max(0, working_set - self.cache_bytes)
        return (1.0 - MARGIN) * from_memory / self.bytes_per_s

    def explain(self, working_set: int, flushed: bool) -> str:
        """How caches and working set stand to each other, for the result."""
        times = f"working set {working_set / 1e6:.1f} MB, cache {self.cache_bytes / 1e6:.1f} MB"
        if flushed:
            return f"cold: {times}, flushed before each call"
        if not self.needs_flush(working_set):
            return f"cold: {times}"
        return f"warm: {times}, not flushed" + ("; no floor" if working_set <= self.cache_bytes else "")


def step_bytes(graph: Any, bytes_per_weight: float, positions: int = 0, batch: int = 1, kv_bytes: float = 0.0) -> int:
    """Bytes that one decode step has to read: every matrix and norm, one embedding row a sequence, the keys and values before it.

    ``graph`` is an :class:`amk_core.graph.ModelGraph`; ``bytes_per_weight`` 4 for fp32, 2 for bf16; ``positions`` filled rows of
    each of ``batch`` sequences at ``kv_bytes`` a number.
    """
    weights = graph.parameters()
    if not graph.tied_head:  # of an embedding table that is not the head, a step reads one row a sequence
        weights -= graph.vocab_size * graph.hidden_size
        weights += batch * graph.hidden_size
    kv = 2 * graph.n_layers * graph.kv_size * positions * batch
    return int(weights * bytes_per_weight + kv * kv_bytes)


def violation(samples: Sequence[Sample], bytes_per_call: int, least_s: float, bandwidth: Bandwidth) -> str | None:
    """Why these calls are faster than memory allows; None where none of them is.  ``least_s`` is a call's floor."""
    fastest = min((s.device_s for s in samples), default=least_s)
    if fastest >= least_s:
        return None
    return (
        f"a timed call took {1e6 * fastest:.1f} us, the physical floor is {1e6 * least_s:.1f} us "
        f"({bytes_per_call / 1e6:.1f} MB a call, {bandwidth.bytes_per_s / 1e9:.0f} GB/s measured, margin {100 * MARGIN:.0f} %): "
        "it cannot have read what it claims to compute"
    )
