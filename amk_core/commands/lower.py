"""``amk lower``: a model to a schedule, as interchange JSON or binary tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from amk_core.commands import options

NAME = "lower"
HELP = "lower a model to a schedule and write it as .json (interchange) or .amkt (binary tables)"


class OutputNameError(ValueError):
    """The output file's name does not say which format is wanted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="FILE.json or FILE.amkt (default: JSON on the standard output)"
    )
    options.add_lowering(parser)


def run(args: argparse.Namespace) -> int:
    """Write the schedule; what it is goes to the standard error."""
    from amk_core.schedule.lower import hops
    from amk_core.schedule.tables import pack, table_hash

    out: Path | None = args.output
    if out is not None and out.suffix not in (".json", ".amkt"):
        raise OutputNameError(f"the output is {str(out)!r}; its name must end in .json (interchange) or .amkt (binary tables)")
    schedule = options.lowered(options.graph_of(args.model), args)
    tables = pack(schedule)
    if out is None:
        print(json.dumps(schedule.to_json(), separators=(",", ":")))
    else:
        options.write_whole(out, tables if out.suffix == ".amkt" else json.dumps(schedule.to_json()).encode() + b"\n")
    where = f"{out}: " if out else ""
    print(
        f"{where}{options.grouped(schedule.n_tasks)} tasks on {schedule.n_queues} queues, {hops(schedule)} hops a layer, "
        f"tables {options.size(len(tables))}, sha256 {table_hash(tables)[:16]}",
        file=sys.stderr,
    )
    return 0
