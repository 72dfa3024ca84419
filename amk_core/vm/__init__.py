"""The virtual machines that run a certified schedule: ``cpu`` (one thread a queue) and ``cuda`` (one CTA an SM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a launch ended early: which task waited for what, or what its data asked for.

    Attributes:
        kind: ``spin-timeout``, ``token-range``, ``weight-timeout`` (a copy of weights did not end) or ``mail-timeout`` (values of
            the cluster did not come).
        has, needs: counter value and threshold, or the tag that was seen and the one asked for (tags are steps from 1 on), or the
            token id and the vocabulary size, or the word of an mbarrier and the bytes of its phase; 0 where they do not apply.
        counter, row: -1 where they do not apply; a spin timeout without a counter was a poll of tagged values; of a mail timeout
            the barrier of the CTA.
    """

    kind: str
    task: int
    op: str
    queue: int
    position: int
    step: int
    counter: int
    row: int
    has: int
    needs: int

    def __str__(self) -> str:
        where = f"T{self.task} {self.op} (Q{self.queue}#{self.position}, step {self.step})"
        if self.kind == "token-range":
            return f"{where}: row {self.row} has token id {self.has}, the vocabulary has {self.needs}"
        if self.kind == "weight-timeout":
            return f"{where}: the weights of an earlier task of this queue did not arrive; is spin_timeout_s too short?"
        if self.kind == "mail-timeout":
            return (
                f"{where} waits at barrier {self.counter} of its CTA for {self.needs} bytes of its cluster (the barrier is "
                f"{self.has & (2**64 - 1):#018x}) and nothing moves; is spin_timeout_s too short?"
            )
        if self.counter < 0:
            return f"{where} {self._polled()}"
        return f"{where} waits c{self.counter} >= {self.needs} (has {self.has}) and nothing moves; is spin_timeout_s too short?"

    def _polled(self) -> str:
        """What became of a poll of tagged values."""
        step, seen = self.needs - 1, self.has - 1
        if seen > step:
            return f"wants a value of step {step}, which step {seen} has overwritten: the schedule races; amk validate says where"
        there = "none has come" if seen < 0 else "not all have come" if seen == step else f"those of step {seen} are there"
        return f"polls for values of step {step}, {there} and nothing moves; is spin_timeout_s too short?"


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """``steps``: steps whose results are complete; ``stopped``: the sampler ended the launch before its last step."""

    steps: int
    stopped: bool


class VmFault(RuntimeError):
    """A launch ended with a fault; ``fault`` is the report.  KV rows from p0 on are not valid any more."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class LaunchAborted(RuntimeError):
    """The launch was ended by :meth:`VirtualMachine.abort`.  KV rows from p0 on are not valid any more."""


class CertificateRefused(ValueError):
    """The tables carry no certificate, or one that the independent checker does not accept."""


class VirtualMachine(Protocol):
    """What both VMs offer.  A machine holds one program; one launch at a time."""

    def launch(
        self,
        steps: int,
        variables: Sequence[int],
        *,
        spin_timeout_s: float = ...,
        perturb_seed: int | None = None,
        poison: bool = False,
    ) -> None:
        """Start up to ``steps`` steps and return at once.  ``variables``: flattened launch variables, in table order.

        Raises:
            ValueError: a launch is in flight, or steps or variables are outside what the tables declare.
        """
        ...  # fmt: skip

    def wait(self) -> LaunchResult:
        """Wait for the end of the launch.

        Raises:
            VmFault: the launch met a fault.
            LaunchAborted: :meth:`abort` ended it.
        """
        ...

    def poll(self, steps: int = 0, timeout_s: float = 0.0) -> int:
        """Steps whose host-visible results may be read already; waits until ``steps`` are there or the time is over."""
        ...

    def abort(self) -> None:
        """Make every queue leave at its next wait or task."""
        ...

    def buffer(self, name: str) -> npt.NDArray[Any]:
        """The buffer as a writable array [rows, cols] of its dtype (bf16 as uint16)."""
        ...

    def pool(self, name: str) -> npt.NDArray[np.uint8]:
        """A pool's bytes, to be shared with another program."""
        ...
