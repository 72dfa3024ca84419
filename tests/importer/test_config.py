"""config.json by allowlist: both spellings of the rotary fields, and every trait that is not computed refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from amk_core.graph import GRAPH_SHAPES
from amk_core.importer import CheckpointError, ModelRefused
from amk_core.importer.config import graph_from_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 101, "hidden_size": 36, "intermediate_size": 45,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "rope_theta": 5000.0, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip


def graph(**changes: Any) -> Any:
    return graph_from_config({k: v for k, v in {**BASE, **changes}.items() if v is not ...}, "x")


def test_public_llama_3_config_in_the_spelling_of_transformers_4() -> None:
    g = graph_from_config(
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
            "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
            "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
            "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
            "rms_norm_eps": 1e-05, "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
            "use_cache": True, "vocab_size": 128256,
        },
        "llama-3.2-1b",
    )  # fmt: skip
    assert g == GRAPH_SHAPES["llama-3.2-1b"]


def test_public_smollm2_config_with_its_private_fields() -> None:
    g = graph_from_config(
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
            "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
            "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
            "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_cache": True, "vocab_size": 49152,
        },
        "smollm2-135m",
    )  # fmt: skip
    assert g == GRAPH_SHAPES["smollm2-135m"]


def test_both_spellings_of_rope_give_the_same_graph() -> None:
    llama3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
    old = graph(rope_scaling={"rope_type": "llama3", **llama3})
    legacy = graph(rope_scaling={"type": "llama3", **llama3})
    new = graph(rope_theta=..., rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, **llama3})
    assert old == legacy == new
    assert old.rope.theta == 5000.0


def test_theta_is_found_in_rope_parameters_and_defaults_only_where_no_spelling_has_it() -> None:
    assert graph(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rope.theta == 1e6
    assert graph(rope_theta=...).rope.theta == 10000.0
    with pytest.raises(ModelRefused, match="rope_theta"):
        graph(rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def test_absent_fields_mean_what_the_architecture_says() -> None:
    g = graph(num_key_value_heads=..., head_dim=..., tie_word_embeddings=..., bos_token_id=..., eos_token_id=None)
    assert (g.n_kv_heads, g.head_dim, g.tied_head, g.bos_id, g.eos_ids) == (6, 6, False, None, ())


@pytest.mark.parametrize(("heads", "kv"), [(9, 3), (10, 2), (12, 2), (14, 2), (16, 1), (32, 2), (4, 4)])
def test_any_group_size(heads: int, kv: int) -> None:
    assert graph(num_attention_heads=heads, num_key_value_heads=kv).group == heads // kv


def test_end_of_sequence_ids_of_the_generation_config_win() -> None:
    assert graph(eos_token_id=[2, 3, 2]).eos_ids == (2, 3)
    assert graph_from_config(BASE, "x", {"eos_token_id": [7, 9]}).eos_ids == (7, 9)


def test_yarn_factor_and_original_context() -> None:
    explicit = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert graph(rope_scaling=explicit).rope == graph(rope_scaling={**explicit, "factor": None, "finetuned": True}).rope
    top = graph(rope_scaling={"rope_type": "yarn", "factor": 4.0}, original_max_position_embeddings=32)
    assert top.rope == graph(rope_scaling=explicit).rope
    assert graph(rope_scaling={"rope_type": "yarn", "factor": 4.0}).rope.original_context == 128


# Trait -> (the name that the refusal must give, a config with it)
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "attention bias": ("attention_bias", {"attention_bias": True}),
    "mlp bias": ("mlp_bias", {"mlp_bias": True}),
    "own code": ("auto_map", {"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}),
    "own code before anything else": ("auto_map", {"auto_map": {"AutoModel": "m.E"}, "model_type": "evil"}),
    "sliding window": ("sliding_window", {"sliding_window": 64}),
    "sliding layers": ("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
    "linear attention layers": ("layer_types", {"layer_types": ["full_attention", "linear_attention"]}),
    "partial rotary": ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    "partial rotary in rope": (
        "partial_rotary_factor",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    "interleaved rotary": ("rope_interleaved", {"rope_interleaved": True}),
    "final soft-cap": ("final_logit_softcapping", {"final_logit_softcapping": 30.0}),
    "attention soft-cap": ("attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    "logit scale": ("logit_scale", {"logit_scale": 0.0625}),
    "logits scaling": ("logits_scaling", {"logits_scaling": 8.0}),
    "embedding multiplier": ("embedding_multiplier", {"embedding_multiplier": 12.0}),
    "residual multiplier": ("residual_multiplier", {"residual_multiplier": 0.22}),
    "attention multiplier": ("attention_multiplier", {"attention_multiplier": 0.0078125}),
    "q/k norm": ("use_qk_norm", {"use_qk_norm": True}),
    "experts": ("num_local_experts", {"num_local_experts": 8}),
    "latent attention": ("kv_lora_rank", {"kv_lora_rank": 512}),
    "quantised": ("quantization_config", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "encoder": ("is_encoder_decoder", {"is_encoder_decoder": True}),
    "activation": ("hidden_act", {"hidden_act": "gelu"}),
    "unknown field": ("'residual_dropout_scale'", {"residual_dropout_scale": 0.5}),
    "family": ("model_type", {"model_type": "qwen3"}),
    "no family": ("model_type", {"model_type": ...}),
    "unhashable family": ("model_type", {"model_type": ["llama"]}),
    "classifier": ("architectures", {"architectures": ["LlamaForSequenceClassification"]}),
    "float8": ("dtype", {"torch_dtype": "float8_e4m3fn"}),
    "unknown rope": ("rope_type", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}),
    "two ropes": ("type and rope_type", {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}),
    "two spellings": (
        "rope_parameters and rope_scaling",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    ),
    "rope by layer": ("rope_parameters", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "unused rope key": ("factor", {"rope_scaling": {"rope_type": "default", "factor": 8.0}}),
    "unknown rope key": ("short_factor", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "short_factor": [1.0]}}),
    "original context unused": ("original_max_position_embeddings", {"original_max_position_embeddings": 64}),
    "true is not one": ("logit_scale", {"logit_scale": True}),
}


@pytest.mark.parametrize("trait", REFUSED)
def test_traits_are_refused_by_name(trait: str) -> None:
    name, changes = REFUSED[trait]
    with pytest.raises(ModelRefused) as e:
        graph(**changes)
    assert name in e.value.trait
    assert str(e.value).startswith("model refused: ")
    assert "required is" in str(e.value)


BROKEN: dict[str, dict[str, Any]] = {
    "hidden_size": {"hidden_size": ...},
    "vocab_size": {"vocab_size": "101"},
    "num_hidden_layers": {"num_hidden_layers": 0},
    "rms_norm_eps": {"rms_norm_eps": None},
    "max_position_embeddings": {"max_position_embeddings": ...},
    "n_heads": {"num_key_value_heads": 4},
    "head_dim": {"head_dim": 9},
    "required is a multiple": {"head_dim": None, "hidden_size": 37},
    "tie_word_embeddings": {"tie_word_embeddings": "yes"},
    "bos_id": {"bos_token_id": 101},
    "eos_token_id": {"eos_token_id": "</s>"},
    "has no factor": {"rope_scaling": {"rope_type": "linear"}},
    "no low_freq_factor": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "no original_max_position_embeddings": {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    },
    "rope.factor": {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
}


@pytest.mark.parametrize("field", BROKEN)
def test_impossible_numbers_are_a_broken_checkpoint(field: str) -> None:
    with pytest.raises(CheckpointError, match=field):
        graph(**BROKEN[field])


@pytest.mark.parametrize("window", [None, 128, 4096])
def test_a_window_that_covers_the_context_changes_nothing(window: int | None) -> None:
    g = graph(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=window)
    assert g.family == "mistral"


def test_every_field_that_transformers_writes_is_known() -> None:
    transformers = pytest.importorskip("transformers")
    for family in ("Llama", "Mistral"):
        config = (
            getattr(transformers, f"{family}Config")(sliding_window=None) if family == "Mistral" else transformers.LlamaConfig()
        )
        assert graph_from_config(config, "x").hidden_size == 4096
        assert graph_from_config(config.to_dict(), "x") == graph_from_config(config, "x")
