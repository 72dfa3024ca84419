"""How a suite puts its numbers into the summary: the ``amk_record`` fixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import pytest

from amk_bench.results import LatencyRecord, NoteRecord, ParityRecord, Record, SkipRecord, to_json

# Records travel in the report's user properties: the one channel that also crosses xdist's process boundary.
PROPERTY = "amk"


class Recorder:
    """Records of one test.  Every method takes effect even when the test fails afterwards.

    Usage::

        def test_logits(amk_record):
            amk_record.parity("P2", "logits against HF fp32", measured="1.2e-06", required="<= 5e-06", passed=True)
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def add(self, record: Record) -> None:
        self._item.user_properties.append((PROPERTY, to_json(record)))

    def parity(
        self,
        level: str,
        claim: str,
        *,
        measured: str,
        required: str,
        passed: bool,
        value: float | None = None,
        limit: float | None = None,
        detail: str = "",
        where: str = "cpu",
    ) -> None:
        """One row of the parity table.  It records; the test asserts for itself."""
        self.add(ParityRecord(level, claim, measured, required, bool(passed), where, value, limit, detail))

    def latency(self, record: LatencyRecord) -> None:
        self.add(record)

    def note(self, text: str, values: Mapping[str, float] | None = None) -> None:
        self.add(NoteRecord(text, dict(values or {})))

    def skip(self, cell: str, reason: str, command: str = "") -> NoReturn:
        """Leaves the cell empty with its reason and the command that would fill it, and skips the test."""
        self.add(SkipRecord(cell, reason, command))
        pytest.skip(f"{reason}; run: {command}" if command else reason)
