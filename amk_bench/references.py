"""HuggingFace as a reference: logits of chosen positions of one text, in float64 or in the model's own type."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any


def _norm(module: Any, hidden: Any) -> Any:
    """RMSNorm without the detour through float32 that transformers makes."""
    import torch

    return module.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)


@contextlib.contextmanager
def in_float64(model: Any) -> Iterator[Any]:
    """The model computes in float64 throughout, with the weights it holds, which are widened one layer at a time.

    Inside the block it takes the memory of its embedding, its head and one layer in float64 besides its own; afterwards it is what
    it was.
    """
    kept: dict[Any, Any] = {}

    def widen(*modules: Any) -> None:
        for p in {p for m in modules for p in m.parameters()} - kept.keys():
            kept[p] = p.data
            p.data = p.data.double()

    def restore(*modules: Any) -> None:
        for p in {p for m in modules for p in m.parameters()} & kept.keys():
            p.data = kept.pop(p)

    handles, norms = [], []
    outside = (model.model.embed_tokens, model.model.norm, model.lm_head)
    try:
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                norms.append(module)
                module.forward = functools.partial(_norm, module)
        for layer in model.model.layers:
            handles.append(layer.register_forward_pre_hook(lambda m, *_: widen(m)))
            handles.append(layer.register_forward_hook(lambda m, *_: restore(m)))
        widen(*outside)
        yield model
    finally:
        for handle in handles:
            handle.remove()
        for module in norms:
            del module.forward
        restore(model)


def rows_of(model: Any, ids: Sequence[int], rows: Sequence[int] | None = None) -> Any:
    """Teacher-forced logits [rows, vocabulary] of a text as a torch tensor where the model lives; default: all rows."""
    import torch

    where = model.get_input_embeddings().weight.device
    text = torch.tensor([list(ids)], device=where)
    keep: Any = 0 if rows is None else torch.tensor(list(rows), device=where)
    with torch.inference_mode():
        return model(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0]
