"""Quantised weights in a folder of their own, beside the checkpoint they belong to: ``quant.json`` and the packed bytes.

The bytes are the tiles of whole matrices (docs/quantisation.md), in HuggingFace's order of rows, by canonical name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.layout import pack, unpack
from amk_core.quant.matrix import QuantMatrix
from amk_core.quant.source import QuantWeights

DESCRIPTION, DATA = "quant.json", "quant.safetensors"
FORMAT = "amk.quant/1"


def is_saved(folder: str | Path) -> bool:
    """Whether a folder holds weights that :func:`save` wrote."""
    return (Path(folder) / DESCRIPTION).is_file()


def save(weights: QuantWeights, folder: Path) -> None:
    """Write all quantised matrices into a folder, which is made.

    Raises:
        OSError: no permission, disk full.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, npt.NDArray[np.uint8]] = {}
    matrices: dict[str, dict[str, Any]] = {}
    for name in weights.graph.weight_shapes():
        if weights.format_of(name) is not None:
            m = weights.matrix(name)
            data[name] = pack(m)
            matrices[name] = {"format": m.format.name, "rows": m.rows, "k": m.k}
    save_file(data, folder / DATA)
    about = {"format": FORMAT, "model": weights.graph.name, "weights": str(weights.config), "matrices": matrices}
    (folder / DESCRIPTION).write_text(json.dumps(about, indent=1) + "\n")


def open_saved(folder: Path, graph: ModelGraph, dense: Callable[[str], npt.NDArray[Any]]) -> QuantWeights:
    """The weights that :func:`save` wrote for this model; ``dense`` gives its other tensors.

    Raises:
        QuantError: a damaged folder, or weights of another model.
    """
    from safetensors import safe_open

    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        config, matrices = QuantConfig.parse(about["weights"]), about["matrices"]
        formats = {n: (QuantFormat.parse(x["format"]), int(x["rows"]), int(x["k"])) for n, x in matrices.items()}
        if about["format"] != FORMAT:
            raise QuantError(f"{folder} is of format {about['format']!r}; required is {FORMAT}")
        file: Any = safe_open(str(folder / DATA), "numpy")
        sizes = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (OSError, KeyError, TypeError, ValueError) as e:
        if isinstance(e, QuantError):
            raise
        raise QuantError(
            f"{folder} cannot be read as quantised weights ({type(e).__name__}: {e}). Quantise the model again."
        ) from e
    except Exception as e:
        raise QuantError(f"{folder / DATA} is damaged ({e}). Quantise the model again.") from e
    shapes = graph.weight_shapes()
    empty = QuantWeights(graph, config, dense)
    wanted = {n for n in shapes if empty.format_of(n) is not None}
    for name in sorted(wanted | set(formats)):
        if name not in wanted or name not in formats or (formats[name][1], formats[name][2]) != shapes[name]:
            raise QuantError(f"{folder} holds weights of {about.get('model')!r}, which differ from {graph.name} in {name}")
        f, rows, k = formats[name]
        if sizes.get(name) != (f.tile_bytes(rows, k),):
            raise QuantError(f"{folder / DATA} has {sizes.get(name)} bytes of {name}; required are {f.tile_bytes(rows, k)}")

    def read(name: str) -> QuantMatrix:
        return unpack(file.get_tensor(name), *formats[name])

    packed: dict[str, Callable[[], QuantMatrix]] = {name: (lambda n=name: read(n)) for name in formats}  # type: ignore[misc]
    return QuantWeights(graph, config, dense, packed)
