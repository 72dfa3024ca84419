"""Open a checkpoint that is stored quantised, without de-quantising it: GGUF (Q4_0, Q4_1, Q8_0), GPTQ, AWQ.

``open_quantised(path)`` gives the imported model, whose ``weights`` de-quantise a matrix where one is asked for by name, and the
packed matrices beside it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amk_core.importer import ImportedModel, hub
from amk_core.importer import gguf as gguf_file
from amk_core.importer.config import graph_from_config, read_config
from amk_core.importer.errors import CheckpointError, ModelRefused
from amk_core.importer.weights import StoredTensor, WeightSource, canonical, stored_tensors
from amk_core.quant import blocks, packed_layers
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError
from amk_core.quant.matrix import QuantMatrix
from amk_core.quant.source import QuantWeights

Read = Callable[[], QuantMatrix]


@dataclass(frozen=True, slots=True)
class QuantCheckpoint:
    """A checkpoint with quantised matrices; ``packed`` reads them by canonical name."""

    imported: ImportedModel
    packed: Mapping[str, Read]

    def config(self) -> QuantConfig:
        """The config that keeps everything as it is stored.

        Raises:
            QuantError: a matrix of the layers is not quantised, or the layers have several formats.
        """
        graph = self.imported.graph
        formats = Counter(m.format for name, m in self._first_layer() if name != graph.head_weight)
        if len(formats) != 1:
            seen = ", ".join(f"{n} x {f}" for f, n in formats.items()) or "none"
            raise QuantError(f"matrices of a layer are stored as {seen}; required is one format. Name one to round the weights to.")
        head = self.packed[graph.head_weight]().format if graph.head_weight in self.packed else None
        return QuantConfig(next(iter(formats)), head, "head" if head is not None and graph.tied_head else "stored")

    def weights(self, config: QuantConfig | None = None) -> QuantWeights:
        """The weights as stored, or as ``config`` says for what the checkpoint holds in full precision."""
        return QuantWeights(self.imported.graph, config or self.config(), self.imported.weights.get, self.packed)

    def _first_layer(self) -> list[tuple[str, QuantMatrix]]:
        names = [n for n, s in self.imported.graph.weight_shapes().items() if n.startswith("L0.") and len(s) == 2]
        missing = [n for n in names if n not in self.packed]
        if missing:
            raise QuantError(
                f"{missing[0]} is not stored quantised; required are all matrices of the layers. Name a format instead."
            )
        return [(n, self.packed[n]()) for n in names]


def is_quantised(model: str | os.PathLike[str]) -> bool:
    """Whether a path holds a quantised checkpoint: a .gguf file, or a folder whose config.json says how it is quantised."""
    path = Path(model)
    if path.suffix == ".gguf":
        return path.is_file()
    try:
        return bool(json.loads((path / "config.json").read_text(encoding="utf-8")).get("quantization_config"))
    except (OSError, ValueError, AttributeError):
        return False


def open_quantised(model: str | os.PathLike[str]) -> QuantCheckpoint:
    """Open a named model, a .gguf file or a directory whose weights are stored quantised.

    Raises:
        QuantError: stored in a way that is not read; the message names it.
        ModelRefused, CheckpointError, FetchError: as :func:`amk_core.importer.open_model`.
    """
    packed = hub.packed(model)
    if packed is not None:
        return _gguf(*packed, Path(model).stem)
    folder = hub.resolve(model)
    config = read_config(folder)
    if not config.get("quantization_config"):
        raise QuantError(
            f"{folder} is not stored quantised: its config.json has no quantization_config. Name a format to round its weights to "
            f"(int8, int4-g64, ...)."
        )
    return _layers(folder, config)


def _gguf(source: Path, folder: Path, name: str) -> QuantCheckpoint:
    reader = gguf_file.open_reader(source)
    config = read_config(folder)
    graph = graph_from_config(config, name, json.loads((folder / "generation_config.json").read_text(encoding="utf-8")))
    stored, packed = [], {}
    for t in reader.tensors:
        if t.name == gguf_file.ROPE_FREQS:
            continue
        key, shape = gguf_file.hf_name(t.name, config), gguf_file.shape_of(t)
        if t.tensor_type.name in blocks.FORMATS and len(shape) == 2:
            read = _block_reader(t, shape, gguf_file.row_order(t.name, shape, config))
            packed[str(canonical(key))] = read
            stored.append(StoredTensor(key, "f32", shape, source.name, lambda read=read: read().dequantise()))  # type: ignore[misc]
        else:
            stored.append(StoredTensor(key, "f32", shape, source.name, lambda t=t: gguf_file.tensor_values(t, config)))  # type: ignore[misc]
    return _checkpoint(graph, WeightSource(graph, stored, str(source)), folder, packed)


def _block_reader(t: Any, shape: tuple[int, ...], order: Any) -> Read:
    def read() -> QuantMatrix:
        m = blocks.read(t.data, t.tensor_type.name, shape[0], shape[1], t.name)
        return m if order is None else m.take(order)

    return read


def _layers(folder: Path, config: dict[str, Any]) -> QuantCheckpoint:
    """A GPTQ or AWQ directory."""
    how = packed_layers.PackedConfig.read(config.pop("quantization_config"))
    try:
        generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        generation = None
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{folder / 'generation_config.json'} cannot be read ({e}). Fetch the model again.") from e
    graph = graph_from_config(config, folder.resolve().name, generation)
    parts: dict[str, dict[str, StoredTensor]] = {}
    dense: list[StoredTensor] = []
    for t in stored_tensors(folder):
        module, _, part = t.key.rpartition(".")
        if part in packed_layers.PARTS[how.method]:
            parts.setdefault(module, {})[part] = t
        elif part == "bias" and canonical(f"{module}.weight"):
            if np.any(np.asarray(t.read(), np.float32)):  # converters write a bias of zeros for every layer
                raise ModelRefused(f"tensor {t.key} (a bias)", "not zero", "absent or zero", "This version does not compute it.")
        else:
            dense.append(t)
    packed: dict[str, Read] = {}
    shapes = graph.weight_shapes()
    for module, mine in parts.items():
        key = f"{module}.weight"
        name = canonical(key)
        if name is None or name not in shapes:
            raise ModelRefused(f"tensor {module}.qweight", "present", "absent", "Every tensor of a checkpoint must be understood.")
        read = _layer_reader(mine, how, module)
        packed[name] = read
        # dense tensors are counted by their shapes, and each packed one stands for the matrix that it holds
        dense.append(StoredTensor(key, "f32", _packed_shape(mine, how, module), str(folder), lambda read=read: read().dequantise()))  # type: ignore[misc]
    return _checkpoint(graph, WeightSource(graph, dense, str(folder)), folder, packed)


def _layer_reader(tensors: Mapping[str, StoredTensor], how: packed_layers.PackedConfig, module: str) -> Read:
    return lambda: packed_layers.read({part: t.read() for part, t in tensors.items()}, how, module)


def _packed_shape(tensors: Mapping[str, StoredTensor], how: packed_layers.PackedConfig, module: str) -> tuple[int, ...]:
    if "qweight" not in tensors or len(tensors["qweight"].shape) != 2:
        raise QuantError(f"{module}.qweight is missing or no matrix. Fetch the model again.")
    a, b = tensors["qweight"].shape
    per = 32 // how.bits
    return (b, a * per) if how.method == "gptq" else (b * per, a)


def _checkpoint(graph: Any, source: WeightSource, folder: Path, packed: Mapping[str, Read]) -> QuantCheckpoint:
    from amk_core.importer import tokenizer_path

    graph = dataclasses.replace(graph, stored_dtype=source.stored_dtype())
    return QuantCheckpoint(ImportedModel(graph, source, folder, tokenizer_path(folder)), packed)
