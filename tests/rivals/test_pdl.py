"""Claims about the step by programmatic dependent launch: what it computes, by Triton's interpreter, and when its kernels wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from amk_bench.baselines import registry  # noqa: E402
from amk_bench.baselines.registry import BaselineUnavailable, Setting  # noqa: E402

SCRIPT = Path(__file__).with_name("pdl_check.py")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the kernels need triton: pip install triton")


def check(*words: str) -> Any:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=900, env=env)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("triton's interpreter does not run with this numpy: pip install 'numpy<2.4'")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_triton
@pytest.mark.parametrize(
    ("batch", "rows", "splits"),
    [
        pytest.param(1, 300, 2),
        pytest.param(1, 64, 1, marks=pytest.mark.amk_full("the launch-based step without split keys")),
        pytest.param(3, 300, 2, marks=pytest.mark.amk_full("the launch-based step with three sequences")),
    ],
)
def test_the_step_has_huggingfaces_logits_and_tokens(batch: int, rows: int, splits: int) -> None:
    """P2 within 5e-6 in float32, and P1, at the beginning, at 5, and near the end of the cache."""
    found = check("interpret", str(batch), str(rows))
    assert found["splits"] == splits
    assert len(found["cells"]) == 3
    for position, (passed, measured, opened) in found["cells"].items():
        assert passed, f"position {position}: {measured}"
        assert opened == "PassedGate", f"position {position}"


@needs_triton
@pytest.mark.parametrize("arch", [90, pytest.param(120, marks=pytest.mark.amk_full("the launch-based step for sm_120"))])
def test_kernels_release_the_next_one_and_fetch_weights_before_they_wait(arch: int) -> None:
    found = check("compile", str(arch))
    assert len(found) == 10
    for name, seen in found.items():
        assert (seen["released"], seen["waits"], seen["stores before"]) == (1, 1, 0), name
        if not name.startswith("attend"):
            # With one sequence all 32 KiB of a program's weights, 16 bytes a thread and load, are under way.
            assert seen["loads before"] >= (16 if name.endswith(" 1") else 1), name
        assert seen["shared"] <= 99 << 10, name


@needs_triton
@pytest.mark.amk_full("the launch-based step in every shape and tile")
def test_every_kernel_of_the_public_shapes_compiles_in_every_tile() -> None:
    found = check("shapes", "90")
    assert len(found) > 100
    for name, seen in found.items():
        assert seen["waits"] == 1, name
        assert seen["shared"] <= 227 << 10, name


def test_where_it_cannot_run_the_cell_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BaselineUnavailable, match="a CUDA graph needs a GPU"):
        registry.make("pdl-graph", Setting("tiny", None, "cpu", "bf16"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BaselineUnavailable, match="triton is not installed"):
        registry.make("pdl-graph", Setting("tiny", None, "cuda", "bf16"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(BaselineUnavailable, match="measured in bf16, not in fp32"):
        registry.make("pdl-graph", Setting("tiny", None, "cuda", "fp32"))


@pytest.mark.amk_gpu("the launch-based step on a card")
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_step_on_a_card_is_as_near_to_float32_as_huggingface(batch: int) -> None:
    import numpy as np

    from amk_bench.baselines.hf import HfEager
    from amk_bench.baselines.reference import Reference, check_logits
    from amk_bench.baselines.weights import hf_model, random_weights
    from amk_bench.cell import Cell
    from amk_core.graph import ModelGraph, RopeSpec

    rope = RopeSpec("llama3", 5e5, 64, 4096, 8.0, 1024)
    graph = ModelGraph("small", "llama", 3000, 576, 1536, 3, 9, 3, 64, 1e-5, True, 4096, rope, 0.125)
    weights = random_weights(graph, 1, "cuda", torch.bfloat16)
    live = hf_model(weights)
    own = Setting("small", live, "cuda", "bf16", 2176, batch, shared={"weights": weights, "hf bf16 cuda": live})
    engine: Any = registry.make("pdl-graph", own)
    reference = Reference(HfEager(live, 1, "fp32", "cuda"), HfEager(live, 1, "bf16", "cuda"))
    text = tuple(np.random.default_rng(0).integers(0, 3000, 2176).tolist())
    for position in (0, 1, 255, 256, 1024, 2100):
        cell = Cell("card", "small", "fast", batch, text[:position], tuple(range(3000)))
        record = check_logits(engine, cell, *reference.enter(cell, 3))
        assert record.passed, record
