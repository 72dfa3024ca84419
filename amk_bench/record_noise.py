"""Records what a device's times look like when nothing changes: thousands of calls of one thing, in order; and its instruments.

``python -m amk_bench.record_noise OUT [--gpu]`` writes a JSON file that tests of the judge replay: such recordings are in
tests/bench/data/noise.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
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
        sample, _ = clock.measure(functools.partial(work, number))
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


def card(commit: str = "", calls: int = 200) -> dict[str, Any]:
    """What the instruments of the first card say: bandwidth, settings, state, and what clocks read around work of no length."""
    from amk_bench import instruments
    from amk_bench.cuda_clock import CudaClock, DriverEvents, TorchEvents
    from amk_bench.fingerprint import take
    from amk_bench.spin import STEPS, Spin
    from amk_core.machine import probe
    from amk_core.vm.driver import Device

    device = Device()
    stream = device.stream()
    tools = instruments.for_cuda(device)
    read = [tools.probe_once() for _ in range(3)] if tools.probe_once else []
    clocks = {"driver": CudaClock(DriverEvents(device, stream))}
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            cuda: Any = torch.cuda
            clocks["torch"] = CudaClock(TorchEvents(cuda.ExternalStream(int(stream))))
    around = {}
    for name, clock in clocks.items():
        for what, work in (("nothing", lambda _: None), ("spin", Spin(device, stream, STEPS))):
            for number in range(20):
                clock.measure(functools.partial(work, number))
            taken = [clock.measure(functools.partial(work, number))[0] for number in range(calls)]
            around[f"{name}, {what}"] = {
                "device_us": [round(1e6 * s.device_s, 3) for s in taken],
                "host_us": [round(1e6 * s.host_s, 3) for s in taken],
                "tail_us": [round(1e6 * s.tail_s, 3) for s in taken],
            }
    facts = device.facts
    stamp = take(probe(), facts.arch, facts.name, ["python", "-m", "amk_bench.record_noise", "--gpu"], {}, Path.cwd(), commit)
    return {
        "fingerprint": stamp.to_json(),
        "bandwidth": [dataclasses.asdict(r) for r in read],
        "state": dataclasses.asdict(tools.meter.read()),
        "clocks": around,
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amk_bench.record_noise", description="record the noise of this machine")
    parser.add_argument("out", type=Path, metavar="OUT", help="JSON file to write")
    parser.add_argument("--gpu", action="store_true", help="the first card too")
    parser.add_argument("--commit", default="", help="for the fingerprint, where the tree is no repository")
    args = parser.parse_args(words)
    what = "times of single calls in the order they were taken, microseconds; each is a thing against itself"
    doc = {"what": what, "recordings": recordings(args.gpu), **({"card": card(args.commit)} if args.gpu else {})}
    write_atomically(args.out, doc, replace=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
