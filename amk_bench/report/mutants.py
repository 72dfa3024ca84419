"""The table of docs/mutation.md: what became of the mutants of each target."""

from __future__ import annotations

from collections.abc import Sequence

from amk_bench.report.sources import Source, of

TARGETS = ("reference", "checker", "validator")
HEAD = (
    "| target | mutants | cases | killed | report | live | argued equivalent | open | score |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def table(sources: Sequence[Source]) -> str:
    """A row a target.  The score is the share killed of those that are neither argued equivalent nor seen in the report alone."""
    files = [s for target in TARGETS for s in of(sources, "mutation") if s.doc["target"] == target]
    return "\n".join([HEAD, *map(_row, files)])


def _row(source: Source) -> str:
    doc = source.doc
    report, lives = doc["deaths"].get("report", 0), doc["deaths"].get("lives", 0)
    still_open = sum(len(names) for why, names in doc["survivors"].items() if why.startswith("open"))
    killed, equivalent = doc["mutants"] - report - lives, lives - still_open
    asked = doc["mutants"] - equivalent - report
    sample = f", one in {doc['stride']} of {_number(doc['planted'])}" if "stride" in doc and "planted" in doc else ""
    numbers = (doc["mutants"], doc["cases"], killed, report, lives, equivalent, still_open)
    cells = [f"[{doc['target']}](../{source.path}){sample}", *map(_number, numbers), f"{100 * killed // max(asked, 1)}%"]
    return f"| {' | '.join(cells)} |"
