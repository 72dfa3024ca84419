"""``amk validate``: accept or reject schedules, with reasons."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from amk_core.commands import options

if TYPE_CHECKING:
    from amk_core.schedule.ir import Schedule
    from amk_core.schedule.validate import Verdict

NAME = "validate"
HELP = "decide whether schedules are safe for every interleaving, number of steps and launch variable"

ACCEPTED, REJECTED, UNREADABLE = 0, 1, 2
MAX_EXPLAINED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="interchange files (amk.schedule/1), or - for the standard input")
    parser.add_argument("--json", action="store_true", help="print each verdict as one JSON object")
    parser.add_argument(
        "--jsonl", action="append", default=[], metavar="FILE", help="one schedule a line; prints one verdict a line as JSON"
    )
    parser.add_argument(
        "--explain", action="store_true", help=f"tell up to {MAX_EXPLAINED} findings as runs, step by step; with --json as texts"
    )
    parser.add_argument(
        "--svg",
        type=Path,
        metavar="OUT.svg",
        help="draw the queues of one FILE, the tasks of the first finding that names any marked",
    )
    parser.add_argument("--certificate", action="store_true", help="put the certificate into the JSON verdict")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 all accepted, 1 something rejected, 2 something unreadable (the worst of all files)."""
    if not args.files and not args.jsonl:
        print(
            "amk validate: no file given; try `amk validate schedule.json` or `amk validate --jsonl schedules.jsonl`",
            file=sys.stderr,
        )
        return UNREADABLE
    if args.svg is not None and (len(args.files) != 1 or args.jsonl):
        print(f"amk validate: --svg draws one FILE, seen {len(args.files)} and {len(args.jsonl)} of --jsonl", file=sys.stderr)
        return UNREADABLE
    worst = ACCEPTED
    for name in args.files:
        worst = max(worst, _file(name, args))
    for name in args.jsonl:
        worst = max(worst, _lines(name, args))
    return worst


def _file(name: str, args: argparse.Namespace) -> int:
    from amk_core.schedule.ir import ScheduleFormatError
    from amk_core.schedule.validate import rejected, validate

    label = f"{name}: " if len(args.files) > 1 else ""
    try:
        schedule = options.read_schedule(name)
    except (OSError, ScheduleFormatError) as e:
        reason = f"{name}: {e.strerror}" if isinstance(e, OSError) and e.strerror else str(e)
        if args.json:
            print(json.dumps({"file": name, "readable": False} | rejected("REF", f"REF unreadable: {reason}").to_json()))
        print(f"amk validate: {name} cannot be read as a schedule: {reason}", file=sys.stderr)
        return UNREADABLE
    verdict = validate(schedule, certificate=args.certificate)
    told = _told(schedule, verdict) if args.explain else []
    if args.json:
        extra = {"explanations": told} if args.explain else {}
        print(json.dumps({"file": name, "readable": True} | verdict.to_json(certificate=args.certificate) | extra))
    else:
        print(f"{label}{'accepted' if verdict.accepted else 'rejected'}")
        if not verdict.accepted:
            print(verdict)
        for text in told:
            print(f"\n{text}")
    if args.svg is not None:
        _draw(schedule, verdict, args.svg)
    return ACCEPTED if verdict.accepted else REJECTED


def _told(schedule: Schedule, verdict: Verdict) -> list[str]:
    """The findings that have a run, told; where none has, why."""
    from amk_core.schedule.explain import explain, explanations

    told = [f"finding {k + 1}: {e.text()}" for k, e in explanations(schedule, verdict.findings, MAX_EXPLAINED).items()]
    if not told and verdict.findings:
        told = [f"finding 1: {explain(schedule, verdict.findings[0]).text()}"]
    total = sum(verdict.counts.values())
    return told + ([f"other findings: {total - len(told)}"] if total > len(told) else [])


def _draw(schedule: Schedule, verdict: Verdict, out: Path) -> None:
    """Write the picture, completely or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    from amk_core.schedule.draw import draw
    from amk_core.schedule.explain import explain

    if verdict.rules & {"REF", "COUNT"}:
        print(f"amk validate: {out} is not written: what refers to nothing cannot be drawn", file=sys.stderr)
        return
    first = next((f for f in verdict.findings if f.tasks), None)
    options.write_whole(out, draw(schedule, None if first is None else explain(schedule, first)).encode())


def _lines(name: str, args: argparse.Namespace) -> int:
    from amk_core.schedule.validate import validate_text

    worst = ACCEPTED
    try:
        with sys.stdin.buffer if name == "-" else open(name, "rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                verdict = validate_text(line.strip(), certificate=args.certificate)
                print(json.dumps(verdict.to_json(certificate=args.certificate), separators=(",", ":")))
                if not verdict.accepted:
                    broken = any(f.message.startswith("REF unreadable") for f in verdict.findings)
                    worst = max(worst, UNREADABLE if broken else REJECTED)
    except OSError as e:
        print(f"amk validate: {name}: {e.strerror or e}", file=sys.stderr)
        return UNREADABLE
    return worst
