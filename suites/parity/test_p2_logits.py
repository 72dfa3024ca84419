"""P2: teacher-forced logits over two windows of the text, against HuggingFace fp32; positions 0 to 1023, the end of the cache.

Ranks take a step for every position, so but in a full run they are judged by the first positions alone, in two geometries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amk_bench.baselines.hf import HfEager
from amk_bench.parity import logit_distance
from amk_core.schedule.lower_ranks import Ranks

RANKED = 64


@pytest.mark.parametrize("index", [0, 1])
def test_logits_of_a_window(
    window: Callable[[int], Any], index: int, hold_logits: Callable[..., None], patient_engine: Any
) -> None:
    hold_logits(window(index).distance, f"logits over window {index}, 1024 positions{patient_engine.said}", patient_engine.where)


@pytest.mark.parametrize("ranks", [Ranks(15, 1), Ranks(3, 2)], ids=["15x1", "3x2"])
def test_logits_of_ranks(
    ranks: Ranks, load: Callable[..., Any], hf: HfEager, text_ids: list[int], hold_logits: Callable[..., None]
) -> None:
    ids = text_ids[:RANKED]
    ours = load(backend="cpu", context=2 * RANKED, ranks=ranks).logits(ids)
    hold_logits(logit_distance(ours, hf.logits(ids)), f"logits, {RANKED} positions, {ranks.count}x{ranks.cluster} ranks", "cpu")
