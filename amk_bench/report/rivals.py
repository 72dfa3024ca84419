"""The table of docs/baselines.md: every rival of every cell on a card, a row a model, batch and position."""

from __future__ import annotations

from collections.abc import Sequence

from amk_bench.report.cards import card_of, size
from amk_bench.report.pairs import Gap, Pair, sides
from amk_bench.report.readme import parity
from amk_bench.report.sources import Source
from amk_bench.table import microseconds
from amk_bench.verdict import Verdict


def _cell(pair: Pair | None) -> str:
    if pair is None:
        return "not run"
    r = pair.record
    if r.ratio is None or r.low is None or r.high is None:
        return f"{r.verdict}: {r.reason}"
    verdict = "" if r.verdict == Verdict.WIN else f" **{r.verdict}**"
    return f"{microseconds(r.baseline_us)} ({r.ratio:.2f}, {r.low:.2f} to {r.high:.2f}){verdict}"


def table(pairs: Sequence[Pair], gaps: Sequence[Gap], sources: Sequence[Source]) -> str:
    """Markdown, a table a card: microseconds a token of AMK, and of each rival with the ratio and its interval."""
    devices = dict.fromkeys(d for d in [p.record.device for p in pairs] + [g.device for g in gaps if g.model] if card_of(d))
    return (
        "\n\n".join(_device(d, [p for p in pairs if p.record.device == d], gaps, sources) for d in devices)
        or "Nothing is timed yet."
    )


def _device(device: str, pairs: Sequence[Pair], gaps: Sequence[Gap], sources: Sequence[Source]) -> str:
    mine = [p for p in pairs if p.record.device == device]
    names = sorted({p.rival for p in mine}, key=lambda n: min(p.rank for p in mine if p.rival == n))
    lines = [
        f"| {device} | weights | precision | batch | position | AMK CUDA VM | " + " | ".join(names) + " |",
        "| --- | --- | --- | ---: | ---: | ---: |" + " --- |" * len(names),
    ]
    for cell in sorted({p.cell for p in mine}, key=lambda c: (size(c.model), c)):
        here = {p.rival: p for p in mine if p.cell == cell}
        strongest = min(here.values(), key=lambda p: (p.record.ratio is None, p.record.ratio or 0.0))
        apart = ", precision-asymmetric" if len(set(sides(cell.precision))) > 1 else ""
        row = [cell.model, cell.weights, f"{cell.precision}, {cell.mode}{apart}", str(cell.batch), str(cell.position)]
        row.append(microseconds(strongest.record.ours_us))
        lines.append(f"| {' | '.join([*row, *(_cell(here.get(n)) for n in names)])} |")
    out = ["\n".join(lines)]
    left: dict[tuple[str, str], int] = {}
    timed = {p.cell for p in mine}
    for g in gaps:
        if g.device == device and g.model and not g.never_run and not any(g.covers(cell) for cell in timed):
            left[g.model, g.record.reason] = left.get((g.model, g.record.reason), 0) + 1
    for (model, reason), n in sorted(left.items(), key=lambda item: (size(item[0][0]), item[0])):
        out.append(f"{model}: {n} pairs not timed, {reason}.")
    held, claims = parity(sources, device)
    out.append(f"{held} of {claims} parity claims on this card hold.")
    return "\n\n".join(out)
