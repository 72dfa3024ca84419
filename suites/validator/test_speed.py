"""The validator's speed and memory on large schedules: every kind, one core, processor time.

Default: 32 000 tasks.  ``--full``: up to 1 000 000.  Every schedule has a process of its own, whose memory is counted.
With ``--update-reports`` the curve is written to ``reports/data/validator/``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from amk_bench.adversary import speed
from amk_bench.adversary.tally import save

SIZES, FULL_SIZES, QUICK_SIZES = (32_000,), (8_000, 32_000, 100_000, 1_000_000), (8_000,)
REPORTS = Path(__file__).resolve().parents[2] / "reports" / "data" / "validator"
MIB_PER_PROCESS = 4096
# Search and certificate on one core, seconds, up to so many tasks.
LIMITS_S = ((32_000, 0.2), (100_000, 0.5), (1_000_000, 5.0))


def limit_s(tasks: int) -> float:
    """The target for a schedule of this size; sizes are rounded to whole layers, so a little more counts as the same."""
    return next(seconds for most, seconds in LIMITS_S if tasks <= most * 1.05)


@pytest.fixture(scope="module")
def points(request: pytest.FixtureRequest) -> list[speed.Point]:
    config = request.config
    full = config.getoption("--full", default=False)
    sizes = FULL_SIZES if full else QUICK_SIZES if config.getoption("--quick", default=False) else SIZES
    out: list[speed.Point] = []
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + speed.HEAD)
        for n in sizes:
            for kind in speed.KINDS:
                out.append(speed.measure_apart(kind, n))
                print(out[-1].line(), flush=True)
    if full and config.getoption("--update-reports", default=False):
        curve = "\n".join([speed.HEAD, *(p.line() for p in out)]) + "\n"
        save(REPORTS / f"{time.strftime('%Y-%m-%d')}-speed.json", speed.record(out, LIMITS_S, MIB_PER_PROCESS), curve)
    return out


def test_every_kind_is_accepted_and_its_certificate_holds(points: list[speed.Point]) -> None:
    assert [(p.kind, p.tasks) for p in points if not (p.accepted and p.certified)] == []


def test_search_and_certificate_meet_the_targets(points: list[speed.Point]) -> None:
    """Processor time, the median of three: a busy machine costs little.  A machine half as fast may say so."""
    slack = float(os.environ.get("AMK_SPEED_SLACK", "1"))
    late = [p for p in points if p.validate_s > limit_s(p.tasks) * slack]
    assert not late, "\n".join([speed.HEAD, *(p.line() for p in late)])


def test_memory_stays_below_four_gigabytes(points: list[speed.Point]) -> None:
    assert max(p.rss_mib for p in points) < MIB_PER_PROCESS
