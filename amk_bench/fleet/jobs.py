"""What the fleet runs: a job is one process on one card, and fills one cell of the plan."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from amk_bench.fleet.devices import CPU, FleetError

RIVALS = "rivals"  # AMK against every baseline that runs on the card
PYTEST_SUITES = ("validator", "parity", "perplexity", "latency", "all")
SUITES = (RIVALS, *PYTEST_SUITES)
PRECISIONS = ("bf16",)  # what amk_bench.baselines.run measures; the fp32 pairs are suites/latency
TIERS = ("quick", "default", "full")
MODELS = ("smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b")
# Words of a command that the node fills in.
PLACES = ("python", "suites", "out", "seconds", "device", "arch", "model", "precision", "batch", "positions")


@dataclass(frozen=True, slots=True)
class Job:
    """One process on one card.

    Attributes:
        device: key of the device it needs.
        suite, model, precision, batch, positions: what it measures; batch 0 and no positions where the suite decides.
        argv: its command; words in braces (:data:`PLACES`) are filled in where it runs.
        limit_s: seconds after which it is stopped.
    """

    device: str
    suite: str
    model: str
    precision: str
    batch: int
    positions: tuple[int, ...]
    argv: tuple[str, ...]
    limit_s: float

    @property
    def key(self) -> str:
        """Its name in file names; another command is another job."""
        words = [self.device, self.suite, self.model, self.precision]
        words += [f"b{self.batch}"] if self.batch else []
        words += ["p" + "-".join(map(str, self.positions))] if self.positions else []
        said = json.dumps([self.device, *self.argv])
        return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', '.'.join(words))[:120]}.{hashlib.sha256(said.encode()).hexdigest()[:8]}"

    def filled(self, arch: str, suites: str, out: str) -> list[str]:
        """The command as it runs on this machine."""
        values = {
            "python": sys.executable, "suites": suites, "out": out, "seconds": f"{0.9 * self.limit_s:.0f}", "device": self.device,
            "arch": arch, "model": self.model, "precision": self.precision, "batch": str(self.batch),
            "positions": ",".join(map(str, self.positions)),
        }  # fmt: skip
        return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), word) for word in self.argv]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """Inverse of :meth:`to_json`; FleetError for anything else."""
        try:
            values = {**data, "positions": tuple(data["positions"]), "argv": tuple(data["argv"])}
            return Job(**values)
        except (TypeError, KeyError) as error:
            raise FleetError(f"not a job of this version: {error}") from None


def position_groups(text: str) -> list[tuple[int, ...]]:
    """``"128,1024/4096"`` -> [(128, 1024), (4096,)]: each group is a process of its own."""
    try:
        groups = [tuple(int(p) for p in group.split(",")) for group in text.split("/")]
    except ValueError:
        raise FleetError(f"positions {text!r}: numbers, commas within a process, / between processes: 128,1024/4096") from None
    if any(p < 0 for group in groups for p in group):
        raise FleetError(f"positions {text!r}: a position is at least 0")
    return groups


def _rivals(batch: int, baselines: Sequence[str]) -> tuple[str, ...]:
    words = ["{python}", "-m", "amk_bench.baselines.run", "--model", "{model}", "--batch", str(batch), "--positions", "{positions}"]
    words += ["--baselines", ",".join(baselines)] if baselines else []
    return (*words, "--seconds", "{seconds}", "--out", "{out}")


def _pytest(device: str, suite: str, model: str, tier: str) -> tuple[str, ...]:
    words = ["{python}", "-m", "pytest", "{suites}" if suite == "all" else f"{{suites}}/{suite}", "-q", "--amk-arch={arch}"]
    words += [f"--amk-model={model}", "--benchmark-json={out}"]
    words += [f"--amk-{tier}"] if tier != "default" else []
    return (*words, *(["--amk-require-hardware"] if device != CPU else []))


def plan(
    devices: Sequence[str],
    *,
    suite: str = RIVALS,
    models: Sequence[str] = MODELS,
    precisions: Sequence[str] = PRECISIONS,
    batches: Sequence[int] = (1,),
    groups: Sequence[tuple[int, ...]] = ((128, 1024, 4096),),
    baselines: Sequence[str] = (),
    tier: str = "default",
    command: Sequence[str] = (),
    limit_s: float = 3600.0,
) -> list[Job]:
    """The jobs of a request: suites that choose positions themselves have one a device and model.

    ``command`` runs in place of a suite, once for each device, model, precision, batch and group.
    """
    odd = [p for p in precisions if p not in PRECISIONS]
    if odd and suite == RIVALS and not command:
        raise FleetError(f"suite {RIVALS} measures {', '.join(PRECISIONS)}, not {odd[0]}; fp32 pairs are those of --suite latency")
    if suite in PYTEST_SUITES and not command:
        return [Job(d, suite, m, "all", 0, (), _pytest(d, suite, m, tier), limit_s) for d in devices for m in models]
    if suite == RIVALS and not command and CPU in devices:
        raise FleetError(f"suite {RIVALS} needs a card; on a processor there are the suites {', '.join(PYTEST_SUITES)}")
    return [
        Job(d, "command" if command else suite, m, p, b, g, tuple(command) or _rivals(b, baselines), limit_s)
        for d in devices
        for m in models
        for p in precisions
        for b in batches
        for g in groups
    ]
