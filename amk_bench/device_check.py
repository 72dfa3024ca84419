"""Checks and timings of the CUDA VM on a machine with a card, without a checkpoint: seeded random weights, labelled so.

``python -m amk_bench.device_check expect FILE`` runs the cases on the CPU VM and on the float64 reference and writes what they
give; ``verify FILE`` runs them on the card and compares (exact: bit for bit; fast: against float64, and equal bits over schedules);
``time`` prints microseconds a token of the four public shapes.  ``expect`` and ``verify`` may run on different machines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench import instruments
from amk_bench.device_cases import CASES, Array, Case, bits, make_cuda, relative, run_cpu, run_cuda, run_reference
from amk_bench.device_timing import POSITIONS, Timing, measure, report, timed_vm, trace, traced
from amk_bench.results import write_atomically
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import ops
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import tracing


def expect(path: str, only: str) -> int:
    """Write the CPU VM's results of every case (and, for fast ones, float64 logits for the CPU VM's tokens)."""
    out: dict[str, Array] = {}
    for case in CASES:
        if only not in case.name:
            continue
        t = time.time()
        cpu = run_cpu(case)
        for k, v in cpu.items():
            out[f"{case.name}/{k}"] = v
        if case.mode == "fast":
            ref = run_reference(case, cpu)
            for k in ("logits", "out"):
                if k in ref:
                    out[f"{case.name}/f64.{k}"] = ref[k]
            print(case.name, "CPU fast against float64:", relative(cpu["logits"], ref["logits"]), end=" ")
        print(case.name, f"{time.time() - t:.1f} s", flush=True)
    np.savez_compressed(path, **out)  # type: ignore[arg-type]
    return 0


def verify(path: str, only: str, cache: Any, spin_timeout_s: float) -> int:
    """Run every case on the card and compare with the file; returns the number of failures."""
    from amk_core.vm.driver import Device

    want = np.load(path)
    device = Device()
    print(device.facts)
    bad = 0
    for case in CASES:
        if only not in case.name:
            continue
        first: dict[str, Array] | None = None
        for queues, config in case.variants:
            t = time.time()
            try:
                got = run_cuda(case, queues, config, device, cache, spin_timeout_s)
            except Exception as e:
                print(f"FAIL {case.name} {queues} {dict(config)}: {type(e).__name__}: {e}", flush=True)
                bad += 1
                continue
            words = []
            for k, v in got.items():
                if case.mode == "exact":
                    same = bits(v) == bits(want[f"{case.name}/{k}"])
                    ref = want[f"{case.name}/{k}"]
                    words.append(f"{k} {'equal' if same else f'DIFFERENT ({(v != ref).sum()} of {v.size})'}")
                    bad += not same
                else:
                    if first is not None:
                        same = bits(v) == bits(first[k])
                        words.append(f"{k} {'same bits' if same else f'OTHER BITS ({(v != first[k]).sum()} of {v.size})'}")
                        bad += not same
                    if k == "logits":
                        ref = want[f"{case.name}/f64.logits"]
                        if "out" in got and not np.array_equal(got["out"], want[f"{case.name}/out"]):
                            ref = run_reference(case, got)["logits"]  # a near tie went the other way: follow the card's tokens
                            words.append("a token differs from the CPU's")
                        error, cpu = relative(v, ref), relative(want[f"{case.name}/logits"], want[f"{case.name}/f64.logits"])
                        ok = bool(np.isfinite(v).all()) and error < 1.5 * cpu + 1e-6
                        words.append(f"f64 error {error:.2e} (CPU fast {cpu:.2e}){'' if ok else ' TOO LARGE'}")
                        bad += not ok
            first = first or got
            print(f"{case.name} Q{queues} {dict(config)}: {', '.join(words)} [{time.time() - t:.1f} s]", flush=True)
    print("FAILURES:", bad)
    return bad


def robust(cache: Any) -> int:
    """Stopping, faults, aborts, repeats and leaks; returns the number of failures."""
    from amk_core.vm import LaunchAborted, VmFault
    from amk_core.vm.driver import Device, call

    device = Device()
    bad = 0

    def check(name: str, ok: bool, detail: Any = "") -> None:
        nonlocal bad
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name} {detail}", flush=True)

    def faults(name: str, program: Any, kind: str, also: Callable[[Any], bool] = lambda fault: True, **bound: float) -> None:
        """Four steps of the program have to end in a fault of this kind, of which ``also`` holds."""
        t = time.time()
        program.launch(4, [0, 4], **bound)
        try:
            program.wait()
            check(name, False)
        except VmFault as e:
            check(name, e.fault.kind == kind and also(e.fault), f"{e} after {time.time() - t:.2f} s")

    case = Case("robust", "small", "fast", steps=40, tokens=(40,))
    s = case.schedule(132, {}, device.facts.arch)
    vm = make_cuda(case, s, s, device, cache)
    vm.launch(40, case.variables)
    vm.wait()
    free = vm.buffer("out")[:40, 0].copy()
    same = True
    for _ in range(100):  # P6
        case.fill(s, vm.buffer)
        vm.launch(40, case.variables)
        vm.wait()
        same = same and np.array_equal(vm.buffer("out")[:40, 0], free)
    check("100 repeats give equal tokens", same)
    case.fill(s, vm.buffer)
    vm.buffer("stop_ids")[0, 3] = free[9]
    vm.launch(40, case.variables)
    result = vm.wait()
    first = int(np.flatnonzero(free == free[9])[0])
    check("a stop id ends the launch", result.stopped and result.steps == first + 1 and int(vm.buffer("done")[0, 0]) == 1, result)
    case.fill(s, vm.buffer)
    vm.launch(7, [0, 7])
    vm.wait()
    vm.launch(33, [7, 33])
    vm.wait()
    check("launches continue where the last one stopped", np.array_equal(vm.buffer("out")[:33, 0], free[7:]))
    case.fill(s, vm.buffer)
    vm.buffer("token")[0, 0] = 600
    faults("a token outside the vocabulary is a fault", vm, "token-range", lambda fault: fault.has == 600)
    hang = case.schedule(132, {"handoff": "counter"}, device.facts.arch)
    w = int(np.flatnonzero(hang.columns.wait_e == 0)[40])
    hang.columns.wait_t[w] = 10_000
    stuck = make_cuda(case, hang, hang, device, cache)
    faults("a deadlock ends in a fault report", stuck, "spin-timeout", lambda fault: fault.has < fault.needs, spin_timeout_s=0.5)
    silent = case.schedule(132, {"handoff": "tagged"}, device.facts.arch)
    first_wait = int(silent.columns.wait_off[int(np.flatnonzero(silent.columns.task_op == ops.CODES["embed"])[0])])
    silent.columns.wait_e[first_wait] = 0  # the first task of the step waits for its last one
    mute = make_cuda(case, silent, silent, device, cache)
    faults("a value that never comes ends in a fault report", mute, "spin-timeout", spin_timeout_s=0.5)
    stuck.launch(4, [0, 4], spin_timeout_s=20.0)
    time.sleep(0.05)
    stuck.abort()
    t = time.time()
    try:
        stuck.wait()
        check("an abort ends a launch", False)
    except LaunchAborted as e:
        check("an abort ends a launch", time.time() - t < 1.0, e)
    case.fill(s, vm.buffer)
    vm.launch(40, case.variables)
    seen = vm.poll(5, 1.0)
    part = vm.buffer("out")[:5, 0].copy()
    vm.wait()
    check("tokens can be read while the launch runs", seen >= 5 and np.array_equal(part, free[:5]), f"{seen} steps")
    free_before = call("cuMemGetInfo")[0]
    for _ in range(2000):
        vm.enqueue(2, [0, 2])
    vm._running = True
    vm.wait()
    check("2000 launches leave the memory as it was", call("cuMemGetInfo")[0] == free_before)
    print("FAILURES:", bad)
    return bad


def timings(args: argparse.Namespace) -> int:
    """Print the table of microseconds a token."""
    from amk_core.vm.driver import Device

    device = Device()
    print(device.facts)
    rows: list[Timing] = []
    traces: list[dict[str, Any]] = []
    failed = 0
    read = instruments.for_cuda(device).bandwidth()
    assert read is not None
    for model in args.models.split(","):
        shared: dict[str, Any] = {}
        for text in args.config.split(";"):
            config = json.loads(text or "{}")
            flight = config.pop("flight", None)
            layers = config.pop("layers", 0)
            context = config.pop("context", 2176)
            batch = config.pop("batch", 1)
            positions = config.pop("positions", ())
            weights = config.pop("weights", "")
            make = partial(timed_vm, model, min(context, GRAPH_SHAPES[model].context), device, args.cache, config, shared=shared,
                           batch=batch, flight=tuple(flight) if flight else None, layers=layers, weights=weights)  # fmt: skip
            try:
                vm = make()
                about = {**config, "weights": weights} if weights else config
                for position in positions or POSITIONS[model]:
                    t = measure(model, position, vm, read.bytes_per_s, batch=batch, config=about)
                    print(f"{model:16s} {text:40s} position {position:5d}: {t.us:8.1f} us a token (spread {t.spread * 100:.1f} %), "
                          f"floor {t.floor_us:.0f}; random weights", flush=True)  # fmt: skip
                    rows.append(t)
                if args.trace:
                    tracer = make(trace=True)
                    for position in positions or POSITIONS[model]:
                        axis = trace(tracer, position)
                        print(f"{model} {text} at position {position}, microseconds")
                        print(tracing.table(axis), tracing.hand_offs(axis), sep="\n", flush=True)
                        traces.append(traced(model, position, batch, about, tracer.tape.size, axis))
            except Exception as e:
                print(f"FAIL {model} {text}: {type(e).__name__}: {e}", flush=True)
                failed = 1
    if args.out is not None:
        write_atomically(args.out, report(rows, device.facts, args.commit, read, traces))
        print(f"samples and fingerprint: {args.out}")
    return failed


def precompile(args: argparse.Namespace) -> int:
    """Fill the cubin cache for sm_90 without a card: every case and the four shapes."""
    from amk_core.vm import nvrtc
    from amk_core.vm.plan import Dims, plan_build

    schedules = [c.schedule(8, {}, "sm_90") for c in CASES if args.only in c.name]
    schedules += [
        lower(GRAPH_SHAPES[m], None, Target.named("h200"), Geometry(context=256), "fast") for m in args.models.split(",") if m
    ]
    for s in schedules:
        for tracer in (False, True) if s.meta["model"] in POSITIONS else (False,):
            cubin = nvrtc.build(plan_build(Dims.of(s), "sm_90", 232_448, trace=tracer).defines, "sm_90", args.cache)
            k = cubin.kernel("amk_run")
            print(
                s.meta["model"],
                s.meta["purpose"],
                s.meta["mode"],
                f"registers {k.registers} spill {k.spill_store_bytes}",
                cubin.cached,
                flush=True,
            )
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("expect", "verify", "robust", "time", "precompile"))
    parser.add_argument("file", nargs="?", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--models", default=",".join(POSITIONS))
    parser.add_argument(
        "--config", default="{}", help="ScheduleConfig as JSON, several separated by ';'; and weights: formats of quantised ones"
    )
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--spin", type=float, default=2.0, help="spin bound in seconds (raise it under a sanitizer)")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the samples of `time` and their fingerprint")
    parser.add_argument("--commit", default="", help="commit that is measured, where the tree is not a checkout")
    args = parser.parse_args(argv)
    if args.what == "expect":
        return expect(args.file, args.only)
    if args.what == "precompile":
        return precompile(args)
    if args.what == "robust":
        return min(robust(args.cache), 100)
    if args.what == "verify":
        return min(verify(args.file, args.only, args.cache, args.spin), 100)
    return timings(args)


if __name__ == "__main__":
    sys.exit(main())
