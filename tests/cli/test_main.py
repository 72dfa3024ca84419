"""``amk`` itself: exit codes, errors as one paragraph, quick help, plug-ins that fail alone."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from amk_core import cli
from amk_core.schedule.ir import ScheduleFormatError
from amk_core.schedule.tables import TableError

ROOT = Path(__file__).resolve().parents[2]
# A child imports the amk under test; it starts in an empty folder, since "python -m" looks into the current one first.
ENV = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
Install = Callable[[Callable[[argparse.Namespace], int]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make ``amk probe`` run the given function."""

    def put(run: Callable[[argparse.Namespace], int]) -> None:
        module = types.ModuleType("probe_command")
        module.NAME, module.HELP, module.run = "probe", "a probe", run  # type: ignore[attr-defined]
        module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setattr(cli, "command_modules", lambda: {"probe": "probe_command", "broken": "no_such_module"})

    return put


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_the_command_s_answer(install: Install, code: int) -> None:
    install(lambda args: code)
    assert cli.main(["probe"]) == code


@pytest.mark.parametrize(
    "error",
    [
        ScheduleFormatError("schedule: unknown field 'x'"),
        TableError("section 'header' is missing"),
        ValueError("context is 9000, the model is trained for 8192"),
        OSError(28, "No space left on device", "/tmp/x"),
        FileNotFoundError(2, "No such file or directory", "model.gguf"),
        PermissionError(13, "Permission denied", "/etc/x"),
        MemoryError(),
        ModuleNotFoundError("No module named 'ray'", name="ray"),
        ModuleNotFoundError("No module named 'amk_core._native'", name="amk_core._native"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_known_errors_are_one_paragraph_and_exit_2(install: Install, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(error))
    assert cli.main(["probe"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("amk: ")
    assert "Traceback" not in err
    assert "\n\n" not in err
    assert max(map(len, err.splitlines())) <= 110
    for detail in (*error.args, getattr(error, "filename", None)):
        if isinstance(detail, str) and detail != "No such file or directory":
            assert detail in err


@pytest.mark.parametrize("argv", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_shows_the_traceback(install: Install, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(TableError("damaged")))
    assert cli.main(argv) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("shape"), "KeyError: 'shape'"),
        (AssertionError("two producers"), "AssertionError: two producers"),
        (ImportError("cannot import name 'x'", name="amk_core.graph"), "cannot import name 'x'"),
    ],
)
def test_a_defect_is_never_passed_off_as_bad_input(
    install: Install, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(raising(error))
    assert cli.main(["probe"]) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "a defect of amk: " in err
    assert said in err


def test_ctrl_c_is_130(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(raising(KeyboardInterrupt()))
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr().err == "\namk: stopped.\n"


def test_help_lists_commands_and_exit_codes_even_with_a_broken_plug_in(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(lambda args: 0)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    assert "a probe" in out
    assert "does not load" in out
    assert "exit codes:" in out
    assert cli.main(["probe"]) == 0


def test_a_broken_plug_in_says_what_to_do(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(lambda args: 0)
    assert cli.main(["broken", "--with", "arguments"]) == 2
    assert "no_such_module" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["doctor", "--no-such-option"]])
def test_usage_errors_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2
    assert "usage: amk" in capsys.readouterr().err


def test_version(tmp_path: Path) -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = [sys.executable, "-m", "amk_core.cli", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=tmp_path).stdout == f"amk {version}\n"


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, amk_core.cli as c\n"
        "try: c.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_quiet(tmp_path: Path) -> None:
    lower = f"'{sys.executable}' -m amk_core.cli lower smollm2-135m"
    script = f"{lower} 2>{tmp_path}/err | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=ENV, cwd=tmp_path)
    assert done.stdout == "141\n"
    assert (tmp_path / "err").read_text() == ""
