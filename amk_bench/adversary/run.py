"""Run the attack suite: generate, label by the oracle, judge by the validator, count per class.

``python -m amk_bench.adversary.run --n 7160`` prints the table; ``--full --out FILE`` is resumable: FILE holds one JSON line per
finished batch, and a second run with the same seed and size goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from amk_bench.adversary.extremes import extreme_numbers
from amk_bench.adversary.generators import dag, loop, placed, random_net
from amk_bench.adversary.mutations import OPERATORS, mutant
from amk_bench.adversary.net import Generator, Json
from amk_bench.adversary.real import lowered
from amk_bench.adversary.regressions import REGRESSIONS
from amk_bench.adversary.scenarios import SCENARIOS
from amk_bench.adversary.tally import Tally, aligned, total
from amk_core.schedule import oracle
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import pack
from amk_core.schedule.validate import validate

DEFAULT_N = 7_160  # as many as the predecessor's suite
FULL_N = 200_000
BATCH = 100  # schedules of one class in one unit of work
MAY_BE_UNDECIDED = ("slow_drift",)  # clocks may be clipped where a net drifts


def _placed(rng: random.Random) -> Json:
    return placed(rng, rng.choice((1, 1, 2, 3)))


CLASSES: Mapping[str, Generator] = {
    "random_net": random_net, "random_dag": dag, "placed": _placed, "loop": loop, "real_lowering": lowered,
    **{name: mutant(op) for name, op in OPERATORS.items()},
    **SCENARIOS,
    "extreme_numbers": extreme_numbers,
}  # fmt: skip
REGRESSION_CLASS = "named_regressions"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a validator says: ``undecided`` is True when it refuses only because it cannot decide."""

    accepted: bool
    undecided: bool
    rules: frozenset[str]


Judge = Callable[[Schedule], Judgement]


def validator(schedule: Schedule) -> Judgement:
    """The validator under attack."""
    v = validate(schedule, witness=False, certificate=False)
    return Judgement(v.accepted, v.undecided, v.rules)


@dataclass(slots=True)
class Row(Tally):
    """Counts of one class.  ``undecided`` counts the validator's, ``too_large`` the oracle's."""

    n: int = 0
    deadlock: int = 0
    race: int = 0
    wrong_data: int = 0
    other: int = 0
    false_accepts: int = 0
    false_rejects: int = 0
    undecided: int = 0
    too_large: int = 0
    failures: list[str] = field(default_factory=list)  # "class/seed/index: ...", what reproduces it

    @property
    def unsafe(self) -> int:
        return self.deadlock + self.race + self.wrong_data + self.other

    def count(self, where: str, label: oracle.Label, said: Judgement) -> None:
        self.n += 1
        column = {oracle.DEADLOCK: "deadlock", oracle.RACE: "race", oracle.WRONG_DATA: "wrong_data", oracle.OTHER: "other"}
        if label.kind:
            setattr(self, column[label.kind], getattr(self, column[label.kind]) + 1)
        if label.unsafe and said.accepted:
            self.false_accepts += 1
            self.failures.append(f"{where}: accepted, the oracle says {', '.join(sorted(label.rules))} ({'; '.join(label.notes)})")
        elif label.safe and not said.accepted:
            if said.undecided:
                self.undecided += 1
            else:
                self.false_rejects += 1
                self.failures.append(f"{where}: rejected for {', '.join(sorted(said.rules))}, the oracle says it is safe")
        elif label.undecided is not None and not label.unsafe:
            self.too_large += 1


def schedule_json(name: str, seed: int, index: int) -> Json:
    """The schedule of a class, seed and index: what a failure line names."""
    if name == REGRESSION_CLASS:
        return REGRESSIONS[index].build()
    return CLASSES[name](random.Random(f"{seed}/{name}/{index}"))


def run_batch(name: str, seed: int, first: int, last: int, judge: Judge = validator) -> Row:
    """Judge the schedules first <= index < last of a class."""
    row = Row(name)
    for index in range(first, last):
        s = Schedule.from_json(schedule_json(name, seed, index))
        label = oracle.label(s, pack(s))
        if name == REGRESSION_CLASS:
            known = REGRESSIONS[index]
            if label.safe != (known.rule is None) or (known.rule is not None and known.rule not in label.rules):
                raise AssertionError(f"{known.name}: the oracle says {sorted(label.rules)}, by hand it is {known.rule or 'safe'}")
        row.count(f"{name}/{seed}/{index}", label, judge(s))
    return row


def plan(n: int) -> list[tuple[str, int]]:
    """How many schedules of each class: every regression once, the rest evenly; the sum is n."""
    rest = n - len(REGRESSIONS)
    if rest < len(CLASSES):
        raise ValueError(f"n is {n}, required is at least {len(REGRESSIONS) + len(CLASSES)}: one schedule of every class")
    each, more = divmod(rest, len(CLASSES))
    return [(name, each + (i < more)) for i, name in enumerate(CLASSES)] + [(REGRESSION_CLASS, len(REGRESSIONS))]


def _batches(n: int) -> Iterator[tuple[str, int, int]]:
    for name, count in plan(n):
        for first in range(0, count, BATCH):
            yield name, first, min(count, first + BATCH)


def _work(item: tuple[str, int, int, int]) -> Row:
    name, seed, first, last = item
    return run_batch(name, seed, first, last)


@cache
def fingerprint() -> str:
    """Of the code that a result depends on: an old result file is not continued with other code."""
    package = Path(oracle.__file__).resolve().parent
    files = [*package.glob("*.py"), *Path(__file__).resolve().parent.glob("*.py"), *package.parent.glob("_native*.so")]
    digest = hashlib.sha256()
    for f in sorted(files):
        digest.update(f.name.encode() + f.read_bytes())
    return digest.hexdigest()[:16]


def _finished(path: Path | None, seed: int, n: int) -> dict[tuple[str, int, int], Row]:
    done: dict[tuple[str, int, int], Row] = {}
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            try:
                d = json.loads(line)
            except ValueError:
                continue  # the line that an interrupted run did not finish
            if (d["seed"], d["of"], d["code"]) == (seed, n, fingerprint()):
                done[(d["row"]["name"], d["first"], d["last"])] = Row(**d["row"])
    return done


def run(
    n: int | str = DEFAULT_N,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    *,
    out: Path | None = None,
    processes: int = 1,
    judge: Judge | None = None,
) -> list[Row]:
    """The table of a run, one row per class in the order of CLASSES.

    Args:
        n: schedules in all, or "full".
        progress: called with a short text after every batch.
        out: resumable result file (JSONL).
        processes: worker processes; a ``judge`` of one's own needs 1.
    """
    total = FULL_N if n == "full" else int(n)
    rows = {name: Row(name) for name, _ in plan(total)}
    done = _finished(out, seed, total)
    todo = [b for b in _batches(total) if b not in done]
    for row in done.values():
        rows[row.name].add(row)
    seen, start = sum(r.n for r in rows.values()), time.monotonic()

    def results() -> Iterable[tuple[tuple[str, int, int], Row]]:
        items = [(name, seed, first, last) for name, first, last in todo]
        if processes > 1 and judge is None:
            with ProcessPoolExecutor(processes) as pool:
                yield from zip(todo, pool.map(_work, items), strict=True)
        else:
            for batch in todo:
                yield batch, run_batch(batch[0], seed, batch[1], batch[2], judge or validator)

    for (name, first, last), row in results():
        rows[name].add(row)
        seen += row.n
        if out is not None:
            record = {
                "seed": seed,
                "of": total,
                "code": fingerprint(),
                "first": first,
                "last": last,
                "row": {f.name: getattr(row, f.name) for f in fields(row)},
            }
            with out.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if progress is not None:
            progress(f"{seen} of {total} schedules, {time.monotonic() - start:.0f} s")
    return list(rows.values())


def totals(rows: Iterable[Row]) -> Row:
    return total(rows, Row("total"))


def table(rows: Iterable[Row]) -> str:
    """The result as text, one line per class and a total."""
    rows = list(rows)
    head = ("class", "n", "unsafe", "deadlock", "race", "wrong data flow", "other", "false accepts", "false rejects", "undecided")
    lines: list[tuple[str, ...]] = [head]
    for r in [*rows, totals(rows)]:
        cells = (
            r.n,
            r.unsafe,
            r.deadlock,
            r.race,
            r.wrong_data,
            r.other,
            r.false_accepts,
            r.false_rejects,
            r.undecided + r.too_large,
        )
        lines.append((r.name, *map(str, cells)))
    return aligned(lines)


def main(argv: list[str] | None = None) -> int:
    """0: no false accept and no false reject; 1: some; the failures are printed."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.run", description=__doc__)
    p.add_argument("--n", type=int, default=DEFAULT_N)
    p.add_argument("--full", action="store_true", help=f"{FULL_N} schedules")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="resumable result file (JSONL)")
    p.add_argument("--processes", type=int, default=1)
    p.add_argument("--show", metavar="CLASS/SEED/INDEX", help="print one schedule as JSON and its label, and stop")
    a: Any = p.parse_args(argv)
    if a.show:
        name, seed, index = a.show.split("/")
        s = schedule_json(name, int(seed), int(index))
        print(json.dumps(s))
        print(oracle.label(Schedule.from_json(s)), file=sys.stderr)
        return 0
    rows = run(
        "full" if a.full else a.n,
        a.seed,
        lambda text: print("\r" + text, end="", file=sys.stderr),
        out=a.out,
        processes=a.processes,
    )
    print(file=sys.stderr)
    print(table(rows))
    failures = [f for r in rows for f in r.failures]
    if failures:
        print("\n".join(["", *failures[:50]]))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
