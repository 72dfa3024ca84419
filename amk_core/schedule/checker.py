"""The certificate checker: whether a certificate proves that tables are free of deadlocks and data races.

It shares nothing with the search that made the certificate.  The rules are those of :mod:`amk_core.schedule.certificate`: replay
order, the local rule of the clocks, and an order for every conflict.  ``engine="native"`` is ``native/checker*.cpp``, for tables of
any size; ``engine="python"`` is this page, quadratic and readable, for tables of a few thousand tasks.  The native engine uses that
must-order is transitive and compares neighbours only, so it also takes clocks that leave out what follows from others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from amk_core.schedule.certificate import Certificate
from amk_core.schedule.ir import DTYPE_BITS, PREV_EPOCH, WRITE, Schedule
from amk_core.schedule.tables import TableError, table_hash, unpack

EXACT_VALUES = 256  # launch variables are enumerated up to here, and bounded by their ends above
EXACT_STEPS = 512  # the same for pairs of steps
MAX_STEPS = 1 << 16  # of the Python engine

Line = tuple[int, int, int, int, int, int, int]  # a row of ir.Affine; a plain range [a, b) is (a, -1, 0, 0, b - a, -1, 0)


def check_certificate(
    tables: bytes, certificate: Certificate | bytes, *, engine: Literal["native", "python"] = "native"
) -> list[str]:
    """What is wrong with a certificate; an empty list means that it holds.

    Never raises for damaged input: bytes that are no tables or no certificate are answered with a line that says so.
    """
    try:
        c = Certificate.from_bytes(certificate) if isinstance(certificate, bytes) else certificate
        if c.table_hash != table_hash(tables):
            return ["certificate: it belongs to other tables (SHA-256 differs)"]
        if engine == "native":
            from amk_core import _native  # loaded when it is used, not at import

            arrays = (c.replay, c.row, c.row_off, c.row_queue, c.row_value)
            return list(_native.check_certificate(tables, c.unroll, c.n_tasks, c.n_queues, *arrays))
        _Checker(unpack(tables), c).run()
    except _Refused as e:
        return [str(e)]
    except TableError as e:
        return [str(e)]
    return []


class _Refused(Exception):
    """The certificate does not hold."""


@dataclass(frozen=True, slots=True)
class _Access:
    task: int
    buffer: int
    flags: int
    rows: Line
    cols: Line


class _Checker:
    def __init__(self, s: Schedule, c: Certificate) -> None:
        self.s, self.c = s, c
        cols = s.columns
        self.n, self.steps = s.n_tasks, s.steps
        self.queues = [s.queue(q) for q in range(s.n_queues)]
        self.length = [len(q) for q in self.queues]
        wo, so, ao = cols.wait_off.tolist(), cols.sig_off.tolist(), cols.acc_off.tolist()
        wait = list(zip(cols.wait_counter.tolist(), cols.wait_t.tolist(), cols.wait_e.tolist(), strict=True))
        signal = list(zip(cols.sig_counter.tolist(), cols.sig_amount.tolist(), strict=True))
        self.waits = [wait[wo[b] : wo[b + 1]] for b in range(self.n)]
        self.signals = [signal[so[b] : so[b + 1]] for b in range(self.n)]
        self.total = [k.per_step for k in s.counters]
        affine = [tuple(row) for row in cols.affine.tolist()]

        def line(lo: int, hi: int, aff: int) -> Line:
            return affine[aff] if aff >= 0 else (lo, -1, 0, 0, max(0, hi - lo), -1, 0)

        fields = ("acc_buffer", "acc_flags", "acc_r0", "acc_r1", "acc_raff", "acc_c0", "acc_c1", "acc_caff")
        rows = list(zip(*(getattr(cols, f).tolist() for f in fields), strict=True))
        self.accesses = [
            _Access(b, buf, flags, line(r0, r1, ra), line(c0, c1, ca))
            for b in range(self.n)
            for buf, flags, r0, r1, ra, c0, c1, ca in rows[ao[b] : ao[b + 1]]
        ]

    def run(self) -> None:
        self.structure()
        self.replay()
        self.clocks()
        self.conflicts()

    # ---- what the numbers name
    def structure(self) -> None:
        c, s = self.c, self.s
        self.need(c.n_tasks == self.n and c.n_queues == s.n_queues, "it belongs to tables of another size")
        self.need(1 <= self.steps <= MAX_STEPS, f"the tables have {self.steps} steps; the Python engine takes 1 to {MAX_STEPS}")
        self.need(c.unroll == 0 or self.steps <= c.unroll <= 1 << 20, "its clocks do not reach over all steps")
        self.need(sorted(t for q in self.queues for t in q) == list(range(self.n)), "the queues do not hold every task once")
        self.where = {t: (q, j) for q, ids in enumerate(self.queues) for j, t in enumerate(ids)}
        sums = [0] * len(self.total)
        self.producers: list[list[tuple[int, int]]] = [[] for _ in sums]
        for b, signals in enumerate(self.signals):
            for k, w in signals:
                self.need(0 <= k < len(sums) and w >= 1, "a signal of the tables is damaged")
                sums[k] += w
                self.producers[k].append((b, w))
        self.need(sums == self.total, "a counter does not add up")
        self.need(all(n * self.steps < 2**31 for n in sums), "a counter wraps")
        for k, t, e in (w for ws in self.waits for w in ws):
            self.need(0 <= k < len(sums) and e in (0, -1) and 1 <= t <= sums[k], "a wait of the tables is damaged")
        for a in self.accesses:
            self.need(0 <= a.buffer < len(s.buffers), "an access of the tables is damaged")

    @staticmethod
    def need(ok: bool, text: str) -> None:
        if not ok:
            raise _Refused(f"certificate: {text}")

    # ---- one step runs: no deadlock
    def replay(self) -> None:
        order = self.c.replay.tolist()
        self.need(sorted(order) == list(range(self.n)), "replay does not list every task once")
        self.rank = {b: k for k, b in enumerate(order)}
        head, count = [0] * len(self.queues), [0] * len(self.total)
        for b in order:
            q, j = self.where[b]
            self.need(head[q] == j, "replay leaves the order of a queue")
            for k, t, e in self.waits[b]:
                self.need(e != 0 or count[k] >= t, f"replay stops at task {b}, which waits for counter {k}")
            for k, w in self.signals[b]:
                count[k] += w
            head[q] += 1

    # ---- V <= F(V)
    def clocks(self) -> None:
        c = self.c
        off, queue, value = c.row_off.tolist(), c.row_queue.tolist(), c.row_value.tolist()
        copies = max(1, c.unroll)
        self.need(len(c.row) == copies * self.n and len(off) >= 1 and off[0] == 0, "the clock table is cut off")
        self.need(off[-1] == len(queue) == len(value) and off == sorted(off), "the clock table is damaged")
        self.rows: list[dict[int, int]] = []
        for lo, hi in itertools.pairwise(off):
            ids = queue[lo:hi]
            self.need(all(0 <= r < len(self.queues) and self.length[r] > 0 for r in ids), "a clock names a wrong queue")
            self.need(all(a < b for a, b in itertools.pairwise(ids)), "a clock names a queue twice")
            self.rows.append(dict(zip(ids, value[lo:hi], strict=True)))
            least = 0 if c.unroll else -(2**31) + 1
            self.need(all(least <= v <= copies * self.length[r] for r, v in self.rows[-1].items()), "a clock is out of range")
        self.need(all(0 <= k < len(self.rows) for k in c.row.tolist()), "an instance has no clock")
        self.row: list[int] = c.row.tolist()
        for q, ids in enumerate(self.queues):
            for i in range(copies):
                for j, b in enumerate(ids):
                    for r, v in self.rows[self.row[i * self.n + b]].items():
                        if r != q:
                            self.need(self.follows(q, i, j, b, r, v), f"the clock of task {b} for queue {r} does not follow")

    def plus(self, p: int, i: int, r: int) -> int | None:
        """What holds of queue r when task p (of step i, where clocks are written out) has ended; None: nothing."""
        q, j = self.where[p]
        if r == q:
            return (i * self.length[q] if self.c.unroll else 0) + j + 1
        return self.rows[self.row[i * self.n + p]].get(r, 0 if self.c.unroll else None)

    def follows(self, q: int, i: int, j: int, b: int, r: int, v: int) -> bool:
        """The local rule: the entry v of queue r in the clock of instance (b, i)."""
        ids, unroll = self.queues[q], self.c.unroll
        if unroll and v == 0:
            return True
        if j > 0:
            before = self.plus(ids[j - 1], i, r)
        elif unroll:
            before = self.plus(ids[-1], i - 1, r) if i else None
        else:
            last = self.plus(ids[-1], i, r)
            before = None if last is None else last - self.length[r]
        if before is not None and v <= before:
            return True
        return any(self.from_wait(r, v, k, t, e + i if unroll else e) for k, t, e in self.waits[b])

    def from_wait(self, r: int, v: int, k: int, t: int, since: int) -> bool:
        need = since * self.total[k] + t
        if self.c.unroll:
            if since < 0:
                return False
            steps = range(self.c.unroll)
            return sum(w for p, w in self.producers[k] for i in steps if (self.plus(p, i, r) or 0) < v) < need
        clocks = [(w, self.plus(p, 0, r)) for p, w in self.producers[k]]
        return (
            all(y is not None for _, y in clocks)
            and sum(w * -((y - v) // self.length[r]) for w, y in clocks if y is not None) < need
        )

    # ---- conflicts
    def ordered(self, a: int, b: int, i: int, k: int) -> bool:
        """Task a of step i is over when task b of step i + k starts."""
        (qa, ja), (qb, jb) = self.where[a], self.where[b]
        if qa == qb:
            return k > 0 or ja < jb
        if self.c.unroll:
            return self.rows[self.row[(i + k) * self.n + b]].get(qa, 0) >= i * self.length[qa] + ja + 1
        v = self.rows[self.row[b]].get(qa)
        return v is not None and v + k * self.length[qa] >= ja + 1

    def conflicts(self) -> None:
        s = self.s
        pool_each = {p.id: p.per_queue for p in s.pools}
        groups: dict[tuple[str, bool], list[_Access]] = {}
        for a in self.accesses:
            b = s.buffers[a.buffer]
            self.need(b.pool in pool_each, "a buffer of the tables stands in no pool")
            if not pool_each[b.pool]:  # else every queue has its own instance
                groups.setdefault((b.pool, b.tagged), []).append(a)
        self.memo: dict[tuple[int, Line, Line, int, Line, Line], tuple[bool, int, int]] = {}
        for (_, tagged), group in groups.items():
            for x, y in itertools.combinations(group, 2):
                qx, qy = self.where[x.task][0], self.where[y.task][0]
                if tagged:
                    self.tagged(x, y)
                elif qx != qy and (x.flags | y.flags) & WRITE and self.near(x, y):
                    self.pair(x, y)

    def pair(self, x: _Access, y: _Access) -> None:
        if self.c.unroll:
            for i in range(self.steps):
                for j in range(self.steps):
                    if self.overlap(x, i, y, j):
                        early, late = (x, y) if i <= j else (y, x)
                        ok = self.ordered(early.task, late.task, min(i, j), abs(j - i))
                        ok = ok or (i == j and self.ordered(y.task, x.task, i, 0))
                        self.need(ok, f"tasks {x.task} and {y.task} conflict and are not ordered")
            return
        now, forward, backward = self.lags(x, y)
        a, b = x.task, y.task
        ok = not now or self.ordered(a, b, 0, 0) or self.ordered(b, a, 0, 0)
        ok = ok and (forward < 0 or self.ordered(a, b, 0, forward)) and (backward < 0 or self.ordered(b, a, 0, backward))
        self.need(ok, f"tasks {a} and {b} conflict and are not ordered")

    def tagged(self, x: _Access, y: _Access) -> None:
        """A reader of this step's tag cannot end before its writers: replay must have run them."""
        for w, r in ((x, y), (y, x)):
            if w.buffer == r.buffer and w.flags & WRITE and not r.flags & (WRITE | PREV_EPOCH):
                hit = self.steps > EXACT_STEPS or any(self.overlap(w, i, r, i) for i in range(self.steps))
                self.need(not hit or self.rank[w.task] < self.rank[r.task], f"replay runs task {r.task} before its tagged data")

    def near(self, x: _Access, y: _Access) -> bool:
        bx, by = self.s.buffers[x.buffer], self.s.buffers[y.buffer]
        return bx is by or (bx.offset < by.offset + by.bytes and by.offset < bx.offset + bx.bytes)

    def lags(self, x: _Access, y: _Access) -> tuple[bool, int, int]:
        """Whether they meet in one step; least k > 0 at which x of step i meets y of step i + k; the same for y and x (-1: no)."""
        key = (x.buffer, x.rows, x.cols, y.buffer, y.rows, y.cols)
        if key not in self.memo:
            later = range(1, self.steps)
            forward = next((k for k in later if self.some(x, y, 0, k)), -1)
            backward = next((k for k in later if self.some(x, y, k, 0)), -1)
            self.memo[key] = (self.some(x, y, 0, 0), forward, backward)
        return self.memo[key]

    def some(self, x: _Access, y: _Access, i: int, j: int) -> bool:
        """Whether x in step i + s meets y in step j + s for some s."""
        last = self.steps - 1 - max(i, j)
        if not any(_moves(line) for line in (x.rows, x.cols, y.rows, y.cols)):
            last = 0
        if self.same_elements(x, y) and not (
            self.may_meet(x.rows, y.rows, i, j, last) and self.may_meet(x.cols, y.cols, i, j, last)
        ):
            return False
        if self.steps <= EXACT_STEPS:
            return any(self.overlap(x, i + s, y, j + s) for s in range(last + 1))
        if not (self.same_elements(x, y) and _alike(x.rows, y.rows) and _alike(x.cols, y.cols)):
            return True
        return self.overlap(x, i, y, j)  # they move alike: one step speaks for all

    def same_elements(self, x: _Access, y: _Access) -> bool:
        return x.buffer == y.buffer and DTYPE_BITS[self.s.buffers[x.buffer].dtype] >= 8

    def overlap(self, x: _Access, i: int, y: _Access, j: int) -> bool:
        """Whether x in step i and y in step j can touch a common byte; never False when they can."""
        if self.same_elements(x, y):
            return self.meet(x.cols, i, y.cols, j) and self.meet(x.rows, i, y.rows, j)
        for v in self.values(x.rows, x.cols, y.rows, y.cols):
            if v is None:
                return True
            spans = self.bytes(x, i, v)
            if any(a < d and c < b for a, b in spans for c, d in self.bytes(y, j, v)):
                return True
        return False

    def values(self, *lines: Line) -> Iterator[Mapping[int, int] | None]:
        """Every value of the launch variables that the ranges use; one None when there are too many."""
        ranges = [(v.min, v.max) for v in self.s.variables for _ in range(v.count)]
        used = sorted({v for line in lines for v in (line[1], line[5]) if v >= 0})
        count = 1
        for v in used:
            count *= max(1, ranges[v][1] - ranges[v][0] + 1)
        if count > EXACT_VALUES:
            yield None
            return
        for row in itertools.product(*(range(ranges[v][0], ranges[v][1] + 1) for v in used)):
            yield dict(zip(used, row, strict=True))

    def meet(self, x: Line, i: int, y: Line, j: int) -> bool:
        for v in self.values(x, y):
            if v is None:
                return bool(x[3] or y[3]) or (self.reach(x, i, y, j) > 0 and self.reach(y, j, x, i) > 0)
            (a, b), (c, d) = _span(x, i, v), _span(y, j, v)
            if a < b and c < d and a < d and c < b:
                return True
        return False

    def reach(self, x: Line, i: int, y: Line, j: int) -> int:
        """The largest value of end(x in step i) - start(y in step j), for ranges without modulus."""
        ranges = [(v.min, v.max) for v in self.s.variables for _ in range(v.count)]
        factor: dict[int, int] = {}
        for v, f in ((x[1], 1), (x[5], 1), (y[1], -1)):
            if v >= 0:
                factor[v] = factor.get(v, 0) + f
        out = x[0] + (x[2] + x[6]) * i + x[4] - y[0] - y[2] * j
        return out + sum(f * ranges[v][1 if f > 0 else 0] for v, f in factor.items())

    def may_meet(self, x: Line, y: Line, i: int, j: int, last: int) -> bool:
        """False only when the ranges stay apart in all of 0..last steps more: both bounds are linear in the step."""
        if x[3] or y[3]:
            return True
        ends = (0, last)
        return max(self.reach(x, i + s, y, j + s) for s in ends) > 0 and max(self.reach(y, j + s, x, i + s) for s in ends) > 0

    def bytes(self, a: _Access, i: int, v: Mapping[int, int]) -> Sequence[tuple[int, int]]:
        b = self.s.buffers[a.buffer]
        bits, (r0, r1), (c0, c1) = DTYPE_BITS[b.dtype], _span(a.rows, i, v), _span(a.cols, i, v)
        if r0 >= r1 or c0 >= c1:
            return ()
        if c0 <= 0 and c1 >= b.cols:
            c0, c1 = 0, b.cols * (r1 - r0)
            r1 = r0 + 1
        base = b.offset
        return [(base + (r * b.cols + c0) * bits // 8, base + -(-((r * b.cols + c1) * bits) // 8)) for r in range(r0, r1)]


def _moves(line: Line) -> bool:
    return line[1] >= 0 or line[2] != 0 or line[3] != 0 or line[5] >= 0 or line[6] != 0


def _alike(x: Line, y: Line) -> bool:
    """Whether two ranges keep their distance in every step."""
    return not (x[3] or y[3] or x[6] or y[6]) and x[2] == y[2]


def _span(line: Line, i: int, v: Mapping[int, int]) -> tuple[int, int]:
    add, var, stride, mod, length, length_var, length_stride = line
    start = add + (v[var] if var >= 0 else 0) + stride * i
    if mod:
        start %= mod
    return start, start + length + (v[length_var] if length_var >= 0 else 0) + length_stride * i
