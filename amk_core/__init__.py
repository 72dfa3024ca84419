"""AMK compiles a HuggingFace Llama-family model into one persistent kernel whose schedule is proved safe before launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amk_core.loading import load
    from amk_core.runtime import Generation, Model
    from amk_core.schedule.config import ScheduleConfig
    from amk_core.targets import Target

__all__ = ["Generation", "Model", "ScheduleConfig", "Target", "load"]

_HOME = {
    "Generation": "amk_core.runtime",
    "Model": "amk_core.runtime",
    "load": "amk_core.loading",
    "ScheduleConfig": "amk_core.schedule.config",
    "Target": "amk_core.targets",
}


def __getattr__(name: str) -> Any:
    # imported on first use, so that `import amk_core` stays quick and pulls in no framework
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'amk_core' has no attribute {name!r}")
