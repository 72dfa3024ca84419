"""The kernels for ranks on the host (rank_kernels.py): whole steps, against float64, the CPU VM and each other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rank_kernels import Kernels

from amk_bench import rank_dump
from amk_bench.device_cases import GRAPHS, run_cpu
from amk_bench.rank_check import RankCase, case
from amk_core.schedule.lower import Purpose
from amk_core.vm import Fault
from amk_core.vm.rank_mail import cluster_pool, plan_mail

CASES = (
    case("small", 3, 2, 3, 4), case("small", 1, 1, 0, 2), case("small", 2, 4, 300, 2), case("smol", 2, 3, 130, 1),
    case("wide", 4, 2, 40, 1),
)  # fmt: skip


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_the_kernels_are_as_accurate_as_the_cpu_vm(c: RankCase, tmp_path: Path) -> None:
    s = c.schedule(0, {}, "sm_90")
    cards = Kernels(c, s, tmp_path)
    cards.run(c.steps, c.variables, 5)
    got = c.results(s, lambda name: cards.arrays[cards.index[name]])
    assert 0 < c.distance(got) <= 1.5 * c.distance(run_cpu(c.on_cpu))


@pytest.mark.parametrize(
    "c",
    [
        case("small", 3, 2, 5, 4),
        case("small", 2, 4, 300, 2),
        pytest.param(case("wide", 4, 2, 3, 2), marks=pytest.mark.amk_full("prompts by ranks with wide rows")),
    ],
    ids=lambda c: c.name,
)
def test_a_prompt_and_a_scored_text_have_the_bits_of_decoding(c: RankCase, tmp_path: Path) -> None:
    """Rows of a launch with given ids, by the kernels' own code: keys and values of every layer, and the logits of the last row."""
    s = c.schedule(0, {}, "sm_90")
    decode = Kernels(c, s, tmp_path)
    first = int(decode.arrays[decode.index["token"]][0, 0])
    decode.run(c.steps, c.variables, 5)
    made = decode.arrays[decode.index["out"]][: c.steps, 0].tolist()
    rows = slice(c.p0[0], c.p0[0] + c.steps)
    for purpose in ("prefill", "logits"):
        given = replace(c, purpose=purpose)
        program = given.schedule(0, {}, "sm_90")
        (folder := tmp_path / purpose).mkdir()
        cards = Kernels(given, program, folder)
        cards.arrays[cards.index["prompt"]][0, : c.steps] = [first, *made[:-1]]
        cards.run(c.steps, c.variables, 6)
        for name in (f"L{i}.{kind}" for i in range(GRAPHS[c.model].n_layers) for kind in "kv"):
            mine, wanted = (x.arrays[x.index[name]][rows] for x in (cards, decode))
            assert (wanted != 0).any()
            np.testing.assert_array_equal(mine, wanted, name)
        if purpose == "logits":
            logits = cards.arrays[cards.index["logits"]]
            np.testing.assert_array_equal(logits[c.steps - 1], decode.arrays[decode.index["logits"]][0])
            assert logits[: c.steps].argmax(axis=1).tolist() == made


def test_a_sequence_that_has_its_tokens_leaves_zeros_and_no_keys(tmp_path: Path) -> None:
    c = replace(case("small", 3, 2, 9, 3), tokens=(2,))
    s = c.schedule(0, {}, "sm_90")
    cards = Kernels(c, s, tmp_path)
    cards.run(c.steps, c.variables, 6)
    array = lambda name: cards.arrays[cards.index[name]]  # noqa: E731
    assert array("out")[:3, 0].tolist()[2] == -1
    assert (array("L1.k")[:11] != 0).any(axis=1).all()
    assert (array("L1.k")[11:] == 0).all()
    assert np.isfinite(array("logits")).all()


@pytest.mark.parametrize("purpose", ["decode", "prefill", "logits"])
def test_a_report_names_the_first_phase_whose_values_differ(tmp_path: Path, purpose: Purpose) -> None:
    c = case("small", 3, 2, 9, 2, purpose)
    s = c.schedule(0, {}, "sm_90")
    cards = Kernels(c, s, tmp_path)
    cards.run(c.steps, c.variables, 5)
    array = lambda name: cards.arrays[cards.index[name]]  # noqa: E731
    mails = np.array(cards.mails)
    tokens = (array("out")[: c.steps, 0] if purpose == "decode" else array("prompt")[0, : c.steps]).tolist()

    def found() -> list[str]:
        return [line for line in rank_dump.differences(c, s, array, tokens, mails) if line]

    assert found() == []
    offset = s.buffers[cards.index["R2.h"]].offset % s.cluster_bytes(cluster_pool(s))
    mails[5][offset : offset + 4].view(np.float32)[0] = 1e3
    boxes = ["mailbox R2.h of queue 5, columns from 0"] if purpose != "prefill" else []
    assert [line.partition(":")[0] for line in found()] == boxes
    layer = 0 if purpose == "prefill" else 1  # the last that leaves parts
    parts = array(f"L{layer}.down_part").view(np.float32).reshape(-1, 4)
    parts[7] = np.nan
    first = found()[0]
    assert re.match(rf"L{layer} down_part of queue \d \(task \d+, part 1, columns from 0\): tags \[.*expected 2 in all", first)
    assert "value [6] is nan, expected" in found()[1]
    array(f"L{layer}.k")[10, 5] = 0x7F00
    assert re.match(rf"L{layer} rank_qkv, k of position 10: value \[0, 5\] is 1\.7\d+e\+38, expected ", found()[0])


def test_a_report_of_a_wait_names_the_senders_and_where_the_queues_stand() -> None:
    s = case("small", 3, 2).schedule(0, {}, "sm_90")
    mail = plan_mail(s, cluster_pool(s))
    t = int(np.flatnonzero(mail.arrive >= 0)[-1])
    queue = int(rank_dump.queues_of(s)[t])
    fault = Fault("mail-timeout", t, "lm_head", queue, 3, 0, int(mail.arrive[t]), -1, 0, int(mail.expects[t]))
    heads = np.zeros((s.n_queues, rank_dump.HEAD_WORDS), np.uint32)
    heads[queue, :4] = 0, 1, 0, 2
    lines = list(rank_dump.waits_of(s, fault, heads))
    assert re.match(rf"barrier {fault.counter} expects bytes of T\d+ down_sum on queue {queue ^ 1}", lines[0])
    assert f"<- queue {queue}: task records of step, place (0, 1) " in "\n".join(lines)
