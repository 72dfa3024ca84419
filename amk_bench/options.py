"""The plugin's command line, and what ``--arch`` and ``--device`` mean on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from amk_core.machine import Machine

if TYPE_CHECKING:
    import pytest

ARCHES = ("auto", "cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
DEFAULT_MODEL = "smollm2-135m"
Tier = Literal["quick", "default", "full"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options as given.

    ``model_given`` tells a named model (which may be fetched) from the default one; ``targets`` are the files and folders named.
    """

    arch: str = "auto"
    device: str | None = None
    model: str = DEFAULT_MODEL
    model_given: bool = False
    tier: Tier = "default"
    require_hardware: bool = False
    update_reports: bool = False
    resume: bool = True
    allow_different: bool = False
    ranks: str | None = None
    targets: tuple[str, ...] = ()

    def command(self, *extra: str, arch: str | None = None) -> str:
        """The command line that runs a cell left out here, on a machine that has what it needs."""
        parts = ["pytest", *self.targets, f"--arch={arch or self.arch}"]
        if self.device:
            parts.append(f'--device="{self.device}"')
        if self.model != DEFAULT_MODEL:
            parts.append(f"--model={self.model}")
        if self.ranks:
            parts.append(f"--ranks={self.ranks}")
        if self.tier != "default":
            parts.append(f"--{self.tier}")
        return " ".join([*parts, *extra])


@dataclass(frozen=True, slots=True)
class Arch:
    """What to compile for and whether its device is here.

    ``name``: "cpu" or "sm_XX".  ``device``: the name of the device that runs.  ``missing``: why the asked-for device cannot run
    here, None when it can.  ``chosen``: how the name came about, for the header.
    """

    name: str
    device: str
    missing: str | None
    chosen: str

    @property
    def present(self) -> bool:
        return self.missing is None

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"


def resolve(options: Options, machine: Machine) -> Arch:
    """Which device the run is about: ``--device`` picks a card by (part of) its name, ``--arch`` by its architecture."""
    cards = machine.gpus
    wanted = options.device
    if wanted is not None:
        cards = tuple(gpu for gpu in cards if wanted.lower() in gpu.name.lower())
    here = ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in machine.gpus) or "no NVIDIA GPU"
    if options.arch == "cpu":
        return Arch("cpu", machine.cpu, None, "asked for")
    if options.arch == "auto":
        if cards:
            return Arch(cards[0].arch, cards[0].name, None, "auto: first matching card")
        missing = None
        if wanted is not None:
            missing = f"no device named {wanted} on this machine ({here})"
        elif options.require_hardware:
            missing = "no NVIDIA GPU on this machine, and --require-hardware asks for one (or name --arch=cpu)"
        return Arch("cpu", machine.cpu, missing, f"auto: {here}")
    for gpu in cards:
        if gpu.arch == options.arch:
            return Arch(gpu.arch, gpu.name, None, "asked for")
    kind = f"{options.arch} card" + (f" named {wanted}" if wanted else "")
    return Arch(options.arch, wanted or options.arch, f"no {kind} on this machine ({here})", "asked for")


# The short spellings are words that other plugins want too; each stands only where nobody else has taken it.
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("arch", {"choices": ARCHES, "default": "auto", "help": "what to compile for and measure (default: this machine's device)"}),
    ("device", {"metavar": "NAME", "help": "pick the card by (part of) its name: L4 and L40S are both sm_89"}),
    ("model", {"metavar": "MODEL", "help": f"name, directory, .gguf or hub id; fetched if need be (default: {DEFAULT_MODEL})"}),
    ("ranks", {"metavar": "COUNTxCLUSTER", "help": "what cells of ranks load (default: the cost model's choice; CPU: 3x1)"}),
    ("quick", {"action": "store_true", "help": "fewer prompts, blocks and positions: a few minutes on two cores"}),
    ("full", {"action": "store_true", "help": "every window, position and prompt, and HF's own generate loop"}),
    ("require-hardware", {"action": "store_true", "help": "fail, rather than skip, when the device of --arch is not here"}),
    ("update-reports", {"action": "store_true", "help": "write this run's results to reports/data/"}),
    ("no-resume", {"action": "store_true", "help": "measure again what a run that was killed had finished"}),
    ("allow-different", {"action": "store_true", "help": "let --benchmark-compare compare another machine, driver or policy"}),
)


def _dest(name: str) -> str:
    return f"amk_{name.replace('-', '_')}"


def add_options(parser: pytest.Parser) -> None:
    """Registers ``--amk-arch`` and the others in their own group of ``pytest --help``: names that are nobody else's."""
    add = parser.getgroup("amk", "AMK: parity and speed of compiled models").addoption
    for name, settings in _OPTIONS:
        add(f"--amk-{name}", dest=_dest(name), **settings)


def add_short_spellings(parser: pytest.Parser) -> list[str]:
    """Registers ``--arch``, ``--device``, ... beside them, each only where the name is free; returns the names that were taken.

    To be called when every other plugin and conftest has registered its options.
    """
    groups = {id(group): group for group in (*parser._groups, parser._anonymous)}.values()
    taken = {name for group in groups for option in group.options for name in option.names()}
    add = parser.getgroup("amk").addoption
    refused = []
    for name, settings in _OPTIONS:
        if f"--{name}" in taken:
            refused.append(f"--{name}")
        else:
            add(f"--{name}", dest=_dest(name), **{**settings, "help": f"short for --amk-{name}"})
    return refused


def read_options(config: pytest.Config) -> Options:
    """Raises pytest.UsageError for options that contradict each other."""
    import pytest

    def value(name: str) -> Any:
        return getattr(config.option, _dest(name))

    if value("quick") and value("full"):
        raise pytest.UsageError("--quick and --full exclude each other: give one of them, or neither")
    if value("ranks") and not re.fullmatch(r"\d+x\d+", value("ranks")):
        raise pytest.UsageError(f"--ranks={value('ranks')} is not COUNTxCLUSTER, as 15x8")
    return Options(
        arch=value("arch"),
        device=value("device"),
        model=value("model") or DEFAULT_MODEL,
        model_given=value("model") is not None,
        tier="quick" if value("quick") else "full" if value("full") else "default",
        require_hardware=bool(value("require-hardware")),
        update_reports=bool(value("update-reports")),
        targets=tuple(str(target) for target in getattr(config.option, "file_or_dir", None) or ()),
        resume=not value("no-resume"),
        allow_different=bool(value("allow-different")),
        ranks=value("ranks"),
    )
