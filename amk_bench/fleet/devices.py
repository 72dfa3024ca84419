"""The cards of the fleet: ``fleet/devices.toml``, and which of them a card that is plugged in is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amk_core import resources
from amk_core.machine import Gpu

CPU = "cpu"  # stands for the machine's own processor: every machine offers one
FIELDS = {"arch", "names", "memory_gib", "sold_as", "profile"}


class FleetError(ValueError):
    """A request, a device table or a folder of the fleet is not what it has to be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of card; see the head of ``fleet/devices.toml`` for the fields.  ``memory_gib``: least and most."""

    key: str
    arch: str
    names: tuple[str, ...]
    memory_gib: tuple[float, float]
    sold_as: str
    profile: str

    @property
    def resource(self) -> str:
        """The Ray resource of which a node has one for each such card."""
        return f"amk_{self.key}"

    @property
    def label(self) -> str:
        """The Ray node label."""
        return f"amk/device={self.key}"

    def is_this(self, gpu: Gpu) -> bool:
        least, most = self.memory_gib
        return (
            gpu.arch == self.arch
            and least <= gpu.memory_bytes / 2**30 <= most
            and any(re.fullmatch(name, gpu.name) for name in self.names)
        )


PROCESSOR = Device(CPU, CPU, (), (0.0, 0.0), "", CPU)


def parse(text: str, where: str = "devices.toml") -> dict[str, Device]:
    """Devices by key, in the order of the file; FleetError names the table and field that is wrong."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"{where}: {error}") from None
    found = {}
    for key, table in tables.items():
        if not isinstance(table, dict) or table.keys() != FIELDS:
            odd = sorted(table.keys() ^ FIELDS) if isinstance(table, dict) else [key]
            raise FleetError(f"{where}: [{key}] has to have the fields {', '.join(sorted(FIELDS))}; see {', '.join(odd)}")
        if not re.fullmatch(r"[a-z0-9]+", key) or key == CPU:
            raise FleetError(f"{where}: [{key}]: a name of small letters and digits is required, other than {CPU}")
        memory, names = table["memory_gib"], table["names"]
        if len(memory) != 2 or not 0 < memory[0] <= memory[1]:
            raise FleetError(f"{where}: [{key}] memory_gib is least and most, got {memory}")
        if not names:
            raise FleetError(f"{where}: [{key}] names is empty, so no card would be this one")
        found[key] = Device(key, table["arch"], tuple(names), (memory[0], memory[1]), table["sold_as"], table["profile"])
    return found


def known(path: Path | None = None) -> dict[str, Device]:
    """The devices of this installation."""
    path = path or resources.folder("fleet") / "devices.toml"
    return parse(path.read_text("utf-8"), path.name)


def recognise(gpu: Gpu, devices: Mapping[str, Device]) -> Device | None:
    """Which device a card is, None for one that is not in the table.  FleetError where two fit."""
    fits = [device for device in devices.values() if device.is_this(gpu)]
    if len(fits) > 1:
        raise FleetError(f"{gpu.name} is {' and '.join(d.key for d in fits)}: make their names or memory_gib differ")
    return fits[0] if fits else None


def cards(gpus: Iterable[Gpu], devices: Mapping[str, Device]) -> dict[str, list[Gpu]]:
    """The recognised cards by device key."""
    out: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        device = recognise(gpu, devices)
        if device is not None:
            out.setdefault(device.key, []).append(gpu)
    return out


def chosen(words: Sequence[str], devices: Mapping[str, Device]) -> list[str]:
    """Device keys for what ``--devices`` was given: keys, ``cpu``, or ``all`` for every card."""
    out: list[str] = []
    for word in words:
        if word == "all":
            out += devices
        elif word == CPU or word in devices:
            out.append(word)
        else:
            raise FleetError(f"no device named {word!r}; there are {', '.join(devices)}, {CPU}, and all")
    return list(dict.fromkeys(out))


def ray_start(gpus: Iterable[Gpu], devices: Mapping[str, Device], address: str) -> str:
    """The command that joins a machine with these cards to a Ray cluster; ``address`` is the head's."""
    import json
    import shlex

    offered = cards(gpus, devices)
    amounts = {devices[key].resource: len(found) for key, found in offered.items()}
    labels = ",".join(devices[key].label for key in list(offered)[:1])  # a label has one value; mixed machines name the first
    parts = ["ray", "start", f"--address={address}", "--num-gpus=0", f"--resources={json.dumps(amounts)}"]
    return " ".join(shlex.quote(p) for p in [*parts, *([f"--labels={labels}"] if labels else [])])
