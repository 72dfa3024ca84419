"""From a checkpoint, by name or in memory, to a model that is ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from amk_core.importer import ImportedModel, open_model
from amk_core.programs import Backend, RequestError
from amk_core.quant.config import QuantConfig
from amk_core.quant.saved import is_saved, open_saved
from amk_core.quant.source import QuantWeights
from amk_core.runtime import Model
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import DEFAULT_CHUNK, Mode
from amk_core.schedule.lower_ranks import BY_DEFAULT, Ranks
from amk_core.targets import Target

DEFAULT_CONTEXT = 2048


def _open(
    model: str | Path | Any, weights: str | QuantConfig | QuantWeights | None
) -> tuple[ImportedModel, QuantWeights | None]:  # fmt: skip
    """The model, and its quantised weights where some are asked for."""
    if weights is None:
        return open_model(model), None
    if isinstance(weights, QuantWeights):
        imported = open_model(model)
        if weights.graph.weight_shapes() != imported.graph.weight_shapes():
            raise RequestError(f"weights are those of {weights.graph.name}, the model is {imported.graph.name}")
        return imported, weights
    if weights == "stored":
        from amk_core.quant.checkpoint import open_quantised

        checkpoint = open_quantised(model)
        return checkpoint.imported, checkpoint.weights()
    imported = open_model(model)
    if isinstance(weights, str) and is_saved(weights):
        return imported, open_saved(Path(weights), imported.graph, imported.weights.get)
    config = QuantConfig.parse(weights) if isinstance(weights, str) else weights
    return imported, QuantWeights(imported.graph, config, imported.weights.get)


def load(
    model: str | Path | Any,
    mode: Mode = "exact",
    queues: int | None = None,
    batch: int = 1,
    context: int | None = None,
    chunk: int | None = None,
    config: ScheduleConfig | None = None,
    backend: Backend = "cpu",
    weights: str | QuantConfig | QuantWeights | None = None,
    ranks: Ranks | Literal["auto", "off"] = BY_DEFAULT,
) -> Model:
    """Open a checkpoint, lower it, prove the schedule safe and load it.

    Args:
        model: a known name (``amk model list``), a HuggingFace hub id, a directory, a .gguf file, or a live transformers model.
        mode: ``exact`` (fp32, the same bits everywhere) or ``fast`` (bf16 weights and KV).
        queues: CPU threads, by default the cores this process may use; SMs of the card, by default all of them.
        batch: sequences decoded side by side, 1 to 16.
        context: positions a sequence may have (sizes the KV cache); by default 2048 or what the model was trained for.
        chunk: prompt tokens a step, 1 to 32, by default 16, or 32 where a card keeps so many rows beside its weights; with ranks a
            step takes one.
        config: scheduling choices; they never change a bit of the result.
        backend: ``cpu``, or ``cuda``: one cooperative launch on the first NVIDIA card.
        weights: how weights are stored. None: as the mode stores them. ``int8``, ``int4-g64`` and so on, with ``,head=...``:
            rounded to nearest (see :class:`amk_core.quant.config.QuantConfig`). ``stored``: quantised as the checkpoint holds
            them. A folder that ``amk quantise`` wrote. Or QuantWeights that were made otherwise.
        ranks: clusters of queues that share every step, for one sequence with weights as the mode stores them: fewer hand-offs
            through global memory, but on an H200 slower than without (docs/performance.md), and prompts and scored texts take a
            step a token, so that all positions have the same bits. They are other bits than those without ranks, and belong to
            the number of ranks.
            ``auto``: on a card in ``fast``, where the cost model expects decoding to be quicker.

    Raises:
        ModelRefused, CheckpointError: the checkpoint is not one AMK understands whole.
        ValueError: an impossible size; the message says what is possible.
        CudaError, CompileError: no card, driver or compiler for ``backend="cuda"``, or the model does not fit the card.
    """
    if backend not in ("cpu", "cuda"):
        raise RequestError(f"backend is {backend!r}; required is 'cpu' or 'cuda'")
    if mode not in ("exact", "fast"):
        raise RequestError(f"mode is {mode!r}; required is 'exact' or 'fast'")
    card: Any = None
    target = Target.cpu(queues)
    if backend == "cuda":
        from amk_core.vm.card import Card

        card = Card()  # before the checkpoint is read: a machine without a card says so at once
        target = card.target(queues)
    imported, quantised = _open(model, weights)
    if card is not None:
        chunk = card.chunk(mode, batch, chunk, imported.graph, None if quantised is None else quantised.config)
    elif chunk is None:
        chunk = DEFAULT_CHUNK
    if context is None:
        context = min(DEFAULT_CONTEXT, imported.graph.context)
    chosen = ranks == "auto" and backend == "cuda" and mode == "fast" and batch == 1 and quantised is None
    if isinstance(ranks, Ranks) and (batch != 1 or quantised is not None):
        asked = f"a batch of {batch}" if batch != 1 else f"weights {quantised.config}" if quantised is not None else ""
        raise RequestError(f"ranks decode one sequence with weights as the mode stores them, asked is {asked}; leave ranks out")
    shared = ranks if isinstance(ranks, Ranks) else None
    if chosen:
        from amk_core.cost import best_ranks

        shared = best_ranks(imported.graph, target)
    loaded = Model(
        imported, mode, target, batch, chunk, context, config or ScheduleConfig(), backend=backend, quantised=quantised,
        ranks=shared, ranks_are_chosen=chosen, _card=card,
    )  # fmt: skip
    loaded.program("decode")
    return loaded
