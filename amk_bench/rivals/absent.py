"""Rivals that are named and not run: each is an empty cell that says why, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import NoReturn

from amk_bench.baselines.registry import BaselineUnavailable, Setting

# Name -> (module that would show it installed, "" for none; why it is not run).
REASONS: Mapping[str, tuple[str, str]] = {
    "hazyresearch": (
        "",
        "HazyResearch's megakernel is source in no package, built for one model and architecture at a time; no adapter builds it",
    ),
    "mirage": ("mirage", "Mirage's persistent kernel is built from source with its own compiler; no adapter builds it"),
    "sglang": ("sglang", "SGLang is not installed: pip install sglang; no adapter runs it yet"),
    "tensorrt-llm": ("tensorrt_llm", "TensorRT-LLM is not installed: pip install tensorrt-llm; no adapter runs it yet"),
    "automegakernel": ("", "AutoMegaKernel is source in no package; no adapter builds it"),
}


def _factory(name: str) -> Callable[[Setting], NoReturn]:
    def make(setting: Setting) -> NoReturn:
        module, reason = REASONS[name]
        here = bool(module) and find_spec(module) is not None
        raise BaselineUnavailable(f"{name}: {module} is installed, but no adapter runs it yet" if here else reason)

    return make


hazyresearch = _factory("hazyresearch")
mirage = _factory("mirage")
sglang = _factory("sglang")
tensorrt_llm = _factory("tensorrt-llm")
automegakernel = _factory("automegakernel")
