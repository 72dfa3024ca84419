"""Every kind of file that may lie under ``reports/data``, how it is recognised, and what has to hold of it.

A new kind of file gets an entry in :data:`KINDS`; a JSON file that no entry recognises is refused, so that nothing lies there which
nobody checks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amk_bench import results
from amk_bench.report.shape import Shape, check
from amk_bench.results import ResultError

_SAME = 1e-9
NAMES = [str]
FINGERPRINT: Shape = {"arch": str, "device": str, "commit": str, "command": str, "*": object}
BANDWIDTH: Shape = {
    "bytes_per_s": float, "cache_bytes": int, "buffer_bytes": int, "method": str, "datasheet_bytes_per_s": (float, type(None)),
}  # fmt: skip
COUNTS: Shape = {"name": str, "n": int, "failures": [object], "*": object}
REGION: Shape = {"name": str, "tasks": int, "share": float, "*": float}
PHASE: Shape = {"name": str, "a_step": int, "last_signal": float, "execute_slowest": float, "*": float}
TRACE: Shape = {
    "model": str, "position": int, "batch": int, "config": {"*": object}, "weights": str, "tape_bytes": int, "steps": int,
    "step_us": float, "spread": float, "off_us": float, "regions": [REGION], "phases": [PHASE], "*": object,
}  # fmt: skip
TIMED: Shape = {
    "model": str, "position": int, "batch": int, "config": {"*": object}, "steps": int, "samples_us": [float], "median_us": float,
    "floor_us": float, "weights": str, "*": object,
}  # fmt: skip
TIMING: Shape = {
    "created?": str,
    "amk": {
        "schema": int, "kind": str, "fingerprint": FINGERPRINT, "bandwidth?": BANDWIDTH, "timings": [TIMED], "traces?": [TRACE],
        "*": object,
    }
}  # fmt: skip
PRICE: Shape = {
    "model": str, "what": str, "rows": int, "ours_ms": [float], "theirs_ms": [float], "theirs": str, "ratio": float, "weights": str,
}  # fmt: skip
INVARIANCE: Shape = {"amk": {"schema": int, "kind": str, "fingerprint": FINGERPRINT, "prices": [PRICE]}}
PREDICTED: Shape = {"card": str, "model": str, "precision": str, "batch": int, "position": int, "us": float, "*": object}
PREDICTION: Shape = {"amk": {"schema": int, "kind": str, "commit": str, "basis": str, "predictions": [PREDICTED], "*": object}}
CLOCK: Shape = {"device_us": [float], "host_us": [float], "tail_us": [float]}
INSTRUMENTS: Shape = {"fingerprint": FINGERPRINT, "bandwidth": [BANDWIDTH], "clocks": {"*": CLOCK}, "state": object, "what?": str}
FORGERIES: Shape = {
    "seed": int, "seconds": float, "corruptions": [COUNTS], "sources": [COUNTS], "transplants": [COUNTS], "*": object,
}  # fmt: skip
SECOND: Shape = {"each": int, "seed": int, "z3": str, "seconds": float, "rows": [COUNTS], "*": object}
THREADS: Shape = {"schedules": int, "seed": int, "total": COUNTS, "classes": [COUNTS], "rules": [COUNTS], "*": object}
ATTACK_LINE: Shape = {"seed": int, "of": int, "code": str, "first": int, "last": int, "row": COUNTS}
SPEED: Shape = {
    "what": str, "limits_s": [[(int, float)]], "limit_mib": float, "fingerprint": {"cpu": str, "commit": str, "*": str},
    "points": [
        {"kind": str, "tasks": int, "validate_s": float, "check_s": float, "accepted": bool, "certified": bool, "*": object},
    ],
}  # fmt: skip
LOWERINGS: Shape = {
    "layers": {"*": int}, "configs": NAMES, "geometries": [object], "failures": [object],
    "rows": [{"model": str, "target": str, "n": int, "accepted": int, "checked": int, "undecided": int, "*": object}], "*": object,
}  # fmt: skip
MUTATION: Shape = {
    "target": str, "mutants": int, "cases": int, "deaths": {"*": int}, "survivors": {"*": NAMES}, "report_only?": NAMES,
    "planted?": int, "stride?": int, "*": object,
}  # fmt: skip
JOB: Shape = {
    "device": str,
    "suite": str,
    "model": str,
    "precision": str,
    "batch": int,
    "positions": [int],
    "argv": NAMES,
    "*": object,
}
FLEET_CELL: Shape = {"schema": int, "key": str, "job": JOB, "state": str, "reason": str, "changed": str, "*": object}
FLEET_PLAN: Shape = {"schema": int, "jobs": [JOB]}
EQUIVALENT: Shape = {"*": {"open_at_most": (int, type(None)), "arguments": [{"mutant": (str, NAMES), "because": str}]}}


@dataclass(frozen=True, slots=True)
class Kind:
    """``title``: what such a file is, for a reader; ``recognises`` looks at fields, ``holds`` raises ResultError."""

    name: str
    title: str
    recognises: Callable[[Mapping[str, Any]], bool]
    holds: Callable[[Any], object]


def _fields(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda doc: doc.keys() >= set(names)


def _amk(kind: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda doc: isinstance(doc.get("amk"), dict) and doc["amk"].get("kind") == kind


def _shaped(shape: Shape, *more: Callable[[Any], object]) -> Callable[[Any], object]:
    def holds(doc: Any) -> None:
        check(doc, shape)
        for rule in more:
            rule(doc)

    return holds


def _medians(doc: Mapping[str, Any]) -> None:
    for index, t in enumerate(doc["amk"]["timings"]):
        where = f"timings[{index}]"
        if not t["samples_us"] or min(t["samples_us"]) <= 0:
            raise ResultError(f"{where}.samples_us: positive times are required, got {t['samples_us']}")
        found = statistics.median(t["samples_us"])
        if not math.isclose(found, t["median_us"], rel_tol=_SAME):
            raise ResultError(f"{where}.median_us: {t['median_us']}, but its samples give {found}")


def _shares(doc: Mapping[str, Any]) -> None:
    for index, t in enumerate(doc["amk"].get("traces", ())):
        whole = sum(r["share"] for r in t["regions"])
        if not math.isclose(whole, 1.0, abs_tol=1e-6):
            raise ResultError(f"traces[{index}]: the shares of its regions add up to {whole}, not to 1")


def _positive(doc: Mapping[str, Any]) -> None:
    for index, p in enumerate(doc["amk"]["predictions"]):
        if p["us"] <= 0:
            raise ResultError(f"predictions[{index}].us: {p['us']} is not positive")


def _ratios(doc: Mapping[str, Any]) -> None:
    for index, p in enumerate(doc["amk"]["prices"]):
        found = statistics.median(p["theirs_ms"]) / statistics.median(p["ours_ms"])
        if not math.isclose(found, p["ratio"], rel_tol=_SAME):
            raise ResultError(f"prices[{index}].ratio: {p['ratio']}, but its samples give {found}")


def _counted(rows: str, parts: Sequence[str]) -> Callable[[Mapping[str, Any]], None]:
    """Every row's parts add up to its ``n``."""

    def rule(doc: Mapping[str, Any]) -> None:
        for row in doc[rows]:
            if sum(row[part] for part in parts) != row["n"]:
                raise ResultError(f"{rows}, {row['name']}: {' + '.join(parts)} is not n = {row['n']}")

    return rule


def _deaths(doc: Mapping[str, Any]) -> None:
    died = sum(doc["deaths"].values())
    if died != doc["mutants"]:
        raise ResultError(f"deaths: {died} are told for {doc['mutants']} mutants")
    lives = sum(len(names) for names in doc["survivors"].values())
    if lives != doc["deaths"].get("lives", 0):
        raise ResultError(f"survivors: {lives} are named, {doc['deaths'].get('lives', 0)} live")


KINDS: tuple[Kind, ...] = (
    Kind("result", "paired results and parity claims", _fields("schema", "latency", "parity"), results.validate),
    Kind("timing", "the CUDA VM alone, without a rival", _amk("timing"), _shaped(TIMING, _medians, _shares)),
    Kind("prediction", "predictions of a cost model", _amk("prediction"), _shaped(PREDICTION, _positive)),
    Kind("invariance", "what bits independent of the batch cost", _amk("invariance"), _shaped(INVARIANCE, _ratios)),
    Kind("fleet-cell", "what became of a job of the fleet", _fields("job", "state", "attempts"), _shaped(FLEET_CELL)),
    Kind("fleet-plan", "what a fleet run was asked for", lambda doc: doc.keys() == {"schema", "jobs"}, _shaped(FLEET_PLAN)),
    Kind("instruments", "bandwidth, clocks and state of a card", _fields("bandwidth", "clocks"), _shaped(INSTRUMENTS)),
    Kind(
        "forgeries", "forged certificates", _fields("corruptions", "transplants"),
        _shaped(FORGERIES, _counted("corruptions", ("refused", "harmless", "lies"))),
    ),
    Kind(
        "second-opinion", "validator against Z3", _fields("z3", "rows"),
        _shaped(SECOND, _counted("rows", ("not_compared", "compared", "too_large", "gave_up"))),
    ),
    Kind("threads", "schedules on real threads", _fields("schedules", "classes", "rules"), _shaped(THREADS)),
    Kind("speed", "speed of the validator", _fields("points", "limits_s"), _shaped(SPEED)),
    Kind("lowerings", "real lowerings, judged", _fields("layers", "geometries", "rows"), _shaped(LOWERINGS)),
    Kind("mutation", "mutants of the validator", _fields("target", "mutants", "deaths"), _shaped(MUTATION, _deaths)),
    Kind(
        "equivalent", "why mutants that live change nothing",
        lambda doc: bool(doc) and all(isinstance(v, dict) and "open_at_most" in v for v in doc.values()), _shaped(EQUIVALENT),
    ),
)  # fmt: skip
ATTACK = Kind("attack", "the long attack, a line a batch", lambda _: True, _shaped(ATTACK_LINE))
LOG = Kind("log", "what a run printed", lambda _: True, lambda _: None)
ABOUT = Kind("about", "what lies in this folder", lambda _: True, lambda _: None)


class UnknownKind(ResultError):
    """No kind recognises a file."""


def kind_of(doc: Any) -> Kind:
    """The kind of a JSON document.

    Raises:
        UnknownKind: none recognises it.
    """
    found = next((k for k in KINDS if isinstance(doc, dict) and k.recognises(doc)), None)
    if found is None:
        known = ", ".join(k.name for k in KINDS)
        raise UnknownKind(
            f"no kind of result recognises this file; known are {known}; a new one belongs into amk_bench/report/kinds.py"
        )
    return found
