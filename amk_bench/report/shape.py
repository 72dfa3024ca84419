"""Shapes of plain JSON values, and the check that a value has one.

A shape is a type (``int``, ``float``, ``str``, ``bool``, ``object`` for anything), a tuple of alternatives, a list ``[shape]`` of
any length, or a mapping from field to shape.  A field with a question mark may be missing; the field ``"*"`` gives the shape of
every field that is not named, and without it such fields are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from amk_bench.results import ResultError

Shape = Any


def check(value: Any, shape: Shape, where: str = "document") -> None:
    """Raises ResultError that names the place, what was found and what is required."""
    if isinstance(shape, tuple):
        if not any(_has(value, s, where) for s in shape):
            raise ResultError(f"{where}: {_short(value)} is none of {', '.join(map(_name, shape))}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ResultError(f"{where}: {_short(value)} is not a list")
        for index, item in enumerate(value):
            check(item, shape[0], f"{where}[{index}]")
    elif isinstance(shape, Mapping):
        _fields(value, shape, where)
    elif not _is(value, shape):
        raise ResultError(f"{where}: {_short(value)} is not {_name(shape)}")


def _fields(value: Any, shape: Mapping[str, Shape], where: str) -> None:
    if not isinstance(value, dict):
        raise ResultError(f"{where}: {_short(value)} is not an object")
    named = {key.removesuffix("?") for key in shape} - {"*"}
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            check(value[name], inner, f"{where}.{name}")
        elif key == name != "*":
            raise ResultError(f"{where}.{name}: missing")
    for name in sorted(value.keys() - named):
        if "*" not in shape:
            raise ResultError(f"{where}.{name}: no such field")
        check(value[name], shape["*"], f"{where}.{name}")


def _is(value: Any, kind: type) -> bool:
    if kind is object:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _has(value: Any, shape: Shape, where: str) -> bool:
    try:
        check(value, shape, where)
    except ResultError:
        return False
    return True


def _name(shape: Shape) -> str:
    return shape.__name__ if isinstance(shape, type) else "a list" if isinstance(shape, list) else "an object"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
