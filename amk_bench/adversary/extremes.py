"""Numbers at the ends of what the format can hold, in schedules that are otherwise small: arithmetic that wraps decides wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amk_bench.adversary.net import Json, Rng
from amk_bench.adversary.scenarios import SCENARIOS

SOURCES = (
    "moving_ranges",
    "moving_ranges",
    "ring_row_wrap",
    "kv_row_off_by_one",
    "two_first_positions",
    "late_race",
    "sub_byte_neighbours",
)
EXTREMES = tuple(n + d for n in (2**15, 2**31, 2**32, 2**40, 2**50, 2**58, 2**59, 2**60, 2**61, 2**62 - 1) for d in (-1, 0, 1))
ADDRESSES = 2**60 - 2**12  # refused beyond, whatever it means
MOST = 2**62 - 2**12  # more than that is no number of the format, with what is added to it below
PARTS = ("mod", "mod", "add", "stride", "length", "offset", "rows", "max", "amount")


def _places(s: Json, part: str) -> Iterator[tuple[Any, Any]]:
    """(object, key) of every number of a kind."""
    if part in ("mod", "add", "stride", "length"):
        for t in s["tasks"]:
            for a in (*t["reads"], *t["writes"]):
                for r in (a["rows"], a["cols"]):
                    if isinstance(r, dict):
                        yield (r if part == "length" else r["start"]), part
    elif part in ("offset", "rows"):
        for b in s["buffers"]:
            yield (b, "offset") if part == "offset" else (b["shape"], 0)
    elif part == "max":
        for v in s.get("variables", {}).values():
            yield v, part
    else:
        for t in s["tasks"]:
            for signal in t["signals"]:
                yield signal, 1


def extreme_numbers(rng: Rng) -> Json:
    """One number far out; where it moves a range around a ring, its twin goes along, so that the range may stay inside."""
    s = SCENARIOS[rng.choice(SOURCES)](rng)
    part = rng.choice(PARTS)
    places = [p for p in _places(s, part) if isinstance(p[0], dict | list)]
    if not places:
        return s
    x, key = rng.choice(places)
    n = min(rng.choice(EXTREMES), MOST >> 8 if part == "amount" else ADDRESSES if part in ("offset", "max") else MOST)
    if part in ("add", "stride", "max") and rng.random() < 0.5:
        n = -n
    if part == "add" and rng.random() < 0.8:  # a whole number of turns
        x["mod"] = x.get("mod") or rng.choice((2, 3, 4, 6))
        n -= n % x["mod"] - rng.choice((0, 0, 1))
    if part == "stride" and rng.random() < 0.8:
        x["mod"] = x.get("mod") or rng.choice((2, 3, 4, 6))
        n += 1 - n % x["mod"]
    if part == "offset" and rng.random() < 0.5:  # everything moves, so that buffers may still alias
        for b in s["buffers"]:
            b["offset"] += n - n % 8
        return s
    if part == "amount":
        for t in s["tasks"]:
            t["signals"] = [[c, a * n] if c == x[0] else [c, a] for c, a in t["signals"]]
            t["waits"] = [[c, k * n, e] if c == x[0] else [c, k, e] for c, k, e in t["waits"]]
        s["counters"][x[0]]["per_step"] *= n
        return s
    if part == "max":  # one or two values, far out; what they are added to goes the other way as often as not
        x["min"], x["max"] = n - rng.choice((0, 0, 1)), n
        for start, _ in _places(s, "add") if rng.random() < 0.8 else ():
            if isinstance(start, dict) and start.get("base"):
                start["add"] = start.get("add", 0) - n
        return s
    x[key] = n
    return s
