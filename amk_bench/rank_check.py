"""Programs for ranks on a card: whether clusters run, small programs against float64 and the CPU VM, real weights, times, a trace.

    python -m amk_bench.rank_check [small] [weights] [time] [trace] [--not-cooperative]     (default: small weights time)

From the smallest step to the whole: how many clusters the card places; ranks of one CTA, which hand on parts alone; one rank of
several CTAs, which has mailboxes alone; both, decoding, then a prompt and a scored text; then the shape of SmolLM2, and with its
weights the cells of ranks of P4, P5 and P6 in ``suites/parity``.  Everything that touches the card runs in
a process of its own with a time limit, programs are compiled before, without the card, and no part begins after ``BUDGET_S``.

What fails is run once more by a build that leaves its mailboxes: the report names the first phase whose values differ, with the
values seen and expected, or who waits for what, and where every queue stood.  A launch that loses the context is repeated under
compute-sanitizer.  The last line says how many parts failed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np

from amk_bench import rank_dump
from amk_bench.device_cases import GRAPHS, Array, Case, bits, device_tape, relative, run_cpu, run_reference
from amk_bench.device_timing import timed_vm
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import tables
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry, Purpose
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.schedule.ops import MAX_PARTS
from amk_core.targets import Target

LAUNCHES = 20  # of each program, which must give equal bits
MODEL, POSITIONS, STEPS, CONTEXT = "smollm2-135m", (16, 128, 1024, 2000), 32, 2048
PROMPT, ROWS = 128, 16  # ids of a timed prompt, and how many of them a step takes without ranks
FIRST = 3  # cases that have a process each; the others share one until one fails
BUDGET_S, BOUND_S = 285, 1.0  # seconds of a whole run; the longest wait inside a launch
PATIENCE_S = {"fit": 60, "small": 90, "weights": 150, "time": 75, "trace": 75, "explain": 60}
LOOSE = "--not-cooperative"
GATES = "ranks and not checkpoint"  # of the suites' cells those that need no second pass in float64
MEMCHECK = ["compute-sanitizer", "--tool", "memcheck", "--launch-timeout", "30"]


@dataclass(frozen=True)
class RankCase(Case):
    """A case whose schedule is one of ranks."""

    ranks: Ranks = field(default_factory=lambda: Ranks(1, 1))

    def schedule(self, queues: int, config: Mapping[str, Any], arch: str) -> Schedule:
        target = Target.cpu(self.ranks.queues) if arch == "cpu" else Target(arch, arch, self.ranks.queues, 232_448)
        return lower_ranks(GRAPHS[self.model], self.ranks, target, Geometry(self.purpose, context=self.context), self.mode)

    @property
    def on_cpu(self) -> RankCase:
        """The same with one queue a rank, whose bits are the same: a thread a rank."""
        return dataclasses.replace(self, ranks=Ranks(self.ranks.count, 1))

    @property
    def plain(self) -> Case:
        """The same without ranks, whose reference is the same in float64."""
        return Case(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Case)})

    @property
    def numbers(self) -> tuple[str, Purpose, int, tuple[int, ...], int]:
        """What decides bits: not how many CTAs a rank has."""
        return self.model, self.purpose, self.ranks.count, self.p0, self.steps

    def distance(self, results: Mapping[str, Array]) -> float:
        """How far from float64 what is judged of them is."""
        found = [r[self.judged] for r in (results, run_reference(self.plain, results))]
        mine, wide = (a.view(ml_dtypes.bfloat16) if a.dtype == np.uint16 else a for a in found)
        return relative(mine, wide)

    @property
    def judged(self) -> str:
        """What is compared with float64: logits, of a prompt the keys of the last layer."""
        return "k" if self.purpose == "prefill" else "logits"


def case(model: str, count: int, cluster: int, first: int = 3, steps: int = 8, purpose: Purpose = "decode") -> RankCase:
    return RankCase(
        f"{model} {count}x{cluster} from {first} {purpose}", model, "fast", purpose, p0=(first,), tokens=(steps,), steps=steps,
        context=first + 64, ranks=Ranks(count, cluster),
    )  # fmt: skip


def cases(most: int = 15) -> tuple[RankCase, ...]:
    """The cases, from the smallest step on, with at most ``most`` clusters of 8."""
    return (
        case("small", 1, 1), case("small", 1, 2), case("small", 2, 1), case("small", 3, 2), case("small", 2, 8),
        case("small", 2, 4), case("small", 3, 2, purpose="prefill"), case("small", 3, 2, purpose="logits"),
        case("small", 5, 3, 300), case("smol", 3, 8), case("smol", most, 8), case("smol", most, 4),
        case("smol", most, 8, 127), case("smol", most, 8, 700), case("wide", most, 8, 40, 4),
    )  # fmt: skip


CASES = cases()


def named(name: str) -> RankCase:
    """The case of a name, as ``small 3x2 from 3 decode``."""
    found = re.fullmatch(r"(\w+) (\d+)x(\d+) from (\d+) (decode|prefill|logits)", name)
    if found is None:
        raise ValueError(f"{name!r} is no case; one is: {CASES[0].name}")
    count, cluster, first = (int(x) for x in found.groups()[1:4])
    return case(found[1], count, cluster, first, 4 if found[1] == "wide" else 8, cast(Purpose, found[5]))


def make_rank_vm(c: RankCase, device: Any, cache: Any = None, **options: Any) -> Any:
    """The program of a case on the card, with its inputs, from a schedule that no validator has seen."""
    from amk_core.vm.rank_vm import RankVM

    s, m = c.schedule(0, {}, device.facts.arch), c.random_model()
    tape, where = device_tape(c, m, s, c.tiled(0, {}, device.facts.arch))
    vm = RankVM.__new__(RankVM)
    vm._start(tables.pack(s), where, tape, m.bound(s), {}, device, cache=cache, **options)
    c.fill(s, vm.buffer)
    return vm


def run_ranks(c: RankCase, vm: Any) -> dict[str, Array]:
    """One launch of a case from its first state."""
    c.fill(vm.schedule, vm.buffer)
    vm.launch(c.steps, c.variables, poison=True, spin_timeout_s=BOUND_S)
    vm.wait()
    return c.results(vm.schedule, vm.buffer)


def check(c: RankCase, device: Any, seen: dict[Any, Any] | None = None) -> str:
    """What is wrong with a case on the card; empty: nothing.

    Args:
        seen: bits by :attr:`RankCase.numbers`, of other sizes of clusters; grows.
    """
    vm = make_rank_vm(c, device)
    got = run_ranks(c, vm)
    cpu = run_cpu(c.on_cpu)
    mine, theirs = (c.distance(x) for x in (got, cpu))
    say = f"{c.judged} {mine:.1e} from float64, the CPU VM {theirs:.1e}"
    if not mine <= 1.5 * theirs:
        return f"less accurate than 1.5 times the CPU VM: {say}"
    mine_bits = {k: bits(v) for k, v in got.items()}
    for i in range(LAUNCHES):
        again = run_ranks(c, vm)
        if different := [k for k, v in again.items() if bits(v) != mine_bits[k]]:
            return f"other bits of {', '.join(different)} in launch {i + 2}; {say}"
    if seen is not None and seen.setdefault(c.numbers, mine_bits) != mine_bits:
        return f"other bits than with clusters of another size; {say}"
    print(f"     {c.name}: {say}, {LAUNCHES} launches equal", flush=True)
    return ""


# -- what failed
def explain(c: RankCase, device: Any) -> None:
    """Say what a failing case leaves behind: who waits for what, or the first values that differ."""
    from amk_core.vm import VmFault

    for steps in dict.fromkeys((1, c.steps)):
        vm = make_rank_vm(c, device, macros={rank_dump.MACRO: 1})
        s, build = vm.schedule, vm.build.defines
        n = 4 * rank_dump.HEAD_WORDS + build["AMK_RANK_MAIL_BYTES"] + 8 * build["AMK_RANK_BARRIERS"]
        left = device.memory(n * s.n_queues)
        left.fill(0, stream=vm.stream)
        vm._launch["anchors"] = left.address
        c.fill(s, vm.buffer)
        vm.launch(steps, c.variables, poison=True, spin_timeout_s=BOUND_S)
        raw = np.zeros((s.n_queues, n), np.uint8)
        try:
            vm.wait()
        except VmFault as e:
            left.download(raw)
            print(f"     fault in a launch of {steps} steps: {e}\n     {e.fault}", flush=True)
            heads = raw[:, : 4 * rank_dump.HEAD_WORDS].copy().view(np.uint32)
            barriers = raw[:, -8 * build["AMK_RANK_BARRIERS"] :].copy().view(np.uint64)
            for line in rank_dump.waits_of(s, e.fault, heads):
                print(f"     {line}")
            first = e.fault.queue // c.ranks.cluster * c.ranks.cluster
            for q in range(first, first + c.ranks.cluster):
                print(f"     barriers of queue {q}: {' '.join(f'{x:016x}' for x in barriers[q][:24].tolist())}", flush=True)
            return
        left.download(raw)
        tokens = (vm.tokens(steps)[:, 0] if c.purpose == "decode" else vm.buffer("prompt")[0, :steps]).tolist()
        mails = np.ascontiguousarray(raw[:, 4 * rank_dump.HEAD_WORDS : -8 * build["AMK_RANK_BARRIERS"]])
        found = [line for line in rank_dump.differences(c, s, vm.memory.read, tokens, mails) if line]
        print(f"     after {steps} steps (tokens {tokens}): {len(found)} groups of values differ, the first of them:", flush=True)
        for line in found[:12]:
            print(f"     {line}", flush=True)
        if found:
            return


# -- the shape of SmolLM2
def fit(device: Any) -> dict[int, int]:
    """How many clusters of each size of a real build the card places at once."""
    from amk_core.vm import nvrtc
    from amk_core.vm.driver import call, cluster_launch
    from amk_core.vm.rank_program import plan_ranks, rank_dims

    s = lower_ranks(GRAPH_SHAPES[MODEL], Ranks(15, 8), Target.named("h200"), Geometry(context=CONTEXT), "fast")
    plan = plan_ranks(s, rank_dims(s), device.facts.arch, device.facts.smem_bytes)
    cubin = nvrtc.build(plan.defines, device.facts.arch, entry=nvrtc.RANK_ENTRY)
    module = device.module(cubin.data)
    function = device.function(module, "amk_run", plan.shared_bytes)
    device.allow_large_clusters(function)
    shape = (plan.threads, plan.shared_bytes)
    configs = {n: cluster_launch(n, n, *shape, cooperative=False) for n in (1, 2, 4, 8, 16)}
    return {n: int(call("cuOccupancyMaxActiveClusters", function, c)) for n, c in configs.items()}


def times(device: Any, ranks: Ranks | None, trace: bool) -> None:
    """Print microseconds a token of a public shape with random weights; where the time of a step goes, if ``trace``."""
    from amk_core.vm import tracing

    name = f"{ranks.count}x{ranks.cluster}" if ranks else "without ranks"
    if trace:
        vm = timed_vm(MODEL, CONTEXT, device, None, {}, ranks=ranks, trace=True)
        vm.time_launches(STEPS, vm.variables(128, STEPS), 2)
        axis = tracing.timeline(vm.schedule, *vm.trace_records())
        print(f"{name}, position 128\n{tracing.table(axis)}\n{tracing.hand_offs(axis)}", flush=True)
        return

    def line(vm: Any, what: str, steps: int, position: int, tokens: int) -> None:
        us = np.array(vm.time_launches(steps, vm.variables(position, tokens), 9)[2:]) / tokens * 1e6
        spread = f"{np.median(us):7.1f} us a token, {us.min():.1f} to {us.max():.1f}"
        print(f"     {MODEL} {name} {what}: {spread}", flush=True)

    vm = timed_vm(MODEL, CONTEXT, device, None, {}, ranks=ranks)
    for position in POSITIONS:
        n = min(STEPS, CONTEXT - position)
        line(vm, f"position {position:5d}", n, position, n)
    chunk = 1 if ranks else ROWS
    vm = timed_vm(MODEL, CONTEXT, device, None, {}, ranks=ranks, chunk=chunk)
    line(vm, f"prompt of {PROMPT} ids", PROMPT // chunk, 0, PROMPT)


# -- processes
def only(names: Sequence[str], device: Any) -> int:
    """Parts in this process, a line each; cases by name, or ``time``, ``trace`` or ``explain`` of one, as in ``time 15x8``."""
    failed, seen = 0, dict[Any, Any]()
    for name in names:
        what, _, of = name.partition(" ")
        if what == "fit":
            print(f"fit {json.dumps(fit(device))}", flush=True)
        elif what == "explain":
            explain(named(of), device)
        elif what in ("time", "trace"):
            times(device, None if of == "without" else Ranks.parse(of), what == "trace")
        else:
            try:
                wrong = check(named(name), device, seen)
            except Exception as e:  # a fault too: the next case may tell more
                wrong = f"{type(e).__name__}: {e}"
            print(f"{'FAIL' if wrong else 'ok':4s} {name} {wrong}", flush=True)
            failed += bool(wrong)
            if wrong:
                break
    return min(failed, 1)


def apart(patience: float, *args: str, under: Sequence[str] = ()) -> tuple[str, str]:
    """Run this module in a process of its own, so that who loses the context loses that part alone: its failure, and its output."""
    command = [*under, sys.executable, "-m", "amk_bench.rank_check", *args]
    try:
        done = subprocess.run(command, timeout=patience, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired as e:
        text = e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else e.stdout or ""
        return f"not done after {patience:.0f} s", text
    tail = "\n".join(done.stderr.strip().splitlines()[-4:]) if done.returncode else ""
    return (f"exit code {done.returncode}" if done.returncode else ""), done.stdout + (f"{tail}\n" if tail else "")


def compiled(name: str) -> str:
    """Put a build into the cache; no card is touched.  ``name``: a case, or ``decode``, ``prefill`` or ``trace`` of a shape."""
    from amk_core.schedule.config import ScheduleConfig
    from amk_core.schedule.lower import lower
    from amk_core.vm import nvrtc
    from amk_core.vm.plan import Dims, plan_build
    from amk_core.vm.rank_program import plan_ranks, rank_dims

    what, _, of = name.partition(" ")
    target = Target.named("h200")
    purpose: Purpose = "prefill" if what == "prefill" else "decode"
    if of == "without":
        geometry = Geometry(purpose, 1, ROWS if what == "prefill" else 1, CONTEXT)
        s = lower(GRAPH_SHAPES[MODEL], ScheduleConfig(), target, geometry, "fast")
        nvrtc.build(plan_build(Dims.of(s), target.arch, target.smem_bytes).defines, target.arch)
        return name
    if what in ("trace", "decode", "prefill"):
        s = lower_ranks(GRAPH_SHAPES[MODEL], Ranks.parse(of), target, Geometry(purpose, context=CONTEXT), "fast")
    else:
        s = named(name).schedule(0, {}, target.arch)
    plan = plan_ranks(s, rank_dims(s), target.arch, target.smem_bytes, trace=what == "trace")
    nvrtc.build(plan.defines, target.arch, entry=nvrtc.RANK_ENTRY)
    return name


class Run:
    """One run: its clock, what failed, and whether launches are cooperative."""

    def __init__(self, loose: bool) -> None:
        self.start, self.failed, self.done, self.explained = time.monotonic(), list[str](), 0, 0
        self.loose = [LOOSE] if loose else []

    def spent(self) -> float:
        return time.monotonic() - self.start

    def part(self, patience: float, *args: str) -> tuple[str, str]:
        """A part apart, in what is left of the time; its failure, and its output, which is printed."""
        left = min(patience, BUDGET_S + 15 - self.spent())
        if left < 10:
            return "left out, the time is over", ""
        wrong, text = apart(left, "only", *args, *self.loose)
        print(text, end="", flush=True)
        return wrong, text

    def note(self, name: str, wrong: str) -> None:
        self.done += 1
        self.failed += [name] if wrong else []
        print(f"{'FAIL' if wrong else 'ok':4s} {name} {wrong} (at {self.spent():.0f} s)", flush=True)

    def fit(self) -> tuple[int, int]:
        """Clusters of 8 and of 16 that the card places, at most as many as there may be ranks; an H200's where it does not say."""
        wrong, text = self.part(PATIENCE_S["fit"], "fit")
        self.note("fit", wrong)
        found: dict[str, int] = next((json.loads(line[4:]) for line in text.splitlines() if line.startswith("fit ")), {})
        return min(found.get("8", 15), MAX_PARTS), min(found.get("16", 7), MAX_PARTS)

    def weights(self, ranks: str) -> None:
        """The cells of ranks with SmolLM2's weights."""
        suites, left = Path(__file__).resolve().parents[1] / "suites" / "parity", BUDGET_S - self.spent()
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", "--tb=short"]
        command += [str(suites / "test_p4_accuracy.py"), str(suites / "test_p5_bits.py"), "-k", GATES]
        command += ["--arch=sm_90", "--quick", f"--ranks={ranks}"]
        if left < 30:
            self.note("weights", "left out, the time is over")
            return
        try:
            done = subprocess.run(command, timeout=min(PATIENCE_S["weights"], left), check=False, capture_output=True, text=True)
            wrong, text = f"exit code {done.returncode}" if done.returncode else "", done.stdout
        except subprocess.TimeoutExpired as e:
            wrong, text = "not done in time", e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else ""
        print(text[-6000:], flush=True)
        self.note("weights", wrong)

    def small(self, names: Sequence[str]) -> None:
        """Cases; those behind the first ones share a process until one of them fails."""
        if not self.loose and self.part(PATIENCE_S["small"], names[1])[0]:
            wrong, _ = apart(PATIENCE_S["small"], "only", names[1], LOOSE)
            self.loose = [] if wrong else [LOOSE]
            print(
                f"     the first cluster failed, {'also' if wrong else 'but not'} when its launch was not cooperative", flush=True
            )
        queue = [[name] for name in names[:FIRST]] + [list(names[FIRST:])] * (len(names) > FIRST)
        while queue:
            batch = queue.pop(0)
            wrong, text = self.part(PATIENCE_S["small"], *batch)
            held = {line[5:].strip() for line in text.splitlines() if line.startswith("ok   ")}
            for name in batch:
                if name in held:
                    self.note(name, "")
            rest = [name for name in batch if name not in held]
            if rest:
                self.note(rest[0], wrong or "it did not end")
                if self.explained < 2 and not wrong.startswith("left out"):
                    self.explained += 1
                    self.tell(rest[0])
                queue[:0] = [[name] for name in rest[1:]]

    def tell(self, name: str) -> None:
        """Why a case failed."""
        print(f"     -- {name} once more, by a build that leaves its mailboxes", flush=True)
        wrong, _ = self.part(PATIENCE_S["explain"], f"explain {name}")
        if wrong and shutil.which(MEMCHECK[0]):
            print(f"     -- {wrong}; under {MEMCHECK[0]}:", flush=True)
            _, text = apart(PATIENCE_S["explain"], "only", name, *self.loose, under=MEMCHECK)
            print("\n".join(text.splitlines()[:60]), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    loose = LOOSE in args
    args = [a for a in args if a != LOOSE] or ["small", "weights", "time"]
    if args[0] == "only":
        from amk_core.vm.driver import Device
        from amk_core.vm.rank_vm import RankVM

        RankVM.cooperative = not loose
        return only(args[1:], Device())
    run = Run(loose)
    used = {"time": ("without", "15x8", "7x16"), "weights": ("15x8", "15x4")}
    shapes = dict.fromkeys(shape for part, of in used.items() if part in args for shape in of)
    real = [f"{purpose} {shape}" for shape in shapes for purpose in ("decode", "prefill")]
    builds = [*(c.name for c in CASES if "small" in args), *real, *(["trace 15x8"] if "trace" in args else [])]
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        n = len(list(pool.map(compiled, builds)))
    print(f"     {n} programs are compiled (at {run.spent():.0f} s)", flush=True)
    eight, sixteen = run.fit()
    if "small" in args and eight:
        run.small([c.name for c in cases(min(eight, 15))])
    if "weights" in args and eight:
        run.weights(f"{min(eight, 15)}x8")
    there = [f"{k}x{size}" for k, size in ((eight, 8), (sixteen, 16)) if k > 1]
    names = [f"time {s}" for s in ["without", *there]] if "time" in args else []
    for name in names + [f"trace {s}" for s in there[:1] if "trace" in args]:
        run.note(name, run.part(PATIENCE_S[name.partition(" ")[0]], name)[0])
    print(
        f"{len(run.failed)} of {run.done} failed{': ' + ', '.join(run.failed) if run.failed else ''} "
        f"({run.spent():.0f} s{', no launch was cooperative' if run.loose else ''})"
    )
    return 1 if run.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
