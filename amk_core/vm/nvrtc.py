"""Compiling the device VM at run time, with or without a GPU: NVRTC from its wheel, cubins cached by content hash.

The sources are ``vm/`` and ``kernels/``; a build is a set of macro definitions and an architecture.  The cache lies in
``$AMK_HOME/cubin`` (default ``~/.cache/amk/cubin``): two files a build, the cubin and the compiler's report.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk_core import resources

ENTRY, RANK_ENTRY = "scheduler.cu", "rank_scheduler.cu"  # programs, and programs for ranks
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
# Bits are part of the contract: no contraction, IEEE division and square root, no flushing of small numbers.
OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false", "-Xptxas=-v")
# NVRTC has no C library; the device sources use these two for fixed-width types and nothing else.
_STAND_INS: Mapping[str, str] = {
    "stdint.h": "#pragma once\n"
    + "".join(
        f"typedef {kind} int{bits}_t; typedef unsigned {kind} uint{bits}_t;\n"
        for kind, bits in (("char", 8), ("short", 16), ("int", 32), ("long long", 64))
    ).replace("typedef char int8_t", "typedef signed char int8_t")
    + "typedef unsigned long long uintptr_t;\n",
    "string.h": "#pragma once\n",
}


class CompileError(RuntimeError):
    """The device sources do not compile for this architecture, or no NVRTC is installed."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the assembler says of one kernel: registers a thread, static shared memory, stack frame and spills in bytes."""

    name: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one build.  ``key`` is the content hash it is cached under."""

    key: str
    arch: str
    data: bytes
    kernels: tuple[KernelReport, ...]
    cached: bool

    def kernel(self, name: str) -> KernelReport:
        return next(k for k in self.kernels if k.name == name)


def cache_folder() -> Path:
    """Where cubins are kept; not created here."""
    return Path(os.environ.get("AMK_HOME") or Path.home() / ".cache" / "amk").expanduser() / "cubin"


def sources() -> dict[str, bytes]:
    """Every device source by file name."""
    files = [p for d in (resources.vm_dir(), resources.kernels_dir()) for p in sorted(d.iterdir())]
    return {p.name: p.read_bytes() for p in files if p.suffix in (".h", ".cuh", ".cu")}


def compiler_arch(arch: str) -> str:
    """The name the compiler is given: Hopper is compiled with its own features."""
    return "sm_90a" if arch == "sm_90" else arch


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as e:
        raise CompileError(
            "compiling for a GPU needs NVRTC, which is not installed here; run: pip install 'amk[cuda13]' "
            f"(or nvidia-cuda-nvrtc and cuda-bindings). The import says: {e}"
        ) from None
    return nvrtc


def version() -> tuple[int, int]:
    """(major, minor) of the NVRTC that :func:`build` uses.

    Raises:
        CompileError: none is installed.
    """
    nvrtc = _nvrtc()
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as e:  # the bindings are there, the library is not
        raise CompileError(f"the NVRTC library does not load: {e}; run: pip install nvidia-cuda-nvrtc") from None
    return int(major), int(minor)


def parse_report(log: str) -> tuple[KernelReport, ...]:
    """Kernels named in the verbose output of ptxas; called functions are added to the kernel before them."""
    out: list[KernelReport] = []
    name, stack, store, load = "", 0, 0, 0
    for line in log.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack, store, load = m[1], 0, 0, 0
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, store, load = stack + int(m[1]), store + int(m[2]), load + int(m[3])
            if not name and out:  # a function that is called, reported behind its kernel
                k = out[-1]
                out[-1] = KernelReport(k.name, k.registers, k.shared_bytes, k.stack_bytes + stack,
                                       k.spill_store_bytes + store, k.spill_load_bytes + load)  # fmt: skip
                stack = store = load = 0
        elif name and (m := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            out.append(KernelReport(name, int(m[1]), int(shared[1]) if shared else 0, stack, store, load))
            name, stack, store, load = "", 0, 0, 0
    return tuple(out)


def build(defines: Mapping[str, int], arch: str, cache: Path | None = None, more: Sequence[str] = (), entry: str = ENTRY) -> Cubin:
    """Compile the device VM, or take it from the cache.

    Args:
        defines: macro name -> value.
        arch: ``sm_80`` ... ``sm_120``.
        cache: folder of the cache; default ``$AMK_HOME/cubin``.
        more: options of the compiler besides OPTIONS.
        entry: the source that is compiled.

    Raises:
        CompileError: with the compiler's first errors; or NVRTC is missing, or too old for the architecture.
    """
    nvrtc = _nvrtc()
    files = sources()
    options = [f"--gpu-architecture={compiler_arch(arch)}", *OPTIONS, *more, *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    h = hashlib.sha256(json.dumps([options, list(version()), *([entry] if entry != ENTRY else [])]).encode())
    for name, text in sorted({**files, **{n: t.encode() for n, t in _STAND_INS.items()}}.items()):
        h.update(name.encode() + b"\0" + hashlib.sha256(text).digest())
    key = h.hexdigest()
    folder = cache or cache_folder()
    path = folder / f"{arch}-{key[:32]}.cubin"
    try:
        data, log = path.read_bytes(), path.with_suffix(".log").read_text()
        return Cubin(key, arch, data, parse_report(log), True)
    except OSError:
        pass
    data, log = _compile(nvrtc, files, options, arch, entry)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".log"), log.encode())
        _write(path, data)
    except OSError:
        pass  # a cache that cannot be written costs time only
    return Cubin(key, arch, data, parse_report(log), False)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, also with other processes writing the same."""
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _compile(nvrtc: Any, files: Mapping[str, bytes], options: list[str], arch: str, entry: str = ENTRY) -> tuple[bytes, str]:
    headers = {**files, **{n: t.encode() for n, t in _STAND_INS.items()}}
    main = headers.pop(entry)
    names = sorted(headers)

    def call(function: str, *args: Any) -> Any:
        status, *rest = getattr(nvrtc, function)(*args)
        if int(status):
            raise CompileError(f"{function} for {arch}: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return rest[0] if rest else None

    program = call("nvrtcCreateProgram", main, entry.encode(), len(names), [headers[n] for n in names], [n.encode() for n in names])
    try:
        status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        size = call("nvrtcGetProgramLogSize", program)
        raw = bytes(size + 1)  # written into: not b" " * size, of which an empty log would get the one that all of Python shares
        call("nvrtcGetProgramLog", program, raw)
        log = raw.decode(errors="replace").rstrip("\0 ")
        if int(status):
            errors = [line for line in log.splitlines() if "error" in line.lower()] or log.splitlines()
            raise CompileError(
                f"the device VM does not compile for {arch} with NVRTC {'.'.join(map(str, version()))}: "
                + "; ".join(errors[:3] or [nvrtc.nvrtcGetErrorString(status)[1].decode()])
            )
        data = b" " * call("nvrtcGetCUBINSize", program)
        call("nvrtcGetCUBIN", program, data)
        return data, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)
