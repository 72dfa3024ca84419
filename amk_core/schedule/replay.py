"""A fault made visible: the declared footprints of a schedule are executed, and what each reader saw is compared.

No kernel runs.  A task reads its declared bytes, then leaves its own name and step in the bytes that it declares to write; queues,
waits and signals are obeyed.  That is enough to see a hang, and a value that depends on timing.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amk_core.schedule.explain import blocked
from amk_core.schedule.explanation import Blocked, Explanation, Touch
from amk_core.schedule.ir import MAYBE, PREV_EPOCH, WRITE, Lifetime, Schedule
from amk_core.schedule.walk import Event, Instance, Rect, Walk, byte_ranges, initial_rectangle, rectangle

MAX_INSTANCES = 20_000  # of a replay without a witness: as many steps as fit, at least one
MAX_STEPS = 64
INITIAL: Instance = (-1, -1)  # stands for data from before step 0

Stamp = Instance | None  # who wrote a byte last; None: nobody
Segment = tuple[int, int, Stamp]  # bytes [lo, hi) and who wrote them
Space = tuple[str, int]  # pool, queue (-1 where all queues share it)


class Memory:
    """Who wrote each byte last.  Nothing is stored for bytes that nobody touches."""

    def __init__(self) -> None:
        self._cuts: dict[Space, list[int]] = {}
        self._stamps: dict[Space, list[Stamp]] = {}

    def write(self, space: Space, lo: int, hi: int, stamp: Stamp) -> None:
        cuts, stamps = self._cuts.setdefault(space, [0]), self._stamps.setdefault(space, [None])
        for at in (lo, hi):
            k = bisect_left(cuts, at)
            if k == len(cuts) or cuts[k] != at:
                cuts.insert(k, at)
                stamps.insert(k, stamps[k - 1])
        i, j = bisect_left(cuts, lo), bisect_left(cuts, hi)
        cuts[i:j], stamps[i:j] = [lo], [stamp]

    def read(self, space: Space, lo: int, hi: int) -> list[Segment]:
        cuts, stamps = self._cuts.get(space, [0]), self._stamps.get(space, [None])
        out: list[Segment] = []
        for k in range(bisect_right(cuts, lo) - 1, len(cuts)):
            if cuts[k] >= hi:
                break
            end = min(cuts[k + 1] if k + 1 < len(cuts) else hi, hi)
            if out and out[-1][2] == stamps[k]:
                out[-1] = (out[-1][0], end, stamps[k])
            else:
                out.append((max(cuts[k], lo), end, stamps[k]))
        return out


class Bodies:
    """Declared footprints executed: ``seen[step, access]`` is what that read found, in bytes of its pool."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.memory = walk, Memory()
        self.seen: dict[tuple[int, int], tuple[Segment, ...]] = {}
        s, c = walk.s, walk.s.columns
        self._per_queue = {p.id: p.per_queue for p in s.pools}
        for x in range(len(c.init_buffer)):
            rect = initial_rectangle(s, x, walk.values)
            for q in range(s.n_queues):
                space, ranges = self.place(int(c.init_buffer[x]), rect, q)
                for lo, hi in ranges:
                    self.memory.write(space, lo, hi, INITIAL)

    def place(self, buffer: int, rect: Rect, queue: int) -> tuple[Space, list[tuple[int, int]]]:
        b = self.walk.s.buffers[buffer]
        ranges = [(lo + b.offset, hi + b.offset) for lo, hi in byte_ranges(self.walk.s, buffer, rect)]
        return (b.pool, queue if self._per_queue[b.pool] else -1), ranges

    def run(self, e: Event) -> None:
        """The body of one instance: reads, then writes."""
        c = self.walk.s.columns
        for write in (False, True):
            for x in self.walk.accesses(e.task):
                if bool(c.acc_flags[x] & WRITE) is not write:
                    continue
                space, ranges = self.place(int(c.acc_buffer[x]), rectangle(self.walk.s, x, e.step, self.walk.values), e.queue)
                if write:
                    for lo, hi in ranges:
                        self.memory.write(space, lo, hi, (e.step, e.task))
                else:
                    self.seen[e.step, x] = tuple(part for lo, hi in ranges for part in self.memory.read(space, lo, hi))

    def unwritten(self) -> list[tuple[int, int]]:
        """(step, access) of the reads that must find data and found bytes that nobody wrote, or that a step buffer has lost."""
        s, out = self.walk.s, []
        for (step, x), parts in self.seen.items():
            flags, buffer = int(s.columns.acc_flags[x]), s.buffers[int(s.columns.acc_buffer[x])]
            if flags & (MAYBE | PREV_EPOCH):
                continue
            for _, _, stamp in parts:
                old = buffer.lifetime == Lifetime.STEP and stamp is not None and max(stamp[0], 0) != step
                if stamp is None or old:
                    out.append((step, x))
                    break
        return out


@dataclass(frozen=True, slots=True)
class Seen:
    """What one access found: ``touch`` is None for the bytes as they stand in the end."""

    touch: Touch | None
    parts: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class TwoOrders:
    """The same run, then the two tasks in either order: what is found in the bytes that both touch."""

    first: Instance
    second: Instance
    common: tuple[int, int]
    a: tuple[Seen, ...]  # first before second
    b: tuple[Seen, ...]  # second before first

    @property
    def differs(self) -> bool:
        return [x.parts for x in self.a] != [x.parts for x in self.b]


def two_orders(e: Explanation) -> TwoOrders:
    """Execute a conflict's run in both orders.

    Raises:
        ValueError: the explanation has no run, or is not about two tasks.
    """
    if e.state is None or not e.accesses:
        raise ValueError(f"finding {e.finding.rule} has no run of two tasks; replay one that has")
    if e.entry is not None:
        return _stop_orders(e)
    if e.common is None or len(e.state.enabled) != 2:
        raise ValueError(f"finding {e.finding.rule} has no run of two tasks; replay one that has")
    first, second = e.state.enabled
    return TwoOrders(first, second, e.common, _ordered(e, (first, second)), _ordered(e, (second, first)))


def _after(e: Explanation, order: Sequence[Instance] = ()) -> Bodies:
    """The run of the explanation, then these instances one after the other."""
    reached = [*order, *((x.step, x.task) for x in e.steps), *([] if e.entry is None else [e.entry])]
    walk = Walk(e.schedule, e.values, steps=1 + max(i for i, _ in reached), tags=e.tags)
    bodies = Bodies(walk)
    for queue in [x.queue for x in e.steps] + [walk.place[t][0] for _, t in order]:
        if walk.missing(queue) is not None:
            raise AssertionError("an instance of a witness cannot start where the witness has it start")
        bodies.run(walk.advance(queue))
    return bodies


def _ordered(e: Explanation, order: Sequence[Instance]) -> tuple[Seen, ...]:
    assert e.common is not None
    lo, hi = e.common
    bodies = _after(e, order)
    reads = [t for t in e.accesses if not t.write]
    if reads:
        return tuple(Seen(t, _clip(bodies.seen[t.step, t.access], lo, hi)) for t in reads)
    t = e.accesses[0]
    space, _ = bodies.place(t.buffer, t.rect, bodies.walk.place[t.task][0])
    return (Seen(None, tuple(bodies.memory.read(space, lo, hi))),)


def _stop_orders(e: Explanation) -> TwoOrders:
    """What the queue finds in the stop buffer: with the deciding task before it, and at the moment of the run."""
    assert e.entry is not None
    t = e.accesses[0]
    decides = (t.step, t.task)
    offset = e.schedule.buffers[t.buffer].offset
    lo, hi = t.ranges[0][0] + offset, t.ranges[0][1] + offset
    found = []
    for bodies in (_before_entry(e, decides), _after(e)):
        space, _ = bodies.place(t.buffer, t.rect, bodies.walk.place[t.task][0])
        found.append((Seen(None, tuple(bodies.memory.read(space, lo, hi))),))
    return TwoOrders(decides, e.entry, (lo, hi), found[0], found[1])


def _before_entry(e: Explanation, decides: Instance) -> Bodies:
    """The run, and whatever the deciding task needs, and that task; the queue of the entry stays where it is."""
    assert e.entry is not None
    bodies = _after(e)
    walk = bodies.walk
    limits = [len(ids) * (decides[0] + 1) for ids in walk.queues]
    limits[walk.place[decides[1]][0]] = walk.index(decides) + 1
    limits[walk.place[e.entry[1]][0]] = walk.index(e.entry)
    walk.run(limits, body=bodies.run)
    return bodies


def _clip(parts: Sequence[Segment], lo: int, hi: int) -> tuple[Segment, ...]:
    return tuple((max(a, lo), min(b, hi), stamp) for a, b, stamp in parts if max(a, lo) < min(b, hi))


# ---- whole launches
def replay_steps(s: Schedule) -> int:
    """Steps of a launch that fit the budget, at least one."""
    return max(1, min(s.steps, MAX_STEPS, MAX_INSTANCES // max(1, s.n_tasks)))


ORDERS: tuple[tuple[str, Callable[[int], int]], ...] = (
    ("queues in turn", lambda q: 0), ("first queue first", lambda q: q), ("last queue first", lambda q: -q),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch in one order: what reads found, which of them found bytes that nobody wrote, and who is stuck."""

    name: str
    ran: int
    seen: dict[tuple[int, int], tuple[Segment, ...]]
    unwritten: tuple[tuple[int, int], ...]
    blocked: tuple[Blocked, ...]


def launch(s: Schedule, name: str, prefer: Callable[[int], int], steps: int) -> Launch:
    """Run a launch in one fixed order."""
    walk = Walk(s, steps=steps)
    bodies = Bodies(walk)
    walk.run(prefer=prefer, body=bodies.run)
    return Launch(name, sum(walk.done), bodies.seen, tuple(bodies.unwritten()), blocked(walk))


def threads(s: Schedule, steps: int, spin_timeout_s: float, seed: int = 0) -> Launch:
    """Run a launch with one thread a queue.  Bodies run one at a time, in whatever order the threads come.

    A wait gives up once nothing has moved anywhere for ``spin_timeout_s`` seconds.
    """
    walk = Walk(s, steps=steps)
    bodies = Bodies(walk)
    lock = threading.Lock()
    moved = [threading.Event() for _ in walk.queues]
    waiting: dict[int, set[int]] = {}
    progress = [time.monotonic()]
    start = threading.Event()

    def move(q: int) -> bool:
        """One instance; false where the queue has to wait, which is noted."""
        lack = walk.missing(q)
        if lack is not None:
            moved[q].clear()
            waiting.setdefault(lack.counter, set()).add(q)
            return False
        event = walk.advance(q)
        bodies.run(event)
        progress[0] = time.monotonic()
        woken = {w for n, _, _ in event.changes for w in waiting.pop(n, ())} | waiting.pop(-1, set())
        for w in woken:
            moved[w].set()
        return True

    def queue(q: int) -> None:
        start.wait()
        while True:
            with lock:
                if walk.head(q) is None:
                    return
                stuck = not move(q)
                left = progress[0] + spin_timeout_s - time.monotonic()
            if stuck and not moved[q].wait(max(left, 0)):
                with lock:
                    if walk.missing(q) is not None and time.monotonic() >= progress[0] + spin_timeout_s:
                        return

    order = list(range(len(walk.queues)))
    random.Random(seed).shuffle(order)
    crew = [threading.Thread(target=queue, args=(q,), daemon=True) for q in order]
    for t in crew:
        t.start()
    progress[0] = time.monotonic()
    start.set()
    for t in crew:
        t.join()
    return Launch("one thread a queue", sum(walk.done), bodies.seen, tuple(bodies.unwritten()), blocked(walk))
