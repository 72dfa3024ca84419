"""``amk report``: tables, page and rows from the committed results; whether they still are; two results against each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NAME = "report"
HELP = "write the tables and the page of results, check them, or compare two results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the source tree (default: here)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("check", help="write nothing; exit code 1 where a table or the page is not what the results give")
    one = actions.add_parser("page", help="the page and its rows of any folder of results, such as a fleet run's")
    one.add_argument("folder", type=Path, metavar="DIR", help="result files, files of --benchmark-json, a fleet run")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="index.html, results.csv and results.jsonl go there")
    two = actions.add_parser("compare", help="what became faster or slower between two results")
    two.add_argument("before", type=Path, metavar="A", help="a result file, or what --benchmark-json wrote")
    two.add_argument("after", type=Path, metavar="B", help="a later one")
    two.add_argument("--allow-different", action="store_true", help="compare results of different machines or setups")


def run(args: argparse.Namespace) -> int:
    """0: all is what the results give, nothing is slower; 1: with check, it is not; with compare, something is."""
    if args.action == "compare":
        return _compare(args)
    if args.action == "page":
        return _page(args)
    from amk_bench.report.outputs import outputs
    from amk_bench.report.sources import DATA
    from amk_bench.results import ResultError, write_text_atomically

    if not (args.root / DATA).is_dir():
        raise ResultError(f"no folder {args.root / DATA}; run in a source tree, or name one with --root")
    stale = 0
    for name, text in outputs(args.root).items():
        path = args.root / name
        same = path.is_file() and path.read_bytes() == text.encode("utf-8")
        stale += not same
        if args.action == "check":
            print(f"{name}: {'is' if same else 'is not'} what {DATA} gives", file=sys.stderr)
        else:
            if not same:
                write_text_atomically(path, text, replace=True)
            print(f"{name}: {'nothing to change' if same else 'written'}", file=sys.stderr)
    if args.action == "check" and stale:
        print("run: amk report", file=sys.stderr)
    return 1 if args.action == "check" and stale else 0


def _page(args: argparse.Namespace) -> int:
    from amk_bench.report.outputs import Evidence, site
    from amk_bench.results import ResultError, write_text_atomically

    folder = args.folder.resolve()
    if not folder.is_dir():
        raise ResultError(f"no folder {args.folder}")
    if args.out.resolve().is_relative_to(folder):
        raise ResultError(f"--out {args.out} lies within {args.folder}, whose files are read; name a folder beside it")
    evidence = Evidence.read(folder, Path(), lambda text: print(f"left out: {text}", file=sys.stderr))
    for name, text in site(evidence, folder, args.out.resolve(), documented=False).items():
        write_text_atomically(args.out / name, text, replace=True)
    print(f"{len(evidence.files)} files, {len(evidence.pairs)} pairs: {args.out / 'index.html'}", file=sys.stderr)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from amk_bench import compare

    try:
        result = compare.compare(compare.load(args.before), compare.load(args.after), allow_different=args.allow_different)
    except compare.Incomparable as error:
        raise compare.Incomparable(f"{error}. Compare results of one machine and setup, or add --allow-different.") from None
    print("\n".join(compare.lines(result)))
    return 1 if any(c.verdict == "SLOWER" for c in result.changes) else 0
