"""The committed files under ``reports/data``: found, recognised, validated."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amk_bench.report import kinds
from amk_bench.report.kinds import Kind
from amk_bench.results import Record, ResultError, validate

DATA = Path("reports/data")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One committed file; each is equal to itself alone.

    Attributes:
        path: from the root of the tree, with slashes.
        doc: what it holds: the document, the list of lines of ``.jsonl``, or the text of a log.
        records: the records of a result, empty for every other kind.
    """

    path: str
    kind: Kind
    doc: Any = field(repr=False)
    digest: str = ""
    size: int = 0
    records: tuple[Record, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def anchor(self) -> str:
        """The id of its line in the page's list of files."""
        return "file-" + re.sub(r"[^A-Za-z0-9]+", "-", self.path.removeprefix("reports/data/")).strip("-").lower()

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Empty for files that have none."""
        inner = self.doc.get("amk", self.doc) if isinstance(self.doc, dict) else {}
        found: Mapping[str, Any] = inner.get("fingerprint", {})
        return found

    @property
    def commit(self) -> str:
        return str(self.fingerprint.get("commit", ""))

    @property
    def command(self) -> str:
        return str(self.fingerprint.get("command", ""))

    @property
    def device(self) -> str:
        return str(self.fingerprint.get("device", self.fingerprint.get("cpu", "")))

    @property
    def created(self) -> str:
        """ISO time, or only the date where the file's name alone tells it, or nothing."""
        if isinstance(self.doc, dict) and isinstance(self.doc.get("created"), str):
            return str(self.doc["created"])
        dated = _DATE.match(self.name)
        return dated.group() if dated else ""


def read(root: Path, path: Path) -> Source:
    """One file, validated.

    Raises:
        ResultError: it does not hold; the message names it.
    """
    name = path.relative_to(root).as_posix()
    raw = path.read_bytes()
    try:
        kind, doc, records = _understood(path.suffix, raw.decode("utf-8"))
    except ValueError as error:
        raise ResultError(f"{name}: {error}") from None
    return Source(name, kind, doc, hashlib.sha256(raw).hexdigest()[:12], len(raw), records)


def _understood(suffix: str, text: str) -> tuple[Kind, Any, tuple[Record, ...]]:
    if suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines() if line]
        for line in lines:
            kinds.ATTACK.holds(line)
        return kinds.ATTACK, lines, ()
    if suffix == ".md":
        return kinds.ABOUT, text, ()
    if suffix != ".json":
        return kinds.LOG, text, ()
    doc = json.loads(text)
    kind = kinds.kind_of(doc)
    if kind.name == "result":
        return kind, doc, tuple(validate(doc))
    kind.holds(doc)
    return kind, doc, ()


def collect(root: Path, data: Path = DATA) -> list[Source]:
    """Every file below ``data``, by path; hidden ones are not looked at.

    Raises:
        ResultError: one does not hold; the message names it.
    """
    folder = root / data
    paths = sorted(
        p for p in folder.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )
    return [read(root, path) for path in paths]


def of(sources: Sequence[Source], *names: str) -> list[Source]:
    """Those of the given kinds, oldest first."""
    return sorted((s for s in sources if s.kind.name in names), key=lambda s: (s.created, s.path))
