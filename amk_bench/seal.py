"""Whether the instruments are still the ones that were there before a contender ran: clocks, statistics, verdicts, gates.

A contender runs in the judge's process and can reach everything in it.  What it may not do is change a number without a trace:
the functions and limits that make a number are recorded before it runs and compared when it has run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

# Every function and every constant of these modules makes, keeps or judges a number.
MODULES = (
    "amk_bench.busy",
    "amk_bench.clock",
    "amk_bench.gate",
    "amk_bench.pairing",
    "amk_bench.results",
    "amk_bench.stats",
    "amk_bench.values",
    "amk_bench.verdict",
)
# Present in some runs only, sealed where they are.
OPTIONAL = (
    "amk_bench.cell", "amk_bench.conditions", "amk_bench.cuda_clock", "amk_bench.faults", "amk_bench.floor", "amk_bench.measure",
    "amk_bench.paired",
)  # fmt: skip
OUTSIDE = (
    "time.perf_counter_ns", "time.perf_counter", "time.monotonic", "time.monotonic_ns", "time.time", "time.time_ns",
    "statistics.median", "math.log", "math.exp", "numpy.median", "numpy.quantile", "numpy.isfinite", "numpy.abs",
    "numpy.random.default_rng",
)  # fmt: skip
TORCH = (
    "torch.cuda.Event.record", "torch.cuda.Event.elapsed_time", "torch.cuda.Event.synchronize", "torch.cuda.synchronize",
    "torch.cuda.current_stream", "torch.cuda.Event", "torch.Tensor.clone", "torch.Tensor.fill_", "torch.Tensor.copy_",
)  # fmt: skip


def _fetch(path: str) -> Any:
    """The object at a dotted path of an already imported module; None where it is not there."""
    head, _, rest = path.partition(".")
    found: Any = sys.modules.get(head)
    for name in rest.split("."):
        found = getattr(found, name, None)
    return found


def _state(value: Any) -> object:
    """What makes a thing itself: a function's code and defaults, a class's methods, a constant's value."""
    if isinstance(value, FunctionType):
        return value, value.__code__, value.__defaults__, repr(value.__kwdefaults__)
    if isinstance(value, type):
        members = ((k, v) for k, v in vars(value).items() if isinstance(v, FunctionType | property | staticmethod | classmethod))
        return value, tuple((k, _state(v) if isinstance(v, FunctionType) else v) for k, v in members)
    if isinstance(value, bool | int | float | str | tuple | frozenset):
        return value
    if isinstance(value, dict | list):
        return id(value), repr(value)
    return id(value)


def _foreign() -> Iterator[str]:
    """Instruments that are not their makers' own any more: replaced before the seal was put on."""
    for path in (*OUTSIDE, *(TORCH if "torch" in sys.modules else ())):
        maker = getattr(_fetch(path), "__module__", None)
        if isinstance(maker, str) and _root(maker) != _root(path):
            yield path
    for name in (*MODULES, *OPTIONAL):
        for attribute, value in vars(sys.modules.get(name, sys)).items() if name in sys.modules else ():
            maker = getattr(value, "__module__", None)
            if isinstance(value, FunctionType) and isinstance(maker, str) and _root(maker) not in _MAKERS:
                yield f"{name}.{attribute}"


def _root(path: str) -> str:
    return path.partition(".")[0].lstrip("_")


# Whose functions the sealed modules hold.
_MAKERS = frozenset({"amk_bench", "amk_core", "numpy", *(name.lstrip("_") for name in sys.stdlib_module_names)})


def _things() -> Iterator[tuple[str, object]]:
    for name in (*MODULES, *OPTIONAL):
        module: ModuleType | None = sys.modules.get(name)
        if module is None:
            continue
        for attribute, value in vars(module).items():
            if not attribute.startswith("__"):
                yield f"{name}.{attribute}", _state(value)
    for path in (*OUTSIDE, *(TORCH if "torch" in sys.modules else ())):
        yield path, _state(_fetch(path))


@dataclass(frozen=True, slots=True)
class Seal:
    """The instruments as they were when the seal was put on."""

    things: dict[str, object]

    @classmethod
    def put(cls) -> Seal:
        for name in MODULES:
            importlib.import_module(name)
        return cls(dict(_things()))

    def broken(self) -> str | None:
        """Which instruments were changed since, None when none was.  What was imported since is not looked at."""
        now = dict(_things())
        changed = [name for name, state in self.things.items() if name in now and not _same(now[name], state)]
        gone = [name for name in self.things if name not in now]
        if changed or gone:
            return f"instruments were changed while it ran: {', '.join(sorted([*changed, *gone])[:4])}"
        foreign = sorted(set(_foreign()))
        return f"instruments were replaced before it ran: {', '.join(foreign[:4])}" if foreign else None


def _same(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False
