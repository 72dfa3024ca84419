"""Claims about processes that share a card: nobody is timed while another prepares, and nobody waits for the dead."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from amk_bench.baselines.turns import GONE, Turns


def test_processes_wait_until_all_have_come_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            Turns(tmp_path, 2, "other").mark("ready")

    monkeypatch.setattr(time, "sleep", nap)
    Turns(tmp_path, 2, "mine").meet("ready", time.monotonic() + 60)
    assert len(naps) == 3
    Turns(None, 5, "alone").meet("ready", time.monotonic() + 60)
    assert len(naps) == 3


def test_one_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    Turns(tmp_path, 3, "dead").mark(GONE)
    Turns(tmp_path, 3, "ended").mark("ready")
    Turns(tmp_path, 3, "ended").mark(GONE)
    start = time.monotonic()
    Turns(tmp_path, 3, "mine").meet("ready", start + 600)
    assert time.monotonic() - start < 5


def test_a_wait_has_an_end_and_is_not_repeated(tmp_path: Path) -> None:
    start = time.monotonic()
    mine = Turns(tmp_path, 2, "mine")
    mine.meet("ready", start + 0.3)
    assert time.monotonic() - start >= 0.3
    mine.meet("half", start + 600)
    with mine.turn("first", start + 600) as until:
        assert until == start + 600
    assert time.monotonic() - start < 60


def test_one_at_a_time_and_each_has_its_share(tmp_path: Path) -> None:
    """Three have 9 s together: the first may use 3 s, and what it leaves falls to the others."""
    inside, shares, most = [0], [], [0]

    def work(name: str) -> None:
        with Turns(tmp_path, 3, name).turn("first", end) as until:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            shares.append(until - time.monotonic())
            time.sleep(0.05)
            inside[0] -= 1

    end = time.monotonic() + 9.0
    threads = [threading.Thread(target=work, args=(f"m{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert shares[0] == pytest.approx(3.0, abs=0.3)
    assert shares[1] == pytest.approx(4.5, abs=0.4)
    assert shares[2] == pytest.approx(8.9, abs=0.8)


def test_the_lower_rank_has_its_turn_first(tmp_path: Path) -> None:
    order: list[int] = []

    def work(rank: int) -> None:
        mine = Turns(tmp_path, 3, "m", rank)
        mine.meet("ready", end)
        with mine.turn("first", end):
            order.append(rank)

    end = time.monotonic() + 60.0
    threads = [threading.Thread(target=work, args=(rank,)) for rank in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_alone_all_the_time_is_there(tmp_path: Path) -> None:
    with Turns(None, 1, "alone").turn("first", 12.5) as until:
        assert until == 12.5
