"""The result schema ``amk: {schema: 2, ...}``: records of one run, their validation, and atomic writing.

A document is ``{"schema": 2, "created": iso time, "fingerprint": {...}, "options": {...}, "parity": [...], "latency": [...],
"skipped": [...], "notes": [...]}``.  Records cross process boundaries (xdist, JSON) as plain dicts with a ``type``.

A time comes out of :func:`timed` alone, which takes a :class:`amk_bench.gate.Timing`, which takes two passed gates.  Whoever reads
a document computes ratio, interval and verdict again from its raw samples, so that no figure stands for itself.  Schema 1 (without
checks and the state of the machine, samples optional) is still read.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from amk_bench.verdict import Verdict

if TYPE_CHECKING:
    from amk_bench.gate import Timing

SCHEMA = 2
READABLE = (1, 2)
_KEY: Final = object()  # what the makers of timed records show
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

    An INVALID cell has a ``reason`` and no times, and anybody may make one.  Every other cell has times, an interval and gates that
    passed, and comes from :func:`timed` or from a file.

    Attributes:
        gate: the level that both sides passed; ``checks``: what it rests on, each ``{"side", "name", "measured"}``.
        ours_samples_us, baseline_samples_us: every timed call in the order of its side, two a block.
        host: the host's readings of the same calls, microseconds a token, and what the device did after them (``ours_us``,
            ``baseline_us``, ``ours_tail_us``, ``baseline_tail_us``, the last two a call).
        cache: how working set and caches stand to each other.
        derived: figures that follow from times: GB/s, shares of measured and datasheet bandwidth, cycles, joules a token.
        conditions: the machine during the timing, in means; ``label`` says what a reader should know of it.
        readings: the same one by one: before the first block, then after each.
        unit: what the times are of: a "token" of greedy decode, or a "call" of anybody's function.
        weights: where the weights come from, where that is no checkpoint ("random weights, seed 7, ...").
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
    seed: int = 0
    label: str = ""
    cache: str = ""
    checks: list[dict[str, str]] = field(default_factory=list)
    host: dict[str, list[float]] = field(default_factory=dict)
    derived: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, float] = field(default_factory=dict)
    readings: dict[str, list[float]] = field(default_factory=dict)
    unit: str = "token"
    weights: str = ""
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if self.unit not in ("token", "call"):
            raise ResultError(f"latency.unit: {self.unit!r} is neither token nor call")
        if self.verdict not in list(Verdict):
            raise ResultError(f"latency.verdict: {self.verdict!r} is none of {', '.join(Verdict)}")
        numbers = (self.ours_us, self.baseline_us, self.ratio, self.low, self.high, self.floor)
        if self.verdict == Verdict.INVALID:
            if not self.reason:
                raise ResultError("latency.reason: an INVALID cell says why")
            if any(n is not None for n in numbers) or self.ours_samples_us or self.baseline_samples_us:
                raise ResultError("latency: an INVALID cell carries no time")
            return
        if any(n is None or not math.isfinite(n) or n <= 0 for n in numbers) or not self.gate:
            raise ResultError(f"latency: a {self.verdict} cell needs a passed gate and positive, finite numbers, got {numbers}")
        if made_by is not _KEY:
            raise TypeError("a record with a time is made by amk_bench.results.timed from a Timing, whose gates have passed")


def timed(
    timing: Timing,
    *,
    device: str,
    mode: str,
    precision: str,
    floor: float,
    seed: int = 0,
    label: str = "",
    cache: str = "",
    derived: Mapping[str, float] | None = None,
    conditions: Mapping[str, float] | None = None,
    readings: Mapping[str, list[float]] | None = None,
    unit: str = "token",
    weights: str = "",
) -> LatencyRecord:
    """The record of a timing: its interval, its verdict against the noise ``floor``, and everything it rests on."""
    from amk_bench.gate import Timing
    from amk_bench.pairing import samples_of
    from amk_bench.stats import bootstrap
    from amk_bench.verdict import judge

    if not isinstance(timing, Timing):
        raise TypeError(f"a record with a time is made from a Timing, whose gates have passed; got {type(timing).__name__}")
    interval = bootstrap(timing.log_ratios, seed)
    a, b = timing.microseconds("a"), timing.microseconds("b")
    subject = timing.ours.subject
    host: dict[str, list[float]] = {}
    for name, side in (("ours", "a"), ("baseline", "b")):
        samples = samples_of(timing.blocks, side)
        host[f"{name}_us"] = [1e6 * s.host_s / timing.tokens for s in samples]
        host[f"{name}_tail_us"] = [1e6 * s.tail_s for s in samples]
    checks = [
        {"side": side, "name": check.name, "measured": check.measured}
        for side, gate in (("ours", timing.ours), ("baseline", timing.baseline))
        for check in gate.checks
    ]
    return LatencyRecord(
        device=device, model=subject.model, mode=mode, precision=precision, batch=subject.batch, position=subject.position,
        baseline=timing.baseline.subject.engine, verdict=str(judge(interval, floor)), gate=timing.ours.level,
        ours_us=statistics.median(a), baseline_us=statistics.median(b), ratio=interval.median, low=interval.low,
        high=interval.high, floor=floor, tokens=timing.tokens, clock=timing.clock, ours_samples_us=a, baseline_samples_us=b,
        seed=seed, label=label, cache=cache, checks=checks, host=host, derived=dict(derived or {}),
        conditions=dict(conditions or {}), readings=dict(readings or {}), unit=unit, weights=weights,
        made_by=_KEY,
    )  # fmt: skip


# Numbers are written with all their digits; what differs by more was not computed from these samples.
_SAME = 1e-6


def recompute(record: LatencyRecord, seed: int | None = None) -> None:
    """Computes medians, ratio, interval and verdict again from the raw samples; ResultError where the record says otherwise."""
    from amk_bench.stats import Interval, bootstrap
    from amk_bench.verdict import judge

    if record.verdict == Verdict.INVALID:
        return
    a, b = record.ours_samples_us, record.baseline_samples_us
    if len(a) != len(b) or len(a) < 2 or len(a) % 2 or min(*a, *b) <= 0:
        raise ResultError(f"latency: {len(a)} and {len(b)} samples; two positive ones a block of each side are required")
    log_ratios = [math.log((b[i] + b[i + 1]) / (a[i] + a[i + 1])) for i in range(0, len(a), 2)]
    told = Interval(record.ratio or 0, record.low or 0, record.high or 0, len(log_ratios))
    again = bootstrap(log_ratios, record.seed if seed is None else seed)
    for name, said, found in (
        ("ours_us", record.ours_us, statistics.median(a)),
        ("baseline_us", record.baseline_us, statistics.median(b)),
        ("ratio", told.median, again.median),
        ("low", told.low, again.low),
        ("high", told.high, again.high),
    ):
        if said is None or abs(said - found) > _SAME * found:
            raise ResultError(f"latency.{name}: {said}, but its samples give {found}")
    if record.verdict != judge(told, record.floor or 0):
        raise ResultError(f"latency.verdict: {record.verdict}, but interval and floor give {judge(told, record.floor or 0)}")


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
    known = {f.name for f in fields(kind)}  # an InitVar is no field: a file cannot bring its own key
    values = {key: value for key, value in data.items() if key != "type"}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ResultError(f"{kind.type}.{unknown[0]}: no such field in schema {SCHEMA}")
    for f in fields(kind):
        if f.name in values and not _fits(values[f.name], str(f.type)):
            raise ResultError(f"{kind.type}.{f.name}: {values[f.name]!r} is not {f.type}")
    if kind is LatencyRecord:
        values["made_by"] = _KEY
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
        case "list[dict[str, str]]":
            return isinstance(value, list) and all(
                isinstance(v, dict) and all(isinstance(x, str) for pair in v.items() for x in pair) for v in value
            )
        case "dict[str, list[float]]":
            return isinstance(value, dict) and all(isinstance(k, str) and _fits(v, "list[float]") for k, v in value.items())
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
    schema = doc.get("schema")
    if schema not in READABLE:
        raise ResultError(f"schema {schema!r}; this version reads schema {', '.join(map(str, READABLE))}")
    required = {"schema", "created", "fingerprint", "options", *_KINDS}
    if doc.keys() != required:
        odd = sorted(doc.keys() ^ required)
        raise ResultError(f"{odd[0]}: {'missing' if odd[0] in required else f'not a field of schema {schema}'}")
    if not isinstance(doc["fingerprint"], dict):
        raise ResultError(f"fingerprint: an object, got {type(doc['fingerprint']).__name__}")
    records: list[Record] = []
    for name in _KINDS:
        if not isinstance(doc[name], list):
            raise ResultError(f"{name}: a list of records, got {type(doc[name]).__name__}")
        records += [from_json({"type": name, **entry}) for entry in doc[name]]
    for record in records:
        if isinstance(record, LatencyRecord):
            _check_times(record, doc)
    return records


def _check_times(record: LatencyRecord, doc: Mapping[str, Any]) -> None:
    """Schema 2 requires checks and samples of every time; schema 1 had no checks, and its seed stands in the fingerprint."""
    if record.verdict == Verdict.INVALID:
        return
    if doc["schema"] == 1:
        if record.ours_samples_us:
            recompute(record, int(doc["fingerprint"].get("seeds", {}).get("all", 0)))
        return
    if not record.checks:
        raise ResultError(f"latency.checks: a {record.verdict} cell says which checks its gate rests on")
    recompute(record)


def report_name(doc: Mapping[str, Any]) -> str:
    """File name of a run: time, device and commit, in characters that every file system takes."""
    fingerprint = doc["fingerprint"]
    stem = f"{doc['created']}_{fingerprint['arch']}_{fingerprint['device']}_{fingerprint['commit']}"
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", stem.replace("+00:00", "Z").replace(":", "")) + ".json"


def write_atomically(path: Path, doc: Any, *, replace: bool = False) -> None:
    """Writes JSON as :func:`write_text_atomically` writes text; ValueError for numbers that JSON does not have."""
    write_text_atomically(path, json.dumps(doc, indent=1, sort_keys=True, allow_nan=False) + "\n", replace=replace)


def write_text_atomically(path: Path, text: str, *, replace: bool = False) -> None:
    """Writes under a temporary name in the same folder, then renames: a reader sees all of it or nothing, also after a power cut.

    Raises FileExistsError for an existing ``path`` unless ``replace``; leaves no temporary file behind on any error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync_folder(folder: Path) -> None:
    """The new name reaches the disk too; file systems without this answer with an error that means nothing here."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
