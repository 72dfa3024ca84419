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
    parser.add_argument(
        "--baselines", type=Path, metavar="FILE", help="a page for the torch baselines' table, in the README's stead"
    )
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
    from amk_bench.report import readme, rivals

    page: Path = args.baselines or args.readme
    table = rivals.table(rivals.runs(args.data / "device")) if args.baselines else readme.block(args.data)
    text = page.read_text("utf-8")
    new = readme.replaced(text, table)
    if args.check:
        print(f"{page}: {'the table is' if text == new else 'the table is not'} what {args.data} gives", file=sys.stderr)
        return 0 if text == new else 1
    if text != new:
        page.write_text(new, "utf-8")
    print(f"{page}: {'table written' if text != new else 'nothing to change'}", file=sys.stderr)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from amk_bench import compare

    try:
        result = compare.compare(compare.load(args.before), compare.load(args.after), allow_different=args.allow_different)
    except compare.Incomparable as error:
        raise compare.Incomparable(f"{error}. Compare results of one machine and setup, or add --allow-different.") from None
    print("\n".join(compare.lines(result)))
    return 1 if any(c.verdict == "SLOWER" for c in result.changes) else 0
