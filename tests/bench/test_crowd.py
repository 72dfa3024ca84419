"""A crowd's verdicts, on a card that is not there: what changes between launches, and what is written behind a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_card import FakeCard

from amk_bench import crowd
from amk_bench.device_cases import Case
from amk_core.vm import driver

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")

CASE = Case("pair", "small", "fast", batch=2, p0=(0, 3), tokens=(4, 4), steps=4, context=128)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> FakeCard:
    monkeypatch.setenv("AMK_HOME", str(tmp_path_factory.getbasetemp() / "crowd"))
    made = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: made)
    return made


def sampler(card: FakeCard, launch: Any) -> None:
    number = card.view(launch["variables"], np.int32, int(launch["n_variables"]) + 1)[-1]
    ring = card.view(launch["ring"], np.uint64, 2 * int(launch["steps"]))
    ring[:] = [(int(number) + i // 2 + 1) << 32 | 7 for i in range(len(ring))]


def test_equal_launches_that_stay_inside_are_good(card: FakeCard, capsys: Any) -> None:
    card.work = sampler
    assert crowd.repeat(CASE, 0.2) == 0
    assert "different: none, changed at once: nothing" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["inside", "behind"])
def test_one_other_byte_is_told(place: str, card: FakeCard, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the third launch: a stored key, or a byte behind the cache."""
    made: list[Any] = []
    guarded = crowd.guarded
    monkeypatch.setattr(crowd, "guarded", lambda case, device: made.append(guarded(case, device)) or made[-1])
    n = 0

    def work(c: FakeCard, launch: Any) -> None:
        nonlocal n
        n += 1
        sampler(c, launch)
        if n == 3:
            vm = made[0]
            memory, offset = vm.memory.place(vm.memory.index("L1.k"))
            at = memory.address + offset if place == "inside" else memory.address + vm.schedule.pool_bytes("kv") + 5
            c.view(at, np.uint8)[0] ^= 1

    card.work = work
    assert crowd.repeat(CASE, 0.3) == 1
    assert ("{'k': 1}" if place == "inside" else "{'behind kv': ") in capsys.readouterr().out
    assert n > 3


def test_a_stray_write_of_every_launch_is_told_too(card: FakeCard, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    guarded = crowd.guarded
    monkeypatch.setattr(crowd, "guarded", lambda case, device: made.append(guarded(case, device)) or made[-1])

    def work(c: FakeCard, launch: Any) -> None:
        sampler(c, launch)
        c.view(made[0].pool("act").address + made[0].schedule.pool_bytes("act"), np.uint8)[0] = 0

    card.work = work
    assert crowd.repeat(CASE, 0.1) == 1
    assert "changed at once: ['behind act']" in capsys.readouterr().out


def test_a_child_that_dies_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("AMK_HOME", str(tmp_path))
    if driver.library_present():
        pytest.skip("a card may be here")
    assert crowd.crowd(crowd.CASES[:1], 0.1) == 1
    assert "FAIL" in capsys.readouterr().out
