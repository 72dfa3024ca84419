"""The README's block: the worst cells of everything committed, what each device showed, and who has not been run."""

from __future__ import annotations

from collections.abc import Sequence

from amk_bench.report import cards
from amk_bench.report.pairs import ORDER, Pair, tally
from amk_bench.report.sources import Source, of
from amk_bench.results import ParityRecord
from amk_bench.table import machine, microseconds
from amk_bench.verdict import Verdict

ROWS = 12  # that a first screen bears; losses are shown even beyond them
NOTHING = "No result is committed yet. `make bench` prints the table for your machine."
HEAD = (
    "| verdict | device | model | precision | batch | position | AMK µs a step (95 %) | best rival | its µs | ratio (95 %) |\n"
    "| --- | --- | --- | --- | ---: | ---: | --- | --- | ---: | --- |"
)


def _row(p: Pair) -> str:
    r, ours, (mine, theirs) = p.record, microseconds(p.record.ours_us), p.precisions
    if p.ours_interval is not None:
        ours += f" ({microseconds(p.ours_interval[0])} to {microseconds(p.ours_interval[1])})"
    found = None in (r.ratio, r.low, r.high)
    ratio = r.reason if found else f"[{r.ratio:.2f}]({p.source.path}) ({r.low:.2f} to {r.high:.2f})"
    rival = f"{r.baseline}, {p.rival_version}" if p.rival_version else r.baseline
    precision = mine if mine == theirs else f"{mine} against {theirs}"
    cells = [
        r.verdict, r.device, f"{p.model}, {p.weights} weights", f"{precision}, {r.mode}", str(r.batch), str(r.position), ours,
        rival, microseconds(r.baseline_us), ratio,
    ]  # fmt: skip
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def parity(sources: Sequence[Source], device: str) -> tuple[int, int]:
    """Parity claims of a device that hold, and all of them; the newest run of each claim counts."""
    newest: dict[tuple[str, str, str], bool] = {}
    for source in of(sources, "result"):
        for claim in source.records:
            if isinstance(claim, ParityRecord) and source.device == device:
                newest[claim.level, claim.claim, claim.where] = claim.passed
    return sum(newest.values()), len(newest)


def _device(device: str, best: Sequence[Pair], sources: Sequence[Source]) -> str:
    """A line a device."""
    mine = [p for p in best if p.record.device == device]
    told = [f"**{device}**: {tally(mine)} against the best rival of each"] if mine else [f"**{device}**: no pair timed"]
    told += [line for line in machine([p.record for p in mine]) if not line.startswith("the baselines")]
    held, claims = parity(sources, device)
    if claims:
        told.append(f"{held} of {claims} parity claims hold")
    runs = [s for s in of(sources, "result") if s.device == device]
    newest = max(s.created[:10] for s in runs)
    told.append(f"{len(runs)} run{'s' * (len(runs) != 1)}, the newest of {newest}")
    return "; ".join(told) + "."


def block(best: Sequence[Pair], sources: Sequence[Source]) -> str:
    """What stands between the README's markers.  ``best``: one pair a cell, worst first."""
    devices = list(dict.fromkeys([p.record.device for p in best] + [s.device for s in of(sources, "result")]))
    if not devices:
        return NOTHING
    shown = [p for i, p in enumerate(best) if i < ROWS or p.record.verdict == Verdict.LOSS]
    left = best[len(shown) :]
    out = [HEAD, *(_row(p) for p in shown), ""] if shown else []
    if left:
        counts = [(v, sum(p.record.verdict == v for p in left)) for v in ORDER]
        out += [f"And {', '.join(f'{n} {v}' for v, n in counts if n)} in [the report](reports/site/index.html).", ""]
    for device in devices:
        out += [_device(device, best, sources), ""]
    missing = ", ".join(cards.title(t) for t in cards.missing(devices))
    told = "A step makes one token for each sequence of the batch. "
    told += f"Nobody has run {missing} yet. " if missing else ""
    return "\n".join(
        [*out, f"{told}Every pair, chart, empty cell and command: [reports/site/index.html](reports/site/index.html)."]
    )
