"""Every protocol of vm/protocol.h between host threads: silent and right as it is, caught as soon as it is broken on purpose."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from host_compiler import compiled

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("litmus.cpp")
# Name -> rounds.  Counter release and acquire; several producers; tagged elements; a tag beside plain bytes; a writer that
# overtakes the reader of a tag; the stop flag; a buffer that is reused over steps; rows for the host; the abort flag.
TESTS = {
    "message": 2000, "producers": 1000, "tagged": 4000, "tag_and_bytes": 2000, "overtaking": 4000, "stop": 4000, "epoch": 4000,
    "host_rows": 4000, "abort_flag": 4000,
}  # fmt: skip
CAUGHT_BY_VALUE = {"producers", "tagged", "overtaking", "stop", "epoch"}  # the others need a weaker machine than x86, or TSan


def compile_with(folder: Path, *flags: str) -> Path:
    return compiled(folder / "litmus", [SOURCE], "-pthread", *flags, f"-I{ROOT / 'vm'}")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_with(tmp_path_factory.mktemp("native"), "-O2")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_with(tmp_path_factory.mktemp("tsan"), "-O1", "-g", "-fsanitize=thread")


def run(program: Path, name: str, variant: str, rounds: int) -> tuple[int, bool]:
    """(rounds with a wrong value, whether ThreadSanitizer reported a race)."""
    command = [str(program), name, variant, str(rounds)]
    if shutil.which("setarch"):  # address space randomisation of newer kernels does not suit older sanitizers
        command = ["setarch", "-R", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("wrong "), done.stderr[:2000]
    return int(done.stdout.split()[1]), "ThreadSanitizer: data race" in done.stderr


@pytest.mark.parametrize("name", TESTS)
def test_a_protocol_is_right_and_silent(name: str, native: Path, sanitized: Path) -> None:
    assert run(native, name, "right", TESTS[name]) == (0, False)
    assert run(sanitized, name, "right", TESTS[name] // 4) == (0, False)


@pytest.mark.parametrize("name", TESTS)
def test_its_broken_twin_is_caught(name: str, native: Path, sanitized: Path) -> None:
    wrong, raced = run(sanitized, name, "broken", TESTS[name] // 4)
    if name in CAUGHT_BY_VALUE:
        assert wrong + run(native, name, "broken", TESTS[name])[0] > 0
    else:
        assert raced
