"""The documentation is run: its commands, its examples, its links, and the paths it names."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amk_core

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("docs_blocks", Path(__file__).with_name("blocks.py"))
assert spec
assert spec.loader
md = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = md
spec.loader.exec_module(md)

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCKS = [b for page in PAGES for b in md.blocks(page)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder that sees docs/, and an environment whose ``amk`` and ``python`` are the ones under test."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shims = tmp_path / ".bin"
    shims.mkdir()
    for command, argv in (("amk", '-m amk_core.cli "$@"'), ("python", '"$@"')):
        (shims / command).write_text(f"#!/bin/sh\nexec '{sys.executable}' {argv}\n")
        (shims / command).chmod(0o755)
    home = Path(amk_core.__file__).parents[1]
    env = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "PYTHONPATH": str(home)}
    return tmp_path, env


def need(model: str | None) -> None:
    if model is None:
        return
    from amk_core.importer import hub

    if model not in {c.name for c in hub.cached()}:
        pytest.skip(f"needs {model} in the model cache; run: amk model fetch {model}")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{name(b.file)}:{b.line}")
def test_block_runs_and_prints_what_it_shows(block: md.Block, place: tuple[Path, dict[str, str]]) -> None:
    need(block.needs)
    where, env = place
    if block.language == "python":
        done = subprocess.run([sys.executable, "-c", block.body], capture_output=True, text=True, cwd=where, env=env, timeout=120)
        assert done.returncode == 0, done.stderr
        return
    codes = []
    for command, expected in block.commands():
        done = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=where, env=env, timeout=120
        )
        codes.append(done.returncode)
        assert done.returncode in (0, block.exit), f"$ {command}\n{done.stdout}"
        absent = md.missing(expected, done.stdout)
        assert absent is None, f"$ {command}\ndoes not print: {absent}\nbut:\n{done.stdout}"
    assert block.exit in codes


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    dead = [to for to in md.links(page) if not (page.parent / to).exists()]
    assert not dead


def test_architecture_names_only_what_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(
        re.findall(r"`((?:amk_core|amk_bench|vm|kernels|suites|fleet|reports|proofs|docs|tests|\.ci)(?:/[\w.-]+)*/?)`", text)
    )
    assert len(named) > 10
    in_the_wheel = {"amk_core/device", "amk_bench/data"}
    assert not [p for p in sorted(named - in_the_wheel) if not (ROOT / p).exists()]


def test_readme_s_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    wanted = {t for page in PAGES for t in re.findall(r"^(?:\$ )?make (\w+)", page.read_text("utf-8"), re.MULTILINE)}
    assert {"bench", "test"} <= wanted
    assert not [t for t in wanted if not re.search(rf"^{t}:", makefile, re.MULTILINE)]


def test_the_example_of_the_plug_in_page_is_the_file_that_the_tests_run() -> None:
    page = (ROOT / "docs" / "plugin.md").read_text("utf-8")
    assert f"```python\n{(ROOT / 'docs' / 'examples' / 'test_matvec.py').read_text('utf-8')}```" in page


def test_cli_page_has_a_section_for_every_command() -> None:
    from amk_core.cli import command_modules

    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert not [c for c in command_modules() if f"## amk {c}" not in text]


def test_the_reader_of_blocks(tmp_path: Path) -> None:
    """The checks above are only as good as it is."""
    text = "a\n<!-- run: exit=1 needs=m -->\n```console\n$ one \\\n  two\nout ... end\n...\nlast\n$ three\n```\n"
    page = tmp_path / "sample.md"
    page.write_text(text)
    (block,) = md.blocks(page)
    assert (block.exit, block.needs, block.line) == (1, "m", 3)
    assert block.commands() == [("one \\\n  two", ["out ... end", "...", "last"]), ("three", [])]
    assert md.missing(["out ... end", "...", "last"], "x\nout 1 2 end\ny\nlast\n") is None
    assert md.missing(["last", "out ... end"], "out 1 end\nlast\n") == "out ... end"
