"""Ranks: what the lowering hands on where, what the validator says of it, and what it says of every way to break it."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk_bench.adversary.net import Json, Net, access
from amk_bench.device_cases import GRAPHS
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import Schedule, check_certificate, tables, validate
from amk_core.schedule.ir import WRITE
from amk_core.schedule.lower import Geometry, Purpose, lower
from amk_core.schedule.lower_ranks import POOL, Ranks, lower_ranks
from amk_core.schedule.ops import BY_CODE, CODES
from amk_core.schedule.oracle import label
from amk_core.schedule.pack import TapeLayout
from amk_core.schedule.reference import validate as second_opinion
from amk_core.targets import Target
from amk_core.vm.plan import Dims
from amk_core.vm.program import ProgramError

SHAPES = [("small", 3, 2), ("small", 1, 3), ("odd", 2, 4), ("smol", 15, 8), ("smol", 7, 16), ("smol", 2, 1)]


PURPOSES: tuple[Purpose, ...] = ("decode", "prefill", "logits")


def ranked(name: str = "small", count: int = 3, cluster: int = 2, steps: int = 0, purpose: Purpose = "decode") -> Schedule:
    geometry = Geometry(purpose, context=64, steps=steps)
    return lower_ranks(GRAPHS[name], Ranks(count, cluster), Target.cpu(count * cluster), geometry)


def ops_of(s: Schedule, name: str) -> np.ndarray[Any, Any]:
    return np.flatnonzero(s.columns.task_op == CODES[name])


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize(("name", "count", "cluster"), [*SHAPES, ("wide", 4, 2)])
def test_lowerings_are_accepted_with_a_certificate(name: str, count: int, cluster: int, purpose: Purpose) -> None:
    s = ranked(name, count, cluster, purpose=purpose)
    verdict = validate(s)
    assert verdict.accepted, str(verdict)
    assert not check_certificate(tables.pack(s), verdict.certificate)
    assert Schedule.from_json(s.to_json()).pools == s.pools


@pytest.mark.parametrize(("purpose", "steps"), [("decode", 1), ("prefill", 2), ("logits", 2)])
def test_the_second_opinions_agree(purpose: Purpose, steps: int) -> None:
    s = lower_ranks(GRAPHS["odd"], Ranks(2, 1), Target.cpu(2), Geometry(purpose, context=8, steps=steps))
    assert validate(s).accepted
    assert not second_opinion(s).rules
    assert not label(s).rules


def test_smollm2_fits_the_card_it_is_for() -> None:
    s = lower_ranks(GRAPH_SHAPES["smollm2-135m"], Ranks(15, 8), Target.named("h200"), mode="fast")
    assert validate(s).accepted
    small = lower_ranks(GRAPH_SHAPES["smollm2-135m"], Ranks(12, 8), Target("old", "sm_80", 108, 166_912), mode="fast")
    assert validate(small).rules == {"FIT"}


def test_two_hand_offs_of_a_layer_cross_ranks() -> None:
    """Every write that another cluster reads is a part."""
    s, c = ranked("smol", 5, 4), ranked("smol", 5, 4).columns
    queue = {t: q for q in range(s.n_queues) for t in s.queue(q)}
    writers: dict[int, set[int]] = {}
    crossing = set()
    for write in (True, False):
        for t in range(s.n_tasks):
            for x in range(int(c.acc_off[t]), int(c.acc_off[t + 1])):
                b, rank = int(c.acc_buffer[x]), queue[t] // 4
                if write and c.acc_flags[x] & WRITE:
                    writers.setdefault(b, set()).add(rank)
                elif not write and writers.get(b, {rank}) != {rank}:
                    crossing.add(re.sub(r"^L\d+\.", "", s.buffers[b].name))
    caches = {"k", "v"}  # of which every rank reads the columns that it writes
    assert crossing - caches == {"o_part", "down_part", "token", "logits", "amax"}


def test_every_weight_is_streamed_once() -> None:
    layout = TapeLayout.of(ranked("smol", 5, 4))
    whole = TapeLayout.of(lower(GRAPHS["smol"], target=Target.cpu(4), geometry=Geometry(context=64)))
    elements = [sum((e - a) * k for _, a, e, k, _ in x.segments.tolist()) for x in (layout, whole)]
    assert elements[0] == elements[1]


@pytest.mark.parametrize("purpose", ["prefill", "logits"])
def test_a_prompt_is_on_the_tape_of_decoding_and_a_row_has_every_position(purpose: Purpose) -> None:
    s, decode = ranked("smol", 5, 4, purpose=purpose), ranked("smol", 5, 4)
    layout = TapeLayout.of(decode)
    assert (layout.locate(s) >= 0).sum() == sum(
        len(ops_of(s, n)) for n in ("rank_qkv", "o_part", "gate_up", "down_part", "lm_head")
    )
    kv = [{(b.name, b.rows, b.cols, b.offset) for b in x.buffers if b.pool == "kv"} for x in (s, decode)]
    assert kv[0] == kv[1]
    assert s.steps == 128  # ids of a launch
    assert len(ops_of(s, "sample")) == 0
    last = GRAPHS["smol"].n_layers - 1
    if purpose == "prefill":  # of the last layer keys and values alone, and no head
        assert len(ops_of(s, "lm_head")) == 0
        json = s.to_json()["tasks"]
        assert max(json[t]["params"]["layer"] for t in ops_of(s, "o_sum")) == last - 1
    else:
        assert len(ops_of(s, "lm_head")) == len(ops_of(decode, "lm_head"))


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_wait_is_needed_or_implied_by_the_queue(purpose: Purpose) -> None:
    """Without any one wait of a phase the schedule is refused; first tasks have one that others of their queue imply."""
    s = ranked("small", 2, 2, steps=2, purpose=purpose)
    c, json = s.columns, s.to_json()
    refused, kept = set(), set()
    for t in range(s.n_tasks):
        name = BY_CODE[int(c.task_op[t])].name
        for w in range(len(json["tasks"][t]["waits"])):
            broken = copy.deepcopy(json)
            del broken["tasks"][t]["waits"][w]
            (kept if validate(Schedule.from_json(broken)).accepted else refused).add((name, w))
    behind = {"decode": {"lm_head", "sample"}, "prefill": {"embed"}, "logits": {"embed", "lm_head"}}[purpose]
    assert {"rank_qkv", "rank_attn", "o_part", "gate_up", "down_part"} | behind <= {n for n, _ in refused}
    # the first wait of a step guards a stop too, and where a queue's rows are needed by all others anyway they imply it
    assert {n for n, _ in kept} <= {"embed"}


@pytest.mark.parametrize(
    ("op", "param", "value", "rules"),
    [
        ("o_sum", "n", 1, {"COVER"}),  # the part of a head is added by nobody
        ("down_sum", "n", 2, {"COVER"}),
        ("down_part", "part", 0, {"TAG", "COVER"}),  # two ranks write the same part, and the sums miss another
        ("o_part", "layer", 1, {"REF"}),  # the weight of another layer
        ("down_sum", "n", 17, {"REF"}),
        ("rank_attn", "piece", 8, {"REF"}),
        ("rank_attn", "heads", 7, {"REF"}),
        ("rank_attn", "kv_head", 2, {"REF"}),
        ("o_part", "k1", 33, {"REF"}),
    ],
)
def test_broken_sums_are_refused(op: str, param: str, value: int, rules: set[str]) -> None:
    s = ranked("small", 3, 2)
    json = s.to_json()
    for t in ops_of(s, op):
        json["tasks"][t]["params"][param] = value
        if param == "n" and value <= 16:
            json["tasks"][t]["reads"][0]["rows"] = [0, value]
        if param == "part":
            json["tasks"][t]["writes"][0]["rows"] = [value, value + 1]
        if param == "layer":
            break
    got = validate(Schedule.from_json(json))
    assert not got.accepted
    assert rules <= got.rules


def test_parts_of_one_layer_are_not_taken_for_those_of_another() -> None:
    s = ranked("small", 3, 2)
    json = s.to_json()
    ids = {b["name"]: b["id"] for b in json["buffers"]}
    t = next(t for t in ops_of(s, "down_sum") if json["tasks"][t]["params"]["layer"] == 1)
    json["tasks"][t]["params"]["parts"] = ids["L0.down_part"]
    json["tasks"][t]["reads"][0]["buffer"] = ids["L0.down_part"]
    assert "FLOW" in validate(Schedule.from_json(json)).rules


def cluster_net(**pool: Any) -> Json:
    """Queues 0 and 1 hand a value on in the first part of a pool, queues 2 and 3 in the second."""
    n = Net(4)
    n.pools.append({"id": POOL, "bytes": 64, "per_queue": False, "cluster": 2} | pool)
    out = n.buffer(4, kind="output", lifetime="persistent")
    for k in (0, 1):
        x, ready = n.buffer(4, pool=POOL, offset=32 * k), n.counter()
        n.task(2 * k, [], [access(x, (0, 4))], [], [(ready, 1)])
        n.task(2 * k + 1, [access(x, (0, 4))], [access(out, (2 * k, 2 * k + 2))], [(ready, 1)])
    return n.json()


def rules_of(s: Json) -> set[str]:
    """Of the validator; the two other opinions must be the same, but for the architecture, which they do not know."""
    schedule = Schedule.from_json(s)
    mine = set(validate(schedule).rules)
    assert mine == set(label(schedule).rules) == set(second_opinion(schedule).rules)
    return mine


def test_a_pool_of_clusters_is_reached_by_its_queues_alone() -> None:
    s = cluster_net()
    assert rules_of(s) == set()
    assert validate(Schedule.from_json(s)).certificate is not None
    for q, t in ((2, 0), (0, 3)):
        moved = copy.deepcopy(s)
        moved["queues"] = [[x for x in ids if x != t] for ids in moved["queues"]]
        moved["queues"][q].insert(0, t)
        assert rules_of(moved) == {"REF"}
    race = copy.deepcopy(s)
    race["tasks"][1]["waits"] = []
    assert "RACE" in validate(Schedule.from_json(race)).rules  # a write to all copies conflicts with a read of one
    assert "RACE" in label(Schedule.from_json(race)).rules


@pytest.mark.parametrize(
    "pool",
    [
        {"bytes": None},
        {"bytes": 65},
        {"bytes": 0},
        {"bytes": -1},
        {"per_queue": True},
        {"cluster": -2},
        {"cluster": 3},
        {"cluster": 1},
    ],
)
def test_parts_of_a_pool_are_whole_and_hold_their_buffers(pool: dict[str, Any]) -> None:
    assert rules_of(cluster_net(**pool)) == {"REF"}


def test_a_buffer_lies_in_one_part() -> None:
    s = cluster_net()
    s["buffers"][1]["offset"] = 24
    assert rules_of(s) == {"REF"}


def test_clusters_fit_the_target() -> None:
    s = cluster_net() | {"target": {"sms": 4, "smem_bytes": 32, "arch": "sm_90"}}
    assert rules_of(s) == set()
    assert rules_of(s | {"target": {"sms": 4, "smem_bytes": 31, "arch": "sm_90"}}) == {"FIT"}
    assert validate(Schedule.from_json(s | {"target": {"sms": 4, "smem_bytes": 32, "arch": "sm_89"}})).rules == {"FIT"}
    wide = cluster_net(cluster=17, bytes=64)
    assert rules_of(wide | {"target": {"sms": 4, "smem_bytes": 64, "arch": "sm_90"}}) == {"FIT"}


@pytest.mark.parametrize(("count", "cluster"), [(0, 8), (17, 1), (1, 0), (1, 17)])
def test_numbers_of_ranks_have_limits(count: int, cluster: int) -> None:
    with pytest.raises(ValueError, match="required is 1 to 16"):
        Ranks(count, cluster)


def test_what_ranks_do_not_serve_is_said() -> None:
    g, target = GRAPHS["small"], Target.cpu(4)
    with pytest.raises(ValueError, match="a step of ranks is one row, asked are 2 sequences and chunks of 1"):
        lower_ranks(g, Ranks(2, 2), target, Geometry(batch=2, context=64))
    with pytest.raises(ValueError, match="1 sequences and chunks of 16"):
        lower_ranks(g, Ranks(2, 2), target, Geometry("prefill", chunk=16, context=64))
    with pytest.raises(ValueError, match="has 4"):
        lower_ranks(g, Ranks(3, 2), target, Geometry(context=64))
    with pytest.raises(ValueError, match="work for each rank"):
        lower_ranks(replace(GRAPHS["odd"], intermediate_size=64), Ranks(16, 1), Target.cpu(16), Geometry(context=64))
    few = replace(GRAPHS["small"], vocab_size=32)  # tiles of eight rows: one for each queue of two ranks
    lower_ranks(few, Ranks(2, 2), Target.cpu(6), Geometry(context=64))
    with pytest.raises(ValueError, match="32 rows make 4 tiles; each rank needs one"):
        lower_ranks(few, Ranks(3, 2), Target.cpu(6), Geometry(context=64))
    with pytest.raises(ProgramError, match="partial sums"):
        Dims.of(ranked())
