"""``amk report``: the README's table from the committed results, or two results against each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NAME = "report"
HELP = "write the table of committed results into a README, check it, or compare two results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("reports/data"), metavar="DIR", help="results (default: reports/data)")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), metavar="FILE", help="default: README.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the table differs from the results")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    two = actions.add_parser("compare", help="what became faster or slower between two results")
    two.add_argument("before", type=Path, metavar="A", help="a result file, or what --benchmark-json wrote")
    two.add_argument("after", type=Path, metavar="B", help="a later one")
    two.add_argument("--allow-different", action="store_true", help="compare results of different machines or setups")


def run(args: argparse.Namespace) -> int:
    """0: the table is the results', nothing is slower; 1: with --check, it is not; with compare, something is."""
    if args.action == "compare":
        return _compare(args)
    from amk_bench.report import readme

    if args.check:
        text = args.readme.read_text("utf-8")
        same = text == readme.replaced(text, readme.block(args.data))
        print(f"{args.readme}: {'the table is' if same else 'the table is not'} what {args.data} gives", file=sys.stderr)
        return 0 if same else 1
    changed = readme.update(args.readme, args.data)
    print(f"{args.readme}: {'table written' if changed else 'nothing to change'}", file=sys.stderr)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from amk_bench import compare

    try:
        result = compare.compare(compare.load(args.before), compare.load(args.after), allow_different=args.allow_different)
    except compare.Incomparable as error:
        raise compare.Incomparable(f"{error}. Compare results of one machine and setup, or add --allow-different.") from None
    print("\n".join(compare.lines(result)))
    return 1 if any(c.verdict == "SLOWER" for c in result.changes) else 0
