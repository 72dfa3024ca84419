"""The README's block: the newest committed result of each device, as a Markdown table, losses first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amk_bench.results import LatencyRecord, ParityRecord, ResultError, validate
from amk_bench.table import by_verdict, machine, microseconds, tally

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
NOTHING = "No result is committed yet. `make bench` prints the table for your machine."
HEAD = (
    "| verdict | model | position | batch | baseline | AMK µs a token | baseline µs a token | ratio (95 %) |\n"
    "| --- | --- | ---: | ---: | --- | ---: | ---: | --- |"
)


class BlockMissing(ValueError):
    """The file has no place for the table, or more than one."""


def newest(folder: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """The newest result file of each device, devices by name.

    Raises:
        ResultError: a file does not follow the schema; the message names it.
    """
    found: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            doc = json.loads(path.read_text("utf-8"))
            validate(doc)
        except (ValueError, ResultError) as e:
            raise ResultError(f"{path}: {e}") from None
        device = str(doc["fingerprint"]["device"])
        if device not in found or doc["created"] >= found[device][1]["created"]:
            found[device] = (path, doc)
    return [found[device] for device in sorted(found)]


def _row(r: LatencyRecord) -> str:
    ratio = f"{r.ratio:.2f} ({r.low:.2f} to {r.high:.2f})" if None not in (r.ratio, r.low, r.high) else r.reason
    cells = [
        r.verdict, f"{r.model}, {r.mode}", str(r.position), str(r.batch), f"{r.baseline} {r.precision}".strip(),
        microseconds(r.ours_us), microseconds(r.baseline_us), ratio,
    ]  # fmt: skip
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def section(path: Path, doc: Mapping[str, Any]) -> str:
    """One device: its table, what was measured where, and how many parity claims hold."""
    records = validate(doc)
    cells = [r for r in records if isinstance(r, LatencyRecord)]
    claims = [r for r in records if isinstance(r, ParityRecord)]
    f = doc["fingerprint"]
    where = f"{f['device']}, {f['cores']} cores" if f["arch"] == "cpu" else f"{f['device']} ({f['arch']})"
    held = sum(c.passed for c in claims)
    out = [HEAD, *(_row(r) for r in by_verdict(cells)), ""] if cells else []
    told = [f"{where}, torch {f['libraries'].get('torch', 'unknown')}, commit {f['commit']}, {doc['created'][:10]}"]
    if cells:
        told.append(tally(cells))
        told += machine(cells)
    if claims:
        told.append(f"{held} of {len(claims)} parity claims hold")
    return "\n".join([*out, f"{'; '.join(told)}. Generated from [{path.name}](reports/data/{path.name})."])


def block(folder: Path) -> str:
    """What stands between the markers."""
    return "\n\n".join(section(path, doc) for path, doc in newest(folder)) or NOTHING


def replaced(text: str, content: str) -> str:
    """The text with the content between its markers.

    Raises:
        BlockMissing: the markers are not there exactly once, in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BlockMissing(f"the file needs {BEGIN} and {END} once each, in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.split(END)[1]}"
