"""The device VM compiles for every architecture on a machine without a card, and its resources stay within stated limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from amk_core.graph import GRAPH_SHAPES
from amk_core.quant.config import QuantConfig
from amk_core.schedule.config import Handoff, ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.targets import Target
from amk_core.vm import nvrtc
from amk_core.vm.plan import PAIR_FLIGHT, Dims, ProgramError, plan_build

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")

SPILL_LIMIT_BYTES = 64  # a spilled value is read through L1, which every acquire empties: none in the decode path
SPILL_LIMIT_LONG_HEADS_BYTES = 192  # attention holds 96 registers of keys and values, where 168 are to be had
SPILL_LIMIT_LONG_ROWS_BYTES = 256  # marked rows of two pieces: none in the loops of a product
SPILL_LIMIT_16_ROWS_BYTES = 512  # prompts and batches of 16: more rows than registers
REGISTER_LIMIT = 168  # 12 warps of 168 registers fill the register file of an SM
MODEL = "smollm2-135m"


def schedule(
    model: str = MODEL, mode: Mode = "fast", purpose: Purpose = "decode", batch: int = 1, chunk: int = 1, handoff: Handoff = "auto",
    weights: str = "",
) -> Schedule:  # fmt: skip
    few, quant = Target("few", "cpu", 4), QuantConfig.parse(weights) if weights else None
    return lower(GRAPH_SHAPES[model], ScheduleConfig(handoff=handoff), few, Geometry(purpose, batch, chunk, 64), mode, quant)


def smem(arch: str) -> int:
    return next(t.smem_bytes for t in Target.profiles() if t.arch == arch)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubin")


def more(*case: Any) -> Any:
    """A build that takes the time of others and should say nothing that they do not: part of the full run."""
    return pytest.param(*case, marks=pytest.mark.amk_full("more builds for more architectures"))


def first(*arches: str) -> list[Any]:
    return [arch if arch in arches else more(arch) for arch in nvrtc.ARCHITECTURES]


@pytest.mark.parametrize(
    ("handoff", "arch"),
    [*(("tagged", arch) for arch in nvrtc.ARCHITECTURES), ("counter", "sm_80"), ("counter", "sm_90")]
    + [more("counter", arch) for arch in ("sm_86", "sm_89", "sm_120")],
)
def test_fast_compiles_for_every_architecture_without_spills(arch: str, handoff: Handoff, cache: Path) -> None:
    build = plan_build(Dims.of(schedule(handoff=handoff)), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert 0 < kernel.registers <= REGISTER_LIMIT
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize(("model", "arch"), [("llama-3.2-1b", "sm_90"), (MODEL, "sm_86")])
def test_prompts_of_32_rows_compile_and_spill_no_more_than_is_stated(model: str, arch: str, cache: Path) -> None:
    target = Target("few", "cpu", 4, smem(arch))
    s = lower(GRAPH_SHAPES[model], ScheduleConfig(fuse_combine=False), target, Geometry("prefill", 1, 32, 64), "fast")
    build = plan_build(Dims.of(s), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_16_ROWS_BYTES
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize(("model", "arch"), [("smollm2-135m", "sm_80"), ("llama-3.1-8b", "sm_90")])
def test_sixteen_rows_spill_no_more_than_is_stated(model: str, arch: str, cache: Path) -> None:
    build = plan_build(Dims.of(schedule(model, purpose="prefill", chunk=16)), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_16_ROWS_BYTES


@pytest.mark.parametrize(
    ("model", "arch", "batch", "limit"),
    [
        (MODEL, "sm_80", 4, SPILL_LIMIT_BYTES),
        more("llama-3.2-1b", "sm_90", 8, SPILL_LIMIT_BYTES),
        ("llama-3.2-1b", "sm_90", 16, SPILL_LIMIT_16_ROWS_BYTES),
        more("llama-3.1-8b", "sm_86", 2, SPILL_LIMIT_LONG_HEADS_BYTES),
        more(MODEL, "sm_89", 2, SPILL_LIMIT_BYTES),
        more(MODEL, "sm_120", 4, SPILL_LIMIT_BYTES),
    ],
)
def test_tagged_decoding_of_several_sequences_spills_no_more_than_is_stated(
    model: str, arch: str, batch: int, limit: int, cache: Path
) -> None:
    target = Target("few", "cpu", 4, smem(arch))
    s = lower(GRAPH_SHAPES[model], ScheduleConfig(handoff="tagged"), target, Geometry(batch=batch, context=64), "fast")
    assert any(b.tagged for b in s.buffers)
    build = plan_build(Dims.of(s), arch, smem(arch), marked=False)
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= limit
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize(
    ("model", "arch", "batch", "limit"),
    [
        (MODEL, "sm_80", 4, SPILL_LIMIT_BYTES),
        more(MODEL, "sm_86", 2, SPILL_LIMIT_BYTES),
        more("llama-3.2-1b", "sm_89", 8, SPILL_LIMIT_BYTES),
        ("llama-3.2-1b", "sm_90", 2, SPILL_LIMIT_BYTES),
        more("llama-3.2-1b", "sm_90", 8, SPILL_LIMIT_BYTES),
        ("llama-3.2-1b", "sm_90", 16, SPILL_LIMIT_16_ROWS_BYTES),
        more("llama-3.1-8b", "sm_90", 4, SPILL_LIMIT_LONG_ROWS_BYTES),
        ("llama-3.1-8b", "sm_90", 16, SPILL_LIMIT_LONG_ROWS_BYTES),
        more("tinyllama-1.1b", "sm_120", 4, SPILL_LIMIT_BYTES),
    ],
)
def test_marked_values_compile_and_spill_no_more_than_is_stated(model: str, arch: str, batch: int, limit: int, cache: Path) -> None:
    target = Target("few", "cpu", 4, smem(arch))
    s = lower(GRAPH_SHAPES[model], ScheduleConfig(handoff="tagged"), target, Geometry(batch=batch, context=64), "fast")
    build = plan_build(Dims.of(s), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert build.defines["AMK_MARKED"] == 1
    assert kernel.spill_store_bytes <= limit
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize("arch", first("sm_86", "sm_90", "sm_120"))
def test_quantised_weights_compile_for_every_architecture_without_spills(arch: str, cache: Path) -> None:
    build = plan_build(Dims.of(schedule("llama-3.2-1b", weights="int4-g128,head=int4-g128")), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize("arch", first("sm_80", "sm_90"))
def test_pairs_of_row_groups_compile_for_every_architecture_without_spills(arch: str, cache: Path) -> None:
    """Small cards get slots of pairs that their plan would not choose."""
    build = plan_build(Dims.of(schedule(weights="int4-g128,head=int8-g128")), arch, smem(arch), pair_slots=2)
    assert (build.defines["AMK_PAIRS"], build.defines["AMK_SLOT_UNITS"]) == (1, 64)
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


@pytest.mark.parametrize(
    ("arch", "model", "weights", "rows"),
    [
        *((arch, "llama-3.2-1b", "int8-a8,head=int8-g128-a8", 4) for arch in ("sm_80", "sm_90")),
        *(more(arch, "llama-3.2-1b", "int8-a8,head=int8-g128-a8", 4) for arch in ("sm_86", "sm_89", "sm_120")),
        ("sm_80", MODEL, "int8-g32-a8,head=int8-a8", 1),
        ("sm_90", "llama-3.1-8b", "int8-g128-a8,head=int8-a8", 1),
        ("sm_90", "llama-3.1-8b", "int8-a8,head=int8-a8", 16),
    ],
)
def test_activations_of_8_bits_compile_for_every_architecture_without_spills(
    arch: str, model: str, weights: str, rows: int, cache: Path
) -> None:
    build = plan_build(Dims.of(schedule(model, batch=rows, weights=weights)), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert build.defines["AMK_PAIRS"] == 0
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


def test_activations_of_8_bits_take_less_shared_memory() -> None:
    stages = [
        plan_build(Dims.of(schedule(batch=4, weights=f"{w},head={w}")), "sm_90", smem("sm_90")).defines["AMK_STAGE_BYTES"]
        for w in ("int8", "int8-a8")
    ]
    assert stages[0] * 256 == stages[1] * 400 > 0


def test_pairs_are_for_one_row_where_they_fit() -> None:
    one, two = (Dims.of(schedule("llama-3.2-1b", batch=n, weights="int4-g128")) for n in (1, 2))
    assert [plan_build(one, arch, smem(arch)).defines["AMK_PAIRS"] > 0 for arch in ("sm_86", "sm_90")] == [False, True]
    assert plan_build(two, "sm_90", smem("sm_90")).defines["AMK_PAIRS"] == 0
    assert plan_build(one, "sm_90", smem("sm_90"), pairs=False).defines["AMK_SLOT_UNITS"] == 32


def test_long_rows_of_pairs_come_by_piece_and_leave_the_ring_six_slots() -> None:
    for weights, piece in (("int4-g128", 32), ("int8-g128", 16)):  # records; the 32 of a normalised row are staged whole
        dims = Dims.of(schedule("llama-3.1-8b", weights=f"{weights},head={weights}"))
        defines = plan_build(dims, "sm_90", smem("sm_90")).defines
        assert (defines["AMK_STAGE_BYTES"], defines["AMK_SLOTS"]) == (max(piece, 32) * 400, 6)
        assert plan_build(dims, "sm_90", smem("sm_90"), pairs=False).defines["AMK_STAGE_BYTES"] == 112 * 400


def test_pairs_have_a_flight_of_their_own() -> None:
    one = Dims.of(schedule("llama-3.2-1b", weights="int4-g128"))

    def flight(**chosen: bool) -> list[int]:
        defines = plan_build(one, "sm_90", smem("sm_90"), **chosen).defines
        return [defines[f"AMK_FLIGHT_{x}"] for x in ("HIGH", "MID", "LOW")]

    assert flight() == list(PAIR_FLIGHT) != flight(pairs=False)


OTHER_FORMATS: tuple[dict[str, Any], ...] = (
    {"weights": "int8,head=stored"},
    {"weights": "int4-g32-min,head=int8-g32", "purpose": "prefill", "chunk": 16},
    {"weights": "int4-g64-zero-bf16,head=int8-g32", "mode": "exact"},
)


@pytest.mark.parametrize("program", OTHER_FORMATS, ids=lambda p: p["weights"])
def test_other_formats_compile_and_spill_no_more_than_is_stated(program: dict[str, Any], cache: Path) -> None:
    build = plan_build(Dims.of(schedule(**program)), "sm_90", smem("sm_90"))
    kernel = nvrtc.build(build.defines, "sm_90", cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= (SPILL_LIMIT_16_ROWS_BYTES if "chunk" in program else SPILL_LIMIT_BYTES)


def test_more_rows_of_quantised_weights_than_fit_are_refused_with_what_to_do() -> None:
    s = schedule(purpose="prefill", batch=2, chunk=16, weights="int8")
    with pytest.raises(ProgramError, match=r"32 rows a step .* of quantised weights takes at most 16; use a smaller chunk"):
        plan_build(Dims.of(s), "sm_90", smem("sm_90"))
    with pytest.raises(ProgramError, match=r"16 rows a step take \d+; take fewer"):
        plan_build(Dims.of(schedule("llama-3.1-8b", purpose="prefill", chunk=16, weights="int8")), "sm_90", smem("sm_90"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_exact_compiles_without_spills(arch: str, cache: Path) -> None:
    build = plan_build(Dims.of(schedule(mode="exact")), arch, smem(arch))
    kernel = nvrtc.build(build.defines, arch, cache).kernel("amk_run")
    assert kernel.spill_store_bytes <= SPILL_LIMIT_BYTES
    assert build.shared_bytes + kernel.shared_bytes <= smem(arch)


def test_the_build_for_race_detectors_compiles(mode: Mode, cache: Path) -> None:
    build = plan_build(Dims.of(schedule(mode=mode)), "sm_90", smem("sm_90"))
    checked = nvrtc.build({**build.defines, "AMK_CHECKED": 1}, "sm_90", cache)
    assert checked.data != nvrtc.build(build.defines, "sm_90", cache).data


def test_the_cache_gives_the_same_bytes_and_any_macro_changes_the_key(cache: Path) -> None:
    build = plan_build(Dims.of(schedule()), "sm_90", smem("sm_90"))
    first, again = (nvrtc.build(build.defines, "sm_90", cache) for _ in range(2))
    assert again.cached
    assert (again.data, again.kernels) == (first.data, first.kernels)
    assert first.data[:4] == b"\x7fELF"
    with pytest.raises(nvrtc.CompileError, match=r"sm_90.*error"):
        nvrtc.build({**build.defines, "AMK_WARPS": 5}, "sm_90", cache)


def test_every_profile_has_a_plan_that_fits_and_keeps_at_least_two_slots() -> None:
    for model in GRAPH_SHAPES:
        for target in Target.profiles():
            for purpose, batch, chunk in (("decode", 1, 1), ("decode", 16, 1), ("logits", 1, 16)):
                config = ScheduleConfig(fuse_combine=False, handoff="tagged")
                few = Target("few", "cpu", 4, target.smem_bytes)
                s = lower(GRAPH_SHAPES[model], config, few, Geometry(purpose, batch, chunk, 64), "fast")
                if batch == 1:  # of several sequences only where their activations fit
                    assert any(b.tagged for b in s.buffers) == (chunk == 1)
                build = plan_build(Dims.of(s), target.arch, target.smem_bytes)
                assert build.shared_bytes <= target.smem_bytes - 1024, (model, target.name, purpose)
                assert build.defines["AMK_SLOTS"] >= 2


def test_what_does_not_fit_is_refused_with_what_to_do() -> None:
    dims = Dims.of(schedule(batch=16, purpose="prefill", chunk=16))
    with pytest.raises(ProgramError, match=r"256 rows a step .* at most 64; use a smaller chunk"):
        plan_build(dims, "sm_90", smem("sm_90"))
    with pytest.raises(ProgramError, match="fuse_combine=False"):
        plan_build(Dims.of(schedule("llama-3.1-8b", purpose="prefill", chunk=16)), "sm_89", smem("sm_89"))


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(nvrtc.CompileError, match=r"pip install 'amk\[cuda13\]'"):
        nvrtc.build({}, "sm_90")


def test_the_assembler_report_is_read_kernel_by_kernel_with_its_functions() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem\n"
        "ptxas info    : Function properties for f\n"
        "    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 32 registers\n"
    )
    assert nvrtc.parse_report(log) == (
        nvrtc.KernelReport("a", 40, 512, 16, 12, 16),
        nvrtc.KernelReport("b", 32, 0, 0, 0, 0),
    )


def test_amk_compile_prints_the_resources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    from amk_core.cli import main

    monkeypatch.setenv("AMK_HOME", str(tmp_path))
    assert main(["compile", MODEL, "--arch", "sm_89", "--mode", "exact"]) == 0
    out = capsys.readouterr().out
    assert "amk_run" in out
    assert "registers" in out
    assert main(["compile", MODEL, "--arch", "sm_70"]) == 2
    assert "sm_80, sm_86, sm_89, sm_90, sm_120" in capsys.readouterr().err


@pytest.mark.parametrize(
    "card", [t for t in Target.profiles() if t.name in ("l4", "a100", "h200", "rtx5090")], ids=lambda t: t.name
)
@pytest.mark.parametrize("model", GRAPH_SHAPES)
def test_a_prompt_of_sixteen_rows_fits_every_card_by_default(model: str, card: Target) -> None:
    """Where attention merged by every tile does not fit, separate tasks merge it."""
    for chunk in (16, 15):  # one row fewer, and every tile merges where there is room
        made = lower(GRAPH_SHAPES[model], ScheduleConfig(), card, Geometry("prefill", 1, chunk, 64), "fast")
        dims = Dims.of(made)
        assert plan_build(dims, card.arch, card.smem_bytes).shared_bytes <= card.smem_bytes
        room = model == MODEL or card.name == "h200" or (card.name == "a100" and model != "llama-3.1-8b")
        assert dims.fused_combine == (chunk < 16 and room)
