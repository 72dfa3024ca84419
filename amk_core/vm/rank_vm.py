"""The CUDA VM for ranks: one cooperative launch of clusters (sm_90 and later)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.ir import Schedule
from amk_core.vm import nvrtc
from amk_core.vm.cuda import CudaVM
from amk_core.vm.driver import CudaError, call, cluster_launch, pointers
from amk_core.vm.plan import Build, Dims, ProgramError
from amk_core.vm.program import Program
from amk_core.vm.rank_mail import cluster_pool
from amk_core.vm.rank_program import build_rank_program, is_ranked, plan_ranks, rank_dims


class TooFewClusters(CudaError):
    """The card does not place as many clusters at once as a program has ranks; ``fit``: how many it places."""

    def __init__(self, message: str, fit: int) -> None:
        super().__init__(message)
        self.fit = fit


PORTABLE_CLUSTER = 8  # CTAs that a cluster may have everywhere


class RankVM(CudaVM):
    """A program for ranks on one card; arguments as of :class:`~amk_core.vm.cuda.CudaVM`, in fast mode.

    ``amk_core.load(ranks=...)`` makes one; ``CudaVM`` refuses a schedule of ``lower_ranks``.  Mailboxes lie in shared memory, so
    :meth:`buffer` has none of them, and tagged parts have the places of ``vm/rank_maps.h``.
    """

    _entry = nvrtc.RANK_ENTRY
    _clusters = True
    cooperative = True  # ask the driver to place all clusters at once or refuse

    def _constants(self, s: Schedule) -> Dims:
        if not is_ranked(s):
            raise ProgramError("no task of this schedule belongs to a rank; CudaVM runs it")
        return rank_dims(s)

    def _plan(self, trace: bool, flight: tuple[int, int, int] | None) -> Build:
        self._cluster = cluster_pool(self._s).cluster
        facts = self._device.facts
        return plan_ranks(self._s, self._dims, facts.arch, facts.smem_bytes, trace=trace, flight=flight)

    def _config(self, stream: Any, cooperative: bool) -> Any:
        b = self.build
        return cluster_launch(self._s.n_queues, self._cluster, b.threads, b.shared_bytes, stream, cooperative=cooperative)

    def _check_room(self) -> None:
        if self._cluster > PORTABLE_CLUSTER:
            self._device.allow_large_clusters(self._run)
        fit, need = int(call("cuOccupancyMaxActiveClusters", self._run, self._config(0, False))), self._s.n_queues // self._cluster
        if fit < need:
            raise TooFewClusters(
                f"{need} clusters of {self._cluster} CTAs have to be on the card at once; {self._device.facts.name} places {fit}; "
                f"lower for at most {fit} ranks",
                fit,
            )

    def _records(self, task_weight: npt.NDArray[np.int64]) -> Program:
        return build_rank_program(self._s, self._dims, self.memory.address, task_weight, self._tape.address)

    def start_kernel(self, stream: Any) -> None:
        """The launch of clusters alone."""
        args, self._alive = pointers(self._launch)
        call("cuLaunchKernelEx", self._config(stream, self.cooperative), self._run, args.ctypes.data, 0)

    def run_task(self, *args: Any, **options: Any) -> None:
        """Refused: a task of a rank needs its cluster.

        Raises:
            ProgramError: always.
        """
        raise ProgramError("a task of a rank does not run alone; its inputs lie in the shared memory of its cluster")
