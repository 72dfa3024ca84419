"""Every file that ``amk report`` writes, as text: tables between markers, the page, CSV and JSON Lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from amk_bench.report import exports, grid, mutants, page, pairs, readme, rivals, series, sources, waterfall
from amk_bench.report.pairs import Gap, Pair
from amk_bench.report.sources import Source

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


class BlockMissing(ValueError):
    """The file has no place for the table, or more than one."""


def replaced(text: str, content: str) -> str:
    """The text with the content between its markers.

    Raises:
        BlockMissing: the markers are not there exactly once, in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BlockMissing(f"the file needs {BEGIN} and {END} once each, in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.split(END)[1]}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The committed files and the rows made of them."""

    files: list[Source]
    pairs: list[Pair]
    best: list[Pair]
    gaps: list[Gap]

    @staticmethod
    def read(root: Path) -> Evidence:
        """Everything under ``reports/data`` of the tree at ``root``.

        Raises:
            ResultError: a file does not hold; the message names it.
        """
        files = sources.collect(root)
        found = pairs.newest(files)
        return Evidence(files, found, pairs.best_rivals(found), pairs.gaps(files))


def _timing(e: Evidence) -> str:
    from amk_bench.device_timing import table

    runs = [s for s in e.files if s.kind.name == "timing" and s.name.endswith("-timing.json")]
    return table(max(runs, key=lambda s: s.path).doc) if runs else "No timing run is committed yet."


# Page -> what stands between its markers.
TABLES: Mapping[str, Callable[[Evidence], str]] = {
    "README.md": lambda e: readme.block(e.best, e.files),
    "docs/baselines.md": lambda e: rivals.table(e.pairs, e.gaps, e.files),
    "docs/performance.md": _timing,
    "docs/mutation.md": lambda e: mutants.table(e.files),
}


def outputs(root: Path) -> dict[str, str]:
    """Path from the root -> text, of all that is generated in this tree; pages that the tree does not have are left out.

    Raises:
        ResultError: a committed file does not hold.
        BlockMissing: a page has no place for its table.
    """
    e = Evidence.read(root)
    out = {}
    for name, table in TABLES.items():
        if (root / name).is_file():
            try:
                out[name] = replaced((root / name).read_text("utf-8"), table(e))
            except BlockMissing as error:
                raise BlockMissing(f"{name}: {error}") from None
    devices = grid.grid(e.best, e.gaps)
    content = page.Content(e.files, e.pairs, e.best, e.gaps, devices, waterfall.steps(e.files, e.pairs), series.shares(e.best))
    out[f"{page.SITE}/index.html"] = page.render(content)
    out[f"{page.SITE}/results.csv"] = exports.to_csv(e.pairs)
    out[f"{page.SITE}/results.jsonl"] = exports.to_jsonl(e.pairs, devices, e.gaps, e.files)
    return out
