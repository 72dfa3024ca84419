"""Data folders are found in a source tree and in an installed wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amk_core import resources


@pytest.mark.parametrize("name", ["vm", "kernels", "suites", "fleet"])
def test_every_folder_exists(name: str) -> None:
    assert resources.folder(name).is_dir()


def test_an_installed_wheel_keeps_its_data_inside_the_packages(tmp_path: Path) -> None:
    """The module alone, laid out as in site-packages."""
    (tmp_path / "amk_core" / "device" / "vm").mkdir(parents=True)
    (tmp_path / "amk_bench" / "data" / "suites").mkdir(parents=True)
    (tmp_path / "amk_core" / "__init__.py").touch()
    shutil.copy(resources.__file__, tmp_path / "amk_core" / "resources.py")
    code = (
        "from amk_core import resources as r\n"
        "print(r.source_root(), r.vm_dir(), r.suites_dir())\n"
        "try: r.kernels_dir()\nexcept r.ResourceMissing as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    first, second = done.stdout.splitlines()
    assert first.split() == ["None", str(tmp_path / "amk_core/device/vm"), str(tmp_path / "amk_bench/data/suites")]
    assert "kernels is missing" in second
