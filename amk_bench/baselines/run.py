"""Measures AMK against the torch baselines on this machine's card, with random weights of a public shape, labelled so.

``python -m amk_bench.baselines.run --model llama-3.2-1b --out FILE`` builds weights on the card, compiles, holds every engine's
logits to HuggingFace in float32, times pairs, and writes one result file.  Several models may be prepared side by side (``--turn
FOLDER --of N``): they compile at the same time and are timed one after the other, when all have compiled.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench import fingerprint
from amk_bench.baselines import registry
from amk_bench.baselines.hf import HfEager
from amk_bench.baselines.reference import Reference, check_logits
from amk_bench.clock import Clock
from amk_bench.conditions import Meter, NoMeter
from amk_bench.floor import Bandwidth, step_bytes
from amk_bench.measure import Cell, Plan, compare, noise
from amk_bench.ours import Ours
from amk_bench.results import NoteRecord, Record, SkipRecord, document, write_atomically
from amk_bench.stats import noise_floor
from amk_core.graph import GRAPH_SHAPES
from amk_core.machine import probe

POSITIONS = (16, 128, 1024, 2000)
BASELINES = ("fused-compile", "fused-graph", "hf-compile", "hf-eager")
ROWS = 2176  # of every static cache, or as many more (a multiple of 128) as the last position needs
TOKENS, BLOCKS = 16, 8
EAGER_TOKENS, EAGER_BLOCKS = 4, 6  # ten to fifty times slower than a step of ours: few tell enough
WAIT_S = 400.0  # for the other models to compile


@contextmanager
def turn(folder: Path | None, of: int, name: str) -> Iterator[None]:
    """Waits until ``of`` processes have come so far, then runs alone among them."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"ready.{name}").touch()
    end = time.monotonic() + WAIT_S
    while len(list(folder.glob("ready.*"))) < of and time.monotonic() < end:
        time.sleep(0.2)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Bench:
    """One model on one card: weights, reference, engines, instruments."""

    def __init__(self, model: str, batch: int, seed: int, names: list[str], rows: int, say: Callable[[str], None]) -> None:
        import torch

        import amk_core
        from amk_bench.baselines.weights import hf_model, random_weights

        self.graph, self.batch, self.seed, self.say = GRAPH_SHAPES[model], batch, seed, say
        self.records: list[Record] = []
        self.device = torch.cuda.get_device_name()
        self.rows = min(rows, self.graph.context)
        weights = random_weights(self.graph, seed, "cuda", torch.bfloat16)
        self.origin = weights.origin
        live = hf_model(weights)
        say(f"weights on the card, {weights.bytes_a_step() / 1e9:.2f} GB a step")
        self.low = HfEager(live, os.cpu_count() or 1, "bf16", "cuda")
        self.reference = Reference(HfEager(live, os.cpu_count() or 1, "fp32", "cuda"), self.low)
        shared: dict[str, Any] = {"weights": weights, "hf bf16 cuda": live}
        setting = registry.Setting(model, live, "cuda", "bf16", self.rows, batch, os.cpu_count() or 1, shared)
        self.engines: dict[str, Any] = {}
        for name in names:
            try:
                engine = registry.make(name, setting)
                engine.prepare([1] * 3, batch, 4)  # compiles, captures
                engine.decode([1] * batch, 3)
            except Exception as error:
                self._broke(f"{model} against {name}", name, error)
                continue
            self.engines[name] = engine
            told = ", ".join(f"{k}: {v}" for k, v in registry.describe(engine).items())
            self.records.append(NoteRecord(f"{model}: {engine.name}: {told}"))
            say(f"{name} ready")
        self.ours: Ours | None = None
        try:
            loaded = amk_core.load(live, mode="fast", backend="cuda", batch=batch, context=self.rows)
            self.ours = Ours(loaded, "AMK CUDA VM")
            self.ours.prepare([1] * 3, batch, 4)
            self.ours.decode([1] * batch, 3)
            say("ours ready")
        except Exception as error:
            self._broke(f"{model}: AMK CUDA VM", "ours", error)

    def _broke(self, cell: str, name: str, error: Exception) -> None:
        """An empty cell, because of an error in the engine ``name``."""
        said = f"{type(error).__name__}: {error}"
        self.records.append(SkipRecord(cell, said[:500], "", broken=True))
        self.say(f"{name}: {said}")

    def clocks(self) -> tuple[Clock, Clock]:
        """Ours works on its own stream, torch on its current one."""
        from amk_bench.cuda_clock import CudaClock, DriverEvents, TorchEvents

        assert self.ours is not None
        return CudaClock(DriverEvents(self.ours.model._card.device, self.ours.stream)), CudaClock(TorchEvents())

    def run(self, positions: list[int], plan: Plan, deadline: float) -> None:
        """Every position against every engine; cells that would begin after ``deadline`` stay empty, with the reason."""
        rng = np.random.default_rng(self.seed)
        text = rng.integers(0, self.graph.vocab_size, self.rows).tolist()
        vocabulary = tuple(sorted(set(text)))
        floor = 0.0
        for position in positions:
            size = step_bytes(self.graph, 2, position, self.batch, 2)
            cell = Cell(self.device, self.graph.name, "fast", self.batch, tuple(text[:position]), vocabulary, size, size)
            forced, wanted, limits = self.reference.enter(cell, self.seed)
            here = dataclasses.replace(plan, slack=limits.slack)
            engines = {name: e for name, e in self.engines.items() if self._parity(e, cell, forced, wanted, limits)}
            if self.ours is None or not self._parity(self.ours, cell, forced, wanted, limits):
                continue
            clock, torch_clock = self.clocks()
            if not floor:
                floor = noise_floor(noise(self.ours, cell, here, clock))
                self.records.append(NoteRecord(f"{self.graph.name}: noise floor {100 * floor:.2f} %", {"noise_floor": floor}))
            for name, engine in engines.items():
                if time.monotonic() > deadline:
                    run = f"python -m amk_bench.baselines.run --model {self.graph.name} --positions {position} --baselines {name}"
                    left_out = f"{self.graph.name} at {position} against {name}"
                    self.records.append(SkipRecord(left_out, "no time was left for this cell", f"{run} --out FILE"))
                    continue
                size_of = (EAGER_TOKENS, EAGER_BLOCKS) if name == "hf-eager" else (here.tokens, here.blocks)
                start = time.monotonic()
                record, _ = compare(
                    self.ours, engine, cell, dataclasses.replace(here, tokens=size_of[0], blocks=size_of[1]), clock, floor,
                    self.reference.score, baseline_clock=torch_clock,
                )  # fmt: skip
                self.records.append(record)
                took = (
                    f"{record.ours_us:.0f} us, {record.baseline_us:.0f} us"
                    if record.ours_us and record.baseline_us
                    else record.reason
                )
                self.say(f"position {position}, {name}: {record.verdict} {took} ({time.monotonic() - start:.1f} s)")

    def _parity(self, engine: Any, cell: Cell, forced: Any, wanted: Any, limits: Any) -> bool:
        if not hasattr(engine, "trace"):
            return True
        try:
            record = check_logits(engine, cell, forced, wanted, limits)
        except Exception as error:
            self._broke(f"P2 of {engine.name} at {cell.position}", engine.name, error)
            return False
        self.records.append(record)
        self.say(f"{engine.name} at {cell.position}: P2 {record.measured} {record.required} ({record.detail})")
        return record.passed


def instruments() -> tuple[Meter, Bandwidth | None]:
    """NVML and the card's own read bandwidth, where they can be had."""
    meter: Meter = NoMeter()
    bandwidth = None
    try:
        from amk_bench.nvml import NvmlMeter

        meter = NvmlMeter()
    except Exception as error:
        print(f"no NVML: {error}", flush=True)
    try:
        from amk_bench.bandwidth import probe_cuda
        from amk_core.vm.driver import Device

        bandwidth = probe_cuda(Device())
    except Exception as error:
        print(f"no bandwidth: {error}", flush=True)
    return meter, bandwidth


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=tuple(GRAPH_SHAPES))
    parser.add_argument("--positions", default=",".join(map(str, POSITIONS)))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--baselines", default=",".join(BASELINES))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--turn", type=Path, default=None, help="folder in which the models that run side by side meet")
    parser.add_argument("--of", type=int, default=1, help="how many there are")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no cell later than this")
    parser.add_argument("--commit", default="", help="commit that is measured, where the tree is not a checkout")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {args.model}: {text}", flush=True)

    asked = [int(p) for p in args.positions.split(",")]
    rows = max(ROWS, -(-(max(asked) + args.tokens + 1) // 128) * 128)
    bench = Bench(args.model, args.batch, args.seed, [n for n in args.baselines.split(",") if n], rows, say)
    positions = [p for p in asked if p + args.tokens < bench.rows]
    with turn(args.turn, args.of, args.model):
        say("its turn")
        meter, bandwidth = instruments()
        try:
            bench.run(positions, Plan(args.tokens, args.blocks, args.seed, meter=meter, bandwidth=bandwidth), start + args.seconds)
        finally:
            machine = probe()
            arch = machine.gpus[0].arch if machine.gpus else "cpu"
            given = sys.argv[1:] if argv is None else argv
            command = ["python", "-m", "amk_bench.baselines.run", *fingerprint.without_places(given)]
            stamp = fingerprint.take(machine, arch, bench.device, command, {"all": args.seed}, Path.cwd(), args.commit)
            options = {**vars(args), "turn": "", "out": args.out.name, "weights": bench.origin}
            write_atomically(args.out, document(bench.records, stamp.to_json(), options), replace=True)
            say(f"{len(bench.records)} records: {args.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
