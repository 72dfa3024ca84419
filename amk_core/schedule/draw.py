"""A schedule as a picture: queues are rows, tasks stand in order, and the tasks of one finding are marked, with their edges only.

The SVG is self-contained (no script, no font file, nothing fetched) and follows the reader's light or dark theme.  Of a large
schedule the rows and tasks near the finding are drawn, and what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from amk_core.schedule.explanation import Explanation
from amk_core.schedule.ir import Schedule
from amk_core.schedule.messages import Wording

MAX_ROWS = 10
MAX_COLUMNS = 8  # tasks of one row
MAX_SOURCES, MAX_TARGETS = 4, 2  # edges of one wait, of one signal
LEFT, TOP, BOX_W, BOX_H, GAP_X, GAP_Y = 72, 64, 150, 34, 36, 58

# Plain colours, each named once a theme: not every viewer of SVG knows CSS variables.
_STYLE = """
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; }
.soft { fill: #57606a; }
.paper { fill: #ffffff; }
.row { stroke: #c9ced6; }
.task rect { fill: #f3f4f6; stroke: #c9ced6; }
.bad rect { fill: #fdecea; stroke: #b42318; stroke-width: 2; }
.bad text { fill: #b42318; font-weight: bold; }
.edge { fill: none; stroke: #1f5fbf; stroke-width: 1.5; }
.head { fill: #1f5fbf; }
.label { fill: #1f5fbf; font-size: 11px; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8eb; }
.soft { fill: #9aa4b0; }
.paper { fill: #14171b; }
.row { stroke: #3c444e; }
.task rect { fill: #20252c; stroke: #3c444e; }
.bad rect { fill: #3b1d1a; stroke: #ff8a7a; }
.bad text { fill: #ff8a7a; }
.edge { stroke: #7fb0ff; }
.head { fill: #7fb0ff; }
.label { fill: #7fb0ff; }
}
"""


@dataclass(frozen=True, slots=True)
class _Edge:
    """A signal that a wait counts."""

    source: int
    target: int
    label: str


def draw(schedule: Schedule, explanation: Explanation | None = None) -> str:
    """The SVG text.  ``explanation``: whose tasks are marked; None draws the queues alone.

    Needs a schedule that rule REF accepts.
    """
    return _Drawing(schedule, explanation).svg()


class _Drawing:
    def __init__(self, s: Schedule, e: Explanation | None) -> None:
        self.s, self.words = s, Wording(s)
        self.e = e
        self.bad = list(dict.fromkeys(e.finding.tasks)) if e is not None else []
        self.edges = list(dict.fromkeys(edge for t in self.bad for edge in (*self.waits(t), *self.signals(t))))
        near = [*self.bad, *(t for edge in self.edges for t in (edge.source, edge.target))]
        self.near = list(dict.fromkeys(near))
        places = {t: p for t in self.near if (p := self.words.position(t)) is not None}
        wanted = list(dict.fromkeys(p[0] for p in places.values()))[:MAX_ROWS]
        others = [q for q in range(s.n_queues) if q not in wanted]
        self.rows = sorted(wanted + others[: MAX_ROWS - len(wanted)])
        self.columns = {q: self.window(q, [places[t][1] for t in self.near if places.get(t, (-1, 0))[0] == q]) for q in self.rows}
        self.x: dict[int, tuple[float, float]] = {}  # task -> corner of its box
        self.drawn: list[_Edge] = []

    def waits(self, task: int) -> list[_Edge]:
        c, out = self.s.columns, list[_Edge]()
        for w in range(int(c.wait_off[task]), int(c.wait_off[task + 1])):
            sources = (c.sig_counter == c.wait_counter[w]).nonzero()[0][:MAX_SOURCES]
            out += [_Edge(int(c.sig_off.searchsorted(k, "right")) - 1, task, self.label(w)) for k in sources]
        return out

    def signals(self, task: int) -> list[_Edge]:
        c, out = self.s.columns, list[_Edge]()
        for k in range(int(c.sig_off[task]), int(c.sig_off[task + 1])):
            targets = (c.wait_counter == c.sig_counter[k]).nonzero()[0][:MAX_TARGETS]
            out += [_Edge(task, int(c.wait_off.searchsorted(w, "right")) - 1, self.label(int(w))) for w in targets]
        return out

    def label(self, wait: int) -> str:
        c = self.s.columns
        return f"c{int(c.wait_counter[wait])} >= {int(c.wait_t[wait])}" + (" of the step before" if c.wait_e[wait] else "")

    def window(self, q: int, marked: Sequence[int]) -> list[int | None]:
        """Positions of a row to draw, None for a gap: the marked ones with their neighbours, else the beginning."""
        n = int(self.s.columns.queue_off[q + 1] - self.s.columns.queue_off[q])
        if n <= MAX_COLUMNS:
            return list(range(n))
        if not marked:
            return [*range(MAX_COLUMNS - 2), None, n - 1]
        keep: set[int] = set()
        for reach in range(n):
            more = {p + d for p in marked for d in (-reach, reach) if 0 <= p + d < n} - keep
            if keep and len(keep | more) > MAX_COLUMNS:
                break
            keep |= set(sorted(more)[:MAX_COLUMNS])
        out: list[int | None] = []
        last = -1
        for p in sorted(keep):
            if p != last + 1:
                out.append(None)
            out.append(p)
            last = p
        return out if last == n - 1 else [*out, None]

    def svg(self) -> str:
        body: list[str] = []
        for r, q in enumerate(self.rows):
            body += self.row(r, q)
        self.drawn = [edge for edge in self.edges if edge.source in self.x and edge.target in self.x]
        body += [line for k, edge in enumerate(self.drawn) for line in self.edge(k, edge)]
        left_out = self.s.n_queues - len(self.rows)
        width = LEFT + max([len(c) for c in self.columns.values()] + [4]) * (BOX_W + GAP_X) + 16
        height = TOP + len(self.rows) * (BOX_H + GAP_Y) + 40
        title = (
            self.e.finding.message.splitlines()[0] if self.e is not None else f"{self.s.n_tasks} tasks, {self.s.n_queues} queues"
        )
        notes = [f"{left_out} more queues are not drawn"] if left_out else []
        if self.e is not None and self.e.finding.repair:
            notes.append(f"nearest repair: {self.e.finding.repair}")
        if len(self.drawn) < len(self.edges):
            notes.append(f"{len(self.edges) - len(self.drawn)} more signals are not drawn")
        width = max(width, 32 + 8 * max(len(title), len("; ".join(notes))))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
                f' width="{width}" height="{height}">',
                f"<title>{escape(title)}</title>",
                f"<style>{_STYLE}</style>",
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
                f'<rect class="paper" width="{width}" height="{height}"/>',
                f'<text x="16" y="28">{escape(title)}</text>',
                *body,
                f'<text class="soft" x="16" y="{height - 14}">{escape("; ".join(notes))}</text>',
                "</svg>",
                "",
            ]
        )

    def row(self, r: int, q: int) -> list[str]:
        y = TOP + r * (BOX_H + GAP_Y)
        ids, cells = self.s.queue(q), self.columns[q]
        end = LEFT + max(len(cells), 1) * (BOX_W + GAP_X)
        out = [
            f'<text class="soft" x="16" y="{y + 22}">SM{q}</text>',
            f'<line class="row" x1="{LEFT - 10}" y1="{y + BOX_H / 2}" x2="{end}" y2="{y + BOX_H / 2}"/>',
        ]
        if not ids:
            out.append(f'<text class="soft" x="{LEFT}" y="{y + 14}">no tasks</text>')
        for k, p in enumerate(cells):
            x = LEFT + k * (BOX_W + GAP_X)
            if p is None:
                before = next((c + 1 for c in reversed(cells[:k]) if c is not None), 0)
                after = next((c for c in cells[k + 1 :] if c is not None), len(ids))
                out.append(f'<text class="soft" x="{x + 8}" y="{y + 14}">... {after - before} more</text>')
                continue
            task = ids[p]
            self.x[task] = (x, y)
            kind = "task bad" if task in self.bad else "task"
            out.append(
                f'<g class="{kind}"><title>{escape(self.words.task(task))} at SM{q}#{p}</title>'
                f'<rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="5"/>'
                f'<text x="{x + 9}" y="{y + 22}">{escape(_short(self.words.task(task)))}</text></g>'
            )
        return out

    def edge(self, k: int, e: _Edge) -> list[str]:
        """Runs in the gaps between columns and rows, so that it crosses no box; the label stands beside the arrow's tip."""
        (x0, y0), (x1, y1) = self.x[e.source], self.x[e.target]
        apart = 4 * (k % 5)  # edges side by side
        lane_x = x0 + BOX_W + 8 + apart
        above = y1 > y0  # comes from above
        lane_y = y1 - 14 - apart if above else y1 + BOX_H + 14 + apart
        tip_x, tip_y = x1 + 14 + apart, y1 if above else y1 + BOX_H
        path = f"M{x0 + BOX_W:g} {y0 + BOX_H / 2:g}H{lane_x:g}V{lane_y:g}H{tip_x:g}V{tip_y:g}"
        first = next(j for j, other in enumerate(self.drawn) if (other.target, other.label) == (e.target, e.label)) == k
        rank = len({other.label for other in self.drawn[:k] if other.target == e.target})
        text_y = y1 - 6 - 12 * rank if above else y1 + BOX_H + 12 + 12 * rank
        label = [f'<text class="label" x="{x1 + 40:g}" y="{text_y:g}">{escape(e.label)}</text>'] if first else []
        return [f'<path class="edge" marker-end="url(#head)" d="{path}"/>', *label]


def _short(text: str, most: int = 17) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
