"""Records what a device's times look like when nothing changes: thousands of calls of one thing, in order.

``python -m amk_bench.record_noise OUT [--gpu]`` writes a JSON file that tests of the judge replay: such recordings are in
tests/bench/data/noise.json.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amk_bench.clock import Clock, CpuClock
from amk_bench.results import write_atomically

CALLS = 4000


def record(name: str, task: str, machine: str, clock: Clock, work: Callable[[int], object], calls: int = CALLS) -> dict[str, Any]:
    """``calls`` times of ``work``, microseconds of the device, after a tenth as many untimed ones."""
    for number in range(calls // 10):
        work(number)
    times: list[float] = []
    for number in range(calls):
        sample, _ = clock.measure(lambda number=number: work(number))  # type: ignore[misc]
        times.append(round(1e6 * sample.device_s, 2))
    return {"name": name, "task": task, "clock": clock.name, "machine": machine, "us": times}


def recordings(gpu: bool, calls: int = CALLS) -> list[dict[str, Any]]:
    """Of the processor, and of the first card where ``gpu``."""
    from amk_bench.reference_task import BYTES, ReferenceTask
    from amk_core.machine import probe

    here = probe()
    load = f", load average {os.getloadavg()[0]:.1f}"
    cpu = f"{here.cpu}, {here.cores} cores{load}"
    out = [record("cpu", f"the reference task (sha256 of {BYTES} bytes)", cpu, CpuClock(), ReferenceTask(), calls)]
    if gpu:
        from amk_bench.cuda_clock import CudaClock, DriverEvents
        from amk_bench.spin import STEPS, Spin
        from amk_core.vm.driver import Device

        device = Device()
        stream = device.stream()
        clock = CudaClock(DriverEvents(device, stream))
        task = f"one block an SM of {STEPS} dependent additions"
        out.append(record("gpu", task, f"{device.facts.name}{load}", clock, Spin(device, stream), calls))
    return out


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amk_bench.record_noise", description="record the noise of this machine")
    parser.add_argument("out", type=Path, metavar="OUT", help="JSON file to write")
    parser.add_argument("--gpu", action="store_true", help="the first card too")
    args = parser.parse_args(words)
    what = "times of single calls in the order they were taken, microseconds; each is a thing against itself"
    write_atomically(args.out, {"what": what, "recordings": recordings(args.gpu)}, replace=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
