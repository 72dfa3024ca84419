"""What this machine has: processor, memory, compiler, graphics cards, libraries.  Nothing here imports torch or starts a device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# The feature flags that each level of the x86-64 psABI adds, as Linux spells them.
_X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
LIBRARIES = (
    "numpy", "torch", "transformers", "safetensors", "gguf", "pytest", "pytest-benchmark", "hypothesis", "cuda-bindings",
    "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py", "vllm", "ray",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA card: ``arch`` is "sm_89" and the like, ``memory_bytes`` its total; ``uuid`` is never shown, only hashed."""

    name: str
    arch: str
    memory_bytes: int
    driver: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts only; what follows from them is said by ``amk doctor``.  None and empty mean: not found."""

    system: str
    python: str
    cpu: str
    isa: str
    cores: int
    memory_bytes: int
    available_bytes: int
    compiler: str | None
    gpus: tuple[Gpu, ...]
    libraries: dict[str, str]


def x86_level(flags: Iterable[str]) -> str:
    """The highest psABI level whose flags, and those of all levels below, are present."""
    have, level = frozenset(flags), "x86-64"
    for name, need in _X86_LEVELS:
        if not need <= have:
            break
        level = name
    return level


def parse_cpuinfo(text: str) -> tuple[str, str]:
    """(model name, ISA level) from the text of ``/proc/cpuinfo``."""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    isa = x86_level(flags[1].split()) if flags else platform.machine()
    return (name[1].strip() if name else platform.processor() or platform.machine()), isa


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """Cards from the CSV (no header, no units) of name, compute_cap, memory.total, driver_version and, optionally, uuid."""
    gpus = []
    for line in text.splitlines():
        part = [p.strip() for p in line.split(",")]
        if len(part) in (4, 5) and re.fullmatch(r"\d+\.\d+", part[1]) and part[2].isdigit():
            gpus.append(Gpu(part[0], "sm_" + part[1].replace(".", ""), int(part[2]) << 20, *part[3:]))
    return tuple(gpus)


def _output(*command: str) -> str:
    """What a command prints, or "" where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def find_compiler() -> str | None:
    """The first line of the C++ compiler's version, with its path: ``$CXX``, else c++, g++, clang++."""
    for name in (os.environ.get("CXX", "").split(" ")[0], "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            first = _output(path, "--version").splitlines()
            return f"{path}: {first[0]}" if first else path
    return None


def find_gpus() -> tuple[Gpu, ...]:
    """NVIDIA cards that the driver shows; none without a driver."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return ()
    query = "--query-gpu=name,compute_cap,memory.total,driver_version,uuid"
    return parse_smi(_output(smi, query, "--format=csv,noheader,nounits"))


def visible(gpus: Sequence[Gpu], setting: str) -> tuple[Gpu, ...]:
    """The cards that ``CUDA_VISIBLE_DEVICES=setting`` leaves, in its order; the first word that names none ends the list.

    ``gpus`` are in the order of the bus; a number counts in it.
    """
    out: list[Gpu] = []
    for word in filter(None, (w.strip() for w in setting.split(","))):
        named = (
            [g for g in gpus if g.uuid and g.uuid.startswith(word)] if not word.isdigit() else list(gpus[int(word) : int(word) + 1])
        )
        if len(named) != 1 or named[0] in out:
            break
        out += named
    return tuple(out)


def seen_gpus() -> tuple[Gpu, ...]:
    """The cards that a process with this environment may use."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    return find_gpus() if setting is None else visible(find_gpus(), setting)


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Installed version of each of these distributions; absent ones are left out.  Reads metadata, imports nothing."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def memory() -> tuple[int, int]:
    """(total, available) bytes, no more than the memory limit of this process's control group."""
    import psutil

    now = psutil.virtual_memory()
    total, available = int(now.total), int(now.available)
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
        if used.is_file():
            available = min(available, max(0, int(text) - int(used.read_text())))
    return total, available


def probe() -> Machine:
    """Look at this machine; takes well under a second."""
    cpuinfo = Path("/proc/cpuinfo")
    cpu, isa = parse_cpuinfo(cpuinfo.read_text() if cpuinfo.is_file() else "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total, available = memory()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_version()} ({sys.executable})",
        cpu=cpu,
        isa=isa,
        cores=cores,
        memory_bytes=total,
        available_bytes=available,
        compiler=find_compiler(),
        gpus=seen_gpus(),
        libraries=library_versions(),
    )
