"""What a device is measured with: bandwidth, meter, cache flush; made once a process, the bandwidth kept between processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amk_bench import bandwidth as probes
from amk_bench.cell import Plan
from amk_bench.conditions import CpuMeter, Meter, NoMeter
from amk_bench.floor import Bandwidth
from amk_bench.places import home


@dataclass(slots=True)
class Instruments:
    """Of one device.

    Attributes:
        probe_once: measures the bandwidth now (:mod:`amk_bench.bandwidth`).
        kept: the file where it is kept.
        cache_bytes: the last cache before memory.
        meter: reads the device's state.
        make_flush: makes what empties the caches; called at most once.
        reset: gives back cache lines that were set aside to persist.
        missing: why there is no bandwidth, None where there is one.
    """

    probe_once: Callable[[], Bandwidth] | None
    kept: Path
    cache_bytes: int
    meter: Meter
    make_flush: Callable[[], Callable[[], None]] | None = None
    reset: Callable[[], None] = lambda: None
    missing: str | None = None
    _flush: Callable[[], None] | None = field(default=None, init=False)

    def bandwidth(self, *, again: bool = False) -> Bandwidth | None:
        """The bandwidth of the device, measured the first time and when it is asked for ``again``; None where it cannot be."""
        if self.probe_once is None:
            return None
        return probes.measured(self.kept, self.probe_once, again=again)

    def least_s(self, size: int) -> float:
        """The floor of a call that reads ``size`` bytes with warm caches; measures the bandwidth only where there is one."""
        if size <= self.cache_bytes:
            return 0.0
        known = self.bandwidth()
        return 0.0 if known is None else known.least_s(size)

    def equip(self, plan: Plan, *, energy_s: float = 0.0) -> Plan:
        """The plan with everything that this device has."""
        known = self.bandwidth()
        if self._flush is None and self.make_flush is not None and known is not None:
            self._flush = self.make_flush()
        return dataclasses.replace(
            plan, meter=self.meter, bandwidth=known, reset=self.reset, probe=self._again if known is not None else None,
            flush=self._flush, energy_s=energy_s,
        )  # fmt: skip

    def _again(self) -> Bandwidth:
        found = self.bandwidth(again=True)
        assert found is not None
        return found


def for_cpu(cpu: str, threads: int, folder: Path | None = None) -> Instruments:
    """Of the processor ``cpu``, as ``threads`` threads see it."""
    from amk_bench.coldness import CpuFlush

    cache = probes.last_cache_bytes()
    kept = probes.cache_file(folder or home(), {"cpu": cpu, "threads": threads, "cache": cache})
    return Instruments(lambda: probes.probe_cpu(threads), kept, cache, CpuMeter(), lambda: CpuFlush(cache))


def for_cuda(device: Any, uuid: str = "", folder: Path | None = None, identity: Mapping[str, Any] | None = None) -> Instruments:
    """Of a card (:class:`amk_core.vm.driver.Device`); ``uuid`` finds it in NVML, ``identity``: what else counts."""
    from amk_bench.coldness import CudaFlush, reset_persisting_l2
    from amk_bench.nvml import NvmlMeter, NvmlMissing, uuid_of

    facts = device.facts
    meter: Meter
    settings: dict[str, str] = {}
    try:
        card = NvmlMeter(uuid or uuid_of(device))
        meter, settings = card, card.policy()
    except NvmlMissing:
        meter = NoMeter()
    told = {"device": facts.name, "sms": facts.sms, "driver": facts.driver, **settings, **(identity or {})}
    kept = probes.cache_file(folder or home(), told)
    return Instruments(
        lambda: probes.probe_cuda(device), kept, facts.l2_bytes, meter, lambda: CudaFlush(device), reset_persisting_l2
    )


def for_this_card() -> Instruments:
    """Of the first visible card; without a driver or compiler, instruments that measure nothing and say why."""
    from amk_core.vm.driver import CudaError, Device

    try:
        return for_cuda(Device())
    except CudaError as error:
        return Instruments(None, home() / "no-card", 0, NoMeter(), missing=str(error))
