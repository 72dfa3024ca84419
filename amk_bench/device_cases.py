"""Cases for the device VM that need no checkpoint: seeded random weights, the same on every machine, labelled so.

A case is one program and its launches.  It runs on the CPU VM, on the card, and task by task in float64.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph, RopeSpec
from amk_core.quant import QuantMatrix
from amk_core.quant.config import QuantConfig
from amk_core.quant.source import QuantWeights
from amk_core.schedule import ops, tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.schedule.pack import Tape, TapeLayout, logical_weight
from amk_core.targets import Target
from amk_core.vm.device_tape import DeviceTapeLayout

Array = npt.NDArray[Any]


def graph(
    name: str, vocab: int, hidden: int, ffn: int, layers: int, heads: int, kv: int, head_dim: int, context: int = 2048
) -> ModelGraph:  # fmt: skip
    """A Llama-shaped graph with default rotation."""
    rope = RopeSpec("default", 1e4, head_dim, context)
    return ModelGraph(name, "llama", vocab, hidden, ffn, layers, heads, kv, head_dim, 1e-5, False, context, rope, head_dim**-0.5)


GRAPHS: Mapping[str, ModelGraph] = {
    g.name: g
    for g in (
        graph("odd", 515, 96, 168, 2, 6, 3, 16),
        graph("small", 515, 192, 320, 2, 6, 2, 32),
        graph("long-heads", 515, 256, 320, 2, 4, 2, 128),
        graph("smol", 4096, 576, 1536, 3, 9, 3, 64),
        graph("smol-two", 49_152, 576, 1536, 2, 9, 3, 64),  # SmolLM2-135M with two of its layers
        graph("wide", 3000, 2048, 5632, 1, 32, 4, 64),
        graph("big", 2048, 4096, 14336, 1, 32, 8, 128),
    )
}


class RandomModel:
    """Seeded weights by canonical name; the same values on every machine (uniform, exact arithmetic only)."""

    def __init__(self, g: ModelGraph, seed: int, mode: Mode, weights: str = "") -> None:
        self.g, self.seed, self.mode = g, seed, mode
        self.quantised = QuantWeights(g, QuantConfig.parse(weights), self.weight) if weights else None

    def draw(self, name: str, shape: tuple[int, ...], scale: float, shift: float = 0.0) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        x = (rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(scale) + np.float32(shift)
        return x.astype(ml_dtypes.bfloat16).astype(np.float32) if self.mode == "fast" else x

    def weight(self, name: str) -> npt.NDArray[np.float32]:
        shape = self.g.weight_shapes()[name]
        if len(shape) == 1:
            return self.draw(name, shape, 0.5, 1.0)
        return self.draw(name, shape, 2.0 if name == "embed" else float(np.float32(3.4641 / shape[1] ** 0.5)))

    def logical(self, name: str) -> npt.NDArray[np.float32]:
        """A weight buffer of the schedule, of a quantised one what it stands for."""
        matrix = self.on_tape(name)
        return matrix.dequantise() if isinstance(matrix, QuantMatrix) else matrix

    def on_tape(self, name: str) -> Any:
        """The same as the tape takes it."""
        return logical_weight(self.g, self.weight, name) if self.quantised is None else self.quantised.on_tape(name)

    def bound(self, s: Schedule) -> dict[str, Array]:
        """Tables by buffer name; angles without library functions, so that they are the same everywhere."""
        out: dict[str, Array] = {}
        for b in s.buffers:
            if b.kind is not Kind.TABLE:
                continue
            if b.name.startswith("rope."):
                # The point (1 - t^2, 2t) / (1 + t^2) of the unit circle: a rotation from exact arithmetic alone.
                t = np.float64(0.37) * np.arange(b.rows)[:, None] % 2.0 - 1.0 + np.arange(b.cols)[None] / (4.0 * b.cols)
                x = (1 - t * t) / (1 + t * t) if b.name == "rope.cos" else 2 * t / (1 + t * t)
                out[b.name] = x.astype(np.float32)
            elif b.name == "embed":
                w = self.weight("embed")
                out[b.name] = w.astype(ml_dtypes.bfloat16) if b.dtype == "bf16" else w
            else:
                out[b.name] = self.weight(b.name).reshape(1, -1)
        return out


@dataclass(frozen=True)
class Case:
    """One program and its launches.  ``p0``: first positions; rows of the KV cache before them are random."""

    name: str
    model: str
    mode: Mode
    purpose: Purpose = "decode"
    batch: int = 1
    chunk: int = 1
    context: int = 256
    p0: tuple[int, ...] = (0,)
    tokens: tuple[int, ...] = (8,)  # active tokens of each sequence
    steps: int = 8
    sampled: bool = False
    weights: str = ""  # formats of quantised weights, as QuantConfig reads them
    variants: tuple[tuple[int, Mapping[str, Any]], ...] = ((132, {}),)  # (queues, ScheduleConfig) on the card

    def schedule(self, queues: int, config: Mapping[str, Any], arch: str) -> Schedule:
        target = Target.cpu(queues) if arch == "cpu" else Target(arch, arch, queues, 232_448)
        geometry = Geometry(self.purpose, self.batch, self.chunk, self.context)
        quant = QuantConfig.parse(self.weights) if self.weights else None
        return lower(GRAPHS[self.model], ScheduleConfig(**config), target, geometry, self.mode, quant)

    def tiled(self, queues: int, config: Mapping[str, Any], arch: str) -> Schedule:
        """The schedule whose tiles are all on the tape: prefill leaves out what no KV row needs."""
        return (
            replace(self, purpose="decode", chunk=1).schedule(queues, config, arch)
            if self.purpose == "prefill"
            else self.schedule(queues, config, arch)
        )

    def random_model(self) -> RandomModel:
        return RandomModel(GRAPHS[self.model], 11, self.mode, self.weights)

    def fill(self, s: Schedule, put: Callable[[str], Array]) -> None:
        """Inputs and KV rows before p0, through ``put(name)``: a writable array [rows, cols]."""
        rng = np.random.default_rng(3)
        g = GRAPHS[self.model]
        kv_rows = int(s.meta["kv_rows"])
        for i in range(g.n_layers):
            for kind in "kv":
                view = put(f"L{i}.{kind}")
                for seq, p0 in enumerate(self.p0):
                    x = (rng.random((p0, view.shape[1]), np.float32) - np.float32(0.5)) * np.float32(2.0)
                    stored = x.astype(ml_dtypes.bfloat16).view(np.uint16) if self.mode == "fast" else x
                    view[seq * kv_rows : seq * kv_rows + p0] = stored
        if self.purpose == "decode":
            put("token")[:, 0] = rng.integers(0, g.vocab_size, self.batch)
            put("done")[:] = 0
            if self.sampled:
                control = put("control")
                for seq in range(self.batch):
                    control[seq, :5] = [
                        np.float32(0.8).view(np.uint32),
                        (0, 40, 1)[seq % 3],
                        np.float32((0.9, 1.0)[seq % 2]).view(np.uint32),
                        7 + seq,
                        1,
                    ]
            put("stop_ids")[:] = -1
        else:
            prompt = put("prompt")
            prompt[:] = -1
            for seq in range(self.batch):
                prompt[seq, : self.tokens[seq]] = rng.integers(0, g.vocab_size, self.tokens[seq])

    @property
    def variables(self) -> list[int]:
        return [*self.p0, *self.tokens]

    def results(self, s: Schedule, get: Callable[[str], Array]) -> dict[str, Array]:
        """What is compared: tokens, logits, the written KV rows of the last layer."""
        out: dict[str, Array] = {}
        last = GRAPHS[self.model].n_layers - 1
        for name in ("out", "logits"):
            if any(b.name == name for b in s.buffers):
                a = get(name)
                if name == "out":
                    a = a[: self.steps]
                if name == "logits" and self.purpose == "logits":
                    rows = [st * self.batch * self.chunk + seq * self.chunk + c
                            for st in range(self.steps) for seq in range(self.batch) for c in range(self.chunk)
                            if st * self.chunk + c < self.tokens[seq]]  # fmt: skip
                    a = a[rows]
                out[name] = np.array(a)
        kv_rows = int(s.meta["kv_rows"])
        for kind in "kv":
            view = get(f"L{last}.{kind}")
            starts = [q * kv_rows + p for q, p in enumerate(self.p0)]
            written = [min(n, self.steps * self.chunk) for n in self.tokens]
            out[kind] = np.concatenate([view[a : a + n] for a, n in zip(starts, written, strict=True)])
        return out


MANY: tuple[tuple[int, Mapping[str, Any]], ...] = (
    (132, {}),
    (7, {"tiles_per_queue": 3, "row_align": 2, "placement": "strided"}),
    (66, {"fuse_combine": False, "fuse_argmax": False}),
    (132, {"dependencies": "head", "attn_splits": 2, "tiles_per_queue": 2}),
    (33, {"fuse_qkv": False, "placement": "blocked", "embed_tiles": 3}),
    (132, {"handoff": "counter"}),
    (7, {"handoff": "counter", "fuse_combine": False}),
)
MIXED = (600, 0, 255, 256, 127, 128, 511, 513, 1, 900, 64, 300, 257, 20, 700, 3)  # first positions around the borders of blocks
CASES: tuple[Case, ...] = (
    Case("exact-odd", "odd", "exact", steps=20, tokens=(20,), variants=MANY),
    Case("exact-odd-batch", "odd", "exact", batch=3, p0=(0, 5, 130), tokens=(9, 3, 9), steps=9, sampled=True, variants=MANY[:3]),
    Case("exact-odd-logits", "odd", "exact", "logits", batch=2, chunk=5, p0=(0, 120), tokens=(13, 15), steps=3, variants=MANY[:3]),
    Case("exact-odd-prefill", "odd", "exact", "prefill", batch=1, chunk=16, p0=(3,), tokens=(40,), steps=3),
    Case("exact-smol", "smol", "exact", steps=6, tokens=(6,), p0=(250,), context=512),
    Case("fast-small", "small", "fast", steps=20, tokens=(20,), variants=MANY),
    Case("fast-small-long", "small", "fast", steps=4, tokens=(4,), p0=(700,), context=1024, variants=MANY),
    Case("fast-heads-near", "long-heads", "fast", steps=16, tokens=(16,), p0=(120,), context=512, variants=(*MANY[:2], MANY[5])),
    Case("fast-heads-far", "long-heads", "fast", steps=12, tokens=(12,), p0=(250,), context=512, variants=(*MANY[:2], MANY[5])),
    Case("fast-heads-batch", "long-heads", "fast", batch=4, p0=(250, 0, 121, 188), tokens=(12, 12, 12, 5), steps=12, context=512,
         variants=(*MANY[:2], MANY[5])),
    Case("fast-heads-chunk", "long-heads", "fast", "logits", chunk=16, steps=2, tokens=(30,), p0=(240,), context=512,
         variants=((132, {}), (132, {"fuse_combine": False}))),
    Case("fast-small-batch", "small", "fast", batch=3, p0=(0, 5, 130), tokens=(9, 3, 9), steps=9, sampled=True,
         variants=(*MANY[:3], MANY[5])),
    Case("fast-small-logits", "small", "fast", "logits", batch=2, chunk=5, p0=(0, 120), tokens=(13, 15), steps=3,
         variants=MANY[:3]),
    Case("fast-small-wide", "small", "fast", "logits", batch=3, chunk=16, p0=(0, 120, 7), tokens=(32, 20, 32), steps=2),
    Case("fast-smol", "smol", "fast", steps=6, tokens=(6,), p0=(250,), context=512, variants=(*MANY[:3], MANY[5])),
    Case("fast-wide", "wide", "fast", steps=3, tokens=(3,), p0=(600,), context=1024, variants=(*MANY[:2], MANY[5])),
    Case("fast-wide-chunk", "wide", "fast", "logits", chunk=16, steps=2, tokens=(30,), p0=(600,), context=1024),
    Case("fast-big-chunk", "big", "fast", "logits", chunk=16, steps=1, tokens=(13,), p0=(300,), context=512,
         variants=((132, {}), (132, {"fuse_combine": False}))),
    Case("fast-wide-batch", "wide", "fast", batch=16, p0=MIXED, tokens=(2,) * 14 + (1, 0), steps=2, context=1024,
         variants=(*MANY[:2], MANY[5])),
    Case("fast-big-batch", "big", "fast", batch=4, p0=MIXED[:4], tokens=(2, 2, 1, 2), steps=2, context=1024,
         variants=(*MANY[:2], MANY[5])),
    Case("fast-big-rows", "big", "fast", batch=16, p0=MIXED, tokens=(1,) * 15 + (0,), steps=1, context=1024,
         variants=(*MANY[:2], MANY[5])),
    Case("fast-smol-batch", "smol", "fast", batch=4, p0=MIXED[:4], tokens=(3,) * 4, steps=3, context=1024,
         variants=(MANY[0], MANY[5])),
    Case("fast-big", "big", "fast", steps=3, tokens=(3,), p0=(300,), context=512, variants=(*MANY[:2], MANY[5])),
)  # fmt: skip

# The formats of the issue of quantised weights; K of "smol" is no multiple of 128, and "wide" and "big" have long rows.
QUANT_WEIGHTS = (
    "int8,head=int8",
    "int8-g128,head=int8-g128",
    "int8-g32,head=stored",
    "int4-g128,head=int8",
    "int4-g64-zero,head=int8-g32",
    "int4-g32-min,head=int4-g32-min",
    "int4-g64-min-bf16,head=int8-bf16",
)
QUANT_CASES: tuple[Case, ...] = (
    *(Case(f"exact-odd-{w}", "odd", "exact", steps=12, tokens=(12,), weights=w, variants=(MANY[0], MANY[2]))
      for w in QUANT_WEIGHTS),
    Case("exact-smol-batch", "smol", "exact", batch=2, p0=(0, 130), tokens=(3, 3), steps=3, weights=QUANT_WEIGHTS[4]),
    *(Case(f"fast-small-{w}", "small", "fast", steps=12, tokens=(12,), weights=w, variants=(MANY[0], MANY[1], MANY[6]))
      for w in QUANT_WEIGHTS),
    *(Case(f"fast-smol-{w}", "smol", "fast", steps=6, tokens=(6,), p0=(250,), context=512, weights=w, variants=MANY[:2])
      for w in (QUANT_WEIGHTS[1], QUANT_WEIGHTS[3], QUANT_WEIGHTS[5])),
    Case("fast-smol-logits", "smol", "fast", "logits", chunk=16, steps=2, tokens=(30,), context=64, weights=QUANT_WEIGHTS[3]),
    *(Case(f"fast-wide-{w}", "wide", "fast", steps=3, tokens=(3,), p0=(600,), context=1024, weights=w, variants=MANY[:2])
      for w in (QUANT_WEIGHTS[0], QUANT_WEIGHTS[3], QUANT_WEIGHTS[4])),
    *(Case(f"fast-big-{w}", "big", "fast", steps=2, tokens=(2,), p0=(300,), context=512, weights=w, variants=(MANY[0],))
      for w in (QUANT_WEIGHTS[1], QUANT_WEIGHTS[3])),
    # Activations of 8 bits.
    Case("exact-odd-int8-a8", "odd", "exact", steps=12, tokens=(12,), weights="int8-a8,head=int8-a8", variants=(MANY[0], MANY[2])),
    Case("exact-odd-batch-int8-g32-a8", "odd", "exact", batch=3, p0=(0, 5, 130), tokens=(9, 3, 9), steps=9,
         weights="int8-g32-a8,head=int8-g128-a8-bf16"),
    Case("fast-small-int8-a8", "small", "fast", steps=12, tokens=(12,), weights="int8-a8,head=int8-a8",
         variants=(MANY[0], MANY[1], MANY[6])),
    Case("fast-prompt-int8-g32-a8", "smol", "fast", "logits", chunk=16, steps=2, tokens=(30,), context=64,
         weights="int8-g32-a8,head=int8-a8", variants=MANY[:2]),
    Case("fast-batch-int8-a8", "wide", "fast", batch=16, p0=MIXED, tokens=(2,) * 14 + (1, 0), steps=2, context=1024,
         weights="int8-a8,head=stored", variants=(MANY[0], MANY[5])),
)  # fmt: skip
# Sequences that are decoded side by side, and one by one (`alone`).
QUANT_BATCHES: tuple[Case, ...] = (
    Case("smol-of-3", "smol", "fast", batch=3, p0=(0, 130, 5), tokens=(4,) * 3, steps=4, weights=QUANT_WEIGHTS[3]),
    Case("smol-of-16", "smol", "fast", batch=16, p0=(*range(0, 160, 10),), tokens=(3,) * 16, steps=3, weights=QUANT_WEIGHTS[2]),
    Case("wide-of-2", "wide", "fast", batch=2, p0=(600, 0), tokens=(3,) * 2, steps=3, context=1024, weights=QUANT_WEIGHTS[4]),
    Case(
        "wide-of-4", "wide", "fast", batch=4, p0=(600, 0, 3, 255), tokens=(3,) * 4, steps=3, context=1024, weights=QUANT_WEIGHTS[1]
    ),
    Case("a8-of-5", "smol", "fast", batch=5, p0=(0, 130, 5, 40, 7), tokens=(3,) * 5, steps=3, weights="int8-a8,head=int8-g128-a8"),
)


@dataclass(frozen=True)
class Alone(Case):
    """One sequence of a batch, with the contents that it has there."""

    whole: Case | None = None
    seq: int = 0

    @staticmethod
    def of(whole: Case, seq: int) -> Alone:
        fields = {f.name: getattr(whole, f.name) for f in dataclasses.fields(Case)}
        own = {"batch": 1, "p0": whole.p0[seq : seq + 1], "tokens": whole.tokens[seq : seq + 1]}
        return Alone(**{**fields, **own}, whole=whole, seq=seq)

    def fill(self, s: Schedule, put: Callable[[str], Array]) -> None:
        assert self.whole is not None
        all_of_them = self.whole.schedule(2, {}, "cpu")
        arrays: dict[str, Array] = {}

        def collect(name: str) -> Array:
            b = next(b for b in all_of_them.buffers if b.name == name)
            kind = {"bf16": np.uint16, "i32": np.int32, "b32": np.uint32}.get(b.dtype, np.float32)
            return arrays.setdefault(name, np.zeros((b.rows, b.cols), kind))

        self.whole.fill(all_of_them, collect)
        for name, a in arrays.items():
            first = self.seq * (int(all_of_them.meta["kv_rows"]) if name[0] == "L" else 1)
            to = put(name)
            to[:] = a[first : first + len(to)]


def run_cpu(case: Case, queues: int = 2, config: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """The case on the CPU VM."""
    from amk_core.vm.cpu import CpuVM

    s = case.schedule(queues, config or {}, "cpu")
    m = case.random_model()
    layout = TapeLayout.of(case.tiled(queues, config or {}, "cpu"))
    tape = Tape.build(layout, m.on_tape)
    vm = CpuVM.__new__(CpuVM)
    vm._start(tables.pack(s), layout.locate(s), tape.data, layout.dtype, m.bound(s), {}, None)
    case.fill(s, vm.buffer)
    vm.launch(case.steps, case.variables)
    vm.wait()
    return case.results(s, vm.buffer)


def run_reference(case: Case, out: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """The case in float64, task by task, without rounding activations (KV is stored as the case stores it)."""
    from amk_core.vm import reference

    s = case.schedule(1, {}, "cpu")
    m = case.random_model()
    bound = m.bound(s)
    buffers: list[Array] = []
    for b in s.buffers:
        if b.kind is Kind.WEIGHT:
            buffers.append(m.logical(b.name))
        elif b.name in bound:
            buffers.append(bound[b.name])
        else:
            dtype: Any = {"f32": np.float64, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "b32": np.uint32}[b.dtype]
            buffers.append(np.zeros((b.rows, b.cols), dtype))
    index = {b.name: i for i, b in enumerate(s.buffers)}

    def put(name: str) -> Array:
        a = buffers[index[name]]
        return a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a

    case.fill(s, put)
    c = s.columns
    for step in range(case.steps):
        for t in range(s.n_tasks):
            spec = ops.BY_CODE[int(c.task_op[t])]
            reference.run(spec.name, spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]]), buffers, step, case.variables)
        if out is not None and "out" in out:  # teacher forcing: tokens of the run under test, so that errors do not multiply
            buffers[index["token"]][:, 0] = out["out"][step]
    return case.results(s, lambda name: buffers[index[name]])


def device_tape(case: Case, m: RandomModel, s: Schedule, tiled: Schedule) -> tuple[Array, Array]:
    """The tape that the card reads in the case's mode, and where on it each task of ``s`` begins."""
    if case.mode == "exact":
        layout = TapeLayout.of(tiled)
        return Tape.build(layout, m.on_tape).data, layout.locate(s)
    fragments = DeviceTapeLayout.of(tiled)
    return fragments.build(m.on_tape), fragments.locate(s)


def make_cuda(case: Case, s: Schedule, tiled: Schedule, device: Any, cache: Any) -> Any:
    """The program of a case on the card, with its inputs, from a schedule that no validator has seen."""
    from amk_core.vm.cuda import CudaVM

    vm = CudaVM.__new__(CudaVM)
    m = case.random_model()
    tape, where = device_tape(case, m, s, tiled)
    vm._start(tables.pack(s), where, tape, m.bound(s), {}, device, cache=cache)
    case.fill(s, vm.buffer)
    return vm


def run_cuda(
    case: Case, queues: int, config: Mapping[str, Any], device: Any, cache: Any = None, spin_timeout_s: float = 2.0
) -> dict[str, Array]:  # fmt: skip
    """The case on the card."""
    s = case.schedule(queues, config, device.facts.arch)
    vm = make_cuda(case, s, case.tiled(queues, config, device.facts.arch), device, cache)
    vm.launch(case.steps, case.variables, poison=True, spin_timeout_s=spin_timeout_s)
    vm.wait()
    return case.results(s, vm.buffer)


def bits(a: Array) -> bytes:
    return np.ascontiguousarray(a).tobytes()


def relative(a: Array, ref: Array) -> float:
    x, y = a.astype(np.float64), ref.astype(np.float64)
    return float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-30))


def distances(case: Case, *runs: Mapping[str, Array]) -> list[float]:
    """How far the logits of each run are from float64; runs that chose the same tokens share a reference."""
    kept: dict[bytes, dict[str, Array]] = {}

    def wide(run: Mapping[str, Array]) -> Array:
        tokens = bits(run["out"]) if "out" in run else b""
        if tokens not in kept:
            kept[tokens] = run_reference(case, run)
        return kept[tokens]["logits"]

    return [relative(run["logits"], wide(run)) for run in runs]
