"""Arguments that several subcommands share, and what they stand for.  Not a command itself."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from amk_core.graph import ModelGraph
    from amk_core.schedule.ir import Schedule
    from amk_core.schedule.lower_ranks import Ranks

MODEL_HELP = "name in the model cache (smollm2-135m), folder, .gguf file, or hub id"
WEIGHTS_HELP = (
    "store weights quantised: int8, int4-g64, ... (see docs/quantisation.md), with ,head=FORMAT or ,head=stored behind it; "
    "or stored: as the checkpoint holds them; or a folder of amk quantise (default: not quantised)"
)
DEFAULT_CONTEXT = 2048


def natural(text: str) -> int:
    """argparse type: an integer of at least 1."""
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{n}, required is at least 1")
    return n


def ranks(text: str) -> Ranks:
    """``15x8``: 15 clusters of 8 queues."""
    from amk_core.schedule.lower_ranks import Ranks

    try:
        return Ranks.parse(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not COUNTxCLUSTER, two numbers from 1 to 16: {e}") from None


def ranks_of_a_load(text: str) -> Ranks | Literal["auto", "off"]:
    """What ``amk_core.load(ranks=...)`` takes."""
    return cast(Literal["auto", "off"], text) if text in ("auto", "off") else ranks(text)


def add_ranks(parser: argparse._ActionsContainer) -> None:
    """The option of commands that load a model; see :func:`load_settings`."""
    parser.add_argument(
        "--ranks", type=ranks_of_a_load, metavar="off|auto|COUNTxCLUSTER",
        help="clusters of queues that share every step of one sequence: other bits, and on a card less waiting (default: off)",
    )  # fmt: skip


def load_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say to ``amk_core.load``, where they say something."""
    return {} if args.ranks is None else {"ranks": args.ranks}


def add_lowering(parser: argparse.ArgumentParser) -> None:
    """The options that choose a schedule."""
    group = parser.add_argument_group("the schedule")
    group.add_argument("--target", default="cpu", help="cpu, or a card of the fleet: l4, l40s, a10g, a100, h100, h200, rtx5090")
    group.add_argument("--queues", type=natural, help="queues (default: the target's: one a core, one an SM)")
    group.add_argument("--purpose", choices=("decode", "prefill", "logits"), default="decode", help="default: decode")
    group.add_argument("--mode", choices=("exact", "fast"), default="exact", help="numeric plan (default: exact)")
    group.add_argument("--batch", type=natural, default=1, help="sequences, up to 16 (default: 1)")
    group.add_argument("--chunk", type=natural, help="prompt tokens a step, up to 32 (default: 16; decode: 1)")
    group.add_argument(
        "--context", type=natural, help=f"positions of the KV cache (default: the model's, at most {DEFAULT_CONTEXT})"
    )
    group.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a field of ScheduleConfig; may be repeated"
    )
    group.add_argument(
        "--ranks", type=ranks, metavar="COUNTxCLUSTER", help="share the model between clusters of queues (a step is one row)"
    )


def read_schedule(name: str) -> Schedule:
    """The schedule in a file, or in the standard input for ``-``.

    Raises:
        OSError: the file cannot be read.
        ScheduleFormatError: it holds no schedule.
    """
    from amk_core.schedule.ir import Schedule

    return Schedule.loads(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())


def lowered(graph: ModelGraph, args: argparse.Namespace) -> Schedule:
    """The schedule that the options of :func:`add_lowering` ask for."""
    import dataclasses

    from amk_core.schedule.config import ScheduleConfig
    from amk_core.schedule.lower import DEFAULT_CHUNK, Geometry, lower
    from amk_core.schedule.lower_ranks import lower_ranks
    from amk_core.targets import Target

    target = Target.named(args.target)
    if args.queues:
        target = dataclasses.replace(target, queues=args.queues)
    chunk = args.chunk or (1 if args.purpose == "decode" or args.ranks else DEFAULT_CHUNK)
    context = args.context or min(graph.context, DEFAULT_CONTEXT)
    geometry = Geometry(args.purpose, args.batch, chunk, context)
    config = ScheduleConfig.parse(args.config)
    if args.ranks:
        return lower_ranks(graph, args.ranks, target, geometry, args.mode, config)
    return lower(graph, config, target, geometry, args.mode)


def graph_of(model: str) -> ModelGraph:
    """The graph of a model, without its weights: from its config.json, or, for a well-known shape that is not here, by name
    (nothing is fetched)."""
    from amk_core.graph import GRAPH_SHAPES
    from amk_core.importer import hub, open_graph

    here = Path(model).exists() or (model.lower() in hub.REGISTRY and hub.is_cached(model))
    return GRAPH_SHAPES[model] if model in GRAPH_SHAPES and not here else open_graph(model)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there completely or not at all.

    Raises:
        OSError: no such folder, no permission, disk full; a file that was there before is kept.
    """
    import os

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except BaseException as e:
        part.unlink(missing_ok=True)
        if isinstance(e, OSError):
            e.filename = str(path)  # the name that the user knows
        raise


def grouped(n: int) -> str:
    """134515008 -> "134 515 008"."""
    return f"{n:,}".replace(",", " ")


def size(n: int) -> str:
    """Bytes for people, in powers of ten: "538.1 MB"."""
    x = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if x < 1000 or unit == "GB":
            break
        x /= 1000
    return f"{n} B" if unit == "B" else f"{x:.1f} {unit}"
