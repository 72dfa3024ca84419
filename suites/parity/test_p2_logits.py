"""P2: teacher-forced logits over two windows of the text, against HuggingFace fp32; positions 0 to 1023, the end of the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amk_bench.parity import P2_LIMIT
from amk_bench.recorder import Recorder


@pytest.mark.parametrize("index", [0, 1])
def test_logits_of_a_window(window: Callable[[int], Any], index: int, amk_record: Recorder, where: str) -> None:
    distance = window(index).distance
    amk_record.parity(
        "P2",
        f"logits over window {index}, 1024 positions",
        measured=f"{distance.relative:.2e} relative",
        required=f"<= {P2_LIMIT:.0e}",
        passed=distance.relative <= P2_LIMIT,
        value=distance.relative,
        limit=P2_LIMIT,
        where=where,
        detail=f"largest difference {distance.max_abs:.2e} at position {distance.row}; largest logit {distance.largest:.2f}",
    )
    assert distance.relative <= P2_LIMIT
