"""How much of this process's cores other processes took while something was timed.

A busy machine does not slow both sides alike: a baseline that synchronises its threads by spinning suffers many times over.  So
a paired ratio taken beside other work is no measurement, however narrow its interval.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

# A tenth of the cores is what a desktop's own services take; more than that moves ratios by more than a noise floor shows.
OTHERS_LIMIT = 0.10
_IDLE, _IOWAIT = 3, 4  # columns of /proc/stat that are not work
_COUNTED = 8  # user nice system idle iowait irq softirq steal; what follows is contained in user and nice


def busy_s(stat: str, cpus: set[int], ticks_per_s: float) -> float:
    """Seconds of work (steal included) on ``cpus`` since boot, from the text of ``/proc/stat``."""
    total = 0
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            columns = [int(x) for x in rest.split()[:_COUNTED]]
            total += sum(x for i, x in enumerate(columns) if i not in (_IDLE, _IOWAIT))
    return total / ticks_per_s


def _now() -> tuple[float, float, float]:
    """(work on our cores, our own share of it, wall), seconds."""
    stat = Path("/proc/stat").read_text(encoding="ascii")
    own = os.times()
    return busy_s(stat, os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")), own.user + own.system, time.monotonic()


def witness() -> Callable[[], float]:
    """Starts watching; the function returned gives the share (0 to 1) of our cores that others took since, 0 where unknown."""
    try:
        work, own, wall = _now()
    except (OSError, AttributeError, ValueError):
        return lambda: 0.0

    def share() -> float:
        work2, own2, wall2 = _now()
        available = max(wall2 - wall, 1e-3) * len(os.sched_getaffinity(0))
        return min(max((work2 - work - (own2 - own)) / available, 0.0), 1.0)

    return share
