"""A validator written straight from the definitions, for small schedules: slow, readable, and right or wrong on its own.

It writes every step out, every task of every step being an *instance*, and tries every value of the launch variables:

* LIVE: one greedy run for each number of steps ends everywhere, or none does (proofs/Semantics.v, ``dominance``).
* Must-order: vector clocks indexed by queue, the greatest fixpoint of "what the predecessor knows, or what a wait implies", from
  above (proofs/Exact.v, ``must_iff_clock``).
* All other rules are their definitions over instances, byte ranges and that order.

The native validator must give the same verdict and the same set of rules; ``tests/schedule/test_reference.py`` compares them.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from amk_core.schedule import footprint
from amk_core.schedule.ir import ASYNC, DTYPE_BITS, FENCES, MAYBE, PREV_EPOCH, WRITE, Kind, Lifetime, Schedule
from amk_core.schedule.quant_rules import quant_problems

READ_ONLY = (Kind.WEIGHT, Kind.TABLE, Kind.INPUT)
MAX_INSTANCES, MAX_VALUES = 400, 1024


class TooLarge(ValueError):
    """The schedule is not small; ask the native validator."""


@dataclass(frozen=True, slots=True)
class ReferenceVerdict:
    accepted: bool
    rules: frozenset[str]


def validate(s: Schedule) -> ReferenceVerdict:
    """The verdict on a small schedule.

    Raises:
        TooLarge: more than MAX_INSTANCES instances or MAX_VALUES values of the variables.
    """
    rules = _structure(s)
    if not rules:
        rules = _Dynamic(s).rules()
    return ReferenceVerdict(not rules, frozenset(rules))


# ---- REF, COUNT, FIT
def _structure(s: Schedule) -> set[str]:
    """REF and COUNT; they end the check, because nothing else means anything then."""
    c, rules = s.columns, set()
    tasks, buffers, counters = range(s.n_tasks), range(len(s.buffers)), range(len(s.counters))
    pools = {p.id: p for p in s.pools}
    variables = [v for v in s.variables for _ in range(v.count)]
    ref = bool(s.defects) or bool(footprint.problems(s)) or bool(quant_problems(s)) or s.steps < 1
    ref |= sorted(c.queue_task.tolist()) != list(tasks)
    ref |= any(v.min > v.max for v in variables)
    ref |= any(p.bytes is not None and p.bytes < 0 for p in s.pools)
    ref |= any(p.cluster and not s.cluster_bytes(p) for p in s.pools)
    for b in s.buffers:
        size = pools[b.pool].bytes if b.pool in pools else None
        ref |= b.pool not in pools or b.offset < 0 or (size is not None and b.offset + b.bytes > size)
    ref |= any(int(x) not in buffers for x in (*c.acc_buffer, *c.init_buffer))
    ref = ref or _beyond_cluster(s)
    ref |= any(int(x) not in counters for x in (*c.wait_counter, *c.sig_counter)) or any(int(e) not in (0, -1) for e in c.wait_e)
    if s.stop is not None:
        ref |= s.stop[0] not in buffers or s.stop[1] not in tasks
    if ref:
        return {"REF"}
    total = [0] * len(s.counters)
    for k, w in zip(c.sig_counter.tolist(), c.sig_amount.tolist(), strict=True):
        total[k] += w
        if w < 1:
            rules.add("COUNT")
    if total != [k.per_step for k in s.counters] or any(n * s.steps >= 2**31 for n in total):
        rules.add("COUNT")
    if any(not 1 <= t <= total[k] for k, t in zip(c.wait_counter.tolist(), c.wait_t.tolist(), strict=True)):
        rules.add("COUNT")
    if s.steps * s.n_tasks > MAX_INSTANCES:
        if rules:
            return rules
        raise TooLarge(f"{s.steps} steps of {s.n_tasks} tasks")
    for v in _assignments(s):
        for x in range(len(c.acc_buffer)):
            for i in range(s.steps):
                if not _inside(s, int(c.acc_buffer[x]), _plane(s, "acc", x, i, v)):
                    return {"REF"}
        for x in range(len(c.init_buffer)):
            if not _inside(s, int(c.init_buffer[x]), _plane(s, "init", x, 0, v)):
                return {"REF"}
    return rules


def _beyond_cluster(s: Schedule) -> bool:
    """A buffer lies in two parts of its pool, or a task reaches into the part of another cluster."""
    c, pools = s.columns, {p.id: p for p in s.pools}
    part: dict[int, int] = {}
    for i, b in enumerate(s.buffers):
        p = pools[b.pool]
        if p.cluster:
            part[i] = b.offset // s.cluster_bytes(p)
            if (b.offset + b.bytes - 1) // s.cluster_bytes(p) != part[i]:
                return True
    return any(
        int(x) in part and part[int(x)] != q // pools[s.buffers[int(x)].pool].cluster
        for q in range(s.n_queues)
        for t in s.queue(q)
        for x in c.acc_buffer[int(c.acc_off[t]) : int(c.acc_off[t + 1])]
    )


def _assignments(s: Schedule) -> Iterator[list[int]]:
    """Every value of the variables that some range uses; the others stand at their least value."""
    variables = [v for v in s.variables for _ in range(v.count)]
    used = sorted({int(v) for row in s.columns.affine for v in (row[1], row[5]) if v >= 0})
    count = 1
    for v in used:
        count *= variables[v].max - variables[v].min + 1
    if count > MAX_VALUES:
        raise TooLarge(f"{count} values of the launch variables")
    for values in itertools.product(*(range(variables[v].min, variables[v].max + 1) for v in used)):
        out = [v.min for v in variables]
        for v, x in zip(used, values, strict=True):
            out[v] = x
        yield out


Plane = tuple[int, int, int, int]  # rows [r0, r1), columns [c0, c1)


def _plane(s: Schedule, prefix: str, x: int, step: int, values: Sequence[int]) -> Plane:
    """The elements of access (``acc``) or initial range (``init``) x in a step, for one assignment of the variables."""
    c, out = s.columns, []
    for lo, hi, aff in (("r0", "r1", "raff"), ("c0", "c1", "caff")):
        index = int(getattr(c, f"{prefix}_{aff}")[x])
        if index < 0:
            out += [int(getattr(c, f"{prefix}_{lo}")[x]), int(getattr(c, f"{prefix}_{hi}")[x])]
            continue
        add, var, stride, mod, length, length_var, length_stride = (int(n) for n in c.affine[index])
        start = add + (values[var] if var >= 0 else 0) + stride * step
        start = start % mod if mod else start
        out += [start, start + length + (values[length_var] if length_var >= 0 else 0) + length_stride * step]
    return out[0], out[1], out[2], out[3]


def _inside(s: Schedule, buffer: int, p: Plane) -> bool:
    b = s.buffers[buffer]
    return 0 <= p[0] <= p[1] <= b.rows and 0 <= p[2] <= p[3] <= b.cols


# ---- everything else
@dataclass(frozen=True, slots=True)
class _Use:
    """One access of one instance, its bytes as a set of cells (a bit mask)."""

    instance: int
    buffer: int
    flags: int
    label: int
    moves: bool
    cells: int

    @property
    def write(self) -> bool:
        return bool(self.flags & WRITE)

    @property
    def maybe(self) -> bool:
        return bool(self.flags & MAYBE)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The bytes of all accesses for one assignment of the variables."""

    uses: list[_Use]
    extent: list[int]  # per buffer, in all instances of its pool
    initial: int
    n_cells: int


class _Dynamic:
    def __init__(self, s: Schedule) -> None:
        self.s, self.steps = s, s.steps
        self.queues = [s.queue(q) for q in range(s.n_queues)]
        self.length = [len(q) for q in self.queues]
        # instances in queue order, step after step
        self.base = [0, *itertools.accumulate(n * self.steps for n in self.length)]
        self.task = [t for q in self.queues for _ in range(self.steps) for t in q]
        self.queue = [q for q, ids in enumerate(self.queues) for _ in range(self.steps * len(ids))]
        self.pos = [k - self.base[q] for k, q in enumerate(self.queue)]
        self.step = [p // self.length[q] for p, q in zip(self.pos, self.queue, strict=True)]
        self.total = [k.per_step for k in s.counters]
        self.n = len(self.task)
        self.found: set[str] = set()

    def rules(self) -> set[str]:
        self.fit()
        self.scenes = [self.scene(v) for v in _assignments(self.s)]
        self.tag_waits = self.wanted_tags()
        runs = [self.greedy(t) for t in range(1, self.steps + 1)]
        live = all(len(run) == t * self.s.n_tasks for t, run in enumerate(runs, 1))
        if not live:
            self.found.add("LIVE")
        self.order = runs[-1]
        self.clocks()
        self.stop()
        self.tag_alignment()
        self.release()
        feeds: set[tuple[int, int]] = set()
        for scene in self.scenes:
            self.readonly(scene)
            scene = replace(scene, uses=[u for u in scene.uses if self.ran(u.instance)])
            self.races(scene)
            self.tags(scene)
            feeds |= self.data(scene)
            if live:
                self.outputs(scene)
        if live:
            self.reach(feeds)
        return self.found

    def fit(self) -> None:
        if self.s.target is None:
            return
        smem = sum(math.inf if p.bytes is None else p.bytes for p in self.s.pools if p.per_queue)
        smem += sum(map(self.s.cluster_bytes, self.s.pools))
        wide = any(p.cluster > 16 for p in self.s.pools)
        if self.s.n_queues > self.s.target.sms or smem > self.s.target.smem_bytes or wide:
            self.found.add("FIT")

    # -- bytes
    def intervals(self, buffer: int, plane: Plane, queue: int) -> list[tuple[tuple[str, int], int, int]]:
        """(pool instance, first byte, end byte) of each row, sub-byte elements rounded outward."""
        b, (r0, r1, c0, c1) = self.s.buffers[buffer], plane
        each = next(p.per_queue for p in self.s.pools if p.id == b.pool)
        bits, where = DTYPE_BITS[b.dtype], (b.pool, queue * each)
        if c0 >= c1:
            return []
        rows = [((r * b.cols + c0) * bits, (r * b.cols + c1) * bits) for r in range(r0, r1)]
        return [(where, b.offset + lo // 8, b.offset + -(-hi // 8)) for lo, hi in rows]

    def scene(self, values: Sequence[int]) -> _Scene:
        s, c = self.s, self.s.columns
        raw: list[tuple[int, int, list[tuple[tuple[str, int], int, int]]]] = []
        for k, task in enumerate(self.task):
            for x in range(int(c.acc_off[task]), int(c.acc_off[task + 1])):
                plane = _plane(s, "acc", x, self.step[k], values)
                raw.append((k, x, self.intervals(int(c.acc_buffer[x]), plane, self.queue[k])))
        extents = [
            [iv for q in range(s.n_queues) for iv in self.intervals(b, (0, buf.rows, 0, buf.cols), q)]
            for b, buf in enumerate(s.buffers)
        ]
        first = [
            iv
            for x in range(len(c.init_buffer))
            for q in range(s.n_queues)
            for iv in self.intervals(int(c.init_buffer[x]), _plane(s, "init", x, 0, values), q)
        ]
        everything = [*(iv for _, _, list_ in raw for iv in list_), *(iv for list_ in extents for iv in list_), *first]
        cuts = sorted({(w, lo) for w, lo, _ in everything} | {(w, hi) for w, _, hi in everything})

        def mask(list_: list[tuple[tuple[str, int], int, int]]) -> int:
            out = 0
            for w, lo, hi in list_:
                out |= (1 << bisect_left(cuts, (w, hi))) - (1 << bisect_left(cuts, (w, lo)))
            return out

        def moves(x: int) -> bool:
            return any(a >= 0 and c.affine[a][2] != 0 for a in (int(c.acc_raff[x]), int(c.acc_caff[x])))

        uses = [
            _Use(k, int(c.acc_buffer[x]), int(c.acc_flags[x]), int(c.acc_label[x]), moves(x), mask(list_)) for k, x, list_ in raw
        ]
        return _Scene(uses, [mask(list_) for list_ in extents], mask(first), len(cuts))

    # -- waits, runs, clocks
    @cached_property
    def needs(self) -> list[list[tuple[int, int, int]]]:
        """Per instance: (counter, value it must have, e); waits on the step before the first hold trivially."""
        c, out = self.s.columns, []
        for k, b in enumerate(self.task):
            span = slice(int(c.wait_off[b]), int(c.wait_off[b + 1]))
            waits = zip(c.wait_counter[span].tolist(), c.wait_t[span].tolist(), c.wait_e[span].tolist(), strict=True)
            out.append([(n, (self.step[k] + e) * self.total[n] + t, e) for n, t, e in waits if self.step[k] + e >= 0])
        return out

    @cached_property
    def gives(self) -> list[list[tuple[int, int]]]:
        c = self.s.columns
        off = c.sig_off.tolist()
        pairs = list(zip(c.sig_counter.tolist(), c.sig_amount.tolist(), strict=True))
        return [pairs[off[b] : off[b + 1]] for b in self.task]

    def greedy(self, steps: int) -> list[int]:
        """The instances of a launch of so many steps in an order in which they can run; as many as can."""
        count, head, order = [0] * len(self.total), [0] * len(self.queues), list[int]()
        done: set[int] = set()
        moved = True
        while moved:
            moved = False
            for q, n in enumerate(self.length):
                while head[q] < n * steps:
                    k = self.base[q] + head[q]
                    if any(count[c] < need for c, need, _ in self.needs[k]) or not self.tag_waits[k] <= done:
                        break
                    for c, w in self.gives[k]:
                        count[c] += w
                    head[q] += 1
                    done.add(k)
                    order.append(k)
                    moved = True
        return order

    def clocks(self) -> None:
        """``clock[k][r]``: the tasks that queue r has certainly completed when instance k starts; no entry: k never starts."""
        done, self.clock = [0] * len(self.queues), dict[int, list[int]]()
        for k in self.order:  # any start above the exact clocks ends at them; what one run has completed is a near one
            self.clock[k] = list(done)
            done[self.queue[k]] += 1
        producers: list[list[tuple[int, int]]] = [[] for _ in self.total]
        for k in range(self.n):
            for c, w in self.gives[k]:
                producers[c].append((k, w))
        self.producers = producers
        changed = True
        while changed:
            changed = False
            for k in self.order:
                old = self.clock[k]
                new = [min(a, b) for a, b in zip(old, self.implied(k, self.needs[k]), strict=True)]
                if new != old:
                    self.clock[k], changed = new, True

    def plus(self, k: int, r: int) -> int:
        if not self.ran(k):  # it never signals, so any claim about it is true
            return 1 << 60
        return self.pos[k] + 1 if r == self.queue[k] else self.clock[k][r]

    def implied(self, k: int, waits: Sequence[tuple[int, int, int]]) -> list[int]:
        """What queue order and the given waits say about every queue when instance k starts."""
        out = []
        for r in range(len(self.queues)):
            told = [self.threshold(c, need, r) for c, need, _ in waits]
            out.append(max([self.plus(k - 1, r), *told] if self.pos[k] else told, default=0))
        return out

    def threshold(self, c: int, need: int, r: int) -> int:
        """The largest v such that producers that know less than v of queue r cannot reach ``need`` alone."""
        known = sorted((self.plus(p, r), w) for p, w in self.producers[c])
        reached = itertools.accumulate(w for _, w in known)
        return next(v for (v, _), low in zip(known, reached, strict=True) if low >= need)

    def before(self, a: int, b: int) -> bool:
        """Instance a has certainly ended when b starts."""
        return self.clock[b][self.queue[a]] > self.pos[a]

    def ran(self, k: int) -> bool:
        return k in self.clock

    # -- rules over accesses
    def tagged(self, u: _Use) -> bool:
        return self.s.buffers[u.buffer].tagged

    def tag(self, u: _Use) -> int:
        """The step whose value a tagged access means."""
        return self.step[u.instance] - (1 if u.flags & PREV_EPOCH else 0)

    def wanted_tags(self) -> list[set[int]]:
        """Per instance: the writers of the tags that it reads; one that it may read counts, for where it does it waits."""
        out: list[set[int]] = [set() for _ in range(self.n)]
        for scene in self.scenes:
            tagged = [u for u in scene.uses if self.tagged(u)]
            for r in tagged:
                if not r.write:
                    out[r.instance] |= {w.instance for w in tagged if w.write and self.tag(w) == self.tag(r) and w.cells & r.cells}
        return out

    def races(self, scene: _Scene) -> None:
        plain = [u for u in scene.uses if not self.tagged(u)]
        for x, y in itertools.combinations(plain, 2):
            a, b = x.instance, y.instance
            if (x.write or y.write) and x.cells & y.cells and a != b and not self.before(a, b) and not self.before(b, a):
                self.found.add("RACE")

    def readonly(self, scene: _Scene) -> None:
        for b, buffer in enumerate(self.s.buffers):
            for u in scene.uses:
                if u.write and u.cells & scene.extent[b]:
                    if buffer.kind in READ_ONLY:
                        self.found.add("RO")
                    if self.s.stop is not None and b == self.s.stop[0] and self.task[u.instance] != self.s.stop[1]:
                        self.found.add("STOP")

    def stop(self) -> None:
        """A queue that enters step i + 1 has waited for the step before, as its first task says, and nothing else."""
        if self.s.stop is None:
            return
        buffer, task = self.s.stop
        c = self.s.columns
        mine = range(int(c.acc_off[task]), int(c.acc_off[task + 1]))
        if not any(c.acc_buffer[x] == buffer and c.acc_flags[x] & (WRITE | MAYBE) == WRITE for x in mine):
            self.found.add("STOP")  # nobody ever decides
        writer = [k for k in range(self.n) if self.task[k] == task]
        for k in range(self.n):
            i = self.step[k]
            if i == 0 or self.pos[k] % self.length[self.queue[k]]:
                continue
            w = writer[i - 1]
            knows = self.implied(k, [wait for wait in self.needs[k] if wait[2] == -1])
            if knows[self.queue[w]] < self.pos[w] + 1:
                self.found.add("STOP")

    def tag_alignment(self) -> None:
        if any(b.tagged and (DTYPE_BITS[b.dtype] != 64 or b.offset % 8) for b in self.s.buffers):
            self.found.add("TAG")

    def tags(self, scene: _Scene) -> None:
        for x in scene.uses:
            if not self.tagged(x):
                continue
            for y in scene.uses:
                if not x.cells & y.cells:
                    continue
                if x.buffer != y.buffer:
                    self.found.add("TAG")  # another name for tagged bytes
                elif x.write and y.write and x.instance != y.instance and self.tag(x) == self.tag(y):
                    self.found.add("TAG")  # two writers of one tag
                elif y.write and not x.write and self.tag(y) > self.tag(x) and not self.before(x.instance, y.instance):
                    self.found.add("TAG")  # the next writer may start before a reader has ended
        writes = [u for u in scene.uses if u.write and self.tagged(u)]
        for cell in range(scene.n_cells):
            writers = {self.tag(u): u for u in writes if u.cells >> cell & 1}
            for now, later in itertools.pairwise(sorted(writers)):
                reads = {self.tag(u) for u in scene.uses if not u.write and not u.maybe and u.cells >> cell & 1}
                a, b = writers[now].instance, writers[later].instance
                if now not in reads and not self.before(a, b):
                    self.found.add("TAG")

    def release(self) -> None:
        """Bulk stores are complete before anybody may follow."""
        c = self.s.columns
        for q, ids in enumerate(self.queues):
            for j, b in enumerate(ids):
                flags = c.acc_flags[c.acc_off[b] : c.acc_off[b + 1]].tolist()
                followed = j + 1 < len(ids) or self.steps > 1 or c.sig_off[b + 1] > c.sig_off[b]
                open_store = any(f & WRITE and f & ASYNC for f in flags) and not c.task_fences[b] & FENCES["bulk.wait_group"]
                if open_store and followed and self.ran(self.base[q] + j):
                    self.found.add("PROXY")

    def data(self, scene: _Scene) -> set[tuple[int, int]]:
        """COVER, FLOW and the fence of PROXY; returns (writer, reader) pairs of tasks."""
        rank = {k: n for n, k in enumerate(self.order)}
        writes = sorted((u for u in scene.uses if u.write), key=lambda u: rank[u.instance])
        feeds: set[tuple[int, int]] = set()
        for r in scene.uses:
            if r.write:
                continue
            buffer, i, task = self.s.buffers[r.buffer], self.step[r.instance], self.task[r.instance]
            per_step = buffer.lifetime == Lifetime.STEP
            if buffer.tagged:
                earlier = [w for w in writes if self.tag(w) <= self.tag(r)]
            else:
                earlier = [w for w in writes if self.before(w.instance, r.instance)]
            fenced = self.s.columns.task_fences[task] & FENCES["proxy.async"]
            if r.flags & ASYNC and not fenced and any(w.cells & r.cells and not w.flags & ASYNC for w in earlier):
                self.found.add("PROXY")
            if buffer.tagged:
                earlier = [w for w in earlier if self.tag(w) == self.tag(r)]
                initial = scene.initial if self.tag(r) < 0 else 0
            else:
                if per_step:
                    earlier = [w for w in earlier if self.step[w.instance] == i]
                initial = scene.initial if not per_step or i == 0 else 0
            certain = initial
            for w in earlier:
                certain |= 0 if w.maybe else w.cells
            if r.cells & ~certain and not r.maybe:
                self.found.add("COVER")
            rest = r.cells
            for w in reversed(earlier):  # the last writer of each byte
                if rest & w.cells:
                    feeds.add((self.task[w.instance], task))
                    if r.label >= 0 and (w.label != r.label or w.buffer != r.buffer):
                        self.found.add("FLOW")
                    if r.maybe or not w.maybe:  # what may not have been written leaves what was there before
                        rest &= ~w.cells
            if r.label >= 0 and r.maybe and rest & ~initial:
                self.found.add("FLOW")  # no value at all
        return feeds

    def outputs(self, scene: _Scene) -> None:
        """Every output byte is written, is what the host finds under that name, and is not taken from under the host."""
        rank = {k: n for n, k in enumerate(self.order)}
        writes = sorted((u for u in scene.uses if u.write), key=lambda u: rank[u.instance])
        for b, buffer in enumerate(self.s.buffers):
            if buffer.kind != Kind.OUTPUT:
                continue
            written = 0
            for w in writes:
                written |= 0 if w.maybe else w.cells
            if scene.extent[b] & ~written:
                self.found.add("COVER")
            for last in range(self.steps):
                rest = scene.extent[b]
                for w in reversed([w for w in writes if self.step[w.instance] <= last]):
                    if rest & w.cells and w.buffer != b:
                        self.found.add("FLOW")
                    rest &= ~w.cells
            for x, y in itertools.combinations(writes, 2):
                again = x.cells & y.cells & scene.extent[b] and self.step[x.instance] != self.step[y.instance]
                if buffer.lifetime == Lifetime.HOST and again and (x.moves or y.moves):
                    self.found.add("COVER")

    def reach(self, feeds: set[tuple[int, int]]) -> None:
        """Every real op reaches something that outlives its step, or an opaque task, where the schedule has outputs at all."""
        s, c = self.s, self.s.columns
        if all(b.kind != Kind.OUTPUT for b in s.buffers):
            return
        useful = set()
        for b in range(s.n_tasks):
            span = range(int(c.acc_off[b]), int(c.acc_off[b + 1]))
            kept = [s.buffers[int(c.acc_buffer[x])] for x in span if c.acc_flags[x] & WRITE]
            stays = (Kind.OUTPUT, Kind.KV, Kind.TOKEN)
            if c.task_op[b] == 0 or any(k.kind in stays or k.lifetime != Lifetime.STEP for k in kept):
                useful.add(b)
        grown = True
        while grown:
            more = {w for w, r in feeds if r in useful} - useful
            grown = bool(more)
            useful |= more
        if len(useful) != s.n_tasks:
            self.found.add("COVER")
