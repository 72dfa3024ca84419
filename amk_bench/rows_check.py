"""Ways to run steps of several rows, sequences or tokens of a prompt, on a card: equal bits, then the time of each.

    python -m amk_bench.rows_check [--model llama-3.2-1b] [--batches 1,2,4,8,16] [--position 128] [--prompt 1024] [--trace]

Random weights.  All builds are compiled first, side by side.  Every way of a batch has to give the tokens and logits of the first
way, and the first sequence, whose past is the same in every batch, those that it has alone; every way of a prompt the keys and
values of the first one.  Ends with tables: microseconds a step, and their ratio to the first batch's; milliseconds of a prompt.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from amk_bench.device_cases import bits
from amk_bench.device_timing import timed_vm, trace
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import nvrtc, tracing
from amk_core.vm.plan import Build, Dims, ProgramError, plan_build

CONTEXT, STEPS, LAUNCHES, CHECKED_STEPS = 2176, 32, 7, 6


@dataclass(frozen=True)
class Way:
    """A way to build the program of a schedule.

    Attributes:
        marked, flight: as ``plan_build`` takes them.
        macros: more for the build.
        least: rows of a step from which it is another way than those before.
    """

    name: str
    marked: bool = False
    flight: tuple[int, int, int] | None = None
    macros: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    least: int = 1

    def plan(self, dims: Dims, arch: str, smem_bytes: int, trace: bool = False) -> Build:
        return plan_build(dims, arch, smem_bytes, trace=trace, flight=self.flight, marked=self.marked)


WAYS = (
    Way("tagged"),
    Way("marked", marked=True, least=2),
    Way("marked, 8 accesses under way", marked=True, macros=MappingProxyType({"AMK_MARKED_WINDOW": 8}), least=2),
    Way("marked, 3 slots in flight, 2 behind", marked=True, flight=(3, 2, 2), least=3),
)


CHUNKS = (16, 32)  # tokens of a prompt in a step
TOKENS = 128  # of a prompt in one launch


def schedule_dims(model: str, batch: int, arch: str, queues: int, smem_bytes: int) -> Dims:
    target = Target("card", arch, queues, smem_bytes)
    return Dims.of(lower(GRAPH_SHAPES[model], ScheduleConfig(), target, Geometry("decode", batch, 1, CONTEXT), "fast"))


def prompt_dims(model: str, chunk: int, facts: Any) -> Dims:
    target = Target("card", facts.arch, facts.sms, facts.smem_bytes)
    geometry = Geometry("prefill", 1, chunk, CONTEXT)
    return Dims.of(lower(GRAPH_SHAPES[model], ScheduleConfig(), target, geometry, "fast"))


def prompt_name(chunk: int) -> str:
    return f"{chunk} rows a step"


def compiled(defines: Mapping[str, int], arch: str, cache: Path | None) -> str:
    k = nvrtc.build(defines, arch, cache).kernel("amk_run")
    return f"{k.registers} registers, {k.spill_store_bytes} bytes spilled"


def prepare(
    model: str, batches: Sequence[int], facts: Any, cache: Path | None, trace: bool, prompt: bool
) -> dict[tuple[str, int], str]:
    """Compile everything that will run, as many builds at once as there are cores; what the compiler says of each."""
    out: dict[tuple[str, int], str] = {}
    tracers = (False, True) if trace else (False,)
    # Processes of their own, without this one's CUDA context.
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        running = {}
        for batch in batches:
            dims = schedule_dims(model, batch, facts.arch, facts.sms, facts.smem_bytes)
            for way in WAYS:
                if batch < way.least:
                    continue
                try:
                    plans = [way.plan(dims, facts.arch, facts.smem_bytes, tracer) for tracer in tracers]
                except ProgramError as e:
                    out[way.name, batch] = f"not here: {e}"
                    continue
                running[way.name, batch] = [pool.submit(compiled, {**p.defines, **way.macros}, facts.arch, cache) for p in plans]
        for chunk in CHUNKS if prompt else ():
            dims = prompt_dims(model, chunk, facts)
            plans = [plan_build(dims, facts.arch, facts.smem_bytes, trace=tracer) for tracer in tracers]
            running[prompt_name(chunk), 0] = [pool.submit(compiled, p.defines, facts.arch, cache) for p in plans]
        for key, jobs in running.items():
            out[key] = jobs[0].result()
            for job in jobs[1:]:
                job.result()
    return out


def give_past(memory: Any, s: Schedule, position: int) -> None:
    """Keys and values of the first sequence below ``position``, the same in every program; where they lie depends on the batch."""
    rng = np.random.default_rng(5)
    for b in s.buffers:
        if b.kind is Kind.KV:
            past = rng.uniform(-1, 1, (position, b.cols)).astype(ml_dtypes.bfloat16)
            pool, offset = memory.place(memory.index(b.name))
            pool.upload(past.view(np.uint8), offset)


def answers(vm: Any, position: int) -> tuple[Any, Any]:
    """Tokens and last logits of a short launch from token 5 of every sequence."""
    give_past(vm.memory, vm.schedule, position)
    vm.buffer("token")[:] = 5
    vm.buffer("done")[:] = 0
    logits = vm.buffer("logits")
    vm.launch(CHECKED_STEPS, vm.variables(position, CHECKED_STEPS))
    vm.wait()
    return vm.buffer("out")[:CHECKED_STEPS].copy(), logits.copy()


def show_trace(vm: Any, position: int, steps: int = 4, tokens: int | None = None) -> None:
    """Where the time of a launch of a traced program went (:func:`trace`); the program is closed."""
    axis = trace(vm, position, steps, tokens)
    print(tracing.table(axis), tracing.hand_offs(axis), sep="\n", flush=True)
    vm.close()


def prompts(model: str, tokens: int, device: Any, cache: Path | None, trace: bool, said: Mapping[tuple[str, int], str],
            shared: dict[str, Any]) -> int:  # fmt: skip
    """Prints a table of milliseconds of a prompt, launch by launch of TOKENS of them; how many ways gave other keys and values."""
    last, failed, rows = GRAPH_SHAPES[model].n_layers - 1, 0, []
    first: list[bytes] | None = None
    places = range(0, tokens, TOKENS)
    ids = np.random.default_rng(6).integers(0, GRAPH_SHAPES[model].vocab_size, tokens)  # equal ones would have equal values
    for chunk in CHUNKS:
        try:
            vm = timed_vm(model, CONTEXT, device, cache, {}, shared=shared, chunk=chunk)
            steps, ms = TOKENS // chunk, []
            for place in places:
                vm.memory.write("prompt", np.resize(ids[place : place + TOKENS], vm.buffer("prompt").shape))
                ms.append(float(np.median(vm.time_launches(steps, [place, TOKENS], 4, refresh=False)[1:])) * 1e3)
            got = [bits(vm.memory.read(f"L{last}.{kind}")[:tokens]) for kind in "kv"]
            first = first or got
            failed += got != first
            totals = [sum(ms[: n // TOKENS]) for n in (128, 512, 1024) if n <= tokens]
            rows.append((prompt_name(chunk), totals))
            verdict = "same keys and values" if got == first else "OTHER keys or values"
            each, kernel = " ".join(f"{t:.2f}" for t in ms), said[prompt_name(chunk), 0]
            print(f"prompt {prompt_name(chunk):34s} {each} ms a launch; {kernel}; {verdict}", flush=True)
            vm.close()
            if trace:
                vm = timed_vm(model, CONTEXT, device, cache, {}, shared=shared, chunk=chunk, trace=True)
                show_trace(vm, places[-1], steps, TOKENS)
        except Exception as e:
            print(f"FAIL prompt {prompt_name(chunk)} {type(e).__name__}: {e}", flush=True)
            failed += 1
    print("| ms a prompt | " + " | ".join(f"{n} ids" for n in (128, 512, 1024) if n <= tokens) + " |")
    for name, totals in rows:
        print(f"| {name} | {' | '.join(f'{t:.2f}' for t in totals)} |")
    return failed


def table(batches: Sequence[int], us: Mapping[tuple[str, int], float]) -> str:
    """Markdown: a way a row, a batch a column, the ratio to the first batch of the first way behind the time."""
    base = us.get((WAYS[0].name, batches[0]))
    out = ["| us a step | " + " | ".join(f"batch {b}" for b in batches) + " |", "| --- " * (len(batches) + 1) + "|"]
    for way in WAYS:
        cells = []
        for b in batches:
            t = us.get((way.name, b))
            cells.append("" if t is None else f"{t:.1f}" + (f" ({t / base:.2f})" if base else ""))
        out.append(f"| {way.name} | {' | '.join(cells)} |")
    return "\n".join(out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--batches", default="1,2,4,8,16")
    parser.add_argument("--position", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=1024, help=f"ids of a prompt, a multiple of {TOKENS}; 0: no prompt")
    parser.add_argument("--trace", action="store_true", help="where the time of a step goes, for every way")
    parser.add_argument("--cache", type=Path, default=None)
    args = parser.parse_args(argv)
    from amk_core.vm.driver import Device

    batches = [int(b) for b in args.batches.split(",")]
    device = Device()
    print(device.facts, flush=True)
    said = prepare(args.model, batches, device.facts, args.cache, args.trace, args.prompt > 0)
    us: dict[tuple[str, int], float] = {}
    failed, shared = 0, dict[str, Any]()
    alone: tuple[Any, Any] | None = None
    for batch in batches:
        first: tuple[Any, Any] | None = None
        for way in WAYS:
            if batch < way.least:
                continue
            label = f"batch {batch:2d} {way.name:36s}"
            if said[way.name, batch].startswith("not here"):
                print(f"{label} {said[way.name, batch]}", flush=True)
                continue
            make: dict[str, Any] = {
                "batch": batch, "shared": shared, "marked": way.marked, "flight": way.flight, "macros": way.macros,
            }  # fmt: skip
            try:
                vm = timed_vm(args.model, CONTEXT, device, args.cache, {}, **make)
                got = answers(vm, args.position)
                words = []
                if first is not None:
                    same = all(bits(a) == bits(b) for a, b in zip(got, first, strict=True))
                    words.append("same bits as the first way" if same else "OTHER BITS than the first way")
                    failed += not same
                if alone is not None:
                    same = bits(got[0][:, 0]) == bits(alone[0][:, 0]) and bits(got[1][0]) == bits(alone[1][0])
                    words.append("sequence 0 as alone" if same else "sequence 0 DIFFERS from alone")
                    failed += not same
                first = first or got
                if batch == 1:
                    alone = got
                seconds = vm.time_launches(STEPS, vm.variables(args.position, STEPS), LAUNCHES + 2)[2:]
                samples = np.array(seconds) / STEPS * 1e6
                us[way.name, batch] = float(np.median(samples))
                spread = f"{samples.min():.1f} to {samples.max():.1f}"
                print(
                    f"{label} {us[way.name, batch]:7.1f} us a step ({spread}), {said[way.name, batch]}; {', '.join(words)}",
                    flush=True,
                )
                vm.close()
                if args.trace:
                    vm = timed_vm(args.model, CONTEXT, device, args.cache, {}, trace=True, **make)
                    show_trace(vm, args.position)
            except Exception as e:
                print(f"FAIL {label} {type(e).__name__}: {e}", flush=True)
                failed += 1
    if args.prompt:
        failed += prompts(args.model, args.prompt, device, args.cache, args.trace, said, shared)
    print(table(batches, us))
    print(f"{args.model} at position {args.position}, random weights; {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
