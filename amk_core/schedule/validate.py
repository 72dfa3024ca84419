"""``validate(schedule)``: accept, with a certificate, or reject, with findings: what is wrong, where, and what would mend it.

The decision is native (``amk_core/native/validate*.cpp``) and reads the packed tables; this module adds what only the schedule
object knows (reader's defects, op contracts, target limits) and words the findings.  ``docs/schedule_ir.md`` defines the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amk_core.schedule import footprint
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule, ScheduleFormatError
from amk_core.schedule.messages import Wording
from amk_core.schedule.quant_rules import quant_problems
from amk_core.schedule.tables import pack, table_hash

RULES = ("REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "FIT", "PROXY")
ARCHES = frozenset({"cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"})
CLUSTER_ARCHES = ARCHES - {"sm_80", "sm_86", "sm_89"}
MAX_CLUSTER = 16
MAX_PER_RULE = 20  # findings kept per rule; Verdict.counts has the totals


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation.  ``undecided``: nothing wrong was proved, but the rule could not be shown to hold within the budget."""

    rule: str
    message: str
    tasks: tuple[int, ...] = ()
    queue_positions: tuple[tuple[int, int], ...] = ()  # (queue, position) of each task
    buffer: int | None = None
    byte_range: tuple[int, int] | None = None  # inside the buffer
    witness: Mapping[str, Any] | None = field(default=None, repr=False)  # a run that shows it, see docs/schedule_ir.md
    repair: str | None = None
    undecided: bool = False
    steps: tuple[int, ...] = ()  # the step of each task, where the finding is about certain steps

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule, "message": self.message, "tasks": list(self.tasks),
            "queue_positions": [list(p) for p in self.queue_positions], "buffer": self.buffer,
            "byte_range": None if self.byte_range is None else list(self.byte_range),
            "witness": None if self.witness is None else dict(self.witness), "repair": self.repair, "undecided": self.undecided,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """``counts`` has the number of findings per rule, also of those beyond the ones listed."""

    accepted: bool
    findings: tuple[Finding, ...] = ()
    certificate: Certificate | None = field(default=None, repr=False)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> frozenset[str]:
        """The rules that are violated or undecided."""
        return frozenset(self.counts)

    @property
    def undecided(self) -> bool:
        """Rejected only because something could not be decided."""
        return not self.accepted and all(f.undecided for f in self.findings)

    def to_json(self, *, certificate: bool = False) -> dict[str, Any]:
        out: dict[str, Any] = {
            "accepted": self.accepted, "findings": [f.to_json() for f in self.findings], "counts": dict(self.counts),
        }  # fmt: skip
        if certificate:
            out["certificate"] = None if self.certificate is None else self.certificate.to_json()
        return out

    def __str__(self) -> str:
        if self.accepted:
            return "accepted"
        more = [f"... and {n - listed} more {rule}" for rule, n in self.counts.items() if (listed := self._listed(rule)) < n]
        return "\n".join([f.message for f in self.findings] + more)

    def _listed(self, rule: str) -> int:
        return sum(f.rule == rule for f in self.findings)


def rejected(rule: str, message: str) -> Verdict:
    """A verdict with one finding, for text that is no schedule at all."""
    return Verdict(False, (Finding(rule, message),), None, {rule: 1})


def validate(schedule: Schedule, *, witness: bool = True, certificate: bool = True) -> Verdict:
    """Decide a schedule for every number of steps up to ``schedule.steps`` and every value of its launch variables.

    Args:
        witness: word the counterexample executions (they are found in any case).
        certificate: build the certificate of an accepted schedule.

    Never raises for a schedule that ``Schedule.from_json`` returned, and never runs unbounded: what cannot be decided within the
    budget is rejected with a finding that says ``undecided``.
    """
    early = _references(schedule)
    if early:
        return _verdict(early)
    try:
        tables = pack(schedule)
    except (OverflowError, ValueError) as e:
        return _verdict([Finding("REF", f"REF schedule: it cannot be packed into tables: {e}")])
    from amk_core import _native  # the extension is loaded when the first schedule is validated, not at import

    try:
        answer = _native.validate(tables, certificate)
    except ValueError as e:  # columns that no reader makes: a schedule unpacked from damaged tables
        return _verdict([Finding("REF", f"REF {e}")])
    words = Wording(schedule)
    findings = [_finding(schedule, words, f, witness) for f in answer["findings"]]
    counts: dict[str, int] = dict(answer["counts"])
    if not counts.keys() & {"REF", "COUNT"}:
        fit = _fit(schedule)
        findings += fit[:MAX_PER_RULE]
        if fit:
            counts["FIT"] = len(fit)
    accepted = not counts
    proof = None
    if accepted and certificate:
        proof = Certificate(
            table_hash(tables), int(answer["unroll"]), schedule.n_tasks, schedule.n_queues,
            *(np.asarray(answer[k]) for k in ("replay", "row", "row_off", "row_queue", "row_value")),
        )  # fmt: skip
    order = {r: i for i, r in enumerate(RULES)}
    findings.sort(key=lambda f: order[f.rule])
    return Verdict(accepted, tuple(findings), proof, {r: counts[r] for r in RULES if r in counts})


def validate_text(text: str | bytes, **options: bool) -> Verdict:
    """The verdict on interchange text; text that cannot be read gets one with rule REF."""
    try:
        schedule = Schedule.loads(text)
    except ScheduleFormatError as e:
        return rejected("REF", f"REF unreadable: {e}")
    return validate(schedule, **options)


def _verdict(findings: list[Finding]) -> Verdict:
    counts: dict[str, int] = {}
    kept = []
    for f in findings:
        counts[f.rule] = counts.get(f.rule, 0) + 1
        if counts[f.rule] <= MAX_PER_RULE:
            kept.append(f)
    return Verdict(False, tuple(kept), None, counts)


def _references(s: Schedule) -> list[Finding]:
    """What only the object knows: the reader's defects, sizes that the tables cannot hold, op contracts."""
    out = [Finding("REF", f"REF {d}") for d in s.defects]
    for p in s.pools:
        if p.bytes is not None and p.bytes < 0:
            out.append(Finding("REF", f"REF pool {p.id!r}: bytes is {p.bytes}, required is 0 or more (or none: unbounded)"))
    known = {p.id for p in s.pools}
    for i, b in enumerate(s.buffers):
        if b.pool not in known:
            out.append(Finding("REF", f"REF buffer {i} {b.name}: pool {b.pool!r} is not declared", buffer=i))
        if b.offset < 0:
            out.append(Finding("REF", f"REF buffer {i} {b.name}: offset is {b.offset}, required is 0 or more", buffer=i))
    for i, text in quant_problems(s):
        out.append(Finding("REF", f"REF buffer {i} {s.buffers[i].name}: {text}", buffer=i))
    if out:
        return out
    for task, text in footprint.problems(s):
        out.append(Finding("REF", f"REF T{task}: {text}", (task,)))
    return out


def _fit(s: Schedule) -> list[Finding]:
    t = s.target
    if t is None:
        return []
    out = []
    if t.arch not in ARCHES:
        out.append(f"target.arch is {t.arch!r}, known are {', '.join(sorted(ARCHES))}")
    if s.n_queues > t.sms:
        out.append(f"{s.n_queues} queues on a device with {t.sms} SMs: not all CTAs are resident, and a waiting one never ends")
    shared = [p for p in s.pools if p.per_queue]
    unbounded = [p.id for p in shared if p.bytes is None]
    if unbounded:
        out.append(f"per-queue pool {unbounded[0]!r} has no size; shared memory must be bounded")
    size = sum(p.bytes or 0 for p in shared) + sum(s.cluster_bytes(p) for p in s.pools if p.cluster)
    if size > t.smem_bytes:
        out.append(f"pools need {size} bytes of shared memory a queue, the target has {t.smem_bytes}")
    for p in s.pools:
        if p.cluster > MAX_CLUSTER:
            out.append(f"pool {p.id!r} is for clusters of {p.cluster} queues, a card has at most {MAX_CLUSTER}")
        if p.cluster and t.arch not in CLUSTER_ARCHES:
            out.append(f"pool {p.id!r} needs clusters, which {t.arch} does not have; {', '.join(sorted(CLUSTER_ARCHES))} do")
    return [Finding("FIT", f"FIT {text}") for text in out]


def _finding(s: Schedule, words: Wording, f: Mapping[str, Any], witness: bool) -> Finding:
    tasks = tuple(t for t in (f["a"], f["b"]) if t >= 0)
    if f["rule"] == "LIVE":
        tasks = tuple(f["chain"][k] for k in range(2, len(f["chain"]), 6))
    run: dict[str, Any] | None = None
    if witness and "completed" in f:
        run = {"completed": list(f["completed"]), "both_enabled": [[f["step_a"], f["a"]], [f["step_b"], f["b"]]]}
    elif witness and f["rule"] == "LIVE":
        run = {"blocked": [list(f["chain"][k : k + 6]) for k in range(0, len(f["chain"]), 6)]}
    steps = tuple(int(f[k]) for k, t in (("step_a", f["a"]), ("step_b", f["b"])) if t >= 0) if f["rule"] != "LIVE" else ()
    message, repair = words.finding(f)
    has_bytes = f["buffer"] >= 0 and f["hi"] > f["lo"]
    return Finding(
        f["rule"], message, tasks, tuple(p for p in map(words.position, tasks) if p is not None),
        f["buffer"] if f["buffer"] >= 0 else None, (f["lo"], f["hi"]) if has_bytes else None, run, repair, bool(f["undecided"]),
        steps,
    )  # fmt: skip
