"""Time a token of our VM against each baseline, in ABBA pairs in one process, behind a P1 gate in the very cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from amk_bench import instruments
from amk_bench.baselines import registry
from amk_bench.baselines.hf import HfEager
from amk_bench.busy import witness
from amk_bench.clock import CpuClock
from amk_bench.engine import Engine
from amk_bench.floor import step_bytes
from amk_bench.measure import BUSY, Cell, Plan, compare, invalid, noise, noise_fault
from amk_bench.options import Arch, Options
from amk_bench.ours import Ours
from amk_bench.pairing import samples_of
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.session import Session
from amk_bench.stats import Precision, noise_floor
from amk_bench.storage import Seconds
from amk_bench.verdict import Verdict

POSITIONS = (0, 16, 128, 512, 1024, 2048, 4096, 16384)
BY_DEFAULT = (0, 16, 128, 512)
FLOOR_POSITION = 128
SIZES = {"quick": (4, 6), "default": (8, 10), "full": (16, 60)}  # tokens a call, most blocks
# torch's worker threads spin for about a millisecond after a parallel region; they must not do so inside our timed call.
SETTLE_S = 0.01
ENERGY_S = 1.0  # each side runs this long for its joules a token, where there is a counter


@pytest.fixture(scope="module")
def plan(amk_options: Options, amk_arch: Arch, amk_session: Session) -> Plan:
    """With the instruments of the device; in full runs as many blocks as the interval needs, up to the number given."""
    tokens, blocks = SIZES[amk_options.tier]
    precision = Precision() if amk_options.tier == "full" else None
    bare = Plan(tokens, blocks, amk_session.seed, settle=lambda: time.sleep(SETTLE_S), witness=witness, precision=precision)
    if amk_arch.is_gpu:
        return instruments.for_this_card().equip(bare, energy_s=ENERGY_S)
    return instruments.for_cpu(amk_session.machine.cpu, amk_session.machine.cores).equip(bare, energy_s=ENERGY_S)


@pytest.fixture(scope="module")
def cell(amk_arch: Arch, amk_options: Options, text_ids: list[int], ours: Ours) -> Callable[[int], Cell]:
    vocabulary = tuple(sorted(set(text_ids)))

    def make(position: int) -> Cell:
        # Both sides hold their weights and their cache in fp32.
        size = step_bytes(ours.model.graph, 4, position, 1, 4)
        return Cell(amk_arch.device, amk_options.model, "exact", 1, tuple(text_ids[:position]), vocabulary, size, size)

    return make


@pytest.fixture(scope="module")
def ours(load: Callable[..., Any], hf: HfEager, amk_arch: Arch, amk_options: Options, plan: Plan) -> Ours:
    if amk_arch.is_gpu:
        pytest.skip(f"this version of AMK runs on the CPU only; run: {amk_options.command(arch='cpu')}")
    last = max(POSITIONS) if amk_options.tier == "full" else max(BY_DEFAULT)
    limit = int(hf.model.config.max_position_embeddings)
    reached = max(p for p in POSITIONS if p <= last and p + plan.tokens < limit)
    return Ours(load(context=max(1024, reached + plan.tokens + 1)))


@pytest.fixture(scope="module")
def floor(ours: Ours, cell: Callable[[int], Cell], plan: Plan, amk_progress: Progress) -> float:
    """This machine's noise floor: our VM against itself, before anything is compared."""
    amk_progress.say(f"noise floor: our VM against itself, {plan.blocks} blocks of 4 x {plan.tokens} tokens")
    return noise_floor(noise(ours, cell(FLOOR_POSITION), plan, CpuClock()))


@pytest.fixture(scope="module")
def rival(ours: Ours, hf: HfEager, amk_arch: Arch, amk_options: Options) -> Callable[[str], Engine]:
    """``rival(name)``: the baseline of that name, made once, on the device of this run and with the weights of ours."""
    device = "cuda" if amk_arch.is_gpu else "cpu"
    ours_is = (ours.precision, ours.model.context, ours.model.batch)
    setting = registry.Setting(amk_options.model, hf.model, device, *ours_is, hf.threads)
    made: dict[str, Engine] = {}

    def get(name: str) -> Engine:
        if name not in made:
            made[name] = hf if name == "hf-eager" and device == "cpu" else registry.make(name, setting)
        return made[name]

    return get


def parameters() -> list[Any]:
    full = [pytest.mark.amk_full("latency beyond position 512")]
    return [pytest.param(p, marks=[] if p in BY_DEFAULT else full) for p in POSITIONS]


def rows() -> list[Any]:
    """HF eager and what installed packages add everywhere, the fused step in full runs, what needs a GPU on a GPU."""
    out = []
    for name in registry.names():
        marks = [pytest.mark.amk_device(f"latency against {name}")]
        if name in registry.GPU_ONLY:
            marks = [pytest.mark.amk_gpu(f"latency against {name}")]
        elif name == "fused":
            marks.append(pytest.mark.amk_full(f"latency against {name}"))
        out.append(pytest.param(name, marks=marks))
    return out


@pytest.mark.parametrize("position", parameters())
@pytest.mark.parametrize("name", rows())
def test_decode_against(
    name: str,
    position: int,
    ours: Ours,
    rival: Callable[[str], Engine],
    hf: HfEager,
    floor: float,
    cell: Callable[[int], Cell],
    plan: Plan,
    amk_record: Recorder,
    amk_seconds: Seconds,
    amk_progress: Progress,
) -> None:
    here = cell(position)
    limit = int(hf.model.config.max_position_embeddings)
    if position + plan.tokens >= limit:
        amk_record.skip(f"latency at position {position}", f"beyond the model's context of {limit}")
    try:
        baseline = rival(name)
    except registry.BaselineUnavailable as error:
        amk_record.skip(f"latency against {name}", str(error))
    reason = noise_fault("our VM", floor)
    if reason is not None:
        amk_record.latency(invalid(here, ours, baseline, reason))
        pytest.skip(reason)
    record, timing = compare(
        ours, baseline, here, plan, CpuClock(), floor, hf.logits,
        lambda run: amk_progress.over(run, f"{name}, position {position}", plan.blocks),
    )  # fmt: skip
    amk_record.latency(record)
    blocks = len(record.ours_samples_us) // 2 or plan.blocks
    amk_record.note(
        f"{blocks} ABBA blocks of 4 calls x {plan.tokens} tokens a cell; noise floor from our VM against itself: "
        f"{100 * floor:.1f} %",
        {"noise_floor": floor},
    )
    if record.reason.startswith(BUSY):
        pytest.skip(record.reason)
    assert timing is not None, record.reason
    assert record.verdict != Verdict.INVALID
    amk_seconds.store(
        [s.device_s for s in samples_of(timing.blocks, "a")],
        {"cell": {"position": position, "batch": here.batch, "model": here.model, "mode": here.mode}, "tokens": plan.tokens,
         "baseline": baseline.name, "told": registry.describe(baseline),
         "baseline_samples_us": record.baseline_samples_us, "ratio": record.ratio,
         "interval": [record.low, record.high], "floor": floor, "verdict": str(record.verdict), "gate": record.gate},
    )  # fmt: skip
