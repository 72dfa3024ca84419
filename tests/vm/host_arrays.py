"""The buffers of a schedule in this machine's memory, as kernels that are compiled for it take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.pack import aligned_zeros

DTYPES: dict[str, Any] = {"f32": np.float32, "bf16": np.uint16, "i32": np.int32, "b32": np.uint32, "tag64": np.uint64}


def host_arrays(s: Schedule, bound: dict[str, Any], tagged_byte: int = 0) -> list[Any]:
    """One array a buffer; weights have their tape and none here, tagged ones hold ``tagged_byte`` until somebody writes them."""
    arrays: list[Any] = []
    for b in s.buffers:
        if b.kind is Kind.WEIGHT:
            arrays.append(np.zeros((1, 1)))
            continue
        a = aligned_zeros(b.bytes).view(DTYPES[b.dtype]).reshape(b.rows, b.cols)
        if b.tagged and tagged_byte:
            a.view(np.uint8)[:] = tagged_byte
        if b.name in bound:
            a[...] = bound[b.name].view(a.dtype)
        arrays.append(a)
    return arrays
