"""Claims about rivals in processes of their own, with one made of arithmetic: handshake, crash, silence, wrong tokens, restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from amk_bench.cell import Cell, Plan
from amk_bench.clock import Sample
from amk_bench.measure import compare, ended, sittings
from amk_bench.rivals.remote import RemoteEngine, TracingEngine
from amk_bench.rivals.resident import Resident, RivalBroke

SCRIPT = Path(__file__).with_name("fake_worker.py")
V = 97
PLAN = Plan(tokens=4, blocks=6, seed=1)


def resident(start_s: float = 60.0, call_s: float = 60.0, **how: Any) -> Resident:
    return Resident([sys.executable, str(SCRIPT), json.dumps(how)], start_s=start_s, call_s=call_s)


def remote(**how: Any) -> RemoteEngine:
    return RemoteEngine("fake", "fp32", resident(**how))


def cell(position: int = 5, batch: int = 1) -> Cell:
    return Cell("toy", "toy", "exact", batch, tuple(range(position)), tuple(range(V)))


def score(ids: Any, keep: int) -> Any:
    """The arithmetic as logits: row i is what follows ids[i]."""
    rows = np.zeros((len(ids), V), np.float32)
    for i, token in enumerate(ids):
        rows[i, (3 * token + i) % V] = 1.0
    return rows[-keep:]


class Ours:
    """The same arithmetic here, and a clock that says 50 us a token."""

    name, precision = "ours", "fp32"

    def __init__(self) -> None:
        self.prepared = 0

    def available(self) -> None:
        return None

    def prepare(self, prefix: Any, batch: int, room: int) -> None:
        self._at = len(prefix)
        self.prepared += 1

    def rewind(self) -> None:
        pass

    def decode(self, first: Any, tokens: int) -> list[list[int]]:
        chains = []
        for token in first:
            chain = []
            for i in range(tokens):
                token = (3 * int(token) + self._at + i) % V
                chain.append(token)
            chains.append(chain)
        return chains

    def logits(self, ids: Any, keep: int = 0) -> Any:
        return score(ids, keep or len(ids))


class Fixed:
    name = "fixed"

    def measure(self, work: Any) -> Any:
        return Sample(200e-6, 200e-6), work()


def run(engine: RemoteEngine, plan: Plan = PLAN, here: Cell | None = None) -> Any:
    return compare(Ours(), engine, here or cell(), plan, Fixed(), 0.01, score, baseline_clock=engine.clock)[0]


def test_a_rival_is_judged_by_the_clock_of_its_own_process() -> None:
    engine = remote(us=100.0)
    record = run(engine)
    assert record.verdict == "WIN"
    assert record.baseline_us == pytest.approx(100.0)
    assert record.ours_us == pytest.approx(50.0)
    assert record.clock == "fixed; fake clock"
    assert engine.busy_seconds([1], 8) == pytest.approx(40e-6)
    assert engine.describe()["fake"] == "1.0"
    engine.close()
    assert not engine.resident.running


@pytest.mark.parametrize("batch", [1, 4])
def test_wrong_tokens_are_invalid(batch: int) -> None:
    record = run(remote(wrong=True), here=cell(batch=batch))
    assert record.verdict == "INVALID"
    assert record.reason.startswith("gate of fake: greedy tokens: ")
    assert record.baseline_us is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"start": "dies"}, "it ended during start, status 9; it said: a banner that libraries print | out of memory on the card"),
        ({"start": "raises"}, "it could not start: RuntimeError: no such model"),
        ({"start": "hangs", "start_s": 1.0}, "no answer to start within 1 s"),
        ({"start": "garbage"}, "not an answer: b'not json'"),
    ],
)
def test_a_rival_that_does_not_start_says_why_in_time(how: dict[str, Any], said: str) -> None:
    own = resident(**how)
    started = time.monotonic()
    with pytest.raises(RivalBroke) as broke:
        own.start()
    assert said in str(broke.value)
    assert time.monotonic() - started < 20
    assert not own.running


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(RivalBroke, match="no-such-engine cannot be started"):
        Resident(["no-such-engine"]).start()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("dies", "it ended during decode, status 3"),
        ("hangs", "no answer to decode within 1 s"),
        ("raises", "decode: ValueError: sequence too long"),
    ],
)
def test_a_rival_that_breaks_in_a_call_is_an_error_and_can_be_started_again(call: str, said: str) -> None:
    engine = RemoteEngine("fake", "fp32", resident(call_s=1.0, at=7, call=call))
    with pytest.raises(RivalBroke, match=said):
        run(engine)
    assert engine.resident.running == (call == "raises")
    engine.restart()
    assert engine.decode([1], 2) == [[(3 + 5) % V, (3 * 8 + 6) % V]]
    engine.close()


def test_what_its_libraries_print_is_no_answer() -> None:
    engine = remote()
    engine.prepare([1, 2], 1, 8)
    assert engine.decode([1], 1) == [[5]]
    assert engine.resident.last_words().endswith("step")
    engine.close()


def test_a_measurement_in_two_sittings_has_a_restart_between_them() -> None:
    engine, ours = remote(), Ours()
    work = sittings(ours, engine, cell(), PLAN, Fixed(), 0.01, score, baseline_clock=engine.clock, halves=True)
    next(work)
    assert ours.prepared == 1
    first = engine.resident._process
    assert first is not None
    engine.restart()
    record, timing = ended(work)
    assert engine.resident.starts == 2
    assert ours.prepared == 2
    assert record.verdict == "WIN"
    assert timing is not None
    assert len(timing.blocks) == PLAN.blocks
    assert first.returncode is not None
    engine.close()


def test_a_rival_that_is_another_after_its_restart_is_invalid() -> None:
    engine = remote()
    work = sittings(Ours(), engine, cell(), PLAN, Fixed(), 0.01, score, baseline_clock=engine.clock, halves=True)
    next(work)
    engine.resident._command[-1] = json.dumps({"wrong": True})
    engine.restart()
    record, timing = ended(work)
    assert (record.verdict, timing) == ("INVALID", None)
    assert record.reason.startswith("after a restart, gate of fake: ")
    engine.close()


def test_a_call_without_its_time_is_an_error() -> None:
    engine = remote()
    with pytest.raises(RivalBroke, match="without its time"):
        engine.clock.measure(lambda: 1)


def test_logits_come_through_a_file() -> None:
    engine = TracingEngine("fake", "fp32", resident())
    engine.prepare([1], 2, 4)
    assert engine.trace([[1, 2], [3, 4], [5, 6]]).shape == (3, 2, V)
    assert engine.logits([1, 2, 3], 2).shape == (2, V)
    engine.close()


def _gone(pid: int) -> bool:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_helpers_of_a_rival_end_with_it(tmp_path: Path) -> None:
    own = resident(helper=str(tmp_path / "pid"))
    own.start()
    own.close()
    assert _gone(int((tmp_path / "pid").read_text()))


def test_a_rival_does_not_outlive_the_judge(tmp_path: Path) -> None:
    place = str(tmp_path / "pid")
    code = (
        "import os, sys, time; from amk_bench.rivals.resident import Resident\n"
        f"r = Resident([sys.executable, {str(SCRIPT)!r}, '{{}}']); r.start()\n"
        f"open({place!r} + '.new', 'w').write(str(r._process.pid)); os.rename({place!r} + '.new', {place!r})\n"
        "time.sleep(1000)"
    )
    root = str(Path(__file__).parents[2])
    judge = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root})
    end = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < end:
        time.sleep(0.05)
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    assert _gone(int((tmp_path / "pid").read_text()))


def test_a_process_that_was_asked_and_not_waited_for_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped while an engine computes does not wait for it."""
    engine = remote(at=1, call="hangs")
    engine.prepare([1], 1, 4)

    def stopped(*_: Any) -> Any:
        raise SystemExit(143)

    monkeypatch.setattr(engine.resident, "_receive", stopped)
    with pytest.raises(SystemExit):
        engine.decode([1], 2)
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 5
    assert not engine.resident.running
