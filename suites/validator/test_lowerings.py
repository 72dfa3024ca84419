"""Every real lowering is accepted, and its certificate holds: four public model shapes on every device profile, no weights."""

from __future__ import annotations

import pytest

from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import check_certificate, validate
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.tables import pack
from amk_core.targets import Target

MODELS = ("smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b")
TARGETS = {t.name: t for t in (*Target.profiles(), Target("cpu-2", "cpu", 2))}
QUICK_MODELS = ("smollm2-135m", "llama-3.1-8b")
CONTEXT = 1024
CONFIGS = (
    ScheduleConfig(tiles_per_queue=2), ScheduleConfig(head_tiles_per_queue=4), ScheduleConfig(row_align=2),
    ScheduleConfig(placement="blocked"), ScheduleConfig(placement="strided"), ScheduleConfig(fuse_qkv=False),
    ScheduleConfig(fuse_combine=False), ScheduleConfig(fuse_argmax=False), ScheduleConfig(attn_splits=1),
    ScheduleConfig(dependencies="head"), ScheduleConfig(embed_tiles=4), ScheduleConfig(sampler_queue=1),
)  # fmt: skip
GEOMETRIES = (
    Geometry("decode", context=CONTEXT),
    Geometry("prefill", chunk=16, context=CONTEXT),
    Geometry("logits", chunk=7, context=CONTEXT),
    Geometry("decode", batch=3, context=CONTEXT),
    Geometry("prefill", batch=16, chunk=4, context=CONTEXT),
)


def accepted(model: str, target: Target, config: ScheduleConfig, geometry: Geometry) -> None:
    s = lower(GRAPH_SHAPES[model], config, target, geometry)
    v = validate(s)
    assert v.accepted, f"{model} on {target.name}, {config}, {geometry}:\n{str(v)[:2000]}"
    assert v.certificate is not None
    assert check_certificate(pack(s), v.certificate) == []


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("model", MODELS)
def test_lowering_is_accepted(model: str, target: str, request: pytest.FixtureRequest) -> None:
    """The default configuration, decoding; --quick leaves two of the models to the default run."""
    if request.config.getoption("--quick", default=False) and (model not in QUICK_MODELS or target not in ("h100", "l4", "cpu-2")):
        pytest.skip("not part of --quick; run: pytest suites/validator")
    accepted(model, TARGETS[target], ScheduleConfig(), GEOMETRIES[0])


@pytest.mark.parametrize("geometry", GEOMETRIES[1:], ids=lambda g: f"{g.purpose}-{g.batch}x{g.chunk}")
@pytest.mark.parametrize("model", MODELS[:2])
def test_every_purpose_batch_and_chunk_is_accepted(model: str, geometry: Geometry) -> None:
    accepted(model, TARGETS["l4"], ScheduleConfig(), geometry)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_knob_is_accepted(config: ScheduleConfig) -> None:
    accepted("smollm2-135m", TARGETS["a10g"], config, GEOMETRIES[0])


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("model", MODELS)
def test_all_knobs_and_geometries(model: str, target: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full", default=False):
        pytest.skip("part of the full run only; run: pytest suites/validator --full")
    for config in (ScheduleConfig(), *CONFIGS):
        for geometry in GEOMETRIES:
            accepted(model, TARGETS[target], config, geometry)
