"""Counts of schedules by class, kind or rule: what every run of the attack suite adds up, shows and writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from amk_bench.results import write_text_atomically


@dataclass(slots=True)
class Tally:
    """A name and what was counted under it: numbers, and lists of failures."""

    name: str

    def add(self, other: Self) -> None:
        for f in fields(self):
            if f.name != "name":
                setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


T = TypeVar("T", bound=Tally)


def total(rows: Iterable[T], out: T) -> T:
    """``out``, an empty tally, with all rows in it."""
    for r in rows:
        out.add(r)
    return out


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text: the first column to the left, the others to the right."""
    width = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(width[0]), *(c.rjust(w) for c, w in zip(line[1:], width[1:], strict=True))]).rstrip()
        for line in lines
    )


def counted(title: str, columns: Sequence[str], rows: Iterable[Tally], name_width: int, width: int) -> str:
    """One line a row, the counts in columns of fixed width under their names."""
    lines = [f"{title:<{name_width}}" + "".join(f"{c.replace('_', ' '):>{width}}" for c in columns)]
    lines += [f"{r.name:<{name_width}}" + "".join(f"{getattr(r, c):>{width}}" for c in columns) for r in rows]
    return "\n".join(lines)


def save(path: Path, record: Mapping[str, Any], text: str | None = None) -> None:
    """The result as JSON at ``path``, the text beside it as .txt; what was there is replaced whole or not at all."""
    write_text_atomically(path, json.dumps(record, indent=1) + "\n", replace=True)
    if text is not None:
        write_text_atomically(path.with_suffix(".txt"), text, replace=True)
