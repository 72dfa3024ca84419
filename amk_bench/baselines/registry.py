"""Which baselines there are: ours, and those that installed packages add through the entry-point group ``amk_bench.baselines``.

An entry point names a function that takes a :class:`Setting` and returns an :class:`amk_bench.engine.Engine`::

    [project.entry-points."amk_bench.baselines"]
    my-engine = "my_package.amk:engine"

Its name is a row of the latency suite; nothing is imported before that row is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from amk_bench.engine import Engine

GROUP = "amk_bench.baselines"
# Name -> where its factory stands.  The same names in pyproject.toml would be missing in a tree that is not installed.
BUILT_IN: Mapping[str, str] = {
    "hf-eager": "amk_bench.baselines.factories:hf_eager",
    "hf-compile": "amk_bench.baselines.factories:hf_compile",
    "fused": "amk_bench.baselines.factories:fused",
    "fused-graph": "amk_bench.baselines.factories:fused_graph",
    "fused-compile": "amk_bench.baselines.factories:fused_compile",
    "pdl-graph": "amk_bench.rivals.pdl:pdl_graph",
}
# Rivals in the precision of quantised weights; they have cells where ours runs on such weights alone.
QUANTISED: Mapping[str, str] = {
    "torch-int8": "amk_bench.baselines.factories:torch_int8",
    "torch-int4": "amk_bench.baselines.factories:torch_int4",
    "vllm-gptq": "amk_bench.rivals.serving:vllm_gptq",
}
# Engines of others, in processes of their own, and those that are named with the reason for their empty cells.
RIVALS: Mapping[str, str] = {
    "vllm": "amk_bench.rivals.serving:vllm",
    "llama.cpp": "amk_bench.rivals.serving:llama_cpp",
    "hazyresearch": "amk_bench.rivals.absent:hazyresearch",
    "mirage": "amk_bench.rivals.absent:mirage",
    "sglang": "amk_bench.rivals.absent:sglang",
    "tensorrt-llm": "amk_bench.rivals.absent:tensorrt_llm",
    "automegakernel": "amk_bench.rivals.absent:automegakernel",
}
OWN: Mapping[str, str] = {**BUILT_IN, **QUANTISED, **RIVALS}
# Those whose point is a GPU: on a CPU they run in the tests, not in the table.
GPU_ONLY = ("hf-compile", "fused-graph", "fused-compile", "pdl-graph", *QUANTISED, *RIVALS)


class BaselineUnavailable(RuntimeError):
    """A baseline cannot run here; the message is the reason that stands in its empty cell."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a baseline is made for.

    Attributes:
        model: the name in the table.
        source: a directory that transformers reads, or a live ``transformers`` model with the very weights of ours.
        device: "cpu" or "cuda"; the engine's tensors live there.
        precision: "fp32" or "bf16", of weights, KV cache and arithmetic.
        context: positions a sequence may have; a static cache has room for so many.
        batch: sequences decoded side by side.
        threads: CPU threads.
        shared: what the baselines of one model may keep for each other ("weights" in torch, say); "quantised" are those that ours
            runs on where it runs on such.
    """

    model: str
    source: Any
    device: str = "cpu"
    precision: str = "fp32"
    context: int = 1024
    batch: int = 1
    threads: int = 1
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Built-in ones in their order, then what installed packages add, by name; without those of quantised weights.  Reads
    metadata only.
    """
    return [*BUILT_IN, *RIVALS, *sorted(_added().keys() - OWN.keys())]


def make(name: str, setting: Setting) -> Engine:
    """The engine of a baseline.

    Raises:
        KeyError: no baseline has this name.
        BaselineUnavailable: it cannot be imported, made or run here; the message says why.
    """
    added = _added()
    if name not in OWN and name not in added:
        raise KeyError(f"no baseline named {name!r}; there are {', '.join([*names(), *QUANTISED])}")
    try:
        if name in OWN:
            module, _, attribute = OWN[name].partition(":")
            factory: Any = getattr(importlib.import_module(module), attribute)
        else:
            factory = added[name].load()
        engine = cast("Engine", cast(Callable[[Setting], Any], factory)(setting))
    except BaselineUnavailable:
        raise
    except Exception as error:
        raise BaselineUnavailable(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    reason = engine.available()
    if reason is not None:
        raise BaselineUnavailable(reason)
    return engine


def describe(engine: Engine) -> dict[str, str]:
    """What an engine says about itself (versions, graph mode, attention); empty where it says nothing."""
    told = getattr(engine, "describe", None)
    return {str(k): str(v) for k, v in told().items()} if callable(told) else {}
