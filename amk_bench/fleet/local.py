"""The local runner: this machine's cards, one job a card at a time."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping

from amk_bench.fleet.cells import Outcome, State
from amk_bench.fleet.devices import CPU, PROCESSOR, Device, cards
from amk_bench.fleet.jobs import Job
from amk_bench.fleet.work import STOP_S, run_job
from amk_core import machine


class LocalRunner:
    """Starts jobs in threads that wait for their processes."""

    name = "local"

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self._devices = {**devices, CPU: PROCESSOR}
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._stop = threading.Event()
        self._done: queue.Queue[tuple[Job, Outcome]] = queue.Queue()
        self._threads: dict[str, tuple[threading.Thread, threading.Event]] = {}
        found = machine.find_gpus()
        usable = machine.visible(found, self._visible) if self._visible is not None else found
        self._slots = {key: [f"{key}/{i}" for i in range(len(own))] for key, own in cards(usable, devices).items()}
        self._slots[CPU] = [f"{CPU}/0"]
        self._here = ", ".join(gpu.name for gpu in found) or "no NVIDIA card"

    def slots(self) -> dict[str, list[str]]:
        return self._slots

    def offers(self) -> str:
        return f"this machine has {self._here}"

    def remedy(self, device: str) -> str:
        return "run it on a machine that has one, or over a cluster with --runner ray"

    def start(self, job: Job, slot: str) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(job, stop), name=job.key, daemon=True)
        self._threads[job.key] = (thread, stop)
        thread.start()

    def _work(self, job: Job, stop: threading.Event) -> None:
        try:
            outcome = run_job(job, self._devices[job.device], visible=self._visible, stop=stop)
        except Exception as error:
            outcome = Outcome(State.FAILED, f"{type(error).__name__}: {error}")
        self._done.put((job, outcome))

    def wait(self, timeout_s: float) -> list[tuple[Job, Outcome]]:
        out: list[tuple[Job, Outcome]] = []
        try:
            out.append(self._done.get(timeout=timeout_s))
            while True:
                out.append(self._done.get_nowait())
        except queue.Empty:
            return out

    def cancel(self, job: Job) -> None:
        self._threads[job.key][1].set()

    def close(self) -> None:
        """Stops what runs and waits for it to be gone."""
        for _, stop in self._threads.values():
            stop.set()
        for thread, _ in self._threads.values():
            thread.join(STOP_S)
