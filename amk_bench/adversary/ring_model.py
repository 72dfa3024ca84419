"""The loader's ring of vm/ring.cuh as a transition system, explored exhaustively.

What the model says, beside the lines of ring.cuh that it stands for:

==========================  ==========================================================================================
model                       ring.cuh
==========================  ==========================================================================================
``full[s]``, ``empty[s]``   mbarriers: (phases completed, arrivals in the current phase).  ``full`` takes one arrival
                            and the bytes of a bulk copy, or one arrival of each lane; ``empty`` one of each warp.
``test(phase, parity)``     ``mbarrier.test_wait.parity``: true iff the phase before the current one has this parity.
``poll``                    ``while (landed != issued && barrier_test(&ring.full[landing], landing_parity))``
``leave?``                  ``if (ring.leave || ring.broken)``
``cap``                     ``flight``, ``waiting`` and ``cap``, from one look at ``ring.eaten``; ``flight < cap``
``free?``                   ``barrier_test(&ring.empty[slot], free_parity)``
``vote``                    ``__any_sync(~0u, leave)``
``copy``                    ``copy_slot`` and the five lines behind it
``drain``                   the loop behind "No copy may be under way"
``go``                      ``sync_tasks()`` between tasks: all warps learn warp 0's decision
``wait``                    ``RingCursor::wait``
``release``, ``eat``        ``RingCursor::release``: the arrival on ``empty``, and for warp 0 ``eaten + 1``
==========================  ==========================================================================================

A slot index and a parity are functions of how many chunks have passed: chunk k lies in slot k % slots, in round k // slots.  The
parity of ``landing`` and of a cursor is round & 1, ``free_parity`` is 1 in round 0 and flips with every round.

Every read and write of shared state is a step of its own, copies land in any order (bulk: slot by slot; cp.async: in order for each
lane, lanes apart), warps drift apart inside a task, and a launch may end at any task boundary, because it stops or was aborted.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_STATES = 3_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """A ring and what passes through it.

    Args:
        chunks: copies of the whole launch.
        high, low: caps of copies in flight, while the ring is empty and while something waits in it.
        bulk: one bulk copy a slot by lane 0; otherwise every lane copies its part (cp.async).
        task: chunks of one task; the warps meet between tasks.
        aborts: the launch may end at any task boundary.
        timeouts: a warp's wait may run out of patience at any time, which breaks the launch.
        bug: a planted mistake, one of BUGS.
    """

    slots: int
    chunks: int
    high: int
    low: int
    bulk: bool = True
    warps: int = 2
    lanes: int = 1
    task: int = 1
    aborts: bool = True
    timeouts: bool = False
    bug: str = ""


# Planted mistakes, each of which the exploration must find.
BUGS = {
    "early release": "a warp releases its slot before it reads it",
    "one warp releases": "the first warp alone frees a slot for all",
    "wrong free parity": "free_parity starts at 0",
    "parity not flipped": "the loader's parities do not flip when the ring comes round",
    "cursor not flipped": "a warp's parity does not flip when the ring comes round",
    "no free test": "the loader does not wait for the slot to be free",
    "cap never raised": "the low cap holds while the ring is empty, and it is 0",
    "eaten not counted": "warp 0 does not count what it released",
    "no drain": "the loader leaves without waiting for its copies",
    "drain gives up": "the loader stops waiting for its copies as soon as the launch is broken",
    "no leave": "the loader does not look whether the task warps have left",
    "vote forgotten": "a lane that sees the end leaves alone",
}


class Lane(NamedTuple):
    at: str  # poll, leave?, cap, free?, vote, vote leave, copy, drain, gone
    issued: int
    landed: int


class Warp(NamedTuple):
    at: str  # go, wait, held, eat, out, gone
    chunk: int  # the next one


class State(NamedTuple):
    lanes: tuple[Lane, ...]
    warps: tuple[Warp, ...]
    full: tuple[tuple[int, int], ...]  # (phases completed, arrivals of this phase)
    empty: tuple[tuple[int, int], ...]
    flying: tuple[tuple[int, int], ...]  # (lane, chunk) of copies under way, oldest first
    data: tuple[tuple[int, int], ...]  # per slot: (chunk that its bytes belong to, parts that have landed)
    eaten: int
    leave: bool
    broken: bool


class Violation(Exception):
    """A property does not hold; the text says which."""


def test(s: State, barrier: tuple[int, int], parity: int, wanted: int) -> bool:
    """The hardware's answer about a phase by its parity; ``wanted`` is the phase that is meant.

    Raises:
        Violation: the parity could stand for another phase (in a broken launch that is harmless: nothing it computes is used).
    """
    if barrier[0] not in (wanted, wanted + 1) and not s.broken:
        raise Violation(f"parity {parity} of phase {wanted} is asked for, but {barrier[0]} phases are complete: ambiguous")
    return (barrier[0] & 1) != parity


def initial(c: Config) -> State:
    lane = Lane("poll" if c.chunks else "drain", 0, 0)
    nothing = tuple((0, 0) for _ in range(c.slots))
    return State(
        (lane,) * c.lanes, (Warp("go", 0),) * c.warps, nothing, nothing, (), tuple((-1, 0) for _ in range(c.slots)), 0, False, False
    )


def parts(c: Config) -> int:
    return 1 if c.bulk else c.lanes


def arrive(barrier: tuple[int, int], count: int) -> tuple[int, int]:
    return (barrier[0] + 1, 0) if barrier[1] + 1 == count else (barrier[0], barrier[1] + 1)


def _put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*items[:index], value, *items[index + 1 :])


def successors(c: Config, s: State) -> Iterator[tuple[str, State]]:
    """(what happens, the state behind it) for every step that some agent can take.

    Raises:
        Violation: the step breaks a property.
    """
    for lane in range(c.lanes):
        yield from _lane_steps(c, s, lane)
    yield from _votes(c, s)
    for k, (lane, chunk) in enumerate(s.flying):
        if c.bulk or all(other != lane for other, _ in s.flying[:k]):
            yield _land(c, s, lane, chunk)
    for w in range(c.warps):
        yield from _warp_steps(c, s, w)
    yield from _meetings(c, s)


# ---- the loader
def _lane_steps(c: Config, s: State, lane: int) -> Iterator[tuple[str, State]]:
    me = s.lanes[lane]

    def to(at: str, **changes: Any) -> State:
        return s._replace(lanes=_put(s.lanes, lane, me._replace(at=at)), **changes)

    if me.at in ("poll", "drain") and me.landed != me.issued:
        slot, phase = me.landed % c.slots, me.landed // c.slots
        parity = 0 if c.bug == "parity not flipped" else phase & 1
        ok = test(s, s.full[slot], parity, phase)
        if ok:
            yield f"L{lane} full {slot} {parity} 1", s._replace(lanes=_put(s.lanes, lane, me._replace(landed=me.landed + 1)))
        elif me.at == "poll":
            yield f"L{lane} full {slot} {parity} 0", to("leave?")
        if me.at == "drain" and (c.bug == "no drain" or (c.bug == "drain gives up" and s.broken)):
            yield _lane_goes(c, s, lane)
    elif me.at == "drain":
        yield _lane_goes(c, s, lane)
    elif me.at in ("poll", "leave?"):
        over = (s.leave or s.broken) and c.bug != "no leave"
        alone = over and c.bug == "vote forgotten"
        yield f"L{lane} leave {int(over)}", to("drain" if alone else "vote leave" if over else "cap")
    elif me.at == "cap":
        cap = c.low if me.landed - s.eaten > 0 or c.bug == "cap never raised" else c.high
        yield f"L{lane} eaten {s.eaten}", to("free?" if me.issued - me.landed < cap else "poll")
    elif me.at == "free?":
        slot, phase = me.issued % c.slots, me.issued // c.slots - 1
        parity = phase & 1 if c.bug not in ("wrong free parity", "parity not flipped") else phase & 1 ^ 1
        parity = 1 if c.bug == "parity not flipped" else parity
        ok = c.bug == "no free test" or test(s, s.empty[slot], parity, phase)
        yield f"L{lane} empty {slot} {parity} {int(ok)}", to("vote" if ok else "poll")
    elif me.at == "copy":
        yield _copy(c, s, lane)


def _votes(c: Config, s: State) -> Iterator[tuple[str, State]]:
    if all(x.at in ("vote", "vote leave") for x in s.lanes):
        leave = any(x.at == "vote leave" for x in s.lanes)
        yield f"V {int(leave)}", s._replace(lanes=tuple(x._replace(at="drain" if leave else "copy") for x in s.lanes))


def _copy(c: Config, s: State, lane: int) -> tuple[str, State]:
    me = s.lanes[lane]
    k, slot = me.issued, me.issued % c.slots
    flying, data = s.flying, s.data
    if lane == 0 or not c.bulk:
        if any(w.chunk <= k - c.slots for w in s.warps) and not s.broken:
            raise Violation(f"chunk {k} overwrites slot {slot}, which a warp has not released")
        if any(other % c.slots == slot and other != k for _, other in s.flying):
            raise Violation(f"two copies into slot {slot} are under way")
        flying = (*s.flying, (lane, k))
        data = s.data if s.data[slot][0] == k else _put(s.data, slot, (k, 0))
    after = Lane("poll" if k + 1 < c.chunks else "drain", k + 1, me.landed)
    return f"L{lane} copy {slot}", s._replace(lanes=_put(s.lanes, lane, after), flying=flying, data=data)


def _lane_goes(c: Config, s: State, lane: int) -> tuple[str, State]:
    if any(owner == lane for owner, _ in s.flying):
        raise Violation("the loader leaves while a copy is under way")
    return f"L{lane} gone", s._replace(lanes=_put(s.lanes, lane, s.lanes[lane]._replace(at="gone")))


def _land(c: Config, s: State, lane: int, chunk: int) -> tuple[str, State]:
    slot = chunk % c.slots
    if s.full[slot][0] != chunk // c.slots:
        raise Violation(f"chunk {chunk} completes phase {s.full[slot][0]} of slot {slot}")
    owner, landed = s.data[slot]
    return f"E{lane} land {slot}", s._replace(
        full=_put(s.full, slot, arrive(s.full[slot], parts(c))),
        flying=tuple(x for x in s.flying if x != (lane, chunk)),
        data=_put(s.data, slot, (owner, landed + 1)),
    )


# ---- the task warps
def _warp_steps(c: Config, s: State, w: int) -> Iterator[tuple[str, State]]:
    me = s.warps[w]
    slot, phase = me.chunk % c.slots, me.chunk // c.slots

    def check() -> None:
        if s.data[slot] != (me.chunk, parts(c)) and not s.broken:
            raise Violation(
                f"warp {w} reads chunk {me.chunk} in slot {slot}, which holds {s.data[slot][1]} parts of {s.data[slot][0]}"
            )

    def to(at: str, chunk: int, **changes: Any) -> State:
        return s._replace(warps=_put(s.warps, w, Warp(at, chunk)), **changes)

    def released() -> tuple[tuple[int, int], ...]:
        if s.empty[slot][0] != phase and not s.broken:
            raise Violation(f"warp {w} releases phase {s.empty[slot][0]} of slot {slot} instead of {phase}")
        return _put(s.empty, slot, arrive(s.empty[slot], 1 if c.bug == "one warp releases" else c.warps))

    if me.at == "wait":
        parity = 0 if c.bug == "cursor not flipped" else phase & 1
        if test(s, s.full[slot], parity, phase):
            early = c.bug == "early release"
            if not early:
                check()
            yield f"W{w} full {slot} {parity}", to("held", me.chunk, **({"empty": released()} if early else {}))
        if c.timeouts:
            yield f"W{w} timeout", to("held", me.chunk, broken=True)
    elif me.at == "held":
        check()
        free = s.empty if c.bug == "early release" or (c.bug == "one warp releases" and w) else released()
        after = to("eat" if w == 0 and c.bug != "eaten not counted" else _next(c, me.chunk + 1), me.chunk + 1, empty=free)
        yield f"W{w} release {slot}", after
    elif me.at == "eat":
        yield f"W{w} eaten", to(_next(c, me.chunk), me.chunk, eaten=s.eaten + 1)
    elif me.at == "out":
        yield f"W{w} gone", to("gone", me.chunk, leave=s.leave or w == 0)


def _next(c: Config, chunk: int) -> str:
    return "go" if chunk % c.task == 0 or chunk == c.chunks else "wait"


def _meetings(c: Config, s: State) -> Iterator[tuple[str, State]]:
    if any(w.at != "go" for w in s.warps):
        return
    over = s.warps[0].chunk == c.chunks
    if over or s.broken or c.aborts:
        yield "G leave", s._replace(warps=tuple(w._replace(at="out") for w in s.warps))
    if not over and not s.broken:
        yield "G go", s._replace(warps=tuple(w._replace(at="wait") for w in s.warps))


def _over(s: State) -> bool:
    return all(x.at == "gone" for x in s.lanes) and all(x.at == "gone" for x in s.warps)


# ---- exploration
@dataclass(frozen=True, slots=True)
class Answer:
    """``problem`` is None where all properties hold; otherwise ``trace`` is a shortest run that leads to it."""

    states: int
    problem: str | None = None
    trace: tuple[str, ...] = ()


def explore(c: Config) -> Answer:
    """Walk every reachable state: no violation, and from every state the end can still be reached.

    Raises:
        ValueError: more than MAX_STATES states.
    """
    start = initial(c)
    cause: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {}
    ends = []
    todo = deque([start])

    def trace(s: State) -> tuple[str, ...]:
        out = []
        while (step := cause[s]) is not None:
            s, label = step
            out.append(label)
        return tuple(reversed(out))

    while todo:
        s = todo.popleft()
        if _over(s):
            ends.append(s)
            continue
        try:
            steps = list(successors(c, s))
        except Violation as v:
            return Answer(len(cause), str(v), trace(s))
        for label, after in steps:
            if after not in cause:
                cause[after] = (s, label)
                todo.append(after)
                if len(cause) > MAX_STATES:
                    raise ValueError(f"more than {MAX_STATES} states: {c}")
            before.setdefault(after, []).append(s)
    alive = set(ends)
    todo = deque(ends)
    while todo:
        for s in before.get(todo.popleft(), ()):
            if s not in alive:
                alive.add(s)
                todo.append(s)
    for s in cause:  # in the order of discovery: the first one is nearest
        if s not in alive:
            return Answer(len(cause), "the end cannot be reached any more", trace(s))
    return Answer(len(cause))


def accepts(c: Config, events: Iterable[str]) -> str | None:
    """None when the model can take these steps one after the other and end; else what it cannot do."""
    s = initial(c)
    for n, event in enumerate(events):
        steps = dict(successors(c, s))
        if event not in steps:
            return f"event {n}, {event!r}, is not one of {sorted(steps)}"
        s = steps[event]
    return None if _over(s) else "the run ends before its agents are gone"


def configurations(slots: int, *, lanes: Iterable[int] = (1, 2), warps: Iterable[int] = (1, 2)) -> Iterator[Config]:
    """Every chunk count up to three rounds, every pair of caps, both kinds of copies, tasks of one chunk and of many."""
    for chunks, high, n_lanes, n_warps in itertools.product(range(3 * slots + 1), range(1, slots + 1), lanes, warps):
        for low, bulk, task in itertools.product(range(1, high + 1), (True, False), (1, max(2, slots + 1))):
            yield Config(slots, chunks, high, low, bulk, n_warps, n_lanes, task)


def main(argv: list[str] | None = None) -> int:
    """0: every configuration holds; 1: a trace is printed."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.ring_model", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--slots", type=int, default=2)
    p.add_argument("--lanes", type=int, default=2)
    p.add_argument("--warps", type=int, default=2)
    a = p.parse_args(argv)
    start, n, states = time.monotonic(), 0, 0
    for slots in range(1, a.slots + 1):
        for c in configurations(slots, lanes=range(1, a.lanes + 1), warps=range(1, a.warps + 1)):
            answer = explore(c)
            n, states = n + 1, states + answer.states
            if answer.problem is not None:
                print(c, answer.problem, *answer.trace, sep="\n  ")
                return 1
        print(f"up to {slots} slots: {n} configurations, {states} states, {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
