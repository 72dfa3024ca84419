"""Measures AMK against the torch baselines on this machine's card, with random weights of a public shape, labelled so.

``python -m amk_bench.baselines.run --model llama-3.2-1b --out FILE`` builds weights on the card, compiles, holds every engine's
logits to HuggingFace in float32, times pairs, and writes one result file, anew after every cell.  Several models may be prepared
side by side (``--turn FOLDER --of N``): they compile at the same time and are timed one after the other, when all have compiled.

``--weights FORMAT``: ours on quantised weights, against peers that multiply with the same codes and against bf16 baselines on the
values that they stand for, whose rows name both precisions.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench import arena as arenas
from amk_bench import fingerprint, instruments
from amk_bench.arena import Arena
from amk_bench.baselines import registry
from amk_bench.baselines.turns import GONE, Turns
from amk_bench.cell import UNTIMED, Plan
from amk_bench.measure import Sitting
from amk_bench.results import LatencyRecord, NoteRecord, Record, SkipRecord, document, write_atomically
from amk_core.graph import GRAPH_SHAPES
from amk_core.importer import hub
from amk_core.machine import probe
from amk_core.quant.config import QuantConfig

POSITIONS = (16, 128, 1024, 2000)
BASELINES = ("fused-compile", "fused-graph", "hf-compile", "hf-eager", "pdl-graph", *registry.RIVALS)
TOKENS, BLOCKS = 16, 8
QUANTISED = ("torch-int{}", "pdl-graph")  # of quantised weights: the peer in their bits, and the strongest in bf16
EARLY = ("pdl-graph", "vllm-gptq", *registry.RIVALS)  # what starts or compiles while ours is loaded
NO_TIME = "no time was left for this cell"
ENDED = "the run was ended before this cell had a time"


class Bench:
    """The cells of one model: every position against every baseline, and the records they leave.

    ``make``: makes the arena; an error in it is the run's only record.
    """

    def __init__(self, model: str, make: Callable[[], Arena], names: Sequence[str], say: Callable[[str], None]) -> None:
        self.model, self.say = model, say
        self.told = ""  # options of the run that make its cells what they are, for the command that fills an empty one
        self.keep: Callable[[], None] = lambda: None  # called when a record has come
        self.records: list[Record] = []
        self.paused: list[tuple[int, str, Sitting]] = []
        self.timed: list[tuple[int, str, LatencyRecord]] = []
        self._owed: set[tuple[int, str]] = set()  # cells that have neither a time nor a reason yet
        self.names: list[str] = []
        self.left_out: dict[str, str] = {}
        self.arena: Arena | None = None
        try:
            self.arena = make()
        except Exception as error:
            self._broke(f"{model}: AMK CUDA VM", "ours", error)
            return
        for name in names:
            try:
                engine = self.arena.rival(name)
            except registry.BaselineUnavailable as error:
                self.left_out[name] = str(error)
                say(f"{name}: {error}")
                continue
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
        self.begin(positions, plan, deadline)
        self.restart()
        self.finish(deadline)
        self.busy(deadline)

    def begin(self, positions: Sequence[int], plan: Plan, deadline: float, restarts: bool = True) -> None:
        """As :meth:`run`, up to the middle of the cells of engines in their own processes where they are to be restarted."""
        if self.arena is None:
            return
        self._owed = {(position, name) for position in positions for name in self.names}
        noted = False
        for position in positions:
            for name, reason in self.left_out.items():
                self._skip(position, name, reason)
            fit = [name for name in self.names if self._parity(self.arena.engines[name], position)]
            ours = self._parity(self.arena.ours, position)
            for name in self.names:
                if not ours or name not in fit:
                    self._skip(position, name, f"{'its' if ours else 'our'} logits are off (P2), so there is no time")
            if not ours:
                continue
            names = fit
            floor = self.arena.floor(position, plan)
            if not noted:
                self.records.append(NoteRecord(f"{self.model}: noise floor {100 * floor:.2f} %", {"noise_floor": floor}))
                noted = True
            for name in names:
                if time.monotonic() > deadline:
                    self._skip(position, name, NO_TIME)
                    continue
                halves = restarts and hasattr(self.arena.engines[name], "restart")
                work = self.arena.sittings(name, position, plan, floor, halves=halves)
                if self._go_on(position, name, work):
                    self.paused.append((position, name, work))

    def restart(self) -> None:
        """The engines whose cells are in the middle."""
        for name in dict.fromkeys(name for _, name, _ in self.paused):
            self._restart(name)

    def finish(self, deadline: float) -> None:
        """The other half of the cells that are in the middle."""
        for position, name, work in self.paused:
            more = True
            while more and name not in self.left_out and time.monotonic() < deadline:
                more = self._go_on(position, name, work)
            if more:
                self._skip(position, name, self.left_out.get(name, NO_TIME))
        self.paused = []

    def busy(self, deadline: float) -> None:
        """How long of a token the device works, where an engine can tell: what its host costs is the rest of its wall time.

        After all timing, because a profiler may leave the engine slower.
        """
        for position, name, record in self.timed:
            assert self.arena is not None
            engine: Any = self.arena.engines[name]
            if not hasattr(engine, "busy_seconds") or time.monotonic() > deadline:
                continue
            cell = self.arena.cell(position)
            try:
                engine.prepare(cell.prefix, cell.batch, record.tokens + 1)
                seconds = engine.busy_seconds(cell.first_ids(UNTIMED, self.arena.seed), record.tokens)
            except Exception as error:
                self.say(f"position {position}, {name}: no profile: {type(error).__name__}: {error}")
                continue
            if seconds is not None:
                record.derived["baseline_busy_us"] = 1e6 * seconds
                self.say(f"position {position}, {name}: the device works {1e6 * seconds:.0f} us of it")
        self.keep()

    def _go_on(self, position: int, name: str, work: Sitting) -> bool:
        """One sitting of a cell; True where another is left.  An engine that breaks has its cell empty with what it said."""
        start = time.monotonic()
        try:
            next(work)
            self.say(f"position {position}, {name}: first sitting ({time.monotonic() - start:.1f} s)")
            return True
        except StopIteration as end:
            record: LatencyRecord = end.value[0]
        except Exception as error:
            self._owed.discard((position, name))
            self._broke(self._cell(position, name), name, error)
            return False
        self._owed.discard((position, name))
        self.records.append(record)
        self.keep()
        both = record.ours_us and record.baseline_us
        if both:
            self.timed.append((position, name, record))
        took = f"{record.ours_us:.0f} us, {record.baseline_us:.0f} us" if both else record.reason
        self.say(f"position {position}, {name}: {record.verdict} {took} ({time.monotonic() - start:.1f} s)")
        return False

    def _restart(self, name: str) -> None:
        """A fresh process in the middle of the measurement: what a start happens to give an engine shall not decide."""
        assert self.arena is not None
        engine: Any = self.arena.engines[name]
        try:
            engine.restart()
            self.say(f"{name}: restarted")
        except Exception as error:
            self.left_out[name] = f"it could not be restarted: {error}"[:500]
            self.say(f"{name}: {self.left_out[name]}")

    def _cell(self, position: int, name: str) -> str:
        assert self.arena is not None
        batch = self.arena.setting.batch
        return f"{self.model} at {position}{f', batch {batch}' if batch != 1 else ''} against {name}"

    def _skip(self, position: int, name: str, reason: str) -> None:
        assert self.arena is not None
        self._owed.discard((position, name))
        batch = f" --batch {self.arena.setting.batch}" if self.arena.setting.batch != 1 else ""
        cell = f"--model {self.model}{batch}{self.told} --positions {position} --baselines {name}"
        run = f"python -m amk_bench.baselines.run {cell} --out FILE"
        self.records.append(SkipRecord(self._cell(position, name), reason, run if reason in (NO_TIME, ENDED) else ""))

    def beyond(self, position: int, tokens: int, limit: int) -> None:
        """The cells of a position from which ``tokens`` steps do not fit a cache of ``limit`` rows."""
        for name in [*self.left_out, *self.names]:
            self._skip(position, name, f"a call of {tokens} tokens from {position} on does not fit {limit} positions of context")

    def close(self) -> None:
        """Ends the processes of rivals, and says of each engine what it is only now known to be, and which cells were cut off."""
        for position, name in sorted(self._owed):
            self._skip(position, name, ENDED)
        for engine in self.arena.engines.values() if self.arena else ():
            if hasattr(engine, "close"):
                told = ", ".join(f"{k}: {v}" for k, v in registry.describe(engine).items())
                self.records.append(NoteRecord(f"{self.model}: {engine.name}: {told}"))
                engine.close()

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


def on_card(
    name: str, batch: int, seed: int, last: int, tokens: int, rivals: Sequence[str], say: Callable[[str], None],
    weights: QuantConfig | None = None, checkpoint: str = "",
) -> Arena:  # fmt: skip
    """The arena of a public shape with random weights; those of ``rivals`` with processes of their own start meanwhile.

    ``weights``: they are quantised, and may be those of ``checkpoint``.
    """
    graph, threads = GRAPH_SHAPES[name], os.cpu_count() or 1
    if weights is None:
        live, shared, origin = arenas.random_model(graph, seed)
    elif checkpoint:
        live, shared, origin = arenas.real_quantised(hub.resolve(checkpoint), threads, weights)
    else:
        live, shared, origin = arenas.random_quantised(graph, seed, weights)
    size = shared["quantised"].step_bytes(2) if weights else shared["weights"].bytes_a_step()
    say(f"weights on the card, {size / 1e9:.2f} GB a step")
    rows = arenas.rows_for(graph, last, tokens)
    shared["hf bf16 cuda"] = live
    launch(rivals, registry.Setting(name, live, "cuda", "bf16", rows, batch, threads, shared), say)
    text = np.random.default_rng(seed).integers(0, graph.vocab_size, rows).tolist()
    return arenas.on_card(
        live, graph, "fast", model=name, text=text, rows=rows, seed=seed, threads=threads, origin=origin, batch=batch,
        shared=shared, say=say,
    )  # fmt: skip


def launch(rivals: Sequence[str], setting: registry.Setting, say: Callable[[str], None]) -> None:
    """Starts the processes of ``rivals`` and does not wait; they stand in what the setting shares, for :meth:`Arena.rival`."""
    for name in rivals:
        if name not in EARLY:
            continue
        # What is wrong with one is said when it is asked for.
        with contextlib.suppress(Exception):
            engine: Any = registry.make(name, setting)
            engine.launch()
            setting.shared[f"launched {name}"] = engine
            say(f"{name} starts")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=tuple(GRAPH_SHAPES))
    parser.add_argument("--positions", default=",".join(map(str, POSITIONS)))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--baselines",
        default="",
        help="by commas, {} in a name stands for the bits of quantised weights; default: all, or of quantised weights those in "
        "their precision and bf16",
    )
    parser.add_argument("--weights", default="", metavar="FORMAT", help="quantised, as int8 or int4-g128,head=int8")
    parser.add_argument("--checkpoint", default="", help="with --weights: round those of this model instead of random ones")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--turn", type=Path, default=None, help="folder in which the models that run side by side meet")
    parser.add_argument("--of", type=int, default=1, help="how many there are")
    parser.add_argument("--rank", type=int, default=0, help="the lower ones are timed first")
    parser.add_argument("--no-restart", action="store_true", help="engines in their own processes stay as they were started")
    parser.add_argument("--energy", type=float, default=0.0, help="seconds for which each side runs for its joules a token")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no cell later than this")
    parser.add_argument("--commit", default="", help="commit that is measured, where the tree is not a checkout")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    start = time.monotonic()

    def say(text: str) -> None:
        about = f"{args.model}, {f'{args.weights}, ' if args.weights else ''}batch {args.batch}"
        print(f"[{time.monotonic() - start:6.1f} s] {about}: {text}", flush=True)

    asked = [int(p) for p in args.positions.split(",")]
    quant = QuantConfig.parse(args.weights) if args.weights else None
    if args.checkpoint and quant is None:
        parser.error("--checkpoint is for quantised weights: give --weights FORMAT, or measure it with pytest suites/latency")
    names = [n for n in args.baselines.split(",") if n] or [*(BASELINES if quant is None else QUANTISED)]
    if quant is not None:
        names = [n.replace("{}", str(quant.layers.bits)) for n in names]
    turns = Turns(args.turn, args.of, f"{args.model}-{args.batch}-{args.weights}", args.rank)
    end = start + args.seconds
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what has been measured is kept, rivals are ended
    machine = probe()
    card = machine.gpus[0] if machine.gpus else None
    given = sys.argv[1:] if argv is None else argv
    command = ["python", "-m", "amk_bench.baselines.run", *fingerprint.without_places(given)]
    device, arch = (card.name, card.arch) if card else ("cpu", "cpu")
    stamp = fingerprint.take(machine, arch, device, command, {"all": args.seed}, Path.cwd(), args.commit)
    bench: Bench | None = None

    def keep() -> None:
        records = bench.records if bench else []
        weights = bench.arena.origin if bench and bench.arena else "random weights"
        options = {**vars(args), "turn": "", "out": args.out.name, "format": args.weights, "weights": weights}
        write_atomically(args.out, document(records, stamp.to_json(), options), replace=True)

    try:
        last = max(asked)

        def make() -> Arena:
            return on_card(args.model, args.batch, args.seed, last, args.tokens, names, say, quant, args.checkpoint)

        bench = Bench(args.model, make, names, say)
        bench.keep = keep
        bench.told = "".join(f" --{k} {v}" for k, v in (("weights", args.weights), ("checkpoint", args.checkpoint)) if v)
        # One that hangs while it starts costs the others no more than a half of their time.
        turns.meet("ready", time.monotonic() + (end - time.monotonic()) / 2)
        now = time.monotonic()
        restarts = not args.no_restart
        with turns.turn("first", now + (end - now) / 2 if restarts else end) as until:
            say("its turn")
            if bench.arena is not None:
                limit = bench.arena.setting.context
                positions = [p for p in asked if p + args.tokens < limit]
                for position in sorted(set(asked) - set(positions)):
                    bench.beyond(position, args.tokens, limit)
                plan = instruments.for_this_card().equip(Plan(args.tokens, args.blocks, args.seed), energy_s=args.energy)
                bench.begin(positions, plan, until, restarts)
        if restarts:
            turns.meet("half", end)
            bench.restart()
            turns.meet("restarted", time.monotonic() + (end - time.monotonic()) / 2)
            with turns.turn("second", end) as until:
                bench.finish(until)
        turns.meet("timed", end)  # ending an engine falls into nobody's turn
        with turns.turn("profiled", end) as until:
            bench.busy(until)
    finally:
        if bench is not None:
            bench.close()
        keep()
        turns.mark(GONE)
        say(f"{len(bench.records) if bench else 0} records: {args.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
