"""Claims about the fleet over Ray, on a cluster of processes of this machine: whoever dies, the run ends and the rest stands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_tools import SCRIPT, environment, gone, job, no_litter, pid_in

pytest.importorskip("ray", reason="the ray runner needs ray: pip install 'amk[fleet]'")

from amk_bench.fleet import devices
from amk_bench.fleet.cells import Cell, Folder, State
from amk_bench.fleet.devices import FleetError
from amk_bench.fleet.drive import Drive
from amk_bench.fleet.jobs import Job
from amk_bench.fleet.over_ray import RayRunner

STORE_BYTES = 80 << 20


class Nodes:
    """A cluster whose head offers nothing; nodes come and go."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self._added: list[Any] = []

    def add(self, **resources: float) -> Any:
        node = self.cluster.add_node(num_cpus=1, resources=resources, object_store_memory=STORE_BYTES)
        self._added.append(node)
        return node

    def kill(self, node: Any) -> None:
        self._added.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def clear(self) -> None:
        for node in list(self._added):
            self._added.remove(node)
            self.cluster.remove_node(node)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    short = tempfile.TemporaryDirectory(prefix="amk", ignore_cleanup_errors=True)  # Ray's sockets have 107 bytes for their path
    for key, value in environment(Path(short.name)).items():
        patch.setenv(key, value)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A dead node is noticed after 1.5 s, not 15.
    for name, value in (("initial_delay_ms", 500), ("period_ms", 500), ("timeout_ms", 1000), ("failure_threshold", 3)):
        patch.setenv(f"RAY_health_check_{name}", str(value))
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    )
    yield Nodes(made)
    made.shutdown()
    patch.undo()
    short.cleanup()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    yield cluster
    cluster.clear()


def drive(folder: Path, nodes: Nodes, jobs: list[Job], **settings: Any) -> list[Cell]:
    runner = RayRunner(devices.known(), nodes.cluster.address)
    return Drive(Folder(folder), runner, **{"absent_s": 1.0, "retries": 0, "shun_s": 2.0, **settings}).run(jobs)


def test_jobs_go_to_the_nodes_that_have_their_cards_and_the_rest_has_a_reason(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(amk_h200=1)
    nodes.add(amk_h200=1, amk_l4=1)
    wanted = [job("print", "result", model=str(i)) for i in range(3)]
    wanted += [job("print", "result", device="l4"), job("result", device="rtx5090")]
    started = time.monotonic()
    cells = drive(tmp_path, nodes, wanted)
    assert time.monotonic() - started < 40
    assert [c.state for c in cells] == [State.FINISHED] * 4 + [State.ABSENT]
    assert cells[4].reason.startswith("no node offers rtx5090 within 1 s: the cluster has 3 nodes with 1 l4, 2 h200; on a machine")
    assert Folder(tmp_path).log(cells[3].job).read_text() == "card GPU-l4-a\n"
    no_litter(tmp_path)


def test_a_node_that_dies_takes_its_job_and_nothing_else(nodes: Nodes, tmp_path: Path) -> None:
    doomed = nodes.add(amk_h200=1)
    nodes.add(amk_l4=1)
    a = job("result", model="a")
    b = job(f"start:{tmp_path}/b", f"until:{tmp_path}/never", model="b")
    c = job(f"start:{tmp_path}/c", f"until:{tmp_path}/go", "result", device="l4", model="c")
    killed: list[int] = []

    def say(text: str) -> None:
        """When everything is under way, the node of b dies; then c may end."""
        if text.startswith(b.key) and "started" in text:
            killed.append(pid_in(tmp_path / "b"))
            pid_in(tmp_path / "c")
            nodes.kill(doomed)
            (tmp_path / "go").touch()

    # b starts when a has ended: the loop calls say before it hands the job over, so the kill waits in a thread.
    import threading

    threads: list[threading.Thread] = []

    def later(text: str) -> None:
        threads.append(threading.Thread(target=say, args=(text,)))
        threads[-1].start()

    cells = drive(tmp_path / "out", nodes, [a, c, b], say=later)
    for thread in threads:
        thread.join(30)
    assert [x.state for x in cells] == [State.FINISHED, State.FINISHED, State.LOST]
    assert "died" in cells[2].reason.lower() or "unexpectedly" in cells[2].reason
    assert gone(killed[0])
    no_litter(tmp_path / "out")


def test_a_worker_that_is_killed_loses_its_job_which_runs_again(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(amk_h200=1)
    own = job(f"start:{tmp_path}/pid", f"until:{tmp_path}/go", "result")
    import threading

    def kill() -> None:
        pid = pid_in(tmp_path / "pid")
        worker = psutil.Process(psutil.Process(pid).ppid()).ppid()
        (tmp_path / "pid").rename(tmp_path / "first")
        os.kill(worker, signal.SIGKILL)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    (cell,) = drive(tmp_path / "out", nodes, [own], retries=1)
    thread.join(30)
    # The job of the killed worker may have ended before it was killed; its result went nowhere.
    assert cell.state is State.FINISHED
    assert cell.attempts[0].startswith("lost on ")
    assert (tmp_path / "pid").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_stopped_takes_its_jobs_along_and_the_next_goes_on(nodes: Nodes, tmp_path: Path, number: int) -> None:
    nodes.add(amk_h200=1)
    command = f"{sys.executable} {SCRIPT} {{out}} {{arch}} start:{tmp_path}/{{model}}.pid until:{tmp_path}/{{model}} result"
    argv = [sys.executable, "-m", "amk_core.cli", "fleet", "run", "--devices", "h200", "--models", "a,b", "--positions", "128"]
    argv += ["--runner", "ray", "--address", nodes.cluster.address, "--command", command, "--out", str(tmp_path / "out")]
    (tmp_path / "a").touch()
    run = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = pid_in(tmp_path / "b.pid", 60)
    run.send_signal(number)
    assert run.wait(60) == (-number if number == signal.SIGKILL else 130)
    assert gone(pid)
    no_litter(tmp_path / "out")
    folder = Folder(tmp_path / "out")
    assert [c.state for c in folder.cells()] == [State.FINISHED, State.STOPPED]
    first = json.loads(folder.result(folder.jobs()[0]).read_text())
    (tmp_path / "b").touch()
    assert subprocess.run(argv, capture_output=True, timeout=120).returncode == 0
    assert [c.state for c in folder.cells()] == [State.FINISHED, State.FINISHED]
    assert json.loads(folder.result(folder.jobs()[0]).read_text()) == first


def test_where_no_cluster_is_a_run_ends_at_once_and_says_so() -> None:
    started = time.monotonic()
    with pytest.raises(FleetError, match=r"no Ray head answers at 127\.0\.0\.1:1 "):
        RayRunner(devices.known(), "127.0.0.1:1")
    with pytest.raises(FleetError, match="run the fleet on a machine of the cluster"):
        RayRunner(devices.known(), "ray://head:10001")
    assert time.monotonic() - started < 10


def _root(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)


@pytest.fixture
def namespace(nodes: Nodes) -> Iterator[str]:
    """A network namespace of its own with a cable to this one; skips where the machine does not allow that."""
    import shutil

    name, ours, theirs = "amk-fleet-test", "amkfleet0", "amkfleet1"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and the command ip")
    try:
        _root("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no network namespace: {error.stderr.strip()}")
    try:
        _root("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _root("ip", "addr", "add", "10.213.77.1/24", "dev", ours)
        _root("ip", "link", "set", ours, "up")
        for words in (["addr", "add", "10.213.77.2/24", "dev", theirs], ["link", "set", theirs, "up"], ["link", "set", "lo", "up"]):
            _root("ip", "-n", name, *words)
        _root("ip", "-n", name, "route", "add", "default", "via", "10.213.77.1")
        yield name
    finally:
        for pid in _root("ip", "netns", "pids", name).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "link", "del", ours], capture_output=True)  # else it lives until the last process has gone
        _root("ip", "netns", "del", name)


@pytest.mark.amk_full("a node whose network goes away")
def test_a_node_whose_network_goes_away_costs_its_job_and_no_more(nodes: Nodes, namespace: str, tmp_path: Path) -> None:
    nodes.add(amk_l4=1)
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={nodes.cluster.address}", "--num-cpus=1"]
    start += ["--node-ip-address=10.213.77.2", f"--object-store-memory={STORE_BYTES}", '--resources={"amk_h200": 1}']
    _root("ip", "netns", "exec", namespace, *start)
    lost = job(f"start:{tmp_path}/pid", f"until:{tmp_path}/never", model="lost", limit_s=600)
    rest = job(f"until:{tmp_path}/cut", "result", device="l4", model="rest")
    import threading

    def cut() -> None:
        pid_in(tmp_path / "pid", 60)
        _root("ip", "link", "set", "amkfleet0", "down")
        (tmp_path / "cut").touch()

    thread = threading.Thread(target=cut)
    thread.start()
    started = time.monotonic()
    cells = drive(tmp_path / "out", nodes, [lost, rest])
    thread.join(30)
    assert [c.state for c in cells] == [State.LOST, State.FINISHED], [c.reason for c in cells]
    assert time.monotonic() - started < 120
    no_litter(tmp_path / "out")
