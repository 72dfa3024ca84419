"""The state of an NVIDIA card through NVML (package ``nvidia-ml-py``), and the settings that belong into a fingerprint.

Every query may be missing on a card or in a container; what does not answer is None, never zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from amk_bench.conditions import POWER_CAPPED, Reading

# Bits of nvmlClocksEventReasons (nvml.h); "idle" and "clocks set by the user" are no reasons to doubt a time.
REASONS: tuple[tuple[int, str], ...] = (
    (0x2, "application clocks"),
    (0x4, POWER_CAPPED),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORE_TEMPERATURE = 0


class NvmlMissing(RuntimeError):
    """NVML does not load, or the card is not among those it shows; the message says what to do."""


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NvmlMissing("the card's state needs nvidia-ml-py: pip install nvidia-ml-py") from None
    return pynvml


class NvmlMeter:
    """One card, found by its UUID (as ``nvidia-smi`` spells it) or, without one, by its index among the visible cards.

    ``library`` is the ``pynvml`` module or a stand-in for it.  Raises NvmlMissing where the library or the card is missing.
    """

    name = "nvml"

    def __init__(self, uuid: str = "", index: int = 0, library: Any = None) -> None:
        self._nvml = library if library is not None else _load()
        try:
            self._nvml.nvmlInit()
            if uuid:
                self._card = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            else:
                self._card = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            raise NvmlMissing(f"NVML does not show card {uuid or index}: {error}; check nvidia-smi") from None

    def _ask(self, query: str, *args: Any) -> Any:
        """The answer of a query, None where this card, driver or container does not give it."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return getattr(self._nvml, query)(self._card, *args)
        return None

    def read(self) -> Reading:
        power, energy = self._ask("nvmlDeviceGetPowerUsage"), self._ask("nvmlDeviceGetTotalEnergyConsumption")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            clock_mhz=_float(self._ask("nvmlDeviceGetClockInfo", _SM)),
            memory_mhz=_float(self._ask("nvmlDeviceGetClockInfo", _MEMORY)),
            power_w=None if power is None else power * 1e-3,
            energy_j=None if energy is None else energy * 1e-3,
            temperature_c=_float(self._ask("nvmlDeviceGetTemperature", _CORE_TEMPERATURE)),
            reasons=tuple(name for bit, name in REASONS if (bits or 0) & bit),
        )

    def policy(self) -> dict[str, str]:
        """Settings that change what the card can do: power limit, clocks, ECC, MIG, persistence.  "unknown" where not told."""

        def told(query: str, show: Callable[[Any], str], *args: Any) -> str:
            value = self._ask(query, *args)
            return "unknown" if value is None else show(value)

        on_off: Callable[[Any], str] = lambda pair: "on" if (pair[0] if isinstance(pair, list | tuple) else pair) else "off"  # noqa: E731
        return {
            "power_limit_w": told("nvmlDeviceGetEnforcedPowerLimit", lambda mw: f"{mw / 1000:.0f}"),
            "application_sm_mhz": told("nvmlDeviceGetApplicationsClock", str, _SM),
            "most_sm_mhz": told("nvmlDeviceGetMaxClockInfo", str, _SM),
            "most_memory_mhz": told("nvmlDeviceGetMaxClockInfo", str, _MEMORY),
            "ecc": told("nvmlDeviceGetEccMode", on_off),
            "mig": told("nvmlDeviceGetMigMode", on_off),
            "persistence": told("nvmlDeviceGetPersistenceMode", on_off),
        }


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def policy_of(uuid: str, library: Any = None) -> dict[str, str]:
    """The settings of a card for a fingerprint; empty where NVML is missing."""
    try:
        return NvmlMeter(uuid, library=library).policy()
    except NvmlMissing:
        return {}


def uuid_of(device: Any) -> str:
    """The name under which NVML finds the card of an :class:`amk_core.vm.driver.Device`; "" where the driver does not tell.

    CUDA and NVML count cards differently: ``CUDA_VISIBLE_DEVICES`` hides cards from the one and not from the other.
    """
    import uuid

    from amk_core.vm.driver import CudaError, call

    device.activate()
    try:
        raw = bytes(call("cuDeviceGetUuid", call("cuCtxGetDevice")).bytes)
    except (CudaError, AttributeError):
        return ""
    return f"GPU-{uuid.UUID(bytes=raw)}"
