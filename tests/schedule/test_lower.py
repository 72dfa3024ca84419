"""Lowering: every knob changes the program, tilings cover every row once, JSON and tables round-trip."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk_core.graph import GRAPH_SHAPES, ModelGraph, RopeSpec
from amk_core.quant.config import QuantConfig
from amk_core.schedule import footprint, ops, tables, validate
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Schedule
from amk_core.schedule.lower import KV_PAD_ROWS, Geometry, Mode, hops, lower, split_beside, split_rows
from amk_core.targets import Target

Graphs = Callable[..., ModelGraph]

OTHER = {
    "tiles_per_queue": 2, "head_tiles_per_queue": 3, "row_align": 4, "placement": "strided", "fuse_qkv": False,
    "fuse_combine": False, "fuse_argmax": False, "attn_splits": 2, "dependencies": "head", "embed_tiles": 2, "sampler_queue": 1,
    "handoff": "tagged",
}  # fmt: skip


def test_the_table_of_other_values_is_complete() -> None:
    assert set(OTHER) == {f.name for f in dataclasses.fields(ScheduleConfig)}


@pytest.mark.parametrize("knob", sorted(OTHER))
def test_every_knob_changes_the_packed_tables(knob: str, tiny: Graphs) -> None:
    g, target = tiny(), Target.cpu(3)
    base = ScheduleConfig()
    changed = dataclasses.replace(base, **{knob: OTHER[knob]})
    mode: Mode = "fast" if knob == "handoff" else "exact"
    assert tables.pack(lower(g, base, target, mode=mode)) != tables.pack(lower(g, changed, target, mode=mode))


def test_placements_differ(tiny: Graphs) -> None:
    g = tiny()
    packed = {
        p: tables.pack(lower(g, ScheduleConfig(placement=p, tiles_per_queue=2), Target.cpu(3)))
        for p in ("blocked", "strided", "rotated")
    }
    assert len(set(packed.values())) == 3


@pytest.mark.parametrize("shape", sorted(GRAPH_SHAPES))
@pytest.mark.parametrize("target", ["cpu", "h200", "rtx5090"])
def test_every_weight_row_is_streamed_exactly_once(shape: str, target: str) -> None:
    s = lower(GRAPH_SHAPES[shape], ScheduleConfig(), Target.named(target))
    c = s.columns
    seen = {i: np.zeros(b.rows, np.int64) for i, b in enumerate(s.buffers) if b.kind.name == "WEIGHT"}
    for a in range(len(c.acc_buffer)):
        if int(c.acc_buffer[a]) in seen:
            seen[int(c.acc_buffer[a])][c.acc_r0[a] : c.acc_r1[a]] += 1
    assert all((n == 1).all() for n in seen.values())


@pytest.mark.parametrize(("combine", "want"), [(True, 5), (False, 6)])
def test_hops_a_layer(combine: bool, want: int, tiny: Graphs) -> None:
    assert hops(lower(tiny(), ScheduleConfig(fuse_combine=combine), Target.cpu(2))) == want


@pytest.mark.parametrize(
    "geometry",
    [Geometry(), Geometry(batch=3), Geometry("prefill", 2, 7, 200), Geometry("logits", 1, 16, 300, 4)],
)
@pytest.mark.parametrize("config", [ScheduleConfig(), ScheduleConfig(dependencies="head", fuse_combine=False, fuse_argmax=False)])
def test_json_and_tables_round_trip(geometry: Geometry, config: ScheduleConfig, tiny: Graphs) -> None:
    s = lower(tiny(), config, Target.cpu(3), geometry)
    again = Schedule.from_json(json.loads(json.dumps(s.to_json())))
    packed = tables.pack(s)
    assert tables.pack(again) == packed
    assert tables.pack(tables.unpack(packed)) == packed
    assert (again.columns.acc_label == s.columns.acc_label).all()


def test_declared_footprints_are_the_contracts(tiny: Graphs) -> None:
    s = lower(tiny(), ScheduleConfig(), Target.cpu(2))
    assert footprint.problems(s) == []
    s.columns.acc_c1[0] += 1
    assert [t for t, _ in footprint.problems(s)] == [0]


def test_a_launch_from_the_last_position_stays_inside_the_cache() -> None:
    for geo in (Geometry(context=100), Geometry("prefill", 1, 16, 100)):
        assert geo.context + geo.max_steps * geo.chunk <= geo.kv_rows == geo.context + KV_PAD_ROWS


def test_split_rows_covers_on_aligned_cuts() -> None:
    for total, tiles, align in ((576, 7, 8), (100, 3, 8), (5, 9, 2), (49152, 132, 64), (1, 1, 2)):
        cuts = split_rows(total, tiles, align)
        assert cuts[0][0] == 0
        assert cuts[-1][1] == total
        assert all(a[1] == b[0] and a[1] % align == 0 for a, b in itertools.pairwise(cuts))
        sizes = [e - a for a, e in cuts]
        assert max(sizes) - min(sizes) <= align + (-total % align)


def test_few_tiles_are_small_at_nobody_elses_cost() -> None:
    for total, tiles, align, few in (
        (6144, 132, 8, 8),
        (2560, 132, 8, 4),
        (3072, 132, 8, 8),
        (960, 132, 8, 3),
        (192, 3, 2, 2),
        (64, 3, 2, 3),
    ):
        cuts = split_beside(total, tiles, align, few)
        assert cuts[0][0] == 0
        assert cuts[-1][1] == total
        assert all(a[1] == b[0] and a[0] < a[1] and a[1] % align == 0 for a, b in itertools.pairwise(cuts))
        rows = [e - a for a, e in cuts]
        assert max(rows) == max(e - a for a, e in split_rows(total, tiles, align))
        assert len(rows) == min(tiles, -(-total // align))
        if few < tiles <= total // align:
            assert max(rows[:few]) <= min(rows[few:])
    assert [e - a for a, e in split_beside(6144, 132, 8, 8)] == [24] * 8 + [48] * 124
    assert [e - a for a, e in split_beside(2560, 132, 8, 4)][:4] == [8] * 4


@pytest.mark.parametrize("shape", ["smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b"])
def test_the_first_split_of_attention_is_on_queues_with_few_rows(shape: str) -> None:
    """Programs of all purposes have the same tiles, for they share a tape."""
    g, card = dataclasses.replace(GRAPH_SHAPES[shape], n_layers=3), Target.named("h200")
    tiles = set()
    for geometry in (Geometry(context=512), Geometry("decode", 4, 1, 512), Geometry("prefill", 1, 16, 512)):
        s = lower(g, None, card, geometry, "fast")
        c = s.columns
        queue = np.empty(s.n_tasks, np.int64)
        queue[c.queue_task] = np.repeat(np.arange(s.n_queues), np.diff(c.queue_off))
        ids, qkv = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME["qkv"])
        tiles.add(tuple(zip(*(qkv[name][qkv["layer"] == 1].tolist() for name in ("row0", "row1")), strict=True)))
        if geometry.purpose != "decode":
            continue
        attn_ids, attn = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME["attn"])
        for layer in range(g.n_layers):
            here = qkv["layer"] == layer
            rows = np.zeros(s.n_queues, np.int64)
            rows[queue[ids[here]]] = (qkv["row1"] - qkv["row0"])[here]
            first = queue[attn_ids[(attn["layer"] == layer) & (attn["split"] == 0) & (attn["seq"] == 0)]]
            assert len(set(first.tolist())) == g.n_kv_heads
            assert (rows[first] < rows.max()).all()
    assert len(tiles) == 1


@pytest.mark.parametrize("placement", ["blocked", "strided", "rotated"])
def test_queues_with_several_tasks_of_attention_have_the_merging_one_last(tiny: Graphs, placement: Any) -> None:
    """Split 0 waits for the others of its head: one of them behind it in its queue would be a deadlock."""
    g = tiny(context=1024, rope=RopeSpec("default", 10000.0, 8, 1024))
    for queues, splits, batch in itertools.product((1, 2, 3, 5, 9), (1, 2, 4), (1, 3)):
        card = Target("card", "sm_90", queues, 232448)
        config = ScheduleConfig(attn_splits=splits, placement=placement, handoff="tagged")
        assert validate(lower(g, config, card, Geometry("decode", batch, 1, 1024), "fast")).accepted, (queues, splits, batch)


def test_bad_settings_are_named(tiny: Graphs) -> None:
    with pytest.raises(ValueError, match="row_align is 3"):
        ScheduleConfig(row_align=3)
    with pytest.raises(ValueError, match="placement is 'round'"):
        ScheduleConfig(placement="round")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known are"):
        ScheduleConfig.parse(["tiles=3"])
    with pytest.raises(ValueError, match="trained for 512"):
        lower(tiny(), geometry=Geometry(context=1000))
    with pytest.raises(ValueError, match="unknown target"):
        Target.named("h900")
    assert ScheduleConfig.parse(["placement=strided", "fuse_argmax=false", "row_align=4"]) == ScheduleConfig(
        placement="strided", fuse_argmax=False, row_align=4
    )
    assert repr(ScheduleConfig(row_align=4)) == "ScheduleConfig(row_align=4)"


def test_many_rows_hand_tagged_values_on_where_they_go_past_shared_memory() -> None:
    g = dataclasses.replace(GRAPH_SHAPES["llama-3.1-8b"], n_layers=1)

    def tagged(target: str, batch: int = 16, weights: str = "", **changes: int) -> bool:
        t, quant = Target.named(target), QuantConfig.parse(weights) if weights else None
        few = Target("few", t.arch, 4, t.smem_bytes)
        s = lower(dataclasses.replace(g, **changes), None, few, Geometry(batch=batch, context=64), "fast", quant)
        return any(b.tagged for b in s.buffers)

    assert tagged("h200")
    assert not tagged("a100")  # registers do not hold 16 rows of 4 096 values, nor does shared memory beside a ring
    assert not tagged("h200", hidden_size=4128)  # a normalised row is too long
    assert not tagged("h200", intermediate_size=14352)  # half a unit
    assert not tagged("h200", weights="int8")  # integers are staged
    assert tagged("h200", batch=8, weights="int8")
    assert tagged("a100", batch=4)
