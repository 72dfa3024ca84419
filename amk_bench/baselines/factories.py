"""The built-in baselines, made for a setting; see :mod:`amk_bench.baselines.registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amk_bench.baselines.hf import HfEager
from amk_bench.baselines.registry import BaselineUnavailable, Setting

if TYPE_CHECKING:
    from amk_bench.baselines.engines import FusedEngine, WeightOnlyEngine
    from amk_bench.baselines.hf_compiled import HfCompiled
    from amk_bench.baselines.weights import TorchWeights


def hf_eager(setting: Setting) -> HfEager:
    return HfEager(setting.source, setting.threads, setting.precision, setting.device)


def live_model(setting: Setting) -> Any:
    """The transformers model of the setting, loaded once for all baselines."""
    key = f"hf {setting.precision} {setting.device}"
    if key not in setting.shared:
        setting.shared[key] = hf_eager(setting).model
    return setting.shared[key]


def fused_weights(setting: Setting) -> TorchWeights:
    """Fused weights, made once; those that a run has made already stand in ``shared`` under "weights"."""
    import torch

    from amk_bench.baselines.weights import from_live
    from amk_core.importer import open_model

    if "weights" not in setting.shared:
        live = live_model(setting)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[setting.precision]
        setting.shared["weights"] = from_live(open_model(live).graph, live, setting.device, dtype)
    made: TorchWeights = setting.shared["weights"]
    return made


def hf_compile(setting: Setting) -> HfCompiled:
    from amk_bench.baselines.hf_compiled import HfCompiled

    return HfCompiled(live_model(setting), setting.batch, setting.context)


def _fused(setting: Setting, mode: Any) -> FusedEngine:
    from amk_bench.baselines.engines import FusedEngine

    return FusedEngine(fused_weights(setting), setting.batch, setting.context, mode)


def fused(setting: Setting) -> FusedEngine:
    return _fused(setting, "eager")


def fused_graph(setting: Setting) -> FusedEngine:
    return _fused(setting, "graph")


def fused_compile(setting: Setting) -> FusedEngine:
    return _fused(setting, "compile")


def _weight_only(setting: Setting, bits: int) -> WeightOnlyEngine:
    from amk_bench.baselines.engines import WeightOnlyEngine
    from amk_bench.baselines.products import NoProduct

    name, quantised = f"torch int{bits} weight-only", setting.shared.get("quantised")
    if quantised is None:
        raise BaselineUnavailable(f"{name}: the weights of this cell are not quantised")
    if quantised.config.layers.bits != bits:
        raise BaselineUnavailable(f"{name}: the layers of this cell are {quantised.config.layers}")
    try:
        return WeightOnlyEngine(quantised, bits, setting.batch, setting.context)
    except NoProduct as error:
        raise BaselineUnavailable(f"{name}: {error}") from None


def torch_int8(setting: Setting) -> WeightOnlyEngine:
    return _weight_only(setting, 8)


def torch_int4(setting: Setting) -> WeightOnlyEngine:
    return _weight_only(setting, 4)
