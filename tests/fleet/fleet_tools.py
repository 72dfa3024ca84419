"""Cards that are not here: an ``nvidia-smi`` of our own, first in the path."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from amk_bench.fleet.jobs import Job

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("job.py")
# One line a card, as nvidia-smi prints them: two H200, one L4.
CARDS = (
    "NVIDIA H200, 9.0, 143771, 580.1, GPU-h200-a",
    "NVIDIA H200, 9.0, 143771, 580.1, GPU-h200-b",
    "NVIDIA L4, 8.9, 23034, 580.1, GPU-l4-a",
)


def make_smi(folder: Path, lines: tuple[str, ...] = CARDS) -> Path:
    """A folder with an ``nvidia-smi`` that shows these cards."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "nvidia-smi"
    script.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    script.chmod(0o755)
    return folder


def environment(folder: Path, lines: tuple[str, ...] = CARDS) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return {**env, "PATH": f"{make_smi(folder, lines)}:{env['PATH']}", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}


def job(*words: str, device: str = "h200", model: str = "m", limit_s: float = 60.0) -> Job:
    return Job(device, "test", model, "bf16", 1, (128,), (sys.executable, str(SCRIPT), "{out}", "{arch}", *words), limit_s)


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing within {seconds} s")


def pid_in(path: Path, seconds: float = 30.0) -> int:
    """The pid that a job wrote, once it has."""
    return int(wait_for(lambda: path.exists() and path.read_text(), seconds))


def gone(pid: int, seconds: float = 15.0) -> bool:
    """Whether a process ends in this time; one that is only waiting to be collected has ended."""

    def over() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return bool(wait_for(over, seconds))


def no_litter(folder: Path) -> None:
    """Every file is whole: JSON reads, no temporary name is left."""
    import json

    for path in folder.rglob("*"):
        assert not path.name.endswith(".tmp"), path
        if path.suffix == ".json":
            json.loads(path.read_text())
