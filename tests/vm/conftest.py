"""A bench for one op: random buffers, one task, one program; the byte masks of its contract; and the card."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from amk_core.quant import QuantMatrix
from amk_core.quant import layout as quant_layout
from amk_core.schedule import footprint, ops, tables
from amk_core.schedule.build import Builder
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import DTYPE_BITS, MAYBE, WRITE, Kind, Lifetime, Schedule, Variable
from amk_core.schedule.lower import Geometry as LowerGeometry
from amk_core.schedule.lower import lower
from amk_core.schedule.pack import LANES, TILE_ALIGN, Tape, TapeLayout
from amk_core.targets import Target
from amk_core.vm import reference
from amk_core.vm.cpu import CpuVM

STEPS = 4
F32, I32 = np.float32, np.int32


@dataclass
class Case:
    """One task: parameters by name, buffers by parameter name (float arrays of what is stored, a QuantMatrix), and the launch."""

    op: str
    params: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]
    dtypes: dict[str, str] = field(default_factory=dict)
    variables: list[int] = field(default_factory=list)
    step: int = 0
    mode: str = "exact"

    def dtype(self, name: str) -> str:
        return self.dtypes.get(name) or ("i32" if self.arrays[name].dtype == I32 else "f32")

    def buffer_params(self) -> list[str]:
        return [n for n in ops.BY_NAME[self.op].params if n in self.arrays]


def stored(a: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The bytes of an array in a storage dtype."""
    return a.astype(ml_dtypes.bfloat16).view(np.uint16) if dtype == "bf16" else a


def loaded(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return raw.view(ml_dtypes.bfloat16).astype(F32) if dtype == "bf16" else raw


class UncheckedVM(CpuVM):
    """The VM without its certificate: the tests feed it single tasks and schedules that no validator would accept."""

    def __init__(
        self, packed: bytes, weight: Any, tape: Any, dtype: str, isa: str | None = None, bound: Any = None, pools: Any = None
    ) -> None:
        self._start(packed, weight, tape, dtype, bound or {}, pools or {}, isa)


class Lab:
    """A program of one task, its memory and its reference."""

    def __init__(self, case: Case, isa: str | None = None) -> None:
        self.case = case
        b = Builder(1)
        kinds = {"table": Kind.TABLE, "norm_w": Kind.TABLE, "cos": Kind.TABLE, "sin": Kind.TABLE, "w": Kind.WEIGHT,
                 "k": Kind.KV, "v": Kind.KV, "control": Kind.INPUT, "stop_ids": Kind.INPUT}  # fmt: skip
        spec = ops.BY_NAME[case.op]
        params = dict(case.params)
        self.names = case.buffer_params()
        for n in self.names:
            name = spec.weight.format(**params) if n == "w" else n
            pool = "weights" if n == "w" else "main"
            params[n] = b.buffer(
                name, kinds.get(n, Kind.ACTIVATION), case.dtype(n), case.arrays[n].shape, pool, Lifetime.PERSISTENT
            )
        for n in ("amax", "stop_ids"):
            if n in spec.params and n not in self.names:
                params[n] = -1
        if "out" in spec.params and "out" not in self.names:
            params["out"] = params["h"] if "h" in spec.params else -1  # the residual stream is written in place
        self.params = params
        done = b.counter("done")
        b.task(case.op, 0, params, (), (done,))
        variables = (Variable("p0", len(case.variables), 0, 1 << 20),) if case.variables else ()
        self.schedule: Schedule = b.build(STEPS, ("weights",), variables, None, None, {"mode": case.mode})
        self.vm = self._program(isa)

    def _program(self, isa: str | None) -> UncheckedVM:
        """The weight tile lies between bytes that are NaN in every float format."""
        c, weight, tape, dtype = self.case, -1, np.full(4 * TILE_ALIGN, 0xFF, np.uint8), "f32"
        if "w" in self.names:
            w, dtype = c.arrays["w"], c.dtype("w")
            times = 2 if c.op == "gate_up" else 1
            part = slice(times * c.params["row0"], times * c.params["row1"])
            if isinstance(w, QuantMatrix):
                raw, dtype = quant_layout.pack(w.take(part)).reshape(-1), "f32"
                tape = np.concatenate([tape, raw, tape])
                return UncheckedVM(tables.pack(self.schedule), np.array([4 * TILE_ALIGN], np.int64), tape, dtype, isa)
            rows = w[part]
            padded = np.zeros((len(rows), -(-w.shape[1] // LANES) * LANES), F32)
            padded[:, : w.shape[1]] = rows
            raw = stored(padded, dtype).view(np.uint8).reshape(-1)
            tape = np.concatenate([tape, raw, tape])
            weight = 4 * TILE_ALIGN
        return UncheckedVM(tables.pack(self.schedule), np.array([weight], np.int64), tape, dtype, isa)

    def fill(self) -> None:
        for n in self.names:
            if n != "w":
                raw = stored(self.case.arrays[n], self.case.dtype(n))
                self.vm.buffer(n)[...] = raw.view(self.vm.buffer(n).dtype)

    def run(self) -> None:
        self.vm.run_task(0, self.case.step, self.case.variables)

    def result(self, name: str) -> np.ndarray[Any, Any]:
        raw = self.vm.buffer(name)
        return loaded(raw.view(F32) if raw.dtype == np.uint32 else raw, self.case.dtype(name)).copy()

    def want(self) -> dict[str, np.ndarray[Any, Any]]:
        """Buffers after the float64 reference."""
        c = self.case
        arrays: list[Any] = []
        params = dict(self.params)
        for n in self.names:
            a = loaded(stored(c.arrays[n], c.dtype(n)), c.dtype(n))
            params[n] = len(arrays)
            arrays.append(a.copy() if a.dtype == I32 or n in ("amax", "control") else a.astype(np.float64))
        reference.run(c.op, params, arrays, c.step, c.variables, fast=c.mode == "fast")
        return {n: arrays[params[n]] for n in self.names}

    def mask(self, write: bool, maybe: bool = True) -> np.ndarray[Any, Any]:
        """Bytes of the pool that the contract lets the task read or write in this step; weights are left out."""
        s, c = self.schedule, self.schedule.columns
        f = footprint.derive(c.task_op, c.par_off, c.par)
        out = np.zeros(len(self.vm.pool("main")), bool)
        for i in range(len(f.task)):
            buffer = s.buffers[int(f.plain["buffer"][i])]
            flags = int(f.plain["flags"][i])
            if buffer.kind is Kind.WEIGHT or bool(flags & WRITE) != write or (flags & MAYBE and not maybe):
                continue
            r = self.range(f.row_affine[i]) if f.has_row_affine[i] else (int(f.plain["r0"][i]), int(f.plain["r1"][i]))
            k = self.range(f.col_affine[i]) if f.has_col_affine[i] else (int(f.plain["c0"][i]), int(f.plain["c1"][i]))
            size = DTYPE_BITS[buffer.dtype] // 8
            grid = np.zeros((buffer.rows, buffer.cols, size), bool)
            grid[r[0] : r[1], k[0] : k[1]] = True
            out[buffer.offset : buffer.offset + buffer.bytes] |= grid.reshape(-1)
        return out

    def range(self, affine: Any) -> tuple[int, int]:
        add, var, stride, mod, length, length_var, length_stride = (int(x) for x in affine)
        start = add + (self.case.variables[var] if var >= 0 else 0) + stride * self.case.step
        n = length + (self.case.variables[length_var] if length_var >= 0 else 0) + length_stride * self.case.step
        start = start % mod if mod else start
        return start, start + n


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (rng.standard_normal(shape) * scale).astype(F32)


def heads(n_heads: int, n_kv: int, d: int, batch: int, chunk: int, ctx: int) -> dict[str, int]:
    return {"m": batch * chunk, "chunk": chunk, "batch": batch, "ctx": ctx, "n_heads": n_heads, "n_kv": n_kv, "head_dim": d,
            "pos_var": 0, "layer": 1}  # fmt: skip


def attention(
    n_heads: int, n_kv: int, d: int, batch: int, chunk: int, ctx: int, splits: int, block: int
) -> dict[str, int]:  # fmt: skip
    blocks = math.ceil(math.ceil(ctx / block) / splits)
    shape = {"group": n_heads // n_kv, "splits": splits, "blocks": blocks, "block": block, "seq": batch - 1, "kv_head": n_kv - 1}
    return {**heads(n_heads, n_kv, d, batch, chunk, ctx), **shape}


def make_case(op: str, shape: str = "plain", seed: int = 0, mode: str = "exact") -> Case:
    """``plain``: small and round; ``odd``: sizes that divide nothing, several sequences, chunks, later steps, inactive rows;
    ``large``: more than one K slice and attention block."""
    rng = np.random.default_rng([seed, list(ops.CODES).index(op)])
    odd, large = shape == "odd", shape == "large"
    hidden = {"plain": 64, "odd": 50, "large": 2080}[shape]
    batch, chunk = (3, 3) if odd else (1, 5) if large else (1, 1)
    m, step = batch * chunk, 2 if odd else 0
    n_heads, n_kv, d = (6, 2, 10) if odd else (4, 4, 80) if large else (4, 2, 32)
    ctx, block, splits = (64, 8, 3) if odd else (300, 128, 2) if large else (32, 128, 1)
    weight = {"exact": "f32", "fast": "bf16"}[mode]
    # sequence 0 has ended, 1 ends inside the chunk, 2 goes on
    p0, n = ([3, 0, 21], [0, step * chunk + 2, STEPS * chunk]) if odd else ([140 if large else 7], [STEPS * chunk])
    launch = [*p0, *n]
    kv = {"k": weight, "v": weight}
    if op == "embed":
        vocab = 41
        params = {"m": m, "chunk": chunk, "feed": int(odd or large), "col0": 4, "col1": hidden - 2, "vocab": vocab,
                  "scale": 3.5 if odd else 1.0}  # fmt: skip
        tokens = rng.integers(0, vocab, (batch, STEPS * chunk if params["feed"] else 1)).astype(I32)
        if odd:
            tokens[0] = -1
        return Case(op, params, {"token": tokens, "table": normal(rng, vocab, hidden), "out": normal(rng, m, hidden)},
                    {"table": weight}, [], step, mode)  # fmt: skip
    if op == "qkv":
        rows = (n_heads + 2 * n_kv) * d
        params = {**heads(n_heads, n_kv, d, batch, chunk, ctx), "row0": 6, "row1": rows - (7 if odd else 0), "hidden": hidden,
                  "partial": int(odd), "packed": 0, "eps": 0.05}  # fmt: skip
        angle = rng.uniform(-3, 3, (ctx, d // 2))
        arrays = {
            "h": normal(rng, m, hidden), "norm_w": normal(rng, 1, hidden), "w": normal(rng, rows, hidden, scale=0.2),
            "cos": np.cos(angle).astype(F32), "sin": np.sin(angle).astype(F32), "q": normal(rng, m, n_heads * d),
            "k": normal(rng, batch * ctx, n_kv * d), "v": normal(rng, batch * ctx, n_kv * d),
        }  # fmt: skip
        return Case(op, params, arrays, {"w": weight, **kv}, launch, step, mode)
    if op in ("attn", "attn_combine", "o_proj_combine"):
        params = attention(n_heads, n_kv, d, batch, chunk, ctx, splits, block)
        width = params["splits"] * params["blocks"] * (d + 2)
        part = normal(rng, m * n_heads, width)
        part.reshape(m * n_heads, -1, d + 2)[:, :, 1] = rng.uniform(1, 20, part.reshape(m * n_heads, -1, d + 2).shape[:2])
        if op == "attn":
            params |= {"split": min(1, splits - 1), "partial": int(odd), "packed": 0, "out": -1, "scale": d**-0.5}
            arrays = {"q": normal(rng, m, n_heads * d), "k": normal(rng, batch * ctx, n_kv * d),
                      "v": normal(rng, batch * ctx, n_kv * d), "part": part}  # fmt: skip
            return Case(op, params, arrays, kv, launch, step, mode)
        if op == "attn_combine":
            return Case(op, params, {"part": part, "out": normal(rng, m, n_heads * d)}, {}, launch, step, mode)
        k = n_heads * d
        del params["seq"], params["kv_head"]
        params |= {"k": k, "row0": 3, "row1": hidden - 5}
        arrays = {"part": part, "w": normal(rng, hidden, k, scale=0.2), "h": normal(rng, m, hidden)}
        return Case(op, params, arrays, {"w": weight}, launch, step, mode)
    if op in ("o_proj", "down_proj"):
        k = {"plain": 96, "odd": 75, "large": 2500}[shape]
        params = {"m": m, "row0": 3, "row1": hidden - 5, "k": k, "layer": 1, "packed": 0}
        arrays = {"x": normal(rng, m, k), "w": normal(rng, hidden, k, scale=0.2), "h": normal(rng, m, hidden)}
        return Case(op, params, arrays, {"w": weight}, [], step, mode)
    if op in ("rank_qkv", "rank_attn", "o_part"):
        n_heads, n_kv, d = (6, 2, 10) if odd else (4, 2, 80) if large else (4, 2, 32)
        rows, position = (n_heads + 2 * n_kv) * d, {"plain": 7, "odd": 1, "large": 140}[shape]
        rank = {"m": 1, "ctx": ctx, "n_heads": n_heads, "n_kv": n_kv, "head_dim": d, "pos_var": 0, "layer": 1}
        launch, kv_head = [position, STEPS], n_kv - 1
        cache = {"k": normal(rng, ctx, n_kv * d), "v": normal(rng, ctx, n_kv * d)}
        pieces = 8
        attn = normal(rng, n_heads, pieces * (d + 2))
        if op == "rank_qkv":
            angle = rng.uniform(-3, 3, (ctx, d // 2))
            arrays = {
                "h": normal(rng, 1, hidden), "norm_w": normal(rng, 1, hidden), "w": normal(rng, rows, hidden, scale=0.2),
                "cos": np.cos(angle).astype(F32), "sin": np.sin(angle).astype(F32), "q": normal(rng, 1, rows), **cache,
            }  # fmt: skip
            return Case(op, {**rank, "row0": 6, "row1": rows - (7 if odd else 0), "hidden": hidden, "eps": 0.05}, arrays,
                        {"w": weight, **kv}, launch, step, mode)  # fmt: skip
        if op == "rank_attn":
            heads_of = {"kv_head": kv_head, "head": n_heads // 2, "heads": n_heads // 2, "pieces": pieces, "piece": 5 if odd else 3}
            arrays = {"q": normal(rng, 1, rows), **cache, "attn": attn}
            return Case(op, {**rank, **heads_of, "scale": d**-0.5}, arrays, kv, launch, step, mode)
        attn.reshape(n_heads, pieces, d + 2)[:, :, 1] = rng.uniform(1, 20, (n_heads, pieces))
        params = {
            "m": 1,
            "row0": 3,
            "row1": hidden - 5,
            "k0": 2 * d,
            "k1": 4 * d,
            "head_dim": d,
            "pieces": pieces,
            "part": 1,
            "layer": 1,
        }
        arrays = {"attn": attn, "w": normal(rng, hidden, 2 * d, scale=0.2), "out": normal(rng, 3, hidden)}
        return Case(op, params, arrays, {"w": weight}, [], step, mode)
    if op == "down_part":
        k0, k1 = {"plain": (0, 64), "odd": (7, 82), "large": (100, 2600)}[shape]
        params = {"m": m, "row0": 3, "row1": hidden - 5, "k0": k0, "k1": k1, "part": 1 if odd else 0, "layer": 1}
        arrays = {"x": normal(rng, m, k1 + 9), "w": normal(rng, hidden, k1 - k0, scale=0.2), "out": normal(rng, 3 * m, hidden)}
        return Case(op, params, arrays, {"w": weight}, [], step, mode)
    if op in ("o_sum", "down_sum"):
        parts = {"plain": 1, "odd": 7, "large": ops.MAX_PARTS}[shape]
        params = {"m": m, "col0": 2, "col1": hidden - 3, "n": parts, "layer": 1}
        arrays = {"parts": normal(rng, (parts + 1) * m, hidden), "h": normal(rng, m, hidden)}
        return Case(op, params, arrays, {}, [], step, mode)
    if op == "gate_up":
        inter = 37 if odd else 40
        params = {"m": m, "row0": 2, "row1": inter - 3, "hidden": hidden, "layer": 1, "packed": 0, "eps": 0.03}
        arrays = {"h": normal(rng, m, hidden), "norm_w": normal(rng, 1, hidden), "w": normal(rng, 2 * inter, hidden, scale=0.3),
                  "act": normal(rng, m, inter)}  # fmt: skip
        return Case(op, params, arrays, {"w": weight}, [], step, mode)
    if op == "lm_head":
        vocab = 83
        params = {"m": m, "row0": 11, "row1": 70, "tile": 2, "ring": int(odd), "hidden": hidden, "layer": 2, "eps": 0.05}
        arrays = {"h": normal(rng, m, hidden), "norm_w": normal(rng, 1, hidden), "w": normal(rng, vocab, hidden, scale=0.2),
                  "logits": normal(rng, STEPS * m if odd else m, vocab), "amax": normal(rng, m, 8)}  # fmt: skip
        if large:
            del arrays["amax"]
        return Case(op, params, arrays, {"w": weight, "amax": "b32"}, [], step, mode)
    assert op == "sample"
    m, vocab, tiles = (3 if odd else 1), 200, 4
    logits = normal(rng, m, vocab)
    edges = np.linspace(0, vocab, tiles + 1).astype(int)
    amax = np.zeros((m, 2 * tiles), F32)
    for t in range(tiles):
        part = logits[:, edges[t] : edges[t + 1]]
        amax[:, 2 * t] = part.max(axis=1)
        amax[:, 2 * t + 1] = (edges[t] + part.argmax(axis=1)).astype(I32).view(F32)
    stops = np.full((m, 3), -1, I32)
    stops[-1, 1] = logits[-1].argmax()
    arrays = {
        "logits": logits, "amax": amax, "control": np.zeros((m, 8), F32), "stop_ids": stops, "token": np.full((m, 1), 5, I32),
        "out": np.full((STEPS, m), 9, I32), "stop": np.full((STEPS, 1), 7, I32), "done": np.zeros((m, 1), I32),
    }  # fmt: skip
    if large:
        del arrays["amax"], arrays["stop_ids"]
    n_stop = 0 if large else 3
    params = {"m": m, "tiles": tiles, "vocab": vocab, "n_stop_ids": n_stop, "pos_var": 0}
    launch = [3, 0, 9, 0, STEPS, STEPS] if odd else [4, STEPS]
    return Case(op, params, arrays, {"amax": "b32", "control": "b32"}, launch, step, mode)


REAL_OPS = [s.name for s in ops.SPECS[1:]]
SHAPES = ["plain", "odd", "large"]


@pytest.fixture
def case() -> Callable[..., Case]:
    """See :func:`make_case`."""
    return make_case


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """Lab(case, isa=None): one task in memory."""
    return Lab


@pytest.fixture
def unchecked() -> type[UncheckedVM]:
    return UncheckedVM


@pytest.fixture(scope="module")
def device() -> Any:
    """The first card."""
    from amk_core.vm.driver import CudaError, Device

    try:
        return Device()
    except CudaError as e:
        pytest.skip(str(e))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``op``, ``shape`` and ``mode`` arguments run over all of them."""
    for name, values in {"op": REAL_OPS, "shape": SHAPES, "mode": ["exact", "fast"]}.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


class Model:
    """A lowered graph with random weights that depend on the name only, so that every schedule of it computes the same."""

    def __init__(self, schedule: Schedule, whole: Schedule, isa: str | None = None, pools: Any = None) -> None:
        """``whole`` streams every weight: a prefill schedule does not, and shares the tape of one that does."""
        self.schedule = schedule
        self.arrays = {b.name: self.weight(b) for b in whole.buffers if b.kind in (Kind.WEIGHT, Kind.TABLE)}
        layout = TapeLayout.of(whole)
        self.tape = Tape.build(layout, lambda name: self.arrays[name])
        bound = {
            b.name: stored(self.arrays[b.name], b.dtype) for b in schedule.buffers if b.kind is Kind.TABLE
        }  # fmt: skip
        packed = tables.pack(schedule)
        self.vm = UncheckedVM(packed, layout.locate(schedule), self.tape.data, layout.dtype, isa, bound, pools)
        for name, value in (("stop_ids", -1), ("control", 0), ("prompt", 0), ("token", 0)):
            if any(b.name == name for b in schedule.buffers):
                self.vm.buffer(name)[...] = value

    def weight(self, b: Any) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(list(b.name.encode()))
        if b.name in ("rope.cos", "rope.sin"):
            angle = np.outer(np.arange(b.rows), 100.0 ** -np.linspace(0, 1, b.cols))
            return (np.cos if b.name == "rope.cos" else np.sin)(angle).astype(F32)
        if "norm" in b.name:
            return normal(rng, b.rows, b.cols) * 0.1 + 1
        return normal(rng, b.rows, b.cols, scale=1.0 if b.name == "embed" else 2.0 * b.cols**-0.5)

    def launch(self, steps: int, p0: list[int], n: list[int], **options: Any) -> Any:
        self.vm.launch(steps, [*p0, *n], spin_timeout_s=options.pop("spin_timeout_s", 20.0), **options)
        return self.vm.wait()

    def generate(self, first: list[int], steps: int, **options: Any) -> np.ndarray[Any, Any]:
        """[steps, batch] tokens after one first token a sequence."""
        self.vm.buffer("token")[:, 0] = first
        self.vm.buffer("done")[...] = 0
        result = self.launch(steps, [0] * len(first), [steps] * len(first), **options)
        return self.vm.buffer("out")[: result.steps].copy()

    def teacher(self, ids: list[int], chunk: int) -> np.ndarray[Any, Any]:
        """[len(ids), vocab] logits of a ``logits`` schedule of one sequence, as uint32 bits."""
        prompt = self.vm.buffer("prompt")
        prompt[...] = -1
        prompt[0, : len(ids)] = ids
        steps = -(-len(ids) // chunk)
        self.launch(steps, [0], [len(ids)])
        return self.vm.buffer("logits")[: len(ids)].view(np.uint32).copy()

    def reference(self, steps: int, p0: list[int], n: list[int], prompt: Any = None, first: Any = None) -> list[Any]:
        """The same launch, task by task, by the float64 reference; returns all buffers."""
        s, fast = self.schedule, self.schedule.meta["mode"] == "fast"
        buffers: list[Any] = []
        for b in s.buffers:
            a = self.arrays.get(b.name)
            if a is not None:
                a = loaded(stored(a, b.dtype), b.dtype).astype(np.float64)
            else:
                a = np.zeros((b.rows, b.cols), I32 if b.dtype == "i32" else F32 if b.name in ("amax", "control") else np.float64)
            buffers.append(a)
            if b.name == "stop_ids":
                a[...] = -1
            if b.name == "token" and first is not None:
                a[:, 0] = first
            if b.name == "prompt" and prompt is not None:
                a[...] = prompt
        c = s.columns
        for step in range(steps):
            for t in range(s.n_tasks):
                spec = ops.BY_CODE[int(c.task_op[t])]
                params = spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]])
                reference.run(spec.name, params, buffers, step, [*p0, *n], fast)
                if fast and spec.name == "qkv":
                    for name in ("k", "v"):
                        buffers[params[name]] = reference.round_bf16(buffers[params[name]])
        return buffers


@pytest.fixture
def model(tiny: Callable[..., Any]) -> Callable[..., Model]:
    """model(purpose, batch, chunk, queues, config, mode, isa): the tiny graph of the shared fixtures, lowered and in memory."""

    def make(
        purpose: Any = "decode", batch: int = 1, chunk: int = 1, queues: int = 2, config: ScheduleConfig | None = None,
        mode: Any = "exact", isa: str | None = None, pools: Any = None, context: int = 300,
    ) -> Model:  # fmt: skip
        graph = tiny()
        target = Target.cpu(queues)
        schedule = lower(graph, config, target, LowerGeometry(purpose, batch, chunk, context), mode)
        whole = lower(graph, config, target, LowerGeometry("decode", batch, 1, context), mode) if purpose == "prefill" else schedule
        return Model(schedule, whole, isa, pools)

    return make
