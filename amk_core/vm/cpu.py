"""The CPU VM: runs certified tables with one thread a queue and real waits.  It is the reference and the default without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core import _native
from amk_core.schedule import Certificate, check_certificate, ops
from amk_core.schedule.ir import DTYPES
from amk_core.schedule.tables import MAGIC, read_sections
from amk_core.vm import CertificateRefused, Fault, LaunchAborted, LaunchResult, VmFault

SPIN_TIMEOUT_S = 60.0  # far above any body on a busy machine; a fault, not a performance limit

# numpy views of the storage dtypes; bfloat16 stays uint16 so that no optional dtype leaks into callers
_VIEW: Mapping[str, Any] = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "b32": np.uint32, "bf16": np.uint16}


def check(tables: bytes, certificate: object) -> None:
    """Let the independent checker decide.

    Raises:
        CertificateRefused: no certificate, or one that is not accepted for exactly these tables.
    """
    if certificate is None:
        raise CertificateRefused("the tables carry no certificate; run amk_core.schedule.validate first and pass its certificate")
    if not isinstance(certificate, Certificate | bytes):
        raise CertificateRefused(f"a certificate is required, seen {type(certificate).__name__}")
    errors = check_certificate(tables, certificate)
    if errors:
        raise CertificateRefused(
            f"the certificate is refused: {'; '.join(errors)}; validate the schedule that these tables were packed from"
        )


class CpuVM:
    """One program: certified tables, a weight tape, tables and inputs, and the memory of its pools.

    Args:
        tables: the bytes of ``tables.pack``.
        certificate: of exactly these bytes.
        task_weight: int64 [n_tasks], byte offset of each task's weight tile in the tape, -1 for none (``TapeLayout.locate``).
        tape: uint8, 64-byte aligned.
        tape_dtype: ``f32`` or ``bf16``, of the weights that are not quantised.
        bound: arrays for buffers of kind table or input, by buffer name; they are used in place and never written.  What is not
            bound lies in its pool and is filled through :meth:`buffer`.
        pools: memory for pools that programs share (the KV cache), by pool id: uint8 arrays, for instance ``other.pool("kv")``.
        isa: ``avx512``, ``avx2`` or ``baseline``; default: the environment variable AMK_ISA, else the best this machine has.

    Raises:
        CertificateRefused: see :func:`check`.
        ValueError: anything else that does not fit together; the message names task, buffer or offset.
    """

    def __init__(
        self, tables: bytes, certificate: object, *, task_weight: npt.NDArray[np.int64], tape: npt.NDArray[np.uint8],
        tape_dtype: str, bound: Mapping[str, npt.NDArray[Any]] | None = None,
        pools: Mapping[str, npt.NDArray[np.uint8]] | None = None, isa: str | None = None,
    ) -> None:  # fmt: skip
        check(tables, certificate)
        self._start(tables, task_weight, tape, tape_dtype, bound or {}, pools or {}, isa)

    def _start(
        self, tables: bytes, task_weight: npt.NDArray[np.int64], tape: npt.NDArray[np.uint8], tape_dtype: str,
        bound: Mapping[str, npt.NDArray[Any]], pools: Mapping[str, npt.NDArray[np.uint8]], isa: str | None,
    ) -> None:  # fmt: skip
        raw = {name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in bound.items()}
        self._program = _native.CpuProgram(tables, task_weight, tape, tape_dtype, raw, dict(pools), isa)
        rows = read_sections(MAGIC, tables)["buffers"].reshape(-1, 9)
        names = self._program.names["buffers"]
        self._views = {
            name: (DTYPES[int(row[1])], (int(row[3]), int(row[4]))) for (name, _, _), row in zip(names, rows, strict=True)
        }

    @property
    def isa(self) -> str:
        """The instruction set of the kernels; it changes the speed, never a bit."""
        return str(self._program.isa)

    def launch(
        self, steps: int, variables: Sequence[int], *, spin_timeout_s: float = SPIN_TIMEOUT_S,
        perturb_seed: int | None = None, poison: bool = False,
    ) -> None:  # fmt: skip
        """See :class:`amk_core.vm.VirtualMachine`; ``perturb_seed`` adds seeded delays around waits, bodies and signals,
        ``poison`` fills every step buffer with NaN first."""
        self._program.launch(steps, [int(v) for v in variables], spin_timeout_s, perturb_seed, poison)

    def wait(self) -> LaunchResult:
        """See :class:`amk_core.vm.VirtualMachine`.  Ctrl-C aborts the launch and then raises KeyboardInterrupt."""
        return _result(self._program.wait())

    def poll(self, steps: int = 0, timeout_s: float = 0.0) -> int:
        """See :class:`amk_core.vm.VirtualMachine`."""
        return int(self._program.poll(steps, timeout_s))

    @property
    def running(self) -> bool:
        """A launch is in flight."""
        return bool(self._program.running)

    def abort(self) -> None:
        """See :class:`amk_core.vm.VirtualMachine`."""
        self._program.abort()

    def run_task(self, task: int, step: int, variables: Sequence[int]) -> LaunchResult:
        """The body of one task alone, without waits and signals."""
        return _result(self._program.run_task(task, step, [int(v) for v in variables]))

    def buffer(self, name: str) -> npt.NDArray[Any]:
        """See :class:`amk_core.vm.VirtualMachine`."""
        raw: npt.NDArray[np.uint8] = self._program.buffer(name)
        dtype, shape = self._views[name]
        return raw.view(_VIEW[dtype]).reshape(shape) if dtype in _VIEW else raw

    def pool(self, name: str) -> npt.NDArray[np.uint8]:
        """See :class:`amk_core.vm.VirtualMachine`."""
        raw: npt.NDArray[np.uint8] = self._program.pool(name)
        return raw


def _result(raw: Mapping[str, Any]) -> LaunchResult:
    if raw["fault"] is not None:
        f = dict(raw["fault"])
        f["op"] = ops.BY_CODE[f["op"]].name
        raise VmFault(Fault(**f))
    if raw["aborted"]:
        raise LaunchAborted(f"aborted after {raw['steps']} steps")
    return LaunchResult(raw["steps"], raw["stopped"])
