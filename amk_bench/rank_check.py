"""Programs for ranks on a card: small ones against the float64 reference and the CPU VM, then the time of SmolLM2's shape.

    python -m amk_bench.rank_check [small] [time] [trace] [--not-cooperative]     (default: small time)

From the smallest step to the whole: ranks of one CTA hand on parts alone, one rank of several CTAs has mailboxes alone.  Prints a
line a program as it goes; the last line says how many failed.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amk_bench.device_cases import GRAPHS, Array, Case, bits, device_tape, relative, run_cpu, run_reference
from amk_bench.device_timing import timed_vm
from amk_core.schedule import tables
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import Geometry
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.targets import Target

LAUNCHES = 20  # of each program, which must give equal bits
MODEL, POSITIONS, STEPS = "smollm2-135m", (16, 128, 1024), 32
SHAPES = ("without", "15x8", "14x8", "7x16")  # of what is timed
PATIENCE_S = 150
LOOSE = "--not-cooperative"


@dataclass(frozen=True)
class RankCase(Case):
    """A case whose schedule is one of ranks."""

    ranks: Ranks = field(default_factory=lambda: Ranks(1, 1))

    def schedule(self, queues: int, config: Mapping[str, Any], arch: str) -> Schedule:
        target = Target.cpu(self.ranks.queues) if arch == "cpu" else Target(arch, arch, self.ranks.queues, 232_448)
        return lower_ranks(GRAPHS[self.model], self.ranks, target, Geometry(context=self.context), self.mode)

    @property
    def on_cpu(self) -> RankCase:
        """The same with one queue a rank, whose bits are the same: a thread a rank."""
        return dataclasses.replace(self, ranks=Ranks(self.ranks.count, 1))

    @property
    def plain(self) -> Case:
        """The same without ranks, whose reference is the same in float64."""
        return Case(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Case)})


def case(model: str, count: int, cluster: int, first: int = 3, steps: int = 8) -> RankCase:
    return RankCase(
        f"{model} {count}x{cluster} from {first}", model, "fast", p0=(first,), tokens=(steps,), steps=steps, context=first + 64,
        ranks=Ranks(count, cluster),
    )  # fmt: skip


CASES = (
    case("small", 1, 1), case("small", 2, 1), case("small", 1, 2), case("small", 3, 2), case("small", 2, 8),
    case("small", 5, 3, 300), case("smol", 3, 8), case("smol", 15, 8), case("smol", 15, 8, 127), case("smol", 15, 8, 700),
    case("wide", 16, 8, 40, 4),
)  # fmt: skip


def make_rank_vm(c: RankCase, device: Any, cache: Any = None) -> Any:
    """The program of a case on the card, with its inputs, from a schedule that no validator has seen."""
    from amk_core.vm.rank_vm import RankVM

    s, m = c.schedule(0, {}, device.facts.arch), c.random_model()
    tape, where = device_tape(c, m, s, s)
    vm = RankVM.__new__(RankVM)
    vm._start(tables.pack(s), where, tape, m.bound(s), {}, device, cache=cache)
    c.fill(s, vm.buffer)
    return vm


def run_ranks(c: RankCase, vm: Any) -> dict[str, Array]:
    """One launch of a case from its first state."""
    c.fill(vm.schedule, vm.buffer)
    vm.launch(c.steps, c.variables, poison=True)
    vm.wait()
    return c.results(vm.schedule, vm.buffer)


def check(c: RankCase, device: Any) -> str:
    """What is wrong with a case on the card; empty: nothing."""
    vm = make_rank_vm(c, device)
    got = run_ranks(c, vm)
    cpu = run_cpu(c.on_cpu)
    mine, theirs = (relative(x["logits"], run_reference(c.plain, x)["logits"]) for x in (got, cpu))
    say = f"logits {mine:.1e} from float64, the CPU VM {theirs:.1e}"
    for _ in range(LAUNCHES):
        again = run_ranks(c, vm)
        if {k: bits(v) for k, v in again.items()} != {k: bits(v) for k, v in got.items()}:
            return f"other bits in another launch; {say}"
    print(f"     {c.name}: {say}, {LAUNCHES} launches equal", flush=True)
    return "" if mine <= 1.5 * theirs else f"less accurate than 1.5 times the CPU VM: {say}"


def apart(*args: str) -> str:
    """Run a part in a process of its own, so that what loses the context loses that part alone; its failure, if any."""
    try:
        done = subprocess.run([sys.executable, "-m", "amk_bench.rank_check", *args], timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {PATIENCE_S} s"
    return f"exit code {done.returncode}" if done.returncode else ""


def times(device: Any, ranks: Ranks | None, trace: bool) -> None:
    """Print microseconds a token of a public shape with random weights; where the time of a step goes, if ``trace``."""
    from amk_core.vm import tracing

    name = f"{ranks.count}x{ranks.cluster}" if ranks else "without ranks"
    vm = timed_vm(MODEL, 2048, device, None, {}, ranks=ranks)
    for position in POSITIONS:
        us = np.array(vm.time_launches(STEPS, vm.variables(position, STEPS), 9)[2:]) / STEPS * 1e6
        spread = f"{np.median(us):7.1f} us a token, {us.min():.1f} to {us.max():.1f}"
        print(f"     {MODEL} {name} position {position:5d}: {spread}", flush=True)
    if trace and ranks:
        vm = timed_vm(MODEL, 2048, device, None, {}, ranks=ranks, trace=True)
        vm.time_launches(STEPS, vm.variables(128, STEPS), 2)
        print(tracing.table(tracing.timeline(vm.schedule, *vm.trace_records())), flush=True)


def one(name: str, device: Any) -> int:
    """A part in this process: a case by name, or ``time`` or ``trace`` of ranks, as in ``time 15x8``."""
    found = [c for c in CASES if c.name == name]
    if found:
        wrong = check(found[0], device)
        print(wrong, end="\n" if wrong else "", flush=True)
        return int(bool(wrong))
    what, _, shape = name.partition(" ")
    times(device, None if shape == SHAPES[0] else Ranks.parse(shape), what == "trace")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    loose = [LOOSE] if LOOSE in args else []
    args = [a for a in args if a != LOOSE] or ["small", "time"]
    if "only" in args:
        from amk_core.vm.driver import Device
        from amk_core.vm.rank_vm import RankVM

        RankVM.cooperative = not loose
        return one(args[1], Device())
    names = [c.name for c in CASES] if "small" in args else []
    for what in ("time", "trace"):
        names += [f"{what} {shape}" for shape in SHAPES[what == "trace" :]] if what in args else []
    if apart("only", CASES[2].name, *loose) and not loose:
        loose = [LOOSE]
        print("     the first launch of clusters failed; the others are not cooperative", flush=True)
    failed = 0
    for name in names:
        wrong = apart("only", name, *loose)
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok':4s} {name} {wrong}", flush=True)
    print(f"{failed} of {len(names)} failed{', no launch was cooperative' if loose else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
