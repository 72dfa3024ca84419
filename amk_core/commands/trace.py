"""``amk trace``: where the time of a decode step goes on the card, region by region."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from amk_core.commands import options

NAME = "trace"
HELP = "time every task of some decode steps on the card: a table by region, and a file for Perfetto"
SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    parser.add_argument("--position", type=int, default=16, metavar="N", help="tokens in the KV cache (default: 16)")
    parser.add_argument("--tokens", type=options.natural, default=8, metavar="N", help="decode steps, up to 128 (default: 8)")
    parser.add_argument("--mode", choices=("exact", "fast"), default="fast", help="numeric plan (default: fast)")
    parser.add_argument("--queues", type=options.natural, help="queues (default: one an SM)")
    options.add_ranks(parser)
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the trace for https://ui.perfetto.dev")
    parser.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a field of ScheduleConfig; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    """Fill the cache, decode with the tracer in the program, print the tables."""
    import amk_core
    from amk_core.programs import RequestError
    from amk_core.schedule.config import ScheduleConfig
    from amk_core.vm import tracing

    if args.position < 0:
        raise RequestError(f"--position is {args.position}, required is 0 or more")
    context = args.position + args.tokens + 1
    model = amk_core.load(
        args.model, mode=args.mode, queues=args.queues, context=max(context, 128), backend="cuda",
        config=ScheduleConfig.parse(args.config), **options.load_settings(args),
    )  # fmt: skip
    timeline = record(model, args.position, args.tokens)
    facts = model.target
    print(f"{model.graph.name} {args.mode} on {facts.name}, {facts.queues} queues, position {args.position}")
    print(tracing.table(timeline))
    print()
    print(tracing.hand_offs(timeline))
    if args.perfetto is not None:
        n = tracing.write_perfetto(timeline, args.perfetto)
        print(f"\n{n} slices: {args.perfetto} (open it with https://ui.perfetto.dev)")
    return 0


def record(model: Any, position: int, tokens: int) -> Any:
    """A :class:`~amk_core.vm.tracing.Timeline` of ``tokens`` decode steps from ``position``, on a cache of seeded random tokens.

    Raises:
        RequestError: the position does not fit the context, or more steps than a launch has.
    """
    import numpy as np

    from amk_core.programs import RequestError
    from amk_core.vm import tracing

    program = model.program("decode")
    if tokens > program.geometry.max_steps:
        raise RequestError(f"{tokens} steps, a launch has at most {program.geometry.max_steps}")
    ids = np.random.default_rng(SEED).integers(0, model.graph.vocab_size, position + 1).tolist()
    model.prefill([ids[:-1]] * model.batch)
    vm = model.traced()
    vm.buffer("control")[:] = 0
    vm.buffer("stop_ids")[:] = -1
    vm.buffer("done")[:] = 0
    vm.buffer("token")[:] = ids[-1]
    vm.launch(tokens, vm.variables(position, tokens))
    vm.wait()
    return tracing.timeline(program.schedule, *vm.trace_records())
