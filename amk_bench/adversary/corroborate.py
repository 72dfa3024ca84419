"""Dynamic corroboration: the attack suite on real threads, under ThreadSanitizer, against the validator's verdicts.

An accepted schedule must be silent in every run and find the values of the serial run.  A rejected one should show what it was
rejected for: a race is reported, a deadlock hangs, wrong data flow is a wrong value.  Whether it does in a given run is chance,
except where the run is *steered*: the queues are led to the state that the finding's witness names, and there the two tasks start
together.

``python -m amk_bench.adversary.corroborate --full --out FILE`` writes the rates per class.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amk_bench.adversary import run as attack
from amk_bench.adversary import tally, threads
from amk_bench.adversary.threads import DONE, HUNG, NEWER_TAG, Case, Steer
from amk_core.schedule.ir import MAYBE, WRITE, Schedule
from amk_core.schedule.validate import Verdict, validate
from amk_core.schedule.walk import Walk

DEFAULT_N, FULL_N = 400, 6_000
RUNS = 4  # of each launch of a schedule
LAUNCHES = 2  # values of the launch variables, of `maybe` accesses and of the stop: tried at random
STEERED = 3  # at least, of a witness; every value of the launch variables where there are no more than MAX_ASSIGNMENTS
MAX_ASSIGNMENTS = 36
BATCH = 200  # schedules of one process
UNSEEABLE = frozenset({"REF", "COUNT"})  # such a schedule means nothing, so nothing can run it
NOT_ON_A_HOST = frozenset({"FIT", "PROXY"})  # rules about a card


@dataclass(slots=True)
class Row(tally.Tally):
    """Counts of one class, or of the schedules rejected for one rule.

    A schedule counts once: as ``race`` where any run of it was reported by ThreadSanitizer, else as ``hung`` where any run of it
    could not go on, else as ``wrong`` where any read or final value was wrong, else as ``quiet``.
    """

    n: int = 0
    accepted: int = 0
    silent: int = 0  # accepted ones without a report, a hang or a wrong value
    not_run: int = 0  # rejected ones that mean nothing, or break rules about cards only
    race: int = 0
    hung: int = 0
    wrong: int = 0
    quiet: int = 0
    runs: int = 0
    rejected_runs: int = 0
    bad_runs: int = 0  # runs of rejected schedules that showed anything
    witnesses: int = 0
    confirmed: int = 0  # witnesses that showed the race, or the newer tag, when they were followed
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Subject:
    """A schedule under test and all the launches of it."""

    where: str
    s: Schedule
    verdict: Verdict
    cases: list[Case] = field(default_factory=list)
    steered: list[Case] = field(default_factory=list)

    @property
    def runs_at_all(self) -> bool:
        return self.verdict.accepted or not (
            self.verdict.rules & UNSEEABLE or self.verdict.rules <= NOT_ON_A_HOST or self.verdict.undecided
        )


def _values(s: Schedule, rng: random.Random, launch: int) -> list[int]:
    """Launch variables: all least, all greatest, then at random."""
    out = []
    for v in s.variables:
        for _ in range(v.count):
            out.append((v.min, v.max, rng.randint(v.min, v.max))[min(launch, 2)])
    return out


def _assignments(s: Schedule, rng: random.Random) -> list[list[int]]:
    """Every value of the launch variables, or some where there are many: a witness does not say for which ones it holds."""
    ranges = [range(v.min, v.max + 1) for v in s.variables for _ in range(v.count)]
    if math.prod(map(len, ranges)) <= MAX_ASSIGNMENTS:
        every = [list(values) for values in itertools.product(*ranges)]
        return every * -(-STEERED // len(every))
    return [_values(s, rng, launch) for launch in range(STEERED)]


def _witness(s: Schedule, verdict: Verdict) -> Steer | None:
    """The state that the first witness of a race, or of a tag that is overtaken, leads to."""
    place = {t: q for q in range(s.n_queues) for t in s.queue(q)}
    c = s.columns

    def reads_tag(task: int) -> bool:
        return any(
            s.buffers[int(c.acc_buffer[x])].tagged and not c.acc_flags[x] & (WRITE | MAYBE)
            for x in range(int(c.acc_off[task]), int(c.acc_off[task + 1]))
        )

    for f in verdict.findings:
        if f.rule == "RACE" and f.witness is not None and "both_enabled" in f.witness:
            a, b = (t for _, t in f.witness["both_enabled"])
            return Steer(f.witness["completed"], (place[a], place[b]))
        if f.rule == "TAG" and len(f.tasks) == len(f.steps) == 2 and reads_tag(f.tasks[0]) != reads_tag(f.tasks[1]):
            two = list(zip(f.steps, f.tasks, strict=True))
            reader, writer = two if reads_tag(f.tasks[0]) else reversed(two)
            walk = Walk(s)
            limits = [len(ids) * s.steps for ids in walk.queues]
            for instance in two:
                limits[place[instance[1]]] = walk.index(instance)
            walk.run(limits)
            # rule TAG asks for counters; where tags keep the writer from coming that far, there is nothing to see
            here = all(walk.done[place[t]] == walk.index((i, t)) for i, t in two)
            if here and all(walk.missing(place[t]) is None for _, t in two):
                return Steer(walk.done, (place[reader[1]], place[writer[1]]), together=False)
    return None


def _subject(name: str, seed: int, index: int) -> _Subject:
    rng = random.Random(f"{seed}/{name}/{index}/threads")
    s = Schedule.from_json(attack.schedule_json(name, seed, index))
    out = _Subject(f"{name}/{seed}/{index}", s, validate(s, certificate=False))
    if not out.runs_at_all:
        return out
    for launch in range(LAUNCHES):
        values = _values(s, rng, rng.choice((launch, 2)))
        stop_after = rng.randrange(-launch, s.steps - 1) if s.stop is not None and s.steps > 1 else -1
        out.cases.append(Case(s, values, rng, always=launch == 0, stop_after=stop_after))
    steer = _witness(s, out.verdict)
    if steer is not None:
        out.steered = [Case(s, values, rng, always=True, steer=steer) for values in _assignments(s, rng)]
    return out


def run_batch(driver: Path, items: Sequence[tuple[str, int, int]], runs: int = RUNS) -> list[tuple[Row, frozenset[str]]]:
    """A row of one schedule each, with the rules that it was rejected for; items are (class, seed, index)."""
    subjects = [_subject(*item) for item in items]
    cases = [c for x in subjects for c in (*x.cases, *x.steered)]
    seen: dict[int, list[threads.Observation]] = {}
    for o in threads.run(driver, cases, runs, items[0][1] if items else 0):
        seen.setdefault(o.case, []).append(o)
    return [(_row(x, seen), x.verdict.rules) for x in subjects]


def _row(x: _Subject, seen: dict[int, list[threads.Observation]]) -> Row:
    row = Row(x.where.split("/")[0], n=1, accepted=int(x.verdict.accepted))
    if not x.runs_at_all:
        row.not_run = 1
        return row
    reports = hung = ended = 0
    wrong: list[str] = []
    for case in x.cases:
        expected = case.serial()
        for o in seen[case.id]:
            row.runs += 1
            said = threads.judge(case, o, expected)
            if o.status == NEWER_TAG:
                said.append("a tagged read met a newer tag")
            reports += o.reports > 0
            hung += o.status == HUNG
            ended += o.status == DONE
            wrong += said
            row.rejected_runs += not x.verdict.accepted
            row.bad_runs += not x.verdict.accepted and bool(o.reports or o.status or said)
    if x.steered:
        row.witnesses = 1
        shown = [o for case in x.steered for o in seen[case.id] if o.reports or o.status == NEWER_TAG]
        row.confirmed = int(bool(shown))
        if not shown:
            row.failures.append(f"{x.where}: its witness was followed, and nothing was seen")
    if x.verdict.accepted:
        row.silent = int(not (reports or hung or wrong))
        if not row.silent:
            what = f"{reports} runs reported, {hung} hung, {len(wrong)} wrong values ({wrong[0] if wrong else 'none'})"
            row.failures.append(f"{x.where}: accepted, but {what}")
    elif reports:
        row.race = 1
    elif hung:
        row.hung = 1
    elif wrong:
        row.wrong = 1
    else:
        row.quiet = 1
    if "LIVE" in x.verdict.rules and ended:
        row.failures.append(f"{x.where}: a deadlock that {ended} of {row.runs} runs escaped")
    return row


def leading(rules: frozenset[str]) -> str:
    """The rule that a rejected schedule is listed under: what a run would show first."""
    order = ("REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "PROXY", "FIT")
    return next((r for r in order if r in rules), "accepted")


def items(n: int, seed: int) -> list[tuple[str, int, int]]:
    """What a run of n schedules looks at: every regression, and the classes evenly."""
    return [(name, seed, index) for name, count in attack.plan(n) for index in range(count)]


def corroborate(
    n: int, seed: int = 0, *, runs: int = RUNS, processes: int = 1, driver: Path | None = None
) -> tuple[list[Row], list[Row]]:
    """The rates per class and per leading rule.

    Raises:
        amk_bench.adversary.threads.NoThreadSanitizer: this machine cannot build the driver.
    """
    with tempfile.TemporaryDirectory() as folder:
        driver = driver or threads.build(Path(folder))
        todo = items(n, seed)
        batches = [todo[k : k + BATCH] for k in range(0, len(todo), BATCH)]
        classes: dict[str, Row] = {}
        rules: dict[str, Row] = {}
        with ProcessPoolExecutor(processes) as pool:
            for results in pool.map(run_batch, [driver] * len(batches), batches, [runs] * len(batches)):
                for row, why in results:
                    classes.setdefault(row.name, Row(row.name)).add(row)
                    rules.setdefault(leading(why), Row(leading(why))).add(row)
    return list(classes.values()), sorted(rules.values(), key=lambda r: r.name)


COLUMNS = ("n", "accepted", "silent", "not_run", "race", "hung", "wrong", "quiet", "runs", "witnesses", "confirmed")


def total(rows: Iterable[Row]) -> Row:
    return tally.total(rows, Row("total"))


def table(rows: Iterable[Row]) -> str:
    """One line a row, and the total."""
    rows = list(rows)
    lines = [("", *(c.replace("_", " ") for c in COLUMNS), "runs that show it")]
    for r in [*rows, total(rows)]:
        rate = f"{r.bad_runs / r.rejected_runs:.1%}" if r.rejected_runs else ""
        lines.append((r.name, *(str(getattr(r, c)) for c in COLUMNS), rate))
    return tally.aligned(lines)


def main(argv: list[str] | None = None) -> int:
    """0: every accepted schedule was silent; 1: the failures are printed."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.corroborate", description=__doc__)
    p.add_argument("--n", type=int, default=DEFAULT_N)
    p.add_argument("--full", action="store_true", help=f"{FULL_N} schedules")
    p.add_argument("--runs", type=int, default=RUNS)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--processes", type=int, default=min(2, len(os.sched_getaffinity(0))))
    p.add_argument("--out", type=Path, help="result file (JSON)")
    a: Any = p.parse_args(argv)
    start = time.monotonic()
    n = FULL_N if a.full else a.n
    classes, rules = corroborate(n, a.seed, runs=a.runs, processes=a.processes)
    print(table(classes), table(rules), sep="\n\n")
    failures = [f for r in classes for f in r.failures]
    if failures:
        print("\n".join(["", *failures[:50]]))
    if a.out is not None:
        result = {
            "schedules": n, "seed": a.seed, "launches": LAUNCHES, "runs_of_a_launch": a.runs,
            "seconds": round(time.monotonic() - start), "total": asdict(total(classes)),
            "classes": [asdict(r) for r in classes], "rules": [asdict(r) for r in rules],
        }  # fmt: skip
        tally.save(a.out, result)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
