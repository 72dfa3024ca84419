"""``amk model``: fetch a model into the cache, list what is there, print where one lies."""

from __future__ import annotations

import argparse
import sys

from amk_core.commands import options

NAME = "model"
HELP = "fetch models into the cache, list them, print the directory of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="bring a model into the cache (does nothing where it is there already)")
    fetch.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    actions.add_parser("list", help="the named models, and the converted ones in the cache")
    path = actions.add_parser("path", help="print the directory of a model that is in the cache or on the disk")
    path.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)


def run(args: argparse.Namespace) -> int:
    """0 where it succeeded; 1 where ``path`` is asked for a named model that is not fetched yet."""
    from amk_core.importer import hub

    if args.action == "list":
        return _list()
    if args.action == "path" and args.model.lower() in hub.REGISTRY and not hub.is_cached(args.model):
        print(f"{args.model} is not in the cache {hub.home()}. Fetch it with: amk model fetch {args.model}", file=sys.stderr)
        return 1
    print(hub.resolve(args.model))
    return 0


def _list() -> int:
    from amk_core.importer import hub

    there = {c.name: c for c in hub.cached()}
    for m in hub.REGISTRY.values():
        state = options.size(there[m.name].bytes) if m.name in there else f"not fetched (download {options.size(m.member_bytes)})"
        print(f"{m.name:24} {state:32} {m.about} [{m.licence}]")
    for name, c in there.items():
        if name not in hub.REGISTRY:
            print(f"{name:24} {options.size(c.bytes):32} {c.source}")
    print(f"cache: {hub.home()}", file=sys.stderr)
    return 0
