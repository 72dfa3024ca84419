"""The protocol alone, executed: queues in order, waits, signals and tagged hand-offs.  Bodies are the caller's.

An *instance* is a pair ``(step, task)``.  A walk holds how far every queue got and what every counter shows; it moves one instance
at a time, so that any order of a real launch can be followed, and says what a queue waits for where it cannot move.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amk_core.schedule.ir import DTYPE_BITS, I32, I64, PREV_EPOCH, WRITE, Schedule

Instance = tuple[int, int]  # (step, task)
Rect = tuple[int, int, int, int]  # rows [r0, r1), columns [c0, c1)
TAG = -1  # stands for a counter where a tagged read is what is waited for


@dataclass(frozen=True, slots=True)
class Event:
    """One instance ran.  ``changes``: (counter, value before, value after)."""

    step: int
    task: int
    queue: int
    position: int
    changes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """What a queue waits for.  ``counter`` is TAG for a tagged read; ``needs`` and ``has`` then count writers."""

    counter: int
    needs: int
    has: int


def least_values(s: Schedule) -> list[int]:
    """Every launch variable at its least value, in the order of flattened indices."""
    return [v.min for v in s.variables for _ in range(v.count)]


def rectangle(s: Schedule, access: int, step: int, values: Sequence[int]) -> Rect:
    """The elements that an access touches in a step, for these values of the launch variables."""
    c = s.columns
    rows, cols = (c.acc_r0, c.acc_r1, c.acc_raff), (c.acc_c0, c.acc_c1, c.acc_caff)
    return _rectangle(s, (rows, cols), access, step, values)


def initial_rectangle(s: Schedule, x: int, values: Sequence[int]) -> Rect:
    """The elements of an initial range, which is taken at step 0."""
    c = s.columns
    return _rectangle(s, ((c.init_r0, c.init_r1, c.init_raff), (c.init_c0, c.init_c1, c.init_caff)), x, 0, values)


def _rectangle(s: Schedule, ranges: Sequence[tuple[I64, I64, I32]], x: int, step: int, values: Sequence[int]) -> Rect:
    """Row ``x`` of the columns (start, end, affine) of rows and of columns."""
    out: list[int] = []
    for lo, hi, affine in ranges:
        row = int(affine[x])
        if row < 0:
            out += [int(lo[x]), int(hi[x])]
            continue
        add, var, stride, mod, length, length_var, length_stride = (int(n) for n in s.columns.affine[row])
        start = add + stride * step + (values[var] if var >= 0 else 0)
        if mod:
            start %= mod
        out += [start, start + length + length_stride * step + (values[length_var] if length_var >= 0 else 0)]
    return out[0], out[1], out[2], out[3]


def byte_ranges(s: Schedule, buffer: int, rect: Rect) -> list[tuple[int, int]]:
    """Half-open byte ranges inside the buffer, ascending; neighbouring rows are one range, parts of a byte are whole bytes."""
    b, (r0, r1, c0, c1) = s.buffers[buffer], rect
    bits = DTYPE_BITS[b.dtype]
    if r0 >= r1 or c0 >= c1:
        return []
    if c1 - c0 == b.cols:
        return [(r0 * b.cols * bits // 8, -(-r1 * b.cols * bits // 8))]
    return [((r * b.cols + c0) * bits // 8, -(-(r * b.cols + c1) * bits // 8)) for r in range(r0, r1)]


class Walk:
    """The state of one launch of ``steps`` steps of a schedule that rule REF accepts; queues that are done stay done.

    ``tags`` false lets tagged reads pass without their tag: counters and queue order are then all that is obeyed.
    """

    def __init__(self, s: Schedule, values: Sequence[int] | None = None, *, steps: int | None = None, tags: bool = True) -> None:
        c = s.columns
        self.s = s
        self.steps = s.steps if steps is None else steps
        self.values = list(least_values(s) if values is None else values)
        self.queues = [s.queue(q) for q in range(s.n_queues)]
        self.place = {t: (q, j) for q, ids in enumerate(self.queues) for j, t in enumerate(ids)}
        self.done = [0] * s.n_queues  # instances completed
        self.count = [0] * len(s.counters)
        self.passed_tags = 0  # tagged reads that ran without all their writers
        self._tags = tags
        self._wait_off, self._sig_off = c.wait_off.tolist(), c.sig_off.tolist()
        self._waits = list(zip(c.wait_counter.tolist(), c.wait_t.tolist(), c.wait_e.tolist(), strict=True))
        self._signals = list(zip(c.sig_counter.tolist(), c.sig_amount.tolist(), strict=True))
        self._total = [k.per_step for k in s.counters]
        self._tag_writes: dict[int, list[tuple[int, int]]] = {}  # tagged buffer -> (task, access)
        if any(b.tagged for b in s.buffers):
            for t in range(s.n_tasks):
                for x in self.accesses(t):
                    if c.acc_flags[x] & WRITE and s.buffers[int(c.acc_buffer[x])].tagged:
                        self._tag_writes.setdefault(int(c.acc_buffer[x]), []).append((t, x))

    def accesses(self, task: int) -> range:
        return range(int(self.s.columns.acc_off[task]), int(self.s.columns.acc_off[task + 1]))

    def index(self, instance: Instance) -> int:
        """How many instances of its queue come before this one."""
        queue, position = self.place[instance[1]]
        return instance[0] * len(self.queues[queue]) + position

    def head(self, queue: int) -> Instance | None:
        """The next instance of a queue, None at its end."""
        n, at = len(self.queues[queue]), self.done[queue]
        return (at // n, self.queues[queue][at % n]) if at < n * self.steps else None

    def ended(self, instance: Instance) -> bool:
        return self.done[self.place[instance[1]][0]] > self.index(instance)

    def needs(self, instance: Instance, *, entry: bool = False) -> list[tuple[int, int]]:
        """(counter, value it must have reached).  ``entry``: only the waits on the step before, which guard the look at stop."""
        step, task = instance
        out = []
        for n, t, e in self._waits[self._wait_off[task] : self._wait_off[task + 1]]:
            if step + e >= 0 and (e == -1 or not entry):
                out.append((n, (step + e) * self._total[n] + t))
        return out

    def tag_writers(self, instance: Instance) -> list[Instance]:
        """The instances whose tags the tagged reads of this one poll for."""
        if not self._tag_writes:
            return []
        c, (step, task) = self.s.columns, instance
        out = []
        for x in self.accesses(task):
            buffer, flags = int(c.acc_buffer[x]), int(c.acc_flags[x])
            epoch = step - 1 if flags & PREV_EPOCH else step
            if flags & WRITE or buffer not in self._tag_writes or epoch < 0:
                continue
            mine = rectangle(self.s, x, step, self.values)
            for writer, w in self._tag_writes[buffer]:
                if _meet(mine, rectangle(self.s, w, epoch, self.values)):
                    out.append((epoch, writer))
        return out

    def missing(self, queue: int, *, entry: bool = False) -> Missing | None:
        """The first wait of a queue's next instance that does not hold; None where it can start (or the queue is at its end)."""
        instance = self.head(queue)
        if instance is None:
            return None
        for counter, value in self.needs(instance, entry=entry):
            if self.count[counter] < value:
                return Missing(counter, value, self.count[counter])
        if self._tags and not entry:
            writers = self.tag_writers(instance)
            ended = sum(map(self.ended, writers))
            if ended < len(writers):
                return Missing(TAG, len(writers), ended)
        return None

    def advance(self, queue: int) -> Event:
        """Run the next instance of a queue, which must be able to start."""
        instance = self.head(queue)
        assert instance is not None
        step, task = instance
        if not self._tags and not all(map(self.ended, self.tag_writers(instance))):
            self.passed_tags += 1
        changes = []
        for n, amount in self._signals[self._sig_off[task] : self._sig_off[task + 1]]:
            changes.append((n, self.count[n], self.count[n] + amount))
            self.count[n] += amount
        self.done[queue] += 1
        return Event(step, task, queue, self.place[task][1], tuple(changes))

    def run(
        self,
        limits: Sequence[int] | None = None,
        *,
        prefer: Callable[[int], int] = lambda queue: 0,
        body: Callable[[Event], None] = lambda event: None,
    ) -> list[Event]:
        """Run all that can run, no queue beyond ``limits`` instances; the final state does not depend on the order.

        Args:
            prefer: the queue with the least value goes first; equal ones take turns.
            body: called for each instance in the order of the run.
        """
        most = [len(ids) * self.steps for ids in self.queues]
        if limits is not None:
            most = [min(a, b) for a, b in zip(most, limits, strict=True)]
        tick = itertools.count()
        ready = [(prefer(q), next(tick), q) for q in range(len(self.queues))]
        heapq.heapify(ready)
        waiting: dict[int, list[int]] = {}
        events = []
        while ready:
            q = heapq.heappop(ready)[2]
            if self.done[q] >= most[q]:
                continue
            lack = self.missing(q)
            if lack is not None:
                waiting.setdefault(lack.counter, []).append(q)
                continue
            event = self.advance(q)
            body(event)
            events.append(event)
            woken = [w for n, _, _ in event.changes for w in waiting.pop(n, ())]
            if self._tag_writes:
                woken += waiting.pop(TAG, ())
            for w in (*woken, q):
                heapq.heappush(ready, (prefer(w), next(tick), w))
        return events


def needed(walk: Walk, events: Sequence[Event], goals: Sequence[Instance], *, entry: Instance | None = None) -> list[Event]:
    """The part of a run that leads to a state in which all goals can start.

    ``entry`` is a goal of which only the look at the stop buffer counts.  ``walk`` is the one that produced the events.
    For each wait the earliest signals of the run are taken.
    """
    at = {(e.step, e.task): k for k, e in enumerate(events)}
    before: dict[int, int] = {}  # event -> the event before it on its queue
    last: dict[int, int] = {}
    gives: dict[int, list[tuple[int, int]]] = {}  # counter -> (event, value before it)
    for k, e in enumerate(events):
        if e.queue in last:
            before[k] = last[e.queue]
        last[e.queue] = k
        for n, old, _ in e.changes:
            gives.setdefault(n, []).append((k, old))
    taken = dict.fromkeys(gives, 0)
    keep: set[int] = set()
    stack: list[int] = []

    def demand(instance: Instance) -> None:
        only_entry = instance == entry
        for n, value in walk.needs(instance, entry=only_entry):
            given = gives.get(n, [])
            while taken.get(n, 0) < len(given) and given[taken[n]][1] < value:
                stack.append(given[taken[n]][0])
                taken[n] += 1
        if not only_entry:
            stack.extend(at[w] for w in walk.tag_writers(instance) if w in at)

    for goal in goals:
        demand(goal)
        queue = walk.place[goal[1]][0]
        if queue in last:
            stack.append(last[queue])  # a goal's queue stands right before it
    while stack:
        k = stack.pop()
        if k in keep:
            continue
        keep.add(k)
        if k in before:
            stack.append(before[k])
        demand((events[k].step, events[k].task))
    return [events[k] for k in sorted(keep)]


def _meet(a: Rect, b: Rect) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[3], b[3])
