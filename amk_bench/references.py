"""HuggingFace on a card as a reference: logits of chosen positions of one text, in float64 or in the model's own type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amk_bench.baselines.hf import _float64_copy


def float64_copy(model: Any) -> Any:
    """A copy of a transformers model that computes in float64 throughout, with the weights that the model holds."""
    return _float64_copy(model)


def rows_of(model: Any, ids: Sequence[int], rows: Sequence[int] | None = None) -> Any:
    """Teacher-forced logits [rows, vocabulary] of a text as a torch tensor where the model lives; default: all rows."""
    import torch

    where = model.get_input_embeddings().weight.device
    text = torch.tensor([list(ids)], device=where)
    keep: Any = 0 if rows is None else torch.tensor(list(rows), device=where)
    with torch.inference_mode():
        return model(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0]
