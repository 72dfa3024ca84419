"""Small random tables and certificates for the mutants of the checker: few tasks, ranges of every kind, any distance.

The clocks depend on waits and signals alone, so any accesses can be put on the tasks of a net and be judged under its certificate.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from amk_bench.adversary.net import Json, Net, Range, Rng, access
from amk_core.schedule import validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import pack

Case = tuple[bytes, Certificate]
DISTANCES = (None, 0, 1, 2, 3)
DTYPES = ("f32", "f32", "bf16", "i8", "i4", "i4")
MOST_STEPS = 9


def _chain(n: Net, source: Json, distance: int | None) -> list[list[int]]:
    """Waits that order ``source`` before whoever has them, from that many steps later on; None: not at all."""
    if distance is None:
        return []
    c = n.counter()
    source["signals"].append([c, 1])
    if distance == 0:
        return [[c, 1, 0]]
    for _ in range(distance - 1):
        n.queues.append([])
        nxt = n.counter()
        n.task(len(n.queues) - 1, [], [], [(c, 1, -1)], [(nxt, 1)])
        c = nxt
    return [[c, 1, -1]]


def pair(forward: int | None, backward: int | None, steps: int) -> Net:
    """Tasks 0 and 1 on two queues: 0 before 1 from ``forward`` steps later on, 1 before 0 from ``backward`` on."""
    n = Net(2, steps)
    n.task(0), n.task(1)
    n.tasks[1]["waits"] += _chain(n, n.tasks[0], forward)
    n.tasks[0]["waits"] += _chain(n, n.tasks[1], backward)
    return n


def written_out(c: Certificate, lengths: list[int], unroll: int) -> Certificate:
    """Periodic clocks as those of ``unroll`` steps, each with a row of its own."""
    off, row, queue, value = c.row_off.tolist(), c.row.tolist(), c.row_queue.tolist(), c.row_value.tolist()
    offs, queues, values = [0], [], []
    for i in range(unroll):
        for b in range(c.n_tasks):
            for x in range(off[row[b]], off[row[b] + 1]):
                length = lengths[queue[x]]
                if (v := i * length + value[x]) > 0:
                    queues.append(queue[x])
                    values.append(min(v, unroll * length))
            offs.append(len(queues))
    rows = np.arange(unroll * c.n_tasks, dtype=np.int32)
    return dataclasses.replace(
        c, unroll=unroll, row=rows, row_off=np.array(offs, np.int64), row_queue=np.array(queues, np.int32),
        row_value=np.array(values, np.int32),
    )  # fmt: skip


def _range(rng: Rng, top: int, moving: float) -> Range:
    """Plain, moving, modular, of a length that changes or depends on a variable, empty: it fits into ``top``, or nearly."""
    if rng.random() > moving:
        lo = rng.randint(0, top - 1)
        return [lo, max(lo, rng.randint(lo, top + (rng.random() < 0.1)))] if rng.random() < 0.9 else [0, top]
    start: Json = {
        "stride": rng.choice((0, 0, 1, 1, 1, 2, -1)),
        "mod": rng.choice((None, None, None, 1, 2, 3, 5)),
        "add": rng.randint(-1, top),
    }
    if rng.random() < 0.25:
        start["base"] = rng.choice(("p[0]", "p[1]", "w[0]"))
    length: Any = rng.choice((0, 1, 1, 1, 1, 2, 2, 3, top))
    if rng.random() < 0.25:
        length = {"stride": rng.choice((0, 0, 1, -1)), "add": rng.choice((-1, 0, 1, 1, 2))}
        if rng.random() < 0.5:
            length["base"] = rng.choice(("p[0]", "p[1]", "w[0]"))
    return {"start": start, "length": length}


def _buffers(rng: Rng, n: Net) -> list[tuple[int, int, int]]:
    """(buffer, rows, columns): one, or two that share bytes or nearly do, at times tagged or with an instance for each queue."""
    kind = rng.random()
    rows, cols, dtype = rng.choice((1, 1, 4, 9, 12)), rng.choice((1, 2, 3, 4)), rng.choice(DTYPES)
    if kind < 0.12:
        dtype = "tag64"
    if 0.12 <= kind < 0.16:
        n.pool("own", None, per_queue=True)
    pool = "own" if 0.12 <= kind < 0.16 else "global"
    first = n.buffer(cols, rows, dtype=dtype, lifetime="persistent", offset=8, tagged=kind < 0.12, pool=pool)
    out = [(first, rows, cols)]
    if kind > 0.7:
        rows, cols = rng.choice((1, 2, 5)), rng.choice((1, 2, 3, 5))
        if kind > 0.96:
            n.pool("other", None)
        offset = rng.choice((0, 4, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24))
        second = n.buffer(
            cols, rows, dtype=rng.choice(DTYPES), lifetime="persistent", offset=offset, pool="other" if kind > 0.96 else pool
        )
        out.append((second, rows, cols))
    return out


def with_accesses(rng: Rng, n: Net) -> Schedule:
    """The net with accesses of a few tasks put on it at random."""
    n.extra["variables"] = {
        "p": {"count": 2, "min": 0, "max": rng.choice((1, 2))},
        "w": {"count": 1, "min": rng.choice((0, 1)), "max": rng.choice((6, 9))},
    }
    buffers = _buffers(rng, n)
    s = n.json()
    moving = rng.choice((0.0, 0.3, 0.6, 0.8))
    chosen = [0, 1, *(rng.randrange(len(s["tasks"])) for _ in range(rng.choice((0, 0, 0, 1, 3))))]
    for k, task in enumerate(chosen):
        buffer, rows, cols = rng.choice(buffers)
        line = access(buffer, [0, cols], [0, rows])
        line["rows"] = _range(rng, rows, moving)
        line["cols"] = _range(rng, cols, moving / 4) if rng.random() < 0.6 else [0, cols]
        tagged = s["buffers"][buffer].get("tagged", False)
        writes = rng.random() < 0.75 if k == 0 else rng.random() < 0.3
        if tagged and not writes and rng.random() < 0.2:
            line |= rng.choice(({"maybe": True}, {"epoch": -1}))
        s["tasks"][task]["writes" if writes else "reads"].append(line)
    return Schedule.from_json(s)


def geometry(rng: Rng, count: int) -> Iterator[Case]:
    """Two tasks (and those between them) in a known order, with accesses that may or may not meet before it begins."""
    made: dict[tuple[int | None, int | None], Certificate] = {}
    for _ in range(count):
        forward, backward = rng.choice(DISTANCES), rng.choice(DISTANCES)
        if forward == backward == 0:
            continue
        steps = rng.randint(1, MOST_STEPS)
        n = pair(forward, backward, steps)
        if (forward, backward) not in made:
            c = validate(Schedule.from_json(n.json()), witness=False).certificate
            if c is None:
                raise RuntimeError("a net without accesses is not accepted")
            made[forward, backward] = c
        lengths = [len(q) for q in n.queues]
        s = with_accesses(rng, n)
        if s.defects:
            continue
        c = made[forward, backward]
        yield pack(s), c if rng.random() < 0.8 else written_out(c, lengths, steps + rng.choice((0, 0, 1)))


def unshared(c: Certificate, own: dict[int, tuple[int, int]] | None = None) -> Certificate:
    """Periodic clocks with a row for each task, which may hold an entry of the task's own queue: (queue, value), to be ignored."""
    rows = []
    for b, k in enumerate(c.row.tolist()):
        entries = slice(int(c.row_off[k]), int(c.row_off[k + 1]))
        rows.append(dict(zip(c.row_queue[entries].tolist(), c.row_value[entries].tolist(), strict=True)))
        if own is not None:
            rows[-1][own[b][0]] = own[b][1]
    return of_rows(dataclasses.replace(c, row=np.arange(c.n_tasks, dtype=np.int32)), rows)


def of_rows(c: Certificate, rows: list[dict[int, int]]) -> Certificate:
    off = np.cumsum([0, *(len(r) for r in rows)], dtype=np.int64)
    flat = [entry for r in rows for entry in sorted(r.items())]
    queue, value = (np.array([e[k] for e in flat], np.int32) for k in (0, 1))
    return dataclasses.replace(c, row_off=off, row_queue=queue, row_value=value)


def entries(c: Certificate) -> list[dict[int, int]]:
    ends = itertools.pairwise(c.row_off.tolist())
    return [dict(zip(c.row_queue[a:b].tolist(), c.row_value[a:b].tolist(), strict=True)) for a, b in ends]


def _one_less(rng: Rng, c: Certificate) -> Certificate:
    """One or two entries gone."""
    rows = entries(c)
    for r in rng.sample(rows, min(2, len(rows))):
        if r and rng.random() < 0.7:
            del r[rng.choice(list(r))]
    return of_rows(c, rows)


def _shuffled(rng: Rng, c: Certificate) -> Certificate:
    """The rows under other numbers, and one instance with the clock of another."""
    rows, row = entries(c), c.row.copy()
    a, b = rng.randrange(row.size), rng.randrange(row.size)
    row[a] = row[b]
    order = list(range(len(rows)))
    rng.shuffle(order)
    return of_rows(dataclasses.replace(c, row=np.array([order.index(k) for k in row.tolist()], np.int32)), [rows[k] for k in order])


def _one_more(rng: Rng, c: Certificate, queues: int) -> Certificate:
    """A clock with an entry that it did not have, or had with another value."""
    rows = entries(c)
    rows[rng.randrange(len(rows))][rng.randrange(queues)] = rng.randint(-3, 3)
    return of_rows(c, rows)


def counters(rng: Rng, count: int) -> Iterator[Case]:
    """Nets of waits and signals: their certificates, with each entry one more and one less, and each threshold."""
    for _ in range(count):
        queues = rng.randint(2, 4)
        n = Net(queues, rng.randint(1, 3))
        used = [n.counter() for _ in range(rng.randint(1, 3))]
        there = [0] * len(used)  # signals of the tasks so far: a wait of this step for no more than these always ends
        for _ in range(rng.randint(queues, 9)):
            waits = [(k, rng.randint(1, there[k]), 0) for k in used if there[k] and rng.random() < 0.3]
            signals = [(k, rng.choice((1, 1, 2, 3))) for k in used if rng.random() < 0.5]
            for k, amount in signals:
                there[k] += amount
            n.task(rng.randrange(queues), waits=waits, signals=signals)
        s = n.json()
        for task in s["tasks"]:
            for k in used:
                if there[k] and rng.random() < 0.2:
                    task["waits"].append([k, rng.randint(1, there[k]), -1])
        schedule = Schedule.from_json(s)
        if schedule.defects:
            continue
        c = validate(schedule, witness=False).certificate
        if c is None:
            continue
        lengths = [len(q) for q in s["queues"]]
        own = {b: (q, lengths[q]) for q, ids in enumerate(s["queues"]) for b in ids}
        for given in (c, written_out(c, lengths, s["steps"] + rng.choice((0, 1))), unshared(c), unshared(c, own)):
            tables = pack(schedule)
            yield tables, given
            for x in range(given.row_value.size):
                for value in {*(given.row_value[x] + d for d in (1, -1, 2)), rng.randint(-4, 4), 1 - 2**31}:
                    changed = given.row_value.copy()
                    changed[x] = value
                    yield tables, dataclasses.replace(given, row_value=changed)
            yield from ((tables, _one_more(rng, given, queues)) for _ in range(4))
            yield from ((tables, _one_less(rng, given)) for _ in range(8))
            yield from ((tables, _shuffled(rng, given)) for _ in range(8))
        for task in s["tasks"]:
            for wait in task["waits"]:
                wait[1] -= 1
                if wait[1] > 0:
                    yield pack(Schedule.from_json(s)), c
                wait[1] += 1


def twins(rng: Rng, count: int) -> Iterator[Case]:
    """Two queues whose tasks have like waits, and one clock for several of them that follows for some only."""
    for _ in range(count):
        n = Net(4, 2)
        c, d = n.counter(), n.counter()
        for queue, counter in ((2, c), (3, d)):
            for _ in range(rng.randint(1, 2)):
                n.task(queue, signals=[(counter, 1)])
            n.task(queue, signals=[(counter, 1)])
        top = {k: sum(a for t in n.tasks for x, a in t["signals"] if x == k) for k in (c, d)}
        kinds = [(k, rng.randint(1, top[k]), rng.choice((0, 0, -1))) for k in (c, c, d)]
        first = len(n.tasks)
        for queue in (0, 1):
            for _ in range(rng.randint(1, 3)):
                n.task(queue, waits=rng.sample(kinds, rng.choice((0, 1, 1, 1, 2))))
        s = Schedule.from_json(n.json())
        certificate = validate(s, witness=False).certificate
        if certificate is None:
            continue
        lengths, tables = [len(q) for q in n.queues], pack(s)
        for given in (certificate, written_out(certificate, lengths, 2)):
            for _ in range(10):
                row = given.row.copy()
                a, b = (rng.choice(q) for q in n.queues[:2])
                if rng.random() < 0.5:
                    a, b = b, a
                copies = row.size // len(n.tasks)
                row[a + rng.randrange(copies) * len(n.tasks)] = row[b + rng.randrange(copies) * len(n.tasks)]
                if rng.random() < 0.5:
                    row[rng.randrange(first, len(n.tasks))] = row[rng.randrange(first, len(n.tasks))]
                yield tables, _shuffled(rng, dataclasses.replace(given, row=row))


def borders() -> Iterator[Case]:
    """Steps, written-out steps and tiles at the limits that the program of mutants has."""
    for steps in (1, 49, 50, 51):
        n = Net(1, steps)
        n.task(0)
        s = Schedule.from_json(n.json())
        c = validate(s, witness=False).certificate
        if c is not None:
            yield pack(s), c
            for unroll in (steps, steps + 1, 59, 60, 61):
                yield pack(s), written_out(c, [1], unroll)
    for rows, cols in ((12, 12), (13, 12), (12, 13), (11, 13), (13, 11), (6, 24), (7, 24)):
        n = Net(1)
        x = n.buffer(cols, rows)
        writes = [access(x, (k, min(k + 1, cols)), (k, min(k + 1, rows))) for k in range(min(rows, cols) - 1)]
        writes += [access(x, (k, k + 1), (0, 1)) for k in range(min(rows, cols) - 1, cols - 1)]
        writes += [access(x, (0, 1), (k, k + 1)) for k in range(min(rows, cols) - 1, rows - 1)]
        n.task(0, [], writes)
        s = Schedule.from_json(n.json())
        c = validate(s, witness=False).certificate
        if c is not None:
            yield pack(s), c


def cases(seed: int, pairs: int = 5000, nets: int = 50) -> Iterator[Case]:
    """All of them."""
    rng = random.Random(f"{seed}/small")
    yield from borders()
    yield from counters(rng, nets)
    yield from twins(rng, 2 * nets)
    yield from geometry(rng, pairs)
