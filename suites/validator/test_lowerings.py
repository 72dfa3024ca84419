"""Every real lowering is accepted, and its certificate holds: public model shapes on every device profile, full depth, no weights.

Default: the default configuration everywhere, and every knob and geometry somewhere.  ``--full``: all of the grid, more than 1 000.
"""

from __future__ import annotations

import dataclasses

import pytest

from amk_bench.adversary.lowerings import CONFIGS, GEOMETRIES, MODELS, TARGETS, Lowering, grid, judge
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry

QUICK_MODELS = ("smollm2-135m", "llama-3.1-8b")
FULL_N = 1_000  # lowerings that the whole grid has at least
FULL_CONFIGS = 12  # of each shape on each profile


def accepted(model: str, target: str, config: ScheduleConfig, geometry: Geometry) -> None:
    o = judge(Lowering(model, target, config, geometry))
    assert (o.accepted, o.checked, o.undecided) == (True, True, False), o.failure


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("model", MODELS)
def test_lowering_is_accepted(model: str, target: str, request: pytest.FixtureRequest) -> None:
    """The default configuration, decoding; --quick leaves two of the models to the default run."""
    if request.config.getoption("--quick", default=False) and (model not in QUICK_MODELS or target not in ("h100", "l4", "cpu-2")):
        pytest.skip("not part of --quick; run: pytest suites/validator")
    accepted(model, target, CONFIGS[0], GEOMETRIES[0])


@pytest.mark.parametrize("geometry", GEOMETRIES[1:], ids=lambda g: f"{g.purpose}-{g.batch}x{g.chunk}")
@pytest.mark.parametrize("model", MODELS[:2])
def test_every_purpose_batch_and_chunk_is_accepted(model: str, geometry: Geometry) -> None:
    accepted(model, "l4", CONFIGS[0], geometry)


@pytest.mark.parametrize("config", CONFIGS[1:], ids=repr)
def test_every_knob_is_accepted(config: ScheduleConfig) -> None:
    accepted("smollm2-135m", "a10g", config, GEOMETRIES[0])


@pytest.mark.parametrize("target", ["cpu-2", "h200", "l4"])
@pytest.mark.parametrize("model", MODELS)
def test_tagged_decoding_is_accepted(model: str, target: str) -> None:
    accepted(model, target, ScheduleConfig(handoff="tagged"), GEOMETRIES[0])


def test_tagged_decoding_of_several_sequences_is_accepted() -> None:
    for batch in (2, 7, 16):
        accepted("smollm2-135m", "h200", ScheduleConfig(handoff="tagged"), Geometry(batch=batch, context=512))


def test_the_grid_has_the_promised_size_and_turns_every_knob() -> None:
    assert len(set(map(str, grid()))) == len(list(grid())) >= FULL_N
    assert len(set(CONFIGS)) >= FULL_CONFIGS
    turned = {f.name for c in CONFIGS for f in dataclasses.fields(c) if getattr(c, f.name) != f.default}
    assert turned == {f.name for f in dataclasses.fields(ScheduleConfig)}


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("model", MODELS)
def test_all_knobs_and_geometries(model: str, target: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full", default=False):
        pytest.skip("part of the full run only; run: pytest suites/validator --full")
    for config in CONFIGS:
        for geometry in GEOMETRIES:
            accepted(model, target, config, geometry)
