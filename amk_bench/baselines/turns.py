"""Processes that prepare side by side and are timed one after the other, on one card; they meet in a folder."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GONE = "gone"  # stage of a process that takes part no more; who starts the processes marks those that died


class Turns:
    """One process of ``of`` that meet in ``folder``; without a folder it is alone.  ``rank``: the lower ones have their turn first.

    They meet before each stage that is timed, and in it each has its turn alone: nothing is loaded while another is timed.
    """

    def __init__(self, folder: Path | None, of: int, name: str, rank: int = 0) -> None:
        self._folder, self._of, self._rank, self._name = folder, of if folder else 1, rank, f"{rank}-{name}"
        self._met: set[str] = set()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def _at(self, stage: str) -> set[str]:
        assert self._folder is not None
        return {mark.name.partition(".")[2] for mark in self._folder.glob(f"{stage}.*")}

    def mark(self, stage: str) -> None:
        """This process has come as far as ``stage``."""
        if self._folder is not None:
            (self._folder / f"{stage}.{self._name}").touch()

    def meet(self, stage: str, until: float) -> None:
        """Waits until all have come as far as ``stage``, or are gone; at most until ``until`` of the monotonic clock.

        Those that are missing then are not waited for again.
        """
        self.mark(stage)
        if self._folder is None:
            return
        while len(here := self._at(stage) | self._at(GONE)) < self._of:
            if time.monotonic() >= until:
                self._of = len(here)
            else:
                time.sleep(0.1)
        self._met = here

    def _before(self, stage: str) -> set[str]:
        """Those that were at the last meeting, are not through, and go first."""
        waiting = self._met - self._at(f"{stage}-done") - self._at(GONE)
        return {name for name in waiting if int(name.partition("-")[0]) < self._rank}

    @contextmanager
    def turn(self, stage: str, end: float) -> Iterator[float]:
        """This process alone; gives the time up to which it may work, so that all have a share of what is left until ``end``."""
        if self._folder is None:
            yield end
            return
        while self._before(stage) and time.monotonic() < end:
            time.sleep(0.1)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now, left = time.monotonic(), self._of - len(self._at(f"{stage}-done") | (self._at(GONE) - {self._name}))
            try:
                yield now + max(0.0, end - now) / max(1, left)
            finally:
                self.mark(f"{stage}-done")
