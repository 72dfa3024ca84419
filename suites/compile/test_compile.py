"""The kernels of the architecture that ``--arch`` names compile, with or without its card, within stated limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from amk_bench.options import Arch, Options
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.targets import Target

CONTEXT = 1  # the kernel's text does not depend on it
REGISTERS = 168  # 12 warps of 168 registers fill the register file of an SM
SPILLS = 64  # bytes a thread: a spilled value is read through L1, which every acquire empties
SPILLS_LONG_HEADS, SPILLS_LONG_HEADS_SM_120 = 128, 288  # attention of more than 64 values holds 96 registers of keys and values
SPILLS_16_ROWS = 512  # prompts: more rows than registers
CASES: tuple[tuple[Mode, Purpose, int, int], ...] = (
    ("fast", "decode", 1, SPILLS), ("exact", "decode", 1, SPILLS), ("fast", "prefill", 16, SPILLS_16_ROWS),
)  # fmt: skip


@pytest.mark.parametrize(("mode", "purpose", "rows", "spills"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
@pytest.mark.parametrize("model", tuple(GRAPH_SHAPES))
def test_kernel_compiles_within_limits(
    model: str, mode: Mode, purpose: Purpose, rows: int, spills: int, amk_arch: Arch, amk_options: Options, amk_record: Recorder,
    amk_progress: Progress, tmp_path: Path,
) -> None:  # fmt: skip
    cell = f"{model}, {mode} {purpose}: compile gate"
    if not amk_arch.is_gpu:
        amk_record.skip(cell, "the device of this run is the CPU", amk_options.command(arch="sm_90"))
    pytest.importorskip("cuda.bindings.nvrtc", reason="the compiler is not installed; run: pip install 'amk[cuda13]'")
    from amk_core.vm import nvrtc
    from amk_core.vm.plan import Dims, plan_build

    card = next((t for t in Target.profiles() if t.arch == amk_arch.name), None)
    if card is None:
        amk_record.skip(cell, f"AMK has no kernels for {amk_arch.name}, but for {', '.join(nvrtc.ARCHITECTURES)}")
    schedule = lower(GRAPH_SHAPES[model], ScheduleConfig(), card, Geometry(purpose, 1, rows, CONTEXT), mode)
    build = plan_build(Dims.of(schedule), amk_arch.name, card.smem_bytes)
    amk_progress.say(f"{model}, {mode} {purpose}: compiling for {amk_arch.name}")
    kernel = nvrtc.build(build.defines, amk_arch.name, tmp_path).kernel("amk_run")
    used = build.shared_bytes + kernel.shared_bytes
    amk_record.note(
        f"compile gate, {amk_arch.name}: {model}, {mode} {purpose}: {kernel.registers} registers, {used} bytes of shared memory, "
        f"{kernel.spill_store_bytes} bytes of spills",
        {"registers": kernel.registers, "shared_bytes": used, "spill_store_bytes": kernel.spill_store_bytes},
    )
    assert kernel.registers > 0
    if rows == 1 and mode == "fast":
        assert kernel.registers <= REGISTERS
    assert used <= card.smem_bytes
    if mode == "fast" and GRAPH_SHAPES[model].head_dim > 64:
        spills = max(spills, SPILLS_LONG_HEADS_SM_120 if amk_arch.name == "sm_120" else SPILLS_LONG_HEADS)
    assert kernel.spill_store_bytes <= spills
