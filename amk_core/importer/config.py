"""config.json -> ModelGraph, by allowlist.

Every field is one of four: read below; required to be neutral (``NEUTRAL``: it would change the arithmetic); known not to change
the logits (``INERT``); or unknown, and then the model is refused.  Nothing of the model's own code is ever imported.
Both spellings of the rotary fields are read: ``rope_theta`` and ``rope_scaling`` (transformers 4), ``rope_parameters`` (5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amk_core.graph import GraphError, ModelGraph, RopeSpec
from amk_core.importer.errors import CheckpointError, ModelRefused

DEFAULT_THETA = 10000.0  # of the Llama architecture: the configs of Llama 1 and 2 do not state it
FAMILIES: Mapping[str, str] = MappingProxyType({"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"})
DTYPES: Mapping[str, str] = MappingProxyType({"float32": "f32", "bfloat16": "bf16", "float16": "f16"})

READ = frozenset({
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings", "bos_token_id", "eos_token_id",
    "dtype", "torch_dtype", "sliding_window", "layer_types",
})  # fmt: skip

# Trait -> the values at which it does nothing (None: absent or null).
_OFF: tuple[Any, ...] = (None, False)
_NONE: tuple[Any, ...] = (None, {}, [], 0)
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    # biases
    "attention_bias": _OFF, "mlp_bias": _OFF, "qkv_bias": _OFF, "bias": _OFF, "use_bias": _OFF, "use_qkv_bias": _OFF,
    "lm_head_bias": _OFF,
    # attention
    "use_sliding_window": _OFF, "attention_chunk_size": _NONE, "no_rope_layers": _NONE, "use_qk_norm": _OFF, "qk_norm": _OFF,
    "qk_layernorm": _OFF, "clip_qkv": _NONE, "is_causal": (None, True), "use_bidirectional_attention": _OFF, "alibi": _OFF,
    "attention_multiplier": (None,), "query_pre_attn_scalar": (None,), "softmax_scale": (None,), "pruned_heads": _NONE,
    # rotation
    "partial_rotary_factor": (None, 1), "rotary_pct": (None, 1), "rope_interleaved": _OFF, "rope_interleave": _OFF,
    # scales and caps
    "final_logit_softcapping": (None,), "attn_logit_softcapping": (None,), "logit_scale": (None, 1), "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1), "residual_multiplier": (None, 1), "scale_depth": (None,), "scale_emb": (None, 1),
    "dim_model_base": (None,),
    # mixture of experts, latent attention
    "num_local_experts": _NONE, "num_experts": _NONE, "n_routed_experts": _NONE, "num_experts_per_tok": _NONE,
    "moe_intermediate_size": _NONE, "kv_lora_rank": _NONE, "q_lora_rank": _NONE, "qk_rope_head_dim": _NONE,
    # structure
    "is_encoder_decoder": _OFF, "add_cross_attention": _OFF, "cross_attention_hidden_size": _NONE, "use_parallel_residual": _OFF,
    "per_layer_config": _NONE, "tie_encoder_decoder": _OFF, "vision_config": _NONE, "text_config": _NONE,
    # storage and code
    "quantization_config": _NONE, "compression_config": _NONE, "custom_pipelines": _NONE, "trust_remote_code": _OFF,
})  # fmt: skip
_WHY: Mapping[str, str] = MappingProxyType({
    "auto_map": "The model brings its own code, which is never executed.",
    "quantization_config": "Load it with weights='stored' (gptq and awq), or give the unquantised checkpoint or a GGUF file.",
    "compression_config": "Give the unquantised checkpoint, or a GGUF file.",
})  # fmt: skip

# Fields that never change the logits of a forward pass: training, bookkeeping, outputs, caching, tokens and sampling defaults.
INERT = frozenset({
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "transformers.js_config", "torchscript",
    "is_llama_config", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_experts_implementation",
    "unsloth_version", "unsloth_fixed", "model_name", "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "classifier_dropout", "gradient_checkpointing", "use_cache", "cache_implementation", "pretraining_tp",
    "tp_plan", "base_model_tp_plan", "base_model_pp_plan", "chunk_size_feed_forward", "is_decoder", "output_attentions",
    "output_hidden_states", "output_scores", "output_router_logits", "return_dict", "return_dict_in_generate",
    "tie_last_hidden_states", "use_bfloat16", "tf_legacy_loss", "id2label", "label2id", "num_labels", "problem_type",
    "finetuning_task", "task_specific_params", "tokenizer_class", "prefix", "pad_token_id", "sep_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "max_sequence_length", "max_new_tokens",
})  # fmt: skip

# Keys of the rotary dictionary that each kind reads; "finetuned" is bookkeeping of the first yarn models.
_ROPE_KEYS: Mapping[str, frozenset[str]] = MappingProxyType({
    kind: frozenset(f"type rope_type rope_theta partial_rotary_factor {keys}".split())
    for kind, keys in {
        "default": "",
        "linear": "factor",
        "dynamic": "factor",
        "yarn": "factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale mscale_all_dim truncate "
        "finetuned",
        "llama3": "factor original_max_position_embeddings low_freq_factor high_freq_factor",
    }.items()
})  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model directory."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}. A model directory holds config.json.") from e
    except ValueError as e:
        raise CheckpointError(f"{path} is not valid JSON ({e}). Fetch the model again.") from e
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}; required is a JSON object. Fetch the model again.")
    return config


def graph_from_config(config: Any, name: str, generation: Mapping[str, Any] | None = None) -> ModelGraph:
    """The graph that a config (a dict, or a transformers config) describes.

    ``generation`` is the content of generation_config.json; its end-of-sequence ids take precedence, as in generation.
    Raises ModelRefused, naming the field; CheckpointError where the numbers contradict each other."""
    c: dict[str, Any] = dict(config) if isinstance(config, Mapping) else config.to_dict()
    family = _family(c)
    _check_fields(c)
    hidden, n_layers, n_heads = (_count(c, k) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    n_kv = n_heads if c.get("num_key_value_heads") is None else _count(c, "num_key_value_heads")
    if c.get("head_dim") is not None:
        head_dim = _count(c, "head_dim")
    elif hidden % n_heads == 0:
        head_dim = hidden // n_heads
    else:
        raise CheckpointError(
            f"config.json: hidden_size is {hidden} and num_attention_heads {n_heads}, with no head_dim; required is a multiple. "
            f"Fetch config.json again."
        )
    context = _count(c, "max_position_embeddings")
    _check_windows(c, context, n_layers)
    if (act := c.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ModelRefused("hidden_act", act, "'silu'")
    tied = c.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise CheckpointError(f"config.json: tie_word_embeddings is {tied!r}; required is true or false.")
    eos = (generation or {}).get("eos_token_id")
    try:
        return ModelGraph(
            name=name, family=family, vocab_size=_count(c, "vocab_size"), hidden_size=hidden,
            intermediate_size=_count(c, "intermediate_size"), n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv,
            head_dim=head_dim, norm_eps=_number(c, "rms_norm_eps"), tied_head=tied, context=context,
            rope=_rope(c, head_dim, context), attn_scale=head_dim**-0.5, bos_id=next(iter(_token_ids(c, "bos_token_id")), None),
            eos_ids=_token_ids(c, "eos_token_id") if eos is None else _token_ids(generation or {}, "eos_token_id"),
            stored_dtype=_dtype(c),
        )  # fmt: skip
    except GraphError as e:
        raise CheckpointError(f"config.json does not describe a model of the Llama family: {e}") from e


def _family(c: Mapping[str, Any]) -> str:
    family = c.get("model_type")
    # before anything else, so that a model with its own code is refused for that
    if c.get("auto_map"):
        raise ModelRefused("auto_map", c["auto_map"], "absent", _WHY["auto_map"])
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelRefused("model_type", family, "one of " + ", ".join(FAMILIES), "This version computes the Llama family proper.")
    wanted = FAMILIES[family]
    architectures = c.get("architectures")
    if architectures not in (None, [], [wanted], (wanted,)):
        raise ModelRefused("architectures", architectures, f"[{wanted!r}]", "Only language models with their head are run.")
    return family


def _check_fields(c: Mapping[str, Any]) -> None:
    for field, value in c.items():
        if field in READ or field in INERT:
            continue
        if field not in NEUTRAL:
            raise ModelRefused(
                f"unknown config field {field!r}", value, "a field that is known to change the logits or not to",
                "If it does not change them, remove it from config.json.",
            )  # fmt: skip
        neutral = NEUTRAL[field]
        # True == 1 in Python: compare types of booleans too
        if not any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral):
            raise ModelRefused(field, value, " or ".join("absent" if n is None else repr(n) for n in neutral), _WHY.get(field, ""))


def _check_windows(c: Mapping[str, Any], context: int, n_layers: int) -> None:
    window = c.get("sliding_window")
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < context):
        raise ModelRefused("sliding_window", window, f"null, or at least max_position_embeddings = {context}")
    layers = c.get("layer_types")
    if layers is not None and (len(layers) != n_layers or set(layers) - {"full_attention", "sliding_attention"}):
        raise ModelRefused("layer_types", layers, f"'full_attention' in each of {n_layers} layers")
    if layers is not None and "sliding_attention" in layers and window is None:
        raise ModelRefused("layer_types", layers, "'full_attention' everywhere, or a sliding_window that covers the context")


def _rope(c: Mapping[str, Any], head_dim: int, context: int) -> RopeSpec:
    given = [(k, c[k]) for k in ("rope_parameters", "rope_scaling") if c.get(k)]
    for field, d in given:
        if not isinstance(d, Mapping):
            raise ModelRefused(field, d, "null or an object")
        if any(isinstance(x, Mapping) for x in d.values()):
            raise ModelRefused(field, d, "one set of values for all layers")
    r: dict[str, Any] = {}
    for _, d in reversed(given):
        for key, x in d.items():
            if key in r and r[key] != x:
                raise ModelRefused(
                    f"rope_parameters and rope_scaling, which disagree on {key}", (r[key], x), "the same value in both"
                )
            r[key] = x
    r = {k: x for k, x in r.items() if x is not None}
    if r.get("type", r.get("rope_type")) != r.get("rope_type", r.get("type")):
        raise ModelRefused("rope_scaling type and rope_type", (r["type"], r["rope_type"]), "the same value in both")
    kind = r.get("rope_type", r.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise ModelRefused("rope_type", kind, "one of " + ", ".join(_ROPE_KEYS))
    if extra := sorted(set(r) - _ROPE_KEYS[kind]):
        raise ModelRefused(f"rope_type {kind!r} with {extra[0]}", r[extra[0]], "absent: this kind does not use it")
    if r.get("partial_rotary_factor", 1) != 1:
        raise ModelRefused("partial_rotary_factor", r["partial_rotary_factor"], "1 or absent")
    thetas = {_number(d, "rope_theta") for d in (c, r) if d.get("rope_theta") is not None}
    if len(thetas) > 1:
        raise ModelRefused("rope_theta, given twice", sorted(thetas), "the same value in both places")
    original = _original_context(c, r, kind, context)
    factor = r.get("factor")
    if factor is None and kind == "yarn":
        factor = context / (original or context)
    if factor is None and kind != "default":
        raise CheckpointError(f"config.json: rope_type {kind!r} has no factor. Fetch config.json again from where the model came.")
    if kind == "llama3":
        for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            if key not in r and not (key.startswith("original") and original is not None):
                raise CheckpointError(
                    f"config.json: rope_type 'llama3' has no {key}. Fetch config.json again from where the model came."
                )
    plain = ("low_freq_factor", "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim")
    numbers = {k: _number(r, k) for k in plain if k in r}
    # a beta of 0 means the default, as the reference reads it
    numbers |= {k: _number(r, k) for k in ("beta_fast", "beta_slow") if r.get(k)}
    if factor is not None:
        numbers["factor"] = _number({"factor": factor}, "factor")
    theta = next(iter(thetas), DEFAULT_THETA)
    truncate = bool(r.get("truncate", True))
    return RopeSpec(kind, theta, head_dim, context, original_context=original, truncate=truncate, **numbers)


def _original_context(c: Mapping[str, Any], r: Mapping[str, Any], kind: str, context: int) -> int | None:
    key = "original_max_position_embeddings"
    given = [_count(d, key) for d in (c, r) if d.get(key) is not None]
    if len(set(given)) > 1:
        raise ModelRefused(f"{key}, given twice", given, "the same value in both places")
    if given and kind not in ("yarn", "llama3"):
        raise ModelRefused(f"rope_type {kind!r} with {key}", given[0], "absent: this kind does not use it")
    if given:
        return given[0]
    return context if kind == "yarn" else None  # the reference's default


def _count(c: Mapping[str, Any], field: str) -> int:
    x = c.get(field)
    if isinstance(x, float) and x.is_integer():
        x = int(x)
    if not isinstance(x, int) or isinstance(x, bool) or x < 1:
        raise CheckpointError(f"config.json: {field} is {x!r}; required is a positive integer. Fetch config.json again.")
    return x


def _number(c: Mapping[str, Any], field: str) -> float:
    x = c.get(field)
    if not isinstance(x, int | float) or isinstance(x, bool):
        raise CheckpointError(f"config.json: {field} is {x!r}; required is a number. Fetch config.json again.")
    return float(x)


def _token_ids(c: Mapping[str, Any], field: str) -> tuple[int, ...]:
    x = c.get(field)
    ids = [] if x is None else list(x) if isinstance(x, list | tuple) else [x]
    if any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise CheckpointError(f"config.json: {field} is {x!r}; required is a token id or a list of them.")
    return tuple(dict.fromkeys(i for i in ids if i >= 0))  # -1 stands for "none" in older configs


def _dtype(c: Mapping[str, Any]) -> str:
    """The declared dtype; what the tensors are stored in decides (see weights.py), a model without tensors keeps this."""
    x = c.get("dtype") or c.get("torch_dtype") or "float32"
    text = str(x).removeprefix("torch.")
    if text == "auto":
        return "f32"
    if text not in DTYPES:
        raise ModelRefused("dtype", text, "one of " + ", ".join(DTYPES))
    return DTYPES[text]
