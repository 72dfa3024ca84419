"""GGUF files: converted, they are the model that HuggingFace reads from them; what it drops silently is kept or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy_llama
import pytest
from checkpoints import IDS, hf_logits, make_llama

from amk_core.importer import CheckpointError, ModelRefused, gguf, open_model
from amk_core.importer.rope import rope_tables

pytest.importorskip("transformers")
gguf_package = pytest.importorskip("gguf")

# Rows of 96 are whole blocks of every quantisation; 6 query heads on 2 KV heads of 10 rows.
SIZES: dict[str, Any] = {"vocab_size": 300, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6, "head_dim": 10}
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _name(key: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if key in outer:
        return outer[key]
    layer, rest = key.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def _interleaved(w: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows that GGUF uses for Q and K, by index: the pair (2i, 2i+1) of a head is (i, i + d/2) of HuggingFace."""
    d = len(w) // heads
    order = [h * d + i // 2 + (d // 2 if i % 2 else 0) for h in range(heads) for i in range(d)]
    return w[order]


def _byte_tokens() -> list[str]:
    from tokenizers import pre_tokenizers

    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "12"]


def write_gguf(
    path: Path, model: Any, edit: Callable[[Any], None] = lambda w: None, quantise: str = "F32", arch: str = "llama"
) -> Path:
    """The model as a GGUF file, as llama.cpp's converter lays it out; ``edit`` adds metadata or tensors to the writer."""
    c = model.config
    w = gguf_package.GGUFWriter(path, arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_block_count(c.num_hidden_layers)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(5000.0)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(c.vocab_size)
    tokens = _byte_tokens()
    tokens += [f"<extra_{i}>" for i in range(c.vocab_size - len(tokens))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3] * 3 + [1] * (c.vocab_size - 3))
    w.add_token_merges(["a b", "1 2"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_pad_token_id(2)
    w.add_chat_template("{{ messages[0]['content'] }}")
    for key, p in model.state_dict().items():
        if key == "lm_head.weight" and c.tie_word_embeddings:
            continue
        x = p.float().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(key.split(".")[-2])
        x = x if heads is None else _interleaved(x, heads)
        kind = gguf_package.GGMLQuantizationType[quantise if x.ndim == 2 and x.shape[1] % 32 == 0 else "F32"]
        w.add_tensor(_name(key), gguf_package.quants.quantize(x, kind), raw_dtype=kind)
    edit(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _drop_merged_token(w: Any) -> None:
    tokens = w.kv_data[0]["tokenizer.ggml.tokens"].value
    tokens[tokens.index("ab")] = "other"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMK_HOME", str(tmp_path / "cache"))


def our_logits(model: Any, ids: list[int] = IDS) -> np.ndarray:
    imported = open_model(model)
    return numpy_llama.logits(imported.graph, imported.weights.get, ids, rope_tables(imported.graph.rope, len(ids)))


@pytest.mark.parametrize("quantise", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("tied", [False, True])
def test_converted_equals_what_huggingface_reads(quantise: str, tied: bool, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    path = write_gguf(tmp_path / "m.gguf", make_llama(**SIZES, tie_word_embeddings=tied), quantise=quantise)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    imported, live = open_model(path), open_model(theirs)
    assert imported.graph.tied_head == tied
    for name in imported.graph.weight_shapes():
        assert imported.weights.get(name).tobytes() == live.weights.get(name).tobytes(), name
    ours, reference = our_logits(path), hf_logits(theirs)
    # transformers keeps the digits of the float32 epsilon (9.99999975e-06), which float64 logits show
    assert np.abs(ours - reference).max() <= 1e-11 * np.abs(reference).max()


def test_an_unquantised_file_is_the_model_it_was_made_from(tmp_path: Path) -> None:
    model = make_llama(**SIZES)
    ours, reference = our_logits(write_gguf(tmp_path / "m.gguf", model)), hf_logits(model)
    assert np.abs(ours - reference).max() <= 1e-12 * np.abs(reference).max()


def test_rotary_divisors_of_llama3_are_recovered(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = make_llama(**SIZES, rope_scaling=dict(scaling), rope_theta=5000.0, max_position_embeddings=32768)
    divisors = []
    for i in range(0, 10, 2):  # as llama.cpp's converter computes them
        wavelength = 2 * math.pi * 5000.0 ** (i / 10)
        smooth = (8192 / wavelength - 1) / 3
        divisors.append(1.0 if wavelength < 8192 / 4 else 32.0 if wavelength > 8192 else 1 / ((1 - smooth) / 32 + smooth))
    assert len(set(divisors)) > 1
    path = write_gguf(tmp_path / "m.gguf", model, lambda w: w.add_tensor("rope_freqs.weight", np.array(divisors, np.float32)))
    assert open_model(path).graph.rope == open_model(model).graph.rope
    reference = hf_logits(model)
    assert np.abs(our_logits(path) - reference).max() <= 1e-12 * np.abs(reference).max()


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_in_the_metadata_is_applied(kind: str, tmp_path: Path) -> None:
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    scaling |= {"original_max_position_embeddings": 32} if kind == "yarn" else {}

    def edit(w: Any) -> None:
        w.add_rope_scaling_type(gguf_package.RopeScalingType(kind))
        w.add_rope_scaling_factor(4.0)
        if kind == "yarn":
            w.add_rope_scaling_orig_ctx_len(32)

    model = make_llama(**SIZES, rope_scaling=scaling)
    reference = hf_logits(model)
    assert np.abs(our_logits(write_gguf(tmp_path / "m.gguf", model, edit)) - reference).max() <= 1e-12 * np.abs(reference).max()


REFUSED: dict[str, tuple[str, Callable[[Any], None]]] = {
    "bias": (r"blk\.0\.attn_q\.bias.*bias", lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(60, np.float32))),
    "unknown tensor": (r"blk\.0\.attn_q_norm\.weight", lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones(10, np.float32))),
    "divisors": ("rope_freqs", lambda w: w.add_tensor("rope_freqs.weight", np.full(5, 3.0, np.float32))),
    "experts": ("mixture of experts", lambda w: w.add_expert_count(8)),
    "soft-cap": ("final_logit_softcapping", lambda w: w.add_final_logit_softcapping(30.0)),
    "logit scale": ("logit_scale", lambda w: w.add_logit_scale(0.5)),
    "window": ("sliding_window", lambda w: w.add_sliding_window(64)),
    "longrope": ("rope.scaling.type", lambda w: w.add_rope_scaling_type(gguf_package.RopeScalingType.LONGROPE)),
    "adapter": ("general.type", lambda w: w.add_type("adapter")),
}


@pytest.mark.parametrize("trait", REFUSED)
def test_traits_are_refused_by_name_and_leave_nothing(trait: str, tmp_path: Path) -> None:
    text, edit = REFUSED[trait]
    path = write_gguf(tmp_path / "m.gguf", make_llama(**SIZES), edit)
    with pytest.raises(ModelRefused, match=text):
        open_model(path)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_other_architectures_and_damaged_files_are_refused(tmp_path: Path) -> None:
    model = make_llama(**SIZES)
    with pytest.raises(ModelRefused, match=r"general\.architecture is 'qwen2'"):
        open_model(write_gguf(tmp_path / "q.gguf", model, arch="qwen2"))
    data = write_gguf(tmp_path / "m.gguf", model).read_bytes()
    for keep in (0, 3, 200, len(data) // 2, len(data) - 40):
        (tmp_path / "t.gguf").write_bytes(data[:keep])
        with pytest.raises(CheckpointError, match=r"t\.gguf"):
            open_model(tmp_path / "t.gguf")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_missing_tensor_is_found(tmp_path: Path) -> None:
    model = make_llama(**SIZES)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.state_dict = lambda: state
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.mlp\.up_proj"):
        open_model(write_gguf(tmp_path / "m.gguf", model))
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_vocabulary_without_a_merged_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer"):
        open_model(write_gguf(tmp_path / "m.gguf", make_llama(**SIZES), _drop_merged_token))


def test_a_changed_file_is_converted_anew_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", make_llama(**SIZES))
    first = open_model(path)
    stamp = (first.path / "model.safetensors").stat().st_mtime_ns
    again = open_model(path)
    assert again.path == first.path
    assert (again.path / "model.safetensors").stat().st_mtime_ns == stamp
    write_gguf(path, make_llama(seed=1, **SIZES))
    assert not np.array_equal(open_model(path).weights.get("L0.q"), first.weights.get("L0.q"))


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", make_llama(**SIZES))
    whole = open_model(path)
    monkeypatch.setattr(gguf, "SHARD_BYTES", 100_000)
    (tmp_path / "out").mkdir()
    gguf.convert(path, tmp_path / "out")
    sharded = open_model(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    for name in whole.weights.names():
        assert sharded.weights.get(name).tobytes() == whole.weights.get(name).tobytes()


def test_the_tokenizer_is_rebuilt(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    imported = open_model(write_gguf(tmp_path / "m.gguf", make_llama(**SIZES)))
    tokenizer = AutoTokenizer.from_pretrained(imported.tokenizer_path)
    tokens = _byte_tokens()
    ids = tokenizer("<|im_start|>ab 12").input_ids
    # the merge of letters applies, digits are split before theirs could, and nothing is put before the text
    assert [tokens[i] for i in ids] == ["<|im_start|>", "ab", "Ġ", "1", "2"]
    assert tokenizer.decode(ids) == "<|im_start|>ab 12"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert json.loads((imported.path / "generation_config.json").read_text())["eos_token_id"] == 2
