"""The result schema ``amk: {schema: 1, ...}``: records of one run, their validation, and atomic writing.

A document is ``{"schema": 1, "created": iso time, "fingerprint": {...}, "options": {...}, "parity": [...], "latency": [...],
"skipped": [...], "notes": [...]}``.  Records cross process boundaries (xdist, JSON) as plain dicts with a ``type``.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from amk_bench.verdict import Verdict

SCHEMA = 1
FILE_MODE = 0o644  # temporary files are private; a result is not


class ResultError(ValueError):
    """A result document or record does not follow the schema; the message names the field."""


@dataclass(frozen=True, slots=True)
class ParityRecord:
    """One parity claim: what was compared, what came out, against which limit.  ``value`` and ``limit`` in ``unit``."""

    type: ClassVar[str] = "parity"
    level: str
    claim: str
    measured: str
    required: str
    passed: bool
    where: str = "cpu"
    value: float | None = None
    limit: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """One cell of the win/loss table; times in microseconds a token, ``ratio`` above 1 where ours is faster.

    An INVALID cell has a ``reason`` and no times; every other cell has times, an interval, and gates that passed.
    """

    type: ClassVar[str] = "latency"
    device: str
    model: str
    mode: str
    precision: str
    batch: int
    position: int
    baseline: str
    verdict: str
    gate: str = ""
    ours_us: float | None = None
    baseline_us: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    tokens: int = 0
    clock: str = ""
    reason: str = ""
    ours_samples_us: list[float] = field(default_factory=list)
    baseline_samples_us: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.verdict not in list(Verdict):
            raise ResultError(f"latency.verdict: {self.verdict!r} is none of {', '.join(Verdict)}")
        numbers = (self.ours_us, self.baseline_us, self.ratio, self.low, self.high, self.floor)
        if self.verdict == Verdict.INVALID:
            if not self.reason:
                raise ResultError("latency.reason: an INVALID cell says why")
            if any(n is not None for n in numbers):
                raise ResultError("latency: an INVALID cell carries no time")
        elif any(n is None or not math.isfinite(n) or n <= 0 for n in numbers) or not self.gate:
            raise ResultError(f"latency: a {self.verdict} cell needs a passed gate and positive, finite numbers, got {numbers}")


@dataclass(frozen=True, slots=True)
class SkipRecord:
    """A cell without a result: ``reason`` says why, ``command`` what runs it; ``broken`` when it ended in an error."""

    type: ClassVar[str] = "skipped"
    cell: str
    reason: str
    command: str = ""
    broken: bool = False


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """A line for the reader that is no claim: sizes of a quick run, ties, the noise floor."""

    type: ClassVar[str] = "notes"
    text: str
    values: dict[str, float] = field(default_factory=dict)


Record = ParityRecord | LatencyRecord | SkipRecord | NoteRecord
_KINDS: Mapping[str, type[Any]] = {kind.type: kind for kind in (ParityRecord, LatencyRecord, SkipRecord, NoteRecord)}


def to_json(record: Record) -> dict[str, Any]:
    """Plain dict with a ``type``, and only JSON's own types inside."""
    return {"type": record.type, **_plain(asdict(record))}


def _plain(value: Any) -> Any:
    """Exact JSON types: subclasses (numpy scalars, string enumerations) do not survive every serialiser."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def from_json(data: Mapping[str, Any]) -> Record:
    """Inverse of :func:`to_json`; raises ResultError naming the field that is wrong."""
    kind = _KINDS.get(str(data.get("type")))
    if kind is None:
        raise ResultError(f"record type {data.get('type')!r} is none of {', '.join(_KINDS)}")
    known = {f.name for f in fields(kind)}
    values = {key: value for key, value in data.items() if key != "type"}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ResultError(f"{kind.type}.{unknown[0]}: no such field in schema {SCHEMA}")
    for f in fields(kind):
        if f.name in values and not _fits(values[f.name], str(f.type)):
            raise ResultError(f"{kind.type}.{f.name}: {values[f.name]!r} is not {f.type}")
    try:
        record: Record = kind(**values)
    except TypeError as error:
        raise ResultError(f"{kind.type}: {error}") from None
    return record


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fits(value: Any, annotation: str) -> bool:
    match annotation:
        case "str":
            return isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float | None":
            return value is None or _number(value)
        case "list[float]":
            return isinstance(value, list) and all(_number(v) for v in value)
        case "dict[str, float]":
            return isinstance(value, dict) and all(isinstance(k, str) and _number(v) for k, v in value.items())
    raise AssertionError(f"no rule for fields of type {annotation}")


def document(records: Iterable[Record], fingerprint: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The versioned block of one run."""
    doc: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fingerprint": dict(fingerprint),
        "options": dict(options),
        **{name: [] for name in _KINDS},
    }
    for record in records:
        doc[record.type].append(_plain(asdict(record)))
    return doc


def validate(doc: Any) -> list[Record]:
    """Checks a document and returns its records; raises ResultError on the first thing that is wrong."""
    if not isinstance(doc, dict):
        raise ResultError(f"a result is an object, got {type(doc).__name__}")
    if doc.get("schema") != SCHEMA:
        raise ResultError(f"schema {doc.get('schema')!r}; this version reads schema {SCHEMA}")
    required = {"schema", "created", "fingerprint", "options", *_KINDS}
    if doc.keys() != required:
        odd = sorted(doc.keys() ^ required)
        raise ResultError(f"{odd[0]}: {'missing' if odd[0] in required else 'not a field of schema 1'}")
    records: list[Record] = []
    for name in _KINDS:
        if not isinstance(doc[name], list):
            raise ResultError(f"{name}: a list of records, got {type(doc[name]).__name__}")
        records += [from_json({"type": name, **entry}) for entry in doc[name]]
    return records


def report_name(doc: Mapping[str, Any]) -> str:
    """File name of a run: time, device and commit, in characters that every file system takes."""
    fingerprint = doc["fingerprint"]
    stem = f"{doc['created']}_{fingerprint['arch']}_{fingerprint['device']}_{fingerprint['commit']}"
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", stem.replace("+00:00", "Z").replace(":", "")) + ".json"


def write_atomically(path: Path, doc: Any, *, replace: bool = False) -> None:
    """Writes JSON under a temporary name in the same folder, then renames: a reader sees all of it or nothing.

    Raises FileExistsError for an existing ``path`` unless ``replace``; leaves no temporary file behind on any error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(doc, indent=1, sort_keys=True, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, FILE_MODE)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, refuses to overwrite what another run wrote meanwhile
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
