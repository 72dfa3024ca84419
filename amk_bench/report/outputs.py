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
    def read(root: Path, data: Path = sources.DATA, unknown: Callable[[str], None] | None = None) -> Evidence:
        """Everything under ``data`` of the folder ``root`` (:func:`amk_bench.report.sources.collect`).

        Raises:
            ResultError: a file does not hold; the message names it.
        """
        files = sources.collect(root, data, unknown)
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
    return out | {f"{page.SITE}/{name}": text for name, text in site(e, root, root / page.SITE, documented=True).items()}


def site(e: Evidence, root: Path, folder: Path, *, documented: bool) -> dict[str, str]:
    """The page and its rows by name, for a ``folder``; paths of the evidence count from ``root``."""
    devices, steps = grid.grid(e.best, e.gaps), waterfall.steps(e.files, e.pairs)
    content = page.Content(e.files, e.pairs, e.best, e.gaps, devices, steps, series.shares(e.best), root, folder, documented)
    return {
        "index.html": page.render(content),
        "results.csv": exports.to_csv(e.pairs),
        "results.jsonl": exports.to_jsonl(e.pairs, devices, e.gaps, e.files),
    }
