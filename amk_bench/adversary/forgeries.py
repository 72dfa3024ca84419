"""Forged certificates: one field of a valid one changed in every way, and valid ones moved onto other tables.

A *corruption* changes one number, one entry, or the length of one field.  The checker refuses it, or it is *harmless*: what it
still says is true (every clock in every reachable state, and the replay runs), so the schedule it lets through is a safe one.

A *transplant* puts the certificate of a safe schedule onto a mutant of it, with the hash of the mutant.  Where the oracle finds
that the mutant can deadlock or race, the checker must refuse it: the hash protects against accidents, not against this.  Other
rules are not what a certificate proves: a mutant that breaks only those may keep a certificate that holds.

``python -m amk_bench.adversary.forgeries --corruptions 20000 --transplants 10000 --out FILE`` prints both tables and writes them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_bench.adversary import tally
from amk_bench.adversary.certificates import corrupt, replays, truthful
from amk_bench.adversary.generators import dag, loop, placed, random_net
from amk_bench.adversary.mutations import OPERATORS, Operator
from amk_bench.adversary.net import Json, Rng
from amk_bench.adversary.real import lowered
from amk_bench.adversary.scenarios import SCENARIOS
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import check_certificate, oracle, validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.tables import pack, table_hash
from amk_core.targets import Target

CORRUPTIONS, TRANSPLANTS = 20_000, 10_000  # of a full run
PER_CERTIFICATE = 10
MAX_STATES = 1_500  # so that the truth of a corrupted certificate can be walked in Python
LARGE_SHARE = 0.05  # certificates of models at full size, among those that are corrupted
NUMBERS = ("unroll", "n_tasks", "n_queues")
COLUMNS = ("replay", "row", "row_off", "row_queue", "row_value")
PROVED = frozenset({"LIVE", "RACE"})  # what a certificate is a proof of

Change = Callable[[Rng, npt.NDArray[Any]], npt.NDArray[Any] | None]


# ---- one field
def _value(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Another number: the next ones, the ends of the type."""
    limit = np.iinfo(a.dtype)
    x = rng.randrange(a.size)
    old = int(a[x])
    choices = [old + 1, old + 1, old - 1, old - 1, old + 3, -old, 0, -1, int(limit.max), int(limit.min)]
    a[x] = rng.choice([v for v in choices if v != old and limit.min <= v <= limit.max])
    return a


def _bit(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """One bit flipped."""
    x = rng.randrange(a.size)
    bits = a.view(np.uint32 if a.dtype == np.int32 else np.uint64)
    bits[x] ^= bits.dtype.type(1 << rng.randrange(8 * a.itemsize))
    return a


def _swap(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Two numbers that differ change places; neighbours as often as not."""
    for _ in range(8):
        x = rng.randrange(a.size)
        y = min(a.size - 1, x + 1) if rng.random() < 0.5 else rng.randrange(a.size)
        if a[x] != a[y]:
            a[x], a[y] = int(a[y]), int(a[x])
            return a
    return None


def _cut(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The end is missing, or all of it."""
    return a[: rng.choice((a.size - 1, a.size - 1, a.size // 2, 0))]


def _append(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """One number too many."""
    return np.append(a, a.dtype.type(rng.choice((int(a[-1]), int(a[0]), 0))))


def _remove(rng: Rng, a: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """One number is missing in the middle."""
    return np.delete(a, rng.randrange(a.size))


CHANGES: Mapping[str, Change] = {"value": _value, "bit": _bit, "swap": _swap, "cut": _cut, "append": _append, "remove": _remove}
KINDS: tuple[str, ...] = (
    "hash digit", "hash of other tables", "clock dropped", "clock added",
    *(f"{n} value" for n in NUMBERS), *(f"{c} {how}" for c in COLUMNS for how in CHANGES),
)  # fmt: skip


def forge(rng: Rng, c: Certificate, kind: str) -> Certificate | None:
    """The certificate with one field changed; None where it has no such field to change."""
    name, _, how = kind.partition(" ")
    if name == "hash":
        if how != "digit":
            return dataclasses.replace(c, table_hash=table_hash(rng.randbytes(8)))
        at = rng.randrange(64)
        digit = rng.choice([d for d in "0123456789abcdef" if d != c.table_hash[at]])
        return dataclasses.replace(c, table_hash=c.table_hash[:at] + digit + c.table_hash[at + 1 :])
    if name == "clock":
        want = "drop" if how == "dropped" else "add"
        for _ in range(200):  # drawn among the kinds of ``corrupt``
            done, bad = corrupt(rng, c)
            if done == want:
                return bad
        return None
    if name in NUMBERS:
        old = getattr(c, name)
        new: Any = rng.choice([v for v in (old + 1, old - 1, 0, 1, 2, 1 << 20, 2**62, -1) if v != old])
    else:
        column = getattr(c, name).copy()
        new = CHANGES[how](rng, column) if column.size else None
    changed: dict[str, Any] = {name: new}
    return None if new is None else dataclasses.replace(c, **changed)


def weaker(good: Certificate, bad: Certificate) -> bool:
    """Whether every clock of ``bad`` says at most what ``good`` says about the same instance."""

    def clocks(c: Certificate, x: int) -> dict[int, int]:
        lo, hi = int(c.row_off[c.row[x]]), int(c.row_off[c.row[x] + 1])
        return dict(zip(c.row_queue[lo:hi].tolist(), c.row_value[lo:hi].tolist(), strict=True))

    if good.unroll != bad.unroll or good.row.size != bad.row.size:
        return False
    pairs = {(int(a), int(b)): x for x, (a, b) in enumerate(zip(good.row, bad.row, strict=True))}
    none = 0 if good.unroll else -(2**31)
    return all(v <= clocks(good, x).get(r, none) for x in pairs.values() for r, v in clocks(bad, x).items())


# ---- what is forged
@dataclass(frozen=True, slots=True)
class Case:
    """A safe schedule, its tables and its certificate.  ``large``: too many states to walk."""

    source: str
    schedule: Schedule
    tables: bytes
    certificate: Certificate
    large: bool = False

    def harmless(self, bad: Certificate) -> bool:
        """Whether a certificate that the checker accepted is true.

        A large one is compared with the original instead, whose clocks are the exact ones: saying less is true as well.
        """
        if not self.large:
            return truthful(self.schedule, bad)
        return weaker(self.certificate, bad) and replays(self.schedule, bad)


def _kv(rng: Rng) -> Json:
    return SCENARIOS[rng.choice(("kv_row_off_by_one", "ring_row_wrap", "deferred_append", "moving_ranges", "overtaking_safe"))](rng)


SOURCES: Mapping[str, Callable[[Rng], Json]] = {
    "loop": loop, "placed": placed, "random_net": random_net, "dag": dag, "real_lowering": lowered, "moving": _kv,
}  # fmt: skip


@cache
def _large(model: str, target: str, purpose: str) -> Case:
    geometry = Geometry("decode", context=1024) if purpose == "decode" else Geometry("prefill", chunk=16, context=1024)
    s = lower(GRAPH_SHAPES[model], None, Target.named(target), geometry)
    v = validate(s)
    if v.certificate is None:
        raise AssertionError(f"{model} on {target} is not accepted: {v}")
    return Case("full model", s, pack(s), v.certificate, True)


def case(rng: Rng) -> Case:
    """A random safe schedule with its certificate."""
    if rng.random() < LARGE_SHARE:
        return _large(rng.choice(("smollm2-135m", "llama-3.2-1b")), rng.choice(("l4", "h100")), rng.choice(("decode", "prefill")))
    while True:
        source = rng.choice(list(SOURCES))
        s = Schedule.from_json(SOURCES[source](rng))
        v = validate(s)
        if v.certificate is not None and oracle.label(s, atomic=True).states <= MAX_STATES:
            return Case(source, s, pack(s), v.certificate)


@dataclass(slots=True)
class Row(tally.Tally):
    """Counts of one kind of forgery.

    ``harmless``: accepted, and true.  ``lies``: accepted, and not true (or, of a transplant: onto a schedule that can deadlock or
    race); there must be none.  ``unsafe``: transplants onto such schedules.
    """

    n: int = 0
    unsafe: int = 0
    refused: int = 0
    harmless: int = 0
    lies: int = 0
    failures: list[str] = field(default_factory=list)


def corruptions(n: int, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """n corruptions: counted by kind, and by the source of the certificate."""
    rng = random.Random(f"{seed}/corruptions")
    kinds = {k: Row(k) for k in KINDS}
    sources = {k: Row(k) for k in (*SOURCES, "full model")}
    tried, turn = 0, 0
    while tried < n:
        x = case(rng)
        if wrong := check_certificate(x.tables, x.certificate):
            raise AssertionError(f"{x.source}: the certificate itself is refused: {wrong}")
        for _ in range(min(PER_CERTIFICATE, n - tried)):
            kind = KINDS[turn % len(KINDS)]  # in turn, so that none is rare
            turn += 1
            bad = forge(rng, x.certificate, kind)
            if bad is None:
                continue
            tried += 1
            accepted = not check_certificate(x.tables, bad)
            lie = accepted and not x.harmless(bad)
            for row in (kinds[kind], sources[x.source]):
                row.n += 1
                row.refused += not accepted
                row.harmless += accepted and not lie
                row.lies += lie
            if lie:
                kinds[kind].failures.append(json.dumps({"schedule": x.schedule.to_json(), "certificate": bad.to_json()}))
    return list(kinds.values()), list(sources.values())


# ---- transplants
def longer_launch(rng: Rng, s: Json) -> None:
    """More steps than the certificate was made for."""
    s["steps"] = s.get("steps", 1) + rng.choice((1, 2, 3))


def wider_variable(rng: Rng, s: Json) -> None:
    """Launch variables may have more values."""
    for v in s.get("variables", {}).values():
        v["max"] += rng.choice((1, 2))


def ring_without_mod(rng: Rng, s: Json) -> None:
    """Ranges that moved stand still, or come round earlier."""
    for t in s["tasks"]:
        for a in (*t["reads"], *t["writes"]):
            for r in (a["rows"], a["cols"]):
                if isinstance(r, dict) and isinstance(r["start"], dict) and rng.random() < 0.7:
                    r["start"] |= rng.choice(({"stride": 0}, {"mod": 1}, {"mod": 2}))


TRANSPLANT_OPERATORS: Mapping[str, Operator] = {
    **OPERATORS,
    **{f.__name__: f for f in (longer_launch, wider_variable, ring_without_mod)},
}


def _moved(rng: Rng, name: str) -> Iterator[tuple[str, Schedule, Certificate]]:
    """(what was done, a mutant, the certificate of the schedule it comes from with the mutant's hash)."""
    source = rng.choice(list(SOURCES))
    s = SOURCES[source](rng)
    c = validate(Schedule.from_json(s)).certificate
    if c is None:
        return
    TRANSPLANT_OPERATORS[name](rng, s)
    mutant = Schedule.from_json(s)
    yield f"{source}, {name}", mutant, dataclasses.replace(c, table_hash=table_hash(pack(mutant)))


def transplants(n: int, seed: int = 0) -> list[Row]:
    """n transplants onto mutants of every class, labelled by the oracle."""
    rng = random.Random(f"{seed}/transplants")
    rows = {name: Row(name) for name in TRANSPLANT_OPERATORS}
    tried, turn = 0, 0
    while tried < n:
        name = list(rows)[turn % len(rows)]
        turn += 1
        for what, mutant, c in _moved(rng, name):
            tables = pack(mutant)
            label = oracle.label(mutant, tables)
            if label.undecided is not None:
                continue
            tried += 1
            row, unsafe = rows[name], bool(label.rules & PROVED)
            accepted = not check_certificate(tables, c)
            row.n += 1
            row.unsafe += unsafe
            row.refused += not accepted
            row.harmless += accepted and not unsafe
            row.lies += accepted and unsafe
            if accepted and unsafe:
                row.failures.append(json.dumps({"what": what, "schedule": mutant.to_json(), "certificate": c.to_json()}))
    return list(rows.values())


# ---- the result
def total(rows: Iterable[Row]) -> Row:
    return tally.total(rows, Row("total"))


def table(title: str, rows: Iterable[Row], *, unsafe: bool = False) -> str:
    """One line a kind, and the total."""
    rows = list(rows)
    columns = ("n", *(("unsafe",) if unsafe else ()), "refused", "harmless", "lies")
    return tally.counted(title, columns, [*rows, total(rows)], 26, 10)


def main(argv: list[str] | None = None) -> int:
    """0: every forgery is refused or harmless; 1: some are not; they are in the file."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.forgeries", description=__doc__)
    p.add_argument("--corruptions", type=int, default=CORRUPTIONS)
    p.add_argument("--transplants", type=int, default=TRANSPLANTS)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="the tables as JSON; the text goes beside it as .txt")
    a = p.parse_args(argv)
    start = time.monotonic()
    kinds, sources = corruptions(a.corruptions, a.seed)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    moved = transplants(a.transplants, a.seed)
    text = "\n\n".join(
        (
            table("corrupted field", kinds),
            table("certificate of", sources),
            table("transplanted onto", moved, unsafe=True),
        )
    )
    print(text)
    if a.out is not None:
        record = {
            "seed": a.seed, "seconds": round(time.monotonic() - start), "corruptions": [asdict(r) for r in kinds],
            "sources": [asdict(r) for r in sources], "transplants": [asdict(r) for r in moved],
        }  # fmt: skip
        tally.save(a.out, record, text + "\n")
    return 1 if total(kinds).lies or total(moved).lies else 0


if __name__ == "__main__":
    raise SystemExit(main())
