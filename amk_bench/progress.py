"""Progress of long work: a line now and then, past pytest's capture, so that a quiet terminal is never mistaken for a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

FIRST_LINE_S = 3.0  # quick work stays silent
NEXT_LINE_S = 10.0


class Progress:
    """Prints ``label: done of total`` no more often than every ``NEXT_LINE_S``.

    Usage::

        for window in amk_progress.over(windows, "perplexity windows"):
            ...
    """

    def __init__(self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now = now

    def over(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yields ``items`` and reports between them."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        start = self._now()
        due = start + FIRST_LINE_S
        for done, item in enumerate(items):
            now = self._now()
            if now >= due:
                of = f" of {total}" if total is not None else ""
                left = f", about {(now - start) / done * (total - done):.0f} s left" if total and done else ""
                self._write(f"{label}: {done}{of} after {now - start:.0f} s{left}")
                due = now + NEXT_LINE_S
            yield item

    def say(self, text: str) -> None:
        """One line now: what begins, when it is known to take long."""
        self._write(text)
