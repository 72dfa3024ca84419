"""Charts as inline SVG: lines, pairs of bars, stacked bars.  Colours are the page's classes, so that light, dark and print decide.

Every series has a colour and a shape of its own, and every mark says its number in a title.  Coordinates are rounded: the same
numbers give the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 400, 236
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 38
LOG_FROM = 4.0  # a range wider than this is drawn on a logarithmic axis; any other one starts at zero
APART = 30.0  # least distance of two labels
LONG = 6  # characters of a label that needs more room
BAR, ROW = 9, 30
SHAPES = ("circle", "square", "diamond", "up", "down", "cross", "plus", "bar")


@dataclass(frozen=True, slots=True)
class Mark:
    """A point: where on the axis, how high, and what its title says."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    """``style`` is the number of its colour and shape; a hollow one is drawn dashed."""

    name: str
    marks: tuple[Mark, ...]
    style: int
    hollow: bool = False


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def nice_ticks(top: float) -> list[float]:
    """From zero to at least ``top`` in three to six even steps of 1, 2 or 5 times a power of ten."""
    raw = top / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    return [k * step for k in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last one below ``low`` to the first one above ``high``."""
    all_ = [m * 10.0**k for k in range(-3, 9) for m in (1, 2, 5)]
    first = max((t for t in all_ if t <= low), default=all_[0])
    last = min((t for t in all_ if t >= high), default=all_[-1])
    return [t for t in all_ if first <= t <= last]


def tick_text(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 1 or value == 0 else f"{value:g}"


def mark(shape: str, x: float, y: float, r: float = 4.0) -> str:
    """The SVG element of one mark, without its end."""
    a, b, c, d = _n(x - r), _n(x + r), _n(y - r), _n(y + r)
    match shape:
        case "circle":
            return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"'
        case "square":
            return f'<rect x="{a}" y="{c}" width="{_n(2 * r)}" height="{_n(2 * r)}"'
        case "diamond":
            return f'<path d="M{_n(x)} {_n(y - r - 1)}L{_n(x + r + 1)} {_n(y)}L{_n(x)} {_n(y + r + 1)}L{_n(x - r - 1)} {_n(y)}Z"'
        case "up":
            return f'<path d="M{a} {d}L{b} {d}L{_n(x)} {c}Z"'
        case "down":
            return f'<path d="M{a} {c}L{b} {c}L{_n(x)} {d}Z"'
        case "cross":
            return f'<path class="open" d="M{a} {c}L{b} {d}M{a} {d}L{b} {c}"'
        case "plus":
            return f'<path class="open" d="M{_n(x)} {c}L{_n(x)} {d}M{a} {_n(y)}L{b} {_n(y)}"'
    return f'<rect x="{a}" y="{_n(y - 1.5)}" width="{_n(2 * r)}" height="3"'


def swatch(style: int, hollow: bool = False) -> Markup:
    """The mark of a series, for a legend."""
    shape = SHAPES[style % len(SHAPES)]
    inner = f'<path class="line" d="M0 7H22"/>{mark(shape, 11, 7)}/>'
    kind = f"s{style}{' hollow' if hollow else ''}"
    return Markup(f'<svg class="swatch {kind}" viewBox="0 0 22 14" width="22" height="14" aria-hidden="true">{inner}</svg>')


def line_chart(series: Sequence[Series], ticks: Sequence[tuple[float, str]], x_title: str, y_title: str, name: str) -> Markup:
    """Lines over ``ticks``, (place on the axis, label) in order; all marks lie between the first and the last tick."""
    ys = [m.y for s in series for m in s.marks]
    log = max(ys) / min(ys) > LOG_FROM
    rows = log_ticks(min(ys), max(ys)) if log else nice_ticks(max(ys))
    x0, x1 = ticks[0][0], ticks[-1][0]
    across, up = WIDTH - LEFT - RIGHT - 16, HEIGHT - TOP - BOTTOM

    def px(x: float) -> float:
        return LEFT + 8 + (across / 2 if x1 == x0 else across * (x - x0) / (x1 - x0))

    def py(y: float) -> float:
        low, high, at = (math.log(v) if log else v for v in (rows[0], rows[-1], y))
        return TOP + up * (1 - (at - low) / (high - low))

    out = [f'<g class="grid">{"".join(f"""<path d="M{LEFT} {_n(py(t))}H{WIDTH - RIGHT}"/>""" for t in rows)}</g>']
    out += [f'<text class="tick end" x="{LEFT - 6}" y="{_n(py(t) + 4)}">{tick_text(t)}</text>' for t in rows]
    out += _labels([(px(x), label) for x, label in ticks])
    out.append(f'<text class="axis mid" x="{LEFT + across / 2:.0f}" y="{HEIGHT - 4}">{escape(x_title)}</text>')
    for s in reversed(series):  # the first lies on top
        points = [(px(m.x), py(m.y), m.title) for m in s.marks]
        body = f'<path class="line" d="M{"L".join(f"{_n(x)} {_n(y)}" for x, y, _ in points)}"/>'
        body += "".join(f"{mark(SHAPES[s.style % len(SHAPES)], x, y)}><title>{escape(t)}</title>{_end(s)}" for x, y, t in points)
        out.append(f'<g class="s{s.style}{" hollow" if s.hollow else ""}">{body}</g>')
    return _svg(HEIGHT, name, f"{y_title}, {'logarithmic' if log else 'from zero'}", out)


def _labels(ticks: Sequence[tuple[float, str]]) -> list[str]:
    """Labels below the axis that do not touch; long ones at the ends stay within the chart."""
    long = max(len(label) for _, label in ticks) > LONG
    out, last = [], -math.inf
    for index, (x, label) in enumerate(ticks):
        if x - last < (APART * 3 if long else APART):
            continue
        at = "mid" if not long or 0 < index < len(ticks) - 1 else "start" if index == 0 < len(ticks) - 1 else "end"
        shift = -LEFT / 2 if at == "start" else RIGHT if at == "end" else 0
        out.append(f'<text class="tick {at}" x="{_n(x + shift)}" y="{HEIGHT - BOTTOM + 16}">{escape(label)}</text>')
        last = x
    return out


def _end(series: Series) -> str:
    element = mark(SHAPES[series.style % len(SHAPES)], 0, 0)
    return f"</{element[1 : element.index(' ')]}>"


def bar_chart(rows: Sequence[tuple[str, Sequence[tuple[int, float, str]]]], most: float, name: str) -> Markup:
    """Bars beside a label: (style, value, text) each, drawn against ``most``."""
    start, across = 96, WIDTH - 96 - 62
    out, y = [], 2
    for label, bars in rows:
        height = len(bars) * (BAR + 3)
        out.append(f'<text class="tick end" x="{start - 8}" y="{y + height / 2 + 3:.0f}">{escape(label)}</text>')
        for index, (style, value, text) in enumerate(bars):
            top, wide = y + index * (BAR + 3), across * min(value / most, 1.0)
            out.append(f'<rect class="fill f{style}" x="{start}" y="{top}" width="{_n(wide)}" height="{BAR}"/>')
            out.append(f'<text class="tick" x="{start + across + 6}" y="{top + BAR}">{escape(text)}</text>')
        y += height + 8
    out.append(f'<path class="limit" d="M{start + across} 0V{y - 4}"/>')
    return _svg(y, name, "", out)


def stacked_chart(rows: Sequence[tuple[str, Sequence[tuple[int, float, str]], str]], name: str) -> Markup:
    """Bars of parts laid end to end: (label, (style, value, title) each, text behind the bar)."""
    start, across = 96, WIDTH - 96 - 66
    most = max(sum(value for _, value, _ in parts) for _, parts, _ in rows)
    out, y = [], 2
    for label, parts, text in rows:
        out.append(f'<text class="tick end" x="{start - 8}" y="{y + 14}">{escape(label)}</text>')
        x = float(start)
        for style, value, title in parts:
            wide = across * value / most
            if wide >= 0.2:
                shown = max(wide - 1, 0.4)
                at = f'x="{_n(x)}" y="{y}" width="{shown:.2f}" height="20"'
                out.append(f'<rect class="fill w{style}" {at}><title>{escape(title)}</title></rect>')
            x += wide
        out.append(f'<text class="tick" x="{_n(x + 5)}" y="{y + 14}">{escape(text)}</text>')
        y += ROW
    return _svg(y, name, "", out)


def _svg(height: float, name: str, about: str, parts: Sequence[str]) -> Markup:
    title = f"{name}; {about}" if about else name
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {_n(height)}" role="img" aria-label="{escape(title)}">'
    return Markup(head + "".join(parts) + "</svg>")
