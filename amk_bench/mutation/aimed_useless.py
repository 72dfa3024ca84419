"""Real operations whose values reach an output, or nothing that lasts: through ranges that move, tags, maybe, and other names."""

from __future__ import annotations

from typing import Any

from amk_bench.adversary.net import Range, Rng, access
from amk_bench.mutation.aimed_data import Order, moving, still, variables
from amk_core.schedule.ir import Schedule


def useless(rng: Rng) -> Schedule:
    """Writers of bytes that do not last, overwritten, read, or neither, beside an output that is written in any case."""
    order = Order(rng, rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2)))
    order.lax = 0.0
    n = order.net
    variables(rng, n)
    rows, cols = rng.choice((1, 2, 3)), rng.choice((1, 2, 4))
    given: dict[str, Any] = {"dtype": rng.choice(("f32", "f32", "i4")), "lifetime": "step"}
    if rng.random() < 0.3:
        given = {"dtype": "tag64", "tagged": True, "lifetime": rng.choice(("step", "step", "persistent"))}
    if rng.random() < 0.25:
        given["kind"] = rng.choice(("kv", "token", "output"))
    if rng.random() < 0.15:
        given["lifetime"] = "persistent"
    x = n.buffer(cols, rows, **given)
    y = n.buffer(1, kind="output", lifetime="host") if rng.random() < 0.9 else n.buffer(1, lifetime="persistent")
    moves = rng.choice((0.0, 0.4, 0.8))
    end = access(y, (0, 1))

    def place() -> tuple[Range, Range]:
        along: Range = (0, rows) if rng.random() < 0.6 else still(rng, rows)
        across: Range = (0, cols) if rng.random() < 0.6 else still(rng, cols)
        if rng.random() < moves:
            if rng.random() < 0.5:
                along = moving(rng, n, rows)
            else:
                across = moving(rng, n, cols)
        return across, along

    jobs: list[tuple[list[Any], list[Any]]] = []
    one = place()
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        spot = one if rng.random() < 0.6 else place()
        jobs.append(([], [access(x, *spot, **({"maybe": True} if rng.random() < 0.15 else {}))]))
    for k in range(rng.choice((0, 1, 1, 1, 2, 9))):
        spot = one if rng.random() < 0.6 else place()
        read = access(x, *spot, **({"maybe": True} if rng.random() < 0.15 else {}))
        jobs.append(([read], [end] if k == 0 and rng.random() < 0.8 else []))
    if rng.random() < 0.4:
        rng.shuffle(jobs)
    if not any(writes and writes[0] is end for _, writes in jobs):
        jobs.append(([], [end]))
    for k, (reads, writes) in enumerate(jobs):
        order.task(reads, writes, k == len(jobs) - 1)
    return Schedule.from_json(n.json())
