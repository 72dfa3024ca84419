"""Claims about the place where cells are measured, and about the latency suite on a card, rehearsed on the CPU."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from amk_bench import arena as arenas
from amk_bench import results
from amk_bench.cell import Plan
from amk_bench.clock import Sample
from amk_bench.options import Arch
from amk_bench.results import LatencyRecord, ParityRecord, SkipRecord
from amk_core import machine
from amk_core.graph import GRAPH_SHAPES, ModelGraph, RopeSpec

torch = pytest.importorskip("torch")
from amk_bench.baselines import registry  # noqa: E402
from amk_bench.baselines.engines import FusedEngine, WeightOnlyEngine  # noqa: E402
from amk_bench.baselines.hf import HfEager  # noqa: E402
from amk_bench.baselines.reference import Reference  # noqa: E402
from amk_bench.baselines.weights import hf_model, random_weights  # noqa: E402
from suites.latency import test_latency as suite  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_worker")
ROOT = Path(__file__).resolve().parents[2]
GRAPH = ModelGraph("tiny", "llama", 304, 64, 96, 2, 4, 2, 16, 1e-5, True, 2304, RopeSpec("default", 1e4, 16, 2304), 0.25)
H200 = machine.Gpu("NVIDIA H200", "sm_90", 141 << 30, "580.1", "GPU-1")
CPU, CARD = Arch("cpu", "toy", None, "asked for"), Arch("sm_90", "NVIDIA H200", None, "asked for")


def chosen(arch: Arch) -> dict[str, set[str]]:
    """Of the suite's cells those of a default run: id -> names of their marks."""
    return {
        str(p.id): {m.name for m in p.marks} for p in suite.cells(arch) if "amk_full" not in {m.name for m in p.marks}
    }  # fmt: skip


def test_a_default_run_on_a_card_has_four_models_at_four_positions_against_four_baselines() -> None:
    ids = chosen(CARD)
    four = ("hf-eager", "hf-compile", "fused-graph", "fused-compile")
    for contest in ("", "tinyllama-1.1b-", "llama-3.2-1b-", "llama-3.1-8b-"):
        assert {f"{contest}{name}-{p}" for name in four for p in (16, 128, 1024, 2000)} <= ids.keys()
    assert {f"model-exact-fused-graph-{p}" for p in (16, 128, 1024, 2000)} <= ids.keys()
    assert ids["hf-eager-16"] == {"amk_device"}
    assert ids["fused-graph-16"] == ids["llama-3.2-1b-hf-eager-16"] == ids["model-exact-fused-graph-16"] == {"amk_gpu"}
    order = [p.values[0] for p in suite.cells(CARD)]
    assert len({c for i, c in enumerate(order) if order[i - 1] != c}) == len([c for i, c in enumerate(order) if order[i - 1] != c])


def test_quantised_weights_have_a_peer_in_their_precision_and_one_in_bf16() -> None:
    ids = chosen(CARD)
    for contest in ("model", "llama-3.2-1b", "llama-3.1-8b"):
        for bits in (8, 4):
            rows = {i for i in ids if i.startswith(f"{contest}-int{bits}-")}
            assert rows == {f"{contest}-int{bits}-torch-int{bits}-128", f"{contest}-int{bits}-fused-compile-128"}
    assert str(suite.formats(GRAPH_SHAPES["llama-3.1-8b"], 4)) == "int4-g128-bf16,head=int8-bf16"
    assert str(suite.formats(GRAPH_SHAPES["smollm2-135m"], 4)) == "int4-g64-bf16,head=int8-bf16"
    assert str(suite.formats(GRAPH_SHAPES["smollm2-135m"], 8)) == "int8-bf16,head=int8-bf16"


def test_a_default_run_on_a_cpu_is_the_eager_model_and_names_what_needs_a_card() -> None:
    ids = chosen(CPU)
    assert {i for i, marks in ids.items() if marks == {"amk_device"}} == {f"hf-eager-{p}" for p in (0, 16, 128, 512)}
    assert "llama-3.1-8b-fused-compile-2000" in ids


def test_rows_of_the_caches() -> None:
    assert arenas.rows_for(GRAPH_SHAPES["tinyllama-1.1b"], 2000, 16) == 2048
    assert arenas.rows_for(GRAPH_SHAPES["llama-3.2-1b"], 2000, 16) == 2176
    assert arenas.rows_for(GRAPH_SHAPES["llama-3.2-1b"], 16384, 16) == 16512


def test_a_card_too_small_is_said_in_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (24 << 30, 24 << 30))
    arenas._room(GRAPH_SHAPES["llama-3.2-1b"], 2, True, False)
    arenas._room(GRAPH_SHAPES["llama-3.1-8b"], 2, True, True)  # without float32 weights beside them
    with pytest.raises(arenas.NoRoom, match=r"llama-3\.1-8b: .* need 53 GB more, 26 GB of the card are free"):
        arenas._room(GRAPH_SHAPES["llama-3.1-8b"], 2, True, False)


def test_on_a_cpu_the_reference_and_the_baseline_have_caches_of_their_own() -> None:
    live = hf_model(random_weights(GRAPH, 1, "cpu", torch.float32))
    hf, plan = HfEager(live, 1), Plan(3, 6, 7)
    ours = FusedEngine(random_weights(GRAPH, 1, "cpu", torch.float32), 1, 96, "eager")
    loaded: Any = dataclasses.make_dataclass("Loaded", ["graph", "mode", "context", "batch"])(GRAPH, "exact", 96, 1)
    ours.model = loaded  # type: ignore[attr-defined]
    here = arenas.on_cpu(hf, cast(Any, ours), "tiny", "toy", list(range(96)), 7)
    here.engines["hf-eager"] = cast(Any, hf)
    assert here.parity(hf, 16) is None, "tokens have no slack in float32: logits are the parity suite's"
    record, timing = here.compare("hf-eager", 16, plan, 0.01)
    assert timing is not None, record.reason
    assert record.gate == "P1"
    assert record.derived["ours_bytes"] == here.cell(16).ours_bytes > 4 * GRAPH.parameters()


class Steady:
    """A clock for which every call takes a millisecond, however busy this machine is."""

    name = "steady"

    def measure(self, work: Callable[[], Any]) -> tuple[Sample, Any]:
        return Sample(1e-3, 1e-3), work()


def on_card(live: Any, graph: ModelGraph, mode: str, **told: Any) -> arenas.Arena:
    """In the stead of :func:`amk_bench.arena.on_card`: the same on the CPU, ours a fused step."""
    bf16 = mode == "fast"
    weights = random_weights(GRAPH, 1, "cpu", torch.bfloat16 if bf16 else torch.float32)
    ours = FusedEngine(weights, 1, told["rows"], "eager")
    ours.name = "AMK CUDA VM"
    precision, quantised = "bf16" if bf16 else "fp32", (told.get("shared") or {}).get("quantised")
    setting = registry.Setting(told["model"], live, "cpu", precision, told["rows"], shared=dict(told.get("shared") or {}))
    exact = quantised.exact() if quantised else None
    full = HfEager(live, 1, "fp32", lean=quantised is not None, exact=exact)
    reference = Reference(full, HfEager(live, 1, "bf16") if bf16 else None)
    if quantised:
        weights = setting.shared["weights"]
        ours = WeightOnlyEngine(quantised, quantised.config.layers.bits, 1, told["rows"], "eager")
        ours.name = "AMK CUDA VM"
    made = arenas.Arena(
        graph, told["model"], "NVIDIA H200", mode, setting, cast(Any, ours), reference, told["text"], (Steady(), Steady()),
        told["seed"], told["origin"],
    )  # fmt: skip
    for name in ("fused-graph", "fused-compile", "hf-compile"):
        made.engines[name] = cast(Any, FusedEngine(weights, 1, told["rows"], "eager"))
    if quantised:
        bits = quantised.config.layers.bits
        made.engines[f"torch-int{bits}"] = cast(Any, WeightOnlyEngine(quantised, bits, 1, told["rows"], "eager"))
    return made


class Given:
    """Fixtures of the suites that need a model: a text and no checkpoint."""

    @pytest.fixture(scope="session")
    def model_path(self) -> str:
        return "somewhere"

    @pytest.fixture(scope="session")
    def text_ids(self) -> list[int]:
        return [i % GRAPH.vocab_size for i in range(GRAPH.context)]


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the latency suite as on a card of which nothing but the name is there: exit code, and what --benchmark-json wrote."""
    live = {kind: hf_model(random_weights(GRAPH, 1, "cpu", kind)) for kind in (torch.bfloat16, torch.float32)}
    monkeypatch.setattr(machine, "find_gpus", lambda: (H200,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(arenas, "random_model", lambda graph, seed: (live[torch.bfloat16], {}, "random weights, seed 1"))
    monkeypatch.setattr(
        arenas, "real_model", lambda folder, mode, threads: live[torch.float32 if mode == "exact" else torch.bfloat16]
    )
    monkeypatch.setattr(
        arenas, "random_quantised",
        lambda graph, seed, config: arenas.quantised_model(random_weights(GRAPH, 1, "cpu", torch.bfloat16), config),
    )  # fmt: skip
    monkeypatch.setattr(arenas, "on_card", on_card)
    monkeypatch.setattr("amk_core.graph.GRAPH_SHAPES", {**GRAPH_SHAPES, "tinyllama-1.1b": GRAPH, "llama-3.2-1b": GRAPH})
    monkeypatch.setenv("AMK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_latency.py").write_text((ROOT / "suites" / "latency" / "test_latency.py").read_text("utf-8"))

    def run(*args: str) -> tuple[int, dict[str, Any]]:
        sys.modules.pop("test_latency", None)
        fixed = ["-p", "amk_bench.plugin", "-p", "no:cacheprovider", "--arch=sm_90", "-q", "--benchmark-json=out.json"]
        code = pytest.main([*fixed, *args], plugins=[Given()])
        return int(code), json.loads((tmp_path / "out.json").read_text())

    return run


def test_the_suite_on_a_card_times_both_modes_and_random_weights_say_so(
    card: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, data = card("--quick", "-k", "fused-graph and (16 or 128) and not llama")
    records = results.validate(data["amk"])
    times = [r for r in records if isinstance(r, LatencyRecord)]
    assert {(r.model, r.mode, r.precision, r.position) for r in times} == {
        ("smollm2-135m", mode, precision, position)
        for mode, precision in (("fast", "bf16"), ("exact", "fp32"))
        for position in (16, 128)
    }
    assert {r.verdict for r in times} == {"TIE"}, [r.reason for r in times]
    assert {r.gate.split()[0] for r in times} == {"P1"}
    assert {r.weights for r in times} == {""}, "a checkpoint's"
    parity = [r for r in records if isinstance(r, ParityRecord)]
    assert len([r for r in parity if r.level == "P2" and r.passed]) == 4, "ours and the baseline at two positions, in bf16 alone"
    assert len(data["benchmarks"]) == 4
    assert data["benchmarks"][0]["extra_info"]["amk"]["weights"] == "checkpoint"
    assert code == 0


def test_a_quick_run_leaves_out_random_weights_and_says_how_to_run_them(
    card: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, data = card("--quick", "-k", "tinyllama and hf-eager and 16")
    assert code == 0
    records = results.validate(data["amk"])
    left = [r for r in records if isinstance(r, SkipRecord) and "random weights" in r.reason]
    assert left
    assert left[0].command == "pytest --arch=sm_90"


def test_a_default_run_times_random_weights_under_a_name_that_says_so(
    card: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, data = card("-k", "tinyllama and fused-graph-16")
    assert code == 0
    records = results.validate(data["amk"])
    (record,) = [r for r in records if isinstance(r, LatencyRecord)]
    assert (record.model, record.weights) == ("tinyllama-1.1b", "random weights, seed 1")
    assert (record.verdict, record.tokens, len(record.ours_samples_us)) == ("TIE", 16, 20)


def test_quantised_weights_are_timed_against_their_peer_and_asymmetrically_against_bf16(
    card: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inputs that are the same in every run: of a model this small, errors of single steps scatter to beyond the limit.
    monkeypatch.setattr("amk_bench.session.secrets", SimpleNamespace(randbits=lambda bits: 7))
    code, data = card("-k", "1b-int8 and 128")
    assert code == 0
    records = results.validate(data["amk"])
    config = "int8-bf16,head=int8-bf16"
    times = {r.baseline: r for r in records if isinstance(r, LatencyRecord)}
    assert {name: r.precision for name, r in times.items()} == {
        "torch int8 weight-only, fused step": config, "fused step": f"{config} against bf16"
    }  # fmt: skip
    peer, other = times["torch int8 weight-only, fused step"], times["fused step"]
    assert peer.weights.endswith(f"rounded to {config}")
    assert peer.derived["ours_bytes"] == peer.derived["baseline_bytes"] == other.derived["ours_bytes"]
    assert other.derived["baseline_bytes"] > 1.5 * other.derived["ours_bytes"]
    shown = capsys.readouterr().out
    assert f"1 of 2 cells are precision-asymmetric: {config} against bf16" in shown
    assert shown.count("random weights") > 0


def test_an_engine_that_fails_p2_has_no_time(
    card: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **told: Any) -> arenas.Arena:
        made = on_card(*args, **told)
        cheat = FusedEngine(random_weights(GRAPH, 2, "cpu", torch.bfloat16), 1, told["rows"], "eager")
        made.engines["fused-graph"] = cast(Any, cheat)
        return made

    monkeypatch.setattr(arenas, "on_card", broken)
    code, data = card("--quick", "-k", "fused-graph-16 and not llama and not exact")
    assert code == pytest.ExitCode.TESTS_FAILED
    records = results.validate(data["amk"])
    (invalid,) = [r for r in records if isinstance(r, LatencyRecord)]
    assert invalid.verdict == "INVALID"
    assert invalid.reason.startswith("P2 of fused step")


def test_a_plan_of_few_steps_for_what_returns_to_the_host_at_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []

    def sittings(ours: Any, baseline: Any, cell: Any, plan: Any, *rest: Any) -> Any:
        seen.append(plan)
        yield from ()
        return None, None

    monkeypatch.setattr(arenas, "sittings", sittings)
    live = hf_model(random_weights(GRAPH, 1, "cpu", torch.bfloat16))
    here = on_card(live, GRAPH, "fast", model="tiny", rows=96, text=np.arange(96).tolist(), seed=1, origin="")
    here.setting = dataclasses.replace(here.setting, device="cuda")
    here.engines["hf-eager"] = here.engines["fused-graph"]
    for name in ("hf-eager", "fused-graph"):
        here.compare(name, 16, Plan(16, 10, 1), 0.01)
    assert [(p.tokens, p.blocks) for p in seen] == [(4, 6), (16, 10)]
    assert all(p.slack > 0 for p in seen)
