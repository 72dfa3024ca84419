"""Where a decode step goes: from the tracer's phases to floor, products, attention, hand-offs and host.

The phases of a step follow each other, so their times add up to it.  In each, the body that ended last is work, and the rest is
handing over.  The weights cannot come faster than the memory gives them: that part is the floor.  Where the products take less than
the floor, their weights came while a hand-off went on, and that part of the hand-offs counts as floor.  So the parts always add up
to the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amk_bench.report.cards import size
from amk_bench.report.pairs import RANDOM, Pair
from amk_bench.report.sources import Source, of

ATTENTION = ("attn",)
PARTS = ("floor", "products", "attention", "hand-offs", "other", "host")
_NUMBER = r"-?\d+(?:\.\d+)?"
_HEAD = re.compile(
    rf"^(?P<model>\S+) at position (?P<position>\d+), microseconds\n(?P<step>{_NUMBER}) us a step over (?P<steps>\d+) steps", re.M
)
_DEVICE = re.compile(r"^DeviceFacts\(name='(?P<name>[^']+)'", re.M)
_FLOOR = re.compile(rf"^(?P<model>\S+) .*?position +(?P<position>\d+): +{_NUMBER} us a token .*?floor (?P<floor>\d+)", re.M)


@dataclass(frozen=True, slots=True)
class Step:
    """One traced step; ``parts`` in microseconds, in the order of :data:`PARTS`, without "host".

    Attributes:
        shares: op -> share of the time of all queues, the gaps between tasks among them.
        host_us: wall less device time of a paired run of the same cell, with its pair; None where none was run.
    """

    source: Source
    device: str
    model: str
    position: int
    batch: int
    step_us: float
    parts: Mapping[str, float]
    shares: Mapping[str, float]
    host_us: float | None = None
    host: Pair | None = None


def split(step_us: float, floor_us: float, phases: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The parts of a step of which the phases tell ``name``, ``a_step``, ``last_signal`` and ``execute_slowest``."""
    total = {True: 0.0, False: 0.0}
    handing = told = 0.0
    for p in phases:
        total[p["name"] in ATTENTION] += p["a_step"] * p["execute_slowest"]
        handing += p["a_step"] * (p["last_signal"] - p["execute_slowest"])
        told += p["a_step"] * p["last_signal"]
    beyond, other = total[False] - floor_us, step_us - told
    handing += min(0.0, beyond) + min(0.0, other)
    return {
        "floor": floor_us, "products": max(0.0, beyond), "attention": total[True], "hand-offs": handing, "other": max(0.0, other),
    }  # fmt: skip


def steps(sources: Sequence[Source], pairs: Sequence[Pair]) -> list[Step]:
    """The steps of the newest file of each device, model and batch; files with a fingerprint come before printed ones."""
    found: dict[tuple[str, str, int], dict[int, Step]] = {}
    for step in (*_printed(sources), *_traced(sources)):
        mine = found.setdefault((step.device, step.model, step.batch), {})
        if any(other.source != step.source for other in mine.values()):
            mine.clear()
        mine[step.position] = step
    return [
        _with_host(found[key][position], pairs)
        for key in sorted(found, key=lambda k: (k[0], size(k[1]), k))
        for position in sorted(found[key])
    ]


def _traced(sources: Sequence[Source]) -> Iterator[Step]:
    for source in of(sources, "timing"):
        inner = source.doc["amk"]
        if "bandwidth" not in inner:
            continue
        for t in inner.get("traces", ()):
            floor = 1e6 * t["tape_bytes"] / inner["bandwidth"]["bytes_per_s"]
            shares = {r["name"]: r["share"] for r in t["regions"]}
            parts = split(t["step_us"], floor, t["phases"])
            yield Step(source, source.device, t["model"], t["position"], t["batch"], t["step_us"], parts, shares)


def _printed(sources: Sequence[Source]) -> Iterator[Step]:
    """Traces that a log holds as text, with the floors that the same log states."""
    for source in of(sources, "log"):
        device = _DEVICE.search(source.doc) if source.name.endswith("-trace.txt") else None
        if device is None:
            continue
        floors = {(m["model"], int(m["position"])): float(m["floor"]) for m in _FLOOR.finditer(source.doc)}
        heads = list(_HEAD.finditer(source.doc))
        for index, head in enumerate(heads):
            end = heads[index + 1].start() if index + 1 < len(heads) else len(source.doc)
            model, position, n = head["model"], int(head["position"]), int(head["steps"])
            shares, phases = _tables(source.doc[head.end() : end], n)
            if (model, position) in floors and phases:
                whole = float(head["step"])
                yield Step(source, device["name"], model, position, 1, whole, split(whole, floors[model, position], phases), shares)


def _tables(text: str, steps: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Shares of the regions, and the phases, from what ``tracing.table`` and ``tracing.hand_offs`` print."""
    shares: dict[str, float] = {}
    phases: list[dict[str, Any]] = []
    for line in text.splitlines():
        cells = [c.split() for c in line.split("|")]
        if len(cells) == 4 and cells[3][-1:] == ["%"]:
            shares[line[:15].strip()] = float(cells[3][0]) / 100
        elif len(cells) == 5 and len(cells[0]) == 2 and cells[0][1].isdigit():
            name, n = cells[0]
            phases.append(
                {"name": name, "a_step": int(n) / steps, "last_signal": float(cells[3][0]), "execute_slowest": float(cells[4][0])}
            )
    return shares, phases


def _with_host(step: Step, pairs: Sequence[Pair]) -> Step:
    same = (step.device, step.model, step.batch, step.position)
    for pair in pairs:
        r = pair.record
        wall = pair.wall_us("ours")
        if (
            (r.device, pair.model, r.batch, r.position) == same
            and pair.weights == RANDOM
            and r.mode == "fast"
            and wall is not None
            and r.ours_us is not None
        ):
            host = max(0.0, wall - r.ours_us)
            return Step(
                step.source, step.device, step.model, step.position, step.batch, step.step_us, step.parts, step.shares, host, pair
            )
    return step
