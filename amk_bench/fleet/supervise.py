"""A process between a worker and its job: when the worker goes away, however it went, the job and all its children go too.

``python -m amk_bench.fleet.supervise COMMAND ...``: the worker holds the other end of standard input and never writes; its end is
the end of the job.  Exits with the job's status, or 128 + signal.  What a job leaves behind when it ends is killed as well, for it
might hold the card.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

import psutil

GRACE_S = 5.0  # between asking a job to end and ending it
POLL_S = 0.05
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def dies_with_parent() -> None:
    """In a child, before it becomes another program: it is killed when the thread that started it ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def descendants() -> list[psutil.Process]:
    """Everything this process started, and what that started, also where the one between has gone."""
    return list(psutil.Process().children(recursive=True))


def end_all(grace_s: float = GRACE_S) -> None:
    """Asks every descendant to end, then ends it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = descendants()
        for process in left:
            try:
                process.send_signal(number)
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=grace_s)


def supervise(command: Sequence[str], grace_s: float = GRACE_S) -> int:
    """Runs ``command`` until it ends or standard input does; returns its status."""
    _prctl(_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=dies_with_parent)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    orphaned = False
    while child.poll() is None:
        ready, _, _ = select.select([0], [], [], POLL_S)
        if ready and os.read(0, 4096) == b"":
            orphaned = True
            break
    end_all(grace_s)
    code = child.wait()
    return 128 + signal.SIGTERM if orphaned else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
