"""The certificate: what an accepted schedule carries so that a small, independent checker can trust it.

A certificate names the tables it belongs to (their SHA-256), an order in which one step can run (deadlock freedom), and a table
of vector clocks (must-order).  It is data, not an argument: whatever the search did, the checker accepts a certificate only if

1. **hash**: ``table_hash`` is ``tables.table_hash(tables)``;
2. **replay**: ``replay`` lists every task once; run one after the other from zeroed counters, each task is the next one of its
   queue, its waits of this step (``e == 0``) hold, and the writers (in this step) of every tagged element it reads have run.
   Waits on the step before hold trivially: every step can be run like this, one after the other;
3. **clocks**: the table satisfies the local rule below, which makes it a valid must-order (proofs/MustOrder.v, Periodic.v);
4. **conflicts**: every two conflicting accesses of plain buffers on overlapping physical bytes by tasks of different queues,
   within a step and over any two steps below ``steps``, are ordered by the clocks.

Clocks
======
``unroll == 0``: periodic clocks, valid for every number of steps.  An *instance* is a task; n_instances = n_tasks.
``unroll == U >= 1``: clocks of U steps written out, valid for ``steps <= U``.  Instance ``i * n_tasks + b`` is task b in step i;
n_instances = U * n_tasks; the queue of instances is the task queue repeated U times.

``row[instance]`` is a row of the sparse clock table; entries of row k are ``row_queue[row_off[k]:row_off[k+1]]`` (strictly
ascending) and ``row_value`` beside them.  Many instances share a row.  With q, j the queue and position of b, and L_r the tasks of
queue r (queues without tasks never appear):

- the component for b's own queue is implied: ``v[b][q] = j`` (unrolled: ``i * L_q + j``); an entry for it in the row is ignored;
- a component that is not listed is minus infinity (unrolled: 0);
- ``v[b][r] = x`` says: before step i of b starts, queue r has completed ``i * L_r + x`` tasks (unrolled: ``x`` tasks).
- ``plus[b][r] = v[b][r]`` for r != q, and ``plus[b][q] = v[b][q] + 1``: what holds when b has ended.

Local rule, periodic.  Every listed v[b][r] with r != q satisfies ``v <= L_r`` and at least one of

- ``j > 0`` and ``v <= plus[a][r]`` where a is the task before b on q;
- ``j == 0`` and ``v <= plus[z][r] - L_r`` where z is the last task of q;
- some wait (c, t, e) of b with ``sum over signals (p, w) on c of w * ceil((v - plus[p][r]) / L_r) < e * N_c + t``, where N_c is
  the sum of the amounts w, and no producer p with ``w > 0`` has ``plus[p][r]`` minus infinity.

Local rule, unrolled.  Every listed v[b(i)][r] with r != q satisfies ``0 <= v <= U * L_r`` and is 0, or

- the instance is not the first of its queue and ``v <= plus[a][r]`` where a is the instance before it; or
- some wait (c, t, e) of b with i + e >= 0 and ``sum of w over signals (p(k), w) on c, k < U, with plus[p(k)][r] < v`` less than
  ``(i + e) * N_c + t``.

Order.  Access x of task a in step i and access y of task b in step i + k (k >= 0) are ordered, x first, iff a and b share a queue
(and x comes first there), or ``v[b][queue(a)] + k * L_queue(a) >= pos(a) + 1`` (unrolled:
``v[b(i+k)][queue(a)] >= i * L_queue(a) + pos(a) + 1``).  At k == 0 either task may come first.

Bytes: ``tables.write_sections`` with magic ``b"AMKC"``: sections ``hash`` (32 bytes), ``head`` (int64: unroll, n_tasks, n_queues),
``replay``, ``row``, ``row_queue``, ``row_value`` (int32) and ``row_off`` (int64).  JSON: the same fields by name, format
``amk.certificate/1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule.tables import TableError, read_sections, write_sections

MAGIC, FORMAT = b"AMKC", "amk.certificate/1"
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
_ARRAYS: Mapping[str, Any] = {
    "replay": np.int32, "row": np.int32, "row_off": np.int64, "row_queue": np.int32, "row_value": np.int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """See the module docstring.  Equality and hashing are by :meth:`to_bytes`."""

    table_hash: str  # 64 hexadecimal digits
    unroll: int
    n_tasks: int
    n_queues: int
    replay: I32  # [n_tasks] task ids
    row: I32  # [n_instances]
    row_off: I64  # [n_rows + 1]
    row_queue: I32  # [entries]
    row_value: I32  # [entries]

    def to_bytes(self) -> bytes:
        sections: dict[str, npt.NDArray[Any]] = {
            "hash": np.frombuffer(bytes.fromhex(self.table_hash), np.uint8),
            "head": np.array([self.unroll, self.n_tasks, self.n_queues], np.int64),
        }
        sections.update({name: np.asarray(getattr(self, name), dtype) for name, dtype in _ARRAYS.items()})
        return write_sections(MAGIC, sections)

    @classmethod
    def from_bytes(cls, data: bytes) -> Certificate:
        """The inverse of :meth:`to_bytes`.

        Raises:
            TableError: for bytes that are not a certificate.  Only the container is checked: lengths and values are whatever the
                bytes say, and are the checker's business.
        """
        s = read_sections(MAGIC, data)
        missing = [n for n in ("hash", "head", *_ARRAYS) if n not in s]
        if missing:
            raise TableError(f"certificate: section {missing[0]} is missing")
        if s["hash"].dtype != np.uint8 or s["hash"].size != 32 or s["head"].dtype != np.int64 or s["head"].size != 3:
            raise TableError("certificate: section hash or head is damaged")
        wrong = [n for n, dtype in _ARRAYS.items() if s[n].dtype != dtype]
        if wrong:
            raise TableError(f"certificate: section {wrong[0]} has the wrong type")
        unroll, n_tasks, n_queues = (int(x) for x in s["head"])
        return cls(s["hash"].tobytes().hex(), unroll, n_tasks, n_queues, **{n: s[n] for n in _ARRAYS})

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"format": FORMAT, "table_hash": self.table_hash}
        out.update({name: getattr(self, name) for name in ("unroll", "n_tasks", "n_queues")})
        out.update({name: [int(x) for x in getattr(self, name)] for name in _ARRAYS})
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        """The inverse of :meth:`to_json` (TableError for anything else)."""
        try:
            if data["format"] != FORMAT:
                raise TableError(f'certificate: format is {data["format"]!r}, required is "{FORMAT}"')
            if len(bytes.fromhex(data["table_hash"])) != 32:
                raise TableError("certificate: table_hash is not 64 hexadecimal digits")
            unroll, n_tasks, n_queues = (int(data[k]) for k in ("unroll", "n_tasks", "n_queues"))
            if any(not 0 <= x < 2**40 for x in (unroll, n_tasks, n_queues)):
                raise TableError("certificate: unroll, n_tasks or n_queues is out of range")
            arrays: dict[str, Any] = {n: np.array(data[n], np.int64).reshape(-1).astype(dtype) for n, dtype in _ARRAYS.items()}
            if any((np.array(data[n], np.int64).reshape(-1) != a).any() for n, a in arrays.items()):
                raise TableError("certificate: a number does not fit its column")
            return cls(data["table_hash"].lower(), unroll, n_tasks, n_queues, **arrays)
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            if isinstance(e, TableError):
                raise
            raise TableError(f"not a certificate: {e}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())
