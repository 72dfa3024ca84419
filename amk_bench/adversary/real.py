"""Real lowerings of tiny models, small enough for the oracle, as interchange objects."""

from __future__ import annotations

import copy
from functools import cache

from amk_bench.adversary.net import Json, Rng
from amk_core.graph import ModelGraph, RopeSpec
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, Purpose, lower
from amk_core.targets import Target


def tiny_graph(layers: int = 1, heads: int = 2, kv_heads: int = 1, context: int = 2) -> ModelGraph:
    """A Llama of a few hundred weights: head_dim 2, hidden 4, feed-forward 6, 8 tokens."""
    rope = RopeSpec("default", 1e4, 2, context)
    return ModelGraph("tiny", "llama", 8, 4, 6, layers, heads, kv_heads, 2, 1e-5, False, context, rope, 0.5**0.5)


@cache
def _lowered(
    purpose: Purpose, layers: int, kv: int, queues: int, batch: int, chunk: int, steps: int, knobs: tuple[bool, ...]
) -> Json:
    split, fuse, blocked, head = knobs
    config = ScheduleConfig(
        row_align=2, attn_splits=1 + split, fuse_combine=fuse, placement="blocked" if blocked else "rotated",
        dependencies="head" if head else "phase",
    )  # fmt: skip
    graph = tiny_graph(layers, heads=2 * kv, kv_heads=kv)
    s = lower(graph, config, Target.cpu(queues), Geometry(purpose, batch, chunk, context=2, steps=steps))
    return s.to_json()


def lowered(rng: Rng, purpose: Purpose | None = None) -> Json:
    """A tiny model with random knobs on 1 to 3 queues, 1 to 3 steps."""
    any_purpose: tuple[Purpose, ...] = ("decode", "decode", "prefill", "logits")
    kind = purpose or rng.choice(any_purpose)
    batch = rng.choice((1, 1, 1, 2))
    chunk = 1 if kind == "decode" else rng.choice((1, 2))
    knobs = tuple(rng.random() < 0.5 for _ in range(4))
    return copy.deepcopy(
        _lowered(kind, rng.choice((1, 1, 2)), 1, rng.choice((1, 2, 2, 3)), batch, chunk, rng.choice((1, 2, 3)), knobs)
    )
