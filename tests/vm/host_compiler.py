"""Compile C++ for this machine in a test; skips where there is no compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def compiled(out: Path, sources: Sequence[Path], *flags: str) -> Path:
    """``out``, built from the sources as C++20; skips too where ThreadSanitizer is asked for and not there."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    command = [compiler, "-std=c++20", *flags, *map(str, sources), "-o", str(out)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0 and "-fsanitize=thread" in flags and "tsan" in built.stderr:
        pytest.skip("this compiler has no ThreadSanitizer runtime")
    assert built.returncode == 0, built.stderr
    return out
