"""P0: every op against a float64 reference, task by task through a whole step of a small model with odd sizes.

Each task starts from what the tasks before it left, buffers are poisoned with NaN first, and only what the task wrote is compared.
Tagged elements {value, tag} are compared as the values that they hold; every element that a task wrote has to carry the step's tag,
and of marked values, which carry none, to leave the marker where the next step will look.
On the CPU VM the reference of mode ``fast`` rounds where the plan rounds; the card's tensor cores have a plan of their own, which
rounds in other places, so there the reference does not round at all and the limit is that of bf16 inputs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from amk_bench.recorder import Recorder
from amk_core.graph import ModelGraph, RopeSpec
from amk_core.importer.rope import rope_tables
from amk_core.schedule import ops, tables, validate
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Buffer, Kind, Schedule
from amk_core.schedule.lower import Geometry, Mode, Purpose, lower
from amk_core.schedule.lower_ranks import Ranks, lower_ranks
from amk_core.schedule.pack import Tape, TapeLayout, logical_weight
from amk_core.targets import Target
from amk_core.vm import marked, reference
from amk_core.vm.cpu import CpuVM
from amk_core.vm.device_tape import DeviceTapeLayout

# Relative to the largest value of the written buffer: a few units of fp32 rounding after a sum of K terms.
LIMIT = 2e-6
STORED_BF16 = 2.0**-8  # qkv in fast mode writes keys and values as bf16: one unit in the last place
# Fast mode on a card: one rounding of the inputs of a product to bf16 is 2^-9 of each term; attention splits queries and
# probabilities into two bf16 halves (2^-16 each) and uses approximate exponentials, as does the merge of its partials.
CARD_BF16, CARD_ATTENTION = 2.0**-8, 2.0**-12
BF16_INPUTS = ("o_proj", "o_proj_combine", "gate_up", "down_proj", "lm_head")

PACKED = marked.PAIRS  # tagged buffers whose elements hold pairs of bf16
TAG = 1  # of step 0


def limit(op: str, mode: str, on_card: bool) -> float:
    """``op``: the name of an op, behind a + where it stores bf16 values."""
    if mode == "exact":
        return LIMIT
    if op.startswith("+"):
        return limit(op[1:], mode, on_card) + STORED_BF16
    if on_card:
        if op == "qkv":
            return CARD_BF16 + STORED_BF16
        return CARD_BF16 if op in BF16_INPUTS else CARD_ATTENTION if op.startswith("attn") else LIMIT
    return STORED_BF16 if op in ("qkv", "rank_qkv") else LIMIT


def graph(hidden: int, head_dim: int, context: int = 160, ffn: int = 1100) -> ModelGraph:
    return ModelGraph(
        name="odd", family="llama", vocab_size=203, hidden_size=hidden, intermediate_size=ffn, n_layers=2, n_heads=6,
        n_kv_heads=2, head_dim=head_dim, norm_eps=1e-5, tied_head=False, context=context,
        rope=RopeSpec("default", 10000.0, head_dim, context), attn_scale=head_dim**-0.5,
    )  # fmt: skip


ODD = graph(72, 12)
ODD_FAST_CARD = graph(104, 32)  # the tensor-core path takes heads of multiples of 32
LONG = graph(104, 32, 640)  # three blocks of attention
LONG_HEADS = graph(104, 128, 640)  # two short blocks are done by one task alone
WHOLE = graph(96, 32, 640, 1120)  # whole units of 32 values: several rows are marked on a card


def weights(g: ModelGraph) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(20)
    shapes = {"embed": (g.vocab_size, g.hidden_size), "head": (g.vocab_size, g.hidden_size), "final_norm": (1, g.hidden_size)}
    for i in range(g.n_layers):
        shapes |= {
            f"L{i}.attn_norm": (1, g.hidden_size), f"L{i}.mlp_norm": (1, g.hidden_size), f"L{i}.q": (g.q_size, g.hidden_size),
            f"L{i}.k": (g.kv_size, g.hidden_size), f"L{i}.v": (g.kv_size, g.hidden_size), f"L{i}.o": (g.hidden_size, g.q_size),
            f"L{i}.gate": (g.intermediate_size, g.hidden_size), f"L{i}.up": (g.intermediate_size, g.hidden_size),
            f"L{i}.down": (g.hidden_size, g.intermediate_size),
        }  # fmt: skip
    return {k: rng.standard_normal(v, np.float32) * (0.3 if v[0] > 1 else 0.1) + (v[0] == 1) for k, v in shapes.items()}


def as_stored(dtype: str, a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rounded to the storage dtype of a buffer."""
    return a.astype(ml_dtypes.bfloat16) if dtype == "bf16" else a


def as_float(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Storage as the reference takes it: floats in float64, everything else a copy."""
    a = a.view(ml_dtypes.bfloat16) if a.dtype == np.uint16 else a.view(np.float32) if a.dtype == np.uint32 else a
    return a.copy() if a.dtype == np.int32 else a.astype(np.float64)


def elements(b: Buffer, a: npt.NDArray[Any], no_tags: bool) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Values of step 0 and what goes with them, of a tagged buffer given as its bytes: tags, or the words of the next step."""
    if no_tags and marked.is_marked(b):
        return marked.halves(b, a)
    words = np.ascontiguousarray(a).view(np.uint32).reshape(b.rows, b.cols, 2)
    return words[..., 0], words[..., 1]


def values(b: Buffer, a: npt.NDArray[Any], no_tags: bool) -> npt.NDArray[Any]:
    """A buffer as the reference takes it: tagged ones as the values that they hold, [rows, cols] or [rows, 2 cols]."""
    if not b.tagged:
        return as_float(a)
    words = np.ascontiguousarray(elements(b, a, no_tags)[0])
    held = words.view(ml_dtypes.bfloat16) if b.name.endswith(PACKED) else words.view(np.float32)
    return held.reshape(b.rows, -1).astype(np.float64)


class OnCpu:
    """The CPU VM as this suite needs it: buffers to read and write, one task to run."""

    on_card, marked = False, False

    def __init__(self, packed: bytes, certificate: Any, layout: Any, s: Any, provider: Any, bound: Any) -> None:
        tape = Tape.build(layout, provider)
        self.vm = CpuVM(packed, certificate, task_weight=layout.locate(s), tape=tape.data, tape_dtype=layout.dtype, bound=bound)

    def read(self, name: str) -> npt.NDArray[Any]:
        return self.vm.buffer(name).copy()

    def write(self, name: str, a: npt.NDArray[Any]) -> None:
        self.vm.buffer(name)[...] = a

    def run(self, task: int, variables: list[int]) -> None:
        self.vm.run_task(task, 0, variables)


class OnCard:
    """The same of the CUDA VM."""

    on_card = True

    def __init__(self, packed: bytes, certificate: Any, layout: Any, s: Any, provider: Any, bound: Any) -> None:
        from amk_core.vm.cuda import CudaVM

        data = layout.build(provider) if isinstance(layout, DeviceTapeLayout) else Tape.build(layout, provider).data
        self.vm = CudaVM(packed, certificate, task_weight=layout.locate(s), tape=data, bound=bound)
        self.marked = self.vm.marked

    def read(self, name: str) -> npt.NDArray[Any]:
        return self.vm.memory.read(name)

    def write(self, name: str, a: npt.NDArray[Any]) -> None:
        self.vm.memory.write(name, a)

    def run(self, task: int, variables: list[int]) -> None:
        self.vm.run_task(task, variables)


GEOMETRIES = [
    pytest.param(Geometry("decode", 2, 1, 160, 2), [131, 17, 2, 2], id="decode"),
    pytest.param(Geometry("prefill", 2, 5, 160, 2), [127, 0, 10, 7], id="prefill"),
    pytest.param(Geometry("logits", 1, 7, 160, 2), [126, 14], id="logits"),
]


# With tagged hand-offs: all in one block, the newest position in a block of either split, and two sequences.
TAGGED = [
    pytest.param([*positions, *[2] * len(positions)], id="-".join(map(str, positions)))
    for positions in ((17,), (300,), (600,), (17, 600))
]


@pytest.mark.parametrize("variables", TAGGED)
def test_tagged_ops(variables: list[int], amk_record: Recorder) -> None:
    compare(OnCpu, "cpu", LONG, "fast", Geometry("decode", len(variables) // 2, 1, 640, 2), variables, amk_record, tagged=True)


@pytest.mark.amk_gpu("P0: tagged ops of the card against float64")
@pytest.mark.parametrize("variables", TAGGED)
def test_tagged_ops_on_the_card(variables: list[int], where: str, amk_record: Recorder) -> None:
    compare(OnCard, where, LONG, "fast", Geometry("decode", len(variables) // 2, 1, 640, 2), variables, amk_record, tagged=True)


@pytest.mark.parametrize("position", [100, 130, 255, 300])
def test_tagged_ops_of_long_heads(position: int, amk_record: Recorder) -> None:
    compare(OnCpu, "cpu", LONG_HEADS, "fast", Geometry("decode", 1, 1, 640, 2), [position, 2], amk_record, tagged=True)


@pytest.mark.amk_gpu("P0: tagged ops of the card against float64")
@pytest.mark.parametrize("position", [100, 130, 255, 300])
def test_tagged_ops_of_long_heads_on_the_card(position: int, where: str, amk_record: Recorder) -> None:
    compare(OnCard, where, LONG_HEADS, "fast", Geometry("decode", 1, 1, 640, 2), [position, 2], amk_record, tagged=True)


@pytest.mark.amk_gpu("P0: marked ops of the card against float64")
@pytest.mark.parametrize("variables", [[17, 600, 2, 2], [300, 3, 130, 2, 2, 2]], ids=["17-600", "300-3-130"])
def test_marked_ops_on_the_card(variables: list[int], where: str, amk_record: Recorder) -> None:
    compare(OnCard, where, WHOLE, "fast", Geometry("decode", len(variables) // 2, 1, 640, 2), variables, amk_record, tagged=True)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(("geometry", "variables"), GEOMETRIES)
def test_ops(mode: Mode, geometry: Geometry, variables: list[int], amk_record: Recorder) -> None:
    compare(OnCpu, "cpu", ODD, mode, geometry, variables, amk_record)


@pytest.mark.amk_gpu("P0: ops of the card against float64")
@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(("geometry", "variables"), GEOMETRIES)
def test_ops_on_the_card(mode: Mode, geometry: Geometry, variables: list[int], where: str, amk_record: Recorder) -> None:
    compare(OnCard, where, ODD if mode == "exact" else ODD_FAST_CARD, mode, geometry, variables, amk_record)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(
    ("purpose", "ranks", "position"), [("decode", Ranks(3, 2), 131), ("prefill", Ranks(1, 3), 5), ("logits", Ranks(5, 1), 150)]
)
def test_ops_of_ranks(mode: Mode, purpose: Purpose, ranks: Ranks, position: int, amk_record: Recorder) -> None:
    """On a card a task of a rank does not run alone: its inputs lie in the memory of its cluster."""
    geometry = Geometry(purpose, context=160, steps=2)
    compare(OnCpu, "cpu", ODD, mode, geometry, [position, 2], amk_record, ranks=ranks)


def compare(
    machine: type[OnCpu] | type[OnCard], where: str, graph: ModelGraph, mode: Mode, geometry: Geometry, variables: list[int],
    record: Recorder, tagged: bool = False, ranks: Ranks | None = None,
) -> None:  # fmt: skip
    """Runs every task of a step in the certificate's order, on the machine and in float64, and judges what each wrote."""
    config = ScheduleConfig(
        tiles_per_queue=2, attn_splits=2, fuse_combine=geometry.purpose != "logits", handoff="tagged" if tagged else "counter"
    )

    def lowered(geometry: Geometry) -> Schedule:
        if ranks is not None:
            return lower_ranks(graph, ranks, Target.cpu(ranks.queues), geometry, mode)
        return lower(graph, config, Target.cpu(2), geometry, mode)

    s = lowered(geometry)
    verdict = validate(s)
    assert verdict.accepted
    assert verdict.certificate is not None
    raw = weights(graph)
    cos, sin = rope_tables(graph.rope, graph.context)
    pad = ((0, geometry.kv_rows - len(cos)), (0, 0))
    bound = {b.name: raw[b.name] for b in s.buffers if b.kind is Kind.TABLE and b.name in raw}
    bound |= {"rope.cos": np.pad(cos, pad), "rope.sin": np.pad(sin, pad)}
    kind = DeviceTapeLayout if machine.on_card and mode == "fast" else TapeLayout
    layout = kind.of(lowered(replace(geometry, purpose="decode", chunk=1)))
    assert any(b.tagged for b in s.buffers) == (tagged or ranks is not None)
    stored = {b.name: as_stored(b.dtype, bound[b.name]) for b in s.buffers if b.name in bound}

    def provider(name: str) -> npt.NDArray[Any]:
        return logical_weight(graph, raw.__getitem__, name)

    vm = machine(tables.pack(s), verdict.certificate, layout, s, provider, stored)
    assert vm.marked == (graph is WHOLE)
    rng = np.random.default_rng(3)
    names, buffers = [b.name for b in s.buffers], {b.name: b for b in s.buffers}
    streamed = {b.name: as_stored(b.dtype, provider(b.name)) for b in s.buffers if b.kind is Kind.WEIGHT}
    constant = {**streamed, **stored}
    for b in s.buffers:
        if b.name in constant:
            continue
        view = vm.read(b.name)
        if b.kind is Kind.KV:  # rows of earlier steps
            view[...] = as_stored(b.dtype, rng.standard_normal(view.shape, np.float32)).view(view.dtype)
        elif b.kind in (Kind.INPUT, Kind.TOKEN):
            view[...] = rng.integers(0, graph.vocab_size, view.shape) if b.name in ("token", "prompt") else 0
        elif vm.marked and marked.is_marked(b):  # the marker where step 0 looks, and not yet where step 1 will
            nothing = np.full((b.rows, b.cols), marked.UNWRITTEN, np.uint32)
            view[...] = marked.filled(b, nothing, np.zeros_like(nothing))
        else:
            view.view(np.uint8)[...] = 0xFF  # NaN in every float format
        vm.write(b.name, view)
    worst: dict[str, float] = defaultdict(float)
    c = s.columns
    rounded = mode == "fast" and not machine.on_card
    for t in verdict.certificate.replay.tolist():
        spec = ops.BY_CODE[int(c.task_op[t])]
        before = {name: vm.read(name) for name in names if name not in constant}
        arrays = [
            as_float(constant[name]) if name in constant else values(buffers[name], before[name], vm.marked) for name in names
        ]
        params = spec.decode(c.par[c.par_off[t] : c.par_off[t + 1]])
        reference.run(spec.name, params, arrays, 0, variables, fast=rounded)
        vm.run(t, variables)
        for name, old in before.items():
            new, want = vm.read(name), arrays[names.index(name)]
            if new.dtype == np.uint32:
                continue  # value and index side by side: the sampler's tokens are compared instead
            if np.array_equal(new.view(np.uint8), old.view(np.uint8)):
                alone = int(params.get("out", -1)) >= 0 and name.endswith(".part")  # the only block needs no partials to be merged
                there = values(buffers[name], old, vm.marked)
                assert alone or np.array_equal(want, there, equal_nan=True), f"{spec.name} of T{t} did not write {name}"
                continue
            if new.dtype == np.int32:
                assert np.array_equal(new, want), f"{spec.name} of T{t}: {name}"
                continue
            got, there = values(buffers[name], new, vm.marked), np.isfinite(want)
            if buffers[name].tagged:
                (was, _), (now, beside) = (elements(buffers[name], x, vm.marked) for x in (old, new))
                required = marked.UNWRITTEN if vm.marked and marked.is_marked(buffers[name]) else TAG
                assert (beside[now != was] == required).all(), f"{spec.name} of T{t} left elements without their tag in {name}"
            assert np.array_equal(there, np.isfinite(got)), f"{spec.name} of T{t} left or wrote poison in {name}"
            error = float(np.abs(got - want)[there].max() / np.abs(want[there]).max())
            op = f"+{spec.name}" if buffers[name].tagged and name.endswith(PACKED) else spec.name
            worst[op] = max(worst[op], error)
    used = {op: error / limit(op, mode, machine.on_card) for op, error in worst.items()}
    op = max(used, key=used.__getitem__)
    most = limit(op, mode, machine.on_card)
    way = (
        f", {'marked' if vm.marked else 'tagged'}, position {' and '.join(map(str, variables[: len(variables) // 2]))}"
        if tagged
        else ""
    )
    way += f", {ranks.count}x{ranks.cluster} ranks" if ranks is not None else ""
    record.parity(
        "P0",
        f"{len({name.strip('+') for name in worst})} ops of the {geometry.purpose} schedule, {mode}{way}, against float64",
        measured=f"{worst[op]:.1e} relative ({op.strip('+')})",
        required=f"<= {most:.0e}",
        passed=used[op] <= 1,
        value=worst[op],
        limit=most,
        where=where,
        detail=", ".join(
            f"{name.strip('+')} {error:.1e}{' (stored as bf16)' * name.startswith('+')}" for name, error in sorted(worst.items())
        ),
    )
    assert used[op] <= 1
