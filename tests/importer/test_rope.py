"""Rotary tables have the bits of the installed transformers' rotary embedding, for every kind of scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk_core.graph import RopeSpec
from amk_core.importer import ModelRefused
from amk_core.importer.config import graph_from_config
from amk_core.importer.rope import rope_tables

pytest.importorskip("transformers")

KINDS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 2.7},
    "dynamic": {"rope_type": "dynamic", "factor": 2.7},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn attention factor": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 0.83, "beta_fast": 20.0,
        "beta_slow": 2.0,
    },
    "yarn mscale": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "mscale": 1.0, "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}  # fmt: skip


def _config(scaling: dict[str, Any] | None, head_dim: int, theta: float) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=101, hidden_size=4 * head_dim, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        head_dim=head_dim, num_key_value_heads=2, max_position_embeddings=2048, rope_theta=theta,
        rope_scaling=dict(scaling) if scaling else None,
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", [64, 128, 10])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_equal_transformers(kind: str, theta: float, head_dim: int) -> None:
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = _config(KINDS[kind], head_dim, theta)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), torch.arange(2048)[None])
    spec = graph_from_config(config, "x").rope
    assert (spec.kind, spec.theta) == (kind.split()[0], theta)
    for ours, theirs in zip(rope_tables(spec, 2048), (cos, sin), strict=True):
        assert ours.dtype == np.float32
        assert ours.shape == (2048, head_dim // 2)
        both_halves = np.concatenate([ours, ours], -1)
        assert np.array_equal(both_halves.view(np.uint32), theirs[0].numpy().view(np.uint32))


def test_the_scaled_kinds_differ_from_each_other_and_from_the_default() -> None:
    tables = [rope_tables(graph_from_config(_config(s, 64, 10000.0), "x").rope, 64)[0].tobytes() for s in KINDS.values()]
    dynamic = list(KINDS).index("dynamic")
    del tables[dynamic]  # within the trained context it is the default, up to rounding
    assert len(set(tables)) == len(tables)


def test_linear_by_hand() -> None:
    cos, sin = rope_tables(RopeSpec("linear", 10000.0, 4, 64, factor=2.0), 3)
    angles = np.outer(np.arange(3), [0.5, 0.005])
    np.testing.assert_allclose(cos, np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=1e-6)


def test_dynamic_is_refused_beyond_the_trained_context() -> None:
    spec = RopeSpec("dynamic", 10000.0, 8, 64, factor=2.0)
    assert rope_tables(spec, 64)[0].shape == (64, 4)
    with pytest.raises(ModelRefused, match="dynamic RoPE beyond the trained context is '65 positions'"):
        rope_tables(spec, 65)
