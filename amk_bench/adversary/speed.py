"""How long the validator and the certificate checker take on one large schedule, and how much memory the process needed.

``python -m amk_bench.adversary.speed KIND N`` prints one point as JSON; every point is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk_bench.adversary.scale import KINDS as KINDS
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import pack

REPEATS = 3
REPEAT_UP_TO_S = 2.0  # what takes longer is measured once
PARSE_UP_TO = 40_000  # tasks; beyond it the text alone would be hundreds of megabytes
HEAD = f"{'kind':14}{'tasks':>9}{'queues':>8}{'steps':>7}{'parse s':>9}{'pack s':>8}{'validate s':>12}{'check s':>9}{'MiB':>7}"


@dataclass(frozen=True, slots=True)
class Point:
    """Processor seconds of one schedule.

    ``validate_s`` is search and certificate.  ``rss_mib`` is the most that the process held up to there, with the tables and the
    interpreter; ``check_rss_mib`` the same after the check.
    """

    kind: str
    tasks: int
    queues: int
    steps: int
    parse_s: float | None
    pack_s: float
    validate_s: float
    check_s: float
    rss_mib: float
    check_rss_mib: float
    clock_entries: int
    accepted: bool
    certified: bool

    def line(self) -> str:
        parse = "-" if self.parse_s is None else f"{self.parse_s:.2f}"
        return (
            f"{self.kind:14}{self.tasks:>9}{self.queues:>8}{self.steps:>7}{parse:>9}{self.pack_s:>8.3f}"
            f"{self.validate_s:>12.3f}{self.check_s:>9.3f}{self.rss_mib:>7.0f}"
        )


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of the median of a few runs, and the last result."""
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < REPEAT_UP_TO_S:
        result = None  # the one before is not held beside the next
        start = time.process_time()
        result = action()
        times.append(time.process_time() - start)
    return statistics.median(times), result


def rss_mib() -> float:
    """The peak of this program; getrusage's counts what the process that started it held, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(kind: str, n: int) -> Point:
    """Build a schedule of about ``n`` tasks and measure it in this process."""
    from amk_core import _native

    tasks, queues, steps, parse_s, pack_s, tables = _tables(kind, n)
    validate_s, answer = seconds(lambda: _native.validate(tables, True))
    before_check = rss_mib()
    errors: list[str] = ["rejected"]
    check_s, entries = 0.0, 0
    if answer["accepted"]:
        columns = [answer[k] for k in ("replay", "row", "row_off", "row_queue", "row_value")]
        entries = len(answer["row_queue"])
        check_s, errors = seconds(lambda: _native.check_certificate(tables, answer["unroll"], tasks, queues, *columns))
    return Point(
        kind,
        tasks,
        queues,
        steps,
        parse_s,
        pack_s,
        validate_s,
        check_s,
        before_check,
        rss_mib(),
        entries,
        answer["accepted"],
        not errors,
    )


def _tables(kind: str, n: int) -> tuple[int, int, int, float | None, float, bytes]:
    """Tasks, queues, steps, seconds to parse and to pack, and the tables; the schedule itself is not kept."""
    s = KINDS[kind](n)
    parse_s = None
    if s.n_tasks <= PARSE_UP_TO:
        text = json.dumps(s.to_json())
        start = time.process_time()
        s = Schedule.loads(text)
        parse_s = time.process_time() - start
    pack_s, tables = seconds(lambda: pack(s))
    return s.n_tasks, s.n_queues, s.steps, parse_s, pack_s, tables


def measure_apart(kind: str, n: int) -> Point:
    """:func:`measure` in a fresh process."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    # -P: a source tree in the working folder does not hide the package that is tested.
    command = [sys.executable, "-P", "-m", "amk_bench.adversary.speed", kind, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Point(**json.loads(done.stdout))


def record(points: Iterable[Point], limits_s: Iterable[tuple[int, float]], limit_mib: int) -> dict[str, Any]:
    """The curve with what it was measured on."""
    return {
        "what": "amk validator: processor seconds on one core; validate_s is search and certificate",
        "limits_s": [list(x) for x in limits_s], "limit_mib": limit_mib, "fingerprint": fingerprint(),
        "points": [dataclasses.asdict(p) for p in points],
    }  # fmt: skip


def fingerprint() -> dict[str, str]:
    """Machine, compiler and commit."""

    def ask(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")), cpu)
    return {
        "cpu": cpu, "system": platform.platform(), "python": platform.python_version(),
        "compiler": ask("c++", "--version").split("\n", 1)[0], "commit": ask("git", "describe", "--always", "--dirty"),
    }  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.speed", description=__doc__)
    p.add_argument("kind", choices=tuple(KINDS))
    p.add_argument("n", type=int, help="tasks, about")
    a = p.parse_args()
    print(json.dumps(dataclasses.asdict(measure(a.kind, a.n))))


if __name__ == "__main__":
    main()
