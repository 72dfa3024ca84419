"""Fixtures shared by the unit tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amk_core.graph import ModelGraph, RopeSpec


@pytest.fixture(scope="session")
def tiny() -> Callable[..., ModelGraph]:
    """Makes a two-layer graph with odd sizes (three query heads a KV head); keyword arguments replace fields."""

    def make(**changes: Any) -> ModelGraph:
        fields: dict[str, Any] = {
            "name": "tiny", "family": "llama", "vocab_size": 100, "hidden_size": 48, "intermediate_size": 80, "n_layers": 2,
            "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "norm_eps": 1e-5, "tied_head": False, "context": 512,
            "rope": RopeSpec("default", 10000.0, 8, 512), "attn_scale": 8**-0.5,
        }  # fmt: skip
        return ModelGraph(**{**fields, **changes})

    return make


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that a test starts is no xdist worker, even where this one is: pytest-benchmark goes by the environment.

    A worker has a terminal of 80 columns; what a test reads from the terminal is not wrapped at 120.
    """
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is heard, by this process and those it starts: a test run in the background of a shell begins with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def cubins(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where machine code that no card runs is kept for all tests of a run; it is compiled as quickly as the compiler can."""
    from amk_core.vm import nvrtc

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cubins"
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "--Ofast-compile=max"))
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: folder)
    return folder
