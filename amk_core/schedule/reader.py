"""Reads the interchange format ``amk.schedule/1``: JSON text -> object -> :class:`~amk_core.schedule.ir.Schedule`.

Structure is checked here, with an error for each thing that is not the documented format; meaning is the validator's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from amk_core.schedule import footprint, ops
from amk_core.schedule.ir import (
    AFFINE_FIELDS,
    ASYNC,
    COLUMN_DTYPES,
    DTYPE_BITS,
    FENCES,
    FORMAT,
    MAYBE,
    PREV_EPOCH,
    WRITE,
    Affine,
    Buffer,
    Counter,
    Kind,
    Lifetime,
    Pool,
    Schedule,
    ScheduleFormatError,
    TargetLimits,
    Variable,
    columns_from,
)

MAX_DIMS = 64
MAX_VARIABLES = 1 << 16  # launch variables, counted one by one: a short file must not ask for more names than fit in memory
INT_MAX = 2**62  # larger integers in an interchange file are refused before any arithmetic can overflow


def parse_json(text: str | bytes) -> Any:
    """``json.loads`` that refuses duplicate keys, NaN/Infinity and deep nesting with a :class:`ScheduleFormatError`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) != len(items):
            raise ScheduleFormatError("duplicate key in a JSON object")
        return out

    def constant(name: str) -> Any:
        raise ScheduleFormatError(f"{name} is not a number a schedule may hold")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except ScheduleFormatError:
        raise
    except (ValueError, RecursionError) as e:  # JSONDecodeError, UnicodeDecodeError, int too long, nesting
        raise ScheduleFormatError(f"not readable as JSON: {str(e)[:200]}") from None


def read(data: Mapping[str, Any]) -> Schedule:
    """The schedule of an interchange object; see :meth:`Schedule.from_json`."""
    try:
        return _Reader(data).schedule()
    except RecursionError:  # naming what was seen prints it
        raise ScheduleFormatError("nested deeper than the format") from None


def _short(x: Any) -> str:
    """What was seen, for an error: the beginning of it."""
    return repr(x[:40] if isinstance(x, str) else str(x)[:40])


class _Reader:
    """Interchange object -> Schedule.  Structure is checked here; meaning is checked by the validator."""

    TOP = frozenset(
        "format steps pools queues buffers counters tasks initial variables target stop meta".split()  # noqa: SIM905
    )

    def __init__(self, data: Any) -> None:
        self.d = self.obj(data, "schedule", self.TOP, required={"format", "queues", "buffers", "counters", "tasks"})
        if self.d["format"] != FORMAT:
            raise ScheduleFormatError(f'format is {_short(self.d["format"])}, required is "{FORMAT}"')
        self.defects: list[str] = []
        self.var_index: dict[str, int] = {}
        self.affine: list[tuple[int, ...]] = []

    # -- small typed accessors
    @staticmethod
    def obj(x: Any, what: str, known: frozenset[str], required: Iterable[str] = ()) -> dict[str, Any]:
        if not isinstance(x, Mapping):
            raise ScheduleFormatError(f"{what}: an object is required, seen {type(x).__name__}")
        unknown = [str(k) for k in x if k not in known]
        if unknown:
            raise ScheduleFormatError(f"{what}: unknown field {_short(unknown[0])}; known are {', '.join(sorted(known))}")
        for key in required:
            if key not in x:
                raise ScheduleFormatError(f"{what}: field {key!r} is missing")
        return dict(x)

    @staticmethod
    def int_(x: Any, what: str) -> int:
        if isinstance(x, bool) or not isinstance(x, int):
            raise ScheduleFormatError(f"{what}: an integer is required, seen {_short(x)}")
        if not -INT_MAX <= x <= INT_MAX:
            raise ScheduleFormatError(f"{what}: integer out of range")
        return x

    @classmethod
    def i32(cls, x: Any, what: str) -> int:
        n = cls.int_(x, what)
        if not -(2**31) <= n < 2**31:
            raise ScheduleFormatError(f"{what}: {n} does not fit 32 bits")
        return n

    @staticmethod
    def list_(x: Any, what: str, length: int | None = None) -> list[Any]:
        if not isinstance(x, list | tuple):
            raise ScheduleFormatError(f"{what}: a list is required, seen {type(x).__name__}")
        if length is not None and len(x) != length:
            raise ScheduleFormatError(f"{what}: {length} entries are required, seen {len(x)}")
        return list(x)

    @staticmethod
    def str_(x: Any, what: str) -> str:
        if not isinstance(x, str):
            raise ScheduleFormatError(f"{what}: a string is required, seen {_short(x)}")
        if not x.isascii():
            try:
                x.encode()
            except UnicodeEncodeError:  # it could not be printed
                raise ScheduleFormatError(f"{what}: {_short(x)} holds half of a surrogate pair") from None
        return x

    @staticmethod
    def bool_(x: Any, what: str) -> bool:
        if not isinstance(x, bool):
            raise ScheduleFormatError(f"{what}: true or false is required, seen {_short(x)}")
        return x

    # -- parts
    def pools(self) -> tuple[Pool, ...]:
        if "pools" not in self.d:
            return (Pool("global"),)
        out = []
        for i, p in enumerate(self.list_(self.d["pools"], "pools")):
            w = f"pools[{i}]"
            p = self.obj(p, w, frozenset({"id", "bytes", "per_queue", "cluster"}), required={"id"})
            size = p.get("bytes")
            size = None if size is None else self.int_(size, f"{w}.bytes")
            each, cluster = self.bool_(p.get("per_queue", False), w), self.i32(p.get("cluster", 0), f"{w}.cluster")
            out.append(Pool(self.str_(p["id"], f"{w}.id"), size, each, cluster))
        if len({p.id for p in out}) != len(out):
            self.defects.append("pools: two pools have the same id")
        return tuple(out)

    def variables(self) -> tuple[Variable, ...]:
        out: list[Variable] = []
        raw = self.d.get("variables", {})
        if not isinstance(raw, Mapping):
            raise ScheduleFormatError(f"variables: an object is required, seen {type(raw).__name__}")
        for name, v in raw.items():
            w = f"variables.{self.str_(name, 'variables')[:40]}"
            v = self.obj(v, w, frozenset({"count", "min", "max"}), required={"count", "min", "max"})
            var = Variable(name, *(self.int_(v[k], f"{w}.{k}") for k in ("count", "min", "max")))
            if not 1 <= var.count <= MAX_VARIABLES - sum(other.count for other in out):
                raise ScheduleFormatError(
                    f"{w}: count is {var.count}, required is at least 1, and {MAX_VARIABLES} over all variables"
                )
            first = sum(other.count for other in out)  # the table holds second names too, which are no index
            for i in range(var.count):
                self.var_index[f"{name}[{i}]"] = first + i
            if var.count == 1:
                self.var_index.setdefault(name, self.var_index[f"{name}[0]"])
            out.append(var)
        return tuple(out)

    def buffers(self) -> tuple[Buffer, ...]:
        known = frozenset("id name kind dtype shape pool offset lifetime tagged".split())  # noqa: SIM905
        out = []
        for i, b in enumerate(self.list_(self.d["buffers"], "buffers")):
            w = f"buffers[{i}]"
            b = self.obj(b, w, known, required={"id", "shape", "dtype"})
            self.dense(b["id"], i, w)
            kind = self.str_(b.get("kind", "activation"), f"{w}.kind").upper()
            life = self.str_(b.get("lifetime", "step"), f"{w}.lifetime").upper()
            dtype = self.str_(b["dtype"], f"{w}.dtype")
            if kind not in Kind.__members__ or life not in Lifetime.__members__ or dtype not in DTYPE_BITS:
                raise ScheduleFormatError(f"{w}: unknown kind {_short(kind)}, lifetime {_short(life)} or dtype {_short(dtype)}")
            shape = tuple(self.int_(n, f"{w}.shape") for n in self.list_(b["shape"], f"{w}.shape"))
            if (
                not shape
                or any(not 0 < n < 2**40 for n in shape)
                or math.log2(math.prod(shape[:MAX_DIMS])) > 50
                or len(shape) > MAX_DIMS
            ):
                self.defects.append(f"{w}.shape: {_short(list(shape[:MAX_DIMS]))} is not a shape")
                shape = (1, 1)
            out.append(
                Buffer(
                    self.str_(b.get("name", f"b{i}"), f"{w}.name"), Kind[kind], dtype, shape,
                    self.str_(b.get("pool", "global"), f"{w}.pool"), self.int_(b.get("offset", 0), f"{w}.offset"),
                    Lifetime[life], self.bool_(b.get("tagged", False), f"{w}.tagged"),
                )
            )  # fmt: skip
        return tuple(out)

    def dense(self, seen: Any, index: int, what: str) -> None:
        if self.int_(seen, f"{what}.id") != index:
            self.defects.append(f"{what}: id is {seen}, required is {index} (ids are dense: id == position)")

    def counters(self) -> tuple[Counter, ...]:
        out = []
        for i, c in enumerate(self.list_(self.d["counters"], "counters")):
            w = f"counters[{i}]"
            c = self.obj(c, w, frozenset({"id", "name", "per_step"}), required={"id", "per_step"})
            self.dense(c["id"], i, w)
            out.append(Counter(self.str_(c.get("name", f"c{i}"), w), self.int_(c["per_step"], f"{w}.per_step")))
        return tuple(out)

    def range_(self, x: Any, what: str) -> tuple[int, int, int]:
        """(start, stop, affine index or -1)."""
        if isinstance(x, list | tuple):
            lo, hi = (self.int_(n, what) for n in self.list_(x, what, 2))
            return lo, hi, -1
        r = self.obj(x, what, frozenset({"start", "length"}), required={"start", "length"})
        start, length = r["start"], r["length"]
        add, var, stride, mod = 0, -1, 0, 0
        if isinstance(start, Mapping):
            s = self.obj(start, what, frozenset({"base", "stride", "mod", "add"}))
            add, stride = self.int_(s.get("add", 0), what), self.int_(s.get("stride", 0), what)
            mod = 0 if s.get("mod") is None else self.int_(s["mod"], what)
            if "mod" in s and s["mod"] is not None and mod <= 0:
                raise ScheduleFormatError(f"{what}: mod is {mod}, required is a positive integer or null")
            base = s.get("base")
            if isinstance(base, int):
                add += self.int_(base, what)
            elif base is not None:
                var = self.var(base, what)
        else:
            add = self.int_(start, what)
        lvar, lstride = -1, 0
        if isinstance(length, Mapping):
            n = self.obj(length, what, frozenset({"base", "stride", "add"}))
            ladd, lstride = self.int_(n.get("add", 0), what), self.int_(n.get("stride", 0), what)
            if n.get("base") is not None:
                lvar = self.var(n["base"], what)
        else:
            ladd = self.int_(length, what)
        self.affine.append(Affine(add, var, stride, mod, ladd, lvar, lstride).row())
        return 0, 0, len(self.affine) - 1

    def var(self, name: Any, what: str) -> int:
        key = self.str_(name, what)
        if key not in self.var_index:
            self.defects.append(f"{what}: unknown variable {_short(key)}")
            return -1
        return self.var_index[key]

    def schedule(self) -> Schedule:
        pools, variables = self.pools(), self.variables()
        buffers, counters = self.buffers(), self.counters()
        p: dict[str, Any] = {name: [] for name in COLUMN_DTYPES}
        for name in ("par_off", "wait_off", "sig_off", "acc_off", "queue_off"):
            p[name].append(0)
        known = frozenset("id op params waits signals reads writes fences".split())  # noqa: SIM905
        acc_known = frozenset("buffer rows cols maybe proxy epoch".split())  # noqa: SIM905
        for i, t in enumerate(self.list_(self.d["tasks"], "tasks")):
            w = f"tasks[{i}]"
            t = self.obj(t, w, known, required={"id"})
            self.dense(t["id"], i, w)
            op = self.str_(t.get("op", "opaque"), f"{w}.op")
            params = t.get("params", {})
            if op not in ops.BY_NAME:
                self.defects.append(f"{w}: unknown op {_short(op)}; known are {', '.join(sorted(ops.BY_NAME))}")
                op, params = "opaque", {}
            spec = ops.BY_NAME[op]
            try:
                params = self.obj(params, f"{w}.params", frozenset(spec.params), required=spec.params)
                p["par"] += spec.encode(params)
            except (TypeError, ValueError, OverflowError) as e:  # ScheduleFormatError is a ValueError
                self.defects.append(f"{w}.params: {e}")
                spec = ops.BY_NAME["opaque"]
            fences = 0
            for f in self.list_(t.get("fences", []), f"{w}.fences"):
                if not isinstance(f, str) or f not in FENCES:
                    raise ScheduleFormatError(f"{w}: unknown fence {_short(f)}; known are {', '.join(FENCES)}")
                fences |= FENCES[f]
            p["task_op"].append(spec.code)
            p["task_fences"].append(fences)
            for wait in self.list_(t.get("waits", []), f"{w}.waits"):
                wait = self.list_(wait, f"{w}.waits")
                if len(wait) == 2:
                    wait.append(0)
                c, th, epoch = self.list_(wait, f"{w}.waits", 3)
                if self.int_(epoch, f"{w}.waits") not in (0, -1):
                    raise ScheduleFormatError(f"{w}.waits: epoch is {_short(epoch)}, required is 0 or -1")
                p["wait_counter"].append(self.i32(c, f"{w}.waits"))
                p["wait_t"].append(self.int_(th, f"{w}.waits"))
                p["wait_e"].append(epoch)
            for sig in self.list_(t.get("signals", []), f"{w}.signals"):
                c, a = self.list_(sig, f"{w}.signals", 2)
                p["sig_counter"].append(self.i32(c, f"{w}.signals"))
                p["sig_amount"].append(self.int_(a, f"{w}.signals"))
            for field_name, write in (("reads", 0), ("writes", WRITE)):
                for a in self.list_(t.get(field_name, []), f"{w}.{field_name}"):
                    wa = f"{w}.{field_name}"
                    a = self.obj(a, wa, acc_known, required={"buffer", "rows", "cols"})
                    flags = write | (MAYBE if self.bool_(a.get("maybe", False), wa) else 0)
                    proxy = a.get("proxy", "generic")
                    if proxy not in ("async", "generic"):
                        raise ScheduleFormatError(f'{wa}: proxy is {_short(proxy)}, required is "async" or "generic"')
                    flags |= ASYNC if proxy == "async" else 0
                    epoch = a.get("epoch", 0)
                    if self.int_(epoch, wa) not in (0, -1) or (epoch and write):
                        raise ScheduleFormatError(f"{wa}: epoch is {_short(epoch)}, required is 0 or (reads only) -1")
                    flags |= PREV_EPOCH if epoch else 0
                    p["acc_buffer"].append(self.i32(a["buffer"], wa))
                    p["acc_flags"].append(flags)
                    p["acc_label"].append(-1)
                    self.ranges(p, "acc", a, wa)
            for off, col in (
                ("par_off", "par"),
                ("wait_off", "wait_t"),
                ("sig_off", "sig_amount"),
                ("acc_off", "acc_buffer"),
            ):
                p[off].append(len(p[col]))
        for q, ids in enumerate(self.list_(self.d["queues"], "queues")):
            p["queue_task"] += [self.i32(t, f"queues[{q}]") for t in self.list_(ids, f"queues[{q}]")]
            p["queue_off"].append(len(p["queue_task"]))
        for i, r in enumerate(self.list_(self.d.get("initial", []), "initial")):
            w = f"initial[{i}]"
            r = self.obj(r, w, frozenset({"buffer", "rows", "cols"}), required={"buffer", "rows", "cols"})
            p["init_buffer"].append(self.i32(r["buffer"], w))
            self.ranges(p, "init", r, w)
        affine, index = np.unique(np.array(self.affine, np.int64).reshape(-1, AFFINE_FIELDS), axis=0, return_inverse=True)
        p["affine"] = affine.reshape(-1)  # each distinct range once, sorted: the tables do not depend on the order of reading
        for name in ("acc_raff", "acc_caff", "init_raff", "init_caff"):
            p[name] = [-1 if a < 0 else index.reshape(-1)[a] for a in p[name]]
        s = Schedule(
            steps=self.int_(self.d.get("steps", 1), "steps"),
            pools=pools, buffers=buffers, counters=counters, variables=variables,
            columns=columns_from(p), target=self.target(), stop=self.stop(), meta=self.meta(),
            defects=tuple(self.defects),
        )  # fmt: skip
        footprint.label(s)
        return s

    def ranges(self, p: dict[str, Any], prefix: str, a: dict[str, Any], what: str) -> None:
        for key, lo, hi, aff in (("rows", "r0", "r1", "raff"), ("cols", "c0", "c1", "caff")):
            start, stop, index = self.range_(a[key], f"{what}.{key}")
            p[f"{prefix}_{lo}"].append(start)
            p[f"{prefix}_{hi}"].append(stop)
            p[f"{prefix}_{aff}"].append(index)

    def target(self) -> TargetLimits | None:
        if self.d.get("target") is None:
            return None
        keys = frozenset({"sms", "smem_bytes", "arch"})
        t = self.obj(self.d["target"], "target", keys, required=keys)
        return TargetLimits(self.int_(t["sms"], "target.sms"), self.int_(t["smem_bytes"], "target"), self.str_(t["arch"], "target"))

    def stop(self) -> tuple[int, int] | None:
        if self.d.get("stop") is None:
            return None
        keys = frozenset({"buffer", "task"})
        s = self.obj(self.d["stop"], "stop", keys, required=keys)
        return self.i32(s["buffer"], "stop.buffer"), self.i32(s["task"], "stop.task")

    def meta(self) -> dict[str, int | str]:
        raw = self.d.get("meta", {})
        if not isinstance(raw, Mapping):
            raise ScheduleFormatError("meta: an object of integers and strings is required")
        out: dict[str, int | str] = {}
        for k, v in raw.items():
            where = f"meta.{self.str_(k, 'meta')[:40]}"
            out[k] = self.str_(v, where) if isinstance(v, str) else self.int_(v, where)
        return out
