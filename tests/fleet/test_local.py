"""Claims about ``amk fleet`` on one machine: killed at any moment it leaves whole files, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_tools import SCRIPT, environment, gone, no_litter, pid_in, wait_for

from amk_bench.fleet.cells import Folder, State

pytestmark = pytest.mark.usefixtures("interruptible")


class Cli:
    """``amk fleet`` on a machine with two H200 and an L4 that are not there."""

    def __init__(self, tmp_path: Path) -> None:
        self.out, self.tmp = tmp_path / "out", tmp_path
        self.env = environment(tmp_path / "smi")

    def command(self, *words: str, devices: str = "h200", models: str = "m") -> list[str]:
        command = " ".join([sys.executable, str(SCRIPT), "{out}", "{arch}", *words])
        argv = [
            sys.executable,
            "-m",
            "amk_core.cli",
            "fleet",
            "run",
            "--devices",
            devices,
            "--models",
            models,
            "--positions",
            "128",
        ]
        return [*argv, "--command", command, "--out", str(self.out)]

    def run(self, *words: str, **asked: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words, **asked), env=self.env, capture_output=True, text=True, timeout=60)

    def start(self, *words: str, **asked: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words, **asked), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def status(self) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "amk_core.cli", "fleet", "status", str(self.out)]
        return subprocess.run([*argv, "--json"], env=self.env, capture_output=True, text=True, timeout=60)

    def states(self) -> dict[str, str]:
        return {c["job"]["model"]: c["state"] for c in json.loads(self.status().stdout)["cells"]}

    def pids(self) -> dict[str, int]:
        """Which process wrote each result."""
        return {p.name: json.loads(p.read_text())["fingerprint"]["pid"] for p in (self.out / "results").glob("*.json")}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_a_run_fills_its_cells_and_says_why_one_is_empty(cli: Cli) -> None:
    done = cli.run("result", devices="h200,rtx5090", models="a,b")
    assert done.returncode == 1
    assert "2 absent, 2 finished" in done.stdout
    assert "no node offers rtx5090: this machine has NVIDIA H200, NVIDIA H200, NVIDIA L4" in done.stdout
    no_litter(cli.out)
    before = cli.pids()
    assert cli.run("result", devices="h200", models="a,b").returncode == 0
    assert cli.pids() == before  # nothing was run again


def test_jobs_of_two_cards_run_side_by_side_each_on_its_own(cli: Cli) -> None:
    # Each waits for the other to have begun.
    run = cli.start(f"start:{cli.tmp}/{{model}}", f"until:{cli.tmp}/a", f"until:{cli.tmp}/b", "print", "result", models="a,b")
    assert run.wait(60) == 0
    said = sorted(p.read_text() for p in (cli.out / "logs").glob("*.txt"))
    assert said == ["card GPU-h200-a\n", "card GPU-h200-b\n"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_whole_files_and_no_process_and_goes_on(cli: Cli, number: signal.Signals) -> None:
    words = [f"start:{cli.tmp}/{{model}}.pid", f"until:{cli.tmp}/{{model}}", "result"]
    (cli.tmp / "a").touch()
    run = cli.start(*words, devices="l4", models="a,b,c")
    pid = pid_in(cli.tmp / "b.pid")
    assert cli.states()["a"] == "finished"
    run.send_signal(number)
    assert run.wait(30) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert gone(pid)
    no_litter(cli.out)
    assert cli.states() == {"a": "finished", "b": "stopped", "c": "pending"}
    before = cli.pids()
    (cli.tmp / "b").touch()
    (cli.tmp / "c").touch()
    assert cli.run(*words, devices="l4", models="a,b,c").returncode == 0
    assert cli.states() == dict.fromkeys("abc", "finished")
    assert before.items() <= cli.pids().items()


def test_killed_at_many_moments_the_folder_is_always_whole(cli: Cli) -> None:
    """SIGKILL while cells, results and logs are written as fast as they can be."""
    models = ",".join(f"m{i}" for i in range(12))
    kept: dict[str, int] = {}
    for wanted in (1, 3, 6):
        run = cli.start("result", models=models)
        wait_for(lambda n=wanted: len(list(cli.out.glob("results/*.json"))) >= n)  # type: ignore[misc]
        os.kill(run.pid, signal.SIGKILL)
        run.wait(30)
        for path in cli.out.rglob("*.json"):
            json.loads(path.read_text())
        finished = {p.job.key for p in Folder(cli.out).cells() if p.state is State.FINISHED}
        now = cli.pids()
        assert kept.keys() <= {f"{key}.json" for key in finished}
        assert all(now[name] == pid for name, pid in kept.items())
        kept = {f"{key}.json": now[f"{key}.json"] for key in finished}
    assert cli.run("result", models=models).returncode == 0
    assert kept.items() <= cli.pids().items()


def test_two_runs_do_not_work_in_one_folder(cli: Cli) -> None:
    run = cli.start(f"start:{cli.tmp}/pid", f"until:{cli.tmp}/go", "result")
    pid_in(cli.tmp / "pid")
    other = cli.run("result")
    assert other.returncode == 2
    assert "another fleet run works in this folder" in other.stderr.replace("\n", " ")
    (cli.tmp / "go").touch()
    assert run.wait(60) == 0


def test_a_folder_without_a_run_says_what_starts_one(cli: Cli) -> None:
    done = cli.status()
    assert done.returncode == 2
    assert "no fleet run has begun here" in done.stderr.replace("\n", " ")


def test_a_job_that_answers_no_makes_the_run_answer_no(cli: Cli) -> None:
    done = cli.run("result", "exit:1")
    assert done.returncode == 1
    assert "(status 1)" in done.stdout
