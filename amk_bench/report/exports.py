"""The rows for programs: CSV, and JSON Lines with the empty cells and the parity claims besides."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from amk_bench.report.grid import Device, Reason
from amk_bench.report.pairs import Gap, Pair
from amk_bench.report.sources import Source, of
from amk_bench.results import ParityRecord

COLUMNS = (
    "verdict", "device", "model", "weights", "mode", "ours_precision", "rival_precision", "batch", "position", "unit", "ours_us",
    "ours_low_us", "ours_high_us", "ours_wall_us", "rival", "rival_version", "rival_us", "rival_wall_us", "rival_busy_us", "ratio",
    "low", "high", "noise_floor", "gate", "ours_bandwidth_share", "rival_bandwidth_share", "cache", "label", "reason", "created",
    "commit", "file", "command",
)  # fmt: skip


def row(pair: Pair) -> dict[str, Any]:
    """One pair by column; a value that was not measured is None."""
    r, interval = pair.record, pair.ours_interval or (None, None)
    ours_precision, rival_precision = pair.precisions
    return {
        "verdict": r.verdict, "device": r.device, "model": pair.model, "weights": pair.weights, "mode": r.mode,
        "ours_precision": ours_precision, "rival_precision": rival_precision, "batch": r.batch, "position": r.position,
        "unit": r.unit, "ours_us": r.ours_us, "ours_low_us": interval[0], "ours_high_us": interval[1],
        "ours_wall_us": pair.wall_us("ours"), "rival": r.baseline, "rival_version": pair.rival_version, "rival_us": r.baseline_us,
        "rival_wall_us": pair.wall_us("baseline"), "rival_busy_us": pair.rival_busy_us, "ratio": r.ratio, "low": r.low,
        "high": r.high, "noise_floor": r.floor, "gate": r.gate, "ours_bandwidth_share": r.derived.get("ours_share"),
        "rival_bandwidth_share": r.derived.get("baseline_share"), "cache": r.cache, "label": r.label, "reason": r.reason,
        "created": pair.source.created, "commit": pair.source.commit, "file": pair.source.path, "command": pair.source.command,
    }  # fmt: skip


def _rounded(value: Any) -> Any:
    """Six figures: what differs behind them differs by the machine that computes it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _row(pair: Pair) -> dict[str, Any]:
    return {key: _rounded(value) for key, value in row(pair).items()}


def to_csv(pairs: Sequence[Pair]) -> str:
    """Every pair, worst first."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(p) for p in pairs)
    return out.getvalue()


def to_jsonl(pairs: Sequence[Pair], devices: Sequence[Device], gaps: Sequence[Gap], sources: Sequence[Source]) -> str:
    """One object a line, its ``type``: "pair", "empty" (a cell of the grid), "left out" (by a run) or "parity"."""
    lines: list[Mapping[str, Any]] = [{"type": "pair", **_row(p)} for p in pairs]
    for device in devices:
        for r in device.rows:
            for position, cell in zip(device.positions, r.cells, strict=True):
                if isinstance(cell, Reason):
                    about = {"model": r.model, "weights": r.weights, "mode": r.mode, "precision": r.precision, "batch": r.batch}
                    where = {"device": device.name, **about, "position": position}
                    lines.append({"type": "empty", **where, "reason": cell.text, "command": cell.command})
    for g in gaps:
        said = {"cell": g.record.cell, "reason": g.record.reason, "command": g.record.command, "broken": g.record.broken}
        lines.append({"type": "left out", "device": g.device, **said, "file": g.source.path})
    for source in of(sources, "result"):
        for claim in source.records:
            if isinstance(claim, ParityRecord):
                told = {"level": claim.level, "claim": claim.claim, "measured": claim.measured, "required": claim.required}
                held = {"passed": claim.passed, "value": _rounded(claim.value), "limit": _rounded(claim.limit)}
                lines.append({"type": "parity", "device": source.device, "where": claim.where, **told, **held, "file": source.path})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
