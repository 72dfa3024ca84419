"""What a contender returns, as plain values: numbers, numpy arrays and torch tensors, alone or in lists, tuples and dicts.

Exact types only: an object that computes when it is looked at would move its work out of the timed window.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = 1 << 24  # elements of a device tensor summed at a time
_NUMBERS = (bool, int, float)


class NotMaterialised(TypeError):
    """A value is of a type that may compute later, or that nobody can compare."""


def _tensor_types() -> tuple[type, ...]:
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)


def is_tensor(value: object) -> bool:
    return type(value) in _tensor_types()


def leaves(value: Any) -> Iterator[Any]:
    """The arrays, tensors and numbers of a value, in order; raises NotMaterialised for everything else."""
    kind = type(value)
    if (kind is np.ndarray and value.dtype != object) or kind in _NUMBERS or isinstance(value, np.generic) or is_tensor(value):
        yield value
    elif kind in (list, tuple):
        for item in value:
            yield from leaves(item)
    elif kind is dict:
        for key in sorted(value):
            yield from leaves(value[key])
    else:
        raise NotMaterialised(
            f"{kind.__module__}.{kind.__qualname__} is no plain value; return numpy arrays, torch tensors or numbers "
            "(in lists, tuples or dicts), computed before the call returns"
        )


def snapshot(value: Any) -> Any:
    """A copy that later writes do not reach; a tensor stays on its device, copied on the current stream."""
    kind = type(value)
    if kind is np.ndarray:
        return value.copy()
    if is_tensor(value):
        return value.detach().clone()
    if kind in (list, tuple):
        return kind(snapshot(item) for item in value)
    if kind is dict:
        return {key: snapshot(item) for key, item in value.items()}
    next(leaves(value))  # a number, or NotMaterialised
    return value


def poison(value: Any) -> None:
    """Fills what can be written with values no kernel computes: NaN, or the most negative integer."""
    kind = type(value)
    if kind is np.ndarray:
        if value.flags.writeable:
            if np.issubdtype(value.dtype, np.inexact):
                value[...] = math.nan
            elif np.issubdtype(value.dtype, np.integer):
                value[...] = np.iinfo(value.dtype).min
    elif is_tensor(value):
        torch = sys.modules["torch"]
        with torch.no_grad():
            if value.is_floating_point() or value.is_complex():
                value.detach().fill_(math.nan)
            elif value.dtype != torch.bool:
                value.detach().fill_(torch.iinfo(value.dtype).min)
    elif kind is list:
        for index, item in enumerate(value):
            if type(item) in _NUMBERS:
                value[index] = -1 if type(item) is int else math.nan
            else:
                poison(item)
    elif kind in (tuple, dict):
        for item in value.values() if kind is dict else value:
            poison(item)


def _range(leaf: Any) -> tuple[Any, int, int] | None:
    """(device, first address, end) of an array or tensor; None for numbers and empty ones."""
    if type(leaf) is np.ndarray and leaf.size:
        reach = [(size - 1) * stride for size, stride in zip(leaf.shape, leaf.strides, strict=True)]
        low = leaf.ctypes.data + sum(r for r in reach if r < 0)
        return "cpu", low, leaf.ctypes.data + sum(r for r in reach if r > 0) + leaf.itemsize
    if is_tensor(leaf) and leaf.numel():
        storage = leaf.untyped_storage()
        return str(leaf.device).replace("cpu:0", "cpu"), storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return None


def overlap(a: Any, b: Any) -> bool:
    """Whether any memory of ``a`` is also memory of ``b``."""
    ranges = [r for r in map(_range, leaves(b)) if r is not None]
    mine = [r for r in map(_range, leaves(a)) if r is not None]
    return any(p[0] == q[0] and p[1] < q[2] and q[1] < p[2] for p in mine for q in ranges)


def _tensor_words(tensor: Any) -> list[int]:
    """Two sums over all bytes of a tensor, computed where it lies: equal contents give equal sums, one changed bit does not."""
    torch = sys.modules["torch"]
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    aligned = raw[:whole].data_ptr() % 8 == 0
    words = raw[:whole].view(torch.int64) if aligned else raw[:whole].clone().view(torch.int64)
    out = [raw.numel(), *raw[whole:].tolist()]
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK]
        place = torch.arange(start + 1, start + part.numel() + 1, device=raw.device, dtype=torch.int64)
        out += [int(part.sum()), int((part * place).sum())]  # both modulo 2 ** 64
    return out


def digest(value: Any) -> str:
    """Equal digests: equal types, shapes and bytes."""
    out = hashlib.sha256()
    for leaf in leaves(value):
        if is_tensor(leaf):
            out.update(f"{leaf.dtype}{tuple(leaf.shape)}{_tensor_words(leaf)}".encode())
        else:
            array = np.asarray(leaf)
            out.update(f"{array.dtype.str}{array.shape}".encode())
            out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()


def _float64(leaf: Any) -> npt.NDArray[Any]:
    if is_tensor(leaf):
        torch = sys.modules["torch"]
        leaf = leaf.detach().to("cpu", torch.float64 if leaf.is_floating_point() else None).numpy()
    array = np.asarray(leaf)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def difference(value: Any, wanted: Any) -> float:
    """Largest absolute difference over the largest absolute wanted value; infinite for NaN, other shapes or other integers."""
    mine, theirs = list(leaves(value)), list(leaves(wanted))
    if len(mine) != len(theirs):
        return math.inf
    worst = largest = 0.0
    for a, b in zip(mine, theirs, strict=True):
        x, y = _float64(a), _float64(b)
        if x.shape != y.shape or not np.isfinite(x).all():
            return math.inf
        if x.size:
            worst, largest = max(worst, float(np.abs(x - y).max())), max(largest, float(np.abs(y).max()))
    if math.isnan(worst) or math.isnan(largest):
        return math.inf
    return worst / largest if largest > 0.0 else (0.0 if worst == 0.0 else math.inf)


def overwrite(target: Any, source: Any) -> None:
    """Copies ``source`` into the memory of ``target``: same structure, same shapes; raises ValueError otherwise."""
    mine, theirs = list(leaves(target)), list(leaves(source))
    if len(mine) != len(theirs):
        raise ValueError(f"{len(mine)} arrays cannot take the contents of {len(theirs)}")
    for a, b in zip(mine, theirs, strict=True):
        if type(a) is np.ndarray:
            a[...] = b
        elif is_tensor(a):
            with sys.modules["torch"].no_grad():
                a.detach().copy_(b)
        else:
            raise ValueError(f"{type(a).__name__} cannot be overwritten: weights are arrays or tensors")


def on_gpu(value: Any) -> bool:
    """Whether any part of the value lies on a CUDA device."""
    return any(is_tensor(leaf) and leaf.is_cuda for leaf in leaves(value))
