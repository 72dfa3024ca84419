"""What became of each job: a folder of small files, each whole or absent, that outlives whoever writes it.

::

    DIR/plan.json          every job that was ever asked for in this folder
    DIR/cells/KEY.json     how far a job has come (:class:`Cell`)
    DIR/results/KEY.json   its result document, validated, as it came from the card
    DIR/logs/KEY.txt       the end of what it printed

A cell is written last: where it says finished, its result and its log are there.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from amk_bench.fleet.devices import FleetError
from amk_bench.fleet.jobs import Job
from amk_bench.results import write_atomically, write_text_atomically

SCHEMA = 1


class State(enum.StrEnum):
    """How far a job has come; all but FINISHED are run again by the next run on the folder."""

    FINISHED = "finished"  # a result came back; gates may have failed in it, and that is a result too
    FAILED = "failed"  # it ended without a result
    TIMED_OUT = "timed out"
    LOST = "lost"  # its node, its worker or the way to it went away
    ABSENT = "absent"  # no node offers its device
    STOPPED = "stopped"  # the run was stopped before it ended
    RUNNING = "running"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to on a node.

    Attributes:
        document: the bytes of its result, only with FINISHED.
        code: exit status of its process, None where it did not end by itself.
        card: hashed identity of the card it was pinned to, "" without one.
        log: the end of its output.
    """

    state: State
    reason: str = ""
    document: bytes = b""
    code: int | None = None
    node: str = ""
    card: str = ""
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A job with its state; ``attempts`` tells the earlier ones of this run in words."""

    job: Job
    state: State
    reason: str = ""
    code: int | None = None
    node: str = ""
    card: str = ""
    seconds: float = 0.0
    changed: str = ""
    attempts: tuple[str, ...] = ()

    @staticmethod
    def of(job: Job, outcome: Outcome, attempts: Sequence[str] = ()) -> Cell:
        o = outcome
        return Cell(job, o.state, o.reason, o.code, o.node, o.card, round(o.seconds, 3), _now(), tuple(attempts))

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "state": str(self.state), "key": self.job.key}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class Folder:
    """The files of one fleet run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def result(self, job: Job) -> Path:
        return self.path / "results" / f"{job.key}.json"

    def log(self, job: Job) -> Path:
        return self.path / "logs" / f"{job.key}.txt"

    def _cell(self, job: Job) -> Path:
        return self.path / "cells" / f"{job.key}.json"

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Held by the run that works on this folder; FleetError where another one does."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / ".owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FleetError(
                    f"{self.path}: another fleet run works in this folder; wait for it, or take another --out"
                ) from None
            yield
        finally:
            os.close(handle)

    def is_owned(self) -> bool:
        """Whether a run works on this folder now."""
        try:
            handle = os.open(self.path / ".owner.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def ask(self, jobs: Iterable[Job]) -> None:
        """Adds jobs to the plan."""
        asked = {job.key: job for job in [*self.jobs(), *jobs]}
        doc = {"schema": SCHEMA, "jobs": [job.to_json() for job in asked.values()]}
        write_atomically(self.path / "plan.json", doc, replace=True)

    def jobs(self) -> list[Job]:
        """The plan so far; empty for a new folder."""
        path = self.path / "plan.json"
        if not path.exists():
            return []
        return [Job.from_json(entry) for entry in _read(path).get("jobs", [])]

    def cell(self, job: Job) -> Cell:
        """PENDING for a job of which nothing is known, or whose file or result is not whole."""
        path = self._cell(job)
        if not path.exists():
            return Cell(job, State.PENDING)
        try:
            data = _read(path)
            told = {k: v for k, v in data.items() if k not in ("schema", "key", "job")}
            told |= {"state": State(told["state"]), "attempts": tuple(told["attempts"])}
            cell = Cell(job=job, **told)
        except (FleetError, KeyError, TypeError, ValueError) as error:
            return Cell(job, State.PENDING, f"{path.name} cannot be read ({error}); the job runs again")
        if cell.state is State.FINISHED and not self.result(job).exists():
            return Cell(job, State.PENDING, f"{self.result(job).name} is gone; the job runs again")
        return cell

    def cells(self) -> list[Cell]:
        """Every job of the plan; one that runs in a folder that nobody works on was cut off."""
        alive = self.is_owned()
        out = [self.cell(job) for job in self.jobs()]
        cut = "the run ended while this job ran; the next one runs it again"
        return [replace(c, state=State.STOPPED, reason=cut) if c.state is State.RUNNING and not alive else c for c in out]

    def begin(self, job: Job, node: str, attempts: Sequence[str] = ()) -> None:
        self._write(Cell(job, State.RUNNING, node=node, changed=_now(), attempts=tuple(attempts)))

    def settle(self, job: Job, outcome: Outcome, attempts: Sequence[str] = ()) -> Cell:
        """Keeps what a job came to: log, result, and last the cell."""
        if outcome.log:
            write_text_atomically(self.log(job), outcome.log, replace=True)
        if outcome.state is State.FINISHED:
            write_text_atomically(self.result(job), outcome.document.decode("utf-8"), replace=True)
        cell = Cell.of(job, outcome, attempts)
        self._write(cell)
        return cell

    def _write(self, cell: Cell) -> None:
        write_atomically(self._cell(cell.job), cell.to_json(), replace=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FleetError(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise FleetError(f"{path}: not a file of this version of the fleet")
    return data
