"""Attacks on the certificate checker: one field of a valid certificate changed, or a certificate of another schedule."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_bench.adversary.net import Rng
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import Schedule

MAX_STATES = 20_000


def corrupt(rng: Rng, c: Certificate) -> tuple[str, Certificate]:
    """(what was done, the certificate with one number changed, removed or added)."""
    field = rng.choice(
        ("replay", "row", "row_queue", "row_value", "row_value", "row_value", "row_off", "unroll", "hash", "drop", "add")
    )
    if field == "unroll":
        return field, dataclasses.replace(c, unroll=rng.choice((c.unroll + 1, max(0, c.unroll - 1), 0, 1)))
    if field == "hash":
        at = rng.randrange(64)
        digit = rng.choice([d for d in "0123456789abcdef" if d != c.table_hash[at]])
        return field, dataclasses.replace(c, table_hash=c.table_hash[:at] + digit + c.table_hash[at + 1 :])
    if field in ("drop", "add"):
        if len(c.row_off) < 2:
            return corrupt(rng, c)
        k = rng.randrange(len(c.row_off) - 1)
        lo, hi = int(c.row_off[k]), int(c.row_off[k + 1])
        off = c.row_off.copy()
        if field == "drop":
            if lo == hi:
                return corrupt(rng, c)
            x = rng.randrange(lo, hi)
            off[k + 1 :] -= 1
            return field, dataclasses.replace(
                c, row_off=off, row_queue=np.delete(c.row_queue, x), row_value=np.delete(c.row_value, x)
            )
        missing = [q for q in range(c.n_queues) if q not in c.row_queue[lo:hi].tolist()]
        if not missing:
            return corrupt(rng, c)
        q = rng.choice(missing)
        x = lo + int((c.row_queue[lo:hi] < q).sum())
        off[k + 1 :] += 1
        value = rng.choice((0, 1, -1, 2))
        queue, values = np.insert(c.row_queue, x, q), np.insert(c.row_value, x, value)
        return field, dataclasses.replace(c, row_off=off, row_queue=queue, row_value=values)
    a = getattr(c, field).copy()
    if a.size == 0:
        return corrupt(rng, c)
    x = rng.randrange(a.size)
    old = int(a[x])
    a[x] = rng.choice(
        [v for v in (old + 1, old + 1, old - 1, old + 3, 0, -1, 2**31 - 1, -(2**31)) if v != old and -(2**31) <= v < 2**31]
    )
    return field, dataclasses.replace(c, **{field: a})


def truthful(s: Schedule, c: Certificate) -> bool:
    """Whether every clock of a certificate is true in every reachable state of the longest launch, and the replay runs.

    Walks all states; for certificates whose structure the checker accepted.

    Raises:
        ValueError: more than MAX_STATES states.
    """
    queues, waits, signals, total = _lists(s)

    def counts(state: tuple[int, ...]) -> list[int]:
        out = [0] * len(total)
        for q, done in enumerate(state):
            for m in range(done):
                for k, w in signals[queues[q][m % len(queues[q])]]:
                    out[k] += w
        return out

    def claims(b: int, i: int) -> dict[int, int]:
        row = int(c.row[i * s.n_tasks + b] if c.unroll else c.row[b])
        lo, hi = int(c.row_off[row]), int(c.row_off[row + 1])
        base = 0 if c.unroll else i
        return {int(r): base * len(queues[int(r)]) + int(v) for r, v in zip(c.row_queue[lo:hi], c.row_value[lo:hi], strict=True)}

    start = (0,) * len(queues)
    seen, stack = {start}, [start]
    while stack:
        state = stack.pop()
        have = counts(state)
        for q, done in enumerate(state):
            if not queues[q] or done == len(queues[q]) * s.steps:
                continue
            i, b = done // len(queues[q]), queues[q][done % len(queues[q])]
            if any(have[k] < (i + e) * total[k] + t for k, t, e in waits[b] if i + e >= 0):
                continue
            if any(state[r] < need for r, need in claims(b, i).items() if r != q):
                return False
            after = (*state[:q], done + 1, *state[q + 1 :])
            if after not in seen:
                if len(seen) >= MAX_STATES:
                    raise ValueError(f"more than {MAX_STATES} states")
                seen.add(after)
                stack.append(after)
    return replays(s, c)


_Lists = tuple[list[list[int]], list[list[tuple[int, int, int]]], list[list[tuple[int, int]]], list[int]]


def _lists(s: Schedule) -> _Lists:
    """(queues, waits of each task, signals of each task, per_step of each counter)."""
    c = s.columns

    def rows(off: npt.NDArray[np.int64], *columns: npt.NDArray[Any]) -> list[Any]:
        return [list(zip(*(x[lo:hi].tolist() for x in columns), strict=True)) for lo, hi in itertools.pairwise(off.tolist())]

    waits, signals = rows(c.wait_off, c.wait_counter, c.wait_t, c.wait_e), rows(c.sig_off, c.sig_counter, c.sig_amount)
    return [s.queue(q) for q in range(s.n_queues)], waits, signals, [k.per_step for k in s.counters]


def replays(s: Schedule, c: Certificate) -> bool:
    """Whether the tasks of one step can run in the order of a certificate."""
    queues, waits, signals, total = _lists(s)
    have, head = [0] * len(total), [0] * len(queues)
    where = {b: q for q, ids in enumerate(queues) for b in ids}
    for b in c.replay.tolist():
        q = where[b]
        if queues[q][head[q]] != b or any(have[k] < t for k, t, e in waits[b] if e == 0):
            return False
        for k, w in signals[b]:
            have[k] += w
        head[q] += 1
    return head == [len(ids) for ids in queues]
