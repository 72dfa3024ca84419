"""The house: who may import whom, what the wheel carries, and that importing costs nothing."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Package -> names that none of its modules may import.  Dependencies point one way: core <- bench <- fleet and reports.
FORBIDDEN = {
    "amk_core": {"amk_bench", "pytest", "_pytest", "suites", "fleet", "reports", "tests"},
    "amk_bench": {"suites", "fleet", "reports", "tests"},
    "suites": {"fleet", "reports", "tests"},
    "fleet": {"amk_core", "suites", "tests"},
    "reports": {"amk_core", "suites", "tests"},
}

DATA_HOME = {"vm": "amk_core/device", "kernels": "amk_core/device", "suites": "amk_bench/data", "fleet": "amk_bench/data"}


def imported(source: str) -> set[str]:
    """Top-level names of all absolute imports, wherever they stand, and of ``importlib.import_module("literal")``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value.split(".")[0])
    return names


def test_import_finder_sees_every_form() -> None:
    source = "def f():\n import pytest.x\nfrom amk_bench.a import b\nfrom . import c\nimport importlib\nimport_module('suites.d')"
    assert imported(source) == {"pytest", "amk_bench", "importlib", "suites"}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(bad)
        for path in (ROOT / package).rglob("*.py")
        if (bad := imported(path.read_text("utf-8")) & FORBIDDEN[package])
    }
    assert not wrong, f"{package} may not import these: {wrong}"


def test_command_modules_import_only_the_standard_library_at_their_top() -> None:
    """``amk --help`` imports all of them."""
    for path in (ROOT / "amk_core" / "commands").glob("*.py"):
        top = ast.Module([n for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        heavy = imported(ast.unparse(top)) - set(sys.stdlib_module_names) - {"amk_core"}
        assert not heavy, f"{path.name} imports {sorted(heavy)} at its top; move that into run()"


def test_every_declared_command_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name, module in project["entry-points"]["amk.commands"].items():
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), f"command {name}: {module} does not exist"


def test_import_is_quick_and_brings_no_torch() -> None:
    """Under a second of processor time: the machine that runs the tests may be busy."""
    code = (
        "import time; t = time.process_time(); import amk_core, amk_bench; t = time.process_time() - t\n"
        "import sys; heavy = {'torch', 'transformers', 'cupy', 'pytest'} & set(sys.modules)\n"
        "assert not heavy, heavy; print(t)"
    )
    run = [sys.executable, "-c", code]
    seconds = [float(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(seconds) < 1.0


def installed_files() -> list[str]:
    """What pip recorded for the installed wheel; skips where amk runs from its source tree."""
    try:
        amk = importlib.metadata.distribution("amk")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("amk is not installed here, so there is no wheel to look at; run: make test")
    origin = json.loads(amk.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        pytest.skip("amk is installed as editable here, so there is no wheel to look at; run: make test")
    return [str(f) for f in amk.files or []]


def test_wheel_has_nothing_at_top_level_but_its_packages() -> None:
    files = installed_files()
    top = {f.split("/")[0] for f in files if not f.startswith("../")}
    assert top - {t for t in top if t.endswith(".dist-info")} == {"amk_core", "amk_bench"}


def test_wheel_carries_the_native_module_and_the_data_but_no_native_sources() -> None:
    files = installed_files()
    assert any(f.startswith("amk_core/_native.") for f in files)
    assert {"amk_core/py.typed", "amk_bench/py.typed"} <= set(files)
    assert not [f for f in files if f.startswith("amk_core/native/")]
    for folder, home in DATA_HOME.items():
        tracked = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        tracked = {f for f in tracked if "__pycache__" not in f}
        missing = {f"{home}/{f}" for f in tracked} - set(files)
        assert not missing, f"the wheel lacks {sorted(missing)[:5]}"


def test_torch_stays_below_2_14() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "torch>=2.6,<2.14" in project["dependencies"]
