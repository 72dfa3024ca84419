"""Ranks on the CPU VM: the same tokens as the ordinary lowering, logits within rounding, equal bits over clusters and timing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import GRAPHS
from amk_core.schedule import tables, validate
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, Mode, lower
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.targets import Target
from amk_core.vm.cpu import CpuVM

STEPS = 6
CLOSE = {"exact": 2e-5, "fast": 2e-2}  # of the largest logit: another order of sums; in fast, now and then another bf16


def matrix(name: str, rows: int, cols: int) -> Any:
    rng = np.random.default_rng(list(name.encode()))
    if name in ("rope.cos", "rope.sin"):
        angle = np.outer(np.arange(rows), 100.0 ** -np.linspace(0, 1, cols))
        return (np.cos if name == "rope.cos" else np.sin)(angle).astype(np.float32)
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    return x * np.float32(0.1) + 1 if "norm" in name else x * np.float32(1.0 if name == "embed" else cols**-0.5)


def provider(s: Schedule, whole: Schedule) -> Any:
    """Weights by name; a piece of a matrix that ranks share is cut from the matrix of the ordinary lowering."""
    shape = {b.name: (b.rows, b.cols) for b in whole.buffers}

    def get(name: str) -> Any:
        base, _, piece = name.rpartition(".")
        first, dash, last = piece.partition("-")
        return matrix(base, *shape[base])[:, int(first) : int(last)] if dash else matrix(name, *shape[name])

    return get


def decode(s: Schedule, whole: Schedule, mode: Mode, **options: Any) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Tokens of STEPS steps from position 3 on, and the logits of the last."""
    layout, get = TapeLayout.of(s), provider(s, whole)
    packed = tables.pack(s)
    verdict = validate(s)
    assert verdict.accepted, str(verdict)
    bound = {}
    for b in s.buffers:
        if b.kind is Kind.TABLE:
            x = get(b.name)
            bound[b.name] = (x.view(np.uint32) >> 16).astype(np.uint16) if b.dtype == "bf16" else x
    vm = CpuVM(
        packed,
        verdict.certificate,
        task_weight=layout.locate(s),
        tape=Tape.build(layout, get).data,
        tape_dtype=layout.dtype,
        bound=bound,
    )
    for name in ("stop_ids", "control", "done"):
        vm.buffer(name)[...] = -1 if name == "stop_ids" else 0
    vm.buffer("token")[...] = 7
    rng = np.random.default_rng(1)
    for b in s.buffers:
        if b.kind is Kind.KV:
            rows = rng.integers(0, 1 << 12, (3, b.cols))
            vm.buffer(b.name)[:3] = (rows + 0x3F00).astype(np.uint16) if b.dtype == "bf16" else rows.astype(np.float32) / 4096
    vm.launch(STEPS, [3, STEPS], poison=True, **options)
    vm.wait()
    return vm.buffer("out")[:STEPS, 0].tolist(), vm.buffer("logits").copy()


@pytest.mark.parametrize(("name", "count"), [("small", 3), ("odd", 2), ("smol", 5)])
def test_ranks_compute_what_the_ordinary_lowering_computes(name: str, count: int, mode: Mode) -> None:
    geometry = Geometry(context=64)
    whole = lower(GRAPHS[name], target=Target.cpu(2), geometry=geometry, mode=mode)
    want, logits = decode(whole, whole, mode)
    s = lower_ranks(GRAPHS[name], Ranks(count, 1), Target.cpu(count), geometry, mode)
    got, mine = decode(s, whole, mode)
    assert np.abs(mine - logits).max() <= CLOSE[mode] * np.abs(logits).max()
    assert got == want
    if mode == "exact":  # in fast the rounding of the norms' output hides it
        assert (mine != logits).any()  # the parts are sums of their own, not the ordinary product


def test_bits_depend_on_the_number_of_ranks_alone(mode: Mode) -> None:
    geometry = Geometry(context=64)
    g = GRAPHS["small"]
    whole = lower(g, target=Target.cpu(2), geometry=geometry, mode=mode)
    seen = {}
    for cluster, seed in ((1, None), (2, 5), (3, 6)):
        s = lower_ranks(g, Ranks(2, cluster), Target.cpu(2 * cluster), geometry, mode)
        tokens, logits = decode(s, whole, mode, perturb_seed=seed)
        seen[cluster] = (tokens, logits.tobytes())
    assert len(set(map(str, seen.values()))) == 1
    other = decode(lower_ranks(g, Ranks(4, 1), Target.cpu(4), geometry, mode), whole, mode)[1]
    assert mode == "fast" or other.tobytes() != seen[1][1]
