"""One self-contained HTML page of everything that is committed: no script, no font, no request."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from amk_bench.floor import step_bytes
from amk_bench.report import cards, evidence, figures
from amk_bench.report.grid import Device, Reason, Row
from amk_bench.report.kinds import ATTACK, KINDS
from amk_bench.report.pairs import Gap, Pair, tally
from amk_bench.report.series import Share
from amk_bench.report.sources import Source, of
from amk_bench.report.waterfall import PARTS, Step
from amk_bench.rivals.absent import REASONS
from amk_bench.table import microseconds
from amk_bench.verdict import Verdict
from amk_core.graph import GRAPH_SHAPES
from amk_core.targets import PROFILES

SITE = "reports/site"
GLYPHS = {Verdict.LOSS: "▼", Verdict.INVALID: "✕", Verdict.AMBIGUOUS: "?", Verdict.TIE: "=", Verdict.WIN: "▲"}
SECTIONS = (
    ("worst", "Worst first"), ("grid", "Grid"), ("position", "Position"), ("batch", "Batch"), ("bandwidth", "Bandwidth"),
    ("waterfall", "Where a step goes"), ("parity", "Parity"), ("history", "History"), ("pairs", "Every pair"),
    ("validator", "Validator"), ("predicted", "Predicted"), ("files", "Files and commands"),
)  # fmt: skip
MARKS = "abcdefghijklmnopqrstuvwxyz"
BOUND_POSITION = 128


@dataclass(frozen=True, slots=True)
class Content:
    """What the page shows, all of it computed from the committed files."""

    sources: Sequence[Source]
    pairs: Sequence[Pair]
    best: Sequence[Pair]
    gaps: Sequence[Gap]
    devices: Sequence[Device]
    steps: Sequence[Step]
    shares: Sequence[Share]
    root: Path  # from which the paths of the files count
    site: Path  # the folder of the page
    documented: bool  # whether the page lies in a source tree, beside the documentation


def microseconds_text(value: float | None) -> str:
    """As in every other table, with a space that does not break."""
    return "none" if value is None else microseconds(value).replace(" ", "\u202f")


def _filters() -> dict[str, Any]:
    return {
        "us": microseconds_text,
        "us_or": lambda value, other: other if value is None else microseconds_text(value),
        "two": lambda value: f"{value:.2f}",
        "whole": evidence.number,
        "pct_or": lambda value, other: other if value is None else f"{100 * value:.1f} %",
        "tight": lambda text: text.replace(" %", "\u00a0%"),
    }


def _href(content: Content) -> Callable[[Source], str]:
    """A file as a link, seen from the page."""

    def href(source: Source) -> str:
        return quote(Path(os.path.relpath(content.root / source.path, content.site)).as_posix())

    return href


def render(content: Content) -> str:
    """The page's text; the same content gives the same bytes."""
    here = files("amk_bench.report")
    env = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    env.filters.update(_filters())
    template = env.from_string((here / "page.html.j2").read_text("utf-8"))
    css = Markup((here / "page.css").read_text("utf-8"))
    drawn = figures.Figures(content.sources, content.pairs)
    levels = evidence.parity(content.sources)
    return template.render(
        css=css, glyph=GLYPHS, href=_href(content), documented=content.documented, sections=SECTIONS,
        sources=content.sources, best=content.best, pairs=content.pairs,
        newest_date=max((s.created[:10] for s in content.sources), default="no date"),
        summaries=_summaries(content), devices=[_device(index, d) for index, d in enumerate(content.devices)],
        missing=_missing(content), rivals=_rivals(content),
        figures=drawn.html, by_position=drawn.by_position(), **drawn.by_batch(), shares=drawn.shares(content.shares),
        no_shares=_without_shares(content), steps=drawn.steps(content.steps), parts=PARTS,
        step_rows=[{"step": s, "regions": _regions(s)} for s in content.steps], levels=levels,
        failed=[(level, claim) for level in levels for claim in level.failed],
        history_figures=drawn.over_commits(), history=drawn.history_rows(),
        left_out=_left_out(content.gaps), findings=evidence.findings(content.sources), speeds=evidence.speeds(content.sources),
        predictions=_predictions(content.sources), bound_models=list(GRAPH_SHAPES), bounds=_bounds(),
        files=_files(content.sources), logs=[s for s in content.sources if s.kind.name == "log" and "/development/" not in s.path],
        about=[s for s in content.sources if s.kind.name == "about"],
    )  # fmt: skip


def _missing(content: Content) -> list[tuple[str, str, str, str]]:
    """Cards without a result: name, architecture, reason, command."""
    out = []
    for card in cards.missing([s.device for s in of(content.sources, "result", "timing")]):
        said = dict.fromkeys(g.record.reason for g in content.gaps if cards.card_of(g.device) is card)
        out.append(
            (cards.title(card), card.arch, "; ".join(said) or "not run: no result of this card is there", cards.command(card))
        )
    return out


def _summaries(content: Content) -> list[dict[str, str]]:
    """A line a device, the one with the worst cell first."""
    out = []
    for device in dict.fromkeys(p.record.device for p in content.best):
        mine = [p for p in content.best if p.record.device == device]
        timed = [p.record for p in mine if p.record.ratio is not None]
        told = [tally(mine)]
        if timed:
            least, most = (pick(r.ratio or 0.0 for r in timed) for pick in (min, max))
            told.append(f"ratios {least:.2f} to {most:.2f} against the best rival of each cell")
            floors = sorted({r.floor for r in timed if r.floor is not None})
            if floors:
                low, high = f"{100 * floors[0]:.1f}", f"{100 * floors[-1]:.1f}"
                told.append(f"noise floor {low} %" if low == high else f"noise floor {low} to {high} %")
        random = sum(p.weights == "random" for p in mine)
        told.append(f"random weights in {random} of {len(mine)} cells")
        out.append({"device": device, "told": "; ".join(told)})
    return out


def _device(index: int, device: Device) -> dict[str, Any]:
    """The grid of a device with a letter for each reason."""
    marks: dict[str, dict[str, Any]] = {}

    def marked(reason: Reason) -> str:
        if reason.text not in marks:
            number = len(marks)
            name = MARKS[number] if number < len(MARKS) else f"{MARKS[number // len(MARKS) - 1]}{MARKS[number % len(MARKS)]}"
            marks[reason.text] = {"mark": name, "text": reason.text, "command": reason.command, "source": reason.source}
        return str(marks[reason.text]["mark"])

    rows = [_row(device, row, marked) for row in device.rows]
    return {"id": f"d{index}", "name": device.name, "positions": device.positions, "rows": rows, "reasons": list(marks.values())}


def _row(device: Device, row: Row, marked: Any) -> dict[str, Any]:
    about = {"model": row.model, "batch": row.batch, "precision": row.precision, "mode": row.mode, "weights": row.weights}
    empty = [c for c in row.cells if isinstance(c, Reason)]
    if len(empty) == len(row.cells):
        return {**about, "whole": list({marked(c): c.text for c in empty}.items()), "cells": []}
    cells: list[dict[str, Any]] = []
    for position, cell in zip(device.positions, row.cells, strict=True):
        if isinstance(cell, Reason):
            cells.append({"pair": None, "position": position, "mark": marked(cell), "text": cell.text})
        else:
            cells.append({"pair": cell, "position": position})
    return {**about, "whole": [], "cells": cells}


# Rivals that a reader asks for, by the words that name them in results; one that is missing is shown with its reason.
WANTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vLLM", ("vllm",)),
    ("llama.cpp", ("llama.cpp", "llama-cpp")),
    ("SGLang", ("sglang",)),
    ("TensorRT-LLM", ("tensorrt", "trtllm")),
    ("CUDA graph with programmatic dependent launch", ("pdl", "dependent launch")),
    ("HazyResearch Megakernels", ("hazy", "megakernels")),
    ("Mirage", ("mirage",)),
    ("AutoMegaKernel", ("automegakernel",)),
)
NOT_TRIED = "no committed run has tried it"


def _rivals(content: Content) -> list[dict[str, Any]]:
    """Every rival seen or asked for: those that were timed by their worst ratio, then those that were not."""
    out = []
    names = dict.fromkeys(p.rival for p in content.pairs)
    for name in names:
        mine = [p for p in content.pairs if p.rival == name]
        timed = sorted(p.record.ratio for p in mine if p.record.ratio is not None)
        reasons = dict.fromkeys(p.record.reason for p in mine if p.record.reason)
        out.append(
            {
                "name": name, "version": next((p.rival_version for p in mine if p.rival_version), ""), "count": len(timed),
                "ratios": f"{timed[0]:.2f} to {timed[-1]:.2f}" if timed else "", "reason": "" if timed else "; ".join(reasons),
            }
        )  # fmt: skip
    never = {reason for _, reason in REASONS.values()}
    for title, words in WANTED:
        if not any(word in name.lower() for name in names for word in words):
            said = dict.fromkeys(g.record.reason for g in content.gaps if any(word in g.record.cell.lower() for word in words))
            own = [reason for reason in said if reason in never]
            out.append({"name": title, "version": "", "count": 0, "ratios": "", "reason": "; ".join(own or said) or NOT_TRIED})
    return out


def _without_shares(content: Content) -> list[str]:
    have = {s.pair.cell for s in content.shares}
    lack = dict.fromkeys((p.record.device, p.model) for p in content.best if p.cell not in have)
    return [f"{model} on {device} (its run kept no bandwidth)" for device, model in lack]


def _regions(step: Step) -> str:
    largest = sorted(step.shares.items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in largest) or "not kept"


def _left_out(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    """Cells that runs left out, grouped by run, reason and command; broken ones first, rivals that were never run last and once."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for g in gaps:
        command = "" if g.model else g.record.command
        entry = groups.setdefault(
            (g.device if g.never_run else g.source.path, g.record.reason, g.record.broken, command),
            {
                "device": g.device, "reason": g.record.reason, "broken": g.record.broken, "source": g.source,
                "command": g.record.command, "never": g.never_run, "of": [],
            },
        )  # fmt: skip
        entry["of"].append(g.record.cell)
    for entry in groups.values():
        names = list(dict.fromkeys(entry["of"]))
        if entry["never"]:
            entry["cells"] = f"{len(names)} cell{'s' * (len(names) != 1)}"
            continue
        entry["cells"] = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return sorted(groups.values(), key=lambda e: (not e["broken"], e["never"]))


def _predictions(sources: Sequence[Source]) -> list[dict[str, Any]]:
    found = of(sources, "prediction")
    return [
        {"source": s, "basis": s.doc["amk"]["basis"], "commit": s.doc["amk"]["commit"], "rows": s.doc["amk"]["predictions"]}
        for s in reversed(found)
    ]


def _bounds() -> list[tuple[Any, str, list[tuple[str, float]]]]:
    """A card a row: microseconds that the bytes of a step take at the datasheet's bandwidth."""
    steps: Mapping[str, int] = {m: step_bytes(g, 2, BOUND_POSITION, 1, 2) for m, g in GRAPH_SHAPES.items()}
    return [(t, cards.title(t), [(m, n / (t.dram_gb_s * 1e3)) for m, n in steps.items()]) for t in PROFILES]


def _files(sources: Sequence[Source]) -> list[Source]:
    """Results first, then by kind and path; logs and descriptions stand apart."""
    order = [k.name for k in (*KINDS, ATTACK)]
    listed = [s for s in sources if s.kind.name in order]
    return sorted(listed, key=lambda s: (order.index(s.kind.name), s.path))
