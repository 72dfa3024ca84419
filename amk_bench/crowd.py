"""Whether a launch gives the same bits on a card that is shared, and stays inside its memory: several processes, each one program.

``python -m amk_bench.crowd`` starts one process a case, all on the same card, whose time the driver deals out among them; waits
then last long and warps fall apart as they never do on a quiet card.  Each process poisons and fills its memory, launches, and
compares everything that the program leaves with what its first launch left, and the bytes behind its pools with what they were.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from amk_bench.device_cases import Case, bits, device_tape
from amk_core.schedule.ir import Kind

GUARD, GUARD_BYTE = 1 << 16, 0xA5  # behind every pool
# One row with tagged hand-offs, and several; a full vocabulary, whose last tiles end where a pool does; heads of 64 and of 128.
CASES: tuple[Case, ...] = (
    Case("one", "smol-two", "fast", p0=(300,), tokens=(24,), steps=24, context=512),
    Case("two", "smol-two", "fast", batch=2, p0=(130, 7), tokens=(24, 20), steps=24, context=256),
    Case("sixteen", "smol-two", "fast", batch=16, p0=tuple(range(16)), tokens=(12,) * 16, steps=12, context=256),
    Case("scored", "smol-two", "fast", "logits", chunk=16, p0=(120,), tokens=(60,), steps=4, context=256),
    Case("sixty-four", "smol-two", "fast", "prefill", batch=16, chunk=4, p0=tuple(range(16)), tokens=(16,) * 16, steps=4,
         context=256),
    Case("big", "big", "fast", p0=(300,), tokens=(24,), steps=24, context=512),
    Case("big-scored", "big", "fast", "logits", chunk=16, p0=(300,), tokens=(40,), steps=3, context=512),
    Case("exact", "smol-two", "exact", batch=2, p0=(130, 7), tokens=(8, 6), steps=8, context=256),
)  # fmt: skip


def guarded(case: Case, device: Any) -> Any:
    """The case's program, with GUARD bytes behind each of its pools."""
    from amk_core.schedule import tables
    from amk_core.vm.cuda import CudaVM

    s, tiled = (make(device.facts.sms, {}, device.facts.arch) for make in (case.schedule, case.tiled))
    m = case.random_model()
    tape, where = device_tape(case, m, s, tiled)
    pools = {p.id: device.memory(s.pool_bytes(p.id) + GUARD) for p in s.pools if p.id != "weights" and s.pool_bytes(p.id)}
    for name, memory in pools.items():
        memory.fill(GUARD_BYTE, GUARD, s.pool_bytes(name))
    device.synchronize()
    vm = CudaVM.__new__(CudaVM)
    vm._start(tables.pack(s), where, tape, m.bound(s), pools, device)
    return vm


def results(case: Case, vm: Any, device: Any) -> dict[str, bytes]:
    """One launch from the case's inputs: what it leaves, and the guards, by name."""
    for b in vm.schedule.buffers:  # what is left out shows, instead of what the last launch put there
        if b.kind is Kind.KV:
            vm.buffer(b.name).view(np.uint8)[...] = 0xFF
        elif b.kind is Kind.OUTPUT:
            memory, offset = vm.memory.place(vm.memory.index(b.name))
            memory.fill(0xFF, b.bytes, offset)
    device.synchronize()
    case.fill(vm.schedule, vm.buffer)
    vm.launch(case.steps, case.variables, poison=True, spin_timeout_s=30.0)
    vm.wait()
    out = {k: bits(v) for k, v in case.results(vm.schedule, vm.buffer).items()}
    for name, memory in vm.memory.pools.items():
        behind = np.empty(GUARD, np.uint8)
        memory.download(behind, vm.schedule.pool_bytes(name))
        out[f"behind {name}"] = bits(behind)
    return out


def repeat(case: Case, seconds: float) -> int:
    """Launches until the time is over; prints how many there were and what differed, returns the number that did."""
    from amk_core.vm.driver import Device

    device = Device()
    vm = guarded(case, device)
    want = results(case, vm, device)
    # Pools of tagged elements are cleared before a launch, guard and all.
    guards = {f"behind {k}": bytes([vm.unwritten if k in vm.memory.tagged else GUARD_BYTE]) * GUARD for k in vm.memory.pools}
    stray = [k for k, v in guards.items() if want[k] != v]
    end, n, differ = time.monotonic() + seconds, 1, dict.fromkeys(want, 0)
    while time.monotonic() < end:
        got, n = results(case, vm, device), n + 1
        for k, v in got.items():
            differ[k] += v != want[k]
    wrong = {k: d for k, d in differ.items() if d}
    print(f"{case.name}: {n} launches of {case.steps} steps, different: {wrong or 'none'}, changed at once: {stray or 'nothing'}")
    return len(wrong) + len(stray)


def crowd(cases: Sequence[Case], seconds: float) -> int:
    """All cases at once, a process each; returns the number of processes that failed or saw a difference."""
    command = [sys.executable, "-m", "amk_bench.crowd", "--seconds", str(seconds), "--case"]
    running = [subprocess.Popen([*command, c.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in cases]
    bad = 0
    for case, process in zip(cases, running, strict=True):
        said = process.communicate()[0].strip()
        bad += process.returncode != 0
        print(f"{'ok  ' if process.returncode == 0 else 'FAIL'} {said.splitlines()[-1] if said else case.name}", flush=True)
    return bad


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each process repeats its launch (default: 10)")
    parser.add_argument("--case", help="this case alone, in this process")
    args = parser.parse_args(argv)
    if args.case:
        return min(1, repeat(next(c for c in CASES if c.name == args.case), args.seconds))
    return min(crowd(CASES, args.seconds), 100)


if __name__ == "__main__":
    sys.exit(main())
