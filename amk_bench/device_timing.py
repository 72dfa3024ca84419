"""Timing and tracing the device VM with random weights of the public shapes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_bench import fingerprint
from amk_core.graph import GRAPH_SHAPES
from amk_core.machine import probe
from amk_core.schedule import ops, tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import I32, I64, Kind
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm.device_tape import DeviceTapeLayout

Array = npt.NDArray[Any]


def random_memory(device: Any, size: int, scale: float, dtype: str = "bf16") -> Any:
    """Random values on the card, through torch."""
    import torch

    from amk_core.vm.driver import Memory

    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    n = size // (2 if dtype == "bf16" else 4)
    t = torch.empty(n, dtype=kind, device="cuda").uniform_(-scale, scale)
    torch.cuda.synchronize()
    return Memory.borrow(device, t.data_ptr(), size, t)


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a token at a position; the weights are random.

    Attributes:
        us: median of ``samples_us``, one launch each, in the order of measuring; none is left out but the first two.
        floor_us: bytes of the tape at READ_BYTES_PER_S.
    """

    model: str
    position: int
    batch: int
    config: Mapping[str, Any]
    steps: int
    samples_us: tuple[float, ...]
    floor_us: float

    @property
    def us(self) -> float:
        return float(np.median(self.samples_us))

    @property
    def spread(self) -> float:
        """Slowest over fastest launch, minus one."""
        return max(self.samples_us) / min(self.samples_us) - 1


def timed_vm(
    model: str, context: int, device: Any, cache: Any, config: Mapping[str, Any], *, batch: int = 1, trace: bool = False,
    flight: tuple[int, int] | None = None, shared: dict[str, Any] | None = None, layers: int = 0,
) -> Any:  # fmt: skip
    """A decode program of a public shape with random weights; ``shared`` keeps big allocations between calls."""
    from amk_core.vm.cuda import CudaVM

    g = GRAPH_SHAPES[model]
    if layers:
        g = dataclasses.replace(g, n_layers=layers)
    target = Target(device.facts.name, device.facts.arch, device.facts.sms, device.facts.smem_bytes)
    s = lower(g, ScheduleConfig(**config), target, Geometry("decode", batch, 1, context), "fast")
    layout = DeviceTapeLayout.of(s)
    keep = shared if shared is not None else {}
    key = (model, layers)
    if keep.get("tape_of") != key or keep["tape"].size < layout.bytes:
        keep.clear()
        keep["tape_of"] = key
        keep["tape"] = random_memory(device, layout.bytes, 0.03)
    bound: dict[str, Any] = {}
    for b in s.buffers:
        if b.kind is Kind.TABLE:
            if b.name == "embed":
                keep.setdefault("embed", random_memory(device, b.bytes, 1.0))
                bound[b.name] = keep["embed"]
            elif b.name.startswith("rope."):
                a = np.arange(b.rows)[:, None] * 1e4 ** (-np.arange(b.cols)[None] / b.cols)
                bound[b.name] = (np.cos(a) if b.name == "rope.cos" else np.sin(a)).astype(np.float32)
            else:
                bound[b.name] = np.ones((1, b.cols), np.float32)
    kv_bytes = s.pool_bytes("kv")
    if "kv" not in keep or keep["kv"].size < kv_bytes:
        keep["kv"] = random_memory(device, kv_bytes, 1.0)
    vm = CudaVM.__new__(CudaVM)
    vm._start(
        tables.pack(s), layout.locate(s), keep["tape"], bound, {"kv": keep["kv"]}, device, trace=trace, cache=cache, flight=flight
    )
    vm.buffer("stop_ids")[:] = -1
    vm.buffer("token")[:] = 5
    vm.launch(1, [0] * batch + [1] * batch)
    vm.wait()
    return vm


POSITIONS = {"smollm2-135m": (16, 2048), "tinyllama-1.1b": (16, 1024), "llama-3.2-1b": (16, 2048), "llama-3.1-8b": (16, 2048)}
READ_BYTES_PER_S = 4.58e12  # measured on an H200 with bulk copies; the floor is meaningful there only


def measure(
    model: str, position: int, vm: Any, repeats: int = 7, steps: int = 32, batch: int = 1, config: Mapping[str, Any] | None = None
) -> Timing:
    """``repeats`` launches of ``steps`` steps from ``position``."""
    samples = vm.time_launches(steps, vm.variables(position, steps), repeats + 2)[2:]
    us = tuple(x / steps * 1e6 for x in samples)
    return Timing(model, position, batch, config or {}, steps, us, vm.tape_bytes / READ_BYTES_PER_S * 1e6)


def report(rows: Sequence[Timing], facts: Any, commit: str) -> dict[str, Any]:
    """What a run leaves behind: samples and the fingerprint.  There is no baseline and no gate in it, so it is not a result."""
    words = [Path(w).name if w.startswith("/") else w for w in sys.argv[1:]]  # where the tree lies is nobody's business
    stamp = fingerprint.take(probe(), facts.arch, facts.name, ["python", "-m", "amk_bench.device_check", *words], {}, Path.cwd())
    if commit:
        stamp = dataclasses.replace(stamp, commit=commit)
    timings = [{**dataclasses.asdict(t), "median_us": t.us, "weights": "random"} for t in rows]
    return {"amk": {"schema": 1, "kind": "timing", "fingerprint": stamp.to_json(), "timings": timings}}


def table(doc: Mapping[str, Any]) -> str:
    """Markdown table of what :func:`report` wrote: microseconds a token, by position, with and without separate combine tasks."""
    rows = doc["amk"]["timings"]
    positions = sorted({t["position"] for t in rows})
    out = ["| model | combine | " + " | ".join(str(p) for p in positions) + " | weights at 4.58 TB/s |"]
    out.append("| --- " * (len(positions) + 3) + "|")
    for model, combine in dict.fromkeys((t["model"], t["config"].get("fuse_combine", True)) for t in rows):
        mine = {t["position"]: t for t in rows if (t["model"], t["config"].get("fuse_combine", True)) == (model, combine)}
        cells = [f"{mine[p]['median_us']:.0f}" if p in mine else "" for p in positions]
        floor = next(iter(mine.values()))["floor_us"]
        out.append(f"| {model} | {'fused' if combine else 'apart'} | {' | '.join(cells)} | {floor:.0f} |")
    return "\n".join(out)


def trace(vm: Any, position: int, steps: int = 4) -> Array:
    """[steps, tasks in queue order, 4] microseconds of fetch, ready, end and signalled on one time axis.

    The SM clocks of the queues are fitted to the card's timer by their anchors; its tick, 32 ns, is the residual.
    """
    vm.launch(steps, vm.variables(position, steps))
    vm.wait()
    records, anchors = vm.trace_records()
    queue = np.repeat(np.arange(vm.schedule.n_queues), np.diff(vm.schedule.columns.queue_off))
    clock, ns = anchors[..., 0].astype(np.float64), anchors[..., 1].astype(np.float64)
    rate = (ns[:, 1] - ns[:, 0]) / (clock[:, 1] - clock[:, 0])
    start = anchors[:, 0, 0].astype(np.int64) & 0xFFFFFFFF
    ticks = (records.astype(np.int64) - start[queue][None, :, None]) & 0xFFFFFFFF
    out: Array = (ticks * rate[queue][None, :, None] + (ns[:, 0] - ns[:, 0].min())[queue][None, :, None]) / 1e3
    return out


def busy_table(vm: Any, t: Array) -> str:
    """Where the time of a step goes, op by op: microseconds a task and, last, a queue and step; ``t`` is from :func:`trace`."""
    s, c = vm.schedule, vm.schedule.columns
    op, waits = c.task_op[c.queue_task], (np.diff(c.wait_off) > 0)[c.queue_task]
    wait, execute, signal = (t[1:, :, k + 1] - t[1:, :, k] for k in range(3))  # the first step warms up
    lines = ["op                   n | wait mean, max | execute mean, median, max | signal | a queue and step: wait, execute"]
    for code in np.unique(op):
        m, w = op == code, (op == code) & waits
        per = len(t[1:]) * s.n_queues
        lines.append(
            f"{ops.BY_CODE[int(code)].name:15s} {m.sum():6d} | {wait[:, w].mean():7.2f} {wait[:, w].max():7.2f} "
            f"| {execute[:, m].mean():7.2f} {np.median(execute[:, m]):7.2f} {execute[:, m].max():7.2f} "
            f"| {signal[:, m].mean():5.2f} "
            f"| {wait[:, m].sum() / per:8.1f} {execute[:, m].sum() / per:8.1f}"
        )
    return "\n".join(lines)


def hop_table(vm: Any, t: Array) -> str:
    """Hand-offs, op by op: microseconds from the last signal of the phase before to ready, to the end, to the last signal."""
    c = vm.schedule.columns
    order = np.empty(vm.schedule.n_tasks, np.int64)
    order[c.queue_task] = np.arange(vm.schedule.n_tasks)  # task -> place in the records

    def places(off: I64, counter: I32, keep: npt.NDArray[np.bool_]) -> dict[int, npt.NDArray[np.int64]]:
        task = np.repeat(np.arange(vm.schedule.n_tasks), np.diff(off))
        return {int(k): order[task[keep & (counter == k)]] for k in np.unique(counter[keep])}

    producers = places(c.sig_off, c.sig_counter, np.ones(len(c.sig_counter), bool))
    rows: dict[str, list[list[float]]] = {}
    for counter, w in places(c.wait_off, c.wait_counter, c.wait_e == 0).items():
        first = int(c.queue_task[w[0]])
        made, mine = producers[counter], producers[int(c.sig_counter[c.sig_off[first]])]
        for step in range(1, len(t)):
            zero = t[step, made, 3].max()
            ready, end = t[step, w, 1] - zero, t[step, mine, 2] - zero
            slow = mine[int(end.argmax())]
            rows.setdefault(ops.BY_CODE[int(c.task_op[first])].name, []).append(
                [ready.min(), np.median(ready), ready.max(), np.median(end), end.max(), t[step, mine, 3].max() - zero,
                 t[step, slow, 2] - t[step, slow, 1]]
            )  # fmt: skip
    lines = ["phase                n | ready min, median, max | end median, max | last signal | execute of the slowest"]
    for name, r in rows.items():
        a = np.mean(np.array(r), axis=0)
        lines.append(
            f"{name:15s} {len(r):6d} | {a[0]:6.2f} {a[1]:6.2f} {a[2]:6.2f} | {a[3]:7.2f} {a[4]:7.2f} | {a[5]:7.2f} | {a[6]:7.2f}"
        )
    return "\n".join(lines)
