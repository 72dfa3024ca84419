"""Measures AMK against the torch baselines on this machine's card, with random weights of a public shape, labelled so.

``python -m amk_bench.baselines.run --model llama-3.2-1b --out FILE`` builds weights on the card, compiles, holds every engine's
logits to HuggingFace in float32, times pairs, and writes one result file.  Several models may be prepared side by side (``--turn
FOLDER --of N``): they compile at the same time and are timed one after the other, when all have compiled.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench import arena as arenas
from amk_bench import fingerprint, instruments
from amk_bench.arena import Arena
from amk_bench.baselines import registry
from amk_bench.measure import Plan
from amk_bench.results import NoteRecord, Record, SkipRecord, document, write_atomically
from amk_core.graph import GRAPH_SHAPES
from amk_core.machine import probe

POSITIONS = (16, 128, 1024, 2000)
BASELINES = ("fused-compile", "fused-graph", "hf-compile", "hf-eager")
TOKENS, BLOCKS = 16, 8
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
    """The cells of one model: every position against every baseline, and the records they leave.

    ``make``: makes the arena; an error in it is the run's only record.
    """

    def __init__(self, model: str, make: Callable[[], Arena], names: Sequence[str], say: Callable[[str], None]) -> None:
        self.model, self.say = model, say
        self.records: list[Record] = []
        self.names: list[str] = []
        self.arena: Arena | None = None
        try:
            self.arena = make()
        except Exception as error:
            self._broke(f"{model}: AMK CUDA VM", "ours", error)
            return
        for name in names:
            try:
                engine = self.arena.rival(name)
            except Exception as error:
                self._broke(f"{model} against {name}", name, error)
                continue
            self.names.append(name)
            told = ", ".join(f"{k}: {v}" for k, v in registry.describe(engine).items())
            self.records.append(NoteRecord(f"{model}: {engine.name}: {told}"))
            say(f"{name} ready")

    def _broke(self, cell: str, name: str, error: Exception) -> None:
        """An empty cell, because of an error in the engine ``name``."""
        said = f"{type(error).__name__}: {error}"
        self.records.append(SkipRecord(cell, said[:500], "", broken=True))
        self.say(f"{name}: {said}")

    def run(self, positions: Sequence[int], plan: Plan, deadline: float) -> None:
        """Every position against every baseline; cells that would begin after ``deadline`` stay empty, with the reason."""
        if self.arena is None:
            return
        noted = False
        for position in positions:
            names = [name for name in self.names if self._parity(self.arena.engines[name], position)]
            if not self._parity(self.arena.ours, position):
                continue
            floor = self.arena.floor(position, plan)
            if not noted:
                self.records.append(NoteRecord(f"{self.model}: noise floor {100 * floor:.2f} %", {"noise_floor": floor}))
                noted = True
            for name in names:
                if time.monotonic() > deadline:
                    run = f"python -m amk_bench.baselines.run --model {self.model} --positions {position} --baselines {name}"
                    left_out = f"{self.model} at {position} against {name}"
                    self.records.append(SkipRecord(left_out, "no time was left for this cell", f"{run} --out FILE"))
                    continue
                start = time.monotonic()
                record, _ = self.arena.compare(name, position, plan, floor)
                self.records.append(record)
                took = (
                    f"{record.ours_us:.0f} us, {record.baseline_us:.0f} us"
                    if record.ours_us and record.baseline_us
                    else record.reason
                )
                self.say(f"position {position}, {name}: {record.verdict} {took} ({time.monotonic() - start:.1f} s)")

    def _parity(self, engine: Any, position: int) -> bool:
        """P2 of an engine, recorded; an engine that shows no logits has its tokens checked in the cell alone."""
        assert self.arena is not None
        try:
            record = self.arena.parity(engine, position)
        except Exception as error:
            self._broke(f"P2 of {engine.name} at {position}", engine.name, error)
            return False
        if record is None:
            return True
        self.records.append(record)
        self.say(f"{engine.name} at {position}: P2 {record.measured} {record.required} ({record.detail})")
        return record.passed


def on_card(name: str, batch: int, seed: int, last: int, tokens: int, say: Callable[[str], None]) -> Arena:
    """The arena of a public shape with random weights."""
    graph, threads = GRAPH_SHAPES[name], os.cpu_count() or 1
    live, shared, origin = arenas.random_model(graph, seed)
    say(f"weights on the card, {shared['weights'].bytes_a_step() / 1e9:.2f} GB a step")
    rows = arenas.rows_for(graph, last, tokens)
    text = np.random.default_rng(seed).integers(0, graph.vocab_size, rows).tolist()
    return arenas.on_card(
        live, graph, "fast", model=name, text=text, rows=rows, seed=seed, threads=threads, origin=origin, batch=batch,
        shared=shared, say=say,
    )  # fmt: skip


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
    parser.add_argument("--energy", type=float, default=0.0, help="seconds for which each side runs for its joules a token")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no cell later than this")
    parser.add_argument("--commit", default="", help="commit that is measured, where the tree is not a checkout")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {args.model}: {text}", flush=True)

    asked = [int(p) for p in args.positions.split(",")]
    names = [n for n in args.baselines.split(",") if n]
    bench = Bench(args.model, lambda: on_card(args.model, args.batch, args.seed, max(asked), args.tokens, say), names, say)
    with turn(args.turn, args.of, args.model):
        say("its turn")
        machine = probe()
        card = machine.gpus[0] if machine.gpus else None
        try:
            if bench.arena is not None:
                limit = bench.arena.setting.context
                positions = [p for p in asked if p + args.tokens < limit]
                plan = instruments.for_this_card().equip(Plan(args.tokens, args.blocks, args.seed), energy_s=args.energy)
                bench.run(positions, plan, start + args.seconds)
        finally:
            given = sys.argv[1:] if argv is None else argv
            command = ["python", "-m", "amk_bench.baselines.run", *fingerprint.without_places(given)]
            device, arch = (card.name, card.arch) if card else ("cpu", "cpu")
            stamp = fingerprint.take(machine, arch, device, command, {"all": args.seed}, Path.cwd(), args.commit)
            weights = bench.arena.origin if bench.arena else "random weights"
            options = {**vars(args), "turn": "", "out": args.out.name, "weights": weights}
            write_atomically(args.out, document(bench.records, stamp.to_json(), options), replace=True)
            say(f"{len(bench.records)} records: {args.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
