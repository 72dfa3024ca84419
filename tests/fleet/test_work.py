"""Claims about one job on one machine: it sees one card, its result is whole and of that card, and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fleet_tools import CARDS, environment, gone, job, pid_in

from amk_bench.fingerprint import hashed_uuid
from amk_bench.fleet import devices, work
from amk_bench.fleet.cells import State
from amk_bench.fleet.devices import PROCESSOR
from amk_bench.fleet.work import held, run_job

H200 = devices.known()["h200"]


def test_a_job_sees_one_card_and_its_result_comes_back_with_it(smi: Path) -> None:
    outcome = run_job(job("print", "result"), H200)
    assert (outcome.state, outcome.code) == (State.FINISHED, 0)
    assert outcome.log == "card GPU-h200-a\n"
    assert outcome.card == hashed_uuid("GPU-h200-a") == json.loads(outcome.document)["fingerprint"]["device_id"]
    assert list((smi / "smi").glob("amk-fleet-*")) == []


def test_gates_that_failed_are_a_result(smi: Path) -> None:
    outcome = run_job(job("result", "exit:1"), H200)
    assert (outcome.state, outcome.code) == (State.FINISHED, 1)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["print", "exit:3"], "it ended with status 3 and no result; last line: card GPU-h200-a"),
        ([], "it ended with status 0 and no result; last line: it printed nothing"),
        (["half"], "its result does not hold: "),
        (["other-card"], "its result is of another card than the one that the job was pinned to"),
        (["cpu-result"], "its result is of cpu, not of sm_90"),
    ],
)
def test_what_is_no_result_of_this_card_fails_with_its_reason(smi: Path, words: list[str], reason: str) -> None:
    outcome = run_job(job(*words), H200)
    assert outcome.state is State.FAILED
    assert outcome.reason.startswith(reason)
    assert outcome.document == b""


def test_a_job_on_a_processor_sees_no_card(smi: Path) -> None:
    outcome = run_job(job("print", "cpu-result", device="cpu"), PROCESSOR)
    assert (outcome.state, outcome.log) == (State.FINISHED, "card \n")


def test_a_node_that_does_not_have_what_it_offers_says_so(smi: Path) -> None:
    outcome = run_job(job("result", device="rtx5090"), devices.known()["rtx5090"])
    assert outcome.state is State.ABSENT
    assert outcome.reason.startswith("the node offers rtx5090 but shows NVIDIA H200 (140 GiB), NVIDIA H200 (140 GiB), NVIDIA L4")


def test_cards_outside_of_cuda_visible_devices_are_not_touched(smi: Path) -> None:
    assert run_job(job("print", "result"), H200, visible="GPU-h200-b").log == "card GPU-h200-b\n"
    assert run_job(job("result"), H200, visible="GPU-l4-a").state is State.ABSENT


def test_two_jobs_never_share_a_card(smi: Path) -> None:
    with held(["GPU-h200-a"], 1.0):
        assert run_job(job("print", "result"), H200).log == "card GPU-h200-b\n"
        with held(["GPU-h200-b"], 1.0):
            outcome = run_job(job("result"), H200, busy_s=0.2)
    assert (outcome.state, outcome.reason) == (State.FAILED, "every h200 of the node was held by other jobs for 0 s")


def test_a_job_over_its_limit_is_ended_with_all_its_children(smi: Path) -> None:
    started = time.monotonic()
    outcome = run_job(job(f"child:{smi}/child", "print", f"until:{smi}/never", limit_s=1.0), H200)
    assert (outcome.state, outcome.reason) == (State.TIMED_OUT, "not done after 1 s; last line: card GPU-h200-a")
    assert time.monotonic() - started < 10
    assert gone(pid_in(smi / "child"))


def test_what_a_job_leaves_behind_is_ended(smi: Path) -> None:
    assert run_job(job(f"child:{smi}/child", "result"), H200).state is State.FINISHED
    assert gone(pid_in(smi / "child"))


def test_a_stopped_job_is_ended(smi: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    outcome = run_job(job(f"start:{smi}/pid", f"until:{smi}/never"), H200, stop=stop)
    assert outcome.state is State.STOPPED
    assert gone(pid_in(smi / "pid"))


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_a_job_does_not_outlive_a_worker_or_supervisor_that_is_killed(tmp_path: Path, victim: str) -> None:
    code = (
        "from fleet_tools import job; from amk_bench.fleet import devices; from amk_bench.fleet.work import run_job\n"
        f"run_job(job('child:{tmp_path}/child', 'start:{tmp_path}/pid', 'until:{tmp_path}/never'), devices.known()['h200'])"
    )
    env = environment(tmp_path / "smi", CARDS)
    env["PYTHONPATH"] += f":{Path(__file__).parent}"
    worker = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        pid = pid_in(tmp_path / "pid")
        import psutil

        supervisor = psutil.Process(pid).ppid()
        os.kill(worker.pid if victim == "worker" else supervisor, signal.SIGKILL)
        assert gone(pid)
        if victim == "worker":
            assert gone(pid_in(tmp_path / "child"))
    finally:
        worker.kill()
        worker.wait()
        if (tmp_path / "child").exists():
            import contextlib

            with contextlib.suppress(ProcessLookupError):
                os.kill(pid_in(tmp_path / "child"), signal.SIGKILL)


def test_a_command_that_is_not_there_is_a_failed_job(smi: Path) -> None:
    from dataclasses import replace

    outcome = run_job(replace(job(), argv=("no-such-program",)), H200)
    assert outcome.state is State.FAILED
    assert "status 127" in outcome.reason
    assert "no-such-program cannot be started" in outcome.reason


def test_the_block_of_a_benchmark_file_is_the_result(smi: Path) -> None:
    outcome = run_job(job("result"), H200)
    whole = json.dumps({"benchmarks": [], "amk": json.loads(outcome.document)}).encode()
    assert work.document_of(whole, H200, "GPU-h200-a") == (outcome.document, None)
