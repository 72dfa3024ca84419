"""ThreadSanitizer over the real protocol: a lowered schedule is silent, the same schedule with one wait weakened is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_compiler import compiled

from amk_core.schedule import ops, tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.pack import TapeLayout
from amk_core.targets import Target

ROOT = Path(__file__).parents[2]
STEPS = 4


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    native = ROOT / "amk_core" / "native"
    sources = [ROOT / "tests/vm/tsan_driver.cpp", native / "tables.cpp", *sorted(native.glob("cpu_*.cpp"))]
    flags = ["-O1", "-g", "-fsanitize=thread", "-ffp-contract=off", "-pthread", f"-I{native}", f"-I{ROOT / 'vm'}"]
    return compiled(tmp_path_factory.mktemp("tsan") / "driver", sources, *flags)


def run(driver: Path, folder: Path, schedule: Any, seed: int) -> subprocess.CompletedProcess[str]:
    layout = TapeLayout.of(schedule)
    (folder / "tables").write_bytes(tables.pack(schedule))
    (folder / "weights").write_bytes(layout.locate(schedule).tobytes())
    batch = int(schedule.meta["batch"])
    args = [layout.bytes, STEPS, seed, *[0] * batch, *[STEPS * int(schedule.meta["chunk"])] * batch]
    command = [str(driver), str(folder / "tables"), str(folder / "weights"), *map(str, args)]
    # address space randomisation of newer kernels does not suit older sanitizers
    if shutil.which("setarch"):
        command = ["setarch", "-R", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


CASES = [
    ("decode", 1, 1, ScheduleConfig()),
    ("decode", 1, 1, ScheduleConfig(handoff="tagged", attn_splits=2, tiles_per_queue=2)),
    ("decode", 2, 1, ScheduleConfig(dependencies="head", tiles_per_queue=2, fuse_combine=False)),
    ("logits", 1, 5, ScheduleConfig(attn_splits=2, placement="blocked")),
]


@pytest.mark.parametrize(("purpose", "batch", "chunk", "config"), CASES)
def test_a_lowered_schedule_is_silent(
    purpose: Any, batch: int, chunk: int, config: ScheduleConfig, driver: Path, tmp_path: Path, tiny: Callable[..., Any]
) -> None:
    tagged = config.handoff == "tagged"
    schedule = lower(tiny(), config, Target.cpu(3), Geometry(purpose, batch, chunk, 60), "fast" if tagged else "exact")
    assert any(b.tagged for b in schedule.buffers) == tagged
    for seed in range(2):
        done = run(driver, tmp_path, schedule, seed)
        assert done.returncode == 0, done.stderr[:4000]
        assert done.stdout == f"steps {STEPS} fault 0\n"
        assert "ThreadSanitizer" not in done.stderr


@pytest.mark.parametrize("weak_op", ["attn", "o_proj_combine", "gate_up", "down_proj", "sample"])
def test_a_weakened_wait_races(weak_op: str, driver: Path, tmp_path: Path, tiny: Callable[..., Any]) -> None:
    schedule = lower(tiny(), ScheduleConfig(), Target.cpu(3), Geometry("decode", 1, 1, 60))
    c = schedule.columns
    for task in np.flatnonzero(c.task_op == ops.CODES[weak_op]):
        c.wait_e[c.wait_off[task] : c.wait_off[task + 1]] = -1  # waits for the step before only
    reports = [run(driver, tmp_path, schedule, seed) for seed in range(3)]
    assert any("ThreadSanitizer: data race" in r.stderr for r in reports)
