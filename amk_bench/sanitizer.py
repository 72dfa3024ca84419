"""The CUDA VM under compute-sanitizer: memcheck, racecheck, synccheck and initcheck of a two-layer SmolLM2 for a few tokens.

``python -m amk_bench.sanitizer --out DIR`` runs every tool and writes a log each; ``python -m amk_bench.sanitizer target`` is what
they run: random weights, decode steps with tagged hand-offs in one block of attention and in two, with counters for two sequences,
a prompt and its logits, on memory that is filled only where the contract says that it holds data, and with spin bounds scaled to
the tools' slowness.

racecheck does not take a wait for the phase of an mbarrier for an order between warps, so it would report every byte of the ring's
slots.  It runs on the build with AMK_CHECKED, in which the task warps read weights where they lie, in global memory, and steering
words are atomic: nothing may be left.  For the order of slots see tests/vm/test_ring.py.

initcheck sees the loads of a thread, not what a bulk copy reads, so it runs twice: on that same build it sees every byte of the
weight tape being read, on the build that users run (``initcheck-raw``) everything else.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "synccheck", "initcheck", "initcheck-raw", "racecheck")
CHECKED_BUILD = ("initcheck", "racecheck")  # tools that run on the build for them; the others on the one that users run
SPIN_S = 60.0  # a task under a tool takes up to a thousand times as long
BARRIERS = 16  # of a CTA; found out by itself, the tool reports far more hazards than it has room for
LIMIT_S = 150


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tool said.  ``clean``: nothing that has to be repaired; ``words``: one line about it."""

    tool: str
    clean: bool
    words: str


def judge(tool: str, log: str, rc: int) -> Verdict:
    """A tool's log and exit code as a verdict."""
    if "target done" not in log:
        why = next((ln for ln in log.splitlines() if "not supported" in ln or "Error" in ln), f"exit code {rc}")
        return Verdict(tool, False, f"the target did not come to its end: {why.strip('= ')}")
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", log)
    told = summary[-1] if summary else "no summary"
    return Verdict(tool, bool(re.match(r"0 (errors|hazards)", told)), told)


def run_tool(tool: str, out: Path, mode: str, weights: str = "") -> Verdict:
    """One tool over the target."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return Verdict(tool, False, "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    # Device frames alone: unwinding the interpreter's stack for each of many reports takes minutes.
    command = [sanitizer, "--tool", tool.removesuffix("-raw"), "--print-limit", "200", "--show-backtrace", "device"]
    if tool == "racecheck":
        command += ["--racecheck-report", "analysis", "--num-cuda-barriers", str(BARRIERS)]
    command += [sys.executable, "-m", "amk_bench.sanitizer", "target", "--mode", mode]
    command += ["--weights", weights] if weights else []
    command += ["--checked"] if tool in CHECKED_BUILD else []
    kind = f"{mode}-{weights.partition(',')[0]}" if weights else mode
    start, path = time.time(), out / f"{tool}-{kind}.txt"
    with path.open("w", encoding="utf-8") as f:  # what there is when the time is over is there to be read
        try:
            rc = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, timeout=LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            f.write(f"\nstopped after {LIMIT_S} s\n")
            rc = 124
    log = path.read_text(encoding="utf-8", errors="replace")
    v = judge(tool, log, rc)
    return Verdict(f"{tool} ({kind}, {time.time() - start:.0f} s)", v.clean, v.words)


# -- what the tools run
def target(mode: str, checked: bool, weights: str = "") -> None:
    """Decode, prompt and logits of a two-layer SmolLM2, a few steps each, on memory that nobody has filled beforehand."""
    import numpy as np

    from amk_bench.device_cases import Case
    from amk_core.vm.driver import Device

    device = Device()
    cases: Sequence[Case] = (
        Case("decode", "smol-two", mode, p0=(130,), tokens=(3,), steps=3, context=256),  # type: ignore[arg-type]
        Case("decode-long", "smol-two", mode, p0=(300,), tokens=(3,), steps=3, context=512),  # type: ignore[arg-type]
        Case("decode-two", "smol-two", mode, batch=2, p0=(130, 7), tokens=(3, 2), steps=3, context=256),  # type: ignore[arg-type]
        Case("prefill", "smol-two", mode, "prefill", chunk=16, p0=(120,), tokens=(20,), steps=2, context=256),  # type: ignore[arg-type]
        Case("logits", "smol-two", mode, "logits", chunk=5, p0=(3,), tokens=(9,), steps=2, context=256),  # type: ignore[arg-type]
    )
    for case in (replace(c, weights=weights) for c in cases):
        vm = unfilled(case, device, checked)
        vm.enqueue(case.steps, case.variables, SPIN_S)
        vm._running = True
        result = vm.wait(refresh=False)
        made = vm.tokens(case.steps).ravel().tolist() if case.purpose == "decode" else ""
        print(f"{mode} {case.name}: {result.steps} steps {made}", flush=True)
        assert result.steps == case.steps
        if case.purpose == "logits":
            memory, offset = vm.memory.place(vm.memory.index("logits"))
            rows = np.empty((4, vm.schedule.buffers[vm.memory.index("logits")].cols), np.float32)
            memory.download(rows, offset)  # no more than what the steps wrote: initcheck looks at copies too
            assert np.isfinite(rows).all()
    print("target done", flush=True)


def unfilled(case: Any, device: Any, checked: bool) -> Any:
    """A program whose pools are fresh memory: only inputs and the KV rows before p0 are written."""
    import ml_dtypes
    import numpy as np

    from amk_bench.device_cases import device_tape
    from amk_core.schedule import tables
    from amk_core.schedule.ir import Kind
    from amk_core.vm.cuda import CudaVM

    s = case.schedule(device.facts.sms, {}, device.facts.arch)
    tiled, m = case.tiled(device.facts.sms, {}, device.facts.arch), case.random_model()
    tape, where = device_tape(case, m, s, tiled)
    pools = {p.id: device.memory(s.pool_bytes(p.id)) for p in s.pools if p.id != "weights" and s.pool_bytes(p.id)}
    vm = CudaVM.__new__(CudaVM)
    vm._start(
        tables.pack(s), where, tape, m.bound(s), pools, device, macros={"AMK_CHECKED": int(checked)},
        options=("--generate-line-info",),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    kind: Any = np.float32 if case.mode == "exact" else ml_dtypes.bfloat16
    for b in s.buffers:
        if b.kind is Kind.KV:
            memory, offset = vm.memory.place(vm.memory.index(b.name))
            for seq, p0 in enumerate(case.p0):
                row = rng.uniform(-1, 1, (p0, b.cols)).astype(kind).view(np.uint8)
                memory.upload(row, offset + seq * int(s.meta["kv_rows"]) * b.bytes // b.rows)
        elif b.kind in (Kind.INPUT, Kind.TOKEN):
            fixed = np.full((b.rows, b.cols), -1 if b.name == "stop_ids" else 0)
            vm.memory.write(b.name, np.asarray(rng.integers(0, 4000, fixed.shape)) if b.name in ("token", "prompt") else fixed)
    return vm


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "target"), default="run")
    parser.add_argument("--mode", choices=("fast", "exact"), default="fast")
    parser.add_argument("--checked", action="store_true", help="the build for race detectors")
    parser.add_argument(
        "--weights",
        default="",
        metavar="FORMATS",
        help="quantised weights, as int4-g128,head=int8; default: as the mode stores them",
    )
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)} (default: all)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="tools that run side by side (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("sanitizer"), help="folder for the logs")
    args = parser.parse_args(argv)
    if args.what == "target":
        target(args.mode, args.checked, args.weights)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    with ThreadPoolExecutor(args.at_once) as pool:
        for v in pool.map(lambda tool: run_tool(tool, args.out, args.mode, args.weights), args.tools.split(",")):
            bad += not v.clean
            print(f"{'ok  ' if v.clean else 'FAIL'} {v.tool}: {v.words}", flush=True)
    return min(bad, 100)


if __name__ == "__main__":
    sys.exit(main())
