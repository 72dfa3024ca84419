"""How values travel in a program for ranks: counters of a cluster as mbarriers, and where parts of three sums lie.

A pool of clusters becomes shared memory: a buffer lies at its offset in the part, in every CTA of the cluster.  A counter that one
cluster alone knows, and whose tasks all leave something there, becomes an mbarrier in each CTA that waits for it: one phase a step,
which expects the bytes that the counter's tasks on other queues write.  All other counters stay in global memory.

Tagged parts keep their buffers, but not their places: elements of 16 bytes {three sums, tag}, those of all parts side by side.
``vm/rank_maps.h`` says where each thing lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amk_core.schedule import ops
from amk_core.schedule.ir import WRITE, Pool, Schedule
from amk_core.vm.plan import ProgramError

PART_FLOATS = 3
MAX_PHASE_BYTES = (1 << 20) - 1  # what an mbarrier counts
SUMS = ("o_sum", "down_sum")


def cluster_pool(s: Schedule) -> Pool:
    """The pool that becomes shared memory.

    Raises:
        ProgramError: there is none or more than one, its parts are not whole, or the queues are no whole clusters.
    """
    pools = [p for p in s.pools if p.cluster]
    if len(pools) != 1 or not s.cluster_bytes(pools[0]) or s.n_queues % pools[0].cluster:
        seen = ", ".join(f"{p.id} of clusters of {p.cluster}" for p in pools) or "none"
        raise ProgramError(f"pools of clusters: {seen}, {s.n_queues} queues; required is one in whole parts, and whole clusters")
    return pools[0]


def task_name(s: Schedule, t: int) -> str:
    return f"task {t} ({ops.BY_CODE[int(s.columns.task_op[t])].name})"


@dataclass(frozen=True, slots=True)
class Mail:
    """How results travel inside the clusters.

    Attributes:
        arrive: by task, the barrier of its CTA that it waits for; -1: none.
        expects: by task, the bytes of one phase of that barrier.
        send: by task, CTAs of the cluster that get its results, a bit each; not its own.
        barrier: by task, the barrier there that counts them.
        barriers: of a CTA.
        keep_wait, keep_signal: of the columns, those that stay counters in global memory.
    """

    arrive: npt.NDArray[np.int64]
    expects: npt.NDArray[np.int64]
    send: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int64]
    barriers: int
    keep_wait: npt.NDArray[np.bool_]
    keep_signal: npt.NDArray[np.bool_]


def plan_mail(s: Schedule, pool: Pool) -> Mail:
    """Counters of one cluster -> barriers.

    Raises:
        ProgramError: a task reads what another queue writes into a mailbox without a wait of its queue for that very counter, or
            waits for, or signals, more than one barrier.
    """
    c, size = s.columns, pool.cluster
    queue = np.zeros(s.n_tasks, np.int64)
    queue[c.queue_task] = np.repeat(np.arange(s.n_queues), np.diff(c.queue_off))
    mine = np.array([b.pool == pool.id for b in s.buffers], bool)
    access_task = np.repeat(np.arange(s.n_tasks), np.diff(c.acc_off))
    boxed = mine[c.acc_buffer] if len(c.acc_buffer) else np.zeros(0, bool)
    writes = (c.acc_flags & WRITE) != 0
    moving = np.flatnonzero(boxed & ((c.acc_raff >= 0) | (c.acc_caff >= 0)))
    if len(moving):
        raise ProgramError(f"{task_name(s, int(access_task[moving[0]]))}: a mailbox is read or written at a place that moves")
    area = 4 * (c.acc_r1 - c.acc_r0) * (c.acc_c1 - c.acc_c0)
    sent = np.zeros(s.n_tasks, np.int64)  # bytes that a task leaves in the mailboxes of a CTA
    np.add.at(sent, access_task[boxed & writes], area[boxed & writes])

    wait_task = np.repeat(np.arange(s.n_tasks), np.diff(c.wait_off))
    sig_task = np.repeat(np.arange(s.n_tasks), np.diff(c.sig_off))
    n = len(s.counters)
    per_step = np.array([k.per_step for k in s.counters], np.int64)
    low, high = np.full(n, s.n_queues), np.full(n, -1)
    for counter, task in ((c.sig_counter, sig_task), (c.wait_counter, wait_task)):
        np.minimum.at(low, counter, queue[task] // size)
        np.maximum.at(high, counter, queue[task] // size)
    local = low == high
    local[c.sig_counter[(sent[sig_task] == 0) | (c.sig_amount != 1)]] = False
    local[c.wait_counter[(c.wait_t != per_step[c.wait_counter]) | (c.wait_e != 0)]] = False

    readers: dict[int, set[int]] = {}  # by local counter: queues that wait for it
    for w in np.flatnonzero(local[c.wait_counter]):
        readers.setdefault(int(c.wait_counter[w]), set()).add(int(queue[wait_task[w]]))
    counter_of = np.full(s.n_tasks, -1, np.int64)
    senders: dict[int, list[int]] = {}
    for x in np.flatnonzero(local[c.sig_counter]):
        t, k = int(sig_task[x]), int(c.sig_counter[x])
        if counter_of[t] >= 0:
            raise ProgramError(
                f"{task_name(s, t)}: signals two counters of its cluster; the results of a task complete one barrier"
            )
        counter_of[t] = k
        senders.setdefault(k, []).append(t)
    expects = {
        (k, q): sum(int(sent[t]) for t in senders.get(k, ()) if queue[t] != q) for k, qs in readers.items() for q in qs
    }  # fmt: skip
    most = max(expects.values(), default=0)
    if most > MAX_PHASE_BYTES:
        raise ProgramError(f"{most} bytes arrive at a barrier in a step, it counts up to {MAX_PHASE_BYTES}")
    numbers: dict[int, int] = {}
    used = [0] * (s.n_queues // size)
    for k in sorted({k for (k, _), b in expects.items() if b}):
        numbers[k] = used[int(low[k])]
        used[int(low[k])] += 1

    send, barrier = np.zeros(s.n_tasks, np.int64), np.zeros(s.n_tasks, np.int64)
    for k, tasks in senders.items():
        for t in tasks:
            send[t] = sum(1 << q % size for q in readers.get(k, ()) if q != queue[t])
            barrier[t] = numbers.get(k, 0)
    arrive, phase = np.full(s.n_tasks, -1, np.int64), np.zeros(s.n_tasks, np.int64)
    waited: list[dict[int, int]] = [{} for _ in range(s.n_queues)]  # by queue and counter: place in the queue of the first wait
    place = np.zeros(s.n_tasks, np.int64)
    for q in range(s.n_queues):
        for at, t in enumerate(c.queue_task[c.queue_off[q] : c.queue_off[q + 1]].tolist()):
            place[t] = at
            for k in c.wait_counter[c.wait_off[t] : c.wait_off[t + 1]].tolist():
                if not local[k] or k in waited[q]:
                    continue
                waited[q][k] = at
                if expects[k, q]:
                    if arrive[t] >= 0:
                        raise ProgramError(
                            f"{task_name(s, t)}: waits for two counters of its cluster; a task waits for one barrier"
                        )
                    arrive[t], phase[t] = numbers[k], expects[k, q]

    written: dict[tuple[int, int], list[int]] = {}  # by buffer and value: accesses that write it
    for x in np.flatnonzero(boxed & writes):
        written.setdefault((int(c.acc_buffer[x]), int(c.acc_label[x])), []).append(int(x))
    for x in np.flatnonzero(boxed & ~writes):
        t = int(access_task[x])
        q = int(queue[t])
        for y in written.get((int(c.acc_buffer[x]), int(c.acc_label[x])), ()):
            u = int(access_task[y])
            below = c.acc_c0[x] >= c.acc_c1[y] or c.acc_r0[x] >= c.acc_r1[y]
            apart = below or c.acc_c0[y] >= c.acc_c1[x] or c.acc_r0[y] >= c.acc_r1[x]
            if queue[u] != q and not apart and waited[q].get(int(counter_of[u]), s.n_tasks) > place[t]:
                raise ProgramError(
                    f"{task_name(s, t)}: reads what {task_name(s, u)} leaves in a mailbox, but queue {q} does not wait for a "
                    "counter of the cluster that it signals; values are sent to queues that wait for them"
                )
    return Mail(
        arrive, phase, send, barrier, max(used, default=0), ~local[c.wait_counter], ~local[c.sig_counter],
    )  # fmt: skip


def part_words(s: Schedule) -> npt.NDArray[np.int64]:
    """By task that leaves or adds parts: the first element of its tile, and how many parts an element has above 24 bits; else 0.

    Raises:
        ProgramError: tiles that leave parts are not cut as the sums that take them, or the elements do not fit their buffer.
    """
    c, words = s.columns, np.zeros(s.n_tasks, np.int64)
    first: dict[tuple[int, int, int], int] = {}
    for name in SUMS:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
        for b in np.unique(p["parts"]) if len(ids) else ():
            mine, at = p["parts"] == b, 0
            for lo, hi in sorted({(int(x), int(y)) for x, y in zip(p["col0"][mine], p["col1"][mine], strict=True)}):
                first[int(b), lo, hi] = at
                at += -(-(hi - lo) // PART_FLOATS)
            buffer = s.buffers[int(b)]
            if at * buffer.rows * 16 > buffer.bytes:
                raise ProgramError(f"{at} elements of three sums do not fit {buffer.name!r}; use smaller clusters")
    for name, buffer_of, begin, end in (
        ("o_part", "out", "row0", "row1"), ("down_part", "out", "row0", "row1"), ("o_sum", "parts", "col0", "col1"),
        ("down_sum", "parts", "col0", "col1"),
    ):  # fmt: skip
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
        for x, t in enumerate(ids.tolist()):
            key = (int(p[buffer_of][x]), int(p[begin][x]), int(p[end][x]))
            if key not in first:
                raise ProgramError(f"{task_name(s, t)}: no sum takes columns [{key[1]}, {key[2]}) of its parts; cut both alike")
            words[t] = first[key] | s.buffers[key[0]].rows << 24
    return words
