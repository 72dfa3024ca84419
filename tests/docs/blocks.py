"""Runnable blocks of a Markdown file.

A fenced block is run where the line before it says so: ``<!-- run -->``, with ``exit=1`` where a command is meant to answer no, and
``needs=NAME`` where it needs a model from the cache.  In a ``console`` block ``$ `` starts a command and the lines below it are its
output: each must appear, in order; ``...`` stands for any text, alone on a line for any lines.  A ``python`` block must run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^<!-- run(?P<options>[^\n]*?)-->\n```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<to>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One runnable block; ``line`` is where its fence stands."""

    file: Path
    line: int
    language: str
    body: str
    exit: int
    needs: str | None

    def commands(self) -> list[tuple[str, list[str]]]:
        """(command, expected output lines) of a console block."""
        out: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.body.splitlines():
            if line.startswith("$ "):
                out.append((line[2:], []))
            elif continued:
                out[-1] = (out[-1][0] + "\n" + line, [])
            elif out and line.strip():
                out[-1][1].append(line)
            continued = (line.startswith("$ ") or continued) and line.endswith("\\")
        return out


def blocks(path: Path) -> Iterator[Block]:
    """The runnable blocks of a file, in order."""
    text = path.read_text("utf-8")
    for m in _BLOCK.finditer(text):
        options = dict(item.split("=", 1) for item in m["options"].strip(" :").split())
        unknown = set(options) - {"exit", "needs"}
        if unknown or m["language"] not in ("console", "python"):
            raise ValueError(f"{path}: a run block with {unknown or m['language']}")
        line = text[: m.start()].count("\n") + 2
        yield Block(path, line, m["language"], m["body"], int(options.get("exit", 0)), options.get("needs"))


def missing(expected: list[str], output: str) -> str | None:
    """The first expected line that the output lacks, looking in order; None where all are there."""
    lines, at = [line.rstrip() for line in output.splitlines()], 0
    for want in expected:
        if want.strip() == "...":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in want.rstrip().split("...")))
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            return want
        at += 1
    return None


def links(path: Path) -> list[str]:
    """Targets of relative links, without their anchors; code is not looked at."""
    found = [m["to"] for m in _LINK.finditer(_FENCE.sub("", path.read_text("utf-8")))]
    return [to.split("#")[0] for to in found if not re.match(r"[a-z]+:|#", to)]
