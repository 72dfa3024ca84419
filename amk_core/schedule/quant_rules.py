"""What rule REF asks of quantised buffers: part of what every validator of schedules calls.

Bits, group, kind and the place of the scales are the dtype's, so a buffer cannot contradict itself; what can go wrong is where such
a buffer stands and how a task takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from amk_core.quant.format import BY_NAME, QuantFormat
from amk_core.schedule.ir import WRITE, Kind, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def quant_problems(s: Schedule) -> list[tuple[int, str]]:
    """(buffer, message): a quantised buffer that is no weight, is tagged, is taken in part of its columns or written, or whose
    initial contents are not whole rows."""
    quantised = {i: BY_NAME[b.dtype] for i, b in enumerate(s.buffers) if b.dtype in BY_NAME}
    return list(_problems(s, quantised)) if quantised else []


def _problems(s: Schedule, quantised: Mapping[int, QuantFormat]) -> Iterator[tuple[int, str]]:
    c = s.columns
    for i, fmt in quantised.items():
        b = s.buffers[i]
        if b.kind is not Kind.WEIGHT:
            yield i, f"a buffer of kind {b.kind.name.lower()} has the dtype {fmt}; only weights are stored quantised"
        if b.tagged:
            yield i, f"a tagged buffer has the dtype {fmt}; a tagged element is 8 bytes"
        mine = np.flatnonzero(c.acc_buffer == i)
        part = (c.acc_caff[mine] >= 0) | (c.acc_c0[mine] != 0) | (c.acc_c1[mine] != b.cols)
        if part.any():
            task = int(np.searchsorted(c.acc_off, mine[part][0], side="right")) - 1
            yield i, f"T{task} takes a part of its {b.cols} columns; a row of {fmt} is taken whole, its scales serve all of it"
        if (c.acc_flags[mine] & WRITE != 0).any():
            yield i, f"a task writes it; the codes and scales of {fmt} are packed before the launch"
        start = np.flatnonzero(c.init_buffer == i)
        if ((c.init_caff[start] >= 0) | (c.init_c0[start] != 0) | (c.init_c1[start] != b.cols)).any():
            yield i, f"a part of its {b.cols} columns is initial; a row of {fmt} is there whole or not at all"
