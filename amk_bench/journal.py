"""Finished cells of runs that have not ended, so that a killed run goes on at its next cell.

Each run has a folder of its own under ``$AMK_HOME/runs/PROJECT``, with one file a finished cell and a lock that lives as long as
the process.  Whoever starts later adopts the folders whose lock is free: their runs were killed.  A run that ends removes its
folder and the ones it adopted, for then the cells stand in its result.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amk_bench.results import SCHEMA, write_atomically

KEPT_S = 7 * 24 * 3600  # what nobody took up for a week is given up
LOCK = "owner.lock"


def key_of(suite: str, case: str, fingerprint: Mapping[str, Any], commit: str) -> str:
    """The name of a cell: the same suite, case, machine and source give the same name, a change of any gives another."""
    text = json.dumps([SCHEMA, suite, case, dict(fingerprint), commit], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """The journal of one run in ``folder`` (a project's); nothing is created before the first cell is finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._locks: list[int] = []
        self._adopted: list[Path] = []
        self._cells: dict[str, Path] = {}

    def adopt(self) -> int:
        """Takes over the cells of runs that were killed; returns how many there are."""
        for run in sorted(self._folder.glob("run-*")):
            handle = _lock(run / LOCK)
            if handle is None:
                continue
            if time.time() - run.stat().st_mtime > KEPT_S:
                shutil.rmtree(run, ignore_errors=True)
                os.close(handle)
                continue
            self._locks.append(handle)
            self._adopted.append(run)
            self._cells |= {path.stem: path for path in run.glob("*.json")}
        return len(self._cells)

    def get(self, key: str) -> dict[str, Any] | None:
        """The cell of an adopted run, None where there is none that can be read."""
        path = self._cells.get(key)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            cell = json.loads(path.read_text("utf-8"))
            if isinstance(cell, dict) and cell.get("schema") == SCHEMA and isinstance(cell.get("records"), list):
                return cell
        return None

    def put(self, key: str, cell: Mapping[str, Any]) -> None:
        """Keeps a finished cell, whole or not at all.  A disk that refuses costs the resume, not the run."""
        with contextlib.suppress(OSError):
            if self._own is None:
                own = self._folder / f"run-{time.time_ns()}-{os.getpid()}"
                own.mkdir(parents=True)
                handle = _lock(own / LOCK)
                if handle is not None:
                    self._locks.append(handle)
                self._own = own
            write_atomically(self._own / f"{key}.json", {"schema": SCHEMA, **cell}, replace=True)

    def close(self, ended: bool) -> None:
        """Lets go of the locks; a run that ``ended`` removes its cells and those it adopted."""
        if ended:
            for folder in (self._own, *self._adopted):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder.rmdir()
        for handle in self._locks:
            os.close(handle)
        self._own, self._locks, self._adopted, self._cells = None, [], [], {}


def _lock(path: Path) -> int | None:
    """A handle that holds the lock until it is closed or the process dies; None where another process holds it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
