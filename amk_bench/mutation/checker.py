"""Cases of the certificate checker: certificates that are true, corrupted, misshapen, or of other tables than the ones at hand."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from amk_bench.adversary import run as attack
from amk_bench.adversary.certificates import corrupt
from amk_bench.adversary.mutations import OPERATORS
from amk_bench.adversary.net import Net, access, affine
from amk_bench.mutation import directed, small
from amk_bench.mutation.edges import edges
from amk_bench.mutation.native import words
from amk_core.schedule import validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.checker import check_certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC as TABLES_MAGIC
from amk_core.schedule.tables import pack, read_sections, table_hash, write_sections

SEED = 55
# What is done to the tables under a certificate.
CHANGES = (
    "drop_wait", "threshold_minus_one", "late_wait", "flip_epoch", "wrong_counter", "swap_in_queue", "drop_signal",
    "redirect_signal", "grow_tile", "shift_tile", "alias_buffers",
)  # fmt: skip
# Classes with ranges that move, of which more are taken, and classes of which one schedule has every number damaged.
MOVING_CLASSES = frozenset(
    ("kv_row_off_by_one", "ring_row_wrap", "deferred_append", "two_first_positions", "inactive_append", "moving_ranges",
     "late_race", "overtaking_safe", "random_tags", "tag_ping_pong", "sub_byte_neighbours")
)  # fmt: skip
DAMAGED_CLASSES = frozenset(("two_first_positions", "tag_orders_plain_data", "placed"))


# Sections of the tables whose numbers are damaged one by one, and the values that they get.
DAMAGED = (
    "header", "pools", "buffers", "affine", "counters", "wait_counter", "wait_t", "wait_e", "sig_counter", "sig_amount",
    "acc_buffer", "acc_raff", "acc_caff", "acc_flags", "acc_r1", "acc_c0", "queue_task",
)  # fmt: skip
VALUES = (-2, -1, 0, 1, 2, 3, 4, 2**31 - 1, 2**31, 2**60 - 1, 2**60)
BUFFER_FIELDS, AFFINE_FIELDS = (
    9,
    7,
)  # numbers of a row; a buffer's are kind, dtype, bits, rows, cols, pool, offset, lifetime, tagged


def damages(tables: bytes, most: int) -> Iterator[tuple[bytes, bool]]:
    """(tables with one number changed, whether they are senseless, so that no checker may take them)."""
    sections = read_sections(TABLES_MAGIC, tables)
    for name in DAMAGED:
        limit = np.iinfo(sections[name].dtype)
        size = sections[name].size
        for x in range(min(size, most)):
            near = (int(sections[name].reshape(-1)[x]) + d for d in (1, -1))
            for value in {*VALUES, *near, len(sections["counters"]), size}:
                if not limit.min <= value <= limit.max:
                    continue
                changed = {n: a.copy() for n, a in sections.items()}
                changed[name].reshape(-1)[x] = value
                pools, variables = len(sections["pools"]) // 2, len(sections["variables"]) // 2
                field = x % (BUFFER_FIELDS if name == "buffers" else AFFINE_FIELDS)
                senseless = name == "buffers" and (
                    (field in (2, 3, 4) and value < 1)
                    or (field == 5 and not 0 <= value < pools)
                    or (field == 6 and not 0 <= value < 2**60)
                    or (field in (2, 3, 4) and value == 2**60)
                )
                senseless |= name == "affine" and ((field in (1, 5) and not -1 <= value < variables) or (field == 3 and value < 0))
                yield write_sections(TABLES_MAGIC, changed), senseless


def long(steps: int, most: int) -> Iterator[Schedule]:
    """Caches and rings whose steps and first positions are too many to be tried one by one."""
    for mod in (None, 8):
        for lag in (0, 1):
            for order in ("this step", "the step before", "both"):
                n = Net(2, steps)
                rows = 8 if mod else steps + most + 1
                kv, c, free = n.buffer(1, rows=rows, kind="kv", lifetime="persistent", filled=True), n.counter(), n.counter()
                n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": most}}
                row = affine(1, base="p0[0]", mod=mod, add=lag)
                n.task(0, [], [access(kv, (0, 1), row)], [(free, 1, -1)] if order != "this step" else [], [(c, 1)])
                span = affine(1, base="p0[0]", mod=mod) if mod else {"start": 0, "length": {"base": "p0[0]", "stride": 1, "add": 1}}
                n.task(1, [access(kv, (0, 1), span)], [], [(c, 1)] if order != "the step before" else [(c, 1, -1)], [(free, 1)])
                yield Schedule.from_json(n.json())


def far() -> Iterator[Schedule]:
    """A reader of rows that are written very many steps later (or never), ordered by every step or not at all."""
    for steps, ahead in ((12, 3), (12, 4), (12, 5), (12, 11), (12, 12), (40, 20), (5, 4), (6, 5)):
        for ordered in (True, False):
            n = Net(2, steps)
            x, c, back = n.buffer(1, rows=steps + ahead, lifetime="persistent", filled=True), n.counter(), n.counter()
            n.task(0, [], [access(x, (0, 1), affine(1))], [(back, 1, -1)] if ordered else [], [(c, 1)])
            n.task(1, [access(x, (0, 1), affine(1, add=ahead))], [], [(c, 1)] if ordered else [(c, 1, -1)], [(back, 1)])
            yield Schedule.from_json(n.json())


def shared() -> Iterator[Schedule]:
    """Two buffers of different shapes or widths on the same bytes, standing still or moving with the step."""
    for dtype, cols, rows in (("i4", 3, 3), ("i4", 4, 2), ("f32", 2, 4), ("i8", 8, 1), ("bf16", 2, 2)):
        for moves in (False, True):
            for offset in (0, 1, 2, 4, 6):
                for part in ((0, 1), (0, cols), (1, cols)):
                    n = Net(2, 2)
                    x = n.buffer(cols, rows, dtype=dtype, lifetime="persistent", filled=True, offset=0)
                    y = n.buffer(3, 4, dtype="i4", lifetime="persistent", filled=True, offset=offset)
                    c, back = n.counter(), n.counter()
                    row = affine(1, mod=rows) if moves else (0, rows)
                    n.task(0, [], [access(x, part, row)], [(back, 1, -1)], [(c, 1)])
                    n.task(1, [access(y, (1, 2), affine(1) if moves else (1, 3))], [], [(c, 1)], [(back, 1)])
                    yield Schedule.from_json(n.json())


def longest() -> Iterator[Schedule]:
    """Ranges that move and are as long as the small limit of the checker allows, one less and one more."""
    for length in (38, 39, 40, 41):
        n = Net(2, 2)
        x, c, back = n.buffer(1, rows=44, lifetime="persistent", filled=True), n.counter(), n.counter()
        n.task(0, [], [access(x, (0, 1), affine(1, length=length))], [(back, 1, -1)], [(c, 1)])
        n.task(1, [access(x, (0, 1), affine(1, length=length))], [], [(c, 1)], [(back, 1)])
        yield Schedule.from_json(n.json())


def rings() -> Iterator[Schedule]:
    """Loops over a ring whose clocks are written out step by step, beside pairs that need an order in each step."""
    for ahead in (None, 0, 1):
        n = Net(4, 7)
        ring, c, free = n.buffer(1, rows=5, lifetime="persistent"), n.counter(), n.counter()
        n.task(0, [], [access(ring, (0, 1), affine(1, mod=5))], [(free, 1, -1)], [(c, 1)])
        n.task(1, [access(ring, (0, 1), affine(1, mod=5))], [], [(c, 1)], [(free, 1)])
        y, d, back = n.buffer(2, rows=9, lifetime="persistent", filled=True), n.counter(), n.counter()
        write, read = ((0, 1), (0, 1)) if ahead is None else (affine(1), affine(1, add=ahead))
        n.task(2, [], [access(y, (0, 2), write)], [(back, 1, -1)], [(d, 1)])
        n.task(3, [access(y, (0, 2), read)], [], [(d, 1, 0 if ahead != 1 else -1)], [(back, 1)])
        yield Schedule.from_json(n.json())


def nibbles(cut: int, second: int) -> Schedule:
    """Two queues write parts of one row of 4-bit elements: columns below ``cut``, and from ``second`` on."""
    n = Net(2)
    x = n.buffer(6, dtype="i4")
    n.task(0, [], [access(x, (0, cut))])
    n.task(1, [], [access(x, (second, 6))])
    return Schedule.from_json(n.json())


def _swapped(rng: random.Random, c: Certificate) -> Certificate:
    """Two places of the replay exchanged: each queue may keep its order while a tagged reader comes before its writer."""
    order = c.replay.copy()
    a, b = rng.randrange(order.size), rng.randrange(order.size)
    order[a], order[b] = order[b], order[a]
    return dataclasses.replace(c, replay=order)


def _misshapen(c: Certificate) -> Iterator[Certificate]:
    """Sizes that do not belong together, and, where clocks are written out step by step, every entry moved by one."""
    for field in ("replay", "row", "row_off", "row_queue", "row_value"):
        a = getattr(c, field)
        for other in (a[:-1], np.append(a, a[-1])) if a.size else ():
            changed: dict[str, Any] = {field: other}
            yield dataclasses.replace(c, **changed)
    for d in (1, -1):
        yield dataclasses.replace(c, n_tasks=c.n_tasks + d)
        yield dataclasses.replace(c, n_queues=c.n_queues + d)
    if c.unroll > 1:
        for x in range(min(c.row_value.size, 60)):
            for d in (1, -1):
                value = c.row_value.copy()
                value[x] += d
                yield dataclasses.replace(c, row_value=value)


def _nearly_wrapping(amount: int) -> Schedule:
    n = Net(2, 2)
    k = n.counter()
    n.task(0, signals=[(k, amount)])
    n.task(1, waits=[(k, amount)])
    return Schedule.from_json(n.json())


def cases(per_class: int, seed: int = SEED) -> Iterator[list[int]]:
    """Certificates on which both engines agree: true, corrupted, or for other tables than the ones at hand."""
    rng = random.Random(f"{seed}/checker")
    operators = [OPERATORS[name] for name in CHANGES]
    damaged: set[str] = set()
    misshapen: set[str] = set()

    def case(tables: bytes, c: Certificate, senseless: bool = False) -> list[int] | None:
        c = dataclasses.replace(c, table_hash=table_hash(tables))
        native = not check_certificate(tables, c)
        try:
            python = not check_certificate(tables, c, engine="python")
        except Exception:  # tables that make no sense make the readable engine stumble: as good as a refusal
            python = False
        return words(native, -1, -1, tables, c) if senseless or native == python else None

    def around(name: str, s: Schedule) -> Iterator[list[int] | None]:
        v = validate(s, witness=False)
        c = v.certificate
        tables = pack(s)
        if c is None:
            return
        yield case(tables, c)
        moves = len(s.columns.affine) > 0
        for what, bad in (corrupt(rng, c) for _ in range(6)):
            if what != "hash":
                yield case(tables, bad)
        if c.unroll > 1 or name not in misshapen:
            misshapen.add(name)
            for bad in _misshapen(c):
                yield case(tables, bad)
        if any(b.tagged for b in s.buffers):
            for _ in range(6):
                yield case(tables, _swapped(rng, c))
        for _ in range(8 if moves else 3):
            other = s.to_json()
            rng.choice(operators)(rng, other)
            changed = Schedule.from_json(other)
            if not changed.defects:
                yield case(pack(changed), c)
        if name not in damaged and name in DAMAGED_CLASSES:
            damaged.add(name)
            for broken, senseless in damages(tables, 20):
                yield case(broken, c, senseless)

    most = validate(_nearly_wrapping(2**30 - 1)).certificate
    if most is not None:
        for amount in (2**30 - 1, 2**30):
            made = case(pack(_nearly_wrapping(amount)), most)
            if made is not None:
                yield made
    apart = validate(nibbles(2, 4)).certificate
    if apart is not None:
        for cut, second in ((2, 4), (2, 2), (3, 4), (3, 3), (1, 1), (2, 3)):
            made = case(pack(nibbles(cut, second)), apart)
            if made is not None:
                yield made
    for tables, c in (*small.cases(seed), *directed.cases(seed)):
        made = case(tables, c)
        if made is not None:
            yield made
    for tables, c in directed.damaged():
        made = case(tables, c, senseless=True)
        if made is not None:
            yield made
    sources = [("written out", s) for s in rings()]
    sources += [(name, Schedule.from_json(data)) for name, data in edges()]
    sources += [("long", s) for steps, most in ((3, 2), (5, 11), (5, 12), (6, 3), (9, 40)) for s in long(steps, most)]
    sources += [("long", s) for s in (*far(), *shared(), *longest())]
    for index in range(per_class):
        for name in attack.CLASSES:
            for more in range(4 if name in MOVING_CLASSES else 1):
                sources.append((name, Schedule.from_json(attack.schedule_json(name, seed, index * 4 + more))))
    for name, s in sources:
        if (name == "long" or s.n_tasks * s.steps <= 60) and not s.defects:
            for given in around(name, s):
                if given is not None:
                    yield given
