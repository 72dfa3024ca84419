"""Whole programs with activations of 8 bits by the kernels' own code on the host: in exact mode the bits of the CPU VM."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_rows_kernels import SMEM, Kernels

from amk_bench.device_cases import GRAPHS, Case, bits, distances, graph, run_cpu
from amk_core.vm.plan import Dims, plan_build
from amk_core.vm.quant_tape import STAGE_BYTES_A8

EXACT = (
    Case("one", "odd", "exact", steps=2, tokens=(2,), p0=(130,), weights="int8-a8,head=int8-g32-a8"),
    Case("three", "odd", "exact", batch=3, p0=(0, 5, 130), tokens=(2, 1, 2), steps=2, weights="int8-g128-a8,head=stored"),
    Case("prompt", "odd", "exact", "logits", chunk=5, p0=(120,), tokens=(9,), steps=2, weights="int8-g64-a8-bf16,head=int8"),
)
FAST = (
    Case("one", "small", "fast", steps=2, tokens=(2,), p0=(130,), weights="int8-a8,head=int8-a8"),
    Case("three", "small", "fast", batch=3, p0=(0, 5, 130), tokens=(2, 1, 2), steps=2, weights="int8-a8,head=int8-g32-a8"),
    Case("prompt", "small", "fast", "logits", chunk=12, p0=(120,), tokens=(20,), steps=2, weights="int8-g128-a8,head=int8-a8"),
    # Gate outputs come piece by piece, and are fetched twice.
    Case("pieces", "pieces", "fast", batch=16, p0=tuple(range(16)), tokens=(1,) * 15 + (0,), steps=1, context=64,
         weights="int8-a8,head=int8-a8"),
    Case("mixed", "small", "fast", batch=2, p0=(0, 130), tokens=(2, 2), steps=2, weights="int8-a8,head=int4-g32-min"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAPHS, "pieces", graph("pieces", 96, 192, 5376, 1, 6, 2, 32))  # type: ignore[arg-type]


def test_gate_outputs_of_16_long_rows_come_piece_by_piece() -> None:
    c = next(c for c in FAST if c.name == "pieces")
    stage = plan_build(Dims.of(c.schedule(3, {}, "sm_90")), "sm_90", SMEM).defines["AMK_STAGE_BYTES"]
    assert stage == 16 * 16 * STAGE_BYTES_A8 < 16 * 42 * STAGE_BYTES_A8


@pytest.mark.parametrize("c", EXACT, ids=lambda c: c.name)
def test_exact_gives_the_bits_of_the_cpu_vm(c: Case, tmp_path: Path) -> None:
    got, want = Kernels(c, c.schedule(3, {}, "sm_90"), tmp_path).run(), run_cpu(c)
    assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in want.items()}


@pytest.mark.parametrize("c", FAST, ids=lambda c: c.name)
def test_fast_is_as_near_as_the_cpu_vm_and_its_bits_do_not_depend_on_the_hand_off(c: Case, tmp_path: Path) -> None:
    got = Kernels(c, c.schedule(3, {}, "sm_90"), tmp_path).run()
    other = Kernels(c, c.schedule(2, {"handoff": "counter", "fuse_combine": False}, "sm_90"), tmp_path).run()
    assert {k: bits(v) for k, v in other.items()} == {k: bits(v) for k, v in got.items()}
    cpu = run_cpu(c)
    mine, theirs = distances(c, got, cpu)
    assert 0 < mine <= 1.5 * theirs
