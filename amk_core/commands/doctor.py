"""``amk doctor``: what this machine has, what will run on it, what is skipped and why."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from amk_core import resources
from amk_core.machine import Machine, probe

NAME = "doctor"
HELP = "what this machine has, what will run here, what is skipped and why"
# SmolLM2-135M in fp32: 0.54 GB of weights, twice while they are packed, with the libraries that read them.
SMALL_MODEL_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Ability:
    """Something amk does: it runs here, or ``reason`` says why not and ``command`` what changes that ("" where nothing does)."""

    name: str
    runs: bool
    reason: str = ""
    command: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--suites", action="store_true", help="print only the folder of the suites: pytest $(amk doctor --suites)")


def native_problem() -> str:
    """ "" where the native module loads, else why it does not."""
    try:
        import amk_core._native  # noqa: F401
    except ImportError as e:
        return str(e)
    return ""


def cached_models() -> dict[str, int]:
    """Name -> bytes on disk of every complete model in the cache."""
    from amk_core.importer import hub

    return {c.name: c.bytes for c in hub.cached()}


def abilities(m: Machine, native: str, models: Sequence[str]) -> list[Ability]:
    """What follows from the facts.  ``native`` is the reason why the native module does not load, or ""."""
    rebuild = resources.native_build()
    out = [Ability("validate schedules, lower models", not native, native and f"native module: {native}", native and rebuild)]
    if native:
        cpu = Ability("run models on the CPU VM", False, f"native module: {native}", rebuild)
    elif m.available_bytes < SMALL_MODEL_BYTES:
        free = f"{m.available_bytes / 1e9:.1f} GB of memory are free, the smallest model needs {SMALL_MODEL_BYTES / 1e9:.1f} GB"
        cpu = Ability("run models on the CPU VM", False, free)
    else:
        cpu = Ability("run models on the CPU VM", True)
    out.append(cpu)
    have = "smollm2-135m" in models
    missing = "smollm2-135m is not in the model cache"
    out.append(Ability("suites on SmolLM2-135M", cpu.runs and have, cpu.reason or ("" if have else missing),
                       cpu.command or ("" if have else "amk model fetch smollm2-135m")))  # fmt: skip
    out.append(_compiling(m))
    out.append(_on_a_card(m, out[-1], cpu))
    return out


def _compiling(m: Machine) -> Ability:
    """Device programs are compiled by NVRTC, which comes as a wheel."""
    name = "compile device programs"
    nvrtc = any(lib.startswith("nvidia-cuda-nvrtc") for lib in m.libraries)
    if nvrtc and "cuda-bindings" in m.libraries:
        return Ability(name, True)
    extra = "'.[cuda13]'" if resources.source_root() else "'amk[cuda13]'"
    return Ability(name, False, "NVRTC or cuda-bindings is not installed", f"pip install {extra}")


def _on_a_card(m: Machine, compiling: Ability, cpu: Ability) -> Ability:
    """The CUDA backend needs a card of a known architecture, what compiles for it, and the native module that validates."""
    from amk_core.vm.nvrtc import ARCHITECTURES

    name = "run models on a GPU (--backend cuda)"
    if not m.gpus:
        return Ability(name, False, "nvidia-smi shows no NVIDIA card; the CPU VM is used")
    if m.gpus[0].arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        return Ability(name, False, f"{m.gpus[0].name} is {m.gpus[0].arch}; this version compiles for {known}")
    if not compiling.runs:
        return Ability(name, False, compiling.reason, compiling.command)
    return Ability(name, not cpu.reason or "native" not in cpu.reason, cpu.reason if "native" in cpu.reason else "", cpu.command)


def _gb(n: int) -> str:
    return f"{n / 1e9:.1f} GB"


def report(m: Machine, native: str, cache: Path, models: dict[str, int], found: Sequence[Ability], suites: str) -> str:
    """The page for a terminal."""
    missing = "none (amk model fetch smollm2-135m)"
    rows = [
        ("system", m.system),
        ("python", m.python),
        ("cpu", f"{m.cpu}, {m.isa}, {m.cores} {'core' if m.cores == 1 else 'cores'} usable"),
        ("memory", f"{_gb(m.memory_bytes)}, {_gb(m.available_bytes)} free"),
        ("compiler", m.compiler or "none found (needed only to build amk from source)"),
        ("gpu", "; ".join(f"{g.name}, {g.arch}, {_gb(g.memory_bytes)}, driver {g.driver}" for g in m.gpus) or "no NVIDIA card"),
        ("libraries", ", ".join(f"{k} {v}" for k, v in m.libraries.items())),
        ("native module", native or "loads"),
        ("model cache", f"{cache}: " + (", ".join(f"{k} ({_gb(v)})" for k, v in models.items()) or missing)),
        ("suites", suites),
    ]
    lines = [f"{name:14} {text}" for name, text in rows]
    lines += ["", "What runs here"]
    for a in found:
        lines.append(f"  {'yes' if a.runs else 'no ':4} {a.name}" + (f": {a.reason}" if a.reason else ""))
        if a.command:
            lines.append(f"       to change that: {a.command}")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Print the page, or JSON; 0 where the native module loads, else 1."""
    if args.suites:
        print(shlex.quote(str(resources.suites_dir())))
        return 0
    from amk_core.importer import hub

    machine, native, models, cache = probe(), native_problem(), cached_models(), hub.home()
    found = abilities(machine, native, list(models))
    try:
        suites = str(resources.suites_dir())
    except resources.ResourceMissing as e:
        suites = str(e)
    if args.json:
        from amk_core.cli import version

        facts = asdict(machine)
        for gpu in facts["gpus"]:
            del gpu["uuid"]  # identifies the card, and people paste this page into reports
        data = {"amk": version(), **facts, "native": native or None, "cache": str(cache), "models": models, "suites": suites,
                "abilities": [asdict(a) for a in found]}  # fmt: skip
        print(json.dumps(data, indent=2))
    else:
        print(report(machine, native, cache, models, found, suites))
    return 1 if native else 0
