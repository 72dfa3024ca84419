"""Mutants of the native validator and of the certificate checker, all in one program each (see cpp.py and runner.cpp).

The validator is judged by the exhaustive oracle (verdict) and by the Python reference (rules), and what it accepts by the unmutated
checker; the checker by the Python engine on true certificates, on corrupted ones, and on true ones under changed tables.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amk_bench.adversary import run as attack
from amk_bench.adversary.certificates import corrupt
from amk_bench.adversary.mutations import OPERATORS
from amk_bench.adversary.net import Json
from amk_bench.adversary.regressions import REGRESSIONS
from amk_bench.mutation.cpp import HEADER, Mutant, Schemata
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
# What is done to the tables under a certificate.
CHANGES = (
    "drop_wait", "threshold_minus_one", "late_wait", "flip_epoch", "wrong_counter", "swap_in_queue", "drop_signal",
    "redirect_signal", "grow_tile", "shift_tile", "alias_buffers",
)  # fmt: skip
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


def build(what: str, folder: Path, jobs: int = 2) -> Program:
    """Plant all mutants of ``validator`` or ``checker`` and compile them with the runner."""
    native = _native()
    (folder / "amk_mutants.hpp").write_text(HEADER)
    schemata = Schemata([native])
    mutated = sources(what)
    for name in mutated:
        (folder / name).write_text(schemata.plant(native / name))
    files = [folder / name for name in mutated] + [native / "tables.cpp", Path(__file__).with_name("runner.cpp")]
    if what == "validator":
        files.append(native / "checker.cpp")
    flags = [
        "-std=c++20",
        "-O1",
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


def _damage(rng: random.Random, tables: bytes) -> bytes:
    """Tables with one number of one section changed."""
    sections = {n: a.copy() for n, a in read_sections(TABLES_MAGIC, tables).items()}
    name = rng.choice([n for n, a in sections.items() if a.size and n != "names"])
    a = sections[name].reshape(-1)
    x = rng.randrange(a.size)
    old = int(a[x])
    limit = np.iinfo(a.dtype)
    a[x] = rng.choice(
        [v for v in (old + 1, old - 1, old + 2, -1, -2, 0, 1, 2, limit.max, 1000) if limit.min <= v <= limit.max and v != old]
    )
    return write_sections(TABLES_MAGIC, sections)


def checker_cases(per_class: int, seed: int = SEED) -> Iterator[list[int]]:
    """Certificates on which both engines agree: true, corrupted, or for other tables than the ones at hand."""
    rng = random.Random(f"{seed}/checker")
    operators = [OPERATORS[name] for name in CHANGES]

    def case(tables: bytes, c: Certificate) -> list[int] | None:
        c = dataclasses.replace(c, table_hash=table_hash(tables))
        try:
            verdicts = {not check_certificate(tables, c, engine=e) for e in ("native", "python")}
        except Exception:  # the Python engine may stumble over tables that unpack cannot represent
            return None
        return _words(verdicts.pop(), -1, -1, tables, c) if len(verdicts) == 1 else None

    for _, data in _schedules(per_class, seed):
        s = Schedule.from_json(data)
        if s.n_tasks * s.steps > 60 or s.defects:
            continue
        v = validate(s, witness=False)
        if v.certificate is None:
            continue
        tables = pack(s)
        tried: list[tuple[bytes, Certificate]] = [(tables, v.certificate)]
        tried += [(tables, bad) for what, bad in (corrupt(rng, v.certificate) for _ in range(5)) if what != "hash"]
        for _ in range(3):
            other = s.to_json()
            rng.choice(operators)(rng, other)
            changed = Schedule.from_json(other)
            if not changed.defects:
                tried.append((pack(changed), v.certificate))
        tried += [(_damage(rng, tables), v.certificate) for _ in range(3)]
        for item in tried:
            words = case(*item)
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


def run(program: Program, corpus: Path, n_cases: int, processes: int = 1) -> Result:
    """Try every mutant of a program.

    Raises:
        RuntimeError: the code as written disagrees with the corpus.
    """
    last = len(program.mutants)

    def chunk(first: int) -> list[str]:
        command = [str(program.path), str(corpus), str(first), str(min(last, first + CHUNK - 1))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-300:]} {done.stderr[-300:]}")
        return done.stdout.splitlines()

    how: dict[int, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        for lines in pool.map(chunk, range(1, last + 1, CHUNK)):
            how.update((int(a), b) for a, b in (line.split() for line in lines))
    seen: dict[str, int] = {}
    survivors, report_only = [], []
    for m in program.mutants:
        seen[m.key] = seen.get(m.key, 0) + 1
        key = m.key if seen[m.key] == 1 else f"{m.key} ({seen[m.key]})"
        if how[m.number] == "lives":
            survivors.append(key)
        elif how[m.number] == "report":
            report_only.append(key)
    return Result(last, n_cases, dict(collections.Counter(how.values())), tuple(survivors), tuple(report_only))
