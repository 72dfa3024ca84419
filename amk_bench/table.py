"""The tables of the summary: win/loss with losses first, parity, cells that did not run.  Text in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from amk_bench.results import LatencyRecord, ParityRecord, SkipRecord
from amk_bench.verdict import Verdict

EMPTY = "-"
RANDOM = "random"  # in what a record says of its weights
ASYMMETRIC = " against "  # in the precision of a record: the sides have one each


def by_verdict(records: Sequence[LatencyRecord]) -> list[LatencyRecord]:
    """INVALID and LOSS first, wins last; within a verdict the smallest ratio first."""
    return sorted(records, key=lambda r: (Verdict(r.verdict).rank, r.ratio or 0.0, r.baseline, r.batch, r.position))


def microseconds(value: float | None) -> str:
    """Four figures are enough beside an interval: "74 210", "812.4", "9.31"."""
    if value is None:
        return EMPTY
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _render(rows: list[list[str]], headers: list[str], right: set[str], ascii_only: bool) -> list[str]:
    from tabulate import tabulate

    style = "outline" if ascii_only else "rounded_outline"
    align = ["right" if h in right else "left" for h in headers]
    text = tabulate(rows, headers=headers, tablefmt=style, colalign=align, disable_numparse=True, headersglobalalign="center")
    return text.splitlines()


def win_loss(records: Sequence[LatencyRecord], ascii_only: bool = False) -> tuple[list[str], list[str | None]]:
    """The win/loss table: its lines, and for each line the verdict it shows (None for rules and headings)."""
    micro = "us" if ascii_only else "µs"
    ours, theirs = f"ours {micro}", f"baseline {micro}"
    cases = {(r.model, r.mode, RANDOM in r.weights) for r in records}
    positions = any(r.unit == "token" or r.position or r.batch != 1 for r in records)
    headers = ["verdict", *["case"] * (len(cases) > 1), *["position", "batch"] * positions]
    headers += ["baseline", ours, theirs, "ratio", "95 % interval", "gate"]
    rows = []
    ordered = by_verdict(records)
    for r in ordered:
        interval = f"{r.low:.3f} .. {r.high:.3f}" if r.low is not None and r.high is not None else EMPTY
        ratio = f"{r.ratio:.3f}x" if r.ratio is not None else EMPTY
        baseline = f"{r.baseline} {r.precision}".strip()
        times = [microseconds(r.ours_us), microseconds(r.baseline_us), ratio, interval]
        case = [f"{r.model}, {r.mode}{', random weights' if RANDOM in r.weights else ''}"] if len(cases) > 1 else []
        cell = [f"{r.position:,}".replace(",", " "), str(r.batch)] if positions else []
        rows.append([r.verdict, *case, *cell, baseline, *times, r.gate or "see below"])
    right = {"position", "batch", ours, theirs, "ratio", "95 % interval"}
    lines = _render(rows, headers, right, ascii_only)
    verdicts: list[str | None] = [None] * len(lines)
    for index, r in enumerate(ordered):
        verdicts[3 + index] = r.verdict  # after top rule, heading and rule
    return lines, verdicts


def tally(records: Sequence[LatencyRecord]) -> str:
    """ "1 LOSS, 1 TIE, 2 WIN of 4 cells", in the table's order."""
    counts = Counter(r.verdict for r in records)
    return ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v]) + f" of {len(records)} cells"


def machine(records: Sequence[LatencyRecord]) -> list[str]:
    """What is to be known of the cells: labels, sides of unequal precision, share of the device's bandwidth, joules a token."""
    kinds = Counter(r.precision for r in records if ASYMMETRIC in r.precision).most_common()
    told = ", ".join(precision if len(kinds) == 1 else f"{precision} ({count})" for precision, count in kinds)
    lines = [f"{sum(n for _, n in kinds)} of {len(records)} cells are precision-asymmetric: {told}"] if kinds else []
    lines += [f"{count} of {len(records)} cells: {label}" for label, count in Counter(r.label for r in records if r.label).items()]
    for name, side in (("ours", "ours"), ("baseline", "the baselines")):
        reached = [(r.derived[f"{name}_share"], r.derived["measured_gb_s"]) for r in records if f"{name}_share" in r.derived]
        if reached:
            least, most = (100 * pick(share for share, _ in reached) for pick in (min, max))
            lines.append(
                f"{side}: {least:.0f} to {most:.0f} % of the {reached[0][1]:.0f} GB/s that this device was measured to read"
            )
        spent = [r.derived[f"{name}_joules"] for r in records if f"{name}_joules" in r.derived]
        if spent:
            lines.append(f"{side}: {min(spent):.3g} to {max(spent):.3g} joules a token")
    return lines


def parity(records: Sequence[ParityRecord], ascii_only: bool = False) -> tuple[list[str], list[bool | None]]:
    """The parity table, failures first: its lines, and for each line whether the claim held (None for rules and headings)."""
    ordered = sorted(records, key=lambda r: (r.passed, r.level))
    headers = ["", "level", "claim", "measured", "required", "on"]
    rows = [["pass" if r.passed else "FAIL", r.level, r.claim, r.measured, r.required, r.where] for r in ordered]
    lines = _render(rows, headers, set(), ascii_only)
    held: list[bool | None] = [None] * len(lines)
    for index, r in enumerate(ordered):
        held[3 + index] = r.passed
    return lines, held


def skipped(records: Sequence[SkipRecord]) -> list[str]:
    """Empty cells grouped by reason, each with the command that fills it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for r in records:
        groups.setdefault((r.reason, r.command), []).append(r.cell)
    lines = []
    for (reason, command), cells in groups.items():
        lines.append(f"{', '.join(dict.fromkeys(cells))}: {reason}")
        if command:
            lines.append(f"    run: {command}")
    return lines
