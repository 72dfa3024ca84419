"""From the records of a traced launch to regions: where the time of a decode step goes, op by op.

A record has four SM clocks: the task was taken from the queue, its waits held, its body ended, its signals were out.  Records carry
no ids: record i of a queue and step is slot i of the queue.  Nothing here needs a card.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule import ops
from amk_core.schedule.ir import Schedule

F64 = npt.NDArray[np.float64]
FETCH, READY, END, SIGNALLED = range(4)
BETWEEN = "between tasks"
_WRAP = 1 << 32  # records hold the low word of the clock


@dataclass(frozen=True, slots=True)
class Timeline:
    """A traced launch on one time axis.

    Attributes:
        us: [steps, tasks in queue order, 4] microseconds from the first anchor to fetch, ready, end, signalled.
        spread: how far the fastest and the slowest SM clock lie apart, relative to the slowest.
    """

    schedule: Schedule
    us: F64
    spread: float

    @property
    def queue(self) -> npt.NDArray[np.int64]:
        """The queue of each place of the records."""
        return _queues(self.schedule)

    @property
    def first(self) -> int:
        """The first step that counts: step 0 warms caches and instruction memory up."""
        return min(1, len(self.us) - 1)


@dataclass(frozen=True, slots=True)
class Region:
    """The tasks of one op.  Times in microseconds; those without a unit in the name are means over tasks.

    ``share`` is of the time of all queues; the shares of all regions and of the gaps between tasks add up to 1.
    """

    name: str
    tasks: int  # a step
    wait: float
    execute: float
    hand_off: float
    slowest: float  # execute
    wait_a_step: float  # a queue's, mean over queues
    execute_a_step: float
    hand_off_a_step: float
    share: float


@dataclass(frozen=True, slots=True)
class Phase:
    """The phases of one op: all its tasks of one layer and step.  Microseconds after the last signal of the phase before, means
    over layers and steps; the ``last_signal`` of all phases, ``a_step`` times each, add up to the step but for its first phase.

    A tagged task is ready when its first warp has its values; its signal is the end of its body.

    Attributes:
        execute_slowest: how long the body took that ended last.
    """

    name: str
    a_step: int
    ready_least: float
    ready_median: float
    ready_most: float
    end_median: float
    end_most: float
    last_signal: float
    execute_slowest: float


def _queues(s: Schedule) -> npt.NDArray[np.int64]:
    """The queue of each place of the records."""
    return np.repeat(np.arange(s.n_queues), np.diff(s.columns.queue_off))


def _places(s: Schedule) -> npt.NDArray[np.int64]:
    """The place of each task in the records."""
    out = np.empty(s.n_tasks, np.int64)
    out[s.columns.queue_task] = np.arange(s.n_tasks)
    return out


def timeline(s: Schedule, records: npt.NDArray[np.uint32], anchors: npt.NDArray[np.uint64]) -> Timeline:
    """Fit every queue's clock to the card's timer, which ticks every 32 ns.

    Args:
        records: [steps, tasks in queue order, 4], low words of the SM clock.
        anchors: [queues, 2, 2]: {SM clock, nanoseconds} at the start and the end of each queue; zeros for a queue without tasks.

    Groups of SMs have clocks of their own, so rate and offset are a queue's own, through its two anchors.

    Raises:
        ValueError: the arrays do not belong to the schedule.
    """
    if records.shape[1:] != (s.n_tasks, 4) or anchors.shape != (s.n_queues, 2, 2):
        raise ValueError(
            f"records {list(records.shape)} and anchors {list(anchors.shape)} for {s.n_tasks} tasks on {s.n_queues} queues; "
            f"required are [steps, {s.n_tasks}, 4] and [{s.n_queues}, 2, 2]"
        )
    used = np.diff(s.columns.queue_off) > 0
    zero = int(anchors[used][:, 0, 1].min())
    clock = (anchors[..., 0] - anchors[:, :1, 0]).astype(np.float64)  # ticks since the queue's own first anchor
    ns = (anchors[..., 1].astype(np.int64) - zero).astype(np.float64)
    rate, offset = np.zeros(s.n_queues), ns[:, 0]
    rate[used] = (ns[used, 1] - ns[used, 0]) / clock[used, 1]
    queue = _queues(s)
    start = (anchors[:, 0, 0] % np.uint64(_WRAP)).astype(np.int64)
    ticks = (records.astype(np.int64) - start[queue][None, :, None]) % _WRAP
    # Behind the first wrap of the low word, time goes on: a queue's records are in order.
    for q in np.flatnonzero(used):
        a, e = int(s.columns.queue_off[q]), int(s.columns.queue_off[q + 1])
        mine = ticks[:, a:e].reshape(-1)
        ticks[:, a:e] = (mine + np.concatenate([[0], np.cumsum(np.diff(mine) < 0)]) * _WRAP).reshape(len(records), e - a, 4)
    us = (ticks * rate[queue][None, :, None] + offset[queue][None, :, None]) / 1e3
    return Timeline(s, us, float(rate[used].max() / rate[used].min() - 1))


def causality_us(t: Timeline) -> float:
    """Largest time by which a task was ready before the last of its producers had signalled: what the time axis may be off by.

    Waits for all signals of a counter in the same step are looked at.
    """
    c, us, order = t.schedule.columns, t.us, _places(t.schedule)
    signals = np.repeat(np.arange(t.schedule.n_tasks), np.diff(c.sig_off))
    last = np.full((len(us), len(t.schedule.counters)), -np.inf)
    for step in range(len(us)):
        np.maximum.at(last[step], c.sig_counter, us[step, order[signals], SIGNALLED])
    waits = np.repeat(np.arange(t.schedule.n_tasks), np.diff(c.wait_off))
    whole = (c.wait_e == 0) & (c.wait_t == np.array([k.per_step for k in t.schedule.counters])[c.wait_counter])
    early = last[:, c.wait_counter[whole]] - us[:, order[waits[whole]], READY]
    return max(0.0, float(early.max(initial=0.0)))


def gaps(t: Timeline) -> F64:
    """[steps counted, tasks]: microseconds from the task's signal to the queue's next fetch; 0 behind the last one."""
    us, off = t.us[t.first :], t.schedule.columns.queue_off
    out = np.zeros(us.shape[:2])
    for q in np.flatnonzero(np.diff(off) > 0):
        mine = us[:, off[q] : off[q + 1]].reshape(-1, 4)
        gap = np.concatenate([mine[1:, FETCH] - mine[:-1, SIGNALLED], [0.0]])
        out[:, off[q] : off[q + 1]] = gap.reshape(len(us), -1)
    return out


def regions(t: Timeline) -> list[Region]:
    """Every op, in the order of the step, and last the gaps between tasks."""
    s, us = t.schedule, t.us[t.first :]
    op = s.columns.task_op[s.columns.queue_task]
    per, between = len(us) * s.n_queues, gaps(t)
    spent = (us[..., SIGNALLED] - us[..., FETCH]).sum() + between.sum()
    out = []
    for code in sorted(np.unique(op), key=lambda c: float(us[:, op == c, READY].min())):
        mine = us[:, op == code]
        wait, execute, signal = (mine[..., k + 1] - mine[..., k] for k in range(3))
        out.append(
            Region(
                ops.BY_CODE[int(code)].name, int((op == code).sum()), float(wait.mean()), float(execute.mean()),
                float(signal.mean()), float(execute.max()), wait.sum() / per, execute.sum() / per, signal.sum() / per,
                float((wait + execute + signal).sum() / spent),
            )
        )  # fmt: skip
    gap = float(between.sum())
    out.append(Region(BETWEEN, s.n_tasks, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, gap / spent))
    return out


def step_us(t: Timeline) -> float:
    """Microseconds a step: from the first fetch to the last signal of the steps that count, mean over queues."""
    off, us = t.schedule.columns.queue_off, t.us[t.first :]
    ends = [us[-1, off[q + 1] - 1, SIGNALLED] - us[0, off[q], FETCH] for q in np.flatnonzero(np.diff(off) > 0)]
    return float(np.mean(ends)) / len(us)


def table(t: Timeline) -> str:
    """The regions as text, in microseconds."""
    lines = [
        f"{step_us(t):.1f} us a step over {len(t.us) - t.first} steps; SM clocks differ by {100 * t.spread:.2f} %, "
        f"the time axis is off by at most {causality_us(t):.2f} us",
        "region          tasks |  a task: wait  execute  (max)  hand-off | a queue and step: wait  execute  hand-off |  share",
    ]
    for r in regions(t):
        if r.name == BETWEEN:
            lines.append(f"{r.name:15s} {'':5s} | {'':37s} | {'':38s} | {100 * r.share:5.1f} %")
            continue
        lines.append(
            f"{r.name:15s} {r.tasks:5d} | {r.wait:13.2f} {r.execute:8.2f} {r.slowest:7.2f} {r.hand_off:8.2f} "
            f"| {r.wait_a_step:22.1f} {r.execute_a_step:8.1f} {r.hand_off_a_step:7.1f} | {100 * r.share:5.1f} %"
        )
    return "\n".join(lines)


def phases(s: Schedule) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """(op, tasks) of each phase of a step, in its order: the tasks of one op and layer."""
    c, out = s.columns, []
    order = {name: k for k, name in enumerate(ops.BY_NAME)}
    for spec in ops.SPECS[1:]:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, spec)
        layer = p.get("layer", np.full(len(ids), -1 if spec.name == "embed" else 1 << 20))
        out += [((int(i), order[spec.name]), spec.name, ids[layer == i]) for i in np.unique(layer)]
    return [(name, ids) for _, name, ids in sorted(out, key=lambda x: x[0])]


def phase_times(t: Timeline) -> list[Phase]:
    """Every kind of phase but the first, in the order of the step, timed from the last signal of the phase before."""
    us, order = t.us, _places(t.schedule)
    rows: dict[str, list[list[float]]] = {}
    for (_, before), (name, ids) in itertools.pairwise(phases(t.schedule)):
        made, mine = order[before], order[ids]
        for step in range(t.first, len(us)):
            zero = us[step, made, SIGNALLED].max()
            ready, end = us[step, mine, READY] - zero, us[step, mine, END] - zero
            slow = mine[int(end.argmax())]
            rows.setdefault(name, []).append(
                [ready.min(), np.median(ready), ready.max(), np.median(end), end.max(), us[step, mine, SIGNALLED].max() - zero,
                 us[step, slow, END] - us[step, slow, READY]]
            )  # fmt: skip
    steps = len(us) - t.first
    return [Phase(name, len(r) // steps, *(float(x) for x in np.mean(np.array(r), axis=0))) for name, r in rows.items()]


def hand_offs(t: Timeline) -> str:
    """The phases as text, in microseconds."""
    steps = len(t.us) - t.first
    lines = ["phase                n | ready min, median, max | end median, max | last signal | execute of the slowest"]
    for p in phase_times(t):
        lines.append(
            f"{p.name:15s} {p.a_step * steps:6d} | {p.ready_least:6.2f} {p.ready_median:6.2f} {p.ready_most:6.2f} "
            f"| {p.end_median:7.2f} {p.end_most:7.2f} | {p.last_signal:7.2f} | {p.execute_slowest:7.2f}"
        )
    return "\n".join(lines)


def summary(t: Timeline) -> dict[str, Any]:
    """Regions and phases as plain values, for a result file; microseconds."""
    return {
        "steps": len(t.us) - t.first,
        "step_us": step_us(t),
        "spread": t.spread,
        "off_us": causality_us(t),
        "regions": [dataclasses.asdict(r) for r in regions(t)],
        "phases": [dataclasses.asdict(p) for p in phase_times(t)],
    }


def events(t: Timeline) -> Iterator[dict[str, Any]]:
    """Slices for Perfetto in the Trace Event Format (JSON): one thread a queue; wait, the op, and its signal."""
    s, c = t.schedule, t.schedule.columns
    layer = np.full(s.n_tasks, -1, np.int64)
    for spec in ops.SPECS[1:]:
        ids, p = ops.params_of(c.task_op, c.par_off, c.par, spec)
        if len(ids) and "layer" in p:
            layer[ids] = p["layer"]
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{s.meta.get('model', 'schedule')} on the card"}}
    for q in range(s.n_queues):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": q, "args": {"name": f"queue {q}"}}
    queue = t.queue
    for step in range(len(t.us)):
        for place in range(s.n_tasks):
            task, times = int(c.queue_task[place]), t.us[step, place]
            name = ops.BY_CODE[int(c.task_op[task])].name
            about = {"task": task, "step": step, "layer": int(layer[task])}
            for part, a, e in (("wait", FETCH, READY), (name, READY, END), ("signal", END, SIGNALLED)):
                length = round(float(times[e] - times[a]), 3)
                if length > 0:
                    yield {"ph": "X", "name": part, "cat": name, "pid": 1, "tid": int(queue[place]),
                           "ts": round(float(times[a]), 3), "dur": length, "args": about}  # fmt: skip


def write_perfetto(t: Timeline, path: Path) -> int:
    """Write the slices for https://ui.perfetto.dev; returns their number.

    Raises:
        OSError: the file cannot be written.
    """
    n = 0
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for n, event in enumerate(events(t), 1):
            f.write(("" if n == 1 else ",\n") + json.dumps(event, separators=(",", ":")))
        f.write("\n]}\n")
    return n
