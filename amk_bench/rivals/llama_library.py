"""The few functions of llama.cpp's C interface that a greedy decode needs, through ctypes; standard library and numpy alone.

Its parameter structures grow with every release, at their ends.  They are passed here as blocks larger than any release has them:
a structure of this size is returned through a pointer and passed on the stack (System V AMD64), so the library reads and writes as
much of it as it knows.  Only fields at the beginning, whose places have not moved for years, are written.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1024
N_GPU_LAYERS_AT = 16  # int32, after two pointers
ALL_LAYERS = 999


class Block(ctypes.Structure):
    """A parameter structure of unknown length."""

    _fields_ = (("bytes", ctypes.c_ubyte * BLOCK_BYTES),)

    def number(self, at: int) -> int:
        return int.from_bytes(bytes(self.bytes[at : at + 4]), "little", signed=True)

    def set_number(self, at: int, value: int) -> None:
        for i, byte in enumerate(value.to_bytes(4, "little", signed=True)):
            self.bytes[at + i] = byte


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    )  # fmt: skip


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (Block, ()),
    "llama_context_default_params": (Block, ()),
    "llama_model_load_from_file": (ctypes.c_void_p, (ctypes.c_char_p, Block)),
    "llama_init_from_model": (ctypes.c_void_p, (ctypes.c_void_p, Block)),
    "llama_model_get_vocab": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_vocab_n_tokens": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_set_n_threads": (None, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
    "llama_get_memory": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_memory_clear": (None, (ctypes.c_void_p, ctypes.c_bool)),
    "llama_memory_seq_rm": (ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
    "llama_batch_init": (Batch, (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
    "llama_decode": (ctypes.c_int32, (ctypes.c_void_p, Batch)),
    "llama_synchronize": (None, (ctypes.c_void_p,)),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32)),
}


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern), key=lambda p: (len(p.name), p.name))
    if not found:
        raise FileNotFoundError(f"{folder}: no {pattern}; AMK_LLAMA_CPP has to name the folder of llama.cpp's shared libraries")
    return found[0]


def load(folder: Path) -> Any:
    """The library with its signatures set and its backends loaded from ``folder``.  Raises OSError where it does not load."""
    mode = ctypes.RTLD_GLOBAL
    ctypes.CDLL(str(_one(folder, "libggml-base*.so*")), mode)
    os.environ.setdefault("GGML_BACKEND_PATH", "")
    ggml = ctypes.CDLL(str(_one(folder, "libggml.*so*")), mode)
    library: Any = ctypes.CDLL(str(_one(folder, "libllama*.so*")), mode)
    if not os.environ["GGML_BACKEND_PATH"]:
        del os.environ["GGML_BACKEND_PATH"]
    if hasattr(ggml, "ggml_backend_load_all_from_path"):
        ggml.ggml_backend_load_all_from_path.argtypes = (ctypes.c_char_p,)
        ggml.ggml_backend_load_all_from_path.restype = None
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.devices = _devices(ggml)
    return library


def _devices(ggml: Any) -> list[str]:
    """Names of the devices that the backends show."""
    try:
        ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
        ggml.ggml_backend_dev_get.restype, ggml.ggml_backend_dev_get.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        base = ctypes.CDLL(None)
        base.ggml_backend_dev_name.restype, base.ggml_backend_dev_name.argtypes = ctypes.c_char_p, (ctypes.c_void_p,)
        return [base.ggml_backend_dev_name(ggml.ggml_backend_dev_get(i)).decode() for i in range(ggml.ggml_backend_dev_count())]
    except AttributeError:
        return []
