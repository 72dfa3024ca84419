"""Collects buffers, counters and tasks and turns them into a :class:`Schedule` whose footprints come from the op contracts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amk_core.schedule import footprint, ops
from amk_core.schedule.ir import (
    COLUMN_DTYPES,
    Buffer,
    Counter,
    Kind,
    Lifetime,
    Pool,
    Schedule,
    TargetLimits,
    Variable,
    columns_from,
)

ALIGN = 256  # bytes; buffers start on it so that vector and bulk accesses never straddle two buffers
Wait = tuple[int, int, int]  # counter, threshold, epoch


class Builder:
    """Tasks are appended in execution order: a queue runs its tasks in the order in which they were added."""

    def __init__(self, queues: int) -> None:
        self.buffers: list[Buffer] = []
        self.buffer_ids: dict[str, int] = {}
        self.pool_bytes: dict[str, int] = {}
        self.clusters: dict[str, int] = {}  # queues of a cluster, of the pools that are cut into a part for each
        self.counters: list[str] = []
        self.queues: list[list[int]] = [[] for _ in range(queues)]
        self._op: list[int] = []
        self._params: list[list[int]] = []
        self._waits: list[Sequence[Wait]] = []
        self._signals: list[Sequence[int]] = []
        self._initial: list[tuple[int, int, int]] = []  # buffer, rows, cols
        self._initial_affine: list[tuple[int, tuple[int, ...], int]] = []  # buffer, affine rows, cols

    def buffer(
        self, name: str, kind: Kind, dtype: str, shape: tuple[int, ...], pool: str,
        lifetime: Lifetime = Lifetime.STEP, initial: bool = False, tagged: bool = False,
    ) -> int:  # fmt: skip
        """Place a buffer behind the others of its pool; ``initial``: the host fills all of it before step 0."""
        offset = -(-self.pool_bytes.get(pool, 0) // ALIGN) * ALIGN
        b = Buffer(name, kind, dtype, shape, pool, offset, lifetime, tagged)
        self.pool_bytes[pool] = offset + b.bytes
        self.buffer_ids[name] = len(self.buffers)
        self.buffers.append(b)
        if initial:
            self._initial.append((self.buffer_ids[name], b.rows, b.cols))
        return self.buffer_ids[name]

    def initial_rows(self, buffer: int, affine: tuple[int, ...]) -> None:
        """Rows (an affine range) of a buffer that hold data before step 0."""
        self._initial_affine.append((buffer, affine, self.buffers[buffer].cols))

    def counter(self, name: str) -> int:
        self.counters.append(name)
        return len(self.counters) - 1

    def task(
        self, op: str, queue: int, params: Mapping[str, int | float], waits: Sequence[Wait] = (), signals: Sequence[int] = ()
    ) -> int:
        """Append a task to a queue; it adds 1 to each counter in ``signals``."""
        spec = ops.BY_NAME[op]
        task = len(self._op)
        self._op.append(spec.code)
        self._params.append(spec.encode(params))
        self._waits.append(waits)
        self._signals.append(signals)
        self.queues[queue].append(task)
        return task

    def guard(self, wait: Wait) -> None:
        """Give the first task of every queue this wait: a queue that may leave at a stop must decide before it waits for a task
        of the same step, which another queue may never run."""
        for queue in self.queues:
            if queue and wait not in self._waits[queue[0]]:
                self._waits[queue[0]] = (wait, *self._waits[queue[0]])

    def drain(self, counter: int) -> int:
        """Let the last task of every queue that does not signal ``counter`` anywhere signal it; returns how many it got."""
        n = 0
        for queue in self.queues:
            if queue and not any(counter in self._signals[t] for t in queue):
                self._signals[queue[-1]] = (*self._signals[queue[-1]], counter)
                n += 1
        return n

    def build(
        self, steps: int, unbounded: Iterable[str], variables: tuple[Variable, ...], target: TargetLimits | None,
        stop: tuple[int, int] | None, meta: Mapping[str, int | str],
    ) -> Schedule:  # fmt: skip
        def offsets(lists: Sequence[Sequence[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
            return np.concatenate([[0], np.cumsum([len(x) for x in lists], dtype=np.int64)])

        def flat(lists: Iterable[Sequence[Any]]) -> list[Any]:
            return [x for inner in lists for x in inner]

        p: dict[str, Any] = dict.fromkeys(COLUMN_DTYPES, ())
        n = len(self._op)
        p["task_op"], p["task_fences"] = np.array(self._op, np.int64), np.zeros(n, np.int64)
        p["par_off"], p["par"] = offsets(self._params), flat(self._params)
        waits = np.array(flat(self._waits), np.int64).reshape(-1, 3)
        p["wait_off"] = offsets(self._waits)
        p["wait_counter"], p["wait_t"], p["wait_e"] = waits.T
        sig = np.array(flat(self._signals), np.int64)
        p["sig_off"], p["sig_counter"], p["sig_amount"] = offsets(self._signals), sig, np.ones(len(sig), np.int64)
        p["queue_off"], p["queue_task"] = offsets(self.queues), flat(self.queues)

        f = footprint.derive(p["task_op"], p["par_off"], np.array(p["par"], np.int64))
        for name, column in f.plain.items():
            p[f"acc_{name}"] = column
        p["acc_off"] = np.concatenate([[0], np.cumsum(np.bincount(f.task, minlength=n))])
        init_aff = np.array([a for _, a, _ in self._initial_affine], np.int64).reshape(-1, 7)
        rows, cols = f.row_affine[f.has_row_affine], f.col_affine[f.has_col_affine]
        affine, index = np.unique(np.concatenate([rows, cols, init_aff]), axis=0, return_inverse=True)
        index = index.reshape(-1)
        p["affine"] = affine
        p["acc_raff"], p["acc_caff"] = np.full(len(f.task), -1), np.full(len(f.task), -1)
        p["acc_raff"][f.has_row_affine] = index[: len(rows)]
        p["acc_caff"][f.has_col_affine] = index[len(rows) : len(rows) + len(cols)]
        plain, moving = self._initial, self._initial_affine
        p["init_buffer"] = [b for b, _, _ in plain] + [b for b, _, _ in moving]
        p["init_r0"] = p["init_c0"] = [0] * (len(plain) + len(moving))
        p["init_r1"] = [r for _, r, _ in plain] + [0] * len(moving)
        p["init_c1"] = [c for _, _, c in plain] + [c for _, _, c in moving]
        p["init_raff"] = [-1] * len(plain) + list(index[len(rows) + len(cols) :])
        p["init_caff"] = [-1] * (len(plain) + len(moving))

        per_step = np.bincount(sig, minlength=len(self.counters))
        free = set(unbounded)
        return Schedule(
            steps=steps,
            pools=tuple(
                Pool(name, None if name in free else size, cluster=self.clusters.get(name, 0))
                for name, size in self.pool_bytes.items()
            ),
            buffers=tuple(self.buffers),
            counters=tuple(Counter(name, int(k)) for name, k in zip(self.counters, per_step, strict=True)),
            columns=columns_from(p),
            variables=variables,
            target=target,
            stop=stop,
            meta=meta,
        )
