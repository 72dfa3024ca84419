"""One test session as the judge sees it: options, device, records collected so far, the result document."""

from __future__ import annotations

import functools
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amk_bench.options import Arch, Options, resolve

if TYPE_CHECKING:
    import pytest

    from amk_bench.fingerprint import Fingerprint
    from amk_bench.results import Record
    from amk_core.machine import Machine


class Session:
    """Shared state of the plugin's hooks; the machine is probed on first use."""

    def __init__(self, options: Options, root: Path, worker: bool) -> None:
        self.options = options
        self.root = root
        # One seed for inputs, bootstrap and block order: drawn anew, so that nothing can be prepared for its inputs, and kept with
        # every result, so that each can be repeated.
        self.seed = secrets.randbits(31)
        self.worker = worker  # an xdist worker: it sends its records to the controller and prints nothing
        self.records: list[Record] = []

    @functools.cached_property
    def machine(self) -> Machine:
        from amk_core import machine

        return machine.probe()

    @functools.cached_property
    def arch(self) -> Arch:
        return resolve(self.options, self.machine)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        from amk_bench import fingerprint

        command = ["pytest", *sys.argv[1:]]
        return fingerprint.take(self.machine, self.arch.name, self.arch.device, command, {"all": self.seed}, self.root)

    @property
    def hardware_missing(self) -> str | None:
        """Why a run with ``--require-hardware`` must fail, None when it need not."""
        return self.arch.missing if self.options.require_hardware else None

    def collect(self, report: pytest.TestReport) -> None:
        """Takes the records of a finished test out of its last report."""
        if report.when != "teardown":
            return
        from amk_bench.recorder import PROPERTY
        from amk_bench.results import from_json

        own = (value for name, value in report.user_properties if name == PROPERTY)
        self.records += [from_json(value) for value in own if isinstance(value, Mapping)]

    def document(self) -> dict[str, Any]:
        """The ``amk`` block of this run so far."""
        from dataclasses import asdict

        from amk_bench.results import document

        return document(self.records, self.fingerprint.to_json(), asdict(self.options))

    def write_report(self) -> Path:
        """Appends this run to ``reports/data``; raises OSError when it cannot, ResultError for a document that does not hold."""
        from amk_bench.results import report_name, validate, write_atomically

        doc = self.document()
        validate(doc)
        path = self.root / "reports" / "data" / report_name(doc)
        write_atomically(path, doc)
        return path
