"""The text of a device source for a compiler of this machine: without includes, instructions and what a test replaces."""

from __future__ import annotations

import re
from collections.abc import Iterable


def block_end(text: str, at: int) -> int:
    """Behind the brace that closes the first one from ``at`` on."""
    end, depth = text.index("{", at) + 1, 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return end


def find(text: str, head: str) -> re.Match[str]:
    """Where something begins; the text has to have it."""
    m = re.search(head, text, flags=re.M)
    assert m is not None, f"the source has no {head!r} any more; the host build replaces or takes it"
    return m


def without(text: str, functions: Iterable[str]) -> str:
    """The text without the named functions."""
    for name in functions:
        m = find(text, rf"^ *(static )?__device__ (__forceinline__|__noinline__) [\w \*]+\b{name}\(")
        text = text[: m.start()] + text[block_end(text, m.end()) :]
    return text


def part(text: str, head: str) -> str:
    """The function or struct that begins with ``head``."""
    m = find(text, head)
    end = block_end(text, m.start())
    return text[m.start() : end + (text[end] == ";")]


def host_text(text: str, functions: Iterable[str] = ()) -> str:
    """Without includes, the functions and all instructions."""
    text = re.sub(r"^#(include|pragma).*$", "", without(text, functions), flags=re.M)
    text = re.sub(r"asm(?: volatile)?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);", ";", text)
    assert "asm" not in text
    return text
