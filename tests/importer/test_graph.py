"""ModelGraph: counts of the public models, nodes in execution order, refusal of numbers that describe no model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from amk_core.graph import GRAPH_SHAPES, GraphError, ModelGraph, RopeSpec

# Parameter counts as published with the models (a tied head counts once).
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
}


def test_shapes_have_the_published_parameter_counts() -> None:
    assert {name: g.parameters() for name, g in GRAPH_SHAPES.items()} == PUBLISHED


def test_weight_bytes_by_dtype() -> None:
    g = GRAPH_SHAPES["smollm2-135m"]
    assert (g.weight_bytes("f32"), g.weight_bytes("bf16"), g.weight_bytes()) == (538_060_032, 269_030_016, 269_030_016)
    assert g.kv_bytes(8192, "f32") == 2 * 30 * 192 * 8192 * 4


def test_every_value_is_produced_once_before_it_is_used_and_every_weight_is_used(tiny: Callable[..., ModelGraph]) -> None:
    for graph in (tiny(), tiny(tied_head=True), GRAPH_SHAPES["llama-3.2-1b"]):
        known = {"token"}
        for node in graph.nodes():
            assert set(node.inputs) <= known
            assert not set(node.outputs) & known
            known |= set(node.outputs)
        assert {w for node in graph.nodes() for w in node.weights} == set(graph.weight_shapes())


def test_networkx_view_is_a_dag_in_the_order_of_the_nodes(tiny: Callable[..., ModelGraph]) -> None:
    nx = pytest.importorskip("networkx")
    graph = tiny()
    g = graph.to_networkx()
    assert list(g.nodes) == [n.name for n in graph.nodes()]
    assert nx.is_directed_acyclic_graph(g)
    assert nx.dag_longest_path_length(g) == len(graph.nodes()) - 1
    assert g.edges["L0.qkv", "L0.attn"]["values"] == ("L0.q", "L0.k", "L0.v")


def test_graphs_are_frozen_and_hashable(tiny: Callable[..., ModelGraph]) -> None:
    assert hash(tiny()) == hash(tiny())
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny().n_layers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0), ("hidden_size", -1), ("n_layers", True), ("n_heads", 5), ("head_dim", 7), ("norm_eps", 0.0),
        ("norm_eps", float("nan")), ("attn_scale", -1.0), ("context", 2.5), ("bos_id", 100), ("eos_ids", (1, -1)),
        ("stored_dtype", "f8"), ("rope", RopeSpec("default", 1e4, 16, 512)), ("rope", RopeSpec("default", 1e4, 8, 99)),
        ("tied_head", 1), ("name", ""),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused_by_field(tiny: Callable[..., ModelGraph], field: str, value: object) -> None:
    with pytest.raises(GraphError, match=field.replace("rope", "rope|context")):
        tiny(**{field: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "longrope"}, {"theta": 0.0}, {"head_dim": 9}, {"factor": 0.5}, {"kind": "yarn"}, {"kind": "llama3"},
        {"kind": "llama3", "original_context": 64, "low_freq_factor": 4.0}, {"kind": "dynamic", "head_dim": 2},
        {"kind": "yarn", "original_context": 64, "beta_fast": 1.0}, {"attention_factor": -1.0},
    ],
)  # fmt: skip
def test_impossible_rotations_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(GraphError, match=r"rope\."):
        RopeSpec(**{"kind": "default", "theta": 1e4, "head_dim": 8, "context": 512, **changes})  # type: ignore[arg-type]
