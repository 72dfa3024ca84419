"""WeightSource: the tensors of a model by canonical name, exactly as stored, read when asked for.

Canonical names: ``embed``, ``L{i}.attn_norm``, ``L{i}.q|k|v|o``, ``L{i}.mlp_norm``, ``L{i}.gate|up|down``, ``final_norm`` and
``head``.
Opening a source accounts for every key of the state dict: it is bound to a canonical name, known to carry nothing, or refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import DTYPE_BYTES, ModelGraph
from amk_core.importer.errors import CheckpointError, ModelRefused
from amk_core.importer.safetensors_file import NUMPY, SafetensorsFile

if TYPE_CHECKING:
    import torch

_EXPONENT: Mapping[str, int] = {"f32": 0x7F800000, "bf16": 0x7F80, "f16": 0x7C00}
_PIECE = 1 << 18
INDEX = "model.safetensors.index.json"
_LAYER: Mapping[str, str] = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "post_attention_layernorm": "mlp_norm", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}  # fmt: skip
_GLOBAL: Mapping[str, str] = {"model.embed_tokens.weight": "embed", "model.norm.weight": "final_norm", "lm_head.weight": "head"}
_SHORT: Mapping[str, str] = {short: key for table in (_LAYER, _GLOBAL) for key, short in table.items()}
_LAYER_KEY = re.compile(r"model\.layers\.(0|[1-9]\d*)\.(.+)\.weight")
# Part of a key -> the trait that it gives away.
_TRAITS = (
    (".bias", "a bias"), ("q_norm", "q/k norm"), ("k_norm", "q/k norm"), ("experts", "mixture of experts"), ("lora", "an adapter"),
    ("scale", "a quantised weight"), ("qweight", "a quantised weight"), ("absmax", "a quantised weight"),
)  # fmt: skip
# A buffer that old checkpoints carry; HuggingFace ignores it as well, the tables follow from the config.
_IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a state dict: dtype, shape, where it stands (for messages), and how to read it."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    where: str
    read: Callable[[], npt.NDArray[Any]]


class WeightSource:
    """The weights of one model.  Build it with :func:`from_directory` or :func:`from_model`."""

    def __init__(self, graph: ModelGraph, tensors: Iterable[StoredTensor], where: str) -> None:
        self.where = where
        self._by_name = _bind(graph, tensors, where)
        self._finite: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Canonical names in execution order; ``head`` only where it is stored of its own."""
        return tuple(self._by_name)

    def dtype(self, name: str) -> str:
        """f32, bf16 or f16."""
        return self._tensor(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def get(self, name: str) -> npt.NDArray[Any]:
        """The tensor as stored (float32, ml_dtypes.bfloat16 or float16; read-only where it is mapped from a file).

        ``head`` of a tied model is ``embed``.  KeyError for a name that the model does not have, CheckpointError for a tensor
        with a NaN or an infinity: every product with it would be one."""
        tensor = self._tensor(name)
        x = tensor.read()
        if tensor.key not in self._finite:
            if not _is_finite(x, tensor.dtype):
                raise CheckpointError(
                    f"{tensor.key} in {tensor.where} holds a NaN or an infinity; required are finite weights. A conversion to "
                    f"float16 overflows where a bfloat16 model has large values: use the original checkpoint."
                )
            self._finite.add(tensor.key)
        return x

    def stored_dtype(self) -> str:
        """The dtype in which most matrix bytes are stored."""
        size: Counter[str] = Counter()
        for t in self._by_name.values():
            if len(t.shape) == 2:
                size[t.dtype] += int(np.prod(t.shape)) * DTYPE_BYTES[t.dtype]
        return size.most_common(1)[0][0]

    def _tensor(self, name: str) -> StoredTensor:
        if name == "head" and "head" not in self._by_name:
            name = "embed"
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"{self.where} has no weight {name!r}; names are those of ModelGraph.weight_shapes()") from None

    def __repr__(self) -> str:
        return f"WeightSource({self.where!r}, {len(self._by_name)} tensors, {self.stored_dtype()})"


def canonical(key: str) -> str | None:
    """The canonical name of a state-dict key; None where the family has no such tensor."""
    if key in _GLOBAL:
        return _GLOBAL[key]
    m = _LAYER_KEY.fullmatch(key)
    return f"L{m[1]}.{_LAYER[m[2]]}" if m and m[2] in _LAYER else None


def state_dict_key(name: str) -> str:
    """The state-dict key of a canonical name; the inverse of :func:`canonical`."""
    if m := re.fullmatch(r"L(\d+)\.(\w+)", name):
        return f"model.layers.{m[1]}.{_SHORT[m[2]]}.weight"
    return _SHORT[name]


def _bind(graph: ModelGraph, tensors: Iterable[StoredTensor], where: str) -> dict[str, StoredTensor]:
    """Canonical name -> tensor, complete and of the right shapes; whatever does not fit is refused."""
    required = graph.weight_shapes()
    bound: dict[str, StoredTensor] = {}
    second_head: StoredTensor | None = None
    for t in tensors:
        if _IGNORED.fullmatch(t.key):
            continue
        name = canonical(t.key)
        if name == "head" and graph.tied_head:
            second_head = t
            continue
        if name is None or name not in required:
            raise _unexpected(t, graph)
        if t.dtype not in DTYPE_BYTES:
            raise ModelRefused(
                f"dtype of tensor {t.key}", t.dtype, "F32, BF16 or F16", "Give the unquantised checkpoint, or a GGUF file."
            )
        if t.shape != required[name]:
            raise CheckpointError(
                f"{t.key} in {t.where} has shape {list(t.shape)}; config.json requires {list(required[name])}. The config belongs "
                f"to another model, or the file is damaged: fetch both again."
            )
        bound[name] = t
    missing = [n for n in required if n not in bound]
    if missing == ["head"]:
        raise CheckpointError(
            f"{where} has no lm_head.weight, and config.json does not tie the head to the embedding (tie_word_embeddings is false "
            f"or absent). A shard is missing, or config.json should say tie_word_embeddings: true."
        )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{where} lacks {state_dict_key(missing[0])}{more}, which config.json requires. A shard is "
            f"missing: fetch the model again."
        )
    if second_head is not None:
        _check_second_head(second_head, bound["embed"])
    return {n: bound[n] for n in required}


def _unexpected(t: StoredTensor, graph: ModelGraph) -> ModelRefused:
    m = re.match(r"model\.layers\.(\d+)\.", t.key)
    if m and int(m[1]) >= graph.n_layers and canonical(t.key):
        return ModelRefused(f"tensor {t.key}", "present", f"absent in a model of {graph.n_layers} layers (config.json)")
    for part, trait in _TRAITS:
        if part in t.key:
            return ModelRefused(f"tensor {t.key} ({trait})", f"present in {t.where}", "absent", "This version does not compute it.")
    return ModelRefused(f"tensor {t.key}", f"present in {t.where}", "absent", "Every tensor of a checkpoint must be understood.")


def _is_finite(x: npt.NDArray[Any], dtype: str) -> bool:
    """True where no exponent is all ones; on the bits, in pieces that stay in the cache: the 16-bit types have no fast test."""
    bits: npt.NDArray[Any] = x.reshape(-1).view(np.uint32 if dtype == "f32" else np.uint16)
    ones: Any = bits.dtype.type(_EXPONENT[dtype])
    return not any(((bits[i : i + _PIECE] & ones) == ones).any() for i in range(0, len(bits), _PIECE))


def _check_second_head(head: StoredTensor, embed: StoredTensor) -> None:
    """A tied model may ship its head a second time, but not a different one: loaders disagree which of the two is meant."""
    same = head.shape == embed.shape and head.dtype == embed.dtype and np.array_equal(head.read(), embed.read())
    if not same:
        raise ModelRefused(
            "tie_word_embeddings", f"true, while {head.where} ships an lm_head.weight that differs from the embedding",
            "equal tensors, or tie_word_embeddings: false",
            "Decide which head is meant, and correct config.json or the checkpoint.",
        )  # fmt: skip


def from_directory(graph: ModelGraph, folder: Path) -> WeightSource:
    """The safetensors of a model directory: ``model.safetensors``, or shards by their index."""
    return WeightSource(graph, stored_tensors(folder), str(folder))


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """Every tensor of a model directory by its key; CheckpointError where files and index do not agree."""
    present = {f.name for f in folder.glob("*.safetensors")}
    index = folder / INDEX
    # adapters and "consolidated" copies of the same weights are other files; transformers looks at these names only
    shards = {n for n in present if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", n)}
    if index.is_file():
        weight_map = _index(index)
        files = set(weight_map.values())
        if missing := sorted(files - present):
            raise CheckpointError(f"{folder} lacks {', '.join(missing)}, which {INDEX} names. Fetch the model again.")
        if extra := sorted(shards - files):
            raise CheckpointError(
                f"{folder} holds {', '.join(extra)}, which {INDEX} does not name. Remove it, or fetch the model again."
            )
    elif "model.safetensors" in present:
        if len(shards) > 1:
            raise CheckpointError(
                f"{folder} holds model.safetensors and {len(shards) - 1} shards, but no {INDEX}. Remove one of the two."
            )
        weight_map, files = None, {"model.safetensors"}
    elif shards:
        raise CheckpointError(
            f"{folder} holds {len(shards)} shards but no {INDEX}, which says what belongs where. Fetch the model again."
        )
    elif any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise CheckpointError(
            f"{folder} holds pickled weights only (.bin or .pth); required are safetensors, because reading a pickle executes it. "
            f"Convert them once: transformers' from_pretrained, then save_pretrained."
        )
    else:
        raise CheckpointError(f"{folder} holds no model.safetensors and no {INDEX}. Fetch the model again.")
    out: dict[str, StoredTensor] = {}
    for name in sorted(files):
        file = SafetensorsFile(folder / name)
        for key, e in file.entries.items():
            if key in out:
                raise CheckpointError(f"{key} stands in both {out[key].where} and {name}; required is one. Fetch the model again.")
            if weight_map is not None and weight_map.get(key) != name:
                seen = f"puts it into {weight_map[key]}" if key in weight_map else "does not name it"
                raise CheckpointError(f"{name} holds {key}, but {INDEX} {seen}. Fetch the model again.")
            out[key] = StoredTensor(key, e.dtype, e.shape, name, lambda file=file, key=key: file.read(key))  # type: ignore[misc]
    if weight_map is not None and (lost := sorted(set(weight_map) - set(out))):
        raise CheckpointError(f"{weight_map[lost[0]]} does not hold {lost[0]}, which {INDEX} puts there. Fetch the model again.")
    return list(out.values())


def _index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        # a path in place of a name could point outside the model
        ok = weight_map and all(isinstance(k, str) and Path(v).name == v for k, v in weight_map.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{path} cannot be read as an index ({type(e).__name__}: {e}). Fetch the model again.") from e
    if not ok:
        raise CheckpointError(f"{path} has no weight_map of file names. Fetch the model again.")
    return dict(weight_map)


def from_model(graph: ModelGraph, model: torch.nn.Module) -> WeightSource:
    """The parameters of a live transformers model, on whatever device; CPU tensors are not copied."""
    where = f"the live {type(model).__name__}"
    stored = []
    for key, tensor in model.state_dict().items():
        dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(
            str(tensor.dtype).removeprefix("torch."), str(tensor.dtype)
        )
        if tensor.is_meta:
            raise CheckpointError(f"{key} of {where} is on the meta device and holds no values. Load the model without offloading.")
        stored.append(StoredTensor(key, dtype, tuple(tensor.shape), where, lambda tensor=tensor: _to_numpy(tensor)))  # type: ignore[misc]
    return WeightSource(graph, stored, where)


def _to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    import torch

    x = tensor.detach().to("cpu").contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(NUMPY["bf16"])
    out: npt.NDArray[Any] = x.numpy()
    return out
