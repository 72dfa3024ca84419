"""``amk validate``: accept or reject schedules, with reasons."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

NAME = "validate"
HELP = "decide whether schedules are safe for every interleaving, number of steps and launch variable"

ACCEPTED, REJECTED, UNREADABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="interchange files (amk.schedule/1), or - for the standard input")
    parser.add_argument("--json", action="store_true", help="print each verdict as one JSON object")
    parser.add_argument(
        "--jsonl", action="append", default=[], metavar="FILE", help="one schedule a line; prints one verdict a line as JSON"
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
    worst = ACCEPTED
    for name in args.files:
        worst = max(worst, _file(name, args))
    for name in args.jsonl:
        worst = max(worst, _lines(name, args))
    return worst


def _file(name: str, args: argparse.Namespace) -> int:
    from amk_core.schedule.ir import Schedule, ScheduleFormatError
    from amk_core.schedule.validate import rejected, validate

    label = f"{name}: " if len(args.files) > 1 else ""
    try:
        text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        schedule = Schedule.loads(text)
    except (OSError, ScheduleFormatError) as e:
        reason = f"{name}: {e.strerror}" if isinstance(e, OSError) and e.strerror else str(e)
        if args.json:
            print(json.dumps({"file": name, "readable": False} | rejected("REF", f"REF unreadable: {reason}").to_json()))
        print(f"amk validate: {name} cannot be read as a schedule: {reason}", file=sys.stderr)
        return UNREADABLE
    verdict = validate(schedule, certificate=args.certificate)
    if args.json:
        print(json.dumps({"file": name, "readable": True} | verdict.to_json(certificate=args.certificate)))
    else:
        print(f"{label}{'accepted' if verdict.accepted else 'rejected'}")
        if not verdict.accepted:
            print(verdict)
    return ACCEPTED if verdict.accepted else REJECTED


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
