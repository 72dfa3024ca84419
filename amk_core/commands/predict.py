"""``amk predict``: what the cost model says of a decode step, on the card it was fitted on and on the others."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from amk_core.commands import options

if TYPE_CHECKING:
    from amk_core.cost import Cost

NAME = "predict"
HELP = "predict the time of a decode step (fast, short context) on a card, or on every card of the fleet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP + "; shapes known without weights: see docs/cli.md")
    parser.add_argument("--target", help="a card: l4, l40s, a10g, a100, h100, h200, rtx5090 (default: all of them)")
    parser.add_argument(
        "--weights", metavar="FORMAT", help="formats of quantised weights, such as int4-g128,head=int8 (default: none)"
    )
    parser.add_argument("--batch", type=options.natural, default=1, help="sequences a step (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def describe(cost: Cost, weights: str | None = None, batch: int = 1) -> dict[str, Any]:
    """Every number that ``amk predict`` shows, in microseconds and bytes."""
    return {**dataclasses.asdict(cost), "us": cost.us, "basis": "fitted" if fitted(cost, weights, batch) else "prediction"}


def fitted(cost: Cost, weights: str | None, batch: int) -> bool:
    """Whether the constant comes from this card with these weights and one sequence."""
    from amk_core.cost import FITTED_ON

    return cost.target == FITTED_ON and not weights and batch == 1


def run(args: argparse.Namespace) -> int:
    """Print a line for each card."""
    from amk_core.cost import FITTED_ON, predict
    from amk_core.quant.config import QuantConfig
    from amk_core.targets import Target
    from amk_core.vm.plan import ProgramError

    graph = options.graph_of(args.model)
    quant = QuantConfig.parse(args.weights) if args.weights else None
    targets = (Target.named(args.target),) if args.target else Target.profiles()
    costs: list[Cost] = []
    refused: dict[str, str] = {}
    for t in targets:
        try:
            costs.append(predict(graph, t, quant=quant, batch=args.batch))
        except ProgramError as e:
            if args.target:
                raise
            refused[t.name] = str(e)
    if args.json:
        said = [describe(c, args.weights, args.batch) for c in costs]
        print(json.dumps({"model": graph.name, "costs": said, "refused": refused}))
        return 0
    weights = f", {args.weights}" if args.weights else ""
    print(f"{graph.name}: a decode step, microseconds (fast, batch {args.batch}, short context{weights})")
    print("target      step | hand-offs  polled  stream | weights alone | basis")
    for c in costs:
        basis = f"fitted on the {FITTED_ON}" if fitted(c, args.weights, args.batch) else "a prediction, not measured"
        print(
            f"{c.target:8s} {c.us:7.0f} | {c.hand_off_us:9.0f} {c.polled_us:7.0f} {c.stream_us:7.0f} | {c.floor_us:13.0f} | {basis}"
        )
    for name, why in refused.items():
        print(f"{name:8s}       - | {why}")
    return 0
