"""A rival in its own process as an engine: called block by block, it reads its own clock around the decode steps alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from amk_bench.clock import Sample
from amk_bench.engine import F32
from amk_bench.rivals.resident import Resident, RivalBroke

T = TypeVar("T")


class RemoteClock:
    """The time of a call is the one that the rival's process measured in it; the judge's own reading would hold the way there.

    The window holds as many decode steps as the call returned tokens, in the steady state of the engine.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        return str(self._engine.resident.told.get("clock", "the rival's own"))

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        self._engine.sample = None
        result = work()
        if self._engine.sample is None:
            raise RivalBroke(f"{self._engine.name}: a call came back without its time")
        return self._engine.sample, result


class RemoteEngine:
    """An engine (:class:`amk_bench.engine.Engine`) whose work is done in ``resident``.

    It shows tokens and times; ``logits`` and, where the worker can feed tokens of ours, ``trace`` for the check of logits.
    """

    def __init__(self, name: str, precision: str, resident: Resident) -> None:
        self.name, self.precision, self.resident = name, precision, resident
        self.sample: Sample | None = None
        self.clock = RemoteClock(self)
        self._at: tuple[list[int], int, int] | None = None

    def available(self) -> str | None:
        return None

    def launch(self) -> None:
        """Starts the process and goes on: what it loads and compiles takes a minute in which others can do the same."""
        if not self.resident.running:
            self.resident.launch()

    def begin(self) -> None:
        """The process runs and is ready; started where it does not."""
        if not self.resident.ready:
            self.resident.start()

    def restart(self) -> None:
        """Ends the process and starts a fresh one, in the cell it was in."""
        self.resident.close()
        self.begin()
        if self._at is not None:
            self.prepare(*self._at)

    def close(self) -> None:
        self.resident.close()

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        self.begin()
        self._at = ([int(i) for i in prefix], batch, room)
        self.resident.ask("prepare", prefix=self._at[0], batch=batch, room=room)

    def rewind(self) -> None:
        """Each call of the worker begins at the end of the prefix."""

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        answer = self.resident.ask("decode", first=[int(i) for i in first], tokens=tokens)
        self.sample = Sample(float(answer["device_s"]), float(answer["host_s"]))
        chains: list[list[int]] = answer["chains"]
        return chains

    def busy_seconds(self, first: Sequence[int], tokens: int) -> float | None:
        """Seconds a token in which the device worked, as the rival's own profiler saw it; None where it has none."""
        found = self.resident.ask("busy", first=[int(i) for i in first], tokens=tokens)
        return None if found is None else float(found)

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        rows: F32 = np.asarray(self.resident.ask("logits", ids=[int(i) for i in ids], keep=keep), np.float32)
        return rows

    def describe(self) -> dict[str, str]:
        told = {k: str(v) for k, v in self.resident.told.items()}
        return {**told, "process": f"its own, started {self.resident.starts} times"}


class TracingEngine(RemoteEngine):
    """A remote engine whose worker shows the logits of the step that is timed."""

    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        """Logits [steps, batch, vocabulary]; they come through a file, for they are large."""
        import tempfile

        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            self.resident.ask("trace", forced=[[int(i) for i in ids] for ids in forced], path=file.name)
            rows: F32 = np.load(file.name)
        return rows


def worker_command(python: str, module: str, arguments: dict[str, Any]) -> list[str]:
    """A command that runs a worker module in another interpreter: amk's tree comes last in its path, so that it shadows nothing."""
    import json
    from pathlib import Path

    import amk_bench

    tree = str(Path(amk_bench.__file__).resolve().parents[1])
    code = (
        f"import sys, runpy; sys.path.append({tree!r}); sys.argv = ['worker', {json.dumps(arguments)!r}]; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    return [python, "-c", code]
