"""Timing and tracing the device VM with random weights of the public shapes."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_bench import fingerprint
from amk_bench.floor import Bandwidth
from amk_core.graph import GRAPH_SHAPES
from amk_core.machine import probe
from amk_core.quant.config import QuantConfig
from amk_core.schedule import tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.targets import Target
from amk_core.vm import quant_tape, tracing
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.driver import call

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


def random_tape(device: Any, layout: DeviceTapeLayout, scale: float) -> Any:
    """The tape of a layout with random weights up to ``scale``, made on the card through torch."""
    import torch

    from amk_core.vm.driver import Memory

    if not layout.formats:
        return random_memory(device, layout.bytes, scale)
    t = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, device="cuda")
    offsets, ends = layout.segments[:, 4], np.append(layout.segments[1:, 4], layout.bytes)
    formats = [layout.formats.get(layout.weights[w]) for w in layout.segments[:, 0]]
    first = 0
    for i in range(1, len(formats) + 1):  # runs of tiles of one format
        if i < len(formats) and formats[i] == formats[first]:
            continue
        part, fmt = t[int(offsets[first]) : int(ends[i - 1])], formats[first]
        first = i
        if fmt is None:
            part.view(torch.bfloat16).uniform_(-scale, scale)
            continue
        kind = torch.float16 if fmt.scale == "f16" else torch.bfloat16
        step, codes = scale / (127 if fmt.bits == 8 else 7.5), 512 * quant_tape.loads(fmt)
        record = part.view(-1, quant_tape.record_bytes(fmt))[:, codes:].view(kind)
        record[:] = step
        half = record.shape[1] // 2
        if fmt.kind == "min":
            record[:, half:] = -scale
        elif fmt.kind == "zero":
            record[:, half:] = torch.tensor([8], dtype=torch.int16, device="cuda").view(kind)  # zero points
    torch.cuda.synchronize()
    return Memory.borrow(device, t.data_ptr(), layout.bytes, t)


def rearranged(device: Any, tape: Any, old: DeviceTapeLayout, new: DeviceTapeLayout) -> Any:
    """The weights of a tape in the order of another layout of the same tiles, so that both programs multiply the same ones."""

    def spans(layout: DeviceTapeLayout) -> dict[tuple[Any, ...], tuple[int, int]]:
        starts = layout.segments[:, 4].tolist()
        ends = [*starts[1:], layout.bytes]
        tiles = [(layout.weights[s[0]], *s[1:4]) for s in layout.segments.tolist()]
        return {t: (a, e - a) for t, a, e in zip(tiles, starts, ends, strict=True)}

    held, wanted = spans(old), spans(new)
    if held == wanted or held.keys() != wanted.keys():  # other tiles: what stands there is as random as before
        return tape
    out = device.memory(new.bytes)
    for tile, (at, size) in wanted.items():
        call("cuMemcpyDtoD", out.address + at, tape.address + held[tile][0], size)
    device.synchronize()
    return out


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a token at a position; the weights are random.

    Attributes:
        us: median of ``samples_us``, one launch each, in the order of measuring; none is left out but the first two.
        floor_us: bytes of the tape at the bandwidth that this card was measured to have.
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
    flight: tuple[int, int, int] | None = None, shared: dict[str, Any] | None = None, layers: int = 0,
    weights: str = "", ranks: Ranks | None = None, marked: bool | None = None, macros: Mapping[str, int] | None = None,
    chunk: int = 0,
) -> Any:  # fmt: skip
    """A decode program of a public shape with random weights, quantised as ``weights`` says; ``shared`` keeps big allocations.

    ``flight``, ``marked``: as ``plan_build`` takes them; ``macros``: more for the build; ``chunk``: not decode but prompts, so many
    tokens a step.
    """
    from amk_core.vm.cuda import CudaVM
    from amk_core.vm.rank_vm import RankVM

    g = GRAPH_SHAPES[model]
    if layers:
        g = dataclasses.replace(g, n_layers=layers)
    target = Target(device.facts.name, device.facts.arch, device.facts.sms, device.facts.smem_bytes)
    geometry, quant = Geometry("decode", batch, 1, context), QuantConfig.parse(weights) if weights else None

    def lowered(geometry: Geometry) -> Schedule:
        if ranks:
            return lower_ranks(g, ranks, target, geometry, "fast", ScheduleConfig(**config))
        return lower(g, ScheduleConfig(**config), target, geometry, "fast", quant)

    s = lowered(geometry)
    layout = DeviceTapeLayout.of(s)
    if chunk:
        s = lowered(Geometry("prefill", batch, chunk, context))
    keep = shared if shared is not None else {}
    key = (model, layers, weights, ranks)
    if keep.get("tape_of") != key or keep["tape"].size < layout.bytes:
        keep.clear()
        keep["tape_of"] = key
        keep["tape"] = random_tape(device, layout, 0.03)
    else:
        keep["tape"] = rearranged(device, keep["tape"], keep["layout"], layout)
    keep["layout"] = layout
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
    kind = RankVM if ranks else CudaVM
    vm = kind.__new__(kind)
    vm._start(
        tables.pack(s), layout.locate(s), keep["tape"], bound, {"kv": keep["kv"]}, device, trace=trace, cache=cache, flight=flight,
        marked=marked, macros=macros,
    )  # fmt: skip
    if chunk:
        vm.buffer("prompt")[:] = 5
    else:
        vm.buffer("stop_ids")[:] = -1
        vm.buffer("token")[:] = 5
    vm.launch(1, [0] * batch + [1] * batch)
    vm.wait()
    return vm


UNSTATED_BYTES_PER_S = 4.58e12  # the floors of files that do not state the bandwidth: an H200, bulk copies
POSITIONS = {"smollm2-135m": (16, 2048), "tinyllama-1.1b": (16, 1024), "llama-3.2-1b": (16, 2048), "llama-3.1-8b": (16, 2048)}


def measure(
    model: str,
    position: int,
    vm: Any,
    bytes_per_s: float,
    repeats: int = 7,
    steps: int = 32,
    batch: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Timing:
    """``repeats`` launches of ``steps`` steps from ``position`` on a card that reads ``bytes_per_s`` from its memory."""
    samples = vm.time_launches(steps, vm.variables(position, steps), repeats + 2)[2:]
    us = tuple(x / steps * 1e6 for x in samples)
    return Timing(model, position, batch, config or {}, steps, us, vm.tape.size / bytes_per_s * 1e6)


def report(
    rows: Sequence[Timing], facts: Any, commit: str, bandwidth: Bandwidth, traces: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What a run leaves behind: samples, bandwidth, fingerprint, and what :func:`traced` said where a tracer ran.

    There is no baseline and no gate in it, so it is no result.
    """
    command = ["python", "-m", "amk_bench.device_check", *fingerprint.without_places(sys.argv[1:])]
    stamp = fingerprint.take(probe(), facts.arch, facts.name, command, {}, Path.cwd(), commit)
    timings = [{**dataclasses.asdict(t), "median_us": t.us, "weights": "random"} for t in rows]
    read = dataclasses.asdict(bandwidth)
    doc = {"schema": 1, "kind": "timing", "fingerprint": stamp.to_json(), "bandwidth": read, "timings": timings}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "amk": {**doc, "traces": list(traces)} if traces else doc}


def traced(
    model: str, position: int, batch: int, config: Mapping[str, Any], tape_bytes: int, axis: tracing.Timeline
) -> dict[str, Any]:
    """One traced launch for :func:`report`: what ran, the bytes of weights that a step reads, its regions and phases."""
    about = {"model": model, "position": position, "batch": batch, "config": dict(config), "weights": "random"}
    return {**about, "tape_bytes": tape_bytes, **tracing.summary(axis)}


def table(doc: Mapping[str, Any]) -> str:
    """Markdown table of what :func:`report` wrote: microseconds a token, by position, with tagged hand-offs and with counters."""
    rows = doc["amk"]["timings"]
    positions = sorted({t["position"] for t in rows})
    out = ["| model | hand-off | " + " | ".join(str(p) for p in positions) + " | weights at 4.58 TB/s |"]
    out.append("| --- " * (len(positions) + 3) + "|")
    for model, handoff in dict.fromkeys((t["model"], t["config"].get("handoff", "tagged")) for t in rows):
        mine = {t["position"]: t for t in rows if (t["model"], t["config"].get("handoff", "tagged")) == (model, handoff)}
        cells = [f"{mine[p]['median_us']:.0f}" if p in mine else "" for p in positions]
        floor = next(iter(mine.values()))["floor_us"]
        out.append(f"| {model} | {handoff} | {' | '.join(cells)} | {floor:.0f} |")
    return "\n".join(out)


def trace(vm: Any, position: int, steps: int = 4, tokens: int | None = None) -> tracing.Timeline:
    """A traced launch from ``position`` (the VM must be built with the tracer); ``tokens``: of all steps, by default one each."""
    vm.launch(steps, vm.variables(position, steps if tokens is None else tokens))
    vm.wait()
    return tracing.timeline(vm.schedule, *vm.trace_records())
