"""A finding told as an execution: which task ran where, what it signalled, the state in which it goes wrong, the two accesses.

``explain(schedule, finding)`` derives the execution itself, from the schedule and the tasks that the finding names: a run in which
everything else goes as far as it must, the two tasks held back.  It does not repeat the validator's search and shares no code with
it, so that a person and a test can hold one against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from amk_core.schedule.explanation import Blocked, Explanation, State, Touch
from amk_core.schedule.ir import MAYBE, WRITE, Schedule
from amk_core.schedule.validate import Finding
from amk_core.schedule.walk import TAG, Event, Instance, Missing, Walk, byte_ranges, least_values, needed, rectangle

MAX_INSTANCES = 4_000_000  # a longer run is not written out
MAX_AHEAD = 20_000  # instances of a run in which other queues are steps ahead
MAX_VALUES = 4096  # assignments of the launch variables tried for two accesses that move
STATIC = frozenset({"REF", "COUNT", "FIT"})  # said about the text, not about a run
CONFLICTS = frozenset({"RACE", "TAG"})
_NO_RUN = "No run is shown: the rule compares what the tasks declare with what certainly comes before them."


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
    where = [q for q, _ in finding.queue_positions]
    why = "No run was found in which both tasks can start."
    if longest > MAX_INSTANCES:
        why = _too_long(longest)
    elif len(where) == 2 and where[0] == where[1]:
        why = f"Both tasks stand on queue {where[0]}, so every run has them in this order."
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

    With ``entry``, that goal alone has to be reached, and the others not run.  Other queues may be steps ahead of the goals: more
    and more of that is allowed, until a run is found or the budget ends.
    """
    least = max(i for i, _ in goals) + 1
    horizons = [least, *(least + 2**k for k in range(20))]
    for steps in dict.fromkeys(min(h, s.steps) for h in horizons):
        if steps > least and steps * s.n_tasks > MAX_AHEAD:
            break
        found = _greedy(s, values, goals, steps, tags, entry)
        if found is not None:
            return found
    return None


def _greedy(
    s: Schedule, values: Sequence[int], goals: Sequence[Instance], steps: int, tags: bool, entry: Instance | None
) -> tuple[Walk, list[Event]] | None:
    """One greedy run decides it within so many steps, since waits are monotone."""
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
