"""The loop that gives jobs to cards and keeps what comes back.  It always ends: every wait in it has a limit.

A :class:`Runner` knows where cards are and starts processes; the loop knows what is left to do.  So the loop is tested with a
runner made of a list and a clock made of a number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from amk_bench.fleet.cells import Cell, Folder, Outcome, State
from amk_bench.fleet.jobs import Job

TURN_S = 0.5  # how often the loop looks around
GRACE_S = 60.0  # beyond a job's own limit, for its way there and back
QUEUE_S = 900.0  # a card of a cluster that somebody else uses
SHUN_S = 20.0  # a node that has just lost a job may be dead: a cluster takes 15 s to notice


class Runner(Protocol):
    """Where jobs run."""

    name: str

    def slots(self) -> dict[str, list[str]]:
        """Device key -> one name for each such card that can be reached now, used or not."""
        ...

    def offers(self) -> str:
        """What there is, in words."""
        ...

    def remedy(self, device: str) -> str:
        """What would bring this device, in words."""
        ...

    def start(self, job: Job, slot: str) -> None: ...

    def wait(self, timeout_s: float) -> list[tuple[Job, Outcome]]:
        """What has ended; returns after ``timeout_s`` seconds at the latest."""
        ...

    def cancel(self, job: Job) -> None:
        """Ends a job whose outcome is not waited for any more."""
        ...

    def close(self) -> None:
        """Ends everything that runs."""
        ...


GONE_S = 10.0  # a node that is gone takes its jobs along at once where its end was seen; behind a cut cable nothing is


def _node(slot: str) -> str:
    return slot.rpartition("/")[0]


@dataclass(slots=True)
class _Running:
    slot: str
    deadline: float
    gone_at: float | None = None  # when its node was first missing


@dataclass(slots=True)
class Drive:
    """One run over a folder.

    Attributes:
        absent_s: how long a device may be offered by nobody before its jobs are given up.
        retries: how often a job that was lost (never one that failed) is run again.
        say: told about every change.
    """

    folder: Folder
    runner: Runner
    absent_s: float = 60.0
    retries: int = 1
    say: Callable[[str], None] = lambda text: None
    now: Callable[[], float] = time.monotonic
    queue_s: float = QUEUE_S
    shun_s: float = SHUN_S
    gone_s: float = GONE_S
    _pending: list[Job] = field(default_factory=list)
    _running: dict[str, tuple[Job, _Running]] = field(default_factory=dict)
    _missing: dict[str, float] = field(default_factory=dict)
    _shunned: dict[str, float] = field(default_factory=dict)
    _attempts: dict[str, list[str]] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], again: bool = False) -> list[Cell]:
        """Runs the jobs that are not finished (with ``again``: all); returns the cells of all.

        On KeyboardInterrupt what runs is stopped, says so in its cell, and the interrupt goes on.
        """
        self.folder.ask(jobs)
        kept = [] if again else [job for job in jobs if self.folder.cell(job).state is State.FINISHED]
        self._pending = [job for job in jobs if job not in kept]
        if kept:
            self.say(f"{len(kept)} of {len(jobs)} cells are finished and kept")
        try:
            while self._pending or self._running:
                self._turn()
        except BaseException:
            self._stopped()
            raise
        finally:
            self.runner.close()
        return [self.folder.cell(job) for job in jobs]

    def _turn(self) -> None:
        offered = self.runner.slots()
        self._start(offered)
        self._give_up(offered)
        for job, outcome in self.runner.wait(TURN_S if self._running or self._pending else 0.0):
            self._take(job, outcome)
        for job, running in list(self._running.values()):
            reason = self._silent(job, running, offered)
            if reason is not None:
                self.runner.cancel(job)
                self._take(job, Outcome(State.LOST, reason, node=running.slot))

    def _silent(self, job: Job, running: _Running, offered: dict[str, list[str]]) -> str | None:
        """Why no answer of this job is waited for any more; None while one is."""
        if running.slot in offered.get(job.device, []):
            running.gone_at = None
        elif running.gone_at is None:
            running.gone_at = self.now()
        if running.gone_at is not None and self.now() - running.gone_at >= self.gone_s:
            return "its node left the cluster, or cannot be reached"
        return f"no answer within {job.limit_s + self._grace():.0f} s" if self.now() > running.deadline else None

    def _grace(self) -> float:
        return GRACE_S + self.queue_s

    def _start(self, offered: dict[str, list[str]]) -> None:
        used = {running.slot for _, running in self._running.values()}
        for job in list(self._pending):
            free = [
                slot for slot in offered.get(job.device, []) if slot not in used and self._shunned.get(_node(slot), 0) <= self.now()
            ]
            if not free:
                continue
            used.add(free[0])
            self._pending.remove(job)
            self._running[job.key] = (job, _Running(free[0], self.now() + job.limit_s + self._grace()))
            self.folder.begin(job, free[0], self._attempts.get(job.key, []))
            self.say(f"{job.key}: started on {free[0]}")
            self.runner.start(job, free[0])

    def _give_up(self, offered: dict[str, list[str]]) -> None:
        """Jobs whose device nobody offers get their reason after ``absent_s`` seconds."""
        for device in {job.device for job in self._pending}:
            if offered.get(device):
                self._missing.pop(device, None)
                continue
            waited = self.now() - self._missing.setdefault(device, self.now())
            if waited < self.absent_s:
                continue
            long = f" within {waited:.0f} s" if waited >= 1 else ""
            reason = f"no node offers {device}{long}: {self.runner.offers()}; {self.runner.remedy(device)}"
            for job in [j for j in self._pending if j.device == device]:
                self._pending.remove(job)
                lost = self._attempts.get(job.key, [])
                state = State.LOST if lost else State.ABSENT
                self._settle(job, Outcome(state, "; ".join([*lost, reason])))

    def _take(self, job: Job, outcome: Outcome) -> None:
        if self._running.pop(job.key, None) is None:
            return  # an answer after its time; the cell has been settled
        if outcome.state is State.LOST:
            self._shunned[_node(outcome.node)] = self.now() + self.shun_s
        attempts = self._attempts.setdefault(job.key, [])
        if outcome.state is State.LOST and len(attempts) < self.retries:
            attempts.append(f"lost on {outcome.node}: {outcome.reason}")
            self.say(f"{job.key}: {outcome.reason}; runs again")
            self._pending.append(job)
            return
        self._settle(job, outcome)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        cell = self.folder.settle(job, outcome, self._attempts.get(job.key, []))
        took = f" in {cell.seconds:.0f} s" if cell.seconds else ""
        self.say(f"{job.key}: {cell.state}{took}{f': {cell.reason}' if cell.reason else ''}")

    def _stopped(self) -> None:
        """What was running when the run was stopped says so; what has ended meanwhile is kept."""
        for job, outcome in self.runner.wait(0.0):
            self._take(job, outcome)
        for job, running in list(self._running.values()):
            self._settle(job, Outcome(State.STOPPED, "the run was stopped while this job ran", node=running.slot))
        self._running.clear()
