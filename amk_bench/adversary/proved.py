"""The proved checker as a second opinion: certificates judged by the program extracted from proofs/Checker.v and by ours.

A case is one line of integers: the tables, with every byte range written out for every step and every value of the launch
variables, then the certificate.  ``proofs/extract/main.ml`` reads it.  The writing out is ordinary code and trusted; the judgement
on what is written out is a theorem.

``python -m amk_bench.adversary.proved --n 10000 --out FILE.json`` compares the two on n certificates, right and wrong ones,
and exits 1 where they differ (``make proof`` builds the program).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk_bench.adversary.certificates import corrupt
from amk_bench.adversary.net import Json, Rng
from amk_bench.adversary.run import CLASSES, schedule_json
from amk_bench.adversary.tally import save
from amk_core.schedule import Certificate, Schedule, check_certificate, validate
from amk_core.schedule.ir import DTYPE_BITS, MAYBE, PREV_EPOCH, WRITE
from amk_core.schedule.tables import pack, table_hash

PROGRAM = Path(__file__).parents[2] / "proofs" / "extracted" / "checker"
MAX_ASSIGNMENTS = 64  # values of the launch variables that are written out
MAX_STEPS = 32  # steps that are written out, where a range moves
MAX_NUMBER = 4096  # thresholds and steps: the program counts in unary
POOL = 1 << 45  # pools are laid out one after the other, this far apart
CORRUPTIONS = 3  # of each certificate
KINDS = ("original", "corrupted", "weaker_tables")

Span = tuple[int, int]


class TooLarge(ValueError):
    """The case cannot be written out within the bounds above."""


@dataclass(frozen=True, slots=True)
class _Access:
    write: bool
    buffer: int
    flags: int
    lines: tuple[tuple[int, ...], tuple[int, ...]]  # rows, cols: Affine rows; a plain range has no variable, stride or modulus

    @property
    def moves(self) -> bool:
        return any(line[1] >= 0 or line[2] or line[3] or line[5] >= 0 or line[6] for line in self.lines)


def _accesses(s: Schedule) -> list[list[_Access]]:
    c = s.columns
    out: list[list[_Access]] = []
    for b in range(s.n_tasks):
        mine = []
        for a in range(int(c.acc_off[b]), int(c.acc_off[b + 1])):
            lines = []
            for lo, hi, aff in ((c.acc_r0, c.acc_r1, c.acc_raff), (c.acc_c0, c.acc_c1, c.acc_caff)):
                k = int(aff[a])
                lines.append(
                    tuple(int(x) for x in c.affine[k]) if k >= 0 else (int(lo[a]), -1, 0, 0, int(hi[a]) - int(lo[a]), -1, 0)
                )
            flags = int(c.acc_flags[a])
            mine.append(_Access(bool(flags & WRITE), int(c.acc_buffer[a]), flags, (lines[0], lines[1])))
        out.append(mine)
    return out


def _range(line: Sequence[int], step: int, values: Sequence[int]) -> Span:
    add, var, stride, mod, length, length_var, length_stride = line
    start = add + stride * step + (values[var] if var >= 0 else 0)
    if mod:
        start %= mod
    return start, start + length + length_stride * step + (values[length_var] if length_var >= 0 else 0)


def _spans(s: Schedule, a: _Access, step: int, values: Sequence[int]) -> list[Span]:
    """The bytes, as half-open ranges in one address space of all pools."""
    b = s.buffers[a.buffer]
    (r0, r1), (c0, c1) = (_range(line, step, values) for line in a.lines)
    if r0 >= r1 or c0 >= c1:
        return []
    bits, base = DTYPE_BITS[b.dtype], b.offset + POOL * [p.id for p in s.pools].index(b.pool)
    if (c0, c1) == (0, b.cols):  # whole rows are one piece
        return [(base + r0 * b.cols * bits // 8, base - (-r1 * b.cols * bits // 8))]
    return [(base + (r * b.cols + c0) * bits // 8, base - (-(r * b.cols + c1) * bits // 8)) for r in range(r0, r1)]


def _assignments(s: Schedule, accesses: Sequence[Sequence[_Access]]) -> list[list[int]]:
    """Every value of the variables that occur; the others stand at their minimum."""
    bounds = [(v.min, v.max) for v in s.variables for _ in range(v.count)]
    used = {line[k] for task in accesses for a in task for line in a.lines for k in (1, 5) if line[k] >= 0}
    count = 1
    for v in used:
        count *= bounds[v][1] - bounds[v][0] + 1
        if count > MAX_ASSIGNMENTS:
            raise TooLarge(f"more than {MAX_ASSIGNMENTS} values of the launch variables")
    return [
        list(row) for row in itertools.product(*(range(lo, (hi if v in used else lo) + 1) for v, (lo, hi) in enumerate(bounds)))
    ]


def _tagged_before(s: Schedule, accesses: Sequence[Sequence[_Access]], values: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each task the writers, in the same step, of tagged elements it certainly polls."""

    def certain_read(a: _Access) -> bool:
        return s.buffers[a.buffer].tagged and not a.flags & (WRITE | PREV_EPOCH | MAYBE)

    def meet(a: _Access, b: _Access) -> bool:
        span = s.steps if a.moves or b.moves else 1
        return any(
            x < v and u < y for i in range(span) for row in values for x, y in _spans(s, a, i, row) for u, v in _spans(s, b, i, row)
        )

    shared = {p.id for p in s.pools if not p.per_queue}
    writes = [
        (b, a)
        for b, mine in enumerate(accesses)
        for a in mine
        if a.write and s.buffers[a.buffer].tagged and s.buffers[a.buffer].pool in shared
    ]
    return [
        sorted({b for a in mine if certain_read(a) for b, w in writes if w.buffer == a.buffer and meet(w, a)}) for mine in accesses
    ]


def _numbers(s: Schedule, c: Certificate) -> Iterator[int]:
    cols = s.columns
    accesses = _accesses(s)
    values = _assignments(s, accesses)
    if max([s.steps, *map(int, cols.wait_t), *map(int, cols.sig_amount)]) > MAX_NUMBER:
        raise TooLarge(f"steps, thresholds or amounts beyond {MAX_NUMBER}")
    if s.steps > MAX_STEPS and any(a.moves for mine in accesses for a in mine):
        raise TooLarge(f"ranges move over {s.steps} steps, more than {MAX_STEPS}")
    before = _tagged_before(s, accesses, values)
    where = {t: (q, j) for q in range(s.n_queues) for j, t in enumerate(s.queue(q))}
    shared = {p.id for p in s.pools if not p.per_queue}
    yield from (s.steps, len(s.counters), len(values), s.n_queues)
    for q in range(s.n_queues):
        ids = s.queue(q)
        yield len(ids)
        for t in ids:
            yield t
            waits = range(int(cols.wait_off[t]), int(cols.wait_off[t + 1]))
            yield len(waits)
            for w in waits:
                yield from (int(cols.wait_counter[w]), int(cols.wait_t[w]), int(cols.wait_e[w] == -1))
            signals = range(int(cols.sig_off[t]), int(cols.sig_off[t + 1]))
            yield len(signals)
            for g in signals:
                yield from (int(cols.sig_counter[g]), int(cols.sig_amount[g]))
            yield len(before[t])
            for b in before[t]:
                yield from where[b]
            plain = [a for a in accesses[t] if not s.buffers[a.buffer].tagged and s.buffers[a.buffer].pool in shared]
            yield len(values)
            for row in values:
                yield len(plain)
                for a in plain:
                    yield int(a.write)
                    steps = range(s.steps if a.moves else 1)
                    yield len(steps)
                    for i in steps:
                        spans = _spans(s, a, i, row)
                        yield len(spans)
                        for lo, hi in spans:
                            yield from (lo, hi)
    yield from (c.unroll, c.n_tasks, c.n_queues)
    for column in (c.replay, c.row, c.row_off, c.row_queue, c.row_value):
        yield len(column)
        yield from map(int, column)


def case(s: Schedule, c: Certificate) -> str:
    """The line that the proved checker reads.

    Raises:
        TooLarge: more than this page writes out.
    """
    return " ".join(map(str, _numbers(s, c)))


def judge(lines: Sequence[str]) -> list[bool]:
    """What the proved checker says to each line.

    Raises:
        FileNotFoundError: it is not built; run ``make proof``.
        ValueError: it could not read a line.
    """
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} is not built; run: make proof")
    done = subprocess.run([str(PROGRAM)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    out = done.stdout.split()
    if len(out) != len(lines) or set(out) - {"0", "1"}:
        raise ValueError(f"the proved checker read {len(out)} of {len(lines)} lines, {out.count('?')} of them not at all")
    return [x == "1" for x in out]


def weaken(rng: Rng, data: Json) -> Json | None:
    """The schedule with one wait dropped, lowered or meant for the step before; None where nobody waits."""
    s: Json = copy.deepcopy(data)
    waits = [(t["waits"], k) for t in s["tasks"] for k in range(len(t["waits"]))]
    if not waits:
        return None
    of, k = rng.choice(waits)
    counter, t, e = (*of[k], 0)[:3]
    if t > 1 and rng.random() < 0.4:
        of[k] = [counter, t - 1, e]
    elif e == 0 and s.get("steps", 1) > 1 and rng.random() < 0.4:
        of[k] = [counter, t, -1]
    else:
        del of[k]
    return s


def certificates(seed: int, names: Sequence[str] | None = None) -> Iterator[tuple[str, Schedule, bytes, Certificate]]:
    """(class/seed/index[/what was changed], schedule, tables, certificate), without end.

    Of each accepted schedule: its certificate, corrupted ones, and its own under tables with a wait less.
    """
    names = list(names or CLASSES)
    for index in itertools.count():
        for name in names:
            data = schedule_json(name, seed, index)
            s = Schedule.from_json(data)
            v = validate(s)
            if v.certificate is None:
                continue
            tables, where = pack(s), f"{name}/{seed}/{index}"
            yield where, s, tables, v.certificate
            rng = random.Random(f"{where}/proved")
            for k in range(CORRUPTIONS):
                what, changed = corrupt(rng, v.certificate)
                if what != "hash":  # the program sees tables, not their hash
                    yield f"{where}/{what}.{k}", s, tables, changed
            weaker = weaken(rng, data)
            if weaker is not None:
                s = Schedule.from_json(weaker)
                tables = pack(s)
                yield f"{where}/weaker", s, tables, dataclasses.replace(v.certificate, table_hash=table_hash(tables))


def compare(n: int, seed: int = 0, *, batch: int = 500, python: bool = True, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Compare on n certificates: counts, and every one on which the checkers differ.

    The native engine has to agree exactly.  The Python one compares every pair where they compare neighbours, so it may refuse
    clocks that order neighbours only; it may not accept more.
    """
    counts: Counter[str] = Counter()
    differ: list[str] = []
    todo: list[tuple[str, str, bool, bool | None]] = []

    def flush() -> None:
        for (where, _, native, slow), proved in zip(todo, judge([line for _, line, _, _ in todo]), strict=True):
            kind = "weaker_tables" if where.endswith("/weaker") else "corrupted" if where.count("/") > 2 else "original"
            counts[kind] += 1
            counts["holds" if proved else "does_not_hold"] += 1
            counts["python_stricter"] += slow is False and proved
            if native != proved or (slow and not proved):
                differ.append(f"{where}: proved {proved}, native {native}, python {slow}")
        todo.clear()

    for where, s, tables, c in certificates(seed, names):
        if sum(counts[k] for k in KINDS) + len(todo) >= n:
            break
        try:
            line = case(s, c)
        except TooLarge:
            counts["too_large"] += 1
            continue
        counts["written_out" if c.unroll else "periodic"] += 1
        slow = not check_certificate(tables, c, engine="python") if python else None
        todo.append((where, line, not check_certificate(tables, c), slow))
        if len(todo) >= batch:
            flush()
    if todo:
        flush()
    return {"n": sum(counts[k] for k in KINDS), "seed": seed, **counts, "differ": differ}


def main(argv: list[str] | None = None) -> int:
    """0: the checkers agree on every certificate; 1: they differ; 2: the proved checker is not built."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.proved", description=__doc__)
    p.add_argument("--n", type=int, default=10_000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="write the result here (JSON)")
    a = p.parse_args(argv)
    start = time.monotonic()
    try:
        result = compare(a.n, a.seed)
    except FileNotFoundError as e:
        print(e, file=sys.stderr)
        return 2
    if a.out is not None:
        save(a.out, result)
    print(json.dumps(result, indent=1))
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if result["differ"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
