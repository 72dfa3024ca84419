"""An engine's process as the judge sees it: started, asked one thing at a time, restarted, ended.  Every wait has a limit."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from amk_bench.rivals.wire import CLOSE, HELLO

START_S = 600.0  # loading, compiling, capturing; an 8B model of vLLM takes 100 s
CALL_S = 300.0
CLOSE_S = 15.0
TAIL = 2000  # characters of what a process said last


class RivalBroke(RuntimeError):
    """The process died, did not answer in time, or answered with an error; the message has what it said last."""


def _dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class Resident:
    """One process that serves :mod:`amk_bench.rivals.wire`.

    Attributes:
        told: what it said of itself when it was ready.
        starts: how often it has been started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, start_s: float = START_S, call_s: float = CALL_S
    ) -> None:  # fmt: skip
        self._command, self._env = list(command), {**os.environ, **(env or {})}
        self._start_s, self._call_s = start_s, call_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._buffer = b""
        self._starting = False
        self._pending = False  # an answer that nobody waited for to the end: it would come to the next question
        self.told: dict[str, Any] = {}
        self.starts = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        return self.running and not self._starting

    def start(self) -> None:
        """Starts it, unless :meth:`launch` has, and waits until it is ready.  Raises RivalBroke."""
        if not self._starting or self._process is None:
            self.launch()
        self._starting = False
        message = self._receive(self._start_s, "start")
        if HELLO not in message:
            raise self._broke(f"it could not start: {message.get('error', message)}")
        self.told = dict(message[HELLO])

    def launch(self) -> None:
        """Starts it and does not wait: :meth:`start` does.  Raises RivalBroke where it cannot even begin."""
        self.close()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=self._env,
                start_new_session=True, preexec_fn=_dies_with_parent, cwd=tempfile.gettempdir(),
            )  # fmt: skip
        except OSError as error:
            raise RivalBroke(f"{self._command[0]} cannot be started: {error}") from None
        self.starts += 1
        self._starting, self._pending = True, False

    def ask(self, operation: str, **values: Any) -> Any:
        """The answer of one operation.  Raises RivalBroke, after which the process is gone unless it answered with an error."""
        if not self.running:
            raise self._broke("it is not running")
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": operation, **values}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._broke(f"it went away before it was asked to {operation}") from None
        self._pending = True
        message = self._receive(self._call_s, operation)
        self._pending = False
        if "ok" not in message:
            raise RivalBroke(f"{operation}: {message.get('error', message)}")
        return message["ok"]

    def _receive(self, seconds: float, what: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        handle, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise self._broke(f"no answer to {what} within {seconds:.0f} s")
            read = os.read(handle, 1 << 16)
            if not read:
                raise self._broke(f"it ended during {what}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            raise self._broke(f"not an answer: {line[:80]!r}") from None
        if not isinstance(message, dict):
            raise self._broke(f"not an answer: {line[:80]!r}")
        return message

    def _broke(self, reason: str) -> RivalBroke:
        """The error for ``reason``, with exit status and last words; the process is ended."""
        process, self._process = self._process, None
        status = ""
        if process is not None:
            if process.poll() is None and process.stdout is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)  # one that is just ending shall tell its own status
            status = f", status {process.returncode}" if process.returncode is not None else ""
            _end(process)
        said = self.last_words()
        return RivalBroke(f"{reason}{status}{f'; it said: {said}' if said else ''}")

    def last_words(self) -> str:
        """The end of what it printed."""
        if self._said is None:
            return ""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 4 * TAIL))
        return " | ".join(self._said.read().decode("utf-8", "replace").strip().splitlines())[-TAIL:]

    def close(self) -> None:
        """Ends it, kindly at first."""
        process, self._process = self._process, None
        if process is None:
            return
        pending, self._pending = self._pending, False
        if process.poll() is None and process.stdin is not None and not pending:
            try:
                process.stdin.write(json.dumps({"op": CLOSE}).encode() + b"\n")
                process.stdin.close()
                process.wait(CLOSE_S)
            except (OSError, subprocess.TimeoutExpired):
                pass
        _end(process)

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            _end(self._process)  # type: ignore[arg-type]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with its group: engines start helpers of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
