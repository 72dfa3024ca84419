"""Where things are kept between runs: ``$AMK_HOME``, by default ``~/.cache/amk``.  Imports nothing but the standard library."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def home() -> Path:
    """Not created here."""
    return Path(os.environ.get("AMK_HOME") or Path.home() / ".cache" / "amk").expanduser()


def runs_of(root: Path) -> Path:
    """Where the journals of the project at ``root`` are."""
    return home() / "runs" / hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
