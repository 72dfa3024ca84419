"""What an explanation of a finding holds, and its words for a person."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amk_core.schedule.ir import Schedule
from amk_core.schedule.messages import Wording
from amk_core.schedule.validate import Finding
from amk_core.schedule.walk import TAG, Event, Instance, Missing, Rect, Walk

SHOWN = 24  # steps and blocked queues printed in full; of longer lists both ends are
SIGNALLERS = 4  # tasks named for each wait


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
