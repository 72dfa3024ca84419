"""P2 of programs for ranks, on the CPU VM: teacher-forced logits of decoding, token by token, against HuggingFace fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amk_bench.baselines.hf import HfEager
from amk_bench.parity import logit_distance
from amk_core.schedule import tables, validate
from amk_core.schedule.ir import Kind
from amk_core.schedule.lower import Geometry
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.targets import Target
from amk_core.vm.cpu import CpuVM

CONTEXT, TOKENS = 256, 64


def decoded(model: Any, ranks: Ranks, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits behind every token, each fed alone."""
    s = lower_ranks(model.graph, ranks, Target.cpu(ranks.queues), Geometry(context=CONTEXT), model.mode)
    verdict, layout = validate(s), TapeLayout.of(s)
    assert verdict.accepted, str(verdict)
    bound = {b.name: model.constant(b.name, b.dtype, b.rows) for b in s.buffers if b.kind is Kind.TABLE}
    tape = Tape.build(layout, model.weight).data
    vm = CpuVM(
        tables.pack(s), verdict.certificate, task_weight=layout.locate(s), tape=tape, tape_dtype=layout.dtype, bound=bound
    )  # fmt: skip
    for name, value in (("stop_ids", -1), ("control", 0), ("done", 0)):
        vm.buffer(name)[...] = value
    out = []
    for position, token in enumerate(ids):
        vm.buffer("token")[...] = token
        vm.launch(1, [position, 1])
        vm.wait()
        out.append(vm.buffer("logits")[0].copy())
    return np.array(out)


@pytest.mark.parametrize("ranks", [Ranks(15, 1), Ranks(3, 2)], ids=["15x1", "3x2"])
def test_logits_of_ranks(
    ranks: Ranks, load: Callable[..., Any], hf: HfEager, text_ids: list[int], hold_logits: Callable[..., None]
) -> None:
    ids = text_ids[:TOKENS]
    distance = logit_distance(decoded(load(backend="cpu", context=CONTEXT, batch=1), ranks, ids), hf.logits(ids))
    hold_logits(distance, f"logits of {ranks.count} ranks of {ranks.cluster} queues, {TOKENS} positions", "cpu")
