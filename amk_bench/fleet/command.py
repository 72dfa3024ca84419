"""``amk fleet``: measure on many cards, see how far a run has come, join a machine to a cluster."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amk_bench.fleet.cells import Cell

NAME = "fleet"
HELP = "measure on many cards at once: run, status, devices"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = sub.add_parser("run", help="run what is not finished of a request; Ctrl-C stops it, the same command goes on")
    run.add_argument("--devices", required=True, metavar="KEY,...", help="cards by their names in fleet/devices.toml, cpu, or all")
    run.add_argument("--suite", default="rivals", help="rivals (default), validator, parity, perplexity, latency, all")
    run.add_argument("--models", default="", metavar="NAME,...", help="default: the four public shapes; one model for other suites")
    run.add_argument("--precisions", default="bf16", metavar="NAME,...")
    run.add_argument("--batches", default="1", metavar="N,...")
    run.add_argument("--positions", default="128,1024,4096", metavar="N,.../N,...", help="a slash begins another process")
    run.add_argument("--baselines", default="", metavar="NAME,...", help="of suite rivals (default: all)")
    run.add_argument("--tier", default="default", choices=("quick", "default", "full"), help="of the pytest suites")
    run.add_argument("--command", default="", help="run this instead of a suite; {out} is where its result has to go, see the docs")
    run.add_argument("--runner", default="local", choices=("local", "ray"))
    run.add_argument("--address", default="auto", metavar="HOST:PORT", help="head of the Ray cluster (default: this machine's)")
    run.add_argument("--limit", type=float, default=3600.0, metavar="S", help="seconds a job may take (default: 3600)")
    run.add_argument("--wait", type=float, default=60.0, metavar="S", help="seconds to wait for a device nobody offers (60)")
    run.add_argument("--retries", type=int, default=1, metavar="N", help="how often a job whose node died runs again (1)")
    run.add_argument("--again", action="store_true", help="run finished jobs again")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="plan, results, logs; the same folder resumes")
    status = sub.add_parser("status", help="how far a run has come")
    status.add_argument("dir", type=Path, metavar="DIR")
    status.add_argument("--json", action="store_true")
    devices = sub.add_parser("devices", help="the cards of the fleet, and which of them are here")
    devices.add_argument(
        "--address", default="", metavar="HOST:PORT", help="print the command that joins this machine to that cluster"
    )


def run(args: argparse.Namespace) -> int:
    return {"run": _run, "status": _status, "devices": _devices}[args.action](args)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run(args: argparse.Namespace) -> int:
    import shlex

    from amk_bench.fleet import devices, jobs
    from amk_bench.fleet.cells import Folder, State
    from amk_bench.fleet.drive import Drive, Runner

    known = devices.known()
    if args.suite not in jobs.SUITES:
        raise devices.FleetError(f"no suite named {args.suite!r}; there are {', '.join(jobs.SUITES)}")
    try:
        batches = [int(b) for b in _words(args.batches)]
    except ValueError:
        raise devices.FleetError(f"batches {args.batches!r}: numbers with commas between them") from None
    default = jobs.MODELS if args.suite == jobs.RIVALS else jobs.MODELS[:1]
    wanted = jobs.plan(
        devices.chosen(_words(args.devices), known), suite=args.suite, models=_words(args.models) or default,
        precisions=_words(args.precisions), batches=batches, groups=jobs.position_groups(args.positions),
        baselines=_words(args.baselines), tier=args.tier, command=shlex.split(args.command), limit_s=args.limit,
    )  # fmt: skip
    folder = Folder(args.out)
    # A job manager ends a run with SIGTERM; it shall leave as clean a folder as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    with folder.owned():
        runner: Runner
        if args.runner == "ray":
            from amk_bench.fleet.over_ray import RayRunner

            runner = RayRunner(known, args.address)
        else:
            from amk_bench.fleet.local import LocalRunner

            runner = LocalRunner(known)

        def say(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        # On one machine nothing comes later.
        absent_s = args.wait if args.runner == "ray" else 0.0
        cells = Drive(folder, runner, absent_s, args.retries, say).run(wanted, args.again)
    _show(cells, folder.path)
    return 0 if all(c.state is State.FINISHED and c.code == 0 for c in cells) else 1


def _status(args: argparse.Namespace) -> int:
    from amk_bench.fleet.cells import Folder, State
    from amk_bench.fleet.devices import FleetError

    folder = Folder(args.dir)
    cells = folder.cells()
    if not cells:
        raise FleetError(f"{args.dir}: no fleet run has begun here; start one with: amk fleet run --devices ... --out {args.dir}")
    if args.json:
        print(json.dumps({"running": folder.is_owned(), "cells": [c.to_json() for c in cells]}, indent=1))
    else:
        _show(cells, folder.path)
    return 0 if all(c.state is State.FINISHED and c.code == 0 for c in cells) else 1


def _show(cells: list[Cell], path: Path) -> None:
    from collections import Counter

    from tabulate import tabulate

    from amk_bench.fleet.cells import State

    order = [s for s in State if s is not State.FINISHED] + [State.FINISHED]

    def told(cell: Cell) -> str:
        if cell.state is State.FINISHED:
            said = f"results/{cell.job.key}.json" + (f" (status {cell.code})" if cell.code else "")
        else:
            said = cell.reason
        return "; ".join([said, *(f"before: {a}" for a in cell.attempts)]) if cell.state is State.FINISHED else said

    rows: list[list[Any]] = [
        [c.state, c.job.device, c.job.suite, c.job.model, c.job.precision, c.job.batch or "", ",".join(map(str, c.job.positions)),
         f"{c.seconds:.0f}" if c.seconds else "", told(c)]
        for c in sorted(cells, key=lambda c: (order.index(c.state), c.job.device, c.job.model, c.job.batch, c.job.positions))
    ]  # fmt: skip
    heads = ["state", "device", "suite", "model", "precision", "batch", "positions", "s", "result or reason"]
    print(tabulate(rows, heads, tablefmt="plain", disable_numparse=True))
    counts = Counter(c.state for c in cells)
    print(f"{path}: {len(cells)} cells: " + ", ".join(f"{counts[s]} {s}" for s in order if counts[s]))


def _devices(args: argparse.Namespace) -> int:
    from tabulate import tabulate

    from amk_bench.fleet import devices
    from amk_core import machine

    known, gpus = devices.known(), machine.find_gpus()
    if args.address:
        print(devices.ray_start(gpus, known, args.address))
        return 0 if devices.cards(gpus, known) else 1
    here = devices.cards(gpus, known)
    rows = [[d.key, d.arch, d.sold_as, " | ".join(d.names), d.resource, len(here.get(d.key, []))] for d in known.values()]
    print(tabulate(rows, ["device", "arch", "memory", "nvidia-smi says", "ray resource", "here"], tablefmt="plain"))
    for gpu in gpus:
        if devices.recognise(gpu, known) is None:
            print(f"{gpu.name} ({gpu.arch}, {gpu.memory_bytes / 2**30:.0f} GiB) is none of these; add it to fleet/devices.toml")
    return 0
