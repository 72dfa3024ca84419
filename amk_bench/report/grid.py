"""The grid: device by model, precision and batch, against position.  Every cell holds a pair, or the reason why it is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amk_bench.report.cards import card_of, same, size
from amk_bench.report.pairs import RANDOM, Cell, Gap, Pair
from amk_bench.report.sources import Source
from amk_core.graph import GRAPH_SHAPES

POSITIONS = (128, 1024, 4096)  # what a report of a card owes, besides whatever was measured
BATCHES = (1, 4, 16)
PLAIN = ("bf16", "fp32")  # precisions in which every model and batch is owed; of quantised ones what was measured is shown
NOT_ASKED = "no run has asked for this cell"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cell is empty; ``command`` fills it where one does."""

    text: str
    command: str = ""
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one device: ``cells`` by position, in the order of the device's positions."""

    model: str
    weights: str
    mode: str
    precision: str
    batch: int
    cells: tuple[Pair | Reason, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """``rows``: the model with the worst cell first, models without one last and by size."""

    name: str
    positions: tuple[int, ...]
    rows: tuple[Row, ...]


def grid(best: Sequence[Pair], gaps: Sequence[Gap]) -> list[Device]:
    """Measured devices, the one with the worst cell first.  ``best``: one pair a cell, worst first."""
    decode = [p for p in best if p.record.unit == "token"]
    devices = list(dict.fromkeys([p.record.device for p in decode] + [g.device for g in gaps if g.model and g.source.records]))
    return [_device(name, [p for p in decode if p.record.device == name], gaps) for name in devices]


def _device(name: str, best: Sequence[Pair], gaps: Sequence[Gap]) -> Device:
    here = [g for g in gaps if same(g.device, name) and g.model]
    owed = card_of(name) is not None
    positions = (
        {p.record.position for p in best}
        | {g.position for g in here if owed and g.position is not None}
        | set(POSITIONS if owed else ())
    )
    kinds = {(p.model, p.weights, p.record.mode, p.record.precision, p.record.batch) for p in best}
    if owed:
        random = {(mode, precision) for _, weights, mode, precision, _ in kinds if weights == RANDOM and precision in PLAIN} or {
            ("fast", "bf16")
        }
        kinds |= {(model, RANDOM, *mode, batch) for mode in random for model in GRAPH_SHAPES for batch in BATCHES}
        kinds |= {
            (g.model, RANDOM, *mode, g.batch) for mode in random for g in here if g.weights == RANDOM and g.model in GRAPH_SHAPES
        }
    found = {p.cell: p for p in best}
    worst = {p.model: index for index, p in reversed(list(enumerate(best)))}
    ordered = tuple(sorted(positions))
    rows = [
        Row(*kind, tuple(found.get(cell) or reason(cell, here) for cell in (Cell(name, *kind, p) for p in ordered)))
        for kind in sorted(kinds, key=lambda kind: (worst.get(kind[0], len(best)), size(kind[0]), kind))
    ]
    return Device(name, ordered, tuple(rows))


def reason(cell: Cell, gaps: Sequence[Gap]) -> Reason:
    """Why ``cell`` has no pair.  What a run said comes first."""
    shape = GRAPH_SHAPES.get(cell.model)
    if shape is not None and cell.position >= shape.context:
        return Reason(f"the model's context ends at {shape.context}")
    said = sorted((g for g in gaps if g.covers(cell)), key=lambda g: g.position is None)
    said = [g for g in said if not g.never_run] or said
    if said:
        reasons = " / ".join(dict.fromkeys(g.record.reason for g in said))
        return Reason(reasons, next((g.record.command for g in said if g.record.command), _command(cell)), said[0].source)
    return Reason(NOT_ASKED, _command(cell))


def _command(cell: Cell) -> str:
    if card_of(cell.device) is None:
        return "pytest suites/latency --full --update-reports"
    ask = f"--model {cell.model} --batch {cell.batch} --positions {cell.position}"
    return f"python -m amk_bench.baselines.run {ask} --out FILE"
