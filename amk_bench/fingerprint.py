"""The fingerprint of a run: everything that a time depends on and that a reader needs to repeat it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amk_core.machine import Machine, library_versions

# Their versions change numbers or times; read from package metadata, never by importing them.
LIBRARIES = (
    "amk",
    "torch",
    "transformers",
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvidia-cuda-nvrtc",
    "vllm",
    "pytest-benchmark",
)
# Two results compare when these agree: the card's own identity, the commit and the command line do not have to.
COMPARED = ("arch", "device", "driver", "cpu", "cores", "os", "python", "libraries", "policy")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``device_id`` is a salted hash of the card's UUID; ``policy`` names settings that were in force: governor,
    power limit, application clocks, ECC, MIG."""

    arch: str
    device: str
    device_id: str
    driver: str
    cpu: str
    cores: int
    memory_gib: float
    os: str
    python: str
    libraries: Mapping[str, str]
    policy: Mapping[str, str]
    commit: str
    command: str
    seeds: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def comparable(self) -> dict[str, Any]:
        """The part that has to agree before two results may be compared."""
        values = self.to_json()
        return {name: values[name] for name in COMPARED}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Why two fingerprints do not compare, one line each; empty when they do.  Takes the JSON form of both.

    Model of device, driver, versions and policy have to be the same; the card's own identity, the commit, the command line and the
    seeds do not.
    """
    lines = []
    for name in COMPARED:
        one, other = a.get(name), b.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for key in sorted({*one, *other}):
                if one.get(key) != other.get(key):
                    lines.append(f"{name}.{key}: {one.get(key)!r} against {other.get(key)!r}")
        elif one != other:
            lines.append(f"{name}: {one!r} against {other!r}")
    return lines


def hashed_uuid(uuid: str) -> str:
    return "uuid-" + hashlib.sha256(b"amk:" + uuid.encode()).hexdigest()[:12] if uuid else ""


def _git(tree: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, timeout=10, check=True).stdout


def commit_of(tree: Path) -> str:
    """The commit of the source tree at ``tree`` with "+dirty" when it has changes, "unknown" outside a repository."""
    try:
        commit = _git(tree, "rev-parse", "--short=12", "HEAD").decode("ascii").strip()
        return commit + ("+dirty" if _git(tree, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def state_of(tree: Path) -> str:
    """What the source at ``tree`` differs by from its commit: a digest, "" for a clean tree or where there is no repository."""
    try:
        names = _git(tree, "ls-files", "--others", "--exclude-standard", "-z")
        changes = _git(tree, "diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""
    if not names and not changes:
        return ""
    digest = hashlib.sha256(changes)
    for name in filter(None, names.decode(errors="surrogateescape").split("\0")):
        path = tree / name
        if path.suffix == ".py" and path.is_file():  # results and logs of a run are no source
            digest.update(name.encode(errors="surrogateescape") + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _governor() -> str:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="ascii").strip()
    except OSError:
        return "not readable"


def without_places(words: Sequence[str]) -> list[str]:
    """Arguments of a command line, absolute paths as bare names: where files lie is nobody's business."""
    return [Path(word).name if word.startswith("/") else word for word in words]


def take(
    machine: Machine, arch: str, device: str, command: Sequence[str], seeds: Mapping[str, int], tree: Path, commit: str = ""
) -> Fingerprint:
    """Fingerprint of a run for ``device`` of ``arch`` started by ``command`` (argv without the interpreter) from ``tree``.

    ``commit``: what is measured, where the tree is not a checkout; by default the tree's own.
    """
    card = next((gpu for gpu in machine.gpus if gpu.name == device and gpu.arch == arch), None)
    policy = {"cpu_governor": _governor()}
    if card is not None:
        from amk_bench.nvml import policy_of

        policy |= policy_of(card.uuid)
    return Fingerprint(
        arch=arch,
        device=device,
        device_id=hashed_uuid(card.uuid) if card else "",
        driver=card.driver if card else "",
        cpu=machine.cpu,
        cores=machine.cores,
        memory_gib=round(machine.memory_bytes / 2**30, 1),
        os=f"{platform.system()} {platform.release()}",
        python=".".join(map(str, sys.version_info[:3])),
        libraries=library_versions(LIBRARIES),
        policy=policy,
        commit=commit or commit_of(tree),
        command=" ".join(command),
        seeds=dict(seeds),
    )
