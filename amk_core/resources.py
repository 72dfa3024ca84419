"""Where the files that are not Python live: device sources, kernels and suites.

A source tree holds ``vm/``, ``kernels/``, ``suites/`` and ``fleet/`` at its root.  A wheel carries the same folders as data
inside the packages (``amk_core/device`` and ``amk_bench/data``): as top-level names they would clash with other people's.
"""

from __future__ import annotations

import functools
from pathlib import Path

_SITE = Path(__file__).resolve().parent.parent  # site-packages, or the root of the source tree
_DATA_HOME = {
    "vm": Path("amk_core/device"),
    "kernels": Path("amk_core/device"),
    "suites": Path("amk_bench/data"),
    "fleet": Path("amk_bench/data"),
}


class ResourceMissing(FileNotFoundError):
    """A folder that belongs to the installation is not there."""


@functools.cache
def source_root() -> Path | None:
    """The root of the source tree that this package runs from, or None where it is installed."""
    return _SITE if (_SITE / "pyproject.toml").is_file() and (_SITE / "CMakeLists.txt").is_file() else None


def native_build() -> str:
    """What builds the native module again, for messages."""
    return "make native" if source_root() else "pip install --force-reinstall --no-deps, from amk's source"


def folder(name: str) -> Path:
    """The folder ``vm``, ``kernels``, ``suites`` or ``fleet``.

    Raises:
        ResourceMissing: it is not where this installation should have it.
    """
    root = source_root()
    path = root / name if root else _SITE / _DATA_HOME[name] / name
    if not path.is_dir():
        raise ResourceMissing(
            f"{path} is missing, but every installation of amk has it; install it again with pip install --force-reinstall"
        )
    return path


def vm_dir() -> Path:
    """Sources of the virtual machine's device side: scheduler, wait and signal protocol, ABI."""
    return folder("vm")


def kernels_dir() -> Path:
    """Micro-kernels, one a file."""
    return folder("kernels")


def suites_dir() -> Path:
    """The suites a user runs on his own machine: ``pytest $(amk doctor --suites)``."""
    return folder("suites")
