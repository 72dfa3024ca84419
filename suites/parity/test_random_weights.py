"""Public shapes with random weights and a few planted outlier channels, mode ``fast`` on a card: a smoke test, labelled so.

No checkpoint of these shapes can be had without a network, so nothing here says how accurate a trained model is.  What it says: at
every position of the common list the logits are as near to float64 as those of HuggingFace's bf16 on the very same weights, and 512
greedy tokens are the argmax of the scored text.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from amk_bench.accuracy import errors, matched
from amk_bench.options import Options
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.references import in_float64, rows_of
from amk_bench.session import Session
from amk_core.graph import GRAPH_SHAPES

POSITIONS = (0, 16, 128, 512, 1024, 2048, 4096, 16384)
QUICK_END = {"quick": 1024, "default": 4096, "full": 16384}
ROWS = 16  # positions scored from each position of the list on
NEW_TOKENS = 512


def chosen(context: int, last: int) -> list[int]:
    """The list up to ``last`` and the context, and the end of the context where that comes first; no two windows overlap."""
    inside = [p for p in POSITIONS if p <= last and p + 2 * ROWS <= context]
    return inside if context > last + ROWS else [*inside, context - ROWS]


@pytest.mark.amk_gpu("random weights: fast against HF bf16, both against float64")
@pytest.mark.parametrize("name", ["tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b"])
def test_a_public_shape(
    name: str, backend: str, where: str, amk_options: Options, amk_record: Recorder, amk_progress: Progress,
    amk_session: Session,
) -> None:  # fmt: skip
    import torch

    import amk_core
    from amk_bench.baselines.weights import hf_model, random_weights

    if not torch.cuda.is_available():
        pytest.skip("torch sees no card, and the reference runs there; run: pip install torch (a CUDA build)")
    graph = GRAPH_SHAPES[name]
    weights = random_weights(graph, amk_session.seed, "cuda", torch.bfloat16)
    live = hf_model(weights)
    positions = chosen(graph.context, QUICK_END[amk_options.tier])
    rng = np.random.default_rng(amk_session.seed)
    ids = rng.integers(0, graph.vocab_size, positions[-1] + ROWS).tolist()
    rows = [p + i for p in positions for i in range(ROWS)]
    amk_progress.say(f"{name}: HF in float64 and bf16 over {len(ids)} tokens")
    with in_float64(live) as wide:
        reference = rows_of(wide, ids, rows)
        del wide
    theirs = errors(rows_of(live, ids, rows), reference)
    gc.collect()
    torch.cuda.empty_cache()

    amk_progress.say(f"{name}: our VM")
    model = amk_core.load(live, mode="fast", context=min(graph.context, max(len(ids), 1024)), backend=backend)
    scored, there = [], 0
    for p in positions:
        model.prefill([ids[:p]], start=there)
        scored.append(model.logits(ids[: p + ROWS], start=p))
        there = p + ROWS
    mine = errors(np.concatenate(scored), reference)
    told = f"random weights, {name}, positions {', '.join(map(str, positions))}"
    failed = []
    for m in matched(mine, theirs, amk_session.seed):
        failed += [] if m.passed else [str(m)]
        amk_record.parity(
            "P4", f"{m.measure}: {told}; a smoke test", measured=f"{m.ours:.2e} against {m.theirs:.2e} of HF bf16",
            required="upper bound of the difference <= 0", passed=m.passed, value=m.bound, limit=0.0, where=where,
            detail=f"{weights.origin}; " + "; ".join(
                f"from {p}: {mine.rms[i * ROWS:(i + 1) * ROWS].mean():.2e} against {theirs.rms[i * ROWS:(i + 1) * ROWS].mean():.2e}"
                for i, p in enumerate(positions)) + " (root mean square of logits)",
        )  # fmt: skip

    made = model.generate(ids[:ROWS], NEW_TOKENS, stop_ids=[])[0].tokens
    again: Any = model.logits([*ids[:ROWS], *made[:-1]])[ROWS - 1 :]
    equal = int((again.argmax(axis=1) == np.asarray(made)).sum())
    amk_record.parity(
        "P1", f"random weights, {name}: {NEW_TOKENS} greedy tokens are the argmax of the scored text; a smoke test",
        measured=f"{equal} of {NEW_TOKENS}", required="all", passed=equal == NEW_TOKENS, value=float(equal),
        limit=float(NEW_TOKENS), where=where,
    )  # fmt: skip
    del model, live, weights, reference
    gc.collect()
    torch.cuda.empty_cache()
    assert not failed, failed
    assert equal == NEW_TOKENS
