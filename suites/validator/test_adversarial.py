"""The validator under attack: every class of the attack suite, labelled by the exhaustive oracle.

Default: 7 160 schedules.  ``--quick``: 1 600 (says so).  ``--full``: 200 000, resumable: a stopped run goes on where it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amk_bench.adversary import run as attack
from amk_bench.adversary.net import Json, Net, access
from amk_core.schedule import Schedule, validate

QUICK_N = 1_600
UNDECIDED_SHARE = 0.001  # outside the drift class; real lowerings: none
SEED = 0


def size(config: pytest.Config) -> int:
    if config.getoption("--full", default=False):
        return attack.FULL_N
    return QUICK_N if config.getoption("--quick", default=False) else attack.DEFAULT_N


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[str, attack.Row]:
    """The table of the run, printed once."""
    n = size(request.config)
    out = None
    if n == attack.FULL_N:
        cache: Any = getattr(request.config, "cache", None)
        out = cache.mkdir("amk-attack") / f"full-{SEED}.jsonl" if cache is not None else None
    workers = min(2, len(os.sched_getaffinity(0)))
    rows = attack.run(n, SEED, out=out, processes=workers)
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        short = " (--quick: fewer than the default 7 160)" if n == QUICK_N else ""
        print(f"\n{n} schedules, labelled by the exhaustive oracle{short}\n{attack.table(rows)}")
    return {r.name: r for r in rows}


@pytest.mark.parametrize("name", [*attack.CLASSES, attack.REGRESSION_CLASS])
def test_no_false_accept_and_no_false_reject(name: str, rows: dict[str, attack.Row]) -> None:
    row = rows[name]
    assert (row.false_accepts, row.false_rejects) == (0, 0), "\n".join(row.failures[:5])


def large(tasks: int, ordered: bool) -> Json:
    """Many tasks on two queues that meet in a counter now and then; the last task of each writes the same bytes."""
    n = Net(2, 2)
    x, c, d, free = n.buffer(1), n.counter(), n.counter(), n.counter()
    for i in range(tasks // 2 - 1):
        n.task(0, [], [], [(free, 1, -1)] if i == 0 else [], [(c, 1)])
        n.task(1, [], [], [(c, i + 1)] if i % 100 == 0 else [])
    n.task(0, [], [access(x, (0, 1))], [], [(d, 1)])
    n.task(1, [], [access(x, (0, 1))], [(d, 1)] if ordered else [], [(free, 1)])
    return n.json()


@pytest.mark.parametrize("tasks", [9_000, 40_000])
def test_no_rule_is_skipped_for_size(tasks: int) -> None:
    """The predecessor checked no race above 8 000 tasks."""
    assert validate(Schedule.from_json(large(tasks, ordered=True))).accepted
    assert validate(Schedule.from_json(large(tasks, ordered=False))).rules == {"RACE"}


def test_hardly_anything_is_undecided(rows: dict[str, attack.Row]) -> None:
    rest = [r for r in rows.values() if r.name not in attack.MAY_BE_UNDECIDED]
    assert rows["real_lowering"].undecided == 0
    assert sum(r.undecided + r.too_large for r in rest) <= UNDECIDED_SHARE * sum(r.n for r in rest)


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Killed in the middle, and the last line torn: the second run does the rest, and the table is that of one run."""
    n, out = 3 * len(attack.CLASSES), tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "amk_bench.adversary.run", "--n", str(n), "--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(attack.__file__).parents[2])
    while first.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 8):
        time.sleep(0.02)
    first.kill()
    assert first.wait() == -signal.SIGKILL, "the run ended before it was killed"
    torn = out.read_bytes()
    done = [json.loads(line)["row"]["name"] for line in torn.splitlines()[:8]]
    out.write_bytes(torn[: torn.rfind(b"{") + 20])
    judged: list[str] = []

    def judge(s: Schedule) -> attack.Judgement:
        judged.append("")
        return attack.validator(s)

    rows = attack.run(n, SEED, out=out, judge=judge)
    assert 0 < len(judged) < n - len(done)
    assert attack.table(rows) == attack.table(attack.run(n, SEED))
    assert sum(r.n for r in rows) == n


def test_the_run_has_the_promised_size(rows: dict[str, attack.Row], request: pytest.FixtureRequest) -> None:
    total = attack.totals(rows.values())
    assert total.n == size(request.config)
    assert total.unsafe > total.n / 3  # an attack that hardly attacks would prove nothing
    try:
        record: Any = request.getfixturevalue("amk_record")
    except pytest.FixtureLookupError:  # the suite also runs without the plugin
        return
    record.note(
        f"validator: {total.n} schedules, {total.unsafe} unsafe; {total.false_accepts} false accepts, "
        f"{total.false_rejects} false rejects, {total.undecided} undecided"
    )
