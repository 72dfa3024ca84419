"""Mutants of the Python reference validator, against the oracle and the native validator on schedules of every attack class.

A mutant is killed by a verdict that the oracle or the native validator does not share, by an exception, or by a time-out.  What
survives is either argued to change nothing, in ``reports/data/mutation/equivalent.json``, or fails the run.
"""

from __future__ import annotations

import ast
import hashlib
import signal
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk_bench.adversary import run as attack
from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.adversary.regressions import REGRESSIONS
from amk_bench.mutation import aimed_rules, python
from amk_bench.mutation.edges import edges
from amk_core.schedule import oracle, reference, validate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import unpack

SEED = 77
MAX_COST_S = {"opaque": 0.015, "real": 0.06}  # processor time of the reference on a schedule of the corpus
TIMEOUT_S = 3.0  # processor time of one verdict of a mutant
REAL_CLASSES = (
    "ordered_clobber_by_alias", "duplicated_accumulate", "real_alias", "uncovered_output", "uncovered_read", "drop_wait",
    "real_lowering",
)  # fmt: skip
REAL_PER_CLASS, REAL_INSTANCES = 60, 24  # schedules of real operations that are looked at, and how large they may be


def comparable(rules: frozenset[str]) -> frozenset[str]:
    """What two validators must agree on: bytes that are raced for have no certain writer, tags that are broken no certain value,
    and behind a deadlock only the prefix counts, which depends on the number of steps that are written out."""
    if "LIVE" in rules:
        return rules & {"LIVE", "RO", "FIT"}
    if "RACE" in rules:
        rules -= {"COVER", "FLOW"}
    return rules - {"COVER"} if "TAG" in rules else rules


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule and what is known of it: ``rules`` as the native validator says, None where it could not decide.

    ``whole``: the reference as written says every rule that the native validator (or the oracle) says and no other, so that all of
    them count, not only those that two validators must agree on.  ``refused``: it is too large for the reference.
    """

    where: str
    s: Schedule
    safe: bool
    rules: frozenset[str] | None
    whole: bool = False
    refused: bool = False


def known(where: str, s: Schedule) -> Known | None:
    """What is known of a schedule; None where the oracle cannot decide."""
    label = oracle.label(s)
    try:
        mine = reference.validate(s)
    except reference.TooLarge:
        return Known(where, s, label.safe, None, refused=True)
    if label.undecided is not None:
        return None
    native = validate(s, witness=False, certificate=False)
    if mine.rules == label.rules or (not native.undecided and mine.rules == native.rules):
        return Known(where, s, label.safe, mine.rules, whole=True)
    return Known(where, s, label.safe, None if native.undecided else comparable(native.rules))


def limits() -> list[tuple[str, Schedule]]:
    """As large as the reference takes, and one more; waits on steps that the format cannot name."""
    out: list[tuple[str, Schedule]] = []
    most, values = reference.MAX_INSTANCES, reference.MAX_VALUES
    for steps, tasks, amount in ((1, most, 1), (1, most + 1, 1), (2, most // 2, 1), (2, most // 2 + 1, 1), (1, most + 1, 0)):
        n = Net(1, steps)
        c = n.counter()
        for _ in range(tasks):
            n.task(0, signals=[(c, amount)])
        out.append((f"{tasks} tasks, {steps} steps", Schedule.from_json(n.json())))
    for bounds in (((1, values),), ((1, values + 1),), ((0, 31), (1, values // 32)), ((0, 31), (1, values // 32 + 1))):
        n = Net(1)
        x = n.buffer(2 * values, dtype="u8", lifetime="persistent", filled=True)
        n.extra["variables"] = {f"v{k}": {"count": 1, "min": lo, "max": hi} for k, (lo, hi) in enumerate(bounds)}
        n.task(0, [access(x, affine(base="v0", length={"base": f"v{len(bounds) - 1}"}))])
        out.append((f"values {bounds}", Schedule.from_json(n.json())))
    for e in (-2, 1):
        n = Net(1)
        c = n.counter()
        n.task(0, signals=[(c, 1)])
        n.task(0, waits=[(c, 1)])
        s = Schedule.from_json(n.json())
        s.columns.wait_e[0] = e
        out.append((f"e {e}", s))
    return out


def structures() -> list[tuple[str, Schedule]]:
    """Pools with a part for each cluster: where buffers may lie in them, what of them fits into a target; quantised weights."""
    out = [(f"clusters/{k}", unpack(case.tables)) for k, case in enumerate(aimed_rules.clusters())]
    for queues, cluster, size, own in (
        (2, 2, 8, 0), (2, 2, 9, 0), (2, 1, 16, 0), (2, 1, 18, 0), (2, 2, 4, 4), (2, 2, 4, 5), (1, 16, 8, 0), (1, 17, 8, 0)
    ):  # fmt: skip
        n = Net(queues)
        n.pools.append({"id": "near", "bytes": size, "per_queue": False, "cluster": cluster})
        n.pool("own", own, per_queue=True)
        n.task(0)
        n.extra["target"] = {"sms": 2, "smem_bytes": 8, "arch": "sm_90"}
        out.append((f"fits/{queues}/{cluster}/{size}/{own}", Schedule.from_json(n.json())))
    for cols in (256, 128):  # all of a row, or half of it
        n = Net(1)
        x = n.buffer(256, kind="weight", dtype="u8", lifetime="persistent", filled=True)
        n.buffers[x]["dtype"] = "int8"
        n.task(0, [access(x, (0, cols))])
        out.append((f"quantised/{cols}", Schedule.from_json(n.json())))
    return out


def corpus(per_class: int, seed: int = SEED) -> list[Known]:
    """Every edge, every regression, what no attack class has, and so many schedules of every attack class, cheap ones first.

    Schedules of real operations are dear: one small one of each class in REAL_CLASSES and each set of rules is taken.
    """
    sources: list[tuple[str, Json]] = [(r.name, r.build()) for r in REGRESSIONS]
    sources += [
        (f"{name}/{seed}/{index}", attack.schedule_json(name, seed, index)) for index in range(per_class) for name in attack.CLASSES
    ]
    found = [(MAX_COST_S["real"], k) for where, s in (*limits(), *structures()) if (k := known(where, s)) is not None]

    def take(where: str, s: Schedule, kind: str) -> bool:
        k = known(where, s)
        start = time.process_time()
        if k is not None and not k.refused:
            reference.validate(s)
        cost = time.process_time() - start
        if k is None or cost >= MAX_COST_S[kind]:
            return False
        found.append((cost, k))
        return True

    for where, data in edges():
        take(where, Schedule.from_json(data), "real")
    for where, data in sources:
        s = Schedule.from_json(data)
        if not (s.columns.task_op != 0).any():
            take(where, s, "opaque")
    taken: set[tuple[str, frozenset[str]]] = set()
    for name in REAL_CLASSES:
        for index in range(REAL_PER_CLASS):
            s = Schedule.from_json(attack.schedule_json(name, seed, index))
            if (s.columns.task_op != 0).any() and s.n_tasks * s.steps <= REAL_INSTANCES:
                key = (name, validate(s, witness=False, certificate=False).rules)
                if key not in taken and not key[1] & {"REF", "COUNT"} and take(f"{name}/{seed}/{index}", s, "real"):
                    taken.add(key)
    return [k for _, k in sorted(found, key=lambda x: x[0])]


def disagrees(module: Any, k: Known) -> bool:
    """Whether a (mutated) reference says something else than what is known, raises, or hangs."""
    signal.setitimer(signal.ITIMER_VIRTUAL, TIMEOUT_S)
    try:
        said = module.validate(k.s)
        rules = said.rules if k.whole else comparable(said.rules)
        return k.refused or said.accepted != k.safe or (k.rules is not None and rules != k.rules)
    except Exception as e:
        return not k.refused or type(e).__name__ != reference.TooLarge.__name__  # a mutant has a class of its own
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@dataclass(frozen=True, slots=True)
class Result:
    """``survivors``: keys of the mutants that nothing noticed."""

    mutants: int
    survivors: tuple[str, ...]
    schedules: int
    seconds: float


def _killed(log: Path | None, source: str) -> set[str]:
    """Mutants of this source that an earlier run has killed; begins the log anew when it is of another source."""
    if log is None:
        return set()
    digest = hashlib.sha256(source.encode()).hexdigest()
    if not log.exists() or log.read_text().partition("\n")[0] != digest:
        log.write_text(digest + "\n")
    return set(log.read_text().splitlines()[1:])


def run(
    known_ones: Sequence[Known], module: types.ModuleType = reference, only: frozenset[str] | None = None, log: Path | None = None
) -> Result:
    """Try every mutant of the module (or those with the given keys); the schedules that kill most come first.

    ``log`` keeps what is killed: a run of the same module that was broken off goes on with it.
    """

    def hangs(*_: object) -> None:
        raise TimeoutError

    old = signal.signal(signal.SIGVTALRM, hangs)
    start = time.monotonic()
    try:
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text("utf-8"))
        assert not any(disagrees(python.load(tree, module), k) for k in known_ones[:200]), "the module itself disagrees"
        order = list(known_ones)
        found = list(python.mutants(tree))
        killed = _killed(log, ast.unparse(tree))
        survivors, tried = [], 0
        for m, key in zip(found, python.keys(tree, found), strict=True):
            if only is not None and key not in only:
                continue
            tried += 1
            if key in killed:
                continue
            m.apply()
            try:
                mutated = python.load(tree, module)
            except Exception:
                continue
            finally:
                m.undo()
            killer = next((n for n, k in enumerate(order) if disagrees(mutated, k)), None)
            if killer is None:
                survivors.append(key)
            else:
                order.insert(killer // 2, order.pop(killer))
                if log is not None:
                    with log.open("a") as file:
                        file.write(key + "\n")
    finally:
        signal.signal(signal.SIGVTALRM, old)
    return Result(tried, tuple(survivors), len(known_ones), time.monotonic() - start)
