"""The loops of quantised products on a card: their bits against each other, their times, and the tests that concern them.

    python -m amk_bench.quant_check [bits] [time] [trace] [tests] [a8]     (default: all but a8)

Three minutes, guessed from the runs of 2026-11-30.  Both loops, row group by row group and in pairs, take the same weights, random
ones, so they have to give equal bits.  a8: integers of 8 bits on both sides, times beside activations of 21 bits by the number of
sequences, and the tests that concern them; three minutes, a guess.  A short table comes last.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from amk_bench.device_cases import QUANT_CASES, bits, run_cuda
from amk_bench.device_timing import timed_vm, trace
from amk_core.vm import tracing

LOOPS = {False: "one by one", True: "pairs"}  # AMK_PAIRS
MODELS, FORMATS = ("llama-3.2-1b", "llama-3.1-8b"), ("int8-g128", "int4-g128")
POSITION, STEPS, CONTEXT = 128, 32, 2176
SMALL = ("fast-small-int8-g32", "fast-small-int4-g32-min", "fast-smol-int", "fast-wide")  # of one sequence
PARTS, MORE_PARTS = ("bits", "time", "trace", "tests"), ("a8",)  # by default; when named
ACTIVATIONS, BATCHES = ("int8", "int8-a8"), (1, 4, 16)
PATIENCE_S = 150
TESTS = ("tests/vm/test_cuda_quant.py", "tests/vm/test_cuda_device.py")


@contextmanager
def chosen(loop: bool) -> Iterator[None]:
    """Programs that are made inside have this loop, whatever the plan prefers."""
    from amk_core.vm.cuda import CudaVM

    CudaVM.pairs = loop
    try:
        yield
    finally:
        CudaVM.pairs = True


def made(model: str, fmt: str, device: Any, loop: bool, **more: Any) -> Any:
    """A decode program of a public shape whose layers and head have this format, with this loop."""
    with chosen(loop):
        vm = timed_vm(model, CONTEXT, device, None, {}, weights=f"{fmt},head={fmt}", **more)
    if vm.build.defines["AMK_PAIRS"] != loop:
        raise RuntimeError(f"{device.facts.name} holds no {LOOPS[loop]} of {model}: the plan chose {vm.build.defines['AMK_PAIRS']}")
    return vm


def result(vm: Any) -> bytes:
    """Bits of the last logits and all tokens of a launch that starts anew."""
    vm.buffer("token")[:] = 5
    vm.launch(STEPS, vm.variables(POSITION, STEPS))
    vm.wait()
    return bits(vm.buffer("logits")) + bits(vm.buffer("out")[:STEPS])


def small(device: Any) -> list[str]:
    """What is wrong with the bits of the fast cases of one sequence; each loop against the first."""
    wrong = []
    for case in (c for c in QUANT_CASES if c.name.startswith(SMALL)):
        queues, config = case.variants[0]
        seen: list[dict[str, bytes]] = []
        for loop in LOOPS:
            with chosen(loop):
                got = run_cuda(case, min(queues, device.facts.sms), config, device)
            seen.append({k: bits(v) for k, v in got.items()})
        equal = [s == seen[0] for s in seen]
        print(f"{'ok  ' if all(equal) else 'FAIL'} {case.name}: bits of the loops equal {equal}", flush=True)
        wrong += [] if all(equal) else [case.name]
    return wrong


def times(device: Any) -> tuple[list[str], list[str]]:
    """(lines of the table, what is wrong)."""
    lines, wrong = [], []
    for model in MODELS:
        for fmt in FORMATS:
            keep: dict[str, Any] = {}
            cells, first = [], b""
            for loop, name in LOOPS.items():
                vm = made(model, fmt, device, loop, shared=keep)
                got = result(vm)
                first = first or got
                us = np.array(vm.time_launches(STEPS, vm.variables(POSITION, STEPS), 9)[2:]) / STEPS * 1e6
                same = "" if got == first else " OTHER BITS"
                cells.append(f"{name} {np.median(us):.0f}{same}")
                wrong += [f"{model} {fmt} {name}: other bits"] if same else []
                print(f"{model} {fmt} {cells[-1]}, {us.min():.1f} to {us.max():.1f}", flush=True)
                vm.close()
            lines.append(f"{model:13s} {fmt:9s} us at {POSITION}: {'; '.join(cells)}")
    return lines, wrong


def integers(device: Any) -> list[str]:
    """Lines of the table: times of a step with activations of 8 bits and of 21, by the number of sequences."""
    lines = []
    for fmt in ACTIVATIONS:
        keep: dict[str, Any] = {}
        cells = []
        for batch in BATCHES:
            vm = timed_vm(MODELS[0], CONTEXT, device, None, {}, batch=batch, weights=f"{fmt},head={fmt}", shared=keep)
            us = np.array(vm.time_launches(STEPS, vm.variables(POSITION, STEPS), 9)[2:]) / STEPS * 1e6
            vm.close()
            cells.append(f"{batch}: {np.median(us):.0f}")
            print(f"{MODELS[0]} {fmt}, batch {cells[-1]}, {us.min():.1f} to {us.max():.1f}", flush=True)
        lines.append(f"{MODELS[0]:13s} {fmt:9s} us a step at {POSITION}, by sequences: {'; '.join(cells)}")
    return lines


def traces(device: Any) -> None:
    """Where the time of a step of the smaller model goes, with each loop."""
    for fmt in FORMATS:
        keep: dict[str, Any] = {}
        for loop, name in LOOPS.items():
            vm = made(MODELS[0], fmt, device, loop, shared=keep, trace=True)
            axis = trace(vm, POSITION)
            print(f"{MODELS[0]} {fmt} {name}", tracing.table(axis), tracing.hand_offs(axis), sep="\n", flush=True)
            vm.close()


def tests(which: str) -> list[str]:
    """Run the tests of quantised weights of these names in a process of its own; what failed."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *TESTS, "-k", which]
    try:
        done = subprocess.run(command, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"the tests had not ended after {PATIENCE_S} s"]
    return [f"the tests: exit code {done.returncode}"] if done.returncode else []


def main(argv: Sequence[str] | None = None) -> int:
    parts = list(sys.argv[1:] if argv is None else argv) or list(PARTS)
    unknown = [p for p in parts if p not in PARTS + MORE_PARTS]
    if unknown:
        print(f"no part named {', '.join(unknown)}; known are {', '.join(PARTS + MORE_PARTS)}", file=sys.stderr)
        return 2
    from amk_core.vm.driver import Device

    start, device = time.monotonic(), Device()
    lines: list[str] = []
    wrong: list[str] = []
    if "bits" in parts:
        wrong += small(device)
    if "time" in parts:
        lines, more = times(device)
        wrong += more
    if "a8" in parts:
        lines += integers(device)
        wrong += tests("a8")
    if "trace" in parts:
        traces(device)
    if "tests" in parts:
        wrong += tests("(int4 or int8 or quantised or sequence) and not a8")
    print(f"{device.facts.name}, random weights, {time.monotonic() - start:.0f} s", *lines, sep="\n")
    print("wrong: " + "; ".join(wrong) if wrong else f"nothing wrong in {', '.join(parts)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
