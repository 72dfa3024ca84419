"""Claims about the torch baselines: each computes HuggingFace's logits from its own cache, step by step; tiny, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench.baselines import registry
from amk_bench.baselines.registry import BaselineUnavailable, Setting, make, names
from amk_core.graph import ModelGraph, RopeSpec

torch = pytest.importorskip("torch")
from amk_bench.baselines.engines import FusedEngine  # noqa: E402
from amk_bench.baselines.hf import HfEager  # noqa: E402
from amk_bench.baselines.hf_compiled import HfCompiled  # noqa: E402
from amk_bench.baselines.weights import from_live, hf_model, random_weights  # noqa: E402

LLAMA3 = RopeSpec("llama3", 5e5, 16, 256, 8.0, 64)
PLAIN = RopeSpec("default", 1e4, 10, 64)
# Sizes no tile divides, grouped and ungrouped heads, tied and untied.
GRAPHS = {
    "grouped": ModelGraph("grouped", "llama", 301, 64, 90, 3, 4, 2, 16, 1e-5, False, 256, LLAMA3, 16**-0.5),
    "odd": ModelGraph("odd", "llama", 101, 36, 45, 2, 3, 3, 10, 1e-6, True, 64, PLAIN, 10**-0.5),
}
ROWS = 48
ROOT = Path(__file__).resolve().parents[2]
FP32 = 5e-6  # another order of summing; P2's limit


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine(kind: str, weights: Any, batch: int) -> Any:
    if kind == "HF eager":
        return HfEager(hf_model(weights), 1)
    if kind == "HF compiled":
        return HfCompiled(hf_model(weights), batch, ROWS, backend="eager")
    if kind == "fused traced":
        made = FusedEngine(weights, batch, ROWS, "compile")
        made.backend = "eager"
        return made
    return FusedEngine(weights, batch, ROWS, "eager")


@pytest.mark.parametrize("kind", ["HF eager", "HF compiled", "fused", "fused traced"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_decode_steps_give_the_reference_s_logits(kind: str, graph: str) -> None:
    weights = random_weights(GRAPHS[graph], 3, "cpu", torch.float32)
    reference = hf_model(weights)
    rng = np.random.default_rng(1)
    for batch, position in ((1, 0), (3, 0), (3, 17)):
        made = engine(kind, weights, batch)
        prefix = rng.integers(0, weights.graph.vocab_size, position).tolist()
        forced = rng.integers(0, weights.graph.vocab_size, (4, batch)).tolist()
        made.prepare(prefix, batch, 8)
        seen = made.trace(forced)
        for b in range(batch):
            ids = torch.tensor([[*prefix, *(step[b] for step in forced)]])
            with torch.no_grad():
                wanted = reference(ids).logits[0, -4:].numpy()
            assert np.abs(seen[:, b] - wanted).max() <= FP32 * np.abs(wanted).max()
            chain = made.decode([step for step in forced[0]], 3)[b]
            made.rewind()
            with torch.no_grad():
                scored = reference(torch.tensor([[*prefix, forced[0][b], *chain[:-1]]])).logits[0, -3:]
            assert chain == scored.argmax(-1).tolist()


def test_a_step_writes_where_it_stands_and_reads_nothing_behind_it() -> None:
    """Rows beyond the position hold what no mask may let through; what is rewound gives the same ids again."""
    weights = random_weights(GRAPHS["grouped"], 3, "cpu", torch.float32)
    made = FusedEngine(weights, 2, ROWS, "eager")
    made.prepare([5, 6, 7], 2, 8)
    clean = made.decode([1, 2], 5)
    made.rewind()
    cache = made.step.kv.view(-1, 2, ROWS, 4, 16)
    cache[:, :, 3:] = 1e4
    assert made.decode([1, 2], 5) == clean
    made.rewind()
    assert made.decode([2, 1], 5) == clean[::-1]
    with pytest.raises(ValueError, match="beyond the cache of 48 rows"):
        made.prepare([1] * 40, 2, 9)
    with pytest.raises(ValueError, match="made for batch 2"):
        made.prepare([], 1, 1)


@pytest.mark.parametrize("kind", ["HF compiled", "fused"])
def test_a_static_cache_refuses_what_it_has_no_rows_for(kind: str) -> None:
    made = engine(kind, random_weights(GRAPHS["grouped"], 3, "cpu", torch.float32), 2)
    with pytest.raises(ValueError, match="made for batch 2"):
        made.prepare([1], 3, 1)
    with pytest.raises(ValueError, match="beyond the cache of 48 rows"):
        made.prepare([1] * 40, 2, 9)
    with pytest.raises(ValueError, match="49 ids for a cache of 48 rows"):
        made.logits([1] * 49)


def test_fused_weights_of_a_live_model_are_its_weights() -> None:
    for graph in GRAPHS.values():
        drawn = random_weights(graph, 5, "cpu", torch.float32)
        copied = from_live(graph, hf_model(drawn), "cpu", torch.float32)
        assert copied.tensors.keys() == drawn.tensors.keys()
        assert all(torch.equal(copied.tensors[k], t) for k, t in drawn.tensors.items())
        assert sum(t.numel() for t in drawn.tensors.values()) == graph.parameters()


def test_huggingface_sees_the_same_memory_and_random_weights_say_so() -> None:
    weights = random_weights(GRAPHS["grouped"], 5, "cpu", torch.bfloat16)
    model = hf_model(weights)
    key = model.model.layers[1].self_attn.k_proj.weight
    assert key.data_ptr() == weights.tensors["L1.qkv"][64].data_ptr()
    assert weights.origin.startswith("random weights, seed 5, outlier channels ")
    gains = weights.tensors["L0.attn_norm"].float().topk(5).values
    assert gains[3] >= 2.0
    assert gains[4] <= 1.5, "four planted channels, no more"
    assert torch.equal(random_weights(GRAPHS["grouped"], 5, "cpu", torch.bfloat16).tensors["L2.down"], weights.tensors["L2.down"])


def test_bytes_a_step_are_what_the_matrices_take() -> None:
    for graph in GRAPHS.values():
        weights = random_weights(graph, 0, "cpu", torch.bfloat16)
        unread = 0 if graph.tied_head else graph.vocab_size * graph.hidden_size - 2 * graph.hidden_size
        assert weights.bytes_a_step(batch=2) == 2 * (graph.parameters() - unread)


def setting() -> Setting:
    weights = random_weights(GRAPHS["grouped"], 3, "cpu", torch.float32)
    return Setting("grouped", hf_model(weights), context=ROWS)


def test_built_in_baselines_are_made_by_name_or_say_why_not() -> None:
    here = setting()
    for name in registry.BUILT_IN:
        if name in registry.GPU_ONLY:
            with pytest.raises(BaselineUnavailable, match="GPU"):
                make(name, here)
        else:
            made = make(name, here)
            made.prepare([1, 2], 1, 4)
            assert len(made.decode([3], 3)[0]) == 3
    with pytest.raises(KeyError, match="there are hf-eager, hf-compile"):
        make("nothing", here)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package that adds the baseline "theirs"."""

    def install(code: str) -> None:
        (tmp_path / "their_engine.py").write_text(code)
        info = tmp_path / "their_engine-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-engine\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\ntheirs = their_engine:engine\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "their_engine", raising=False)

    return install


def test_an_installed_package_adds_a_baseline(package: Callable[[str], None]) -> None:
    package(
        "from amk_bench.baselines.hf import HfEager\n"
        "def engine(setting):\n"
        "    made = HfEager(setting.source, setting.threads)\n"
        "    made.name = 'theirs'\n"
        "    made.describe = lambda: {'version': 1}\n"
        "    return made\n"
    )
    assert names() == [*registry.BUILT_IN, *registry.RIVALS, "theirs"]
    assert "their_engine" not in sys.modules, "names are metadata: nothing is imported for them"
    made = make("theirs", setting())
    assert made.name == "theirs"
    assert registry.describe(made) == {"version": "1"}
    assert registry.describe(object()) == {}  # type: ignore[arg-type]


def test_the_latency_suite_has_a_row_for_it(package: Callable[[str], None], tmp_path: Path) -> None:
    package("raise RuntimeError('collecting must not import it')\n")
    where = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "suites/latency", "--collect-only", "-q", "-p", "no:cacheprovider", "--arch=cpu"]
    done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=120, check=False)
    assert "test_decode_against[theirs-0]" in done.stdout, done.stdout + done.stderr
    assert "test_decode_against[hf-eager-0]" in done.stdout


def test_a_broken_baseline_is_an_empty_cell_with_a_reason(package: Callable[[str], None]) -> None:
    package("import a_library_that_is_not_there\n")
    with pytest.raises(BaselineUnavailable, match=r"theirs cannot be made: ModuleNotFoundError.*a_library_that_is_not_there"):
        make("theirs", setting())
