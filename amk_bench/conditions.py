"""The state of a device while it is measured: clocks, power, temperature, why it runs slower than it could, what others took.

A :class:`Meter` reads it at the borders of blocks; :func:`summary` turns the readings of a run into what a result carries, and
says when the machine misbehaved.  :class:`CpuMeter` is the processor's; :mod:`amk_bench.nvml` has the card's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from amk_bench.busy import witness

# Reasons that are the card's design at work: a card that lives at its power limit is labelled and measured.
POWER_CAPPED = "power cap"
# Reasons that say the machine is not well: its speed is not the card's speed.
UNWELL = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake")
UNWELL_SHARE = 0.10  # of the blocks; a single reading may catch the moment a fan speeds up
_RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the device; None and empty where it does not say.

    Attributes:
        clock_mhz, memory_mhz: of the cores (SMs) and of the memory, now.
        power_w: watts now.  ``energy_j``: joules since a fixed moment in the past.
        temperature_c: of the chip.
        reasons: why the clocks are below their maximum.
        others: share (0 to 1) of this process's cores that other processes took since the reading before.
    """

    clock_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    others: float | None = None


class Meter(Protocol):
    """Reads a device's state; ``name`` goes into the result."""

    @property
    def name(self) -> str: ...

    def read(self) -> Reading: ...


class NoMeter:
    """Where nothing can be read."""

    name = "none"

    def read(self) -> Reading:
        return Reading()


class CpuMeter:
    """The processor: mean frequency of its cores, energy of its packages where the system lets us read it, load of others."""

    name = "cpu"

    def __init__(self, rapl: Path = _RAPL) -> None:
        # "intel-rapl:0" is a package; "intel-rapl:0:0" is a part of one and contained in it.
        packages = sorted(p for p in rapl.glob("*-rapl:*") if p.name.count(":") == 1)
        self._energy = [p / "energy_uj" for p in packages]
        self._range_uj = [_number(p / "max_energy_range_uj") for p in packages]
        self._last: list[float] | None = None
        self._turns_uj = 0.0
        self._share = witness()

    def read(self) -> Reading:
        share, self._share = self._share(), witness()
        return Reading(clock_mhz=cpu_mhz(), energy_j=self._joules(), others=share)

    def _joules(self) -> float | None:
        """Counters of the packages together; each starts again from 0 at its range."""
        now = [_number(p) for p in self._energy]
        if not now or any(x is None for x in now):
            return None
        values = [x for x in now if x is not None]
        for new, old, top in zip(values, self._last or values, self._range_uj, strict=True):
            if new < old and top is not None:
                self._turns_uj += top
        self._last = values
        return (sum(values) + self._turns_uj) * 1e-6


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def cpu_mhz() -> float | None:
    """Mean frequency of the cores now, MHz; None where the system does not say."""
    import psutil

    try:
        now = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):
        return None
    return float(now.current) if now is not None and now.current else None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the readings of a run say.

    Attributes:
        values: means over the run by name (``clock_mhz``, ``power_w``, ...), only what was read.
        series: the readings behind them, one a block, by name; the first stands before the first block.
        label: what a reader should know, "" where there is nothing ("power-capped in 9 of 10 readings").
        fault: why no time may come out of this run, None where one may.
    """

    values: dict[str, float]
    label: str
    fault: str | None
    series: dict[str, list[float]]


def summary(readings: Sequence[Reading]) -> Summary:
    """Means, label and fault of the readings taken around the blocks of one run (the first stands before the first block)."""
    inside = readings[1:] or readings
    values: dict[str, float] = {}
    for name in ("clock_mhz", "memory_mhz", "power_w", "temperature_c", "others"):
        seen = [x for r in inside if (x := getattr(r, name)) is not None]
        if seen:
            values[name] = statistics.fmean(seen)
    clocks = [r.clock_mhz for r in inside if r.clock_mhz is not None]
    if clocks:
        values |= {"clock_mhz_least": min(clocks), "clock_mhz_most": max(clocks)}
    if readings and readings[0].energy_j is not None and readings[-1].energy_j is not None:
        values["energy_j"] = readings[-1].energy_j - readings[0].energy_j
    capped = sum(POWER_CAPPED in r.reasons for r in inside)
    label = ""
    if capped:
        label = "power-capped throughout" if capped == len(inside) else f"power-capped in {capped} of {len(inside)} readings"
    unwell = [sorted(set(r.reasons) & set(UNWELL)) for r in inside if set(r.reasons) & set(UNWELL)]
    fault = None
    if len(unwell) > UNWELL_SHARE * len(inside):
        fault = f"the card throttled ({', '.join(unwell[0])}) in {len(unwell)} of {len(inside)} readings; let it cool"
    names = ("clock_mhz", "memory_mhz", "power_w", "energy_j", "temperature_c", "others")
    columns = {name: [getattr(r, name) for r in readings] for name in names}
    series = {name: column for name, column in columns.items() if column and None not in column}
    for reason in sorted({reason for r in readings for reason in r.reasons}):
        series[f"reason: {reason}"] = [float(reason in r.reasons) for r in readings]
    return Summary(values, label, fault, series)


def joules(meter: Meter, call: Callable[[], object], tokens: int, seconds: float, now: Callable[[], float]) -> float | None:
    """Joules a token of ``call`` (``tokens`` each), repeated for at least ``seconds``; None where the device has no counter.

    A card's energy counter moves in steps that are long against a call, so that single calls cannot be told apart; ``seconds`` has
    to be many steps.  Idle power is included: it is part of what a token costs.
    """
    first = meter.read().energy_j
    if first is None:
        return None
    calls, end = 0, now() + seconds
    while now() < end:
        call()
        calls += 1
    last = meter.read().energy_j
    if last is None or calls == 0 or last <= first:
        return None
    return (last - first) / (calls * tokens)
