"""Cards that are not here, for the tests of the fleet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fleet_tools import environment  # type: ignore[import-not-found]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process sees the cards of ``fleet_tools.CARDS``; locks and temporary files lie in the test's own folder."""
    for key, value in environment(tmp_path / "smi").items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path
