"""What the torch engines with a static cache have in common: the cells that fit them, and names of their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

PRECISIONS: Mapping[Any, str] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def check_room(prefix: Sequence[int], batch: int, room: int, *, made_for: int, context: int) -> None:
    """Raises ValueError for a cell of another batch than the engine was made for, or with more rows than its cache."""
    if batch != made_for:
        raise ValueError(f"this engine was made for batch {made_for}, the cell has {batch}")
    if len(prefix) + room > context:
        raise ValueError(f"position {len(prefix)} + {room} is beyond the cache of {context} rows; make it larger")
