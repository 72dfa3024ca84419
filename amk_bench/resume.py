"""Resuming a killed run: tests whose cells are in the journal are not run again, their records and times are put where they go.

:class:`Resume` is a plugin of its own, registered in the process that owns the result (not in xdist's workers).
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amk_bench.journal import Journal, key_of
from amk_bench.recorder import PROPERTY
from amk_bench.results import NoteRecord, to_json

if TYPE_CHECKING:
    from amk_bench.session import Session

RECORD, SECONDS = "amk_record", "amk_seconds"
CELL = pytest.StashKey[dict[str, Any]]()
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Resume:
    """Keeps finished cells while a run is under way, and puts those of a killed run in their places."""

    def __init__(self, session: Session, journal: Journal) -> None:
        self._session = session
        self._journal = journal
        self._passed: set[str] = set()
        self._resumed: list[str] = []
        self._ended = False

    @functools.cached_property
    def _machine(self) -> tuple[dict[str, Any], str]:
        """What has to be the same for a cell to count: machine, options that choose what is run, source."""
        from amk_bench.fingerprint import state_of

        stamp, options = self._session.fingerprint, self._session.options
        chosen = {"model": options.model, "tier": options.tier, "device": options.device or "", "ranks": options.ranks or ""}
        return {**stamp.comparable(), **chosen}, f"{stamp.commit} {state_of(self._session.root)}"

    def _key(self, nodeid: str) -> str:
        suite, _, case = nodeid.partition("::")
        fingerprint, commit = self._machine
        return key_of(suite, f"{case} {_digest(self._session.root / suite)}", fingerprint, commit)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if config.option.collectonly or not self._session.options.resume or not self._journal.adopt():
            return
        for item in items:
            names = getattr(item, "fixturenames", ())
            if RECORD not in names and SECONDS not in names:
                continue
            cell = self._journal.get(self._key(item.nodeid))
            if cell is None:
                continue
            item.stash[CELL] = cell
            self._resumed.append(item.nodeid)
            # What the test would need (a model, a card) is not set up for it; its times still go into pytest-benchmark.
            item.fixturenames = [n for n in (SECONDS, "benchmark") if n in names and cell.get("seconds")]  # type: ignore[attr-defined]

    def pytest_report_collectionfinish(self) -> list[str]:
        if not self._resumed:
            return []
        return [f"amk: {len(self._resumed)} finished cells of a run that was killed are kept; --no-resume measures them again"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        cell = pyfuncitem.stash.get(CELL, None)
        if cell is None:
            return None
        pyfuncitem.user_properties += [(PROPERTY, record) for record in cell["records"]]
        note = NoteRecord(f"{pyfuncitem.name}: kept from a run that was killed, measured {cell['created']}")
        pyfuncitem.user_properties.append((PROPERTY, to_json(note)))
        if cell.get("seconds"):
            seconds: Any = pyfuncitem.funcargs[SECONDS]
            seconds.store(cell["seconds"]["samples_s"], cell["seconds"]["block"])
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A cell is finished when its test has passed and was torn down."""
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        if report.when != "teardown" or not report.passed or report.nodeid not in self._passed:
            return
        told: dict[str, list[Any]] = {PROPERTY: [], SECONDS: []}
        for name, value in report.user_properties:
            if name in told and isinstance(value, Mapping):
                told[name].append(value)
        if told[PROPERTY] and report.nodeid not in self._resumed:
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            seconds = told[SECONDS][0] if told[SECONDS] else None
            cell = {"nodeid": report.nodeid, "created": created, "records": told[PROPERTY], "seconds": seconds}
            self._journal.put(self._key(report.nodeid), cell)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._ended = exitstatus in ENDED

    def pytest_unconfigure(self) -> None:
        """After the results have been written."""
        self._journal.close(self._ended)


def _digest(path: Path) -> str:
    """Of a test file: another text, another cell."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"
