"""Lines of JSON between the judge and an engine that lives in a process of its own.

The engine's side runs in the engine's own environment, so this module needs the standard library alone.  A worker is an object
whose public methods are the operations; each takes and returns what JSON can hold.  Standard output belongs to the protocol: what
the engine's libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

HELLO = "hello"
CLOSE = "close"


def _own_output() -> TextIO:
    """The protocol's end of standard output; file descriptor 1 becomes standard error."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def serve(make: Callable[[], Any]) -> int:
    """Makes the worker, says hello with what it tells of itself, and answers until it is closed or nobody asks any more."""
    out = _own_output()

    def send(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        worker = make()
        send({HELLO: worker.describe()})
    except BaseException as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}"})
        return 1
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("op")
        if operation == CLOSE:
            break
        try:
            send({"ok": getattr(worker, operation)(**request)})
        except Exception as error:
            traceback.print_exc()
            send({"error": f"{type(error).__name__}: {error}"})
    return 0
