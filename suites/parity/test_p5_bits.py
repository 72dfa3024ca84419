"""P5 and P6 in mode ``exact``: the same bits for every schedule, queue count, batch, chunking and thread timing, every time.

On a card the reference is the CPU VM's: what is compared with it are schedules, batches and chunks on the card.  Ranks have bits of
their own, which are the same for every size of a cluster, however a prompt is cut, and for every position scored or decoded.

Compared are the token ids, the key and value rows that the last layer wrote (everything below the LM head went into them) and,
where the variant concerns them, teacher-forced logits.  Digests are of exact bytes: one different bit fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from amk_bench.options import Options
from amk_bench.parity import bits
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder

NEW_TOKENS = 8
CONTEXT = 256
PERTURBED_RUNS = 20
REPEATS = 100
# Odd lengths: below one chunk, off the chunk's edge, and past an attention block.
LENGTHS = (5, 23, 70)
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"tiles_per_queue": 3},
    {"placement": "blocked", "row_align": 2},
    {"placement": "strided", "head_tiles_per_queue": 5},
    {"fuse_qkv": False},
    {"fuse_combine": False, "attn_splits": 3},
    {"fuse_argmax": False},
    {"dependencies": "head", "tiles_per_queue": 2},
    {"attn_splits": 5, "embed_tiles": 3, "sampler_queue": 1},
    {"fuse_qkv": False, "fuse_combine": False, "fuse_argmax": False, "dependencies": "head", "placement": "blocked"},
)
QUEUES = {"cpu": (2, 3, 7), "cuda": (132, 7, 66)}  # of the card as many as it has SMs


@dataclass(frozen=True, slots=True)
class Trace:
    """What a model made of the prompts: one (tokens, digest of the last layer's keys and values) a prompt."""

    rows: tuple[tuple[tuple[int, ...], str, str], ...]


def few(where: str) -> int | None:
    """Queues of a variant that is not about queues: two threads, or the whole card."""
    return 2 if where == "cpu" else None


@pytest.fixture(scope="module")
def texts(text_ids: list[int]) -> list[list[int]]:
    starts = (0, 100, 200)
    return [text_ids[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]


def trace(model: Any, texts: Sequence[Sequence[int]]) -> Trace:
    """Greedy continuations of ``texts``, as many side by side as the model's batch takes."""
    rows = []
    layer = model.graph.n_layers - 1
    for start in range(0, len(texts), model.batch):
        group = [list(t) for t in texts[start : start + model.batch]]
        made = model.generate(group, max_new_tokens=NEW_TOKENS, temperature=0.0, stop_ids=[])
        vm = model.program("decode").vm
        caches = [vm.buffer(f"L{layer}.{name}") for name in ("k", "v")]
        for slot, (ids, g) in enumerate(zip(group, made, strict=True)):
            digests = []
            for cache in caches:
                first = slot * (len(cache) // model.batch)
                digests.append(bits(cache[first : first + len(ids) + NEW_TOKENS - 1]))
            rows.append((tuple(g.tokens), digests[0], digests[1]))
    return Trace(tuple(rows))


@pytest.fixture(scope="module")
def reference(load: Callable[..., Any], texts: list[list[int]]) -> tuple[Trace, str]:
    """The CPU VM with the default schedule, one sequence, chunks of 16: its trace and its logits."""
    model = load(backend="cpu", queues=2, batch=1, context=CONTEXT, chunk=16)
    return trace(model, texts), bits(model.logits(texts[-1]))


def show(
    record: Recorder, level: str, claim: str, equal: int, total: int, differing: Sequence[str] = (), where: str = "cpu"
) -> None:  # fmt: skip
    record.parity(
        level, claim, measured=f"{equal} of {total} equal", required="equal bits", passed=equal == total, value=float(equal),
        limit=float(total), detail=f"different: {'; '.join(differing)}" if differing else "", where=where,
    )  # fmt: skip
    assert equal == total, differing


def test_schedules_and_queues(
    load: Callable[..., Any], texts: list[list[int]], reference: tuple[Trace, str], amk_options: Options, amk_record: Recorder,
    amk_progress: Progress, backend: str, where: str,
) -> None:  # fmt: skip
    from amk_core.schedule import tables
    from amk_core.schedule.config import ScheduleConfig

    wanted, logits = reference
    counts = QUEUES[backend]
    if backend == "cuda":
        sms = load(batch=1, context=CONTEXT, chunk=16).target.queues
        counts = tuple(min(q, sms) for q in counts)
    configs = CONFIGS[::3] if amk_options.tier == "quick" and backend == "cuda" else CONFIGS
    pairs = [(c, counts[i % len(counts)]) for i, c in enumerate(configs)]
    if amk_options.tier == "full":
        pairs = [(c, q) for c in configs for q in counts]
    differing, programs = [], set()
    for settings, queues in amk_progress.over(pairs, "equal bits over schedules"):
        config = ScheduleConfig(**settings)
        model = load(config=config, queues=queues, batch=1, context=CONTEXT, chunk=16)
        programs.add(tables.table_hash(tables.pack(model.schedules["decode"])))
        if trace(model, texts) != wanted or bits(model.logits(texts[-1])) != logits:
            differing.append(f"{config!r} on {queues} queues")
    assert len(programs) == len(pairs), "two variants gave the same program, so this compared nothing"
    show(
        amk_record, "P5", f"{len(configs)} schedule configs on {'/'.join(map(str, counts))} queues", len(pairs) - len(differing),
        len(pairs), differing, where,
    )  # fmt: skip


@pytest.mark.parametrize("batch", [3, 16])
def test_batch(
    load: Callable[..., Any], texts: list[list[int]], reference: tuple[Trace, str], batch: int, amk_record: Recorder, where: str
) -> None:
    """Every slot of the batch gives what its sequence gives alone, whoever its neighbours are."""
    model = load(queues=few(where), batch=batch, context=CONTEXT, chunk=16)
    order = [i % len(texts) for i in range(batch)]
    made = trace(model, [texts[i] for i in order])
    equal = sum(row == reference[0].rows[i] for row, i in zip(made.rows, order, strict=True))
    show(amk_record, "P5", f"each slot of batch {batch} as alone", equal, batch, where=where)


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunk(
    load: Callable[..., Any], texts: list[list[int]], reference: tuple[Trace, str], chunk: int, amk_record: Recorder, where: str
) -> None:
    """Prompts cut into chunks of 1, 7 or 16 tokens."""
    model = load(queues=few(where), batch=1, context=CONTEXT, chunk=chunk)
    made = trace(model, texts)
    equal = sum(a == b for a, b in zip(made.rows, reference[0].rows, strict=True))
    equal += bits(model.logits(texts[-1])) == reference[1]
    show(amk_record, "P5", f"chunks of {chunk} as chunks of 16", equal, len(texts) + 1, where=where)


def test_perturbed_timing(
    load: Callable[..., Any], texts: list[list[int]], reference: tuple[Trace, str], amk_record: Recorder, amk_progress: Progress
) -> None:
    """Seeded random delays around every task of seven threads: other interleavings, the same bits.  One slot stays idle."""
    model = load(backend="cpu", queues=7, batch=3, context=CONTEXT, chunk=7)
    differing = []
    try:
        for seed in amk_progress.over(range(1, PERTURBED_RUNS + 1), "perturbed runs"):
            model.perturb_seed = seed
            if trace(model, texts[:2]).rows != reference[0].rows[:2]:
                differing.append(f"seed {seed}")
    finally:
        model.perturb_seed = None
    show(amk_record, "P5", "perturbed runs, 7 queues, batch 3, chunk 7", PERTURBED_RUNS - len(differing), PERTURBED_RUNS, differing)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_repeat(engine: Any, texts: list[list[int]], mode: str, amk_record: Recorder) -> None:
    """P6: the same launch 100 times."""
    model = engine.load(queues=few(engine.where), batch=1, context=CONTEXT, chunk=16, mode=mode)
    short = texts[0]
    model.prefill([short])
    first = model.resume([short[-1]], [len(short)], 2)
    layer = model.graph.n_layers - 1
    keys = model.program("decode").vm.buffer(f"L{layer}.k")
    wanted = bits(keys[: len(short) + 2])
    equal = 0
    for _ in range(REPEATS):
        keys[len(short) : len(short) + 2] = float("nan") if mode == "exact" else 0x7FFF
        equal += model.resume([short[-1]], [len(short)], 2) == first and bits(keys[: len(short) + 2]) == wanted
    show(amk_record, "P6", f"the same launch {REPEATS} times, {mode}{engine.said}", equal, REPEATS, where=engine.where)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("engine", ["ranks"], indirect=True)
def test_ranks(
    engine: Any, texts: list[list[int]], mode: str, amk_options: Options, amk_record: Recorder, amk_progress: Progress
) -> None:
    """P5 of ranks: sizes of clusters, chunks and configs change no bit, and a decode step has the bits of the scored text."""
    from amk_core.schedule.config import ScheduleConfig
    from amk_core.schedule.lower_ranks import Ranks

    some = texts[: 1 if amk_options.tier == "quick" else None if amk_options.tier == "full" else 2]
    settings = {"queues": few(engine.where), "batch": 1, "context": CONTEXT, "chunk": 16, "mode": mode}
    model, count = engine.load(**settings), engine.ranks.count
    wanted, logits = trace(model, some), model.logits(some[-1])
    steps, vm = [], model.program("decode").vm
    for position, token in enumerate(some[-1]):
        model.resume([token], [position], 1)
        steps.append(np.array(vm.buffer("logits")[0]))
    equal = sum(bits(a) == bits(b) for a, b in zip(steps, logits, strict=True))
    claim = f"{mode}{engine.said}: a decode step as the scored text, {len(steps)} positions"
    show(amk_record, "P5", claim, equal, len(steps), where=engine.where)
    sizes = (1, 2, 4) if engine.where == "cpu" else (4, 8)
    variants: list[dict[str, Any]] = [{"ranks": Ranks(count, n)} for n in sizes if n != engine.ranks.cluster]
    variants += [{"chunk": 5}, {"config": ScheduleConfig(row_align=2, head_tiles_per_queue=2, fuse_argmax=False)}]
    differing = []
    for changed in amk_progress.over(variants, "equal bits of ranks"):
        other = engine.load(**{**settings, **changed})
        same = trace(other, some) == wanted and bits(other.logits(some[-1])) == bits(logits)
        differing += [] if same else [str(changed)]
    equal = len(variants) - len(differing)
    claim = f"{mode}{engine.said}: sizes of clusters, chunks, configs"
    show(amk_record, "P5", claim, equal, len(variants), differing, engine.where)


@pytest.mark.amk_gpu("P5: CPU and GPU give equal bits")
def test_cpu_and_gpu(
    load: Callable[..., Any], texts: list[list[int]], reference: tuple[Trace, str], amk_record: Recorder, where: str
) -> None:
    """Mode ``exact`` on the card: the CPU's bits, greedy and drawn."""
    model = load(batch=1, context=CONTEXT, chunk=16)
    made = trace(model, texts)
    equal = sum(a == b for a, b in zip(made.rows, reference[0].rows, strict=True))
    equal += bits(model.logits(texts[-1])) == reference[1]
    drawn = {"max_new_tokens": 24, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 3, "stop_ids": []}
    mine = model.generate(texts[1], **drawn)[0].tokens
    cpu = load(backend="cpu", queues=2, batch=1, context=CONTEXT, chunk=16)
    equal += cpu.generate(texts[1], **drawn)[0].tokens == mine
    show(amk_record, "P5", f"{where} as the CPU: greedy, logits, drawn", equal, len(texts) + 2, where=where)


@pytest.mark.amk_gpu("P5: fast bits do not depend on schedule, batch or chunk")
def test_fast_on_the_card(
    load: Callable[..., Any], texts: list[list[int]], amk_record: Recorder, amk_progress: Progress, where: str
) -> None:
    """Mode ``fast`` has bits of its own on the card; they are the same however the work is cut."""
    from amk_core.schedule.config import ScheduleConfig

    model = load(mode="fast", batch=1, context=CONTEXT, chunk=16, ranks="off")
    wanted, logits, sms = trace(model, texts), bits(model.logits(texts[-1])), model.target.queues
    variants: list[dict[str, Any]] = [
        {"queues": min(66, sms)}, {"config": ScheduleConfig(fuse_combine=False, fuse_argmax=False, tiles_per_queue=2)},
        {"config": ScheduleConfig(dependencies="head", attn_splits=3, placement="strided")}, {"chunk": 5}, {"batch": 3},
        {"batch": 16, "chunk": 4}, {"chunk": 32},
    ]  # fmt: skip
    differing = []
    for settings in amk_progress.over(variants, "equal bits of fast"):
        other = load(**{"mode": "fast", "batch": 1, "context": CONTEXT, "chunk": 16, "ranks": "off", **settings})
        same = trace(other, texts) == wanted and bits(other.logits(texts[-1])) == logits
        differing += [] if same else [str(settings)]
    equal = len(variants) - len(differing)
    show(amk_record, "P5", f"fast on {where}: {len(variants)} other ways to cut the work", equal, len(variants), differing, where)
