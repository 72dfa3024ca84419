"""Small random checkpoints written by transformers, and their logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

IDS = [5, 17, 3, 96, 44, 2, 61, 8, 8, 73, 11, 100, 0, 29]  # 100 is the last row of a vocabulary that is no multiple of 8

# Sizes that no tile divides; the head is not hidden / heads and q is not square.
ODD: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 36, "intermediate_size": 45, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
}  # fmt: skip


def make_llama(seed: int = 0, kind: str = "Llama", **changes: Any) -> Any:
    """A random model with weights large enough that every one of them shows in the logits, and norms that are not one."""
    import torch
    import transformers

    fields = {**ODD, "rope_theta": 5000.0, **changes}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**fields)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 and "norm" in name:
                p.uniform_(0.5, 1.5, generator=generator)
            else:
                p.normal_(0, 0.25, generator=generator)
    return model


def hf_logits(model: Any, ids: list[int] = IDS) -> np.ndarray:
    """HuggingFace's logits [len(ids), vocab] of the model's weights, in float64 but for the rotary tables.

    A cast of a module casts its rotary frequencies as well, so they are made anew; RMSNorm goes through float32 by itself."""
    import copy

    import torch

    model = copy.deepcopy(model).double()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = lambda x, m=module: m.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file; a value of ``...`` removes the field."""
    data = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            data.pop(key, None)
        else:
            data[key] = value
    path.write_text(json.dumps(data))
