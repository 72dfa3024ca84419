"""Quantised buffers in schedules: rule REF, and all who decide it agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from amk_core.graph import GRAPH_SHAPES
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import FORMATS
from amk_core.quant.layout import unpack
from amk_core.quant.source import QuantWeights
from amk_core.schedule import Schedule, oracle, reference, validate
from amk_core.schedule.ir import DTYPE_BITS, DTYPES
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.pack import Tape, TapeError, TapeLayout
from amk_core.schedule.tables import pack as pack_tables
from amk_core.schedule.tables import unpack as unpack_tables
from amk_core.targets import Target
from amk_core.vm import device_tape


def small(**changes: Any) -> Any:
    g = GRAPH_SHAPES["smollm2-135m"]
    fields = {
        "vocab_size": 40,
        "hidden_size": 48,
        "intermediate_size": 72,
        "n_layers": 1,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
    }
    return dataclasses.replace(g, **{**fields, **changes}, rope=dataclasses.replace(g.rope, head_dim=8))


def schedule(text: str = "int4-g32", **more: Any) -> Schedule:
    return lower(small(), None, Target.cpu(2), Geometry(context=16, steps=2), "exact", QuantConfig.parse(text), **more)


def one(
    kind: str = "weight", dtype: str = "int4-g32", cols: Any = (0, 64), write: bool = False, initial: Any = (0, 64)
) -> Schedule:
    """One opaque task that takes a part of one buffer."""
    access = {"buffer": 0, "rows": [0, 8], "cols": list(cols)}
    return Schedule.from_json({
        "format": "amk.schedule/1", "queues": [[0]], "counters": [],
        "buffers": [{"id": 0, "dtype": dtype, "kind": kind, "shape": [8, 64], "lifetime": "persistent"}],
        "tasks": [{"id": 0, "reads": [] if write else [access], "writes": [access] if write else []}],
        "initial": [{"buffer": 0, "rows": [0, 8], "cols": list(initial)}],
    })  # fmt: skip


def everybody(s: Schedule) -> list[bool]:
    """Whether validator, oracle and reference each say REF."""
    return ["REF" in validate(s).rules, "REF" in oracle.label(s).rules, "REF" in reference.validate(s).rules]


def test_dtypes_of_formats_follow_the_others_and_keep_their_places() -> None:
    """The native code decodes a format from its place."""
    assert DTYPES[16:] == tuple(f.name for f in FORMATS)
    assert [DTYPE_BITS[f.name] for f in FORMATS] == [f.bits for f in FORMATS]


def test_a_weight_taken_whole_is_accepted() -> None:
    assert everybody(one()) == [False, False, False]
    assert validate(one()).accepted


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (one(kind="activation"), "kind activation has the dtype int4-g32"),
        (one(kind="kv", dtype="int8"), "kind kv has the dtype int8"),
        (one(cols=(0, 32)), "T0 takes a part of its 64 columns"),
        (one(cols=(32, 64), dtype="int8-g32"), "T0 takes a part of its 64 columns"),
        (one(write=True), "a task writes it"),
        (one(initial=(0, 32)), "a part of its 64 columns is initial"),
    ],
)
def test_misuse_is_ref_for_validator_oracle_and_reference(schedule: Schedule, words: str) -> None:
    assert everybody(schedule) == [True, True, True]
    assert any(words in f.message for f in validate(schedule).findings)


def test_an_unknown_format_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="int4-g48"):
        one(dtype="int4-g48")


@pytest.mark.parametrize("purpose", ["decode", "prefill", "logits"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_lowerings_are_accepted_and_survive_their_tables(purpose: Any, mode: Any) -> None:
    geometry = Geometry(purpose, 1, 1 if purpose == "decode" else 4, 16)
    s = lower(small(n_layers=2), None, Target.cpu(3), geometry, mode, QuantConfig.parse("int4-g64-min,head=int8-g32"))
    assert validate(s).accepted
    again = unpack_tables(pack_tables(s))
    assert [b.dtype for b in again.buffers] == [b.dtype for b in s.buffers]
    assert Schedule.from_json(s.to_json()).buffers == s.buffers


def test_a_schedule_with_another_k_than_its_weight_is_refused() -> None:
    s = schedule()
    ids = [i for i, b in enumerate(s.buffers) if b.name == "L0.o"]
    buffers = list(s.buffers)
    buffers[ids[0]] = dataclasses.replace(buffers[ids[0]], shape=(48, 64))
    assert "REF" in validate(dataclasses.replace(s, buffers=tuple(buffers))).rules


@pytest.mark.parametrize("text", ["int8", "int4-g32-zero,head=stored", "int8-g128,head=int4-g32"])
def test_tiles_on_the_tape_hold_their_rows(text: str) -> None:
    graph, config = small(), QuantConfig.parse(text)
    rng = np.random.default_rng(0)
    stored = {n: rng.normal(size=shape).astype(np.float32) for n, shape in graph.weight_shapes().items()}
    w = QuantWeights(graph, config, stored.__getitem__)
    layout = TapeLayout.of(schedule(text))
    tape = Tape.build(layout, w.on_tape)
    for index, a, e, k, offset in layout.segments.tolist():
        name = layout.weights[index]
        want = w.buffer(name)
        if want is None:
            assert layout.dtype_of(name) == "f32"
            continue
        size = want.format.tile_bytes(e - a, k)
        got = unpack(tape.data[offset : offset + size], want.format, e - a, k)
        assert got.same(want.take(slice(a, e)))
    with pytest.raises(TapeError, match="is given as"):
        Tape.build(layout, QuantWeights(graph, QuantConfig.parse("int4-g64"), stored.__getitem__).on_tape)


def test_a_tape_of_another_format_does_not_serve_a_schedule_on_either_machine() -> None:
    with pytest.raises(TapeError, match="int4-g32, which is no tile of this int8 tape"):
        TapeLayout.of(schedule("int8,head=int8")).locate(schedule("int4-g32,head=int8"))
    eight, four = (
        lower(small(), None, Target.cpu(2), Geometry(context=16), "fast", QuantConfig.parse(x))
        for x in ("int8", "int4-g32,head=int8")
    )
    with pytest.raises(TapeError, match="int4-g32, which is no tile of this int8 tape"):
        device_tape.DeviceTapeLayout.of(eight).locate(four)
