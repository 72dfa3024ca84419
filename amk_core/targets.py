"""Where a schedule runs: the CPU with N queues, or one of the cards AMK is measured on.

Numbers are the vendors' published specifications (SM count, opt-in shared memory a block, DRAM bandwidth); what a device really
has is asked of the device at run time, these profiles serve lowering and checking without it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from amk_core.schedule.ir import TargetLimits

MAX_QUEUES = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A device profile.

    Attributes:
        queues: in-order queues: one per SM on a GPU, one thread each on the CPU.
        smem_bytes: shared memory a block may opt in to, bytes; 0 on the CPU.
        dram_gb_s: datasheet memory bandwidth, 1e9 bytes a second; 0 where unknown.
        clusters: (CTAs of a cluster, how many such clusters are on the card at once with a CTA an SM); empty where there are none
            or nobody has asked a card.
    """

    name: str
    arch: str
    queues: int
    smem_bytes: int = 0
    dram_gb_s: int = 0
    clusters: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.queues <= MAX_QUEUES:
            raise ValueError(f"target {self.name}: {self.queues} queues, required is 1 to {MAX_QUEUES}")

    @property
    def bulk_copy(self) -> bool:
        """Asynchronous bulk copies and clusters (sm_90 and later)."""
        return self.arch.startswith("sm_") and int(self.arch[3:]) >= 90

    def limits(self) -> TargetLimits | None:
        """What rule FIT checks; None for the CPU, where the VM starts as many threads as there are queues."""
        return None if self.arch == "cpu" else TargetLimits(self.queues, self.smem_bytes, self.arch)

    @staticmethod
    def cpu(queues: int | None = None) -> Target:
        """This machine's CPU; by default one queue a core it may use."""
        return Target("cpu", "cpu", queues or len(os.sched_getaffinity(0)))

    @staticmethod
    def named(name: str) -> Target:
        """A profile by card name (``h200``) or ``cpu``.

        Raises:
            ValueError: no such profile; the message lists them.
        """
        key = name.lower().replace(" ", "").replace("-", "").replace("_", "")
        if key == "cpu":
            return Target.cpu()
        for t in PROFILES:
            if t.name.replace("-", "") == key:
                return t
        raise ValueError(f"unknown target {name!r}; known are cpu, {', '.join(t.name for t in PROFILES)}")

    @staticmethod
    def profiles() -> tuple[Target, ...]:
        """The cards of the fleet."""
        return PROFILES


# Asked of an H200 (reports/data/device/development/26-cluster-step.txt).  How many fit depends on which SMs a chip has lost, so the
# H100's are an estimate, and another H200 may place more or fewer: RankVM asks the card itself.
H200_CLUSTERS = ((8, 15), (16, 7))

PROFILES: tuple[Target, ...] = (
    Target("l4", "sm_89", 58, 101_376, 300),
    Target("l40s", "sm_89", 142, 101_376, 864),
    Target("a10g", "sm_86", 80, 101_376, 600),
    Target("a100", "sm_80", 108, 166_912, 2039),
    Target("h100", "sm_90", 132, 232_448, 3352, H200_CLUSTERS),
    Target("h200", "sm_90", 132, 232_448, 4800, H200_CLUSTERS),
    Target("rtx5090", "sm_120", 170, 101_376, 1792),
)
