"""One safetensors file, memory-mapped: every tensor exactly as stored, no copy.

The header is read here rather than through the ``safetensors`` package because that gives numpy no bfloat16 view of the mapped
file in all supported versions; all that the format promises is checked before a byte of data is looked at.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.importer.errors import CheckpointError, ModelRefused

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
NUMPY: Mapping[str, npt.DTypeLike] = MappingProxyType({
    "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "I32": np.int32,
})  # fmt: skip
_STORED: Mapping[str, str] = MappingProxyType({"F32": "f32", "BF16": "bf16", "F16": "f16"})


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies: dtype (f32, bf16, f16, or the file's own name of another), shape, bytes [start, stop)."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """``entries`` by tensor name; ``read(name)`` is a read-only array over the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                size = path.stat().st_size
                self.entries, self._data = _header(path, f.read(8), f, size)
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as e:
            raise CheckpointError(f"{path} is missing. Fetch the model again.") from e
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from e

    def read(self, name: str) -> npt.NDArray[Any]:
        e = self.entries[name]
        if e.dtype not in NUMPY:
            raise ModelRefused(
                f"dtype of tensor {name}", e.dtype, "F32, BF16 or F16",
                "Give the unquantised checkpoint, or a GGUF file.",
            )  # fmt: skip
        raw = np.frombuffer(self._map, np.uint8, e.stop - e.start, self._data + e.start)
        dtype = np.dtype(NUMPY[e.dtype])
        if raw.ctypes.data % dtype.itemsize:
            raw = raw.copy()  # a header of odd length puts the data off its alignment
            raw.flags.writeable = False
        return raw.view(dtype).reshape(e.shape)


def _header(path: Path, first: bytes, f: Any, size: int) -> tuple[dict[str, Entry], int]:
    """(entries, offset of the data); CheckpointError unless the entries tile the rest of the file exactly."""

    def broken(why: str) -> CheckpointError:
        return CheckpointError(f"{path} is not a whole safetensors file: {why}. Fetch or copy it again.")

    if len(first) < 8:
        raise broken(f"it has {size} bytes")
    length = int.from_bytes(first, "little")
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise broken(f"its header claims {length} bytes, the file has {size}")
    try:
        header = json.loads(f.read(length))
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        entries = {
            k: Entry(_STORED.get(v["dtype"], str(v["dtype"])), tuple(map(int, v["shape"])), *map(int, v["data_offsets"]))
            for k, v in tensors.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise broken(f"its header cannot be read ({type(e).__name__}: {e})") from e
    end = 0
    for name, x in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if x.start != end or x.stop < x.start or min(x.shape, default=0) < 0:
            raise broken(f"tensor {name} lies at bytes [{x.start}, {x.stop}), required is a start of {end}")
        if x.dtype in NUMPY and x.stop - x.start != math.prod(x.shape) * np.dtype(NUMPY[x.dtype]).itemsize:
            raise broken(f"tensor {name} of shape {list(x.shape)} takes {x.stop - x.start} bytes")
        end = x.stop
    if 8 + length + end != size:
        raise broken(f"{8 + length + end} bytes are declared, the file has {size}")
    return entries, 8 + length
