"""Running one job on the machine that has its card: find the card, hold it, pin the process to it, bring its result as bytes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amk_bench.fingerprint import hashed_uuid
from amk_bench.fleet.cells import Outcome, State
from amk_bench.fleet.devices import CPU, Device, cards
from amk_bench.fleet.jobs import Job
from amk_bench.results import ResultError, validate
from amk_core import machine, resources

LOG_BYTES = 256 * 1024  # the end of a log is kept
POLL_S = 0.1
STOP_S = 20.0  # for a job that is stopped to be gone; its supervisor needs twice its grace
BUSY_S = 600.0  # how long a job waits for a card that others hold


def _lock_file(uuid: str) -> Path:
    name = hashlib.sha256(uuid.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"amk-card-{name}.lock"


@contextlib.contextmanager
def held(uuids: list[str], wait_s: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[str | None]:
    """The first of these cards that no other job of this machine holds; None when all were held for ``wait_s`` seconds."""
    end, handle, uuid = time.monotonic() + wait_s, -1, None
    try:
        while uuid is None:
            for candidate in uuids:
                handle = os.open(_lock_file(candidate), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    uuid = candidate
                    break
                except OSError:
                    os.close(handle)
                    handle = -1
            if uuid is None and (time.monotonic() >= end or stopped()):
                break
            if uuid is None:
                time.sleep(POLL_S)
        yield uuid
    finally:
        if handle >= 0:
            os.close(handle)


def pinned(uuid: str | None) -> dict[str, str]:
    """The environment of a job: it sees one card and no other, or none."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid or "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1"}
    tree = resources.source_root()
    if tree is not None:  # a tree that is not installed is found by its path alone
        env["PYTHONPATH"] = os.pathsep.join([str(tree), *filter(None, [env.get("PYTHONPATH")])])
    return env


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def document_of(raw: bytes, device: Device, uuid: str | None) -> tuple[bytes, str | None]:
    """The result document in what a job wrote (itself, or the block of a pytest-benchmark file), and why it does not count.

    It has to follow the schema and to come from the device and the very card that the job was pinned to.
    """
    try:
        doc: Any = json.loads(raw)
        if isinstance(doc, dict) and "amk" in doc:
            doc = doc["amk"]
        validate(doc)
    except (ValueError, ResultError) as error:
        return b"", f"its result does not hold: {error}"
    stamp = doc["fingerprint"]
    if stamp.get("arch") != device.arch:
        return b"", f"its result is of {stamp.get('arch')}, not of {device.arch}"
    if uuid is not None and stamp.get("device_id") != hashed_uuid(uuid):
        return b"", "its result is of another card than the one that the job was pinned to"
    return (json.dumps(doc, indent=1, sort_keys=True, allow_nan=False) + "\n").encode(), None


def run_job(
    job: Job, device: Device, *, visible: str | None = None, stop: threading.Event | None = None, busy_s: float = BUSY_S
) -> Outcome:
    """Runs a job here and returns what it came to; never raises for what a job or a machine does wrong.

    ``visible``: as in CUDA_VISIBLE_DEVICES, the cards that may be used; None: all.  ``stop``: ends the job early.
    """
    node, stopped = platform.node(), (stop.is_set if stop is not None else lambda: False)
    if device.key == CPU:
        uuids: list[str] = []
    else:
        found = machine.find_gpus()
        usable = machine.visible(found, visible) if visible is not None else found
        uuids = [gpu.uuid for gpu in cards(usable, {device.key: device}).get(device.key, [])]
        if not uuids:
            here = ", ".join(f"{g.name} ({g.memory_bytes / 2**30:.0f} GiB)" for g in found) or "no NVIDIA card"
            return Outcome(State.ABSENT, f"the node offers {device.key} but shows {here}", node=node)
    # A processor is held too: two jobs that time themselves on it would each measure the other.
    with held(uuids or [CPU], busy_s, stopped) as uuid:
        if uuid is None:
            reason = "stopped" if stopped() else f"every {device.key} of the node was held by other jobs for {busy_s:.0f} s"
            return Outcome(State.STOPPED if stopped() else State.FAILED, reason, node=node)
        return _run(job, device, None if device.key == CPU else uuid, node, stopped)


def _run(job: Job, device: Device, uuid: str | None, node: str, stopped: Callable[[], bool]) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="amk-fleet-") as place:
        out, log = Path(place) / "result.json", Path(place) / "log.txt"
        command = job.filled(device.arch, str(resources.suites_dir()), str(out))
        with log.open("wb") as file:
            child = subprocess.Popen(
                [sys.executable, "-m", "amk_bench.fleet.supervise", *command], stdin=subprocess.PIPE, stdout=file,
                stderr=subprocess.STDOUT, env=pinned(uuid), cwd=resources.source_root() or place,
                start_new_session=True,
            )  # fmt: skip
            state = _wait(child, started + job.limit_s, stopped)
        seconds, card = time.monotonic() - started, hashed_uuid(uuid) if uuid else ""
        text = _tail(log)
        last = text.rstrip().rpartition("\n")[2][-300:] or "it printed nothing"

        def outcome(state: State, reason: str = "", document: bytes = b"") -> Outcome:
            return Outcome(state, reason, document, child.returncode, node, card, seconds, text)

        if state is State.STOPPED:
            return outcome(state, "the run was stopped")
        if state is State.TIMED_OUT:
            return outcome(state, f"not done after {job.limit_s:.0f} s; last line: {last}")
        if not out.exists():
            return outcome(State.FAILED, f"it ended with status {child.returncode} and no result; last line: {last}")
        document, fault = document_of(out.read_bytes(), device, uuid)
        return outcome(State.FAILED, fault) if fault else outcome(State.FINISHED, "", document)


def _wait(child: subprocess.Popen[bytes], deadline: float, stopped: Callable[[], bool]) -> State:
    """FINISHED when it ended by itself; otherwise its supervisor is told, and waited for."""
    assert child.stdin is not None
    while True:
        try:
            child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if not stopped() and time.monotonic() < deadline:
                continue
            state = State.STOPPED if stopped() else State.TIMED_OUT
        else:
            state = State.FINISHED
        child.stdin.close()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:  # a job that cannot be killed hangs in the driver; the run goes on without it
            child.kill()
        return state
