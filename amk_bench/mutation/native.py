"""Mutants of the native validator and of the certificate checker, all in one program each (see cpp.py and runner.cpp).

The validator is judged by the exhaustive oracle (verdict) and by the Python reference (rules), and what it accepts by the unmutated
checker; the checker by the Python engine on true certificates, on corrupted ones, and on true ones under changed tables.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench.adversary import run as attack
from amk_bench.adversary.certificates import corrupt
from amk_bench.adversary.mutations import OPERATORS
from amk_bench.adversary.net import Json, Net, access, affine
from amk_bench.adversary.regressions import REGRESSIONS
from amk_bench.mutation import directed, small
from amk_bench.mutation.cpp import HEADER, Mutant, Schemata
from amk_bench.mutation.edges import edges
from amk_bench.mutation.reference import comparable
from amk_core.resources import source_root
from amk_core.schedule import ops, oracle, reference, validate
from amk_core.schedule.certificate import Certificate
from amk_core.schedule.checker import check_certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC as TABLES_MAGIC
from amk_core.schedule.tables import pack, read_sections, table_hash, write_sections

RULES = ("REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "PROXY")  # bit k, as in validate.hpp
CHUNK = 200  # mutants of one process
SEED = 55
# Limits of the checker in the program of mutants: small cases lie on both sides of them.
LIMITS = {
    "kDenseEntries": 40, "kExactValues": 12, "kExactSteps": 5, "kMaxLag": 4, "kMaxCells": 144, "kMaxSteps": 50, "kMaxUnroll": 60,
    "kMaxRows": 3, "kMemo": 8,
}  # fmt: skip
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
RULES_INDEX = 6  # schedules of a class below this index are also given to the slow reference, for their rules


@dataclass(frozen=True, slots=True)
class Program:
    path: Path
    mutants: list[Mutant]


def sources(what: str) -> list[str]:
    """Files of ``validator`` or ``checker`` that are mutated."""
    return sorted(p.name for p in _native().glob("validate*.cpp")) if what == "validator" else ["checker.cpp"]


def _native() -> Path:
    root = source_root()
    if root is None:
        raise RuntimeError("the native sources are needed: run from a source tree")
    return root / "amk_core" / "native"


def with_limits(text: str) -> str:
    """The checker's source with the limits of :data:`LIMITS`.

    Raises:
        ValueError: the source has no such limit.
    """
    for name, value in LIMITS.items():
        text, found = re.subn(rf"(constexpr int64_t {name} = )[^;]+;", rf"\g<1>{value};", text)
        if found != 1:
            raise ValueError(f"checker.cpp declares {name} {found} times; once is required: correct LIMITS")
    return text


def build(what: str, folder: Path, jobs: int = 2) -> Program:
    """Plant all mutants of ``validator`` or ``checker`` and compile them with the runner."""
    native = _native()
    (folder / "amk_mutants.hpp").write_text(HEADER)
    schemata = Schemata([native])
    mutated = sources(what)
    for name in mutated:
        text = schemata.plant(native / name)
        (folder / name).write_text(with_limits(text) if what == "checker" else text)
    files = [folder / name for name in mutated] + [native / "tables.cpp", Path(__file__).with_name("runner.cpp")]
    if what == "validator":
        files.append(native / "checker.cpp")
    flags = [
        "-std=c++20",
        "-O1",
        "-D_GLIBCXX_ASSERTIONS",  # an index outside of its array is a crash
        "-Wno-narrowing",
        "-w",
        f"-DAMK_VALIDATOR={int(what == 'validator')}",
        f"-I{folder}",
        f"-I{native}",
    ]

    def compile_one(file: Path) -> str:
        out = folder / f"{file.stem}.o"
        done = subprocess.run(["g++", *flags, "-c", str(file), "-o", str(out)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{file.name} with its mutants does not compile:\n{done.stderr[:3000]}")
        return str(out)

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, files))
    program = folder / what
    subprocess.run(["g++", *objects, "-o", str(program)], check=True)
    return Program(program, schemata.mutants)


# ---- what is known
def _words(accept: bool, rules: int, kept: int, tables: bytes, certificate: Certificate | None) -> list[int]:
    padded = tables + bytes(-len(tables) % 8)
    out = [int(accept), rules, kept, len(tables), *np.frombuffer(padded, np.int64).tolist()]
    if certificate is None:
        return [*out, *[0] * 6]
    lists = [[certificate.unroll, certificate.n_tasks, certificate.n_queues]]
    lists += [np.asarray(getattr(certificate, n)).tolist() for n in ("replay", "row", "row_off", "row_queue", "row_value")]
    return out + [x for list_ in lists for x in (len(list_), *list_)]


def _schedules(per_class: int, seed: int) -> Iterator[tuple[int, Json]]:
    yield from ((0, data) for _, data in edges())
    for r in REGRESSIONS:
        yield 0, r.build()
    for index in range(per_class):
        for name in attack.CLASSES:
            yield index, attack.schedule_json(name, seed, index)


def validator_cases(per_class: int, seed: int = SEED) -> Iterator[list[int]]:
    """Schedules that the native code decides, with the oracle's verdict and, for the first of each class, the reference's rules."""
    for index, data in _schedules(per_class, seed):
        s = Schedule.from_json(data)
        if s.defects or any(b.pool not in {p.id for p in s.pools} for b in s.buffers):
            continue
        if (s.columns.task_op != 0).any() and ops.problems(s):
            continue
        label = oracle.label(s)
        native = validate(s, witness=False, certificate=False)
        if label.undecided is not None or native.undecided or "FIT" in native.rules | label.rules:
            continue
        rules = kept = -1
        if index < RULES_INDEX and s.n_tasks * s.steps < 60:
            try:
                wanted = comparable(reference.validate(s).rules)
            except reference.TooLarge:
                wanted = None
            if wanted is not None:
                mask = {"LIVE": {"LIVE", "RO"}, "RACE": set(RULES) - {"COVER", "FLOW"}}
                keep = mask["LIVE"] if "LIVE" in wanted else mask["RACE"] if "RACE" in wanted else set(RULES)
                keep -= {"COVER"} if "TAG" in wanted else set()
                kept = sum(1 << k for k, r in enumerate(RULES) if r in keep)
                rules = sum(1 << k for k, r in enumerate(RULES) if r in wanted)
        yield _words(label.safe, rules, kept, pack(s), None)


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


def _damages(tables: bytes, most: int) -> Iterator[tuple[bytes, bool]]:
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


def _long(steps: int, most: int) -> Iterator[Schedule]:
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


def _far() -> Iterator[Schedule]:
    """A reader of rows that are written very many steps later (or never), ordered by every step or not at all."""
    for steps, ahead in ((12, 3), (12, 4), (12, 5), (12, 11), (12, 12), (40, 20), (5, 4), (6, 5)):
        for ordered in (True, False):
            n = Net(2, steps)
            x, c, back = n.buffer(1, rows=steps + ahead, lifetime="persistent", filled=True), n.counter(), n.counter()
            n.task(0, [], [access(x, (0, 1), affine(1))], [(back, 1, -1)] if ordered else [], [(c, 1)])
            n.task(1, [access(x, (0, 1), affine(1, add=ahead))], [], [(c, 1)] if ordered else [(c, 1, -1)], [(back, 1)])
            yield Schedule.from_json(n.json())


def _shared() -> Iterator[Schedule]:
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


def _written_out() -> Iterator[Schedule]:
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


def _nibbles(cut: int, second: int) -> Schedule:
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


def checker_cases(per_class: int, seed: int = SEED) -> Iterator[list[int]]:
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
        return _words(native, -1, -1, tables, c) if senseless or native == python else None

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
            for broken, senseless in _damages(tables, 20):
                yield case(broken, c, senseless)

    most = validate(_nearly_wrapping(2**30 - 1)).certificate
    if most is not None:
        for amount in (2**30 - 1, 2**30):
            words = case(pack(_nearly_wrapping(amount)), most)
            if words is not None:
                yield words
    apart = validate(_nibbles(2, 4)).certificate
    if apart is not None:
        for cut, second in ((2, 4), (2, 2), (3, 4), (3, 3), (1, 1), (2, 3)):
            words = case(pack(_nibbles(cut, second)), apart)
            if words is not None:
                yield words
    for tables, c in (*small.cases(seed), *directed.cases(seed)):
        words = case(tables, c)
        if words is not None:
            yield words
    for tables, c in directed.damaged():
        words = case(tables, c, senseless=True)
        if words is not None:
            yield words
    sources = [("written out", s) for s in _written_out()]
    sources += [(name, Schedule.from_json(data)) for name, data in edges()]
    sources += [("long", s) for steps, most in ((3, 2), (5, 11), (5, 12), (6, 3), (9, 40)) for s in _long(steps, most)]
    sources += [("long", s) for s in (*_far(), *_shared())]
    for index in range(per_class):
        for name in attack.CLASSES:
            for more in range(4 if name in MOVING_CLASSES else 1):
                sources.append((name, Schedule.from_json(attack.schedule_json(name, seed, index * 4 + more))))
    for name, s in sources:
        if (name == "long" or s.n_tasks * s.steps <= 60) and not s.defects:
            for words in around(name, s):
                if words is not None:
                    yield words


CASES: dict[str, Callable[[int], Iterator[list[int]]]] = {"validator": validator_cases, "checker": checker_cases}


@dataclass(frozen=True, slots=True)
class Result:
    """``deaths``: how many mutants died of what; ``survivors``: those that changed nothing at all, by key."""

    mutants: int
    cases: int
    deaths: dict[str, int]
    survivors: tuple[str, ...]
    report_only: tuple[str, ...]


def write_corpus(cases: Sequence[list[int]], path: Path) -> None:
    path.write_bytes(np.array([x for c in cases for x in c], np.int64).tobytes())


def run(program: Program, corpus: Path, n_cases: int, processes: int = 1, stride: int = 1) -> Result:
    """Try every mutant of a program, or every ``stride``-th one.

    Raises:
        RuntimeError: the code as written disagrees with the corpus.
    """
    last = len(program.mutants)

    def chunk(first: int) -> list[str]:
        command = [str(program.path), str(corpus), str(first), str(min(last, first + CHUNK * stride - 1)), str(stride)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-300:]} {done.stderr[-300:]}")
        return done.stdout.splitlines()

    how: dict[int, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        for lines in pool.map(chunk, range(1, last + 1, CHUNK * stride)):
            how.update((int(a), b) for a, b in (line.split() for line in lines))
    seen: dict[str, int] = {}
    survivors, report_only = [], []
    for m in program.mutants:
        seen[m.key] = seen.get(m.key, 0) + 1
        key = m.key if seen[m.key] == 1 else f"{m.key} ({seen[m.key]})"
        if how.get(m.number) == "lives":
            survivors.append(key)
        elif how.get(m.number) == "report":
            report_only.append(key)
    return Result(len(how), n_cases, dict(collections.Counter(how.values())), tuple(survivors), tuple(report_only))
