"""GGUF -> an ordinary float32 safetensors directory, once.

GGUF files of the Llama architecture store the rows of Q and K in the order of interleaved rotary pairs; HuggingFace's half-split
order is restored here, with the KV head count for K.  Metadata and tensors are read by allowlist: whatever would change the
arithmetic and is not understood is refused by name.  Dequantisation is the ``gguf`` package's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.importer.errors import CheckpointError, ModelRefused

SHARD_BYTES = 1 << 30  # one shard is held in memory while it is written

_PER_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.weight")
ROPE_FREQS = "rope_freqs.weight"

# Metadata of the llama architecture that _config reads; everything else under "llama." is refused by name.
_UNDERSTOOD = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "expert_count", "expert_used_count",
}  # fmt: skip
# (factor, low, high, original context) of the published llama3 scalings; GGUF keeps only the table that they give.
LLAMA3_SCALINGS = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))


def convert(source: Path, out: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Write ``config.json``, ``model*.safetensors`` (float32) and the tokenizer files of a GGUF file into the empty folder ``out``.

    Raises :class:`ModelRefused` for a trait that is not computed, :class:`CheckpointError` for a file that cannot be read."""
    reader = open_reader(source)
    tensors = {t.name: t for t in reader.tensors}
    config = _config(_metadata(reader), tensors)
    names = {name: hf_name(name, config) for name in tensors if name != ROPE_FREQS}
    say(f"converting {len(names)} tensors to float32 safetensors")
    stream = ((hf, tensor_values(tensors[name], config)) for name, hf in names.items())
    _write_weights(stream, {hf: shape_of(tensors[name]) for name, hf in names.items()}, out)
    _write_headers(source, reader, config, out, say)


def write_headers(source: Path, out: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """What :func:`convert` writes besides the weights: config and tokenizer, into the empty folder ``out``."""
    reader = open_reader(source)
    _write_headers(source, reader, _config(_metadata(reader), {t.name: t for t in reader.tensors}), out, say)


def _write_headers(source: Path, reader: Any, config: Mapping[str, Any], out: Path, say: Callable[[str], None]) -> None:
    from amk_core.importer import gguf_tokenizer

    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    eos = config["eos_token_id"]
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": eos, "pad_token_id": config["pad_token_id"]}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    say("writing the tokenizer")
    gguf_tokenizer.write(source, _metadata(reader), out)


def open_reader(source: Path) -> Any:
    """The ``gguf`` package's reader of a file (memory-mapped); CheckpointError where the file is not a whole GGUF file."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except OSError as e:
        raise CheckpointError(f"{source} cannot be read: {e.strerror or e}.") from e
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{source} is not a readable GGUF file ({e}); it may be truncated. Fetch or copy it again.") from e
    if end > source.stat().st_size:
        raise CheckpointError(f"{source} is truncated: {source.stat().st_size} bytes, {end} expected. Fetch or copy it again.")
    return reader


def _metadata(reader: Any) -> dict[str, Any]:
    return {name: f.contents() for name, f in reader.fields.items() if not name.startswith("GGUF.")}


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Shape of a tensor, outermost dimension first."""
    return tuple(int(n) for n in reversed(tensor.shape))  # GGUF lists the innermost dimension first


def _config(meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the file, by allowlist."""
    arch = meta.get("general.architecture")
    if arch != "llama":
        raise ModelRefused("general.architecture", arch, "'llama'", "Use a GGUF file of a Llama-family model.")
    if (kind := meta.get("general.type", "model")) != "model":
        raise ModelRefused("general.type", kind, "'model'", "Adapters and projectors are not models.")
    for key in meta:
        if key.startswith("llama.") and key.removeprefix("llama.") not in _UNDERSTOOD:
            raise ModelRefused(key, meta[key], "absent", "This version does not compute it.")
    if meta.get("llama.expert_count", 0):
        raise ModelRefused("expert_count (mixture of experts)", meta["llama.expert_count"], "0")
    hidden, n_heads = int(_need(meta, "embedding_length")), _uniform(meta, "attention.head_count")
    n_kv = _uniform(meta, "attention.head_count_kv") if "llama.attention.head_count_kv" in meta else n_heads
    head_dim = int(meta.get("llama.attention.key_length", hidden // n_heads))
    for field, required in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        if (seen := meta.get(f"llama.{field}", required)) != required:
            raise ModelRefused(f"llama.{field}", seen, f"{required}, the size of a whole head")
    vocab = shape_of(tensors["token_embd.weight"])[0] if "token_embd.weight" in tensors else 0
    if meta.get("llama.vocab_size", vocab) != vocab:
        raise CheckpointError(f"llama.vocab_size is {meta['llama.vocab_size']}, token_embd.weight has {vocab} rows.")
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}
    rope: dict[str, Any] = {"rope_theta": _float(meta.get("llama.rope.freq_base", 10000.0)), **_rope_scaling(meta)}
    if ROPE_FREQS in tensors:
        if rope["rope_type"] != "default":
            raise ModelRefused(ROPE_FREQS, f"present beside rope.scaling.type {rope['rope_type']}", "one kind of scaling")
        rope |= _llama3(tensors[ROPE_FREQS], rope["rope_theta"], head_dim)
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": _uniform(meta, "feed_forward_length"), "num_hidden_layers": int(_need(meta, "block_count")),
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv, "head_dim": head_dim, "hidden_act": "silu",
        "max_position_embeddings": int(_need(meta, "context_length")),
        "rms_norm_eps": _float(_need(meta, "attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in tensors, "attention_bias": False, "mlp_bias": False,
        # the spelling of transformers 4, which transformers 5 reads too
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"},
        "bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["pad"], "torch_dtype": "float32",
    }  # fmt: skip


def _need(meta: Mapping[str, Any], key: str) -> Any:
    if f"llama.{key}" not in meta:
        raise CheckpointError(f"the GGUF file has no llama.{key}, which every Llama model has. Convert the model to GGUF again.")
    return meta[f"llama.{key}"]


def _uniform(meta: Mapping[str, Any], key: str) -> int:
    x = _need(meta, key)
    if isinstance(x, list):
        if len(set(x)) != 1:
            raise ModelRefused(f"llama.{key}", x, "the same in all layers")
        x = x[0]
    return int(x)


def _float(x: float) -> float:
    """The shortest decimal that reads back as the stored float32 (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(x)))


def _rope_scaling(meta: Mapping[str, Any]) -> dict[str, Any]:
    kind = meta.get("llama.rope.scaling.type", "linear" if meta.get("llama.rope.scale_linear", 1.0) != 1.0 else "none")
    factor = _float(meta.get("llama.rope.scaling.factor", meta.get("llama.rope.scale_linear", 1.0)))
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and "llama.rope.scaling.original_context_length" in meta:
        original = int(meta["llama.rope.scaling.original_context_length"])
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise ModelRefused("llama.rope.scaling.type", kind, "none, linear, or yarn with its original_context_length")


def _llama3(tensor: Any, theta: float, head_dim: int) -> dict[str, Any]:
    """The llama3 scaling whose divisors are the table ``rope_freqs``; HuggingFace's GGUF reader drops the table silently."""
    table = np.asarray(_dequantized(tensor), np.float64)
    inv_freq = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    for factor, low, high, original in LLAMA3_SCALINGS:
        wavelength = 2 * math.pi / inv_freq
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        divisors = 1 / ((1 - smooth) / factor + smooth)
        if table.shape == divisors.shape and np.allclose(table, divisors, rtol=1e-4, atol=0):
            return {
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }  # fmt: skip
    raise ModelRefused(
        ROPE_FREQS, "a table of rotary divisors that is not a published llama3 one", "factor 8 or 32 over 8192 positions",
        "Use the safetensors form of this model.",
    )  # fmt: skip


def hf_name(name: str, config: Mapping[str, Any]) -> str:
    """The state-dict key of a GGUF tensor; ModelRefused for one that the family does not have."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    m = _LAYER_TENSOR.fullmatch(name)
    if m and m[2] in _PER_LAYER and int(m[1]) < config["num_hidden_layers"]:
        return f"model.layers.{m[1]}.{_PER_LAYER[m[2]]}.weight"
    hint = "It is a bias; this version has none." if name.endswith(".bias") else "Every tensor must be understood."
    raise ModelRefused(f"tensor {name}", "present", "absent", hint)


def _dequantized(tensor: Any) -> npt.NDArray[np.float32]:
    from gguf.quants import dequantize

    try:
        x = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as e:
        raise ModelRefused(f"GGUF type of {tensor.name}", tensor.tensor_type.name, "one that the gguf package decodes") from e
    return np.ascontiguousarray(x, np.float32).reshape(shape_of(tensor))


def half_split_rows(w: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of a [heads * d, k] matrix from interleaved pairs (2i, 2i+1) to HuggingFace's halves (i, i + d/2) in each head."""
    rows, k = w.shape
    return np.ascontiguousarray(w.reshape(heads, rows // heads // 2, 2, k).swapaxes(1, 2)).reshape(rows, k)


def row_order(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """The rows of a tensor of this name in HuggingFace's order; None where they are in order already.

    Raises:
        CheckpointError: Q or K of other sizes than its heads have.
    """
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return None
    if len(shape) != 2 or shape[0] != config[heads] * config["head_dim"]:
        raise CheckpointError(f"{name} has shape {shape}; required are {config[heads]} heads of {config['head_dim']} rows.")
    return half_split_rows(np.arange(shape[0])[:, None], config[heads])[:, 0]


def tensor_values(tensor: Any, config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """A tensor de-quantised, its rows in HuggingFace's order."""
    order = row_order(tensor.name, shape_of(tensor), config)
    x = _dequantized(tensor)
    return x if order is None else x[order]


def _write_weights(stream: Iterator[tuple[str, npt.NDArray[np.float32]]], shapes: Mapping[str, tuple[int, ...]], out: Path) -> None:
    """One file, or shards of about SHARD_BYTES with an index."""
    from safetensors.numpy import save_file

    shard_of: dict[str, int] = {}
    used = shard = 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        if used and used + size > SHARD_BYTES:
            shard, used = shard + 1, 0
        shard_of[name], used = shard, used + size
    count = shard + 1
    files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors" for i in range(count)]
    batch: dict[str, npt.NDArray[np.float32]] = {}
    current = 0
    for name, x in stream:
        if shard_of[name] != current:
            save_file(batch, out / files[current], metadata={"format": "pt"})
            batch, current = {}, shard_of[name]
        batch[name] = x
    save_file(batch, out / files[current], metadata={"format": "pt"})
    if count > 1:
        index = {
            "metadata": {"total_size": sum(4 * math.prod(s) for s in shapes.values())},
            "weight_map": {name: files[i] for name, i in shard_of.items()},
        }
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
