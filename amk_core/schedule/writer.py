"""Writes the interchange format ``amk.schedule/1``: :class:`~amk_core.schedule.ir.Schedule` -> object, what the reader reads."""

from __future__ import annotations

from typing import Any

from amk_core.schedule import ops
from amk_core.schedule.ir import ASYNC, FENCES, FORMAT, MAYBE, PREV_EPOCH, WRITE, Schedule


def write(s: Schedule) -> dict[str, Any]:
    """The interchange object of a schedule; see :meth:`Schedule.to_json`."""
    c, names = s.columns, s.variable_names()

    def rng(r0: int, r1: int, aff: int) -> Any:
        if aff < 0:
            return [int(r0), int(r1)]
        add, var, stride, mod, length, lvar, lstride = (int(x) for x in c.affine[aff])
        start: dict[str, Any] = {"stride": stride, "mod": mod or None, "add": add}
        if var >= 0:
            start["base"] = names[var]
        out_length: Any = length
        if lvar >= 0 or lstride:
            out_length = {"stride": lstride, "add": length}
            if lvar >= 0:
                out_length["base"] = names[lvar]
        return {"start": start, "length": out_length}

    tasks = []
    for t in range(s.n_tasks):
        spec = ops.BY_CODE[int(c.task_op[t])]
        reads: list[dict[str, Any]] = []
        writes: list[dict[str, Any]] = []
        for a in range(int(c.acc_off[t]), int(c.acc_off[t + 1])):
            f = int(c.acc_flags[a])
            acc: dict[str, Any] = {
                "buffer": int(c.acc_buffer[a]),
                "rows": rng(c.acc_r0[a], c.acc_r1[a], int(c.acc_raff[a])),
                "cols": rng(c.acc_c0[a], c.acc_c1[a], int(c.acc_caff[a])),
            }
            if f & MAYBE:
                acc["maybe"] = True
            if f & ASYNC:
                acc["proxy"] = "async"
            if f & PREV_EPOCH:
                acc["epoch"] = -1
            (writes if f & WRITE else reads).append(acc)
        task: dict[str, Any] = {
            "id": t,
            "op": spec.name,
            "params": spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]]),
            "waits": [
                [int(c.wait_counter[w]), int(c.wait_t[w]), int(c.wait_e[w])]
                for w in range(int(c.wait_off[t]), int(c.wait_off[t + 1]))
            ],
            "signals": [[int(c.sig_counter[k]), int(c.sig_amount[k])] for k in range(int(c.sig_off[t]), int(c.sig_off[t + 1]))],
            "reads": reads,
            "writes": writes,
        }
        if c.task_fences[t]:
            task["fences"] = [n for n, bit in FENCES.items() if int(c.task_fences[t]) & bit]
        tasks.append(task)
    out: dict[str, Any] = {
        "format": FORMAT,
        "steps": s.steps,
        "pools": [
            {"id": p.id, "bytes": p.bytes, "per_queue": p.per_queue} | ({"cluster": p.cluster} if p.cluster else {})
            for p in s.pools
        ],
        "queues": [s.queue(q) for q in range(s.n_queues)],
        "buffers": [
            {
                "id": i, "name": b.name, "kind": b.kind.name.lower(), "dtype": b.dtype, "shape": list(b.shape),
                "pool": b.pool, "offset": b.offset, "lifetime": b.lifetime.name.lower(), "tagged": b.tagged,
            }
            for i, b in enumerate(s.buffers)
        ],
        "counters": [{"id": i, "name": k.name, "per_step": k.per_step} for i, k in enumerate(s.counters)],
        "tasks": tasks,
        "initial": [
            {
                "buffer": int(c.init_buffer[i]),
                "rows": rng(c.init_r0[i], c.init_r1[i], int(c.init_raff[i])),
                "cols": rng(c.init_c0[i], c.init_c1[i], int(c.init_caff[i])),
            }
            for i in range(len(c.init_buffer))
        ],
    }  # fmt: skip
    if s.variables:
        out["variables"] = {v.name: {"count": v.count, "min": v.min, "max": v.max} for v in s.variables}
    if s.target is not None:
        out["target"] = {"sms": s.target.sms, "smem_bytes": s.target.smem_bytes, "arch": s.target.arch}
    if s.stop is not None:
        out["stop"] = {"buffer": s.stop[0], "task": s.stop[1]}
    if s.meta:
        out["meta"] = dict(s.meta)
    return out
