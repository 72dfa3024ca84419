"""P4: mode ``fast`` on a card is at least as near to float64 as HuggingFace's bf16 on the same card, on real weights.

The text is scored once by each: our VM in ``fast``, HuggingFace in bf16, and HuggingFace in float64, with the bf16 weights that
both store (what is judged is the arithmetic) and with the checkpoint's own float32 weights.  Positions are judged from one position
of the common list to the next, up to the end of the KV cache.

Ranks are judged as the program without them: their sums have another order, so their logits are others.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench.accuracy import Errors, Matched, errors, matched
from amk_bench.baselines.hf import HfEager
from amk_bench.options import Options
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.references import in_float64, rows_of
from amk_bench.session import Session

pytestmark = pytest.mark.amk_gpu("P4: fast against HF bf16, both against float64")
EDGES = (0, 16, 128, 512, 1024, 2048, 4096, 8192)
QUICK_END = 2048
NEW_TOKENS = 512
PROMPT = 600


@pytest.fixture(scope="module")
def ids(text_ids: list[int], amk_options: Options, hf_card: HfEager) -> list[int]:
    """The text up to the model's context."""
    end = QUICK_END if amk_options.tier == "quick" else EDGES[-1]
    return text_ids[: min(end, int(hf_card.model.config.max_position_embeddings))]


@pytest.fixture(scope="module")
def hf_card(model_path: Path, amk_session: Session) -> Iterator[HfEager]:
    """HuggingFace in bf16 on the card."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no card, and HuggingFace's bf16 has to run on the card too; run: pip install torch (a CUDA build)")
    engine = HfEager(model_path, amk_session.machine.cores, "bf16", "cuda")
    yield engine
    engine._model = None
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def ours(engine: Any, ids: list[int]) -> Any:
    """Our logits of the text, [positions, vocabulary]; the KV cache ends with the text."""
    return engine.load(mode="fast", context=len(ids)).logits(ids)


def parts_of(mine: Errors, theirs: Errors) -> dict[str, tuple[Errors, Errors]]:
    """Both, from one of the common positions to the next."""
    n = len(mine.kl)
    edges = [e for e in EDGES if e < n] + [n]
    return {f"{a} to {b}": (mine.part(a, b), theirs.part(a, b)) for a, b in pairwise(edges)}


def judge(
    record: Recorder, where: str, claim: str, parts: dict[str, tuple[Errors, Errors]], seed: int
) -> list[Matched]:  # fmt: skip
    """Both measures over all positions are recorded, every part is judged; returns what does not hold."""
    whole = [Errors(*(np.concatenate([getattr(p[side], f) for p in parts.values()]) for f in ("kl", "rms"))) for side in (0, 1)]
    per_part = {name: matched(a, b, seed) for name, (a, b) in parts.items()}
    failed: list[Matched] = []
    for i, total in enumerate(matched(whole[0], whole[1], seed)):
        bad = [m[i] for m in per_part.values() if not m[i].passed]
        failed += bad
        record.parity(
            "P4", f"{total.measure}: {claim}, {total.positions} positions",
            measured=f"{total.ours:.2e} against {total.theirs:.2e}", required="upper bound of the difference <= 0",
            passed=not bad and total.passed, value=total.bound, limit=0.0, where=where,
            detail="; ".join(f"positions {name}: {m[i]}" for name, m in per_part.items()),
        )  # fmt: skip
    return failed


@pytest.mark.parametrize("weights", ["stored", "checkpoint"])
def test_fast_is_as_near_to_float64_as_hf_bf16(
    weights: str, ours: Any, hf_card: HfEager, model_path: Path, ids: list[int], engine: Any, amk_record: Recorder,
    amk_progress: Progress, amk_session: Session,
) -> None:  # fmt: skip
    import torch

    amk_progress.say(f"{len(ids)} positions in float64 with the {weights} weights")
    source = hf_card if weights == "stored" else HfEager(model_path, amk_session.machine.cores, "fp32", "cuda")
    with in_float64(source.model) as wide:
        reference = rows_of(wide, ids)
        del wide
    theirs = errors(rows_of(hf_card.model, ids), reference)
    mine = errors(ours, reference)
    del reference, source
    gc.collect()
    torch.cuda.empty_cache()
    parts = parts_of(mine, theirs)
    held = {"stored": "the bf16 weights that both store", "checkpoint": "the checkpoint's weights"}[weights]
    claim = f"fast against HF bf16, to float64 with {held}{engine.said}"
    failed = judge(amk_record, engine.where, claim, parts, amk_session.seed)
    assert not failed, "; ".join(map(str, failed))


def test_the_decode_step_gives_the_logits_of_the_scored_text(ours: Any, ids: list[int], engine: Any, amk_record: Recorder) -> None:
    """So what holds for scored positions holds for decoding."""
    model = engine.load(mode="fast", context=len(ids))
    positions = [p for p in (*EDGES[:-1], len(ids) - 1) if p < len(ids)]
    equal, there = [], 0
    for p in positions:
        model.prefill([ids[:p]], start=there)
        there = p
        model.resume([ids[p]], [p], 1)
        row = model.program("decode").vm.memory.read("logits")[0]
        equal.append(row.tobytes() == ours[p].tobytes())
    amk_record.parity(
        "P5", f"fast on {engine.where}: a decode step as the scored text, positions {', '.join(map(str, positions))}{engine.said}",
        measured=f"{sum(equal)} of {len(equal)} equal", required="equal bits", passed=all(equal), value=float(sum(equal)),
        limit=float(len(equal)), where=engine.where,
    )  # fmt: skip
    assert all(equal), dict(zip(positions, equal, strict=True))


def test_a_generation_of_512_tokens(engine: Any, text_ids: list[int], hf_card: HfEager, amk_record: Recorder) -> None:
    """Every token is the argmax of our own scored text; how many HuggingFace's float64 agrees with is noted."""
    prompt = text_ids[:PROMPT]
    model = engine.load(mode="fast", context=PROMPT + NEW_TOKENS)
    arrived: list[int] = []
    made = model.generate(prompt, NEW_TOKENS, stop_ids=[], on_token=lambda _, token: arrived.append(token))[0].tokens
    assert arrived == made
    scored = model.logits([*prompt, *made[:-1]])[PROMPT - 1 :]
    equal = int((scored.argmax(axis=1) == np.asarray(made)).sum())
    with in_float64(hf_card.model) as wide:
        best = rows_of(wide, [*prompt, *made[:-1]])[PROMPT - 1 :].argmax(-1).cpu().numpy()
    agreed = int((best == np.asarray(made)).sum())
    amk_record.parity(
        "P1", f"fast on {engine.where}: {NEW_TOKENS} greedy tokens are the argmax of the scored text{engine.said}",
        measured=f"{equal} of {NEW_TOKENS}", required="all", passed=equal == NEW_TOKENS, value=float(equal),
        limit=float(NEW_TOKENS), where=engine.where,
        detail=f"float64 with the same weights and the same past agrees with {agreed} of {NEW_TOKENS}",
    )  # fmt: skip
    assert equal == NEW_TOKENS
