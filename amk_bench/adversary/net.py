"""A small builder of interchange objects for schedules of opaque tasks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]
Range = Any  # [lo, hi] or {"start": ..., "length": ...}
Rng = random.Random
ELEMENT_BYTES = {"f64": 8, "i64": 8, "tag64": 8, "f32": 4, "i32": 4, "bf16": 2, "i8": 1, "u8": 1, "i4": 0.5}


def access(buffer: int, cols: Range, rows: Range = (0, 1), **extra: Any) -> Json:
    """One access; ``extra`` may hold maybe=True, proxy="async", epoch=-1."""
    as_json = [r if isinstance(r, dict) else [int(r[0]), int(r[1])] for r in (rows, cols)]
    return {"buffer": buffer, "rows": as_json[0], "cols": as_json[1], **extra}


def affine(stride: int = 0, length: Any = 1, base: str | None = None, mod: int | None = None, add: int = 0) -> Json:
    """An affine range: start = add + base + stride * step (modulo mod)."""
    start: Json = {"stride": stride, "mod": mod, "add": add}
    if base is not None:
        start["base"] = base
    return {"start": start, "length": length}


class Net:
    """Buffers are laid out one after the other in their pool unless an offset is given; ``per_step`` is summed at the end."""

    def __init__(self, queues: int, steps: int = 1) -> None:
        self.queues: list[list[int]] = [[] for _ in range(queues)]
        self.steps = steps
        self.pools: list[Json] = [{"id": "global", "bytes": None, "per_queue": False}]
        self.buffers: list[Json] = []
        self.counters: list[str] = []
        self.tasks: list[Json] = []
        self.initial: list[Json] = []
        self.extra: Json = {}
        self._top: dict[str, int] = {}

    def pool(self, name: str, size: int | None, per_queue: bool = False) -> str:
        self.pools.append({"id": name, "bytes": size, "per_queue": per_queue})
        return name

    def buffer(
        self, cols: int, rows: int = 1, kind: str = "activation", dtype: str = "f32", lifetime: str = "step",
        pool: str = "global", offset: int | None = None, filled: bool = False, **extra: Any,
    ) -> int:  # fmt: skip
        """Declare a buffer; ``filled`` makes all of it initial."""
        top = self._top.get(pool, 0)
        at = -(-top // 8) * 8 if offset is None else offset
        size = int(-(-(rows * cols * ELEMENT_BYTES[dtype]) // 1))
        self._top[pool] = max(top, at + size)
        i = len(self.buffers)
        self.buffers.append(
            {"id": i, "name": f"{kind}{i}", "kind": kind, "dtype": dtype, "shape": [rows, cols], "pool": pool, "offset": at,
             "lifetime": lifetime, **extra}
        )  # fmt: skip
        if filled:
            self.initial.append(access(i, (0, cols), (0, rows)))
        return i

    def counter(self) -> int:
        self.counters.append(f"c{len(self.counters)}")
        return len(self.counters) - 1

    def task(
        self, queue: int, reads: Sequence[Json] = (), writes: Sequence[Json] = (), waits: Sequence[Sequence[int]] = (),
        signals: Sequence[Sequence[int]] = (), **extra: Any,
    ) -> int:  # fmt: skip
        """Append a task to a queue; a wait is (counter, t[, e]), a signal (counter[, amount])."""
        i = len(self.tasks)
        self.tasks.append(
            {"id": i, "op": "opaque", "params": {}, "waits": [list(w) + [0] * (3 - len(w)) for w in waits],
             "signals": [list(s) + [1] * (2 - len(s)) for s in signals], "reads": list(reads), "writes": list(writes), **extra}
        )  # fmt: skip
        self.queues[queue].append(i)
        return i

    def json(self) -> Json:
        out: Json = {
            "format": "amk.schedule/1", "steps": self.steps, "pools": self.pools, "queues": self.queues, "buffers": self.buffers,
            "counters": [{"id": i, "name": n, "per_step": 0} for i, n in enumerate(self.counters)], "tasks": self.tasks,
            "initial": self.initial, **self.extra,
        }  # fmt: skip
        recount(out)
        return copy.deepcopy(out)


def recount(s: Json) -> Json:
    """Set every ``per_step`` to the sum of the signals (in place)."""
    total = [0] * len(s["counters"])
    for t in s["tasks"]:
        for c, amount in t["signals"]:
            if 0 <= c < len(total):
                total[c] += amount
    for c, n in zip(s["counters"], total, strict=True):
        c["per_step"] = n
    return s


Generator = Callable[[Rng], Json]
