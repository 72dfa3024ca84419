"""The end of the terminal output: parity, cells not run, and last the win/loss table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, cast

from amk_bench import table
from amk_bench.options import Arch, Options
from amk_bench.results import LatencyRecord, NoteRecord, ParityRecord, Record, SkipRecord
from amk_bench.verdict import Verdict

K = TypeVar("K")

_COLOURS: dict[str, dict[str, bool]] = {
    Verdict.INVALID: {"red": True, "bold": True},
    Verdict.LOSS: {"red": True},
    Verdict.AMBIGUOUS: {"yellow": True},
    Verdict.TIE: {},
    Verdict.WIN: {"green": True},
}


class Terminal(Protocol):
    """The part of pytest's TerminalReporter that the summary writes to."""

    def section(self, title: str, sep: str = "=", **markup: bool) -> None: ...

    def write_line(self, line: str | bytes, **markup: bool) -> None: ...


def _of(kind: type[K], records: Iterable[Record]) -> list[K]:
    return [cast(K, r) for r in records if isinstance(r, kind)]


def write(terminal: Terminal, records: Sequence[Record], options: Options, arch: Arch, *, ascii_only: bool, width: int) -> None:
    """Writes every part that has something to say; nothing at all for a run without records."""
    parities, cells = _of(ParityRecord, records), _of(LatencyRecord, records)
    skips, notes = _of(SkipRecord, records), _of(NoteRecord, records)
    if not records:
        return
    if parities:
        failed = sum(not r.passed for r in parities)
        terminal.section(
            f"parity: {failed} of {len(parities)} claims FAILED"
            if failed
            else f"parity: {len(parities)} of {len(parities)} claims hold"
        )
        lines, held = table.parity(parities, ascii_only)
        _write_marked(terminal, lines, held, lambda ok: {"green": True} if ok else {"red": True, "bold": True})
        for r in parities:
            if r.detail:
                _wrapped(terminal, f"{r.level} {r.claim}: {r.detail}", width)
    broken = [s for s in skips if s.broken]
    if broken:
        terminal.section(f"BROKEN: {_count(broken)} ended in an error before there was a result", red=True, bold=True)
        for line in table.skipped(broken):
            _wrapped(terminal, line, width)
    left_out = [s for s in skips if not s.broken]
    if left_out:
        terminal.section(f"not run: {_count(left_out)}")
        for line in table.skipped(left_out):
            _wrapped(terminal, line, width)
    if notes or cells:
        terminal.section(f"win/loss on {arch.device} ({arch.name})")
    for note in dict.fromkeys(n.text for n in notes):
        _wrapped(terminal, note, width)
    if cells:
        _win_loss(terminal, cells, ascii_only, width)
    elif skips and options.arch != "cpu":
        terminal.write_line("no time was measured; see the cells above for what would run it")


def _count(cells: Sequence[SkipRecord]) -> str:
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}"


def _win_loss(terminal: Terminal, cells: Sequence[LatencyRecord], ascii_only: bool, width: int) -> None:
    shown = {(r.model + (", random weights" if r.weights else ""), r.mode, r.unit) for r in cells}
    units = " or ".join(sorted({f"a {r.unit}" for r in cells}, reverse=True))
    what = "several cases"
    if len(shown) == 1:
        model, mode, unit = shown.pop()
        what = f"{model}, mode {mode}, greedy decode" if unit == "token" else f"{model}, {mode}"
    terminal.write_line(f"{what}; times {units}; ratio = baseline / ours: above 1 ours is faster")
    lines, verdicts = table.win_loss(cells, ascii_only)
    _write_marked(terminal, lines, verdicts, lambda verdict: _COLOURS[verdict])
    for r in table.by_verdict(cells):
        if r.verdict == Verdict.INVALID:
            where = f"at position {r.position}, batch {r.batch}" if r.unit == "token" else r.model
            _wrapped(terminal, f"INVALID {where}, against {r.baseline}: {r.reason}", width)
    for line in table.machine(cells):
        _wrapped(terminal, line, width)
    floors = {f"{100 * r.floor:.1f} %" for r in cells if r.floor is not None}
    if floors:
        sign = "+-" if ascii_only else "±"
        terminal.write_line(f"{table.tally(cells)}; noise floor {sign}{', '.join(sorted(floors))} (ours against itself)")
    else:
        terminal.write_line(table.tally(cells))


def _write_marked(terminal: Terminal, lines: list[str], keys: Sequence[K | None], colour: Callable[[K], dict[str, bool]]) -> None:
    for line, key in zip(lines, keys, strict=True):
        terminal.write_line(line, **({} if key is None else colour(key)))


def _wrapped(terminal: Terminal, text: str, width: int) -> None:
    lines = textwrap.wrap(text, max(width, 40), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    for line in lines or [""]:
        terminal.write_line(line)
