"""Named schedules of the kinds that the predecessor's validator (AutoMegaKernel) got wrong: unsafe ones that it accepted, safe ones
that it refused.  Each comes with the answer derived by hand; the oracle must give the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from amk_bench.adversary.net import Json, Net, access, affine, recount
from amk_bench.adversary.real import lowered

ONE = (0, 1)


@dataclass(frozen=True, slots=True)
class Regression:
    """``rule`` is one of the rules the schedule breaks; None: it is safe and must be accepted."""

    name: str
    build: Callable[[], Json]
    rule: str | None


REGRESSIONS: list[Regression] = []


def _unsafe(rule: str) -> Callable[[Callable[[], Json]], Callable[[], Json]]:
    def register(f: Callable[[], Json]) -> Callable[[], Json]:
        REGRESSIONS.append(Regression(f.__name__, f, rule))
        return f

    return register


def _safe(f: Callable[[], Json]) -> Callable[[], Json]:
    REGRESSIONS.append(Regression(f.__name__, f, None))
    return f


def _lower(seed: str = "0") -> Json:
    return lowered(random.Random(seed), "decode")


# ---- accepted by the predecessor although unsafe
@_unsafe("LIVE")
def deadlock_across_three_queues() -> Json:
    """Each queue's first task waits for the second task of the next queue: no pair of queues shows it."""
    n = Net(3)
    c = [n.counter() for _ in range(3)]
    for q in range(3):
        n.task(q, waits=[(c[(q + 1) % 3], 1)])
        n.task(q, signals=[(c[q], 1)])
    return n.json()


@_unsafe("LIVE")
def deadlock_behind_a_long_queue() -> Json:
    """The producer stands behind tasks that transitively wait for its consumer."""
    n = Net(3)
    a, b, d = n.counter(), n.counter(), n.counter()
    n.task(0, waits=[(a, 1)], signals=[(b, 1)])
    n.task(1, waits=[(b, 1)], signals=[(d, 1)])
    n.task(2)
    n.task(2, waits=[(d, 1)])
    n.task(2, signals=[(a, 1)])
    return n.json()


@_unsafe("RACE")
def race_in_a_long_queue() -> Json:
    """A race behind many harmless tasks (the oracle's size; test_adversarial has one of more than 8 000 tasks)."""
    n = Net(2)
    x = n.buffer(2)
    for _ in range(120):
        n.task(0)
    n.task(0, [], [access(x, ONE)])
    n.task(1, [], [access(x, ONE)])
    return n.json()


@_unsafe("RO")
def write_to_a_weight() -> Json:
    n = Net(1)
    w = n.buffer(2, kind="weight", lifetime="persistent", filled=True)
    n.task(0, [access(w, (0, 2))])
    n.task(0, [], [access(w, ONE)])
    return n.json()


@_unsafe("RO")
def write_to_a_table_under_another_name() -> Json:
    n = Net(1)
    w = n.buffer(2, kind="table", lifetime="persistent", filled=True)
    x = n.buffer(2, offset=n.buffers[w]["offset"] + 4)
    n.task(0, [], [access(x, (0, 2))])
    return n.json()


@_unsafe("RACE")
def unordered_write_to_the_token() -> Json:
    n = Net(2, 2)
    token = n.buffer(1, kind="token", dtype="i32", lifetime="persistent", filled=True)
    n.task(0, [access(token, ONE)])
    n.task(1, [], [access(token, ONE)])
    return n.json()


@_unsafe("RACE")
def tiles_disjoint_by_an_ignored_parameter() -> Json:
    """Two head tiles of the same rows that differ only in ``tile``, which chooses the arg-max slot and not the logits."""
    for seed in range(100):
        s = _lower(f"tile{seed}")
        heads = [t for t in s["tasks"] if t["op"] == "lm_head"]
        queues = {t["id"]: q for q, ids in enumerate(s["queues"]) for t in s["tasks"] if t["id"] in ids}
        if len(heads) > 1 and queues[heads[0]["id"]] != queues[heads[1]["id"]]:
            break
    a, b = heads[0], heads[1]
    for key in ("row0", "row1"):
        b["params"][key] = a["params"][key]
    for access_, other in zip(b["reads"] + b["writes"], a["reads"] + a["writes"], strict=True):
        if access_["buffer"] != b["params"]["amax"]:
            access_["rows"], access_["cols"] = other["rows"], other["cols"]
    return s


@_unsafe("REF")
def tile_out_of_bounds() -> Json:
    n = Net(1)
    x = n.buffer(4)
    n.task(0, [], [access(x, (2, 5))])
    return n.json()


@_unsafe("REF")
def kv_position_out_of_bounds() -> Json:
    """Fine for every first position but the last one, and there only in the last step."""
    n = Net(1, 3)
    kv = n.buffer(1, rows=8, kind="kv", lifetime="persistent")
    n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": 6}}
    n.task(0, [], [access(kv, ONE, affine(1, base="p0[0]"))])
    return n.json()


@_unsafe("REF")
def buffer_outside_its_pool() -> Json:
    n = Net(1)
    n.pool("small", 15)
    x = n.buffer(4, pool="small")
    n.task(0, [], [access(x, (0, 4))])
    return n.json()


@_unsafe("COVER")
def buffer_written_in_part() -> Json:
    n = Net(1)
    x = n.buffer(4)
    n.task(0, [], [access(x, (0, 3))])
    n.task(0, [access(x, (0, 4))])
    return n.json()


@_unsafe("COVER")
def output_written_in_part() -> Json:
    n = Net(1)
    out = n.buffer(4, rows=2, kind="output", lifetime="host")
    n.task(0, [], [access(out, (0, 4), (0, 1)), access(out, (0, 3), (1, 2))])
    return n.json()


@_unsafe("FLOW")
def page_reused_before_the_host_reads() -> Json:
    n = Net(1)
    out = n.buffer(2, kind="output", lifetime="host")
    scratch = n.buffer(1, offset=n.buffers[out]["offset"] + 4)
    n.task(0, [], [access(out, (0, 2))])
    n.task(0, [], [access(scratch, ONE)])
    return n.json()


@_unsafe("FIT")
def shared_memory_too_large() -> Json:
    n = Net(2)
    n.pool("smem", 1024, per_queue=True)
    n.pool("smem2", 1025, per_queue=True)
    n.task(0)
    n.extra["target"] = {"sms": 2, "smem_bytes": 2048, "arch": "sm_90"}
    return n.json()


@_unsafe("COVER")
def shared_memory_read_by_another_sm() -> Json:
    n = Net(2)
    n.pool("smem", 64, per_queue=True)
    x, c = n.buffer(1, pool="smem"), n.counter()
    n.task(0, [], [access(x, ONE)], [], [(c, 1)])
    n.task(1, [access(x, ONE)], [], [(c, 1)])
    return n.json()


@_unsafe("REF")
def ids_that_differ_from_positions() -> Json:
    n = Net(2)
    n.task(0)
    n.task(1)
    s = n.json()
    s["tasks"][0]["id"], s["tasks"][1]["id"] = 1, 0
    return s


@_unsafe("COUNT")
def counter_with_an_initial_value() -> Json:
    """One signal fewer than ``per_step`` says: as if the counter began at one."""
    n = Net(2)
    x, c = n.buffer(1), n.counter()
    n.task(0, [], [access(x, ONE)], [], [(c, 1)])
    n.task(1, [access(x, ONE)], [], [(c, 2)])
    s = n.json()
    s["counters"][0]["per_step"] = 2
    return s


@_unsafe("REF")
def quant_group_of_no_rows() -> Json:
    n = Net(1)
    n.buffer(4, kind="weight", dtype="i4")
    n.task(0)
    s = n.json()
    s["buffers"][0]["shape"] = [0, 4]
    return s


@_unsafe("REF")
def real_op_with_an_inconsistent_inner_size() -> Json:
    s = _lower()
    t = next(t for t in s["tasks"] if t["op"] == "down_proj")
    t["params"]["k"] -= 1
    return s


@_unsafe("FLOW")
def two_caches_bound_to_one_tensor() -> Json:
    """Keys and values of one layer in the same bytes, everything in order on one queue."""
    s = _one_queue()
    k, v = (next(b for b in s["buffers"] if b["name"] == f"L0.{x}") for x in "kv")
    v["pool"], v["offset"] = k["pool"], k["offset"]
    return s


@_unsafe("REF")
def task_in_two_queues() -> Json:
    n = Net(2)
    n.task(0)
    s = n.json()
    s["queues"] = [[0], [0]]
    return s


def _one_queue() -> Json:
    for seed in range(1000):
        s = _lower(f"one{seed}")
        if len([q for q in s["queues"] if q]) == 1:
            return s
    raise RuntimeError("no lowering on one queue was drawn")


@_unsafe("FLOW")
def residual_added_twice() -> Json:
    s = _one_queue()
    t = next(t for t in s["tasks"] if t["op"] == "down_proj")
    again = {**t, "id": len(s["tasks"]), "signals": []}
    s["tasks"].append(again)
    q = next(q for q in s["queues"] if q)
    q.insert(q.index(t["id"]) + 1, again["id"])
    return recount(s)


@_unsafe("RACE")
def modulus_far_beyond_the_buffer() -> Json:
    """A ring that never comes round: its size times that of a row does not fit 64 bits."""
    n = Net(2, 2)
    x = n.buffer(2, rows=4, lifetime="persistent", filled=True)
    n.task(0, [], [access(x, (0, 2), affine(1, mod=2**61))])
    n.task(1, [access(x, ONE)])
    return n.json()


# ---- refused by the predecessor although safe
@_safe
def same_queue_order_without_a_wait() -> Json:
    n = Net(1)
    x = n.buffer(1)
    n.task(0, [], [access(x, ONE)])
    n.task(0, [access(x, ONE)])
    return n.json()


@_safe
def ordered_reuse_of_a_buffer() -> Json:
    n = Net(2)
    x, a, b, d = n.buffer(1), n.counter(), n.counter(), n.counter()
    n.task(0, [], [access(x, ONE)], [], [(a, 1)])
    n.task(1, [access(x, ONE)], [], [(a, 1)], [(b, 1)])
    n.task(0, [], [access(x, ONE)], [(b, 1)], [(d, 1)])
    n.task(1, [access(x, ONE)], [], [(d, 1)])
    return n.json()


@_safe
def in_place_residual() -> Json:
    n = Net(2)
    x, a, b = n.buffer(2), n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 2))], [], [(a, 1)])
    n.task(0, [access(x, ONE)], [access(x, ONE)], [], [(b, 1)])
    n.task(1, [access(x, (1, 2))], [access(x, (1, 2))], [(a, 1)], [(b, 1)])
    n.task(1, [access(x, (0, 2))], [], [(b, 2)])
    return n.json()


@_safe
def dependencies_of_single_tiles() -> Json:
    """Each consumer waits only for the producer of its own tile."""
    n = Net(2)
    x = n.buffer(4)
    c = [n.counter() for _ in range(4)]
    for i in range(4):
        n.task(i % 2, [], [access(x, (i, i + 1))], [], [(c[i], 1)])
    for i in range(4):
        n.task((i + 1) % 2, [access(x, (i, i + 1))], [], [(c[i], 1)])
    return n.json()


@_safe
def partial_threshold_on_a_chain() -> Json:
    n = Net(2)
    x, c = n.buffer(3), n.counter()
    for i in range(3):
        n.task(0, [], [access(x, (i, i + 1))], [], [(c, 1)])
    for i in range(3):
        n.task(1, [access(x, (0, i + 1))], [], [(c, i + 1)])
    return n.json()


@_safe
def disjoint_tiles_on_two_counters() -> Json:
    n = Net(3)
    x, a, b = n.buffer(2), n.counter(), n.counter()
    n.task(0, [], [access(x, ONE)], [], [(a, 1)])
    n.task(1, [], [access(x, (1, 2))], [], [(b, 1)])
    n.task(2, [access(x, (0, 2))], [], [(a, 1), (b, 1)])
    return n.json()


@_safe
def attention_over_earlier_rows() -> Json:
    """The reader of all rows before this step's need not wait for this step's append."""
    n = Net(2, 3)
    kv, c = n.buffer(1, rows=8, kind="kv", lifetime="persistent"), n.counter()
    n.extra["variables"] = {"p0": {"count": 1, "min": 0, "max": 5}}
    n.initial.append(access(kv, ONE, {"start": 0, "length": {"base": "p0[0]"}}))
    n.task(0, [], [access(kv, ONE, affine(1, base="p0[0]"))], [], [(c, 1)])
    n.task(1, [access(kv, ONE, {"start": 0, "length": {"base": "p0[0]", "stride": 1}})], [], [(c, 1, -1)])
    return n.json()


@_safe
def split_k_partial_sums() -> Json:
    n = Net(3)
    parts, out, c = n.buffer(1, rows=3), n.buffer(1, kind="output", lifetime="host"), n.counter()
    for q in range(3):
        n.task(q, [], [access(parts, ONE, (q, q + 1))], [], [(c, 1)])
    n.task(1, [access(parts, ONE, (0, 3))], [access(out, ONE)], [(c, 3)])
    return n.json()


@_safe
def real_lowering_of_a_tiny_model() -> Json:
    return _lower("tiny")


@_safe
def aliased_pages_in_order() -> Json:
    """Two buffers share bytes, one after the other."""
    n = Net(2, 2)
    x = n.buffer(2)
    y = n.buffer(2, offset=n.buffers[x]["offset"] + 4)
    a, b = n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 2))], [(b, 1, -1)], [(a, 1)])
    n.task(1, [access(x, (0, 2))], [], [(a, 1)])
    n.task(1, [], [access(y, (0, 2))])
    n.task(1, [access(y, (0, 2))], [], [], [(b, 1)])
    return n.json()
