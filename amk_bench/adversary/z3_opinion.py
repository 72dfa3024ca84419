"""A second opinion by Z3: deadlocks and races of small schedules, as formulas about one execution.

The encoding follows the semantics of the interchange format and knows neither clocks nor greedy runs.  Each task of each step may
start and may end, and has a time for both; a start needs the end of the task before it on its queue, and, for every wait, enough
signals of tasks that have ended by then.  A model of the formula *is* an execution.

- **deadlock**: an execution in which nothing runs, something is left, and the next task of every queue waits for more than
  there is;
- **race**: an execution in which two tasks that touch a common byte, one of them writing, have both started and neither had ended
  when the other one started.

Launch variables are enumerated to find the bytes.  Accesses of tagged buffers belong to rule TAG and are no race; for deadlock a
read of a tag is over only when every writer of that tag has ended; it orders nothing else.

This module needs ``z3-solver`` (extra ``second-opinion``) and imports nothing of ``amk_core``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import z3

Json = Mapping[str, Any]
Instance = tuple[int, int]  # (step, task)
MAX_INSTANCES = 90  # tasks x steps that one formula may have
MAX_ASSIGNMENTS = 4096  # values of the launch variables that are enumerated
MAX_BYTES = 1 << 16  # of one access
MAX_COEFFICIENT = 1 << 10  # larger amounts are summed as integers, not as pseudo-booleans
TIMEOUT_MS = 30_000
ELEMENT_BITS = {
    "f64": 64, "i64": 64, "u64": 64, "tag64": 64, "f32": 32, "i32": 32, "u32": 32, "b32": 32, "bf16": 16, "f16": 16, "i16": 16,
    "u16": 16, "i8": 8, "u8": 8, "i4": 4, "u4": 4,
}  # fmt: skip


class TooLarge(ValueError):
    """The schedule is larger than this module writes out; the message says what."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What Z3 says.  None: it gave up.  ``race`` names two overlapping instances; with a deadlock it is about the first step only.

    ``steps`` is how far the steps were written out.
    """

    deadlock: bool | None
    race: bool | None
    steps: int
    pair: tuple[Instance, Instance] | None = None


def opinion(schedule: Json) -> Opinion:
    """The opinion on an interchange object that breaks neither REF nor COUNT.

    A deadlock is searched in one step and in all declared ones: a longer launch may get further, and must not get stuck elsewhere.
    A race is searched in all declared steps at once, since each shorter execution is the beginning of a longer one; where there is
    a deadlock, in the first step.

    Raises:
        TooLarge: more than MAX_INSTANCES tasks over all steps, or footprints beyond MAX_BYTES or MAX_ASSIGNMENTS.
    """
    steps = int(schedule.get("steps", 1))
    execution = Execution(schedule, steps)
    first = Execution(schedule, 1) if steps > 1 else execution
    answers = [first.deadlock()] + ([execution.deadlock()] if steps > 1 else [])
    if None in answers:
        return Opinion(None, None, steps)
    if answers[0] != answers[-1]:
        raise AssertionError(f"one step deadlocks: {answers[0]}, {steps} steps: {answers[-1]}; the two must agree")
    stuck = bool(answers[0])
    race, pair = (first if stuck else execution).race()
    return Opinion(stuck, race, 1 if stuck else steps, pair)


class Execution:
    """The formula of one execution of a schedule over ``steps`` steps."""

    def __init__(self, schedule: Json, steps: int) -> None:
        self.s, self.steps = schedule, steps
        self.tasks: Sequence[Json] = schedule["tasks"]
        if len(self.tasks) * steps > MAX_INSTANCES:
            raise TooLarge(f"{len(self.tasks)} tasks x {steps} steps, at most {MAX_INSTANCES} are written out")
        self.queues: list[list[Instance]] = [[(i, t) for i in range(steps) for t in q] for q in schedule["queues"]]
        self.before: dict[Instance, Instance | None] = {}
        self.queue_of: dict[Instance, int] = {}
        for q, chain in enumerate(self.queues):
            for k, x in enumerate(chain):
                self.before[x], self.queue_of[x] = chain[k - 1] if k else None, q
        self.per_step = [0] * len(schedule["counters"])
        self.producers: list[list[tuple[Instance, int]]] = [[] for _ in schedule["counters"]]
        for x in self.before:
            for c, amount in self.tasks[x[1]].get("signals", ()):
                self.producers[c].append((x, amount))
                self.per_step[c] += amount if x[0] == 0 else 0
        self.bytes = _Bytes(schedule, self.queue_of)
        self.started = {x: z3.Bool(f"started_{x[0]}_{x[1]}") for x in self.before}
        self.ended = {x: z3.Bool(f"ended_{x[0]}_{x[1]}") for x in self.before}
        self.start = {x: z3.Int(f"start_{x[0]}_{x[1]}") for x in self.before}
        self.end = {x: z3.Int(f"end_{x[0]}_{x[1]}") for x in self.before}
        self.rules = [rule for x in self.before for rule in self._rules(x)]

    def needs(self, x: Instance) -> list[tuple[int, int]]:
        """(counter, count) of every wait of an instance that does not hold trivially."""
        i, t = x
        waits = [(*w, 0)[:3] for w in self.tasks[t].get("waits", ())]
        return [(c, (i + e) * self.per_step[c] + n) for c, n, e in waits if i + e >= 0]

    def over(self, y: Instance, x: Instance) -> Any:
        """y has ended when x starts."""
        return z3.And(self.ended[y], self.end[y] <= self.start[x])

    def _rules(self, x: Instance) -> Iterable[Any]:
        before = self.before[x]
        yield z3.Implies(self.ended[x], z3.And(self.started[x], self.start[x] < self.end[x]))
        if before is not None:
            yield z3.Implies(self.started[x], self.over(before, x))
        for c, need in self.needs(x):
            by_then = [(self.over(y, x), amount) for y, amount in self.producers[c] if y != x]
            yield z3.Implies(self.started[x], _at_least(by_then, need))

    def solve(self, *goal: Any) -> Any:
        """A model, False for none, None where Z3 gives up."""
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*self.rules, *goal)
        answer = solver.check()
        return solver.model() if answer == z3.sat else (False if answer == z3.unsat else None)

    # ---- deadlock
    def blocked(self, x: Instance, tags: Mapping[Instance, set[Instance]]) -> Any:
        """x is the next task of its queue, and cannot go on with what has ended."""
        before = self.before[x]
        short = [z3.Not(_at_least([(self.ended[y], a) for y, a in self.producers[c]], need)) for c, need in self.needs(x)]
        short += [z3.Not(self.ended[y]) for y in tags.get(x, ())]
        here = [z3.Not(self.ended[x])] if before is None else [self.ended[before], z3.Not(self.ended[x])]
        return z3.Implies(z3.And(*here), z3.Or(*short) if short else z3.BoolVal(False))

    def stuck(self, tags: Mapping[Instance, set[Instance]]) -> Iterable[Any]:
        """Nothing runs, nothing can start, and whoever read tags has had them; a task that polls counts as one not started."""
        for x in self.before:
            had = [z3.And(self.ended[y], self.end[y] < self.end[x]) for y in tags.get(x, ())]
            yield z3.Implies(self.ended[x], z3.And(*had))
            yield self.started[x] == self.ended[x]
            yield self.blocked(x, tags)

    def deadlock(self) -> bool | None:
        """Whether some execution gets stuck; None: Z3 gave up."""
        if not self.before:
            return False
        tags = self.bytes.tag_waits(self.before)
        model = self.solve(*self.stuck(tags), z3.Or(*(z3.Not(self.ended[x]) for x in self.before)))
        return None if model is None else model is not False

    # ---- race
    def overlap(self, x: Instance, y: Instance) -> Any:
        """x and y have started, and neither had ended when the other one started."""
        return z3.And(self.started[x], self.started[y], z3.Not(self.over(x, y)), z3.Not(self.over(y, x)))

    def race(self) -> tuple[bool | None, tuple[Instance, Instance] | None]:
        """Whether two conflicting instances can overlap in time, and which."""
        pairs = self.bytes.conflicts(self.before)
        if not pairs:
            return False, None
        model = self.solve(z3.Or(*(self.overlap(x, y) for x, y in pairs)))
        if model is None or model is False:
            return model, None
        seen = (pair for pair in pairs if z3.is_true(model.eval(self.overlap(*pair), model_completion=True)))
        return True, next(seen)

    # ---- witnesses
    def confirms(self, completed: Sequence[int], both: Sequence[Sequence[int]]) -> bool | None:
        """Whether the witness of a race is an execution: so many tasks of every queue have ended, both instances run at once, and
        they touch a common byte.
        """
        x, y = ((int(i), int(t)) for i, t in both)
        if {x, y} - self.before.keys() or x == y:
            return False
        if not self.bytes.conflicts((x, y)):
            return False
        done = {z for q, chain in enumerate(self.queues) for z in chain[: completed[q]]}
        state = [self.ended[z] if z in done else z3.Not(self.ended[z]) for z in self.before]
        others = [z3.Not(self.started[z]) for z in self.before if z not in done | {x, y}]
        model = self.solve(*state, *others, self.overlap(x, y))
        return None if model is None else model is not False

    def stuck_at(self, places: Iterable[tuple[int, int]]) -> bool | None:
        """Whether some execution gets stuck with these (queue, position) next, each of them blocked."""
        tags = self.bytes.tag_waits(self.before)
        goal = []
        for q, position in places:
            if not 0 <= q < len(self.queues) or not 0 <= position < len(self.queues[q]):
                return False
            x = self.queues[q][position]
            goal += [self.blocked(x, tags), z3.Not(self.started[x])] + ([self.ended[before]] if (before := self.before[x]) else [])
        model = self.solve(*self.stuck(tags), *goal)
        return None if model is None else model is not False


def _at_least(terms: Sequence[tuple[Any, int]], need: int) -> Any:
    """The amounts of the true terms add up to ``need`` or more."""
    if need <= 0:
        return z3.BoolVal(True)
    if sum(amount for _, amount in terms) < need:
        return z3.BoolVal(False)
    if max(need, *(amount for _, amount in terms)) <= MAX_COEFFICIENT:
        return z3.PbGe(list(terms), need)
    return z3.Sum([z3.If(term, amount, 0) for term, amount in terms]) >= need


class _Bytes:
    """Which bytes each access touches, for every step and value of the launch variables."""

    def __init__(self, schedule: Json, queue_of: Mapping[Instance, int]) -> None:
        self.s, self.queue_of = schedule, queue_of
        self.names: dict[str, int] = {}
        ranges: list[range] = []
        for name, v in schedule.get("variables", {}).items():
            for k in range(v["count"]):
                self.names[f"{name}[{k}]"] = len(ranges)
                ranges.append(range(v["min"], v["max"] + 1))
            if v["count"] == 1:
                self.names.setdefault(name, len(ranges) - 1)
        self.ranges = ranges
        self.shared = {p["id"]: not p.get("per_queue", False) for p in schedule.get("pools", ({"id": "global"},))}

    def assignments(self, accesses: Iterable[Json]) -> Iterable[Mapping[int, int]]:
        """All values of the variables that the accesses name."""
        used: set[int] = set()
        for a in accesses:
            for r in (a["rows"], a["cols"]):
                if isinstance(r, Mapping):
                    bases = [x.get("base") for x in (r["start"], r["length"]) if isinstance(x, Mapping)]
                    used |= {self.names[b] for b in bases if isinstance(b, str)}
        order = sorted(used)
        size = 1
        for k in order:
            size *= len(self.ranges[k])
        if size > MAX_ASSIGNMENTS:
            raise TooLarge(f"{size} values of the launch variables, at most {MAX_ASSIGNMENTS} are enumerated")
        for values in itertools.product(*(self.ranges[k] for k in order)):
            yield dict(zip(order, values, strict=True))

    def interval(self, r: Any, step: int, values: Mapping[int, int]) -> range:
        if not isinstance(r, Mapping):
            return range(r[0], r[1])

        def linear(x: Any) -> int:
            if not isinstance(x, Mapping):
                return int(x)
            base = x.get("base")
            start = 0 if base is None else base if isinstance(base, int) else values[self.names[base]]
            return int(x.get("add", 0) + start + x.get("stride", 0) * step)

        first, length = linear(r["start"]), linear(r["length"])
        if isinstance(r["start"], Mapping) and r["start"].get("mod"):
            first %= r["start"]["mod"]
        return range(first, first + length)

    def touched(self, x: Instance, a: Json, values: Mapping[int, int]) -> set[tuple[str, int, int]]:
        """(pool, queue or -1, byte) of an access of an instance."""
        b = self.s["buffers"][a["buffer"]]
        pool, bits, width = b.get("pool", "global"), ELEMENT_BITS[b["dtype"]], b["shape"][-1]
        rows, cols = self.interval(a["rows"], x[0], values), self.interval(a["cols"], x[0], values)
        if len(rows) * len(cols) * bits > 8 * MAX_BYTES:
            raise TooLarge(f"an access of {len(rows)} x {len(cols)} elements, at most {MAX_BYTES} bytes are listed")
        space = -1 if self.shared[pool] else self.queue_of[x]
        out: set[tuple[str, int, int]] = set()
        if len(cols):
            for row in rows:
                lo, hi = (row * width + cols[0]) * bits, (row * width + cols[-1] + 1) * bits
                out.update((pool, space, b.get("offset", 0) + k) for k in range(lo // 8, -(-hi // 8)))
        return out

    def meet(self, x: Instance, a: Json, y: Instance, b: Json) -> bool:
        return any(self.touched(x, a, v) & self.touched(y, b, v) for v in self.assignments((a, b)))

    def tagged(self, a: Json) -> bool:
        return bool(self.s["buffers"][a["buffer"]].get("tagged", False))

    def conflicts(self, instances: Iterable[Instance]) -> list[tuple[Instance, Instance]]:
        """Pairs of instances of different queues that touch a common byte, one of them writing."""
        tasks = self.s["tasks"]
        plain = {
            x: [(a, kind == "writes") for kind in ("reads", "writes") for a in tasks[x[1]].get(kind, ()) if not self.tagged(a)]
            for x in instances
        }
        out = []
        for x, y in itertools.combinations(plain, 2):
            if self.queue_of[x] == self.queue_of[y]:
                continue
            if any((w or u) and self.meet(x, a, y, b) for a, w in plain[x] for b, u in plain[y]):
                out.append((x, y))
        return out

    def tag_waits(self, instances: Iterable[Instance]) -> dict[Instance, set[Instance]]:
        """Instance -> those that write the tags it certainly reads."""
        tasks, out = self.s["tasks"], dict[Instance, set[Instance]]()
        instances = list(instances)
        for x in instances:
            for a in tasks[x[1]].get("reads", ()):
                if not self.tagged(a) or a.get("maybe", False):
                    continue
                tag = x[0] + a.get("epoch", 0)
                for y in instances:
                    writes = tasks[y[1]].get("writes", ()) if y[0] == tag else ()
                    if any(self.tagged(b) and b["buffer"] == a["buffer"] and self.meet(x, a, y, b) for b in writes):
                        out.setdefault(x, set()).add(y)
        return out
