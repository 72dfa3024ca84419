"""The charts of the page, with the same colour and shape for a rival in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from amk_bench.report import series, svg
from amk_bench.report.pairs import Pair
from amk_bench.report.series import ALONE, OURS, Chart, Run, Share
from amk_bench.report.sources import Source
from amk_bench.report.svg import Mark, Series, swatch
from amk_bench.report.waterfall import PARTS, Step
from amk_bench.table import microseconds

STYLES = 10  # colours of the page
BATCH_POSITION = 128
SHOWN = (128, 1024)  # positions whose history is drawn
POSITION_SHIFT = 16  # positions are drawn over log2(position + this), so that 0 has a place


class Figures:
    """Draws from the committed files; ``pairs`` worst first decide who gets which colour."""

    def __init__(self, sources: Sequence[Source], pairs: Sequence[Pair]) -> None:
        self.sources, self.pairs = sources, pairs
        rivals = dict.fromkeys(p.rival_as_run for p in pairs)
        self.style = {OURS: 0, ALONE: 0} | {name: 1 + index % (STYLES - 1) for index, name in enumerate(rivals)}
        self.history = series.history(sources)

    def html(self, items: Sequence[dict[str, Any]]) -> Markup:
        """Figures side by side, each with its legend."""
        out = []
        for f in items:
            rows = "".join(f"<li>{mark}{escape(name)}</li>" for mark, name in f["legend"])
            caption = f"<figcaption>{escape(f['title'])}<small>{escape(f['about'])}</small></figcaption>"
            out.append(f'<figure>{caption}{f["svg"]}<ul class="legend">{rows}</ul></figure>')
        return Markup(f'<div class="figures">{"".join(out)}</div>')

    def _figure(self, chart: Chart, axis: str, ticks: Sequence[tuple[float, str]], place: Any) -> dict[str, Any]:
        drawn = [
            Series(
                line.name,
                tuple(Mark(place(p.x), p.us, f"{line.name}, {axis} {p.x:.0f}: {microseconds(p.us)} µs") for p in line.points),
                self.style[line.name],
                line.name == ALONE,
            )
            for line in chart.lines
        ]
        name = f"{chart.model} on {chart.device}: microseconds against {axis}"
        return {
            "title": chart.model,
            "about": f"{chart.device}, {chart.about}",
            "svg": svg.line_chart(drawn, ticks, axis, "microseconds", name),
            "legend": [(swatch(s.style, s.hollow), s.name) for s in drawn],
        }

    def by_position(self) -> list[dict[str, Any]]:
        def place(x: float) -> float:
            return math.log2(x + POSITION_SHIFT)

        charts = series.against_position(self.pairs, self.sources)
        return [self._figure(c, "position", [(place(x), f"{x:.0f}") for x in c.xs], place) for c in charts]

    def by_batch(self) -> dict[str, Any]:
        """Charts that have at least two batches; the others by name."""
        charts = series.against_batch(self.pairs, self.sources, BATCH_POSITION)
        several = [c for c in charts if len(c.xs) > 1]
        drawn = [self._figure(c, "batch", [(math.log2(x), f"{x:.0f}") for x in c.xs], math.log2) for c in several]
        rest = [c for c in charts if len(c.xs) == 1]
        only = sorted({f"{c.xs[0]:.0f}" for c in rest})
        return {"by_batch": drawn, "single_batch": " or ".join(only), "single_models": [f"{c.model} on {c.device}" for c in rest]}

    def shares(self, found: Sequence[Share]) -> list[dict[str, Any]]:
        groups: dict[tuple[str, str], list[Share]] = {}
        for s in found:
            groups.setdefault((s.pair.record.device, s.pair.model), []).append(s)
        out = []
        for (device, model), group in groups.items():
            rows = []
            for s in group:
                r = s.pair.record
                label = (
                    f"{r.position}, batch {r.batch}" if len({g.pair.record.batch for g in group}) > 1 else f"position {r.position}"
                )
                style = self.style[s.pair.rival_as_run]
                rows.append((label, [(0, s.ours, f"{100 * s.ours:.0f} %"), (style, s.rival, f"{100 * s.rival:.0f} %")]))
            names = dict.fromkeys(s.pair.rival_as_run for s in group)
            rates = sorted({s.measured_gb_s for s in group})
            told = f"{rates[0]:.0f}" if f"{rates[0]:.0f}" == f"{rates[-1]:.0f}" else f"{rates[0]:.0f} to {rates[-1]:.0f}"
            sheet = group[0].datasheet_gb_s
            out.append(
                {
                    "device": device, "model": model, "measured": told, "datasheet": f"{sheet:.0f}" if sheet else "",
                    "svg": svg.bar_chart(rows, 1.0, f"{model} on {device}: share of the measured bandwidth"),
                    "legend": [(_key(self.style[n]), n) for n in (OURS, *names)],
                }
            )  # fmt: skip
        return out

    def steps(self, found: Sequence[Step]) -> list[dict[str, Any]]:
        groups: dict[tuple[str, str, int], list[Step]] = {}
        for s in found:
            groups.setdefault((s.device, s.model, s.batch), []).append(s)
        out = []
        for (device, model, batch), group in groups.items():
            rows = [(f"position {s.position}", self._parts(s), f"{microseconds(s.step_us)} µs") for s in group]
            chart = svg.stacked_chart(rows, f"{model} on {device}, batch {batch}: parts of a step")
            out.append({"device": device, "model": model, "batch": batch, "svg": chart})
        return out

    def _parts(self, step: Step) -> list[tuple[int, float, str]]:
        values = [*step.parts.items(), *([("host", step.host_us)] if step.host_us is not None else [])]
        return [(PARTS.index(name), v, f"{name}: {microseconds(v)} µs") for name, v in values]

    def over_commits(self) -> list[dict[str, Any]]:
        """Ours alone and beside a rival, a chart a model; runs are evenly spaced."""
        groups: dict[tuple[str, str, str, str], dict[tuple[int, bool], list[Run]]] = {}
        for (device, model, weights, mode, batch, position), runs in self.history.items():
            if batch == 1 and position in SHOWN:
                for beside in (False, True):
                    mine = [r for r in runs if r.beside is beside]
                    if len(mine) > 1:
                        groups.setdefault((device, model, weights, mode), {})[position, beside] = mine
        return [self._history_figure(*key, lines) for key, lines in groups.items()]

    def _history_figure(
        self, device: str, model: str, weights: str, mode: str, lines: dict[tuple[int, bool], list[Run]]
    ) -> dict[str, Any]:
        files = sorted({r.source for runs in lines.values() for r in runs}, key=lambda s: (s.created, s.path))
        ticks = [(float(i), f"{s.created[5:10]} {s.commit[:7]}") for i, s in enumerate(files)]
        drawn = []
        for index, ((position, beside), runs) in enumerate(lines.items()):
            name = f"position {position}, {'beside a rival' if beside else 'alone'}"
            marks = [Mark(float(files.index(r.source)), r.us, f"{name}: {microseconds(r.us)} µs, {r.source.commit}") for r in runs]
            drawn.append(Series(name, tuple(marks), index % STYLES, not beside))
        name = f"{model} on {device}: microseconds a step, run by run"
        return {
            "title": model,
            "about": f"{device}, mode {mode}, {weights} weights, batch 1",
            "svg": svg.line_chart(drawn, ticks, "run: date and commit", "microseconds", name),
            "legend": [(swatch(s.style, s.hollow), s.name) for s in drawn],
        }

    def history_rows(self) -> list[dict[str, Any]]:
        names = ("device", "model", "weights", "mode", "batch", "position")
        return [
            {
                **dict(zip(names, key, strict=True)),
                "alone": [r for r in runs if not r.beside],
                "beside": [r for r in runs if r.beside],
            }
            for key, runs in self.history.items()
        ]


def _key(style: int) -> Markup:
    """A filled square, for the legend of bars."""
    inner = f'<rect class="f{style}" width="12" height="12"/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{inner}</svg>')
