"""Marked values as the host sees them: the places of vm/marked_map.h, for whoever fills or reads such buffers.

In the tables they are tagged buffers of elements of 8 bytes; in memory two halves of as many words, by the parity of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.ir import Buffer

UNWRITTEN = 0xFFFFFFFF
PAIRS = (".attn", ".act")  # buffers whose elements hold pairs of bf16
FLOATS = ("embedded", ".mid", ".h")  # the residual stream
Words = npt.NDArray[np.uint32]


def is_marked(b: Buffer) -> bool:
    """Whether a build of marked values hands this buffer on without tags; queries, keys, values and partials keep theirs."""
    return b.tagged and b.name.endswith(PAIRS + FLOATS)


def places(b: Buffer) -> npt.NDArray[np.int64]:
    """[rows, cols]: the word of every element inside its half."""
    row, col = np.arange(b.rows)[:, None], np.arange(b.cols)[None]
    if b.name.endswith(PAIRS):  # marked_pair
        return col // 16 * b.rows * 16 + row * 16 + col % 16
    return (col // 32 * 2 + col % 8 // 4) * b.rows * 16 + row * 16 + col % 32 // 8 * 4 + col % 4  # marked_float


def halves(b: Buffer, raw: npt.NDArray[Any]) -> tuple[Words, Words]:
    """The elements [rows, cols] of even steps and of odd ones, of a buffer given as its bytes."""
    words = np.ascontiguousarray(raw).view(np.uint32).reshape(2, b.rows * b.cols)
    even, odd = words[:, places(b)]
    return even, odd


def filled(b: Buffer, even: Words, odd: Words) -> npt.NDArray[np.uint8]:
    """The bytes of a buffer that holds these elements."""
    words = np.empty((2, b.rows * b.cols), np.uint32)
    words[:, places(b)] = even, odd
    return words.view(np.uint8).reshape(-1)
