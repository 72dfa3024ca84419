"""``amk report``: write the README's table from the committed results, or check that it is the one they give."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NAME = "report"
HELP = "write the table of committed results into a README, or check it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("reports/data"), metavar="DIR", help="results (default: reports/data)")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), metavar="FILE", help="default: README.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the table differs from the results")


def run(args: argparse.Namespace) -> int:
    """0: the table is the results'; 1: with --check, it is not."""
    from amk_bench.report import readme

    if args.check:
        text = args.readme.read_text("utf-8")
        same = text == readme.replaced(text, readme.block(args.data))
        print(f"{args.readme}: {'the table is' if same else 'the table is not'} what {args.data} gives", file=sys.stderr)
        return 0 if same else 1
    changed = readme.update(args.readme, args.data)
    print(f"{args.readme}: {'table written' if changed else 'nothing to change'}", file=sys.stderr)
    return 0
