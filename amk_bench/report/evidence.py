"""What stands behind the validator and the parity of the numbers, as rows: what was tried, what came out, in which file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amk_bench.report.sources import Source, of
from amk_bench.results import ParityRecord


@dataclass(frozen=True, slots=True)
class Finding:
    """One row; ``good`` is False where something speaks against us."""

    claim: str
    tried: str
    outcome: str
    good: bool
    source: Source


def number(value: float) -> str:
    """Thousands apart by a narrow space."""
    return f"{value:,.0f}".replace(",", "\u202f")


def findings(sources: Sequence[Source]) -> list[Finding]:
    """Every committed attack on the validator, what went wrong first."""
    out = [row for source in sources for row in _of(source)]
    return sorted(out, key=lambda f: f.good)


def _of(source: Source) -> list[Finding]:
    doc = source.doc
    match source.kind.name:
        case "attack":
            return [_attack(source, [line["row"] for line in doc])]
        case "second-opinion":
            t = _sum(doc["rows"], "n", "compared", "witnesses", "disagreements")
            return [
                Finding(
                    "The verdict is Z3's", f"{number(t['n'])} schedules, {number(t['compared'])} compared, Z3 {doc['z3']}",
                    f"{number(t['disagreements'])} disagreements, {number(t['witnesses'])} witnesses confirmed",
                    not t["disagreements"], source,
                )
            ]  # fmt: skip
        case "forgeries":
            t, m = _sum(doc["corruptions"], "n", "refused", "harmless", "lies"), _sum(doc["transplants"], "n", "unsafe", "lies")
            return [
                Finding(
                    "No corrupted certificate is believed", f"{number(t['n'])} certificates with one field changed",
                    f"{number(t['lies'])} lies believed, {number(t['refused'])} refused, {number(t['harmless'])} changed nothing",
                    not t["lies"], source,
                ),
                Finding(
                    "No certificate fits a schedule that it is not of",
                    f"{number(m['n'])} moved onto mutants, {number(m['unsafe'])} unsafe",
                    f"{number(m['lies'])} accepted wrongly", not m["lies"], source,
                ),
            ]  # fmt: skip
        case "threads":
            t = doc["total"]
            odd = t["accepted"] - t["silent"] + t["witnesses"] - t["confirmed"]
            return [
                Finding(
                    "What is accepted runs clean on real threads", f"{number(t['n'])} schedules under ThreadSanitizer",
                    f"{number(t['silent'])} of {number(t['accepted'])} accepted ones silent, "
                    f"{number(t['confirmed'])} of {number(t['witnesses'])} witnesses seen", not odd, source,
                )
            ]  # fmt: skip
        case "lowerings":
            t = _sum(doc["rows"], "n", "accepted", "checked", "undecided")
            return [
                Finding(
                    "Every lowering is accepted, its certificate checked",
                    f"{number(t['n'])} lowerings of {len(doc['layers'])} models",
                    f"{number(t['accepted'])} accepted, {number(t['checked'])} certificates, {number(t['undecided'])} undecided",
                    t["n"] == t["accepted"] == t["checked"], source,
                )
            ]  # fmt: skip
        case "mutation":
            return [_mutants(source)]
    return []


def _attack(source: Source, rows: Sequence[Mapping[str, Any]]) -> Finding:
    t = _sum(rows, "n", "false_accepts", "false_rejects", "undecided")
    told = f"{number(t['false_accepts'])} false accepts, {number(t['false_rejects'])} false rejects"
    told += f", {number(t['undecided'])} undecided"
    wrong = t["false_accepts"] + t["false_rejects"] + t["undecided"]
    return Finding("The verdict is the exhaustive oracle's", f"{number(t['n'])} seeded schedules", told, not wrong, source)


def _mutants(source: Source) -> Finding:
    doc = source.doc
    lives, report = doc["deaths"].get("lives", 0), doc["deaths"].get("report", 0)
    still_open = sum(len(names) for why, names in doc["survivors"].items() if why.startswith("open"))
    part = f", one in {doc['stride']} of {number(doc['planted'])}" if "planted" in doc and "stride" in doc else ""
    killed = doc["mutants"] - lives - report
    told = f"{number(killed)} killed, {number(report)} seen in reports, {number(lives)} live, {number(still_open)} open"
    tried = f"{number(doc['mutants'])} mutants on {number(doc['cases'])} cases{part}"
    return Finding(f"A mistake in the {doc['target']} is noticed", tried, told, not still_open, source)


def _sum(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[str, int]:
    listed = list(rows)
    return {name: sum(row[name] for row in listed) for name in names}


ROUNDED = 1.02  # schedules of "a million tasks" have a few more or less


@dataclass(frozen=True, slots=True)
class Speed:
    """The slowest schedule of a size: processor seconds of verdict and certificate, and of the check, against the limit."""

    tasks: int
    kind: str
    validate_s: float
    check_s: float
    limit_s: float
    source: Source


def speeds(sources: Sequence[Source]) -> list[Speed]:
    """The newest speed run: for each limit the slowest verdict up to its size."""
    files = of(sources, "speed")
    if not files:
        return []
    doc, out = files[-1].doc, []
    for tasks, limit in doc["limits_s"]:
        mine = [p for p in doc["points"] if p["tasks"] <= ROUNDED * tasks]
        if mine:
            p = max(mine, key=lambda p: p["validate_s"])
            out.append(Speed(p["tasks"], p["kind"], p["validate_s"], p["check_s"], limit, files[-1]))
    return out


@dataclass(frozen=True, slots=True)
class Level:
    """The claims of one level in one run: how many held, those that failed, and the one nearest to its limit."""

    source: Source
    level: str
    where: str
    held: int
    total: int
    failed: tuple[ParityRecord, ...]
    nearest: ParityRecord | None


def parity(sources: Sequence[Source]) -> list[Level]:
    """Levels with a failed claim first, then by run, newest first."""
    out = []
    for source in reversed(of(sources, "result")):
        claims = [r for r in source.records if isinstance(r, ParityRecord)]
        for level, where in sorted({(c.level, c.where) for c in claims}):
            mine = [c for c in claims if (c.level, c.where) == (level, where)]
            failed = tuple(c for c in mine if not c.passed)
            near = max((c for c in mine if c.passed and _share(c) is not None), key=lambda c: _share(c) or 0.0, default=None)
            out.append(Level(source, level, where, len(mine) - len(failed), len(mine), failed, near))
    return sorted(out, key=lambda x: not x.failed)


def _share(claim: ParityRecord) -> float | None:
    """How much of its limit a claim uses; None where that is no share."""
    if claim.value is None or not claim.limit or claim.value < 0 or not claim.required.startswith("<"):
        return None
    return claim.value / claim.limit
