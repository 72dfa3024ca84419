"""A Llama in thirty lines of float64 numpy: the independent reference of the importer, and of whatever runs its models.

It takes weights by canonical name in HuggingFace's layout ([out, in] matrices, half-split rotary pairs) and shares nothing with
the code under test; the rotary tables are given to it, or computed here for the unscaled kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph

F64 = npt.NDArray[np.float64]


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def unscaled_tables(graph: ModelGraph, rows: int) -> tuple[F64, F64]:
    """(cos, sin) of shape [rows, head_dim / 2], in float64, for a model without rotary scaling."""
    angles = np.arange(rows)[:, None] * graph.rope.theta ** -(np.arange(0, graph.head_dim, 2) / graph.head_dim)
    return np.cos(angles), np.sin(angles)


def rotate(x: F64, cos: F64, sin: F64) -> F64:
    """x [tokens, heads, head_dim]; element i of a head turns together with element i + head_dim / 2."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def logits(graph: ModelGraph, get: Callable[[str], npt.NDArray[Any]], ids: list[int], tables: tuple[Any, Any] | None = None) -> F64:
    """Logits [len(ids), vocab] of one sequence from position 0."""

    def w(name: str) -> F64:
        return np.asarray(get(name), np.float64)

    n, d = len(ids), graph.head_dim
    cos, sin = (np.asarray(t, np.float64)[:n] for t in tables or unscaled_tables(graph, n))
    later = np.triu(np.ones((n, n), bool), 1)
    h = w("embed")[ids]
    for i in range(graph.n_layers):
        x = rms_norm(h, w(f"L{i}.attn_norm"), graph.norm_eps)
        q = rotate((x @ w(f"L{i}.q").T).reshape(n, graph.n_heads, d), cos, sin)
        k = rotate((x @ w(f"L{i}.k").T).reshape(n, graph.n_kv_heads, d), cos, sin)
        v = (x @ w(f"L{i}.v").T).reshape(n, graph.n_kv_heads, d)
        mixed = np.empty((n, graph.n_heads, d))
        for head in range(graph.n_heads):
            kv = head // graph.group
            scores = np.where(later, -np.inf, q[:, head] @ k[:, kv].T * graph.attn_scale)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
        h = h + mixed.reshape(n, -1) @ w(f"L{i}.o").T
        x = rms_norm(h, w(f"L{i}.mlp_norm"), graph.norm_eps)
        gate = x @ w(f"L{i}.gate").T
        h = h + (gate / (1 + np.exp(-gate)) * (x @ w(f"L{i}.up").T)) @ w(f"L{i}.down").T
    head = w("embed" if graph.tied_head else "head")
    return rms_norm(h, w("final_norm"), graph.norm_eps) @ head.T
