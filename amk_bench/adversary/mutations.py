"""Single mutations of safe schedules.  A mutant may still be safe: the oracle relabels every one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from amk_bench.adversary.generators import placed
from amk_bench.adversary.net import Json, Rng, recount
from amk_bench.adversary.real import lowered

Operator = Callable[[Rng, Json], None]
Base = Callable[[Rng], Json]


def base(rng: Rng) -> Json:
    """A safe schedule: a placed program of one or several steps, or a tiny real lowering."""
    x = rng.random()
    if x < 0.4:
        return placed(rng, 1)
    return placed(rng, rng.choice((2, 3, 4))) if x < 0.8 else lowered(rng)


def settle(s: Json) -> None:
    """Make COUNT hold again, so that a mutant is judged by what it does and not by its book-keeping."""
    recount(s)
    total = [c["per_step"] for c in s["counters"]]
    for t in s["tasks"]:
        t["waits"] = [[c, max(1, min(n, total[c])), e] for c, n, e in t["waits"] if total[c] > 0]


def _pick(rng: Rng, s: Json, what: str) -> tuple[Json, int] | None:
    """A random (task, index) among the waits, signals, reads or writes of all tasks."""
    found = [(t, k) for t in s["tasks"] for k in range(len(t[what]))]
    return rng.choice(found) if found else None


def _place(s: Json, task: int) -> tuple[list[int], int]:
    for q in s["queues"]:
        if task in q:
            return q, q.index(task)
    raise ValueError(f"task {task} stands in no queue")


def drop_wait(rng: Rng, s: Json) -> None:
    if found := _pick(rng, s, "waits"):
        del found[0]["waits"][found[1]]


def threshold_minus_one(rng: Rng, s: Json) -> None:
    wide = [w for t in s["tasks"] for w in t["waits"] if w[1] > 1 or rng.random() < 0.1]
    if wide:
        rng.choice(wide)[1] -= 1


def threshold_plus_one(rng: Rng, s: Json) -> None:
    waits = [w for t in s["tasks"] for w in t["waits"]]
    below = [w for w in waits if w[1] < s["counters"][w[0]]["per_step"]]
    if below and rng.random() < 0.85:
        rng.choice(below)[1] += 1
    elif waits:
        rng.choice(waits)[1] += 1


def wrong_counter(rng: Rng, s: Json) -> None:
    if (found := _pick(rng, s, "waits")) and len(s["counters"]) > 1:
        w = found[0]["waits"][found[1]]
        w[0] = rng.choice([c for c in range(len(s["counters"])) if c != w[0]])
        settle(s)


def drop_signal(rng: Rng, s: Json) -> None:
    if found := _pick(rng, s, "signals"):
        del found[0]["signals"][found[1]]
        if rng.random() < 0.9:
            settle(s)


def duplicate_signal(rng: Rng, s: Json) -> None:
    if found := _pick(rng, s, "signals"):
        signal = found[0]["signals"][found[1]]
        found[0]["signals"].append(list(signal))
        recount(s)
        if rng.random() < 0.5:  # and everyone who waited for all of them still does
            c, total = signal[0], s["counters"][signal[0]]["per_step"]
            for t in s["tasks"]:
                t["waits"] = [[k, total if k == c and n == total - signal[1] else n, e] for k, n, e in t["waits"]]


def redirect_signal(rng: Rng, s: Json) -> None:
    if (found := _pick(rng, s, "signals")) and len(s["counters"]) > 1:
        signal = found[0]["signals"][found[1]]
        signal[0] = rng.choice([c for c in range(len(s["counters"])) if c != signal[0]])
        settle(s)


def duplicate_task(rng: Rng, s: Json) -> None:
    """The same task once more, in a random queue place; its signals count twice."""
    t = copy.deepcopy(rng.choice(s["tasks"]))
    if rng.random() < 0.5:
        t["signals"] = []
    old = t["id"]
    t["id"] = len(s["tasks"])
    s["tasks"].append(t)
    q = _place(s, old)[0] if rng.random() < 0.5 else rng.choice(s["queues"])
    q.insert(rng.randint(0, len(q)), t["id"])
    recount(s)


def merge_counters(rng: Rng, s: Json) -> None:
    """Two counters become one; thresholds stay, or are raised by what the other one adds."""
    if len(s["counters"]) < 2:
        return
    a, b = rng.sample(range(len(s["counters"])), 2)
    raised = rng.random() < 0.5
    extra = {a: s["counters"][b]["per_step"] if raised else 0, b: s["counters"][a]["per_step"] if raised else 0}
    for t in s["tasks"]:
        for w in t["waits"]:
            if w[0] in (a, b):
                w[0], w[1] = a, w[1] + extra[w[0]]
        for g in t["signals"]:
            if g[0] == b:
                g[0] = a
    settle(s)


def split_counter(rng: Rng, s: Json) -> None:
    """Half of the signals of a counter go to a new one; its waits choose one of the two, or take both."""
    if not s["counters"]:
        return
    c, new = rng.randrange(len(s["counters"])), len(s["counters"])
    s["counters"].append({"id": new, "name": "split", "per_step": 0})
    for t in s["tasks"]:
        for g in t["signals"]:
            if g[0] == c and rng.random() < 0.5:
                g[0] = new
    recount(s)
    both = rng.random() < 0.5
    for t in s["tasks"]:
        for w in [w for w in t["waits"] if w[0] == c]:
            if both:
                t["waits"].append([new, s["counters"][new]["per_step"], w[2]])
                w[1] = s["counters"][c]["per_step"]
            elif rng.random() < 0.5:
                w[0] = new
    settle(s)


def swap_in_queue(rng: Rng, s: Json) -> None:
    q = rng.choice(s["queues"])
    if len(q) > 1:
        i = rng.randrange(len(q) - 1)
        j = i + 1 if rng.random() < 0.7 else rng.randrange(len(q))
        q[i], q[j] = q[j], q[i]


def move_across(rng: Rng, s: Json) -> None:
    q = rng.choice([q for q in s["queues"] if q])
    t = q.pop(rng.randrange(len(q)))
    to = rng.choice(s["queues"])
    to.insert(rng.randint(0, len(to)), t)


def swap_across(rng: Rng, s: Json) -> None:
    full = [q for q in s["queues"] if q]
    a, b = rng.choice(full), rng.choice(full)
    i, j = rng.randrange(len(a)), rng.randrange(len(b))
    a[i], b[j] = b[j], a[i]


def late_wait(rng: Rng, s: Json) -> None:
    """A wait moves to the task behind, as when a loader fetches before the consumer waits."""
    if found := _pick(rng, s, "waits"):
        task, k = found
        q, i = _place(s, task["id"])
        wait = task["waits"].pop(k)
        if i + 1 < len(q):
            s["tasks"][q[i + 1]]["waits"].append(wait)


def self_wait(rng: Rng, s: Json) -> None:
    """A task waits for a counter that it signals itself."""
    if found := _pick(rng, s, "signals"):
        c = found[0]["signals"][found[1]][0]
        total = s["counters"][c]["per_step"]
        found[0]["waits"].append([c, rng.choice((total, rng.randint(1, total))), rng.choice((0, 0, -1))])


def flip_epoch(rng: Rng, s: Json) -> None:
    """A wait for this step becomes one for the step before, or the other way round."""
    if found := _pick(rng, s, "waits"):
        w = found[0]["waits"][found[1]]
        w[2] = -1 - w[2]


def _tile(rng: Rng, s: Json) -> tuple[list[int], int] | None:
    """(plain column range, columns of its buffer) of a random access."""
    found = _pick(rng, s, rng.choice(("writes", "writes", "reads")))
    if not found:
        return None
    acc = found[0]["writes" if found[1] < len(found[0]["writes"]) and rng.random() < 0.7 else "reads"]
    if not acc:
        return None
    a = rng.choice(acc)
    return (a["cols"], s["buffers"][a["buffer"]]["shape"][-1]) if isinstance(a["cols"], list) else None


def grow_tile(rng: Rng, s: Json) -> None:
    if tile := _tile(rng, s):
        cols, width = tile
        if rng.random() < 0.5:
            cols[0] = max(0, cols[0] - 1)
        else:
            cols[1] = min(width, cols[1] + rng.choice((1, 2)))


def shift_tile(rng: Rng, s: Json) -> None:
    if tile := _tile(rng, s):
        cols, width = tile
        d = rng.choice([d for d in (-2, -1, 1, 2) if cols[0] + d >= 0 and cols[1] + d <= width] or [0])
        cols[0] += d
        cols[1] += d


def out_of_bounds_tile(rng: Rng, s: Json) -> None:
    if tile := _tile(rng, s):
        cols, width = tile
        d = rng.choice((0, 1, 5, 2**40))  # 0: exactly at the edge
        if rng.random() < 0.3:
            cols[0] = -d
        else:
            cols[1] = width + d


def alias_buffers(rng: Rng, s: Json) -> None:
    """One buffer moves onto (a part of) another."""
    if len(s["buffers"]) > 1:
        a, b = rng.sample(s["buffers"], 2)
        a["pool"], a["offset"] = b["pool"], b["offset"] + rng.choice((0, 0, 4, 8))


def under_declared_read(rng: Rng, s: Json) -> None:
    """A read shrinks or vanishes: invisible for opaque tasks, a footprint that differs from the contract for real ops."""
    if found := _pick(rng, s, "reads"):
        task, k = found
        cols = task["reads"][k]["cols"]
        if isinstance(cols, list) and cols[1] - cols[0] > 1 and rng.random() < 0.5:
            cols[1] -= 1
        else:
            del task["reads"][k]


def missing_producer(rng: Rng, s: Json) -> None:
    """A barrier loses one of its producers, and is lowered so that it still opens."""
    joins = [c["id"] for c in s["counters"] if c["per_step"] > 1]
    if not joins:
        return drop_wait(rng, s)
    c = rng.choice(joins)
    producers = [t for t in s["tasks"] if any(g[0] == c for g in t["signals"])]
    t = rng.choice(producers)
    t["signals"] = [g for g in t["signals"] if g[0] != c]
    settle(s)
    return None


def uncovered_read(rng: Rng, s: Json) -> None:
    """A write or a range of initial data vanishes."""
    if s["initial"] and rng.random() < 0.5:
        del s["initial"][rng.randrange(len(s["initial"]))]
    elif found := _pick(rng, s, "writes"):
        del found[0]["writes"][found[1]]


def uncovered_output(rng: Rng, s: Json) -> None:
    """A write to an output buffer becomes narrower, or only may happen."""
    outputs = {b["id"] for b in s["buffers"] if b["kind"] == "output"}
    found = [a for t in s["tasks"] for a in t["writes"] if a["buffer"] in outputs]
    if found:
        a = rng.choice(found)
        if isinstance(a["cols"], list) and a["cols"][1] - a["cols"][0] > 1 and rng.random() < 0.7:
            a["cols"][rng.randrange(2)] += 1 if rng.random() < 0.5 else -1
            width = s["buffers"][a["buffer"]]["shape"][-1]
            a["cols"][0], a["cols"][1] = max(0, a["cols"][0]), min(width, a["cols"][1])
        else:
            a["maybe"] = True


def permuted_ids(rng: Rng, s: Json) -> None:
    """Ids that differ from positions, in the declaration or in the queues."""
    if rng.random() < 0.5 and len(s["tasks"]) > 1:
        a, b = rng.sample(s["tasks"], 2)
        a["id"], b["id"] = b["id"], a["id"]
    elif rng.random() < 0.5:
        rng.choice(s["tasks"])["id"] += rng.choice((1, -1, 100))
    else:
        q = rng.choice([q for q in s["queues"] if q])
        q[rng.randrange(len(q))] = rng.choice((rng.randrange(len(s["tasks"])), len(s["tasks"]), -1))


def counter_wrap(rng: Rng, s: Json) -> None:
    """Amounts are scaled up: 31 bits may not hold the total of all steps."""
    if not s["counters"]:
        return
    c = rng.randrange(len(s["counters"]))
    total = s["counters"][c]["per_step"]
    if total == 0:
        return
    limit = (2**31 - 1) // (total * s["steps"])
    factor = rng.choice((2, limit, limit + 1, 2 * limit))
    for t in s["tasks"]:
        for g in t["signals"]:
            g[1] *= factor if g[0] == c else 1
        for w in t["waits"]:
            w[1] *= factor if w[0] == c else 1
    recount(s)


def shared_memory_overflow(rng: Rng, s: Json) -> None:
    """Some activations move to shared memory (one instance a queue) of a target that may be too small."""
    s["pools"] = [*s["pools"], {"id": "smem", "bytes": None, "per_queue": True}]
    top = 0
    movable = [b for b in s["buffers"] if b["kind"] == "activation"]
    for b in rng.sample(movable, min(len(movable), rng.randint(1, 2))):
        size = b["shape"][0] * b["shape"][-1] * 8
        b["pool"], b["offset"] = "smem", top
        top += size
    s["pools"][-1]["bytes"] = top
    s["target"] = {
        "sms": max(1, len(s["queues"]) - rng.choice((0, 0, 0, 1))),
        "smem_bytes": max(0, top - rng.choice((0, 0, 1))),
        "arch": "sm_90",
    }


def dangling_reference(rng: Rng, s: Json) -> None:
    """A wait, a signal, an access or the stop names something that does not exist."""
    what = rng.choice(("waits", "signals", "reads", "writes", "stop", "pool"))
    if what in ("waits", "signals"):
        if found := _pick(rng, s, what):
            found[0][what][found[1]][0] = rng.choice((len(s["counters"]), -1))
    elif what in ("reads", "writes"):
        if found := _pick(rng, s, what):
            found[0][what][found[1]]["buffer"] = rng.choice((len(s["buffers"]), -1))
    elif what == "stop":
        s["stop"] = {"buffer": len(s["buffers"]), "task": len(s["tasks"])}
    else:
        rng.choice(s["buffers"])["pool"] = "nowhere"


def wrong_per_step(rng: Rng, s: Json) -> None:
    """A counter that starts elsewhere or expects another number of signals."""
    if s["counters"]:
        rng.choice(s["counters"])["per_step"] += rng.choice((-1, 1, 2))


OPERATORS: dict[str, Operator] = {
    f.__name__: f
    for f in (
        drop_wait, threshold_minus_one, threshold_plus_one, wrong_counter, drop_signal, duplicate_signal, redirect_signal,
        duplicate_task, merge_counters, split_counter, swap_in_queue, move_across, swap_across, late_wait, self_wait, flip_epoch,
        grow_tile, shift_tile, out_of_bounds_tile, alias_buffers, under_declared_read, missing_producer, uncovered_read,
        uncovered_output, permuted_ids, counter_wrap, shared_memory_overflow, dangling_reference, wrong_per_step,
    )
}  # fmt: skip


def mutant(operator: Operator, source: Base = base) -> Base:
    """The generator of mutants of one class."""

    def generate(rng: Rng) -> Any:
        s = source(rng)
        operator(rng, s)
        return s

    generate.__name__ = operator.__name__
    generate.__doc__ = operator.__doc__
    return generate
