"""Aimed at reads that are looked at many at a time: broadcasts between writes, whose readers differ in one thing at most."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from amk_bench.adversary.net import Net, Rng, access
from amk_core.schedule.ir import Schedule

CHOSEN: dict[str, tuple[int, ...]] = {"bc1": (26, 185), "bc2": (6, 22, 52, 139, 176, 281, 915, 1025, 1194)}


def labelled(s: Schedule, rng: Rng, wrong: float) -> Schedule:
    """Values have the identity of their buffer; some accesses have another one, or none."""
    label = s.columns.acc_buffer + 3
    for k in range(len(label)):
        if rng.random() < wrong:
            label[k] = rng.choice((-1, -1, 0, 1, 4, 5))
    return dataclasses.replace(s, columns=dataclasses.replace(s.columns, acc_label=label))


def broadcast(rng: Rng) -> Schedule | None:
    """One to three writes, each read by many; in the next step the first writers wait for the last readers."""
    queues = rng.randint(2, 5)
    n = Net(queues, rng.choice((1, 2, 2, 3, 3, 9)))
    faulty = rng.random() < 0.4

    def slip(chance: float) -> bool:
        return faulty and rng.random() < chance

    cols = rng.choice((1, 2, 4))
    buffers = [
        n.buffer(
            cols, lifetime=rng.choice(("step", "persistent")), filled=rng.random() < 0.7,
            dtype=rng.choice(("f32", "f32", "i8", "i4")), offset=rng.choice((None, None, 0)),
        )
        for _ in range(rng.randint(1, 2))
    ]  # fmt: skip
    rounds = rng.randint(1, 3)
    counters = iter([n.counter() for _ in range(2 * rounds)])
    writers: list[int] = []
    before: tuple[int, int] | None = None  # the counter of the readers so far, and how many they are
    for _ in range(rounds):
        b, written = rng.choice(buffers), next(counters)
        waits: list[tuple[int, int, int]] = []
        if before:
            waits = [(before[0], before[1] - (1 if slip(0.1) else 0), 0)] if not slip(0.1) else []
        part = (0, cols) if rng.random() < 0.8 else (0, rng.randint(1, cols))
        count = 0
        if rng.random() < 0.85 or not writers:
            count = rng.choice((1, 1, 1, 2))
            for k in range(count):
                more: dict[str, Any] = {"maybe": True} if slip(0.08) else {}
                if rng.random() < 0.1:
                    more["proxy"] = "async"
                reads = [access(b, (0, cols))] if rng.random() < 0.15 else []
                tile = part if count == 1 else ((0, cols) if k == 0 else part)
                writers.append(
                    n.task(rng.randrange(queues), reads, [access(b, tile, **more)], waits, [(written, 1)], fences=["proxy.async"])
                )
                waits = [(written, k + 1, 0)] if not slip(0.1) else []
        read, readers = next(counters), rng.choice((3, 5, 8, 12, 17))
        for _ in range(readers):
            tile = (0, cols) if rng.random() < 0.95 else (0, rng.randint(1, cols))
            more = {"maybe": True} if slip(0.05) else {}
            if rng.random() < 0.3:
                more["proxy"] = "async"
            fences = [] if slip(0.05) else ["proxy.async"]
            if count and not slip(0.04):
                waits = [(written, count, 0)]
            else:
                waits = [(*before, 0)] if before and not count else []
            writes = [access(b, tile)] if slip(0.02) else []
            n.task(
                rng.randrange(queues) if rng.random() < 0.8 else 0,
                [access(b, tile, **more)],
                writes,
                waits,
                [(read, 1)],
                fences=fences,
            )
        before = (read, readers)
    if n.steps > 1 and before:
        first = writers[: rng.choice((1, 1, 2))]
        for t, task in enumerate(n.tasks):
            if (t in first or rng.random() < 0.1) and not slip(0.1):
                task["waits"].append([before[0], before[1] - (1 if slip(0.15) else 0), -1])
    s = Schedule.from_json(n.json())
    if s.defects:
        return None
    return labelled(s, rng, 0.03 if faulty else 0) if rng.random() < 0.6 else s


def schedules() -> Iterator[Schedule]:
    """All of them."""
    for seed, numbers in CHOSEN.items():
        for k in numbers:
            s = broadcast(random.Random(f"{seed}/{k}"))
            if s is not None:
                yield s
