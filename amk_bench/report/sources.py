"""The committed files under ``reports/data``: found, recognised, validated."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
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
        told = next((self.doc[k] for k in ("created", "changed") if k in self.doc), None) if isinstance(self.doc, dict) else None
        if isinstance(told, str):
            return told
        dated = _DATE.match(self.name)
        return dated.group() if dated else ""


def read(root: Path, path: Path) -> Source:
    """One file, validated.

    Raises:
        ResultError: it does not hold, UnknownKind where no kind recognises it; the message names it.
    """
    name = path.relative_to(root).as_posix()
    raw = path.read_bytes()
    try:
        strictly = "strict" if path.suffix in (".json", ".jsonl") else "replace"  # a log is shown by nobody, only linked
        kind, doc, records = _understood(path.suffix, raw.decode("utf-8", strictly))
    except kinds.UnknownKind as error:
        raise kinds.UnknownKind(f"{name}: {error}") from None
    except ValueError as error:
        raise ResultError(f"{name}: {error}") from None
    return Source(name, kind, doc, hashlib.sha256(raw).hexdigest()[:12], len(raw), records)


def _understood(suffix: str, text: str) -> tuple[Kind, Any, tuple[Record, ...]]:
    if suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines() if line]
        if not all(isinstance(line, dict) and "row" in line for line in lines):
            raise kinds.UnknownKind("lines of no known kind; known are those of the long attack")
        for line in lines:
            kinds.ATTACK.holds(line)
        return kinds.ATTACK, lines, ()
    if suffix == ".md":
        return kinds.ABOUT, text, ()
    if suffix != ".json":
        return kinds.LOG, text, ()
    doc = json.loads(text)
    if isinstance(doc, dict) and "benchmarks" in doc and isinstance(doc.get("amk"), dict):
        doc = doc["amk"]  # what pytest-benchmark wrote has the results inside
    kind = kinds.kind_of(doc)
    if kind.name == "result":
        return kind, doc, tuple(validate(doc))
    kind.holds(doc)
    return kind, doc, ()


def collect(root: Path, data: Path = DATA, unknown: Callable[[str], None] | None = None) -> list[Source]:
    """Every file below ``data``, by path; hidden ones are not looked at.

    Args:
        unknown: told of files that no kind recognises, which are left out then.

    Raises:
        ResultError: one does not hold, or is of no known kind while nobody is to be told; the message names it.
    """
    folder = root / data
    paths = sorted(
        p for p in folder.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )
    out = []
    for path in paths:
        try:
            out.append(read(root, path))
        except kinds.UnknownKind as error:
            if unknown is None:
                raise
            unknown(str(error))
    return out


def of(sources: Sequence[Source], *names: str) -> list[Source]:
    """Those of the given kinds, oldest first."""
    return sorted((s for s in sources if s.kind.name in names), key=lambda s: (s.created, s.path))
