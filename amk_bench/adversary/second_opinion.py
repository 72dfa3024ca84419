"""The validator beside Z3: schedules of every attack class, compared on LIVE, on RACE and on the witnesses.

``python -m amk_bench.adversary.second_opinion --each 100 --out FILE`` prints the table per class and writes it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from amk_bench.adversary.net import Json
from amk_bench.adversary.run import CLASSES
from amk_bench.adversary.tally import Tally, counted, save, total
from amk_bench.adversary.z3_opinion import Execution, Opinion, TooLarge, opinion
from amk_core.schedule import Schedule, validate
from amk_core.schedule.validate import Finding, Verdict

EACH = 100  # schedules of a class in a full run
SEED = 7  # not the attack suite's: other schedules


@dataclass(slots=True)
class Row(Tally):
    """Counts of one class.

    ``not_compared``: REF or COUNT is broken, so the validator says nothing of LIVE and RACE.  ``race``: without a deadlock.
    ``too_large``: not written out for Z3.  ``gave_up``: Z3 or the validator did not decide.  ``witnesses``: runs printed by the
    validator that Z3 was asked to confirm.
    """

    n: int = 0
    not_compared: int = 0
    compared: int = 0
    deadlock: int = 0
    race: int = 0
    neither: int = 0
    witnesses: int = 0
    too_large: int = 0
    gave_up: int = 0
    disagreements: int = 0
    failures: list[str] = field(default_factory=list)


def draw(name: str, seed: int, index: int) -> Json:
    """The schedule of a class, seed and index: the attack suite's generators."""
    return CLASSES[name](random.Random(f"{seed}/{name}/{index}"))


def compare(schedule: Json, verdict: Verdict, row: Row, where: str) -> None:
    """Count one schedule."""
    row.n += 1
    if verdict.rules & {"REF", "COUNT"}:
        row.not_compared += 1
        return
    try:
        z = opinion(schedule)
    except TooLarge:
        row.too_large += 1
        return
    if z.deadlock is None or z.race is None or any(f.undecided and f.rule in ("LIVE", "RACE") for f in verdict.findings):
        row.gave_up += 1
        return
    row.compared += 1
    row.deadlock += z.deadlock
    row.race += z.race and not z.deadlock
    row.neither += not (z.race or z.deadlock)
    if wrong := _differences(schedule, verdict, z):
        row.disagreements += 1
        row.failures.append(f"{where}: {'; '.join(wrong)}")
    for f in verdict.findings:
        confirmed = _confirmed(schedule, f, z)
        if confirmed is None:
            continue
        row.witnesses += 1
        if not confirmed:
            row.disagreements += 1
            row.failures.append(f"{where}: Z3 finds no such execution: {f.message}")


def _differences(schedule: Json, verdict: Verdict, z: Opinion) -> list[str]:
    out = []
    if z.deadlock != ("LIVE" in verdict.rules):
        out.append(f"Z3 says {'a' if z.deadlock else 'no'} deadlock, the validator {sorted(verdict.rules)}")
    # Behind a deadlock the validator judges what one step reaches, tags counted; Z3's races do not wait for tags.
    tags = any(b.get("tagged", False) for b in schedule["buffers"])
    if z.race != ("RACE" in verdict.rules) and not (z.deadlock and tags):
        out.append(f"Z3 says {f'a race of {z.pair}' if z.race else 'no race'}, the validator {sorted(verdict.rules)}")
    return out


def _confirmed(schedule: Json, f: Finding, z: Opinion) -> bool | None:
    """Whether Z3 finds the run of a finding's witness; None where there is none to ask for, or Z3 gives up."""
    if f.witness is None:
        return None
    if f.rule == "RACE":
        steps = max(z.steps, 1 + max(step for step, _ in f.witness["both_enabled"]))
        return Execution(schedule, steps).confirms(f.witness["completed"], f.witness["both_enabled"])
    if f.rule == "LIVE":
        return Execution(schedule, 1).stuck_at((q, position) for q, position, *_ in f.witness["blocked"])
    return None


def run(
    each: int = EACH,
    seed: int = SEED,
    progress: Callable[[Row], None] | None = None,
    validator: Callable[[Schedule], Verdict] = validate,
) -> list[Row]:
    """``each`` schedules of every class, in the order of CLASSES."""
    rows = []
    for name in CLASSES:
        row = Row(name)
        for k in range(each):
            s = draw(name, seed, k)
            compare(s, validator(Schedule.from_json(s)), row, f"{name}/{seed}/{k}")
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


def totals(rows: Iterable[Row]) -> Row:
    return total(rows, Row("total"))


def table(rows: Iterable[Row]) -> str:
    """One line a class, and the total."""
    rows = list(rows)
    return counted("class", [f.name for f in fields(Row)][1:-1], [*rows, totals(rows)], 31, 15)


def main(argv: list[str] | None = None) -> int:
    """0: no disagreement; 1: some; they are printed."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.second_opinion", description=__doc__)
    p.add_argument("--each", type=int, default=EACH, help="schedules of every class")
    p.add_argument("--seed", type=int, default=SEED)
    p.add_argument("--out", type=Path, help="the table as JSON; the text goes beside it as .txt")
    a = p.parse_args(argv)
    start = time.monotonic()
    rows = run(a.each, a.seed, lambda r: print(f"{r.name}: {r.compared} compared", file=sys.stderr, flush=True))
    every = totals(rows)
    text = f"{table(rows)}\n"
    print(text, end="")
    print("\n".join(every.failures[:20]))
    if a.out is not None:
        import z3

        record = {
            "each": a.each, "seed": a.seed, "z3": z3.get_version_string(), "seconds": round(time.monotonic() - start),
            "rows": [asdict(r) for r in rows],
        }  # fmt: skip
        save(a.out, record, text)
    return 1 if every.disagreements else 0


if __name__ == "__main__":
    raise SystemExit(main())
