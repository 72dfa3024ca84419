"""Fixtures shared by the unit tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amk_core.graph import ModelGraph, RopeSpec


@pytest.fixture(scope="session")
def tiny() -> Callable[..., ModelGraph]:
    """Makes a two-layer graph with odd sizes (three query heads a KV head); keyword arguments replace fields."""

    def make(**changes: Any) -> ModelGraph:
        fields: dict[str, Any] = {
            "name": "tiny", "family": "llama", "vocab_size": 100, "hidden_size": 48, "intermediate_size": 80, "n_layers": 2,
            "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "norm_eps": 1e-5, "tied_head": False, "context": 512,
            "rope": RopeSpec("default", 10000.0, 8, 512), "attn_scale": 8**-0.5,
        }  # fmt: skip
        return ModelGraph(**{**fields, **changes})

    return make
