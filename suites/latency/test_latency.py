"""Time a token of our VM against each baseline, in ABBA pairs in one process, behind gates in the very cell.

On a CPU both sides compute in float32 (mode ``exact``).  On a card: mode ``fast`` against bf16 baselines, with the model's weights
and with random weights in three public shapes, said so in every record; mode ``exact`` against one baseline in float32; and
weights of 8 and of 4 bits against torch's own weight-only products on the same codes, and against bf16, which the record says.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench import arena as arenas
from amk_bench import instruments
from amk_bench.arena import Arena
from amk_bench.baselines import registry
from amk_bench.busy import witness
from amk_bench.cell import Plan
from amk_bench.faults import BUSY, noise_fault
from amk_bench.measure import invalid
from amk_bench.options import Arch, Options
from amk_bench.ours import Ours
from amk_bench.pairing import samples_of
from amk_bench.plugin import SESSION
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.session import Session
from amk_bench.stats import Precision
from amk_bench.storage import Seconds
from amk_bench.verdict import Verdict
from amk_core.graph import GRAPH_SHAPES, ModelGraph
from amk_core.quant.config import QuantConfig

POSITIONS = (0, 16, 128, 512, 1024, 2000, 2048, 4096, 16384)
CPU_DEFAULT = (0, 16, 128, 512)
CARD_DEFAULT = (16, 128, 1024, 2000)
FLOOR_POSITION = 128
REAL, EXACT = "model", "model-exact"
SHAPES = ("tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b")
LABELS = {EXACT: "mode exact", **{name: f"{name}, random weights" for name in SHAPES}}
# Quantised: contest -> (what it has the weights of, bits of its layers).  bf16 scales are what torch's 4-bit product takes.
QUANTISED = {f"{name}-int{bits}": (name, bits) for bits in (8, 4) for name in (REAL, "llama-3.2-1b", "llama-3.1-8b")}
QUANTISED_AGAINST = {8: ("torch-int8", "fused-compile"), 4: ("torch-int4", "fused-compile")}
LABELS |= {name: f"{LABELS.get(base, 'the model')}, int{bits} weights" for name, (base, bits) in QUANTISED.items()}
LONG = "-long"  # cells beyond NEAR have caches of their own: a baseline may read a static cache's empty rows at every position
NEAR = 2048
EXACT_AGAINST = "fused-graph"
CPU_SIZES = {"quick": (4, 6), "default": (8, 10), "full": (16, 60)}  # tokens a call, most blocks
CARD_SIZES = {"quick": (16, 6), "default": (16, 10), "full": (16, 60)}
# torch's worker threads spin for about a millisecond after a parallel region; they must not do so inside our timed call.
SETTLE_S = 0.01
ENERGY_S = {"quick": 0.0, "default": 1.0, "full": 1.0}  # each side runs so long for its joules a token, where there is a counter


def formats(graph: ModelGraph, bits: int) -> QuantConfig:
    """int8 with a scale a row; int4 in the largest groups that divide every K, the head in int8."""
    sizes = (graph.hidden_size, graph.q_size, graph.intermediate_size)
    group = max(g for g in (32, 64, 128) if not any(k % g for k in sizes) or g == 32)
    return QuantConfig.parse(f"{'int8' if bits == 8 else f'int4-g{group}'}-bf16,head=int8-bf16")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "contest" in metafunc.fixturenames:
        metafunc.parametrize(("contest", "name", "position"), cells(metafunc.config.stash[SESSION].arch))


def cells(arch: Arch) -> list[Any]:
    """Contest, baseline, position, in the order of measurement: what has to be loaded changes as seldom as can be."""
    out = []
    for base in (REAL, EXACT, *SHAPES, *QUANTISED):
        rows: Sequence[str] = tuple(registry.BUILT_IN)
        if base == EXACT:
            rows = (EXACT_AGAINST,)
        elif base == REAL:
            rows = registry.names()
        elif base in QUANTISED:
            rows = QUANTISED_AGAINST[QUANTISED[base][1]]
        for position in CARD_DEFAULT if base in QUANTISED else POSITIONS:
            contest = base + LONG if position > NEAR else base
            for name in rows:
                card = base != REAL or name in registry.GPU_ONLY
                usual = position in (CARD_DEFAULT if card or arch.is_gpu else CPU_DEFAULT) and name != "fused"
                usual = usual and (base not in QUANTISED or position == FLOOR_POSITION)
                about = f"latency against {name}" if base == REAL else f"latency of {LABELS[base]}"
                marks = [pytest.mark.amk_gpu(about) if card else pytest.mark.amk_device(about)]
                marks += [] if usual else [pytest.mark.amk_full(about)]
                label = f"{name}-{position}" if base == REAL else f"{base}-{name}-{position}"
                out.append(pytest.param(contest, name, position, marks=marks, id=label))
    return out


@pytest.fixture(scope="module")
def plan(amk_options: Options, amk_arch: Arch, amk_session: Session) -> Plan:
    """With the instruments of the device; in full runs as many blocks as the interval needs, up to the number given."""
    tier = amk_options.tier
    precision = Precision() if tier == "full" else None
    if amk_arch.is_gpu:
        tools, bare = instruments.for_this_card(), Plan(*CARD_SIZES[tier], amk_session.seed, precision=precision)
    else:
        tools = instruments.for_cpu(amk_session.machine.cpu, amk_session.machine.cores)
        settle: Callable[[], None] = lambda: time.sleep(SETTLE_S)  # noqa: E731
        bare = Plan(*CPU_SIZES[tier], amk_session.seed, settle=settle, witness=witness, precision=precision)
    return tools.equip(bare, energy_s=ENERGY_S[tier])


@pytest.fixture(scope="module")
def arena(
    request: pytest.FixtureRequest, amk_arch: Arch, amk_options: Options, amk_session: Session, amk_progress: Progress, plan: Plan
) -> Iterator[Callable[[str], Arena]]:
    """``arena(contest)``; the last one is kept, and so is the reason for which it cannot be had."""
    kept: dict[str, Arena | BaseException] = {}

    def get(contest: str) -> Arena:
        contest = contest if amk_arch.is_gpu else contest.removesuffix(LONG)
        if contest not in kept:
            kept.clear()
            gc.collect()
            try:
                kept[contest] = _card(contest) if amk_arch.is_gpu else _cpu()
            except (Exception, pytest.skip.Exception) as error:
                kept[contest] = error
        found = kept[contest]
        if isinstance(found, BaseException):
            raise found
        return found

    def _last() -> int:
        return max(POSITIONS) if amk_options.tier == "full" else max(CPU_DEFAULT)

    def _cpu() -> Arena:
        hf = request.getfixturevalue("hf")
        limit = int(hf.model.config.max_position_embeddings)
        reached = max(p for p in POSITIONS if p <= _last() and p + plan.tokens < limit)
        ours = Ours(request.getfixturevalue("load")(context=max(1024, reached + plan.tokens + 1)))
        text = request.getfixturevalue("text_ids")
        return arenas.on_cpu(hf, ours, amk_options.model, amk_arch.device, text, amk_session.seed)

    def _card(contest: str) -> Arena:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch sees no card, and the baselines run there; run: pip install torch (a CUDA build)")
        torch.compiler.reset()  # what the contest before compiled; its steps count against the compiler's limit of recompilations
        torch.cuda.empty_cache()
        amk_progress.say(f"{contest}: loading both sides")
        base = contest.removesuffix(LONG)
        base, bits = QUANTISED.get(base, (base, 0))
        last = max(POSITIONS) if contest.endswith(LONG) else NEAR
        seed, threads = amk_session.seed, amk_session.machine.cores
        if base in SHAPES:
            if amk_options.tier == "quick":
                pytest.skip(f"a quick run leaves out the shapes with random weights; run: {_default(amk_options)}")
            graph, mode, model = GRAPH_SHAPES[base], "fast", base
            if bits:
                live, shared, origin = arenas.random_quantised(graph, seed, formats(graph, bits))
            else:
                live, shared, origin = arenas.random_model(graph, seed)
            text = np.random.default_rng(seed).integers(0, graph.vocab_size, graph.context).tolist()
        else:
            from amk_core.importer import open_graph, open_model

            folder: Path = request.getfixturevalue("model_path")
            mode = "exact" if base == EXACT else "fast"
            if bits:
                live, shared, origin = arenas.real_quantised(folder, threads, formats(open_graph(folder), bits))
            else:
                live, shared, origin = arenas.real_model(folder, mode, threads), {}, ""
            graph, model, text = open_model(live).graph, amk_options.model, request.getfixturevalue("text_ids")
            if graph.vocab_size <= max(text):
                pytest.skip(f"the pinned ids do not fit this model's vocabulary of {graph.vocab_size}")
        rows = arenas.rows_for(graph, last, plan.tokens)
        try:
            return arenas.on_card(
                live, graph, mode, model=model, text=text, rows=rows, seed=seed, threads=threads, origin=origin, shared=shared
            )
        except arenas.NoRoom as error:
            pytest.skip(str(error))

    yield get
    kept.clear()
    gc.collect()


def _default(options: Options) -> str:
    return options.command().replace(" --quick", "")


def test_decode_against(
    contest: str,
    name: str,
    position: int,
    arena: Callable[[str], Arena],
    plan: Plan,
    amk_record: Recorder,
    amk_seconds: Seconds,
    amk_progress: Progress,
) -> None:
    here = arena(contest)
    context = min(here.graph.context, here.setting.context)
    if position + plan.tokens >= context:
        amk_record.skip(f"{here.model}: latency at position {position}", f"beyond the context of {context}")
    try:
        baseline = here.rival(name)
    except registry.BaselineUnavailable as error:
        amk_record.skip(f"{here.model}: latency against {name}", str(error))
    cell = here.cell(position)
    for engine in (here.ours, baseline):
        held = here.parity(engine, position)
        if held is not None:
            amk_record.add(held)
            if not held.passed:
                amk_record.latency(invalid(cell, here.ours, baseline, f"P2 of {engine.name}: {held.measured} {held.required}"))
                pytest.fail(f"P2 of {engine.name} at {position}: {held.measured}, required {held.required}")
    floor = here.floor(FLOOR_POSITION, plan)
    reason = noise_fault("our VM", floor)
    if reason is not None:
        amk_record.latency(invalid(cell, here.ours, baseline, reason))
        pytest.skip(reason)
    record, timing = here.compare(
        name, position, plan, floor, lambda run: amk_progress.over(run, f"{here.model}: {name}, position {position}", plan.blocks)
    )
    amk_record.latency(record)
    blocks = len(record.ours_samples_us) // 2 or plan.blocks
    amk_record.note(
        f"{blocks} ABBA blocks of 4 calls x {record.tokens or plan.tokens} tokens a cell; noise floor from our VM against itself: "
        f"{100 * floor:.1f} %",
        {"noise_floor": floor},
    )
    if record.reason.startswith(BUSY):
        pytest.skip(record.reason)
    assert timing is not None, record.reason
    assert record.verdict != Verdict.INVALID
    amk_seconds.store(
        [s.device_s for s in samples_of(timing.blocks, "a")],
        {"cell": {"position": position, "batch": cell.batch, "model": cell.model, "mode": cell.mode}, "tokens": record.tokens,
         "weights": here.origin or "checkpoint", "baseline": baseline.name, "told": registry.describe(baseline),
         "baseline_samples_us": record.baseline_samples_us, "ratio": record.ratio,
         "interval": [record.low, record.high], "floor": floor, "verdict": str(record.verdict), "gate": record.gate},
    )  # fmt: skip
