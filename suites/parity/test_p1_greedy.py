"""P1: greedy continuations of 256 tokens are those of HuggingFace fp32.

Our VM decodes all prompts as one batch, with ranks one after the other.  HuggingFace scores prompt + continuation in one
teacher-forced pass: by induction its greedy tokens are ours exactly when its argmax is our token at every position.
``--full`` also runs ``generate(do_sample=False)``.
Where HuggingFace's own top-2 margin is smaller than its own float32 error (against float64), its choice is a tie; ties are counted
and named, and only there may a token differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from amk_bench.baselines.hf import HfEager
from amk_bench.options import Options
from amk_bench.parity import top2_margin
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder

NEW_TOKENS = 256
QUICK_PROMPTS = ("france", "story", "code", "science", "novel")


@dataclass(frozen=True, slots=True)
class Continuation:
    prompt: list[int]
    tokens: list[int]


@pytest.fixture(scope="module")
def continuations(
    patient_engine: Any, prompts: dict[str, list[int]], amk_options: Options, amk_progress: Progress
) -> dict[str, Continuation]:
    """What our VM makes of every prompt, side by side but with ranks; the longest one ends at the end of the KV cache."""
    chosen = {name: ids for name, ids in prompts.items() if amk_options.tier != "quick" or name in QUICK_PROMPTS}
    amk_progress.say(f"greedy: {len(chosen)} prompts x {NEW_TOKENS} tokens on our VM{patient_engine.said}")
    context = max(map(len, chosen.values())) + NEW_TOKENS
    model = patient_engine.load(batch=min(len(chosen), patient_engine.most), context=context)
    made = model.generate(list(chosen.values()), max_new_tokens=NEW_TOKENS, temperature=0.0, stop_ids=[])
    return {name: Continuation(ids, list(g.tokens)) for (name, ids), g in zip(chosen.items(), made, strict=True)}


def test_greedy_tokens_are_those_of_hf(
    continuations: dict[str, Continuation], hf: HfEager, amk_options: Options, amk_record: Recorder, amk_progress: Progress,
    patient_engine: Any,
) -> None:  # fmt: skip
    margins, differ = {}, {}
    for name in amk_progress.over(list(continuations), "HF scores our continuations"):
        c = continuations[name]
        assert len(c.tokens) == NEW_TOKENS, f"{name}: {len(c.tokens)} tokens, {NEW_TOKENS} asked for and no stop ids"
        scored = hf.logits([*c.prompt, *c.tokens[:-1]], keep=NEW_TOKENS)
        margins[name] = top2_margin(scored)
        differ[name] = np.flatnonzero(np.argmax(scored, axis=-1) != np.asarray(c.tokens))
    # The float64 pass is dear: a quick run takes it for the prompt with the closest call and for every prompt that differs.
    closest = min(margins, key=lambda name: float(margins[name].min()))
    examined = [n for n in continuations if amk_options.tier != "quick" or n == closest or differ[n].size]
    ties, wrong, error = [], [], 0.0
    for name in amk_progress.over(examined, "HF's own float32 error"):
        c = continuations[name]
        errors, wide_margin = hf.error_of_float32([*c.prompt, *c.tokens[:-1]], keep=NEW_TOKENS)
        error = max(error, float(errors.max()))
        tied = set(np.flatnonzero(wide_margin < errors).tolist())
        ties += [f"{name}[{i}]" for i in sorted(tied)]
        wrong += [f"{name}[{i}]" for i in differ[name].tolist() if i not in tied]
    if amk_options.tier == "quick":
        amk_record.note(f"quick run: {len(QUICK_PROMPTS)} of 7 prompts, HF's float32 error of the closest call only")
    total = NEW_TOKENS * len(continuations)
    equal = total - sum(d.size for d in differ.values())
    smallest = float(margins[closest].min())
    amk_record.parity(
        "P1",
        f"{NEW_TOKENS} greedy tokens of {len(continuations)} prompts{patient_engine.said}",
        measured=f"{equal} of {total} equal",
        required="all, but for ties",
        passed=not wrong,
        value=float(equal),
        limit=float(total),
        where=patient_engine.where,
        detail=f"HF's closest call has a top-2 margin of {smallest:.1e}, its own float32 error is {error:.1e}; "
        f"ties: {', '.join(ties) if ties else 'none'}",
    )
    assert not wrong, f"{len(wrong)} tokens differ from HF where HF is sure: {', '.join(wrong[:8])}"


@pytest.mark.amk_full("P1 against HF's own generate loop")
def test_greedy_tokens_are_those_of_hf_generate(
    continuations: dict[str, Continuation], hf: HfEager, amk_record: Recorder, amk_progress: Progress, patient_engine: Any
) -> None:
    equal = {}
    for name in amk_progress.over(list(continuations), "HF generate(do_sample=False)"):
        c = continuations[name]
        equal[name] = sum(a == b for a, b in zip(hf.generate(c.prompt, NEW_TOKENS), c.tokens, strict=True))
    total = NEW_TOKENS * len(continuations)
    measured = f"{sum(equal.values())} of {total} equal"
    passed = sum(equal.values()) == total
    claim = f"generate(do_sample=False), {len(equal)} prompts{patient_engine.said}"
    amk_record.parity("P1", claim, measured=measured, required="all", passed=passed, where=patient_engine.where)
    assert passed, equal
