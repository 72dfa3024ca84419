"""Gates before clocks: a time cannot be recorded without a passed gate of the same subject.

:func:`open_gate` is the only maker of :class:`PassedGate`; :class:`Timing` refuses to exist without one that names its subject.  An
engine that fails its gate yields a :class:`FailedGate`, which carries the reason into the table and cannot carry a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from amk_bench.pairing import Block, samples_of

_KEY: Final = object()


@dataclass(frozen=True, slots=True)
class Subject:
    """What a gate speaks about: one engine on one model at one position and batch."""

    engine: str
    model: str
    batch: int
    position: int


@dataclass(frozen=True, slots=True)
class Check:
    """One fact a gate rests on, with what was measured in words."""

    name: str
    passed: bool
    measured: str


@dataclass(frozen=True, slots=True)
class FailedGate:
    """The gate did not open; ``reason`` says which checks failed and what was seen."""

    subject: Subject
    checks: tuple[Check, ...]

    @property
    def reason(self) -> str:
        failed = [f"{c.name}: {c.measured}" for c in self.checks if not c.passed]
        return "; ".join(failed) if failed else "no check was made"


@final
class PassedGate:
    """Proof that every check of a subject passed; made by :func:`open_gate` alone."""

    __slots__ = ("checks", "level", "subject")
    subject: Subject
    level: str
    checks: tuple[Check, ...]

    def __init__(self, key: object, subject: Subject, level: str, checks: tuple[Check, ...]) -> None:
        if key is not _KEY:
            raise TypeError("a PassedGate is made by amk_bench.gate.open_gate from checks that passed, never by hand")
        object.__setattr__(self, "subject", subject)
        object.__setattr__(self, "level", level)
        object.__setattr__(self, "checks", checks)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"PassedGate.{name} cannot be changed: run the gate again")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"PassedGate.{name} cannot be removed")

    def __init_subclass__(cls) -> None:
        raise TypeError("PassedGate cannot be subclassed")

    def __reduce__(self) -> str:
        raise TypeError("a PassedGate belongs to the process that ran the checks and cannot be pickled or copied")


def open_gate(subject: Subject, level: str, checks: Iterable[Check]) -> PassedGate | FailedGate:
    """Opens the gate ``level`` for ``subject`` when there is at least one check and all of them passed."""
    made = tuple(checks)
    if made and all(check.passed for check in made):
        return PassedGate(_KEY, subject, level, made)
    return FailedGate(subject, made)


@dataclass(frozen=True, slots=True)
class Timing:
    """Paired times of ours (A) and a baseline (B), both through their gates for the same model, batch and position.

    ``tokens``: decode steps in each timed call.  Raises TypeError without a PassedGate, ValueError when the gates do not belong
    together or there is no block.
    """

    ours: PassedGate
    baseline: PassedGate
    blocks: tuple[Block, ...]
    tokens: int
    clock: str

    def __post_init__(self) -> None:
        for side, gate in (("ours", self.ours), ("baseline", self.baseline)):
            if not isinstance(gate, PassedGate):
                raise TypeError(f"{side}: a time needs a PassedGate, got {type(gate).__name__}; run amk_bench.gate.open_gate first")
        a, b = self.ours.subject, self.baseline.subject
        if (a.model, a.batch, a.position) != (b.model, b.batch, b.position):
            raise ValueError(f"the gates are of different cells: {a} and {b}")
        if not self.blocks:
            raise ValueError("a timing needs at least one block")
        if self.tokens < 1:
            raise ValueError(f"{self.tokens} tokens a call; at least 1 is needed")

    @property
    def log_ratios(self) -> tuple[float, ...]:
        return tuple(block.log_ratio for block in self.blocks)

    def microseconds(self, side: str) -> list[float]:
        """All samples of side "a" or "b" in microseconds a token, in the order they were taken within their side."""
        return [1e6 * s.device_s / self.tokens for s in samples_of(self.blocks, side)]
