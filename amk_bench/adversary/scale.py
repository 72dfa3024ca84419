"""Large schedules, straight to columns: what the validator's speed is measured on.

All kinds place ``queues`` tiles a phase, one on each queue, and are safe; ``n`` is rounded to whole phases.  Bodies are opaque, so
that only the declared footprints count, apart from ``real``, which lowers a Llama with as many layers as it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import PREV_EPOCH, WRITE, Buffer, Counter, Kind, Lifetime, Pool, Schedule, columns_from
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target

Ints = npt.NDArray[np.int64]

QUEUES = 132
STEPS = 128
TILE = 32  # elements a task writes


@dataclass(slots=True)
class _Rows:
    """Rows of one CSR table, given in blocks: for each task of ``task`` one row with these fields."""

    names: tuple[str, ...]
    blocks: list[tuple[Ints, ...]] = field(default_factory=list)

    def add(self, task: Ints, *fields: Ints | int) -> None:
        self.blocks.append((task, *(np.broadcast_to(np.asarray(f, np.int64), task.shape) for f in fields)))

    def columns(self, prefix: str, n: int) -> dict[str, Ints]:
        parts = [
            np.concatenate([b[k] for b in self.blocks]) if self.blocks else np.zeros(0, np.int64)
            for k in range(len(self.names) + 1)
        ]
        order = np.argsort(parts[0], kind="stable")
        off = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(parts[0], minlength=n), out=off[1:])
        return {f"{prefix}_off": off, **{f"{prefix}_{name}": p[order] for name, p in zip(self.names, parts[1:], strict=True)}}


class _Plan:
    """A schedule under construction: task ``phase * queues + k`` is tile k of a phase and stands on queue k."""

    def __init__(self, n: int, queues: int, even: int = 1) -> None:
        self.queues = queues
        self.phases = max(2 * even, n // queues // even * even)
        self.n = self.phases * queues
        self.task = np.arange(self.n, dtype=np.int64)
        self.phase, self.tile = np.divmod(self.task, queues)
        self.waits = _Rows(("counter", "t", "e"))
        self.signals = _Rows(("counter", "amount"))
        self.accesses = _Rows(("buffer", "flags", "r0", "r1", "c0", "c1"))
        self.buffers: list[Buffer] = []
        self.initial: list[int] = []

    def buffer(self, rows: int = 1, *, columns: int = 0, tagged: bool = False, initial: bool = True) -> int:
        """A buffer of ``rows`` rows, a tile of every queue each; returns its number."""
        offset = 0
        if self.buffers:
            last = self.buffers[-1]
            offset = (last.offset + last.bytes + 255) // 256 * 256
        shape = (rows, columns or self.queues * TILE)
        dtype = "tag64" if tagged else "f32"
        kind, lifetime = Kind.ACTIVATION, Lifetime.PERSISTENT
        self.buffers.append(Buffer(f"b{len(self.buffers)}", kind, dtype, shape, "global", offset, lifetime, tagged))
        if initial:
            self.initial.append(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def access(
        self, task: Ints, buffer: Ints | int, flags: int, row: Ints | int, tile: Ints | int, tiles: int = 1, width: int = TILE
    ) -> None:
        row, first = np.asarray(row, np.int64), np.asarray(tile, np.int64) * width
        self.accesses.add(task, buffer, flags, row, row + 1, first, first + tiles * width)

    def schedule(self, steps: int, per_step: Sequence[int] | Ints) -> Schedule:
        n, queues = self.n, self.queues
        one = np.array(self.initial, np.int64)
        shape = np.array([[self.buffers[b].rows, self.buffers[b].cols] for b in self.initial], np.int64).reshape(-1, 2)
        parts: dict[str, Any] = {
            "task_op": np.zeros(n), "task_fences": np.zeros(n), "par_off": np.zeros(n + 1), "par": [], "affine": [],
            "queue_off": np.arange(queues + 1) * self.phases,
            "queue_task": self.task.reshape(self.phases, queues).T.reshape(-1),
            "init_buffer": one, "init_r0": 0 * one, "init_r1": shape[:, 0], "init_c0": 0 * one, "init_c1": shape[:, 1],
            "init_raff": 0 * one - 1, "init_caff": 0 * one - 1,
            **self.waits.columns("wait", n), **self.signals.columns("sig", n), **self.accesses.columns("acc", n),
        }  # fmt: skip
        none = np.full(len(parts["acc_buffer"]), -1, np.int64)
        parts |= {"acc_label": none, "acc_raff": none, "acc_caff": none}
        counters = tuple(Counter(f"c{i}", int(k)) for i, k in enumerate(per_step))
        return Schedule(steps, (Pool("global"),), tuple(self.buffers), counters, columns_from(parts))


def full_joins(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """Every task waits for all of the phase before, reads all it wrote, and writes a tile; two buffers take turns."""
    p = _Plan(n, queues, 2)
    pair = np.array([p.buffer(), p.buffer()])
    first = p.phase == 0
    p.waits.add(p.task[~first], p.phase[~first] - 1, queues, 0)
    p.waits.add(p.task[first], p.phases - 1, queues, -1)
    p.signals.add(p.task, p.phase, 1)
    p.access(p.task, pair[(p.phase + 1) % 2], 0, 0, 0, queues)
    p.access(p.task, pair[p.phase % 2], WRITE, 0, p.tile)
    return p.schedule(steps, np.full(p.phases, queues))


def grid_barrier(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """The same with one counter for all phases: every barrier but one is a partial threshold."""
    p = _Plan(n, queues, 2)
    pair = np.array([p.buffer(), p.buffer()])
    first = p.phase == 0
    p.waits.add(p.task[~first], 0, p.phase[~first] * queues, 0)
    p.waits.add(p.task[first], 0, p.n, -1)
    p.signals.add(p.task, 0, 1)
    p.access(p.task, pair[(p.phase + 1) % 2], 0, 0, 0, queues)
    p.access(p.task, pair[p.phase % 2], WRITE, 0, p.tile)
    return p.schedule(steps, [p.n])


def neighbours(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """A wavefront: one counter a queue, every task waits for the tiles beside its own, each at a threshold of its own."""
    p = _Plan(n, queues, 2)
    pair = np.array([p.buffer(), p.buffer()])
    for side in (-1, 1):
        there = (p.tile + side >= 0) & (p.tile + side < queues)
        first = p.phase == 0
        p.waits.add(p.task[there & ~first], p.tile[there & ~first] + side, p.phase[there & ~first], 0)
        p.waits.add(p.task[there & first], p.tile[there & first] + side, p.phases, -1)
        p.access(p.task[there], pair[(p.phase[there] + 1) % 2], 0, 0, p.tile[there] + side)
    p.signals.add(p.task, p.tile, 1)
    p.access(p.task, pair[(p.phase + 1) % 2], 0, 0, p.tile)
    p.access(p.task, pair[p.phase % 2], WRITE, 0, p.tile)
    return p.schedule(steps, np.full(queues, p.phases))


def quorum(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """Every second phase starts when some tasks of the phase before have ended, which proves that the phase before that one has."""
    p = _Plan(n, queues, 4)
    y, z = (np.array([p.buffer(), p.buffer()]) for _ in range(2))
    turn, early = p.phase // 2, p.phase % 2 == 1
    first = p.phase == 0
    rest = p.task[~early & ~first]
    p.waits.add(rest, p.phase[rest] - 1, queues, 0)
    p.waits.add(p.task[first], p.phases - 1, queues, -1)
    p.waits.add(p.task[early], p.phase[early] - 1, 1 + turn[early] * 37 % (queues - 1), 0)
    p.signals.add(p.task, p.phase, 1)
    p.access(p.task, z[(turn + 1) % 2], 0, 0, 0, queues)
    p.access(p.task[early], z[turn[early] % 2], WRITE, 0, p.tile[early])
    p.access(p.task[~early], y[(turn[~early] + 1) % 2], 0, 0, 0, queues)
    p.access(p.task[~early], y[turn[~early] % 2], WRITE, 0, p.tile[~early])
    return p.schedule(steps, np.full(p.phases, queues))


def tagged(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """Values carry their epoch: each phase reads all elements of the one before; two counter barriers a step free them."""
    p = _Plan(n, queues)
    for _ in range(p.phases):
        p.buffer(columns=queues, tagged=True)
    middle = p.phases // 2
    first, after = p.phase == 0, p.phase == middle
    p.waits.add(p.task[first], 0, queues, -1)
    p.waits.add(p.task[after], 1, queues, 0)
    p.signals.add(p.task[p.phase == p.phases - 1], 0, 1)
    p.signals.add(p.task[p.phase == middle - 1], 1, 1)
    p.access(p.task[~first], p.phase[~first] - 1, 0, 0, 0, queues, width=1)
    p.access(p.task[first], p.phases - 1, PREV_EPOCH, 0, 0, queues, width=1)
    p.access(p.task, p.phase, WRITE, 0, p.tile, width=1)
    return p.schedule(steps, [queues, queues])


def one_step(n: int, queues: int = QUEUES, steps: int = 1) -> Schedule:
    """A task graph: every task waits for three of the phase before, each by a counter of its own, and reads their tiles."""
    p = _Plan(n, queues)
    history = p.buffer(p.phases, initial=False)
    later = p.task[p.phase > 0]
    rng = np.random.default_rng(0)
    for _ in range(3):
        tile = rng.integers(0, queues, len(later))
        p.waits.add(later, (p.phase[later] - 1) * queues + tile, 1, 0)
        p.access(later, history, 0, p.phase[later] - 1, tile)
    p.signals.add(p.task, p.task, 1)
    p.access(p.task, history, WRITE, p.phase, p.tile)
    return p.schedule(steps, np.ones(p.n, np.int64))


def real(n: int, queues: int = QUEUES, steps: int = STEPS) -> Schedule:
    """The lowering of llama-3.1-8b for an H200, with more or fewer layers; two tiles of each matrix a queue."""
    target = next(t for t in Target.profiles() if t.name == "h200")
    if queues != target.queues:
        raise ValueError(f"queues is {queues}, required is {target.queues}: the lowering is for the H200")
    shape = GRAPH_SHAPES["llama-3.1-8b"]

    def build(layers: int) -> Schedule:
        graph = dataclasses.replace(shape, n_layers=layers)
        return lower(graph, ScheduleConfig(tiles_per_queue=2), target, Geometry("decode", context=1024, steps=steps))

    one, two = build(1).n_tasks, build(2).n_tasks
    return build(max(1, round((n - one) / (two - one)) + 1))


KINDS: Mapping[str, Callable[[int], Schedule]] = {
    "real": real,
    "full joins": full_joins,
    "grid barrier": grid_barrier,
    "neighbours": neighbours,
    "quorum": quorum,
    "tagged": tagged,
    "one step": one_step,
}
