"""Quantised checkpoints of other programs, written here from the descriptions of their formats, read without de-quantising."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import make_llama

from amk_core.graph import ModelGraph
from amk_core.importer import CheckpointError, ModelRefused, hub, open_model
from amk_core.quant import QuantError, QuantFormat, quantise
from amk_core.quant.blocks import read as read_blocks
from amk_core.quant.checkpoint import open_quantised
from amk_core.quant.packed_layers import PackedConfig
from amk_core.quant.packed_layers import read as read_layer

N, K = 16, 192


# -- GGUF blocks, against the gguf package's own de-quantisation
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_are_the_values_that_the_gguf_package_reads(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    w = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    type_ = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(w, type_)
    m = read_blocks(data, kind, 6, 96)
    assert m.dequantise().tobytes() == gguf.quants.dequantize(data, type_).astype(np.float32).tobytes()
    assert m.format == {"Q4_0": QuantFormat(4, 32), "Q4_1": QuantFormat(4, 32, "min"), "Q8_0": QuantFormat(8, 32)}[kind]


def test_a_block_by_hand() -> None:
    """d = 0.5, m = -1: the low nibble of byte j is value j, the high one value j + 16."""
    block = np.concatenate([np.array([0.5, -1], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8) | 0x30])
    got = read_blocks(block, "Q4_1", 1, 32).dequantise()
    assert got[0, :16].tolist() == [0.5 * j - 1 for j in range(16)]
    assert got[0, 16:].tolist() == [0.5] * 16


def test_other_gguf_types_and_broken_blocks_are_refused() -> None:
    with pytest.raises(QuantError, match="blk0 is stored as Q6_K"):
        read_blocks(np.zeros(210, np.uint8), "Q6_K", 1, 256, "blk0")
    with pytest.raises(QuantError, match="whole blocks"):
        read_blocks(np.zeros(33, np.uint8), "Q8_0", 1, 32)


# -- GPTQ and AWQ: writers from the public descriptions, one number at a time
def gptq_parts(
    codes: np.ndarray, zero: np.ndarray, scale: np.ndarray, bits: int = 4, minus_one: bool = True
) -> dict[str, np.ndarray]:
    """codes [K, N], zero and scale [groups, N] -> qweight, qzeros, scales, g_idx as AutoGPTQ stores them."""
    per = 32 // bits
    k, n = codes.shape
    groups = len(scale)
    qweight, qzeros = np.zeros((k // per, n), np.uint32), np.zeros((groups, n // per), np.uint32)
    for i in range(k):
        qweight[i // per] |= codes[i].astype(np.uint32) << np.uint32(bits * (i % per))
    for j in range(n):
        qzeros[:, j // per] |= (zero[:, j].astype(np.uint32) - minus_one) << np.uint32(bits * (j % per))
    g_idx = (np.arange(k) // -(-k // groups)).astype(np.int32)
    return {"qweight": qweight.view(np.int32), "qzeros": qzeros.view(np.int32), "scales": scale, "g_idx": g_idx}


def awq_parts(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """The same as AutoAWQ's gemm version stores it: eight neighbours of N a word, in its order."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    out = {}
    for name, x in (("qweight", codes), ("qzeros", zero)):
        words = np.zeros((x.shape[0], x.shape[1] // 8), np.uint32)
        for c in range(words.shape[1]):
            for i in range(8):
                words[:, c] |= x[:, 8 * c + order[i]].astype(np.uint32) << np.uint32(4 * i)
        out[name] = words.view(np.int32)
    return {**out, "scales": scale}


def drawn(group: int, bits: int = 4, n: int = N, k: int = K, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups = -(-k // group)
    zero = rng.integers(1, 15, (groups, n)) if bits == 4 else np.full((groups, n), 128)
    return rng.integers(0, 1 << bits, (k, n)), zero, rng.uniform(0.001, 0.1, (groups, n)).astype(np.float16)


def expected(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray, group: int) -> np.ndarray:
    """scale * (code - zero), [N, K], in float64."""
    of = np.arange(len(codes)) // group
    return (scale.astype(np.float64)[of] * (codes - zero[of])).T


def config(method: str = "gptq", bits: int = 4, group: int = 64, **more: Any) -> PackedConfig:
    return PackedConfig.read({"quant_method": method, "bits": bits, "group_size": group, **more})


@pytest.mark.parametrize("group", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq_four_bits(group: int, version: str) -> None:
    codes, zero, scale = drawn(group)
    parts = gptq_parts(codes, zero, scale, minus_one=version == "gptq")
    parts["g_idx"] = (np.arange(K) // group).astype(np.int32)
    m = read_layer(parts, config(group=group, checkpoint_format=version), "layer")
    assert m.format == QuantFormat(4, {96: 32, 256: 128}.get(group, group), "zero")
    assert np.array_equal(m.dequantise().astype(np.float64), expected(codes, zero, scale, group))


def test_gptq_symmetric_keeps_no_zero_points() -> None:
    codes, _, scale = drawn(128)
    zero = np.full(scale.shape, 8)
    m = read_layer(gptq_parts(codes, zero, scale) | {"g_idx": np.arange(K) // 128}, config(group=128, sym=True), "layer")
    assert m.format == QuantFormat(4, 128)
    assert np.array_equal(m.dequantise().astype(np.float64), expected(codes, zero, scale, 128))
    zero[0, 3] = 9
    with pytest.raises(QuantError, match="zero point 9 at output 3, group 0"):
        read_layer(gptq_parts(codes, zero, scale) | {"g_idx": np.arange(K) // 128}, config(group=128, sym=True), "layer")


def test_gptq_one_scale_a_row_and_eight_bits() -> None:
    codes, zero, scale = drawn(K)
    m = read_layer(gptq_parts(codes, zero, scale), config(group=-1), "layer")
    assert np.array_equal(m.dequantise().astype(np.float64), expected(codes, zero, scale, K))
    codes, zero, scale = drawn(64, bits=8)
    m = read_layer(gptq_parts(codes, zero, scale, bits=8), config(bits=8), "layer")
    assert m.format == QuantFormat(8, 64)
    assert np.array_equal(m.dequantise().astype(np.float64), expected(codes, zero, scale, 64))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq(group: int) -> None:
    codes, zero, scale = drawn(group)
    zero[0, 0], zero[-1, -1] = 0, 15
    m = read_layer(awq_parts(codes, zero, scale), config("awq", group=group, version="GEMM", zero_point=True), "layer")
    assert m.format == QuantFormat(4, group, "zero")
    assert np.array_equal(m.dequantise().astype(np.float64), expected(codes, zero, scale, group))


def test_what_is_ambiguous_or_reordered_is_refused_by_name() -> None:
    codes, zero, scale = drawn(64)
    parts = gptq_parts(codes, zero, scale)
    shuffled = parts | {"g_idx": np.random.default_rng(0).permutation(parts["g_idx"])}
    with pytest.raises(QuantError, match=r"layer\.g_idx reorders"):
        read_layer(shuffled, config(), "layer")
    overflow = parts | {"qzeros": np.full_like(parts["qzeros"], -1)}
    with pytest.raises(QuantError, match="holds 15"):
        read_layer(overflow, config(), "layer")
    with pytest.raises(QuantError, match=r"layer\.scales is missing"):
        read_layer({k: v for k, v in parts.items() if k != "scales"}, config(), "layer")
    with pytest.raises(QuantError, match="in groups of 64"):
        read_layer(parts | {"scales": scale[:2]}, config(), "layer")
    with pytest.raises(QuantError, match="scale of row"):
        read_layer(parts | {"scales": np.full_like(scale, np.inf)}, config(), "layer")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "desc_act"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "checkpoint_format"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "zero_point"),
    ],
)
def test_configs_that_are_not_read_are_refused_by_field(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(QuantError, match=rf"quantization_config\.{word}"):
        PackedConfig.read(fields)


# -- whole checkpoints
SIZES = {"vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}


def write_quantised(folder: Path, method: str, group: int = 32, **quantisation: Any) -> dict[str, np.ndarray]:
    """A small random Llama as a GPTQ or AWQ checkpoint; returns the exact values [N, K] of its matrices by state-dict key."""
    from safetensors.numpy import save_file

    model = make_llama(tie_word_embeddings=False, **SIZES)
    model.save_pretrained(folder)
    tensors, exact = {}, {}
    for i, (key, p) in enumerate(model.state_dict().items()):
        w = p.numpy()
        module = key.removesuffix(".weight")
        if module.endswith("proj"):
            n, k = w.shape
            codes, zero, scale = drawn(group, n=n, k=k, seed=i)
            parts = gptq_parts(codes, zero, scale) if method == "gptq" else awq_parts(codes, zero, scale)
            tensors |= {f"{module}.{part}": x for part, x in parts.items()}
            if method == "gptq":
                tensors[f"{module}.bias"] = np.zeros(n, np.float16)
            exact[key] = expected(codes, zero, scale, group)
        else:
            tensors[key] = w.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    c = json.loads((folder / "config.json").read_text())
    c["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": group, **quantisation}
    (folder / "config.json").write_text(json.dumps(c))
    return exact


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_whole_checkpoint_binds_every_tensor(method: str, tmp_path: Path) -> None:
    from amk_core.importer.weights import canonical

    exact = write_quantised(tmp_path, method)
    with pytest.raises(ModelRefused, match="quantization_config"):
        open_model(tmp_path)
    c = open_quantised(tmp_path)
    config = c.config()
    assert str(config) == "int4-g32-zero,head=stored"
    weights = c.weights()
    for key, values in exact.items():
        name = canonical(key)
        assert name is not None
        assert np.array_equal(weights.matrix(name).dequantise().astype(np.float64), values)
        assert np.array_equal(c.imported.weights.get(name).astype(np.float64), values)
    assert weights.buffer("head") is None


def test_a_bias_that_is_not_zero_and_a_lost_part_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    write_quantised(tmp_path, "gptq")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    key = "model.layers.1.mlp.up_proj"
    save_file(tensors | {f"{key}.bias": np.ones(96, np.float16)}, file)
    with pytest.raises(ModelRefused, match=rf"{key}\.bias"):
        open_quantised(tmp_path)
    save_file({k: v for k, v in tensors.items() if k != f"{key}.qzeros"}, file)
    with pytest.raises(QuantError, match="qzeros is missing"):
        open_quantised(tmp_path).weights().matrix("L1.up")
    save_file({k: v for k, v in tensors.items() if not k.startswith(key)}, file)
    with pytest.raises(CheckpointError, match=rf"lacks {key}"):
        open_quantised(tmp_path)


def test_a_checkpoint_that_is_not_quantised_says_so(tmp_path: Path) -> None:
    make_llama(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(QuantError, match="not stored quantised"):
        open_quantised(tmp_path)


def graph_of(tied: bool) -> ModelGraph:
    import dataclasses

    from amk_core.graph import GRAPH_SHAPES

    g = GRAPH_SHAPES["smollm2-135m"]
    return dataclasses.replace(
        g, vocab_size=40, hidden_size=32, intermediate_size=48, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=8, tied_head=tied,
        rope=dataclasses.replace(g.rope, head_dim=8),
    )  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
def test_tied_heads_and_the_choice_of_the_embedding(tied: bool) -> None:
    from amk_core.quant.config import QuantConfig
    from amk_core.quant.source import QuantWeights

    graph = graph_of(tied)
    stored = {
        n: np.random.default_rng(i).normal(size=s).astype(np.float32) for i, (n, s) in enumerate(graph.weight_shapes().items())
    }
    head = stored[graph.head_weight]
    w = QuantWeights(graph, QuantConfig.parse("int4-g32,head=int8"), stored.__getitem__)
    packed = w.buffer("head")
    assert packed is not None
    assert packed.same(quantise(head, QuantFormat(8, 0)))
    assert np.array_equal(w.dense("embed"), stored["embed"])
    one = QuantWeights(graph, QuantConfig.parse("int4-g32,head=int8,embed=head"), stored.__getitem__)
    assert np.array_equal(one.dense("embed"), packed.dequantise() if tied else stored["embed"])
    kept = QuantWeights(graph, QuantConfig.parse("int4-g32,head=stored"), stored.__getitem__)
    assert kept.buffer("head") is None
    with pytest.raises(QuantError, match="final_norm is not quantised"):
        kept.matrix("final_norm")


# -- SmolLM2's own file
def real_file() -> bool:
    return (hub.home() / "models" / "smollm2-135m-packed" / hub.PACKED_FILE).is_file() and hub.is_cached("smollm2-135m")


@pytest.mark.skipif(
    not real_file(), reason="SmolLM2 is not in the model cache as GGUF; amk_core.load('smollm2-135m', weights='stored')"
)
def test_smollm2_is_bit_exact_against_its_dequantised_values() -> None:
    c = open_quantised("smollm2-135m")
    assert str(c.config()) == "int4-g32-min,head=int8-g32,embed=head"
    assert len(c.packed) == 211
    assert c.weights().weight_bytes(2) == 101_965_824  # 0.379 of 268 959 744 in bf16
    dense = open_model("smollm2-135m").weights
    names = [
        n
        for n in c.imported.graph.weight_shapes()
        if os.environ.get("AMK_FULL") or n.startswith(("L0.", "L29.")) or n == "final_norm"
    ]
    for name in names:
        assert c.imported.weights.get(name).tobytes() == dense.get(name).tobytes(), name
    assert c.weights().matrix("embed").dequantise()[::97].tobytes() == dense.get("embed")[::97].tobytes()
