"""Baseline and reference: the HuggingFace model in eager PyTorch, decoding with its own KV cache.

The step is the model's forward with a ``DynamicCache``, which is what ``generate`` runs, without the loop's own overhead: the
stronger form of this baseline.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amk_bench.engine import F32

LOGIT_ROWS = 256  # rows of logits taken at a time: 256 x 49 152 doubles are 100 MB


def _float64_copy(model: Any) -> Any:
    """A copy that computes in float64 throughout: HF's RMSNorm would go through float32 whatever the weights are."""
    import copy

    import torch

    def norm(module: Any, hidden: Any) -> Any:
        return module.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(norm, module)
    return wide


def _converted(model: Any, dtype: Any) -> Any:
    """A copy of a live model in another type; rotary frequencies stay in float32, as transformers makes them."""
    import copy

    import torch

    def tensor(t: Any) -> Any:
        return t.detach().to(dtype) if t.is_floating_point() else t

    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        memo = {id(p): torch.nn.Parameter(tensor(p), requires_grad=False) for p in model.parameters()}
        if head is embed or head.data_ptr() == embed.data_ptr():
            memo[id(head)] = memo[id(embed)]
        other = copy.deepcopy(model, memo)
    return other


def _widened(model: Any, exact: Mapping[str, Callable[[], Any]]) -> Any:
    """A copy that computes in float32 on the very weights of ``model``, each converted when it is used: the bits of a converted
    copy without its memory.  ``exact``: float32 weights in the stead of some modules' own, by name.
    """
    import copy

    import torch
    from torch.nn import functional

    def linear(module: Any, x: Any) -> Any:
        return functional.linear(x, module.weight.float(), None if module.bias is None else module.bias.float())

    def embedding(module: Any, ids: Any) -> Any:
        return functional.embedding(ids, module.weight).float()

    def norm(module: Any, hidden: Any) -> Any:
        return module.weight.float() * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon))

    def given(make: Callable[[], Any], x: Any) -> Any:
        return functional.linear(x, make())

    other = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for name, module in other.named_modules():
        if name in exact:
            module.forward = functools.partial(given, exact[name])
            continue
        kind = {torch.nn.Linear: linear, torch.nn.Embedding: embedding}.get(type(module))
        kind = norm if type(module).__name__.endswith("RMSNorm") else kind
        if kind is not None:
            module.forward = functools.partial(kind, module)
    return other


def cache_argument(model: Any) -> str:
    """The name that this version of transformers gives the argument for the cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class HfEager:
    """Loads lazily; ``source`` is a directory that ``from_pretrained`` reads, or a live ``transformers`` model.

    ``precision``: "fp32" or "bf16"; a live model that has another type is copied.  ``device``: where torch runs it.  ``lean``: a
    live model's weights stay as they are and are converted when they are used, which takes longer and little memory.  ``exact``: of
    a lean one, float32 weights that stand for some modules' own, by name: of a quantised model what its codes stand for.
    """

    def __init__(
        self, source: str | Path | Any, threads: int, precision: str = "fp32", device: str = "cpu", lean: bool = False,
        exact: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:  # fmt: skip
        self.name = "HF eager"
        self.precision = precision
        self.device = device
        self._source = source
        self._lean, self._exact = lean, exact or {}
        self.threads = threads
        self._model: Any = None
        self._cache: Any = None
        self._prefix = 0
        self._batch = 0

    def available(self) -> str | None:
        for module in ("torch", "transformers"):
            if find_spec(module) is None:
                return f"{module} is not installed: pip install {module}"
        return None

    @property
    def model(self) -> Any:
        """The transformers model in its precision, evaluation mode, with ``threads`` threads set."""
        if self._model is None:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging

            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            torch.set_num_threads(self.threads)
            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[self.precision]
            if isinstance(self._source, str | Path):
                self._model = AutoModelForCausalLM.from_pretrained(str(self._source), dtype=dtype, local_files_only=True)
            else:
                same = self._source.dtype == dtype and self._source.device.type == self.device
                lean = self._lean and dtype == torch.float32
                self._model = (
                    self._source if same else _widened(self._source, self._exact) if lean else _converted(self._source, dtype)
                )
            self._model.to(self.device).eval()
        return self._model

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        import torch
        from transformers import DynamicCache

        self._cache, self._prefix, self._batch = DynamicCache(), len(prefix), batch
        if prefix:
            with torch.inference_mode():
                ids = torch.tensor([list(prefix)] * batch, dtype=torch.int64, device=self.device)
                self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **self._with_cache())

    @functools.cached_property
    def _cache_name(self) -> str:
        return cache_argument(self.model)  # once: reading a signature takes time, and calls are timed

    def _with_cache(self) -> dict[str, Any]:
        return {self._cache_name: self._cache}

    def rewind(self) -> None:
        from transformers import DynamicCache

        surplus = self._cache.get_seq_length() - self._prefix
        if self._prefix == 0:
            self._cache = DynamicCache()
        elif surplus > 0:
            self._cache.crop(-surplus)

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        import torch

        if len(first) != self._batch:
            raise ValueError(f"{len(first)} first ids for a batch of {self._batch}")
        with torch.inference_mode():
            ids = torch.tensor(list(first), dtype=torch.int64, device=self.device)[:, None]
            chain, with_cache = [], self._with_cache()
            for _ in range(tokens):
                scores = self.model(input_ids=ids, use_cache=True, **with_cache).logits
                ids = scores[:, -1:].argmax(dim=-1)
                chain.append(ids)
            chains: list[list[int]] = torch.cat(chain, dim=1).tolist()  # one copy to the host, at the end
        return chains

    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        """Logits [steps, batch, vocabulary] of decode steps fed ``forced`` ids [steps][batch] after the prefix."""
        import torch

        self.rewind()
        with torch.inference_mode():
            with_cache, rows = self._with_cache(), []
            for step in forced:
                ids = torch.tensor(list(step), dtype=torch.int64, device=self.device)[:, None]
                rows.append(self.model(input_ids=ids, use_cache=True, **with_cache).logits[:, -1].float().cpu())
            out: F32 = torch.stack(rows).numpy()
        self.rewind()
        return out

    def extend(self, ids: Sequence[int]) -> F32:
        """Logits [len(ids), vocabulary] of ``ids`` in one go after the prefix, for a batch of one; advances the cache."""
        import torch

        with torch.inference_mode():
            text = torch.tensor([list(ids)], dtype=torch.int64, device=self.device)
            scores: F32 = self.model(input_ids=text, use_cache=True, **self._with_cache()).logits[0].float().cpu().numpy()
        return scores

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        import torch

        with torch.inference_mode():
            text = torch.tensor([list(ids)], device=self.device)
            scores: F32 = self.model(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0].float().cpu().numpy()
        return scores

    def constants(self) -> list[Any]:
        """What no call may change: the weights."""
        return list(self.model.parameters())

    def describe(self) -> dict[str, str]:
        import torch
        import transformers

        kind = str(self.model.config._attn_implementation)
        return {"torch": torch.__version__, "transformers": transformers.__version__, "attention": kind, "cache": "DynamicCache"}

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        """HF's own ``generate(do_sample=False)``, ``tokens`` new ids, stop ids ignored."""
        import torch

        with torch.inference_mode():
            out = self.model.generate(
                torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                do_sample=False,
                min_new_tokens=None,
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        new: list[int] = out[0, len(ids) :].tolist()
        return new

    def error_of_float32(self, ids: Sequence[int], keep: int) -> tuple[F32, F32]:
        """How far float32 is from float64 on these ids: (largest absolute logit error, float64 top-2 margin) a position.

        Both float32 [keep], over the last ``keep`` positions.  Needs twice the model's memory while it runs.
        """
        import torch

        text = torch.tensor([list(ids)])
        with torch.inference_mode():
            low = self.model(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0]
            wide = _float64_copy(self.model)
            high = wide(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0]
            del wide
            errors, margins = [], []
            for start in range(0, keep, LOGIT_ROWS):
                rows = slice(start, start + LOGIT_ROWS)
                errors.append((high[rows] - low[rows].double()).abs().amax(dim=-1))
                top = high[rows].topk(2, dim=-1).values
                margins.append(top[:, 0] - top[:, 1])
        return torch.cat(errors).float().numpy(), torch.cat(margins).float().numpy()
