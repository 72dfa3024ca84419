"""What a launch of a program for ranks left behind, beside what float64 says: the first value that differs, phase by phase.

Keys, values and parts of every layer stay in global memory, so they tell the layer; the mailboxes, which a build with
``AMK_RANK_DUMP`` leaves too, hold the values of the last layer that used them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from amk_core.schedule import ops
from amk_core.schedule.ir import WRITE, Kind, Schedule
from amk_core.vm import Fault, reference
from amk_core.vm.rank_mail import PART_FLOATS, Mail, cluster_pool, part_words, plan_mail

MACRO = "AMK_RANK_DUMP"
HEAD_WORDS = 16  # before the mailboxes of a CTA, see vm/rank_scheduler.cu
TOLERANCE = 0.05  # of the largest value of a tile: bf16 is far nearer, a wrong address far away
ORDER = ("rank_qkv", "rank_attn", "o_part", "o_sum", "gate_up", "down_part", "down_sum")
Get = Callable[[str], Any]  # a buffer of global memory by name, as it lies there


def queues_of(s: Schedule) -> Any:
    """By task, its queue."""
    queue = np.zeros(s.n_tasks, np.int64)
    queue[s.columns.queue_task] = np.repeat(np.arange(s.n_queues), np.diff(s.columns.queue_off))
    return queue


def params(s: Schedule, t: int) -> tuple[str, Any]:
    """Op and parameters of a task."""
    spec, c = ops.BY_CODE[int(s.columns.task_op[t])], s.columns
    return spec.name, spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]])


def expected(case: Any, s: Schedule, tokens: Sequence[int]) -> list[Any]:
    """All buffers after the steps that left ``tokens``, in float64, task by task in the order of the phases."""
    m = case.random_model()
    bound, buffers = m.bound(s), []
    kinds: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "i32": np.int32, "b32": np.uint32}
    for b in s.buffers:
        weight = b.kind is Kind.WEIGHT
        a = m.logical(b.name) if weight else bound.get(b.name)
        buffers.append(np.zeros((b.rows, b.cols), kinds.get(b.dtype, np.float64)) if a is None else a)
    index = {b.name: i for i, b in enumerate(s.buffers)}

    def put(name: str) -> Any:
        a = buffers[index[name]]
        return a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a

    case.fill(s, put)

    def phase(t: int) -> tuple[int, int]:
        name, p = params(s, t)
        if name in ORDER:
            return int(p["layer"]), ORDER.index(name)
        return (-1, 0) if name == "embed" else (1 << 20, int(name == "sample"))

    order = sorted(range(s.n_tasks), key=phase)
    for step, token in enumerate(tokens):
        for t in order:
            reference.run(*params(s, t), buffers, step, case.variables)
        if "token" in index:
            buffers[index["token"]][:] = token  # as the card went on
    return buffers


def near(seen: Any, want: Any) -> Any:
    """Where values are as they should be."""
    y = np.asarray(want, np.float64)
    with np.errstate(invalid="ignore"):
        return np.abs(np.asarray(seen, np.float64) - y) <= TOLERANCE * max(float(np.abs(y).max()), 1e-6)


def describe(what: str, seen: Any, want: Any) -> str:
    """Empty where all values are near; else the first one that is not, and how many."""
    good = near(seen, want)
    if good.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    n_nan = int(np.isnan(np.asarray(seen, np.float64)).sum())
    return (
        f"{what}: value {list(at)} is {float(np.asarray(seen)[at]):.6g}, expected {float(np.asarray(want)[at]):.6g}; "
        f"{int((~good).sum())} of {good.size} differ, {n_nan} are NaN; seen {np.asarray(seen).ravel()[:6].tolist()}, expected "
        f"{np.round(np.asarray(want, np.float64).ravel()[:6], 5).tolist()}"
    )


def differences(case: Any, s: Schedule, get: Get, tokens: Sequence[int], mails: Any = None) -> Iterator[str]:
    """Everything that differs in the last step, the earliest phase first; an empty text for what does not.

    Args:
        tokens: that the steps left, or of the prompt; the last step is looked at.
        get: keys and values as uint16, parts as bytes.
        mails: [queues, bytes] of the mailboxes; None: they were not left.
    """
    want, index, queue = expected(case, s, tokens), {b.name: i for i, b in enumerate(s.buffers)}, queues_of(s)
    words, row, tag = part_words(s), case.p0[0] + len(tokens) - 1, len(tokens)
    tiles: dict[str, list[int]] = {}
    for t in range(s.n_tasks):
        name, p = params(s, t)
        if name in ("o_part", "down_part"):
            tiles.setdefault(s.buffers[p["out"]].name, []).append(t)
    layers = sum(b.kind is Kind.KV for b in s.buffers) // 2
    for i in range(layers):
        for kind in "kv":
            seen = get(f"L{i}.{kind}")[row : row + 1].view(ml_dtypes.bfloat16)
            yield describe(f"L{i} rank_qkv, {kind} of position {row}", seen, want[index[f"L{i}.{kind}"]][row : row + 1])
        for part in ("o_part", "down_part"):
            raw = np.ascontiguousarray(get(f"L{i}.{part}")).view(np.uint8).reshape(-1)
            elements = raw[: len(raw) // 16 * 16].view(np.float32).reshape(-1, PART_FLOATS + 1)
            for t in tiles.get(f"L{i}.{part}", ()):
                _, p = params(s, t)
                first, n = int(words[t]) & 0xFFFFFF, int(words[t]) >> 24
                width = p["row1"] - p["row0"]
                mine = elements[(first + np.arange(-(-width // PART_FLOATS))) * n + p["part"]]
                what = f"L{i} {part} of queue {queue[t]} (task {t}, part {p['part']}, columns from {p['row0']})"
                tags = mine[:, PART_FLOATS].view(np.uint32)
                if (tags != tag).any():
                    yield f"{what}: tags {tags.tolist()}, expected {tag} in all"
                yield describe(what, mine[:, :PART_FLOATS].reshape(-1)[:width], want[p["out"]][p["part"], p["row0"] : p["row1"]])
    if mails is not None and case.purpose != "prefill":  # there the last values of a row go to the queues of keys and values alone
        yield from boxes(s, mails, want, queue)
    if "logits" in index:
        rows = len(tokens) if case.purpose == "logits" else 1
        yield describe("logits", get("logits")[:rows], want[index["logits"]][:rows])


def boxes(s: Schedule, mails: Any, want: list[Any], queue: Any) -> Iterator[str]:
    """What the tasks of each queue read last in its mailboxes."""
    pool, c = cluster_pool(s), s.columns
    part = s.cluster_bytes(pool)
    seen: set[tuple[int, ...]] = set()
    for t in range(s.n_tasks):
        for a in range(int(c.acc_off[t]), int(c.acc_off[t + 1])):
            b, q = int(c.acc_buffer[a]), int(queue[t])
            buffer = s.buffers[b]
            key = (b, q, int(c.acc_c0[a]), int(c.acc_c1[a]))
            if buffer.pool != pool.id or c.acc_flags[a] & WRITE or key in seen or buffer.name.endswith(".attn"):
                continue
            seen.add(key)
            offset = buffer.offset % part
            box = mails[q][offset : offset + 4 * buffer.rows * buffer.cols].view(np.float32).reshape(buffer.rows, buffer.cols)
            where = (slice(int(c.acc_r0[a]), int(c.acc_r1[a])), slice(int(c.acc_c0[a]), int(c.acc_c1[a])))
            name = f"mailbox {buffer.name} of queue {q}, columns from {int(c.acc_c0[a])}"
            yield describe(name, box[where], want[b][where])


def waits_of(s: Schedule, fault: Fault, heads: Any) -> Iterator[str]:
    """Who was to send what a mail timeout waits for, and where every queue of its cluster stood.

    Args:
        heads: [queues, HEAD_WORDS] of the build that leaves them.
    """
    pool = cluster_pool(s)
    mail: Mail = plan_mail(s, pool)
    queue, first = queues_of(s), fault.queue // pool.cluster * pool.cluster
    for t in np.flatnonzero((mail.barrier == fault.counter) & (queue // pool.cluster == fault.queue // pool.cluster)):
        if fault.kind == "mail-timeout" and mail.send[t] >> (fault.queue % pool.cluster) & 1:
            yield f"barrier {fault.counter} expects bytes of T{t} {params(s, int(t))[0]} on queue {queue[t]}"
    for q in range(s.n_queues):
        a, b = (tuple(int(x) for x in heads[q][i : i + 2]) for i in (0, 2))
        names = []
        for _, place in (a, b):
            tasks = s.columns.queue_task[s.columns.queue_off[q] : s.columns.queue_off[q + 1]]
            names.append(params(s, int(tasks[place]))[0] if place < len(tasks) else "?")
        mark = "<- " if q == fault.queue else "   " if first <= q < first + pool.cluster else ""
        yield f"{mark}queue {q}: task records of step, place {a} {names[0]} and {b} {names[1]}; broken {int(heads[q][4])}"
