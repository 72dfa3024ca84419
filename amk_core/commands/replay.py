"""``amk replay``: show the hang or the wrong value that a rejected schedule can lead to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amk_core.commands import options

if TYPE_CHECKING:
    from amk_core.schedule.explanation import Explanation
    from amk_core.schedule.ir import Schedule
    from amk_core.schedule.messages import Wording
    from amk_core.schedule.replay import Launch, Segment
    from amk_core.schedule.validate import Verdict

NAME = "replay"
HELP = "execute the waits, signals and declared footprints of a schedule, and show the hang or the wrong value"

CLEAN, SHOWN, NOTHING = 0, 1, 2
EXECUTED = (
    "executed: queues, waits, signals and declared footprints, no kernels; a task reads its bytes, then leaves its name in those\n"
    "that it writes"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="interchange file (amk.schedule/1), or - for the standard input")
    parser.add_argument(
        "--finding", type=int, metavar="K", help="replay the K-th finding of `amk validate` (default: the first that has a run)"
    )
    parser.add_argument(
        "--spin-timeout", type=_seconds, default=1.0, metavar="S", help="seconds without any progress after which waits give up (1)"
    )


def _seconds(text: str) -> float:
    x = float(text)
    if not 0 < x <= 3600:
        raise argparse.ArgumentTypeError(f"{text}, required is more than 0 and at most 3600")
    return x


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 accepted and replayed clean, 1 the fault was shown, 2 unreadable or nothing that a replay can show."""
    from amk_core.schedule.explain import explain, explanations
    from amk_core.schedule.ir import ScheduleFormatError
    from amk_core.schedule.validate import validate

    try:
        schedule = options.read_schedule(args.file)
    except ScheduleFormatError as e:
        print(f"amk replay: {args.file} cannot be read as a schedule: {e}", file=sys.stderr)
        return NOTHING
    verdict = validate(schedule, certificate=False)
    if verdict.rules & {"REF", "COUNT"}:
        print(f"amk replay: {args.file} has no meaning that could be run:\n{verdict}", file=sys.stderr)
        return NOTHING
    if args.finding is not None and not 1 <= args.finding <= len(verdict.findings):
        print(f"amk replay: --finding {args.finding}, the verdict has {len(verdict.findings)} findings", file=sys.stderr)
        return NOTHING
    if args.finding is not None:
        chosen: Explanation | None = explain(schedule, verdict.findings[args.finding - 1])
        number = args.finding
    else:
        number, chosen = next(((k + 1, e) for k, e in explanations(schedule, verdict.findings, 1).items()), (0, None))
    print("accepted" if verdict.accepted else f"rejected, {len(verdict.findings)} findings")
    print(EXECUTED)
    if chosen is not None and chosen.state is not None:
        print(f"\nfinding {number}: {chosen.finding.message.splitlines()[0]}")
        return _hang(schedule, args.spin_timeout) if chosen.finding.rule == "LIVE" else _values(schedule, chosen)
    return _launches(schedule, verdict, args.spin_timeout, chosen)


def _hang(schedule: Schedule, spin_timeout_s: float) -> int:
    from amk_core.schedule import replay
    from amk_core.schedule.explanation import SHOWN as MOST
    from amk_core.schedule.explanation import wait_text
    from amk_core.schedule.messages import Wording

    steps, words = replay.replay_steps(schedule), Wording(schedule)
    one = replay.threads(schedule, steps, spin_timeout_s)
    print(f"{one.name}, {_steps(schedule, steps)}: {one.ran} of {steps * schedule.n_tasks} tasks ran")
    for b in one.blocked[:MOST]:
        print(
            f"  SM{b.queue}#{b.position} {words.task(b.task)} of step {b.step}: {wait_text(schedule, b.missing)}; "
            f"gave up after {spin_timeout_s:g} s without progress"
        )
    if len(one.blocked) > MOST:
        print(f"  ... and {len(one.blocked) - MOST} more queues")
    print("hang shown" if one.blocked else "no hang came up")
    return SHOWN if one.blocked else NOTHING


def _values(schedule: Schedule, e: Explanation) -> int:
    from amk_core.schedule import replay
    from amk_core.schedule.messages import Wording

    words, found = Wording(schedule), replay.two_orders(e)
    lines = dict[str, str]()
    n = len(e.steps)
    before = f"{n} task{'' if n == 1 else 's'} of the witness, then "
    one, other = (f"{words.task(t)} of step {i}" for i, t in (found.first, found.second))
    if e.entry is not None:
        enters = f"{words.place(found.second[1]).split('#')[0]} reads stop of step {found.first[0]}"
        orders = [("A", found.a, f"{before}{one}, then {enters}"), ("B", found.b, f"{before}{enters}, {one} has not run")]
    else:
        orders = [("A", found.a, f"{before}{one}, then {other}"), ("B", found.b, f"{before}{other}, then {one}")]
    pool = schedule.buffers[e.accesses[0].buffer].pool
    for name, seen, what in orders:
        print(f"order {name}: {what}")
        for x in seen:
            reader = "  it finds" if e.entry is not None else "  in the end there is"
            if x.touch is not None:
                reader = f"  {words.task(x.touch.task)} of step {x.touch.step} reads"
            text = _parts(words, x.parts)
            lines.setdefault(name, text)
            print(f"{reader} in bytes [{found.common[0]}:{found.common[1]}) of pool {pool}: {text}")
    if not found.differs:
        print("both orders give the same")
        return NOTHING
    print(f"wrong value shown: {lines['A']} or {lines['B']}, as the timing has it")
    return SHOWN


def _launches(schedule: Schedule, verdict: Verdict, spin_timeout_s: float, chosen: Explanation | None) -> int:
    """No two tasks to turn round: launches in several orders, which must all end, find data, and find the same."""
    from amk_core.schedule import replay
    from amk_core.schedule.messages import Wording

    steps, words = replay.replay_steps(schedule), Wording(schedule)
    if schedule.variables:
        print("launch variables stand at their least values")
    runs = [replay.launch(schedule, name, prefer, steps) for name, prefer in replay.ORDERS]
    runs.append(replay.threads(schedule, steps, spin_timeout_s))
    fault = False
    for r in runs:
        print(f"{r.name}, {_steps(schedule, steps)}: {r.ran} of {steps * schedule.n_tasks} tasks ran, {len(r.seen)} reads")
        fault |= bool(r.blocked) or _unwritten(schedule, words, r)
    differing = [key for key in runs[0].seen if any(r.seen.get(key) != runs[0].seen[key] for r in runs[1:])]
    if differing:
        print(f"{len(differing)} reads found different data in different orders")
    if fault or differing:
        print("fault shown")
        return SHOWN
    if verdict.accepted:
        print("clean: every order ends, and every read finds the same data in all of them")
        return CLEAN
    why = f": {chosen.note}" if chosen is not None and chosen.note else ""
    print(f"amk replay: a run shows nothing of {', '.join(sorted(verdict.rules))}{why}", file=sys.stderr)
    return NOTHING


def _unwritten(schedule: Schedule, words: Wording, r: Launch) -> bool:
    for step, x in r.unwritten[:4]:
        task = int(schedule.columns.acc_off.searchsorted(x, "right")) - 1
        buffer = words.buffer(int(schedule.columns.acc_buffer[x]))
        print(f"  {words.task(task)} of step {step} reads {buffer} and finds {_parts(words, r.seen[step, x])}")
    if len(r.unwritten) > 4:
        print(f"  ... and {len(r.unwritten) - 4} more reads of what was not written")
    return bool(r.unwritten)


def _parts(words: Wording, parts: Sequence[Segment]) -> str:
    from amk_core.schedule.replay import INITIAL

    names = []
    for _, _, stamp in parts:
        if stamp is None:
            names.append("what nobody wrote")
        else:
            names.append("initial data" if stamp == INITIAL else f"the bytes of {words.task(stamp[1])} of step {stamp[0]}")
    names = list(dict.fromkeys(names))
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _steps(schedule: Schedule, steps: int) -> str:
    return f"{steps} of {schedule.steps} steps" if schedule.steps > 1 else "1 step"
