"""The judge's very weights in the formats that rivals read: a HuggingFace folder, or a GGUF file.

They are removed when the run ends, unless AMK_RIVALS_FILES names a folder: weights drawn from the same seed are written once then.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from amk_core.graph import ModelGraph

if TYPE_CHECKING:
    from amk_bench.baselines.quantised import Quantised, TorchMatrix

WRITERS = 4  # files written at a time


def place(shared: dict[str, Any], graph: ModelGraph) -> Path:
    """The folder of these weights' files: in AMK_RIVALS_FILES, where the next run finds them, else a temporary one."""
    if "rival files" not in shared:
        kept, origin = os.environ.get("AMK_RIVALS_FILES"), getattr(shared.get("weights"), "origin", "")
        if kept and origin.startswith("random weights"):
            known = hashlib.sha256(f"{graph!r} {origin}".encode()).hexdigest()[:16]
            folder = Path(kept) / f"{graph.name}-{known}"
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(tempfile.mkdtemp(prefix="amk-rivals-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        shared["rival files"] = folder
    found: Path = shared["rival files"]
    return found


def once(target: Path, mark: str, make: Callable[[Path], object]) -> Path:
    """``target``, a file or a folder, made by ``make`` unless it is whole, which the file ``mark`` in it says ("": it is the file).

    Runs side by side want the same weights: one writes them, the others wait.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / mark if mark else target).exists():
            make(target)
    return target


class NoLayout(ValueError):
    """Quantised weights that a layout cannot hold; the message says what it takes."""


def gptq_parts(m: TorchMatrix) -> dict[str, Any]:
    """A quantised matrix [N, K] in the public layout of GPTQ, by suffix; see :mod:`amk_core.quant.packed_layers`.

    Raises:
        NoLayout: zero points or minima, a shorter last group, sizes that do not fill words.
    """
    import torch

    (n, k), fmt = m.codes.shape, m.format
    per, group = 32 // fmt.bits, fmt.group or k
    if fmt.kind != "sym" or k % group or n % per or k % per:
        raise NoLayout(f"{n} x {k} in {fmt}; required are a symmetric format, whole groups and multiples of {per}")
    codes = (m.codes.int() + (128 if fmt.bits == 8 else 0)).t().reshape(k // per, per, n)
    words = torch.zeros(k // per, n, dtype=torch.int32, device=codes.device)
    for i in range(per):
        words |= codes[:, i] << fmt.bits * i
    zero = sum(((1 << fmt.bits - 1) - 1) << fmt.bits * i for i in range(per))  # one less than the middle code
    return {
        "qweight": words,
        "qzeros": torch.full((k // group, n // per), zero, dtype=torch.int32),
        "scales": m.scale.t(),
        "g_idx": torch.arange(k, dtype=torch.int32) // group,
    }


def gptq_folder(live: Any, quantised: Quantised, folder: Path) -> Path:
    """As :func:`hf_folder`, with the matrices of the layers as GPTQ has them; the head stands in full precision, as it is there.

    Raises NoLayout with the name of the first matrix that does not fit.
    """
    fmt = quantised.config.layers
    parts = {}
    for name, m in zip(quantised.exact(), quantised.parts().values(), strict=True):
        if name == "lm_head":
            continue
        try:
            parts[name] = gptq_parts(m)
        except NoLayout as error:
            raise NoLayout(f"{name}: {error}") from None
    config = {
        "quant_method": "gptq", "bits": fmt.bits, "group_size": fmt.group or -1, "desc_act": False, "sym": True,
        "lm_head": False, "checkpoint_format": "gptq",
    }  # fmt: skip
    return hf_folder(live, folder, parts, config)


def hf_folder(
    live: Any, folder: Path, packed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), quantization: Any = None
) -> Path:  # fmt: skip
    """config.json and safetensors of a live transformers model, a file a layer; tied heads are left out.

    ``packed``: tensors by suffix in the stead of some modules' weights, which ``quantization`` describes in the configuration.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(live.config.to_json_string(use_diff=False))
    config.pop("quantization_config", None)
    if quantization is not None:
        config["quantization_config"] = quantization
    config |= {"architectures": [type(live).__name__], "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    tied = bool(live.config.tie_word_embeddings)
    groups: dict[str, dict[str, Any]] = {}
    for name, tensor in live.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        parts, module = name.split("."), name.removesuffix(".weight")
        mine = groups.setdefault(parts[2] if parts[1] == "layers" else "rest", {})
        mine |= {f"{module}.{k}": t for k, t in packed[module].items()} if module in packed else {name: tensor}
    names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(len(groups))]

    def write(file: str, tensors: dict[str, Any]) -> None:
        # Fused matrices are views of one another's memory; a file has each on its own.
        save_file({n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}, folder / file, {"format": "pt"})

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(write, names, groups.values()))
    where = {name: file for file, tensors in zip(names, groups.values(), strict=True) for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    # Last: a folder that has it is whole.
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def interleaved(matrix: Any, heads: int) -> Any:
    """Rows of a Q or K matrix [heads * d, h] in GGUF's order: rotated pairs beside each other, where HuggingFace has halves."""
    d = matrix.shape[0] // heads
    return matrix.view(heads, 2, d // 2, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def tensors_of(graph: ModelGraph, live: Any) -> Iterator[tuple[str, Any]]:
    """GGUF names and tensors of a live model."""
    state = live.state_dict()
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    if not graph.tied_head:
        yield "output.weight", state["lm_head.weight"]
    for i in range(graph.n_layers):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        yield b + "attn_norm.weight", state[p + "input_layernorm.weight"]
        yield b + "attn_q.weight", interleaved(state[p + "self_attn.q_proj.weight"], graph.n_heads)
        yield b + "attn_k.weight", interleaved(state[p + "self_attn.k_proj.weight"], graph.n_kv_heads)
        yield b + "attn_v.weight", state[p + "self_attn.v_proj.weight"]
        yield b + "attn_output.weight", state[p + "self_attn.o_proj.weight"]
        yield b + "ffn_norm.weight", state[p + "post_attention_layernorm.weight"]
        yield b + "ffn_gate.weight", state[p + "mlp.gate_proj.weight"]
        yield b + "ffn_up.weight", state[p + "mlp.up_proj.weight"]
        yield b + "ffn_down.weight", state[p + "mlp.down_proj.weight"]


def rope_divisors(graph: ModelGraph) -> np.ndarray[Any, Any]:
    """By how much llama3 scaling slows each rotated pair, float32 [head_dim / 2]."""
    from amk_core.importer.rope import inverse_frequencies

    spec = graph.rope
    plain = 1.0 / spec.theta ** (np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim)
    slowed, _ = inverse_frequencies(spec)
    out: np.ndarray[Any, Any] = (plain / slowed.double().numpy()).astype(np.float32)
    return out


def gguf_file(graph: ModelGraph, live: Any, path: Path) -> Path:
    """A GGUF file with the model's matrices in bf16 and norms in float32, without a tokenizer.

    Raises ValueError for a rotary kind that the format has no fields for.
    """
    import gguf
    import torch

    if graph.rope.kind not in ("default", "llama3"):
        raise ValueError(f"{graph.name}: rotary kind {graph.rope.kind} is not written to GGUF here")
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), "llama")
    writer.add_name(graph.name)
    writer.add_block_count(graph.n_layers)
    writer.add_context_length(graph.context)
    writer.add_embedding_length(graph.hidden_size)
    writer.add_feed_forward_length(graph.intermediate_size)
    writer.add_head_count(graph.n_heads)
    writer.add_head_count_kv(graph.n_kv_heads)
    writer.add_key_length(graph.head_dim)
    writer.add_value_length(graph.head_dim)
    writer.add_rope_dimension_count(graph.head_dim)
    writer.add_layer_norm_rms_eps(graph.norm_eps)
    writer.add_rope_freq_base(graph.rope.theta)
    writer.add_vocab_size(graph.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")
    divisors = [rope_divisors(graph)] if graph.rope.kind == "llama3" else []
    for array in divisors:
        writer.add_tensor_info("rope_freqs.weight", array.shape, array.dtype, array.nbytes)
    for name, tensor in tensors_of(graph, live):
        if tensor.ndim == 1:
            writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), 4 * tensor.numel())
        else:
            rows, columns = tensor.shape
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor_info(name, (rows, 2 * columns), np.dtype(np.uint8), 2 * tensor.numel(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for array in divisors:
        writer.write_tensor_data(array)
    for _, tensor in tensors_of(graph, live):  # one at a time: together they fill a machine's memory once more
        host = tensor.detach().to("cpu")
        host = host.float() if host.ndim == 1 else host.to(torch.bfloat16).contiguous().view(torch.uint8)
        writer.write_tensor_data(host.numpy())
    writer.close()
    part.replace(path)
    return path
