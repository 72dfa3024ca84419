"""A finding told as an execution: which task ran where, what it signalled, the state in which it goes wrong, the two accesses.

``explain(schedule, finding)`` derives the execution itself, from the schedule and the tasks that the finding names: a run in which
everything else goes as far as it must, the two tasks held back.  It does not repeat the validator's search and shares no code with
it, so that a person and a test can hold one against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amk_core.schedule.ir import MAYBE, WRITE, Schedule
from amk_core.schedule.messages import Wording
from amk_core.schedule.validate import Finding
from amk_core.schedule.walk import TAG, Event, Instance, Missing, Rect, Walk, byte_ranges, least_values, needed, rectangle

SHOWN = 24  # steps and blocked queues printed in full; of longer lists both ends are
SIGNALLERS = 4  # tasks named for each wait
MAX_INSTANCES = 4_000_000  # a longer run is not written out
MAX_VALUES = 4096  # assignments of the launch variables tried for two accesses that move
STATIC = frozenset({"REF", "COUNT", "FIT"})  # said about the text, not about a run
CONFLICTS = frozenset({"RACE", "TAG"})
_NO_RUN = "No run is shown: the rule compares what the tasks declare with what certainly comes before them."


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of one instance, for the values of the launch variables at which it is shown; bytes inside the buffer."""

    step: int
    task: int
    access: int
    buffer: int
    write: bool
    maybe: bool
    rect: Rect
    ranges: tuple[tuple[int, int], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A queue that cannot move: its task, the wait that does not hold, and the instances that would signal it but have not run."""

    queue: int
    position: int
    step: int
    task: int
    missing: Missing
    signallers: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class State:
    """Where the run ends: instances completed by each queue, counters, what can start, what cannot."""

    completed: tuple[int, ...]
    counters: tuple[int, ...]
    enabled: tuple[Instance, ...] = ()
    blocked: tuple[Blocked, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """``steps`` is empty and ``state`` None where the finding is not about a run; ``note`` then says so.

    ``tags`` false: the run obeys counters and queue order only, and passes tagged reads whose tag had not come.
    ``entry``: for STOP, the instance before which its queue looks at the stop buffer; it is enabled as far as that look goes.
    """

    schedule: Schedule = field(repr=False)
    finding: Finding
    steps: tuple[Event, ...] = ()
    state: State | None = None
    accesses: tuple[Touch, ...] = ()
    common: tuple[int, int] | None = None  # bytes of the pool that both accesses touch
    values: tuple[int, ...] = ()  # of the launch variables
    tags: bool = True
    entry: Instance | None = None
    note: str = ""

    def text(self) -> str:
        return "\n".join(_Text(self).lines())


def explain(schedule: Schedule, finding: Finding) -> Explanation:
    """Tell one finding of ``validate(schedule)``.

    Never raises for such a finding; what has no execution, or none within the budget, gets a ``note``.
    """
    if finding.rule in STATIC:
        return Explanation(schedule, finding, note="This rule is about the text of the schedule; there is no run to show.")
    if finding.rule == "LIVE":
        return _stuck(schedule, finding)
    if finding.rule in CONFLICTS and len(finding.tasks) == 2:
        return _conflict(schedule, finding)
    if finding.rule == "STOP" and len(finding.tasks) == 2:
        return _entry(schedule, finding)
    return Explanation(schedule, finding, note=_NO_RUN)


# ---- deadlock
def _stuck(s: Schedule, finding: Finding) -> Explanation:
    """One step decides: whatever else can run in it runs, and then nothing moves."""
    walk = Walk(s, steps=1)
    if s.n_tasks > MAX_INSTANCES:
        return Explanation(s, finding, note=_too_long(s.n_tasks))
    events = walk.run()
    return Explanation(s, finding, tuple(events), _state(walk, stuck=True), values=tuple(walk.values))


def _state(walk: Walk, goals: Sequence[Instance] = (), *, stuck: bool = False, entry: Instance | None = None) -> State:
    at_head = [g for g in goals if walk.head(walk.place[g[1]][0]) == g]
    enabled = [g for g in at_head if walk.missing(walk.place[g[1]][0], entry=g == entry) is None]
    return State(tuple(walk.done), tuple(walk.count), tuple(enabled), blocked(walk) if stuck else ())


def blocked(walk: Walk) -> tuple[Blocked, ...]:
    """The queues that cannot move."""
    out = []
    for q in range(len(walk.queues)):
        head, lack = walk.head(q), walk.missing(q)
        if head is not None and lack is not None:
            out.append(Blocked(q, walk.place[head[1]][1], *head, lack, tuple(_signallers(walk, head, lack))))
    return tuple(out)


def _signallers(walk: Walk, instance: Instance, lack: Missing) -> Iterator[Instance]:
    """Instances of the same step that would bring what is missing and have not run."""
    if lack.counter == TAG:
        yield from (w for w in walk.tag_writers(instance) if not walk.ended(w))
        return
    c, step = walk.s.columns, (lack.needs - 1) // walk.s.counters[lack.counter].per_step
    for k in (c.sig_counter == lack.counter).nonzero()[0]:
        task = int(c.sig_off.searchsorted(k, "right")) - 1
        if not walk.ended((step, task)):
            yield step, task


# ---- two tasks at once
def _conflict(s: Schedule, finding: Finding) -> Explanation:
    a, b = finding.tasks
    longest = 0
    for ia, ib in _candidates(s, finding):
        touches = _common(s, finding, (ia, a), (ib, b))
        if touches is None:
            continue
        values, pair, common = touches
        longest = max(longest, (max(ia, ib) + 1) * s.n_tasks)
        if longest > MAX_INSTANCES:
            break
        for tags in (True, False):  # a real run where there is one, else what counters and queue order allow
            found = _held_back(s, values, [(ia, a), (ib, b)], tags=tags)
            if found is not None:
                walk, events = found
                state = _state(walk, [(ia, a), (ib, b)])
                return Explanation(s, finding, tuple(events), state, pair, common, tuple(values), tags)
    why = _too_long(longest) if longest > MAX_INSTANCES else "No run was found in which both tasks can start."
    return Explanation(s, finding, note=why)


def _candidates(s: Schedule, finding: Finding) -> Iterator[Instance]:
    """Pairs of steps: the finding's own first, then small ones."""
    seen = set()
    if finding.witness is not None and "both_enabled" in finding.witness:
        (ia, _), (ib, _) = finding.witness["both_enabled"]
        seen.add((ia, ib))
        yield ia, ib
    if len(finding.steps) == 2:
        distances = [finding.steps[1] - finding.steps[0]]
        if (finding.steps[0], finding.steps[1]) not in seen:
            yield finding.steps[0], finding.steps[1]
    else:
        distances = [0, 1, -1, 2, -2]
    for i, d in itertools.product(range(min(s.steps, 4)), distances):
        if 0 <= i + d < s.steps and (i, i + d) not in seen:
            yield i, i + d


def _held_back(
    s: Schedule, values: Sequence[int], goals: Sequence[Instance], *, tags: bool, entry: Instance | None = None
) -> tuple[Walk, list[Event]] | None:
    """A run to a state in which all goals can start, and no more of it than they need; None where there is none.

    One greedy run decides it, since waits are monotone.  With ``entry``, that goal alone has to be reached, and the others not run.
    """
    steps = max(i for i, _ in goals) + 1
    walk = Walk(s, values, steps=steps, tags=tags)
    limits = [len(ids) * steps for ids in walk.queues]
    for goal in goals:
        q = walk.place[goal[1]][0]
        limits[q] = min(limits[q], walk.index(goal))
    events = walk.run(limits)
    for goal in goals:
        q = walk.place[goal[1]][0]
        reached = walk.done[q] == walk.index(goal) and walk.missing(q, entry=goal == entry) is None
        if not reached and entry in (None, goal):
            return None
    order = needed(walk, events, goals, entry=entry)
    again = Walk(s, values, steps=steps, tags=tags)
    return again, [again.advance(e.queue) for e in order]


def _common(
    s: Schedule, finding: Finding, a: Instance, b: Instance
) -> tuple[list[int], tuple[Touch, Touch], tuple[int, int]] | None:
    """Values of the launch variables, an access of each instance, and pool bytes that both touch and one writes."""
    c = s.columns
    per_queue = {p.id: p.per_queue for p in s.pools}
    queue = {t: q for q in range(s.n_queues) for t in s.queue(q) if t in (a[1], b[1])}
    pairs = []
    for x, y in itertools.product(*(range(int(c.acc_off[t]), int(c.acc_off[t + 1])) for t in (a[1], b[1]))):
        bx, by = (s.buffers[int(c.acc_buffer[z])] for z in (x, y))
        if not (c.acc_flags[x] | c.acc_flags[y]) & WRITE or bx.pool != by.pool:
            continue
        if per_queue[bx.pool] and queue[a[1]] != queue[b[1]]:
            continue
        pairs.append((finding.buffer not in (int(c.acc_buffer[x]), int(c.acc_buffer[y])), x, y))
    for _, x, y in sorted(pairs):
        for values in _assignments(s, (x, y)):
            one, other = (touch(s, k, z, values) for k, z in ((a, x), (b, y)))
            common = _overlap(s, one, other)
            if common is not None:
                return values, (one, other), common
    return None


def touch(s: Schedule, instance: Instance, access: int, values: Sequence[int]) -> Touch:
    """Access ``access`` (a row of the access columns) of an instance."""
    c, (step, task) = s.columns, instance
    buffer, flags, rect = int(c.acc_buffer[access]), int(c.acc_flags[access]), rectangle(s, access, step, values)
    ranges = tuple(byte_ranges(s, buffer, rect))
    return Touch(step, task, access, buffer, bool(flags & WRITE), bool(flags & MAYBE), rect, ranges)


def _assignments(s: Schedule, accesses: Sequence[int]) -> Iterator[list[int]]:
    """Values of the variables that these accesses use, the others at their least; at most MAX_VALUES of them."""
    c = s.columns
    rows = [int(affine[x]) for x in accesses for affine in (c.acc_raff, c.acc_caff) if affine[x] >= 0]
    used = sorted({int(v) for r in rows for v in (c.affine[r][1], c.affine[r][5]) if v >= 0})
    flat = [v for v in s.variables for _ in range(v.count)]
    least = least_values(s)
    for choice in itertools.islice(itertools.product(*(range(flat[v].min, flat[v].max + 1) for v in used)), MAX_VALUES):
        out = list(least)
        for v, value in zip(used, choice, strict=True):
            out[v] = value
        yield out


def _overlap(s: Schedule, a: Touch, b: Touch) -> tuple[int, int] | None:
    """The first common bytes, counted from the start of the pool."""
    da, db = s.buffers[a.buffer].offset, s.buffers[b.buffer].offset
    i = j = 0
    while i < len(a.ranges) and j < len(b.ranges):
        lo = max(a.ranges[i][0] + da, b.ranges[j][0] + db)
        hi = min(a.ranges[i][1] + da, b.ranges[j][1] + db)
        if lo < hi:
            return lo, hi
        if a.ranges[i][1] + da <= b.ranges[j][1] + db:
            i += 1
        else:
            j += 1
    return None


# ---- stop
def _entry(s: Schedule, finding: Finding) -> Explanation:
    """The queue of the second task has gone through step i, and looks at stop[i] before the first task has written it."""
    decides, first = finding.tasks
    values = least_values(s)
    c = s.columns
    mine = [x for x in range(int(c.acc_off[decides]), int(c.acc_off[decides + 1])) if c.acc_flags[x] & WRITE]
    mine = [x for x in mine if s.stop is not None and c.acc_buffer[x] == s.stop[0]]
    tries = [finding.steps[0]] if finding.steps else []
    for i in [*tries, *(k for k in range(min(s.steps - 1, 4)) if k not in tries)]:
        if not mine or (i + 2) * s.n_tasks > MAX_INSTANCES:
            break
        for tags in (True, False):
            goals = [(i, decides), (i + 1, first)]
            found = _held_back(s, values, goals, tags=tags, entry=goals[1])
            if found is not None:
                walk, events = found
                return Explanation(
                    s, finding, tuple(events), _state(walk, goals, entry=goals[1]), (touch(s, (i, decides), mine[0], values),),
                    None, tuple(values), tags, (i + 1, first),
                )  # fmt: skip
    return Explanation(s, finding, note=_NO_RUN)


def _too_long(instances: int) -> str:
    return f"The run has {instances:,} instances, more than are written out ({MAX_INSTANCES:,})."


# ---- words
def counter_text(s: Schedule, counter: int) -> str:
    """c3, with its name where that says more."""
    name = s.counters[counter].name
    return f"c{counter}" if name == f"c{counter}" else f"c{counter} {name}"


def wait_text(s: Schedule, lack: Missing) -> str:
    """What a queue waits for."""
    if lack.counter == TAG:
        return f"waits for the tags of {lack.needs} task{'s' if lack.needs > 1 else ''} (has {lack.has})"
    return f"waits {counter_text(s, lack.counter)} >= {lack.needs} (has {lack.has})"


class _Text:
    def __init__(self, e: Explanation) -> None:
        self.e, self.s, self.words = e, e.schedule, Wording(e.schedule)
        self.many = e.schedule.steps > 1 or any(x.step for x in e.steps)

    def lines(self) -> Iterator[str]:
        e = self.e
        yield e.finding.message.splitlines()[0]
        if e.state is None:
            yield f"  {e.note}"
        else:
            yield from self.run()
            yield from self.blocked() if e.finding.rule == "LIVE" else self.enabled()
            yield from self.touches()
        if e.finding.repair:
            yield f"  nearest repair: {e.finding.repair}"

    def name(self, instance: Instance) -> str:
        step = f" of step {instance[0]}" if self.many else ""
        return f"{self.words.task(instance[1])}{step}"

    def run(self) -> Iterator[str]:
        e = self.e
        if e.values:
            yield "  with " + ", ".join(
                f"{n} = {v}" for n, v in itertools.islice(zip(self.s.variable_names(), e.values, strict=True), 8)
            )
        n = len(e.steps)
        if not n:
            yield "  run: nothing has to run first" if e.finding.rule != "LIVE" else "  run: nothing can start"
            return
        yield f"  run, {n} task{'s' if n > 1 else ''}:"
        rows: list[tuple[str, str, str, str]] = []
        for k in _ends(n):
            if k is None:
                rows.append(("", f"... {n - SHOWN} more", "", ""))
                continue
            x = e.steps[k]
            rows.append((str(k + 1), f"SM{x.queue}#{x.position}", self.name((x.step, x.task)), self.changes(x)))
        yield from _table(rows)
        if not e.tags:
            yield "    (tagged reads pass here without their tag: a tag orders its own bytes only)"

    def changes(self, x: Event) -> str:
        shown = [f"{counter_text(self.s, n)}: {old} -> {new}" for n, old, new in x.changes[:SIGNALLERS]]
        return ", ".join(shown + ([f"and {len(x.changes) - SIGNALLERS} more"] if len(x.changes) > SIGNALLERS else []))

    def enabled(self) -> Iterator[str]:
        e, state = self.e, self.e.state
        assert state is not None
        walk = Walk(self.s, e.values, steps=1 + max(i for i, _ in state.enabled), tags=e.tags)
        yield "  then, and nothing orders them:" if e.entry else "  then both can start, and nothing orders them:"
        rows = []
        for instance in state.enabled:
            needs = walk.needs(instance, entry=instance == e.entry)
            waits = [f"{counter_text(self.s, n)} >= {v} (has {state.counters[n]})" for n, v in needs]
            what = ", ".join(waits) or ("nothing of the step before" if instance == e.entry else "nothing")
            place = self.words.place(instance[1])
            if instance == e.entry:
                rows.append((place, f"enters step {instance[0]} and reads stop of step {instance[0] - 1}", f"waits for {what}"))
            else:
                rows.append((place, self.name(instance), f"waits for {what}"))
        yield from _table(rows)

    def blocked(self) -> Iterator[str]:
        state = self.e.state
        assert state is not None
        n = len(state.blocked)
        yield f"  then nothing moves; {n} queue{'s are' if n > 1 else ' is'} blocked:"
        rows = []
        for k in _ends(n):
            if k is None:
                rows.append((f"... {n - SHOWN} more", "", "", ""))
                continue
            b = state.blocked[k]
            what = wait_text(self.s, b.missing)
            who = [f"{self.name(i)} at {self.words.place(i[1])}" for i in b.signallers[:SIGNALLERS]]
            more = [f"{len(b.signallers) - SIGNALLERS} more"] if len(b.signallers) > SIGNALLERS else []
            source = ", ".join(who + more) or "nobody that has not run"
            rows.append((f"SM{b.queue}#{b.position}", self.name((b.step, b.task)), what, f"to come from {source}"))
        yield from _table(rows)

    def touches(self) -> Iterator[str]:
        e = self.e
        if not e.accesses:
            return
        yield "  the two accesses:" if len(e.accesses) > 1 else "  what is not written yet:"
        rows = []
        for t in e.accesses:
            r0, r1, c0, c1 = t.rect
            verb = ("may write" if t.maybe else "writes") if t.write else ("may read" if t.maybe else "reads")
            b = self.s.buffers[t.buffer]
            rows.append(
                (f"{self.name((t.step, t.task))}", verb, b.name, f"rows [{r0}:{r1})", f"cols [{c0}:{c1})", _bytes(t.ranges),
                 f"at {b.pool}+{b.offset}")
            )  # fmt: skip
        yield from _table(rows)
        if e.common is not None:
            pool = self.s.buffers[e.accesses[0].buffer].pool
            yield f"    common: bytes [{e.common[0]}:{e.common[1]}) of pool {pool}"


def _ends(n: int) -> Iterator[int | None]:
    """Indices to show, None for what is left out in the middle."""
    if n <= SHOWN:
        yield from range(n)
        return
    yield from range(SHOWN // 2)
    yield None
    yield from range(n - SHOWN // 2, n)


def _bytes(ranges: Sequence[tuple[int, int]]) -> str:
    if not ranges:
        return "no bytes"
    lo, hi = ranges[0]
    return f"bytes [{lo}:{hi})" + (f" and {len(ranges) - 1} more rows" if len(ranges) > 1 else "")


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns side by side, two blanks apart."""
    if not rows:
        return
    width = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    for r in rows:
        yield ("    " + "  ".join(x.ljust(w) for x, w in zip(r, width, strict=True))).rstrip()


def explanations(schedule: Schedule, findings: Sequence[Finding], most: int) -> Mapping[int, Explanation]:
    """Explanations with a run, by position of their finding; ``most`` are made."""
    out: dict[int, Explanation] = {}
    for k, f in enumerate(findings):
        if len(out) == most:
            break
        e = explain(schedule, f)
        if e.state is not None:
            out[k] = e
    return out
