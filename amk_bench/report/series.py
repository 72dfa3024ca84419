"""Lines of the charts: times against position and batch, shares of the bandwidth, and times over commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amk_bench.report.cards import card_of, size
from amk_bench.report.pairs import Pair, named
from amk_bench.report.sources import Source, of
from amk_bench.results import LatencyRecord

OURS, ALONE = "AMK", "AMK alone, no rival beside it"
# Every other configuration of the device VM is an experiment, not what a user gets.
DEFAULTS: Sequence[Mapping[str, object]] = ({}, {"handoff": "tagged"})


class Point(NamedTuple):
    x: float
    us: float
    source: Source


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One model on one device; ``about`` says what is held fixed."""

    device: str
    model: str
    about: str
    lines: tuple[Line, ...]
    xs: tuple[float, ...]


def against_position(pairs: Sequence[Pair], sources: Sequence[Source], batch: int = 1) -> list[Chart]:
    """Charts by device, models by name; positions of one batch."""
    return _charts([p for p in pairs if p.record.batch == batch], _alone(sources, batch=batch), "position")


def against_batch(pairs: Sequence[Pair], sources: Sequence[Source], position: int = 128) -> list[Chart]:
    """As above, batches at one position."""
    return _charts([p for p in pairs if p.record.position == position], _alone(sources, position=position), "batch")


def _charts(pairs: Sequence[Pair], alone: Mapping[tuple[str, str], list[tuple[int, int, float, Source]]], axis: str) -> list[Chart]:
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    for p in pairs:
        if p.record.ours_us is not None and p.record.unit == "token":
            about = f"{p.precisions[0]}, mode {p.record.mode}, {p.weights} weights"
            groups.setdefault((p.record.device, p.model, about), []).append(p)
    for device, model in alone:
        if not any(key[:2] == (device, model) for key in groups):
            groups[device, model, "bf16, mode fast, random weights"] = []
    ordered = sorted(groups.items(), key=lambda item: (card_of(item[0][0]) is None, item[0][0], size(item[0][1]), item[0]))
    return [_chart(*key, group, alone.get(key[:2], []), axis) for key, group in ordered]


def _chart(
    device: str, model: str, about: str, pairs: Sequence[Pair], alone: Sequence[tuple[int, int, float, Source]], axis: str
) -> Chart:
    lines: dict[str, dict[int, Point]] = {OURS: {}}
    for p in pairs:  # worst first, so that ours is shown beside its strongest rival
        r = p.record
        x = r.position if axis == "position" else r.batch
        lines[OURS].setdefault(x, Point(x, r.ours_us or 0.0, p.source))
        lines.setdefault(p.rival_as_run, {})[x] = Point(x, r.baseline_us or 0.0, p.source)
    if "random" in about:
        for position, batch, us, source in alone:
            x = position if axis == "position" else batch
            lines.setdefault(ALONE, {}).setdefault(x, Point(x, us, source))
    drawn = [Line(name, tuple(points[x] for x in sorted(points))) for name, points in lines.items() if points]
    drawn.sort(key=lambda line: (line.name not in (OURS, ALONE), line.name != OURS, min(p.us for p in line.points)))
    return Chart(device, model, about, tuple(drawn), tuple(sorted({p.x for line in drawn for p in line.points})))


def _alone(
    sources: Sequence[Source], batch: int | None = None, position: int | None = None
) -> dict[tuple[str, str], list[tuple[int, int, float, Source]]]:
    """(device, model) -> (position, batch, microseconds, file) of the newest timing runs, newest first."""
    out: dict[tuple[str, str], list[tuple[int, int, float, Source]]] = {}
    for source in reversed(of(sources, "timing")):
        for t in source.doc["amk"]["timings"]:
            if t["config"] in DEFAULTS and batch in (None, t["batch"]) and position in (None, t["position"]):
                out.setdefault((source.device, t["model"]), []).append((t["position"], t["batch"], t["median_us"], source))
    return out


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of the measured read bandwidth that both sides of a pair reached."""

    pair: Pair
    ours: float
    rival: float
    measured_gb_s: float
    datasheet_gb_s: float | None


def shares(best: Sequence[Pair]) -> list[Share]:
    """Pairs of equal precision whose record has them, by model, batch and position."""
    out = []
    for p in sorted(best, key=lambda p: (size(p.model), p.cell)):
        d = p.record.derived
        if "ours_share" in d and "baseline_share" in d and p.precisions[0] == p.precisions[1]:
            out.append(Share(p, d["ours_share"], d["baseline_share"], d["measured_gb_s"], d.get("datasheet_gb_s")))
    return out


class Run(NamedTuple):
    """One time of ours in one run; ``beside`` is False for the VM alone."""

    source: Source
    beside: bool
    us: float


Place = tuple[str, str, str, str, int, int]  # device, model, weights, mode, batch, position


def history(sources: Sequence[Source]) -> dict[Place, list[Run]]:
    """Ours, run by run, oldest first; places that only one run has are left out."""
    found: dict[Place, list[Run]] = {}
    for source in of(sources, "result", "timing"):
        for key, run in _times(source).items():
            found.setdefault(key, []).append(run)
    return {
        key: runs for key, runs in sorted(found.items(), key=lambda item: (item[0][0], size(item[0][1]), item[0])) if len(runs) > 1
    }


def _times(source: Source) -> dict[Place, Run]:
    """One time a cell: of a paired run the pair with most tokens a call, in which the cost of a call weighs least."""
    out: dict[Place, Run] = {}
    if source.kind.name == "timing":
        for t in source.doc["amk"]["timings"]:
            if t["config"] in DEFAULTS:
                key = (source.device, t["model"], t["weights"], "fast", t["batch"], t["position"])
                out.setdefault(key, Run(source, False, t["median_us"]))
        return out
    timed = [r for r in source.records if isinstance(r, LatencyRecord) and r.ours_us is not None and r.unit == "token"]
    for r in sorted(timed, key=lambda r: (-r.tokens, r.baseline)):
        model, weights = named(r.model, r.weights or str(source.doc["options"].get("weights")))
        out.setdefault((r.device, model, weights, r.mode, r.batch, r.position), Run(source, True, r.ours_us or 0.0))
    return out
