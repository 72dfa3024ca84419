"""Import a HuggingFace model: ``open_model`` gives its graph and its weights, or refuses it by the name of a trait.

model = open_model("smollm2-135m")      # or a directory, a .gguf file, a hub id, a live transformers model
model.graph.n_layers, model.weights.get("L0.q")
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amk_core.graph import ModelGraph
from amk_core.importer.errors import CheckpointError, FetchError, ImporterError, ModelRefused

if TYPE_CHECKING:
    import torch

    from amk_core.importer.weights import WeightSource

__all__ = [
    "CheckpointError",
    "FetchError",
    "ImportedModel",
    "ImporterError",
    "ModelRefused",
    "open_graph",
    "open_model",
]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model that passed the importer.  ``path`` is its directory (None for a live model), ``tokenizer_path`` the directory that
    transformers' AutoTokenizer reads (None where there is none)."""

    graph: ModelGraph
    weights: WeightSource
    path: Path | None
    tokenizer_path: Path | None


def open_model(model: str | os.PathLike[str] | torch.nn.Module) -> ImportedModel:
    """Open a named model, directory, ``.gguf`` file, hub id or live transformers model.

    Only headers are read; tensors are mapped and read on ``weights.get``.  Raises ModelRefused, CheckpointError or FetchError."""
    if not isinstance(model, str | os.PathLike):
        return _open_live(model)
    from amk_core.importer import hub, weights

    path = hub.resolve(model)
    graph = _graph(path, model)
    source = weights.from_directory(graph, path)
    return ImportedModel(dataclasses.replace(graph, stored_dtype=source.stored_dtype()), source, path, tokenizer_path(path))


def open_graph(model: str | os.PathLike[str]) -> ModelGraph:
    """The graph of a named model, directory, ``.gguf`` file or hub id from its config.json alone; weights are not looked at."""
    from amk_core.importer import hub

    return _graph(hub.resolve(model), model)


def _graph(path: Path, model: str | os.PathLike[str]) -> ModelGraph:
    from amk_core.importer import config

    text = os.fspath(model)
    name = text if not Path(text).exists() else path.resolve().name
    return config.graph_from_config(config.read_config(path), name, _generation(path))


def _generation(path: Path) -> dict[str, Any] | None:
    try:
        x = json.loads((path / "generation_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise CheckpointError(
            f"{path / 'generation_config.json'} cannot be read ({e}). Fetch the model again, or remove it."
        ) from e
    return x if isinstance(x, dict) else None


def tokenizer_path(path: Path) -> Path | None:
    """The folder itself where it holds a tokenizer, else None."""
    return path if any((path / f).is_file() for f in TOKENIZER_FILES) else None


def _open_live(model: Any) -> ImportedModel:
    from amk_core.importer import config, weights

    kind, module = type(model).__name__, type(model).__module__
    known = config.FAMILIES.values()
    if kind not in known or not module.startswith("transformers.models."):
        raise ModelRefused("class of the live model", f"{module}.{kind}", "transformers' own " + " or ".join(known))
    c = model.config.to_dict()
    if (c.get("quantization_config") or {}).get("quant_method") == "gguf":
        del c["quantization_config"]  # transformers has dequantised it; the tensors say what they are
    name = str(getattr(model.config, "_name_or_path", "") or kind)
    generation = model.generation_config.to_dict() if getattr(model, "generation_config", None) is not None else None
    graph = config.graph_from_config(c, Path(name).name or kind, generation)
    source = weights.from_model(graph, model)
    folder = Path(name)
    tokenizer = tokenizer_path(folder) if folder.is_dir() else None
    return ImportedModel(dataclasses.replace(graph, stored_dtype=source.stored_dtype()), source, None, tokenizer)
