"""Seeded generators of whole schedules: random nets, placed programs with synthesised synchronisation, and loops."""

from __future__ import annotations

from amk_bench.adversary.net import Json, Net, Rng, access

# Positions a queue may have over all steps, by number of queues: keeps the oracle's state space below about 50 000.
MAX_POSITIONS = {1: 60, 2: 40, 3: 20, 4: 12}


def random_net(rng: Rng) -> Json:
    """Random tasks, counters, thresholds and footprints: mostly unsafe, many partial thresholds."""
    queues = rng.choice((2, 2, 3, 3, 4))
    steps = rng.choice((1, 1, 1, 2, 3))
    per_queue = max(1, min(5, MAX_POSITIONS[queues] // steps))
    n = Net(queues, steps)
    buffers = [n.buffer(4, lifetime="persistent", filled=True) for _ in range(rng.randint(1, 4))]
    counters = [n.counter() for _ in range(rng.randint(1, 4))]
    for q in range(queues):
        for _ in range(rng.randint(1, per_queue)):
            reads, writes = [], []
            for _ in range(rng.choice((0, 1, 1))):
                lo = rng.randrange(4)
                reads.append(access(rng.choice(buffers), (lo, rng.randint(lo + 1, 4))))
            for _ in range(rng.choice((0, 0, 1))):
                lo = rng.randrange(4)
                writes.append(access(rng.choice(buffers), (lo, min(4, lo + 1 + rng.randrange(2)))))
            signals = [(rng.choice(counters), rng.choice((1, 1, 1, 2))) for _ in range(rng.choice((0, 1, 1, 2)))]
            n.task(q, reads, writes, [], signals)
    s = n.json()
    totals = [c["per_step"] for c in s["counters"]]
    for t in s["tasks"]:
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            c = rng.choice(counters)
            if totals[c]:
                e = -1 if steps > 1 and rng.random() < 0.6 else 0
                t["waits"].append([c, rng.randint(1, totals[c]), e])
    if rng.random() < 0.6:  # forward waits only: fewer deadlocks, more races
        first = {
            c: min((j for q in n.queues for j, t in enumerate(q) if any(g[0] == c for g in s["tasks"][t]["signals"])), default=99)
            for c in counters
        }
        for ids in n.queues:
            for j, t in enumerate(ids):
                s["tasks"][t]["waits"] = [w for w in s["tasks"][t]["waits"] if w[2] or first[w[0]] < j]
    return s


def _overlap(a: Json, b: Json, buffers: list[Json]) -> bool:
    """Physical overlap of two plain accesses of one-row buffers."""
    x, y = buffers[a["buffer"]], buffers[b["buffer"]]
    if x["pool"] != y["pool"]:
        return False
    lo_x, hi_x = (x["offset"] + 4 * c for c in a["cols"])
    lo_y, hi_y = (y["offset"] + 4 * c for c in b["cols"])
    return bool(lo_x < hi_y and lo_y < hi_x)


def conflict(a: Json, b: Json, buffers: list[Json]) -> bool:
    """Whether two tasks touch a common byte that one of them writes (one-row buffers of 4-byte elements)."""
    pairs = [(x, y) for x in a["writes"] for y in b["reads"] + b["writes"]] + [(x, y) for x in a["reads"] for y in b["writes"]]
    return any(_overlap(x, y, buffers) for x, y in pairs)


def program(rng: Rng, n: Net, tasks: int, width: int = 4) -> None:
    """Append ``tasks`` tasks in an order that makes sense one after the other, on random queues, without synchronisation."""
    steps_life = [rng.choice(("step", "persistent")) for _ in range(rng.randint(2, 4))]
    buffers = [n.buffer(width, lifetime=life, filled=life == "persistent") for life in steps_life]
    weight = n.buffer(width, kind="weight", lifetime="persistent", filled=True)
    out = n.buffer(width, kind="output", lifetime="persistent")
    written: dict[int, set[int]] = {
        b: set(range(width)) if life == "persistent" else set() for b, life in zip(buffers, steps_life, strict=True)
    }
    for i in range(tasks):
        reads = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            ready = [b for b in buffers if written[b]]
            if not ready:
                break
            b = rng.choice(ready)
            lo = rng.choice(sorted(written[b]))
            hi = lo + 1
            while hi in written[b] and rng.random() < 0.7:
                hi += 1
            reads.append(access(b, (lo, hi)))
        if rng.random() < 0.3:
            reads.append(access(weight, (0, width)))
        target = out if i == tasks - 1 else rng.choice(buffers)
        lo = 0 if target == out else rng.choice((0, 0, 1, 2))
        hi = width if target == out else min(width, lo + rng.choice((1, 2, 4)))
        if target != out:
            written[target] |= set(range(lo, hi))
        n.task(rng.randrange(len(n.queues)), reads, [access(target, (lo, hi))])


def synchronise(rng: Rng, n: Net) -> None:
    """Give every conflict of a program (ids are program order) an order, in one of several styles."""
    where = {t: (q, j) for q, ids in enumerate(n.queues) for j, t in enumerate(ids)}
    needs: dict[int, list[tuple[int, int]]] = {b: [] for b in range(len(n.tasks))}
    for a in range(len(n.tasks)):
        for b in range(len(n.tasks)):
            if where[a][0] == where[b][0] or not conflict(n.tasks[a], n.tasks[b], n.buffers):
                continue
            if a < b:
                needs[b].append((a, 0))
            if n.steps > 1:
                needs[b].append((a, -1))
    style = rng.choice(("task", "queue", "consumer", "mixed"))
    keep_all = rng.random() < 0.4
    task_counter: dict[int, int] = {}
    queue_counter: dict[int, int] = {}

    def signal(t: int, c: int) -> None:
        n.tasks[t]["signals"].append([c, 1])

    for b, list_ in needs.items():
        if not keep_all:  # only the last task of a queue matters; a same-step order of everything also covers the step before
            last: dict[tuple[int, int], int] = {}
            for a, e in list_:
                key = (where[a][0], e)
                if key not in last or where[a][1] > where[last[key]][1]:
                    last[key] = a
            list_ = [(a, e) for (_, e), a in last.items()]
        group: dict[int, list[int]] = {}
        for a, e in list_:
            how = rng.choice(("task", "queue", "consumer")) if style == "mixed" else style
            if how == "task":
                if a not in task_counter:
                    task_counter[a] = n.counter()
                    signal(a, task_counter[a])
                n.tasks[b]["waits"].append([task_counter[a], 1, e])
            elif how == "queue":
                q, j = where[a]
                if q not in queue_counter:
                    queue_counter[q] = n.counter()
                    for t in n.queues[q]:
                        signal(t, queue_counter[q])
                n.tasks[b]["waits"].append([queue_counter[q], j + 1, e])
            else:
                group.setdefault(e, []).append(a)
        for e, producers in group.items():
            c = n.counter()
            for a in producers:
                signal(a, c)
            n.tasks[b]["waits"].append([c, len(producers), e])


def _spread(rng: Rng, steps: int) -> tuple[int, int]:
    queues = rng.choice((2, 2, 3, 3, 4))
    return queues, max(3, min(14, (MAX_POSITIONS[queues] // steps) * queues * 3 // 4))


def _fits(n: Net) -> bool:
    return all(len(q) * n.steps <= MAX_POSITIONS[len(n.queues)] for q in n.queues)


def placed(rng: Rng, steps: int = 1) -> Json:
    """A program placed on queues with complete synchronisation.

    Safe by construction for one step; over several steps a producer that runs ahead may open a join that others have not reached.
    """
    while True:
        queues, most = _spread(rng, steps)
        n = Net(queues, steps)
        program(rng, n, rng.randint(max(2, most // 2), most))
        if _fits(n):
            synchronise(rng, n)
            return n.json()


def loop(rng: Rng) -> Json:
    """A placed program of 2 to 6 steps, with waits on the step before, shared counters and overtaking; sometimes thinned."""
    s = placed(rng, rng.choice((2, 2, 3, 3, 4, 5, 6)))
    if rng.random() < 0.5:
        for t in s["tasks"]:
            t["waits"] = [w for w in t["waits"] if rng.random() < 0.85]
    return s


def dag(rng: Rng) -> Json:
    """A one-step program whose synchronisation lost a few waits."""
    s = placed(rng, 1)
    for t in s["tasks"]:
        t["waits"] = [w for w in t["waits"] if rng.random() < 0.9]
    return s
