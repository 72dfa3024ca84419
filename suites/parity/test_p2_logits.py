"""P2: teacher-forced logits over two windows of the text, against HuggingFace fp32; positions 0 to 1023, the end of the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("index", [0, 1])
def test_logits_of_a_window(window: Callable[[int], Any], index: int, hold_logits: Callable[..., None], where: str) -> None:
    hold_logits(window(index).distance, f"logits over window {index}, 1024 positions", where)
