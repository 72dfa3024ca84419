"""The Ray runner: the cards of a cluster, one job a card at a time.

A node offers its cards as the resources of :attr:`amk_bench.fleet.devices.Device.resource`.  The loop decides which node runs which
job, and a job is tied to its node: when the node dies, so does the job, with an error, where Ray would otherwise wait for a place
to run it for ever.  Nothing is retried by Ray itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from amk_bench.fleet.cells import Outcome, State
from amk_bench.fleet.devices import CPU, PROCESSOR, Device, FleetError
from amk_bench.fleet.jobs import Job
from amk_bench.fleet.work import run_job

REACH_S = 5.0  # for the head of a cluster to take a connection
CONNECT_S = 45.0  # for the cluster to take this process in
MOST = 64  # cards of one kind on one node


def _reach(address: str) -> None:
    """FleetError where nobody listens: Ray itself would keep trying for a minute."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), REACH_S):
            return
    except (OSError, ValueError) as error:
        raise FleetError(f"no Ray head answers at {address} ({error}); start one with: ray start --head") from None


def _connect(ray: Any, address: str) -> None:
    """``ray.init``, given up after a stated time: it has none of its own where a head takes connections and does not answer."""
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    if thread.is_alive():
        raise FleetError(f"the Ray cluster at {address} did not answer within {CONNECT_S:.0f} s; see ray status on its head")
    if failed:
        raise FleetError(f"no Ray cluster at {address}: {failed[0]}; start one with: ray start --head") from failed[0]


class RayRunner:
    """Connects to a running cluster from one of its machines.

    ``address`` is HOST:PORT of the head; "auto" finds the cluster that this machine is part of.  FleetError where there is none.
    """

    name = "ray"

    def __init__(self, devices: Mapping[str, Device], address: str = "auto") -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise FleetError("the ray runner needs ray: pip install 'amk[fleet]', or use --runner local") from error
        if address.startswith("ray://"):
            raise FleetError(f"{address}: run the fleet on a machine of the cluster, with --address HOST:PORT of its head")
        if address != "auto":
            _reach(address)
        self._ray: Any = ray
        self._devices = {**devices, CPU: PROCESSOR}
        self._refs: dict[Any, tuple[Job, str]] = {}
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address)

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def slots(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for node in self._nodes():
            for key, device in self._devices.items():
                count = min(MOST, int(node["Resources"].get(device.resource, 0)))
                out.setdefault(key, []).extend(f"{node['NodeID']}/{i}" for i in range(count))
        return out

    def offers(self) -> str:
        nodes = self._nodes()
        told = [f"{len(slots)} {key}" for key, slots in self.slots().items() if slots]
        return f"the cluster has {len(nodes)} nodes with {', '.join(told) or 'no card of the fleet'}"

    def remedy(self, device: str) -> str:
        return "on a machine that has one, run the command that amk fleet devices --address HEAD prints"

    def start(self, job: Job, slot: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        device, node = self._devices[job.device], slot.split("/")[0]
        place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        task = self._ray.remote(num_cpus=0, resources={device.resource: 1}, max_retries=0, scheduling_strategy=place)(run_job)
        self._refs[task.options(name=job.key).remote(job, device)] = (job, slot)

    def wait(self, timeout_s: float) -> list[tuple[Job, Outcome]]:
        if not self._refs:
            time.sleep(timeout_s)
            return []
        ready, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        out = []
        for ref in ready:
            job, slot = self._refs.pop(ref)
            out.append((job, self._outcome(ref, slot)))
        return out

    def _outcome(self, ref: Any, slot: str) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(ref, timeout=REACH_S)
            return outcome
        except errors.RayTaskError as error:
            said = str(error).strip().rpartition("\n")[2]
            return Outcome(State.FAILED, f"the node could not run it: {said}; has it this version of amk?", node=slot)
        except (errors.RayError, errors.GetTimeoutError) as error:
            first = str(error).strip().partition("\n")[0]
            return Outcome(State.LOST, f"{type(error).__name__}: {first}", node=slot)

    def cancel(self, job: Job) -> None:
        for ref, (own, _) in list(self._refs.items()):
            if own.key == job.key:
                del self._refs[ref]
                with contextlib.suppress(Exception):
                    self._ray.cancel(ref, force=True)

    def close(self) -> None:
        for job, _ in list(self._refs.values()):
            self.cancel(job)
        if self._own:
            self._ray.shutdown()
