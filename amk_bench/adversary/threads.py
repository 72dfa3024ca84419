"""Schedules of the attack suite on real threads, one a queue, under ThreadSanitizer (``threads.cpp`` is the other half).

A schedule is written out for one launch: every step, one value of each launch variable, and for each ``maybe`` access whether it
happens.  Physical bytes are cut at all end points, and each piece becomes one word of memory, so that two accesses share a word
iff they share a byte.  What a task writes is its own number: a read that finds another number than it should is seen.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from amk_core import resources
from amk_core.schedule.ir import MAYBE, PREV_EPOCH, WRITE, Kind, Lifetime, Schedule
from amk_core.schedule.walk import Instance, Walk, byte_ranges, rectangle

SOURCE = Path(__file__).with_name("threads.cpp")
READ_ONLY = (Kind.WEIGHT, Kind.TABLE, Kind.INPUT)
POISON, INITIAL, FIRST_INSTANCE = 0, 1, 2  # values of a word; FIRST_INSTANCE + k: written by instance k
PLAIN_READ, PLAIN_WRITE, TAGGED_READ, TAGGED_WRITE = range(4)
DONE, HUNG, NEWER_TAG = range(3)
RUN_TIMEOUT_S = 600


class NoThreadSanitizer(RuntimeError):
    """There is no C++ compiler, or its ThreadSanitizer runtime is missing."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One word of one access of an instance."""

    word: int
    kind: int
    tag: int
    access: int


@dataclass(frozen=True, slots=True)
class Steer:
    """A state to reach: ``completed`` instances of each queue.  There the bodies at the head of two queues start together, or that
    of the first one only when the second one has ended."""

    completed: Sequence[int]
    queues: tuple[int, int]
    together: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run of a case showed.  ``done``: instances completed by each queue; ``seen``: what their reads found."""

    case: int
    run: int
    status: int
    reports: int
    done: tuple[int, ...]
    seen: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]


@dataclass(slots=True)
class Case:
    """One launch of a schedule, written out.

    Args:
        values: of the launch variables, in the order of flattened indices.
        always: every ``maybe`` access happens; otherwise ``coin`` decides.
        stop_after: the step whose stop task decides to stop; -1: none does.
        steer: where to lead the queues, or None.
    """

    s: Schedule
    values: Sequence[int]
    coin: random.Random
    always: bool = False
    stop_after: int = -1
    steer: Steer | None = None
    id: int = 0
    touches: list[list[list[Touch]]] = field(init=False)  # [queue][instance]
    initial: list[int] = field(init=False)
    extents: dict[int, list[int]] = field(init=False)  # words of output and read-only buffers
    number: dict[Instance, int] = field(init=False)

    def __post_init__(self) -> None:
        s, c = self.s, self.s.columns
        queues = [s.queue(q) for q in range(s.n_queues)]
        each = {p.id: p.per_queue for p in s.pools}
        pieces: list[tuple[str, int, int, int]] = []  # (pool, queue or -1, lo, hi) in bytes

        def ranges(buffer: int, rect: tuple[int, int, int, int], queue: int) -> list[tuple[str, int, int, int]]:
            b = s.buffers[buffer]
            where = queue if each[b.pool] else -1
            out = [(b.pool, where, b.offset + lo, b.offset + hi) for lo, hi in byte_ranges(s, buffer, rect)]
            pieces.extend(out)
            return out

        raw: list[list[list[tuple[int, int, int, list[tuple[str, int, int, int]]]]]] = []
        for q, ids in enumerate(queues):
            raw.append([])
            for step in range(s.steps):
                for task in ids:
                    mine = []
                    for x in range(int(c.acc_off[task]), int(c.acc_off[task + 1])):
                        flags, buffer = int(c.acc_flags[x]), int(c.acc_buffer[x])
                        tagged = s.buffers[buffer].tagged
                        happens = not flags & MAYBE or (self.always and not tagged) or self.coin.random() < 0.5
                        if not happens or (tagged and flags & MAYBE and not flags & WRITE):
                            continue  # whoever may read a tag does not wait for it
                        kind = (TAGGED_WRITE if flags & WRITE else TAGGED_READ) if tagged else int(bool(flags & WRITE))
                        tag = 1 + step - bool(flags & PREV_EPOCH) if tagged else 0
                        mine.append((x, kind, tag, ranges(buffer, rectangle(s, x, step, self.values), q)))
                    raw[q].append(mine)
        kept = {
            b: [r for q in range(s.n_queues) for r in ranges(b, (0, buf.rows, 0, buf.cols), q)]
            for b, buf in enumerate(s.buffers)
            if buf.kind == Kind.OUTPUT or buf.kind in READ_ONLY
        }
        filled = [
            (int(c.init_buffer[x]), r)
            for x in range(len(c.init_buffer))
            for q in range(s.n_queues)
            for r in ranges(int(c.init_buffer[x]), self._initial_rectangle(x), q)
        ]
        cuts = sorted({p[:2] + (e,) for p in pieces for e in p[2:]})

        def words(r: tuple[str, int, int, int]) -> range:
            return range(bisect_left(cuts, r[:2] + (r[2],)), bisect_left(cuts, r[:2] + (r[3],)))

        self.initial = [POISON] * len(cuts)
        for _, r in filled:
            for w in words(r):
                self.initial[w] = INITIAL
        self.extents = {b: sorted({w for r in list_ for w in words(r)}) for b, list_ in kept.items()}
        order = (TAGGED_READ, PLAIN_READ, PLAIN_WRITE, TAGGED_WRITE)
        self.touches = [
            [
                sorted(
                    (Touch(w, kind, tag, x) for x, kind, tag, list_ in mine for w in sorted({w for r in list_ for w in words(r)})),
                    key=lambda t: order.index(t.kind),
                )
                for mine in per_queue
            ]
            for per_queue in raw
        ]
        instances = [(step, task) for ids in queues for step in range(s.steps) for task in ids]
        self.number = {instance: k for k, instance in enumerate(instances)}

    def _initial_rectangle(self, x: int) -> tuple[int, int, int, int]:
        c = self.s.columns
        out: list[int] = []
        for lo, hi, aff in ((c.init_r0, c.init_r1, c.init_raff), (c.init_c0, c.init_c1, c.init_caff)):
            row = int(aff[x])
            if row < 0:
                out += [int(lo[x]), int(hi[x])]
                continue
            add, var, _, mod, length, length_var, _ = (int(n) for n in c.affine[row])
            start = add + (self.values[var] if var >= 0 else 0)
            start = start % mod if mod else start
            out += [start, start + length + (self.values[length_var] if length_var >= 0 else 0)]
        return out[0], out[1], out[2], out[3]

    def words(self) -> list[int]:
        """The case as ``threads.cpp`` reads it."""
        s, c = self.s, self.s.columns
        walk = Walk(s, self.values)
        out = [self.id, len(s.counters), self.stop_after, s.n_queues, len(self.initial), *self.initial, self.steer is not None]
        if self.steer is not None:
            out += [*self.steer.completed, *self.steer.queues, self.steer.together]
        for q, ids in enumerate(walk.queues):
            out.append(len(ids) * s.steps)
            for k, touches in enumerate(self.touches[q]):
                step, task = k // len(ids), ids[k % len(ids)]
                out += [step, k % len(ids) == 0, s.stop is not None and task == s.stop[1]]
                needs = walk.needs((step, task))
                span = slice(int(c.sig_off[task]), int(c.sig_off[task + 1]))
                gives = list(zip(c.sig_counter[span].tolist(), c.sig_amount[span].tolist(), strict=True))
                for list_ in (needs, gives):
                    out += [len(list_), *(x for pair in list_ for x in pair)]
                out += [len(touches), *(x for t in touches for x in (t.word, t.kind, t.tag))]
        return out

    # ---- what a run should have shown
    def serial(self) -> tuple[dict[int, list[int]], list[int]]:
        """What the reads of each instance find, and the memory at the end, when the tasks run one after the other."""
        memory, seen = list(self.initial), dict[int, list[int]]()
        walk = Walk(self.s, self.values)
        for e in walk.run():
            k = self.number[(e.step, e.task)]
            touches = self.touches[e.queue][walk.index((e.step, e.task))]
            seen[k] = [memory[t.word] for t in touches if t.kind in (PLAIN_READ, TAGGED_READ)]
            for t in touches:
                if t.kind in (PLAIN_WRITE, TAGGED_WRITE):
                    memory[t.word] = FIRST_INSTANCE + k
        return seen, memory


def judge(case: Case, o: Observation, expected: tuple[Mapping[int, Sequence[int]], Sequence[int]]) -> list[str]:
    """What the values of a run show, in words; [] where all is as it should be.  ``expected`` is ``case.serial()``.

    A read that is certain finds what was written before, in this step where its buffer lives for a step only, and by the
    producer that the model names where it has a label.  All reads find what they find in the serial run.
    """
    s, c, out = case.s, case.s.columns, []
    serial_seen, serial_memory = expected
    step_of = [step for step, _ in case.number]
    wrote: dict[tuple[int, int], set[tuple[int, int]]] = {}
    flat = [touches for per_queue in case.touches for touches in per_queue]
    for k, touches in enumerate(flat):
        for t in touches:
            if t.kind in (PLAIN_WRITE, TAGGED_WRITE):
                wrote.setdefault((k, t.word), set()).add((int(c.acc_buffer[t.access]), int(c.acc_label[t.access])))
    base = 0
    for q, per_queue in enumerate(case.touches):
        at = 0
        for k in range(base, base + o.done[q]):
            reads = [t for t in per_queue[k - base] if t.kind in (PLAIN_READ, TAGGED_READ)]
            found = o.seen[q][at : at + len(reads)]
            at += len(reads)
            if k in serial_seen and list(found) != serial_seen[k]:
                out.append(f"instance {k} reads other values than in the serial run")
            for t, v in zip(reads, found, strict=True):
                buffer, label = s.buffers[int(c.acc_buffer[t.access])], int(c.acc_label[t.access])
                if int(c.acc_flags[t.access]) & MAYBE:
                    continue
                if v == POISON:
                    out.append(f"instance {k} reads what nobody wrote")
                elif buffer.lifetime == Lifetime.STEP and not buffer.tagged:
                    written_in = 0 if v == INITIAL else step_of[v - FIRST_INSTANCE]
                    if written_in != step_of[k]:
                        out.append(f"instance {k} reads what is left of step {written_in}")
                named = wrote.get((v - FIRST_INSTANCE, t.word), set())
                if label >= 0 and v >= FIRST_INSTANCE and (int(c.acc_buffer[t.access]), label) not in named:
                    out.append(f"instance {k} reads the value of instance {v - FIRST_INSTANCE}")
        base += len(per_queue)
    if o.status != DONE:
        return out
    if case.stop_after >= 0:
        steps = case.stop_after + 1
        for q, done in enumerate(o.done):
            if done != steps * len(case.s.queue(q)):
                out.append(f"queue {q} ran {done} tasks in a launch that stops after step {case.stop_after}")
    memory = [m & 0xFFFFFFFF for m in o.memory]
    if case.stop_after < 0 and len(serial_seen) == len(flat) and memory != list(serial_memory):
        out.append("the memory at the end is not that of the serial run")
    for b, words in case.extents.items():
        for w in words:
            if s.buffers[b].kind in READ_ONLY:
                if memory[w] != case.initial[w]:
                    out.append(f"read-only buffer {b} was written")
            elif memory[w] == POISON and case.stop_after < 0:  # a launch that stops leaves the rows of later steps alone
                out.append(f"output buffer {b} is not written everywhere")
            elif memory[w] >= FIRST_INSTANCE and b not in {x for x, _ in wrote.get((memory[w] - FIRST_INSTANCE, w), ())}:
                out.append(f"output buffer {b} is overwritten under another name")
    return out


def build(folder: Path, *, sanitize: bool = True) -> Path:
    """Compile the driver.

    Raises:
        NoThreadSanitizer: no compiler, or one without the runtime.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoThreadSanitizer("no C++ compiler (g++ or clang++) is on the path")
    out = folder / ("threads-tsan" if sanitize else "threads")
    flags = ["-std=c++20", "-O1", "-pthread", *(["-g", "-fsanitize=thread"] if sanitize else [])]
    command = [compiler, *flags, f"-I{resources.vm_dir()}", str(SOURCE), "-o", str(out)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0 and "tsan" in built.stderr:
        raise NoThreadSanitizer(f"{compiler} has no ThreadSanitizer runtime")
    if built.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{built.stderr[:4000]}")
    return out


def run(driver: Path, cases: Sequence[Case], runs: int, seed: int) -> list[Observation]:
    """Run every case ``runs`` times (a steered one once), all in one process; ids are positions in ``cases``."""
    words: list[int] = []
    for k, case in enumerate(cases):
        case.id = k
        words += case.words()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases"
        file.write_bytes(np.array(words, np.int64).tobytes())
        command = [str(driver), str(file), str(runs), str(seed)]
        if shutil.which("setarch"):  # address space randomisation of newer kernels does not suit older sanitizers
            command = ["setarch", "-R", *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return list(_observations(np.frombuffer(done.stdout, np.int64).tolist()))


def _observations(words: list[int]) -> Iterator[Observation]:
    at = 0
    while at < len(words):
        case, index, status, reports, queues = words[at : at + 5]
        at += 5
        done, seen = [], []
        for _ in range(queues):
            done.append(words[at])
            n = words[at + 1]
            seen.append(tuple(words[at + 2 : at + 2 + n]))
            at += 2 + n
        n = words[at]
        yield Observation(case, index, status, reports, tuple(done), tuple(seen), tuple(words[at + 1 : at + 1 + n]))
        at += 1 + n
