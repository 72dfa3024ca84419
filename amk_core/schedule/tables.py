"""Binary tables: the byte string that is validated, hashed, certified and executed.

Layout (little endian): ``b"AMKT"``, u32 version, u32 number of sections, u32 zero; then one 48-byte directory entry a section
{char name[24]; u32 dtype (4: int32, 8: int64, 1: bytes); u32 zero; u64 count; u64 offset}; then the data, each section aligned
to 64 bytes, padding zero.  The sections are the columns of :class:`amk_core.schedule.ir.Columns` under their own names, and:

=========  =======  ==================================================================================================
section    dtype    content
=========  =======  ==================================================================================================
header     int64    steps, n_tasks, n_queues, stop buffer, stop task, target sms, target smem bytes (-1: absent)
pools      int64    [n, 2]: bytes (-1: unbounded), per_queue
clusters   int64    [n]: queues of a cluster, of pools with a part for each, else 0; left out where there is none
buffers    int64    [n, 9]: kind, dtype index, bits per element, rows, cols, pool index (-1: unknown), offset, lifetime, tagged
counters   int64    [n]: per_step
variables  int64    [n flattened, 2]: min, max
names      bytes    UTF-8 JSON: names of pools, buffers, counters, variables; target arch; meta; defects
=========  =======  ==================================================================================================
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.ir import (
    AFFINE_FIELDS,
    COLUMN_DTYPES,
    DTYPE_BITS,
    DTYPES,
    Buffer,
    Columns,
    Counter,
    Kind,
    Lifetime,
    Pool,
    Schedule,
    TargetLimits,
    Variable,
)

MAGIC, VERSION, ALIGN = b"AMKT", 1, 64
_ENTRY = struct.Struct("<24sIIQQ")
_DTYPE_CODE: dict[np.dtype[Any], int] = {np.dtype(np.int32): 4, np.dtype(np.int64): 8, np.dtype(np.uint8): 1}
_CODE_DTYPE: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _DTYPE_CODE.items()}


class TableError(ValueError):
    """The bytes are not tables of this version, or are damaged."""


def write_sections(magic: bytes, sections: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Serialise named integer arrays; the same input gives the same bytes."""
    names = sorted(sections)
    offset = 16 + _ENTRY.size * len(names)
    directory, body = [struct.pack("<4sIII", magic, VERSION, len(names), 0)], []
    for name in names:
        a = np.ascontiguousarray(sections[name])
        raw = a.tobytes()
        pad = -offset % ALIGN
        body.append(b"\0" * pad + raw)
        offset += pad
        directory.append(_ENTRY.pack(name.encode(), _DTYPE_CODE[a.dtype], 0, a.size, offset))
        offset += len(raw)
    return b"".join(directory + body)


def read_sections(magic: bytes, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The inverse of :func:`write_sections`; every length and offset is checked (TableError)."""
    if len(data) < 16 or data[:4] != magic:
        raise TableError(f"not AMK data: it starts with {data[:4]!r}, required is {magic!r}")
    _, version, n, _ = struct.unpack_from("<4sIII", data)
    if version != VERSION or n > 4096 or 16 + n * _ENTRY.size > len(data):
        raise TableError(f"version {version} with {n} sections in {len(data)} bytes; this library reads version {VERSION}")
    out: dict[str, npt.NDArray[Any]] = {}
    for i in range(n):
        name, code, _, count, offset = _ENTRY.unpack_from(data, 16 + i * _ENTRY.size)
        if code not in _CODE_DTYPE or offset % code or offset + count * code > len(data):
            raise TableError(f"section {name!r} is damaged or cut off")
        out[name.rstrip(b"\0").decode("ascii", "replace")] = np.frombuffer(data, _CODE_DTYPE[code], count, offset)
    return out


def pack(s: Schedule) -> bytes:
    """The binary tables of a schedule (deterministic).  Works for any readable schedule, opaque tasks and defects included."""
    pool_index = {p.id: i for i, p in enumerate(s.pools)}
    c = s.columns
    sections: dict[str, npt.NDArray[Any]] = {name: getattr(c, name).reshape(-1) for name in COLUMN_DTYPES}
    stop = s.stop or (-1, -1)
    target = (s.target.sms, s.target.smem_bytes) if s.target else (-1, -1)
    sections["header"] = np.array([s.steps, s.n_tasks, s.n_queues, *stop, *target], np.int64)
    sections["pools"] = np.array([[-1 if p.bytes is None else p.bytes, p.per_queue] for p in s.pools], np.int64).reshape(-1)
    if any(p.cluster for p in s.pools):
        sections["clusters"] = np.array([p.cluster for p in s.pools], np.int64)
    sections["buffers"] = np.array(
        [
            [b.kind, DTYPES.index(b.dtype), DTYPE_BITS[b.dtype], b.rows, b.cols, pool_index.get(b.pool, -1), b.offset,
             b.lifetime, b.tagged]
            for b in s.buffers
        ],
        np.int64,
    ).reshape(-1)  # fmt: skip
    sections["counters"] = np.array([k.per_step for k in s.counters], np.int64)
    sections["variables"] = np.array([[v.min, v.max] for v in s.variables for _ in range(v.count)], np.int64).reshape(-1)
    names = {
        "pools": [p.id for p in s.pools],
        "buffers": [[b.name, list(b.shape), b.pool] for b in s.buffers],
        "counters": [k.name for k in s.counters],
        "variables": [[v.name, v.count] for v in s.variables],
        "arch": s.target.arch if s.target else None,
        "meta": dict(s.meta),
        "defects": list(s.defects),
    }
    text = json.dumps(names, sort_keys=True, separators=(",", ":")).encode()
    sections["names"] = np.frombuffer(text, np.uint8)
    return write_sections(MAGIC, sections)


def unpack(data: bytes) -> Schedule:
    """The schedule that :func:`pack` wrote."""
    s = read_sections(MAGIC, data)
    missing = [n for n in (*COLUMN_DTYPES, "header", "pools", "buffers", "counters", "variables", "names") if n not in s]
    if missing:
        raise TableError(f"section {missing[0]} is missing")
    try:
        names = json.loads(s["names"].tobytes())
        head = [int(x) for x in s["header"]]
        cols = {n: s[n].astype(d) for n, d in COLUMN_DTYPES.items()}
        cols["affine"] = cols["affine"].reshape(-1, AFFINE_FIELDS)
        var_range = s["variables"].reshape(-1, 2)
        clusters = s.get("clusters", np.zeros(len(names["pools"]), np.int64))
        variables, at = [], 0
        for name, count in names["variables"]:
            variables.append(Variable(name, count, int(var_range[at, 0]), int(var_range[at, 1])))
            at += count
        return Schedule(
            steps=head[0],
            pools=tuple(
                Pool(n, None if b < 0 else int(b), bool(q), int(c))
                for n, (b, q), c in zip(names["pools"], s["pools"].reshape(-1, 2), clusters, strict=True)
            ),
            buffers=tuple(
                Buffer(
                    n,
                    Kind(int(b[0])),
                    DTYPES[int(b[1])],
                    tuple(shape),
                    pool,
                    int(b[6]),
                    Lifetime(int(b[7])),
                    bool(b[8]),
                )
                for (n, shape, pool), b in zip(names["buffers"], s["buffers"].reshape(-1, 9), strict=True)
            ),
            counters=tuple(Counter(n, int(k)) for n, k in zip(names["counters"], s["counters"], strict=True)),
            columns=Columns(**cols),
            variables=tuple(variables),
            target=TargetLimits(head[5], head[6], names["arch"]) if names["arch"] is not None else None,
            stop=(head[3], head[4]) if head[3] >= 0 else None,
            meta=names["meta"],
            defects=tuple(names["defects"]),
        )
    except (KeyError, IndexError, ValueError, TypeError) as e:
        raise TableError(f"damaged tables: {e}") from None


def table_hash(data: bytes) -> str:
    """SHA-256 of the tables, hexadecimal: what a certificate binds itself to."""
    return hashlib.sha256(data).hexdigest()
