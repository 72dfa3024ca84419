"""Claims about the driver of the torch baselines, rehearsed on a tiny shape on the CPU, and about the runs that are committed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from amk_bench.arena import Arena, NoRoom
from amk_bench.baselines import registry
from amk_bench.report import rivals
from amk_bench.report.outputs import Evidence
from amk_bench.results import LatencyRecord, NoteRecord, ParityRecord, SkipRecord, document, validate
from amk_core.graph import ModelGraph, RopeSpec

torch = pytest.importorskip("torch")
from amk_bench.baselines.engines import FusedEngine  # noqa: E402
from amk_bench.baselines.hf import HfEager  # noqa: E402
from amk_bench.baselines.reference import LEAST_LIMIT, Limits, Reference, check_logits, distance  # noqa: E402
from amk_bench.baselines.run import Bench, launch  # noqa: E402
from amk_bench.baselines.weights import hf_model, random_weights  # noqa: E402
from amk_bench.cell import Cell, Plan  # noqa: E402
from amk_bench.clock import CpuClock  # noqa: E402

ROOT = Path(__file__).parents[2]
GRAPH = ModelGraph("tiny", "llama", 304, 64, 96, 2, 4, 2, 16, 1e-5, True, 256, RopeSpec("llama3", 5e5, 16, 256, 8.0, 64), 0.25)


class SkipsLayers(FusedEngine):
    """Leaves out the last layer's MLP."""

    def prepare(self, prefix: Any, batch: int, room: int) -> None:
        self.weights.tensors["L1.down"] = torch.zeros_like(self.weights.tensors["L1.down"])
        super().prepare(prefix, batch, room)


def bench(**engines: Any) -> Bench:
    """A bench whose card is the CPU; ours is a fused step under another name."""
    torch.set_num_threads(1)
    weights = random_weights(GRAPH, 1, "cpu", torch.bfloat16)
    live = hf_model(weights)
    low, ours = HfEager(live, 1, "bf16"), FusedEngine(weights, 1, 96, "eager")
    ours.name = "AMK"
    text = np.random.default_rng(7).integers(0, GRAPH.vocab_size, 96).tolist()
    arena = Arena(
        GRAPH, "tiny", "toy", "fast", registry.Setting("tiny", live, "cpu", "bf16", 96), cast(Any, ours),
        Reference(HfEager(live, 1, "fp32"), HfEager(live, 1, "bf16")), text, (CpuClock(), CpuClock()), 7, weights.origin,
        engines={"hf-eager": cast(Any, low), **engines},
    )  # fmt: skip
    return Bench("tiny", lambda: arena, list(arena.engines), lambda text: None)


def test_every_cell_has_parity_of_all_engines_and_a_time_of_each_pair() -> None:
    here = bench()
    here.run([0, 16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    parity = [r for r in here.records if isinstance(r, ParityRecord)]
    assert [r.passed for r in parity] == [True] * 4
    assert {r.claim.split(",")[0] for r in parity} == {"HF eager", "AMK"}
    times = [r for r in here.records if isinstance(r, LatencyRecord)]
    assert [(r.position, r.baseline, r.precision) for r in times] == [(0, "HF eager", "bf16"), (16, "HF eager", "bf16")]
    assert all(r.ratio and r.gate.startswith("P1 within ") for r in times), [r.reason for r in times]
    validate(document(here.records, {"device": "toy", "seeds": {}}, {}))


def test_an_engine_that_skips_work_has_no_row_and_says_why() -> None:
    cheat = SkipsLayers(random_weights(GRAPH, 1, "cpu", torch.bfloat16), 1, 96, "eager")
    here = bench(fused=cheat)
    here.run([16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    (failed,) = [r for r in here.records if isinstance(r, ParityRecord) and not r.passed]
    assert failed.claim.startswith("fused step")
    assert failed.value is not None
    assert failed.limit is not None
    assert failed.value > 2 * failed.limit
    assert {r.baseline for r in here.records if isinstance(r, LatencyRecord)} == {"HF eager"}
    (empty,) = [r for r in here.records if isinstance(r, SkipRecord)]
    assert (empty.cell, empty.reason) == ("tiny at 16 against fused", "its logits are off (P2), so there is no time")


def test_what_no_time_was_left_for_is_an_empty_cell() -> None:
    here = bench()
    here.run([16], Plan(4, 6, 7), deadline=0.0)
    (skipped,) = [r for r in here.records if isinstance(r, SkipRecord)]
    assert "no time was left" in skipped.reason
    assert "--model tiny --positions 16 --baselines hf-eager" in skipped.command
    assert any(isinstance(r, NoteRecord) and "noise_floor" in r.values for r in here.records)


def test_what_cannot_be_made_is_an_empty_cell_with_the_error() -> None:
    def refuse() -> Arena:
        raise NoRoom("llama: 60 GB more are needed, 20 GB of the card are free")

    here = Bench("tiny", refuse, ["hf-eager"], lambda text: None)
    here.run([16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    (broken,) = here.records
    assert isinstance(broken, SkipRecord)
    assert broken.broken
    assert broken.reason.startswith("NoRoom: llama: 60 GB")


def test_a_baseline_that_cannot_be_made_leaves_the_others_alone() -> None:
    made = bench()
    assert made.arena is not None
    here = Bench("tiny", lambda: cast(Arena, made.arena), ["no-such-baseline", "hf-eager"], lambda text: None)
    assert here.names == ["hf-eager"]
    (broken,) = [r for r in here.records if isinstance(r, SkipRecord)]
    assert "no baseline named 'no-such-baseline'" in broken.reason


class Elsewhere(FusedEngine):
    """A rival that can be restarted, as those in their own processes; ``breaks`` says in which call of :meth:`prepare`."""

    breaks, prepared, restarts, ended = 0, 0, 0, False

    def prepare(self, prefix: Any, batch: int, room: int) -> None:
        self.prepared += 1
        if self.prepared == self.breaks:
            raise RuntimeError("it ended during prepare, status 9")
        super().prepare(prefix, batch, room)

    def restart(self) -> None:
        self.restarts += 1

    def busy_seconds(self, first: Any, tokens: int) -> float:
        if self.restarts == 2:
            raise RuntimeError("no profiler")
        return 3e-6

    def close(self) -> None:
        self.ended = True


def _elsewhere(breaks: int = 0) -> Elsewhere:
    engine = Elsewhere(random_weights(GRAPH, 1, "cpu", torch.bfloat16), 1, 96, "eager")
    engine.name, engine.breaks = "elsewhere", breaks
    return engine


def test_a_rival_in_its_own_process_is_restarted_once_in_the_middle_of_all_its_cells() -> None:
    engine = _elsewhere()
    here = bench(elsewhere=engine)
    here.run([0, 16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    here.close()
    times = [r for r in here.records if isinstance(r, LatencyRecord) and r.baseline == "elsewhere"]
    assert [(r.position, len(r.baseline_samples_us)) for r in times] == [(0, 12), (16, 12)], [r.reason for r in times]
    assert engine.restarts == 1
    assert engine.prepared == 8  # P2, before and after the restart, and for the profile, at two positions
    assert [r.derived["baseline_busy_us"] for r in times] == pytest.approx([3.0, 3.0])
    assert engine.ended


def test_a_run_that_is_cut_off_says_which_cells_have_no_time() -> None:
    """What it had measured is kept, and every other cell has its reason."""

    class Stopped(FusedEngine):
        def prepare(self, prefix: Any, batch: int, room: int) -> None:
            if len(prefix) == 16:
                raise SystemExit(143)
            super().prepare(prefix, batch, room)

    engine = Stopped(random_weights(GRAPH, 1, "cpu", torch.bfloat16), 1, 96, "eager")
    here = bench(stopped=engine)
    with pytest.raises(SystemExit):
        here.run([0, 16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    here.close()
    assert [r.position for r in here.records if isinstance(r, LatencyRecord)] == [0, 0]
    cut = [(r.cell, r.reason) for r in here.records if isinstance(r, SkipRecord)]
    assert [cell for cell, _ in cut] == ["tiny at 16 against hf-eager", "tiny at 16 against stopped"]
    assert all(reason == "the run was ended before this cell had a time" for _, reason in cut)


def test_a_rival_that_dies_in_a_cell_costs_that_cell() -> None:
    here = bench(elsewhere=_elsewhere(breaks=2))
    here.run([0, 16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    (empty,) = [r for r in here.records if isinstance(r, SkipRecord)]
    assert (empty.cell, empty.broken) == ("tiny at 0 against elsewhere", True)
    assert "it ended during prepare, status 9" in empty.reason
    assert {r.position for r in here.records if isinstance(r, LatencyRecord) and r.baseline == "elsewhere"} == {16}


def test_a_rival_that_cannot_be_had_is_an_empty_cell_at_every_position() -> None:
    made = bench()
    here = Bench("tiny", lambda: cast(Arena, made.arena), ["mirage"], lambda text: None)
    here.run([0, 16], Plan(4, 6, 7), deadline=time.monotonic() + 600)
    empty = [r for r in here.records if isinstance(r, SkipRecord)]
    assert [r.cell for r in empty] == ["tiny at 0 against mirage", "tiny at 16 against mirage"]
    assert all("no adapter builds it" in r.reason and not r.broken for r in empty)


def test_a_position_that_the_context_has_no_room_for_is_an_empty_cell_that_says_so() -> None:
    here = bench()
    here.beyond(96, 4, 96)
    empty = [r for r in here.records if isinstance(r, SkipRecord)]
    assert [r.cell for r in empty] == [f"tiny at 96 against {name}" for name in here.names]
    assert {r.reason for r in empty} == {"a call of 4 tokens from 96 on does not fit 96 positions of context"}
    assert not any(r.broken or r.command for r in empty)


def test_limits_follow_huggingface_s_own_error() -> None:
    assert Limits(0.01).logits == 0.02
    assert Limits(0.01).slack == 0.04
    assert (Limits(0.0).logits, Limits(0.0).slack) == (LEAST_LIMIT, 0.0)
    assert distance(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")
    assert distance(np.array([1.0, 3.0]), np.array([1.0, 4.0])) == 0.25


def test_the_reference_s_quick_score_is_its_full_one() -> None:
    weights = random_weights(GRAPH, 1, "cpu", torch.float32)
    full = HfEager(hf_model(weights), 1)
    reference = Reference(full, None)
    cell = Cell("toy", "tiny", "fast", 2, (5, 6, 7), tuple(range(304)))
    forced, wanted, limits = reference.enter(cell, 3)
    assert wanted.shape == (4, 2, 304)
    assert limits == Limits(0.0)
    quick = reference.score([5, 6, 7, 8, 9], 2)
    assert distance(quick, full.logits([5, 6, 7, 8, 9], 2)) < LEAST_LIMIT
    assert distance(reference.score([5, 6, 9, 9, 9], 2), full.logits([5, 6, 9, 9, 9], 2)) == 0.0
    assert check_logits(FusedEngine(weights, 2, 32, "eager"), cell, forced, wanted, limits).passed


def test_a_reference_without_weights_of_its_own_has_the_same_bits() -> None:
    live = hf_model(random_weights(GRAPH, 1, "cpu", torch.bfloat16))
    full, lean = HfEager(live, 1, "fp32"), HfEager(live, 1, "fp32", lean=True)
    assert np.array_equal(full.logits(range(20)), lean.logits(range(20)))
    for engine in (full, lean):
        engine.prepare((5, 6, 7), 1, 5)
    assert np.array_equal(full.trace([[8], [9]]), lean.trace([[8], [9]]))
    assert {p.data_ptr() for p in lean.model.parameters()} == {p.data_ptr() for p in live.parameters()}


def test_rivals_with_processes_are_started_before_ours_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Slow:
        def launch(self) -> None:
            events.append("launched")

    def make(name: str, setting: registry.Setting) -> Any:
        if name == "vllm":
            return Slow()
        raise registry.BaselineUnavailable("not here")

    monkeypatch.setattr(registry, "make", make)
    setting = registry.Setting("tiny", None)
    launch(["fused", "llama.cpp", "vllm"], setting, lambda text: None)
    assert events == ["launched"]
    assert list(setting.shared) == ["launched vllm"]


def test_without_a_restart_cells_are_measured_in_one_go() -> None:
    engine = _elsewhere()
    here = bench(elsewhere=engine)
    kept: list[int] = []
    here.keep = lambda: kept.append(len(here.records))
    here.begin([0], Plan(4, 6, 7), time.monotonic() + 600, restarts=False)
    assert (here.paused, engine.restarts) == ([], 0)
    times = [r for r in here.records if isinstance(r, LatencyRecord)]
    assert [r.baseline for r in times] == ["HF eager", "elsewhere"]
    assert len(kept) == 2  # what is measured is kept at once


def test_a_cell_whose_second_half_has_no_time_is_empty() -> None:
    here = bench(elsewhere=_elsewhere())
    here.begin([0], Plan(4, 6, 7), time.monotonic() + 600)
    here.finish(0.0)
    (skipped,) = [r for r in here.records if isinstance(r, SkipRecord)]
    assert (skipped.cell, skipped.reason) == ("tiny at 0 against elsewhere", "no time was left for this cell")


def test_the_committed_runs_say_where_their_weights_come_from() -> None:
    e = Evidence.read(ROOT)
    runs = [s for s in e.files if s.kind.name == "result" and "-baselines-" in s.name]
    assert runs
    assert all("random weights" in s.doc["options"]["weights"] for s in runs)


def test_losses_and_empty_cells_are_shown(report_tree: Path) -> None:
    e = Evidence.read(report_tree)
    lines = rivals.table(e.pairs, e.gaps, e.files).splitlines()
    assert lines[0] == "| NVIDIA H200 | weights | precision | batch | position | AMK CUDA VM | rival | weak rival |"
    assert lines[2].startswith("| llama-3.2-1b | random | bf16, fast | 1 | 128 | 100.1 | 150.1 (1.50, ")
    assert lines[3].startswith("| llama-3.2-1b | random | bf16, fast | 1 | 1024 | 100.1 | 80.08 (0.80, ")
    assert lines[3].endswith(") **LOSS** | not run |")
    assert lines[4] == "| llama-3.2-1b | random | bf16, fast | 1 | 4096 | - | INVALID: its tokens <differ> | not run |"
    assert "llama-3.2-1b: 1 pairs not timed, vLLM is not installed." in lines
    assert "0 of 1 parity claims on this card hold." in lines
