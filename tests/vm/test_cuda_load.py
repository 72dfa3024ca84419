"""What is loaded for a card, up to the launch: bytes of quantised weights, programs that share them, chunks that fit, ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import make_llama
from fake_card import FakeCard

import amk_core
from amk_core import cost
from amk_core.graph import GRAPH_SHAPES
from amk_core.programs import RequestError
from amk_core.quant.config import QuantConfig
from amk_core.schedule.lower_ranks import BY_DEFAULT, Ranks
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.vm import driver
from amk_core.vm.card import Card
from amk_core.vm.cuda import CudaVM
from amk_core.vm.device_tape import DeviceTapeLayout
from amk_core.vm.rank_vm import RankVM, TooFewClusters

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")

SHAPE = {
    "vocab_size": 120,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cubins: Path) -> FakeCard:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    monkeypatch.setenv("AMK_HOME", str(tmp_path))
    return card


@pytest.mark.parametrize("weights", ["int4-g64-zero,head=int8-g32", "int8", "int8-a8,head=int8-g128-a8"])
def test_the_tape_on_the_card_has_the_bytes_of_the_host_and_every_program_takes_it(weights: str) -> None:
    loaded: Any = amk_core.load(
        make_llama(tie_word_embeddings=False, **SHAPE), "fast", queues=5, context=64, backend="cuda", weights=weights
    )
    schedule = loaded.schedules["decode"]
    want = DeviceTapeLayout.of(schedule).build(loaded.weight)
    tape = loaded.program("decode").vm.tape
    got = np.empty(len(want), np.uint8)
    tape.download(got)
    np.testing.assert_array_equal(got, want)
    for purpose in ("prefill", "logits"):
        vm = loaded.program(purpose).vm
        assert vm.tape is tape
        assert vm.build.defines["AMK_LAYER_FORMAT"] == loaded.program("decode").vm.build.defines["AMK_LAYER_FORMAT"] > 0
    assert loaded.chunk == 16


def test_exact_mode_takes_the_packed_bytes_of_the_cpu_vm() -> None:
    loaded: Any = amk_core.load(
        make_llama(tie_word_embeddings=False, **SHAPE), queues=5, context=64, backend="cuda", weights="int4-g32-min"
    )
    want = Tape.build(TapeLayout.of(loaded.schedules["decode"]), loaded.weight).data
    got = np.empty(len(want), np.uint8)
    loaded.program("decode").vm.tape.download(got)
    np.testing.assert_array_equal(got, want)


def test_a_chunk_of_a_prompt_is_what_fits() -> None:
    chunks = [
        Card().chunk("fast", batch, 16, GRAPH_SHAPES[model], QuantConfig.parse("int8"))
        for model, batch in (("smollm2-135m", 1), ("smollm2-135m", 4), ("llama-3.1-8b", 1), ("llama-3.1-8b", 16))
    ]
    assert chunks[:2] == [16, 4]
    assert 1 < chunks[2] < 16
    assert chunks[3] == 1
    assert Card().chunk("fast", 1, 16, GRAPH_SHAPES["llama-3.1-8b"], QuantConfig.parse("int8-a8,head=int8-a8")) == 16
    assert Card().chunk("fast", 1, 16, GRAPH_SHAPES["llama-3.1-8b"], None) == 16
    assert Card().chunk("exact", 1, 16, GRAPH_SHAPES["llama-3.1-8b"], QuantConfig.parse("int8")) == 16


def test_a_prompt_takes_32_rows_where_whole_rows_lie_beside_the_ring(card: FakeCard) -> None:
    small, big = GRAPH_SHAPES["llama-3.2-1b"], GRAPH_SHAPES["llama-3.1-8b"]
    assert Card().chunk("fast", 1, None, small, None) == 32
    assert Card().chunk("fast", 1, 5, small, None) == 5
    others = [
        ("fast", 2, small, None),
        ("exact", 1, small, None),
        ("fast", 1, big, None),
        ("fast", 1, small, QuantConfig.parse("int8")),
    ]
    assert [Card().chunk(mode, batch, None, g, quant) for mode, batch, g, quant in others] == [16, 16, 16, 16]
    card.facts["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] = 101_376
    assert Card().chunk("fast", 1, None, small, None) == 16


# -- ranks
WIDE = {"vocab_size": 192, "hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 32}  # fmt: skip


def test_every_program_of_ranks_is_one_of_ranks_on_the_same_tape_keys_and_values(card: FakeCard) -> None:
    loaded: Any = amk_core.load(make_llama(**WIDE), "fast", context=64, backend="cuda", ranks=Ranks(3, 2))
    decode = loaded.program("decode")
    assert card.log["cuLaunchKernel"] > 0
    kept = {b.name: (b.offset, b.rows, b.cols) for b in decode.schedule.buffers if b.pool == "kv"}
    for purpose in ("decode", "prefill", "logits"):
        program = loaded.program(purpose)
        assert type(program.vm) is RankVM
        assert program.schedule.meta["ranks"] == 3
        assert program.vm.pool("kv") is decode.vm.pool("kv")
        assert kept == {b.name: (b.offset, b.rows, b.cols) for b in program.schedule.buffers if b.pool == "kv"}
        assert program.vm.tape is decode.vm.tape
    assert loaded.program("logits").vm.build == decode.vm.build  # what scores a text is the machine code that decodes
    traced = loaded.traced()
    assert type(traced) is RankVM
    assert traced.tape is decode.vm.tape


def test_a_prompt_of_ranks_is_a_launch_of_as_many_steps(card: FakeCard) -> None:
    loaded: Any = amk_core.load(
        make_llama(**WIDE, max_position_embeddings=512), "fast", context=256, chunk=16, backend="cuda", ranks=Ranks(3, 2)
    )
    seen: list[tuple[int, list[int]]] = []
    vm = loaded.program("prefill").vm
    card.work = lambda c, launch: seen.append((int(launch["steps"]), vm.memory.read("prompt")[0, : int(launch["steps"])].tolist()))
    ids = [i % 190 for i in range(150)]
    loaded.prefill([ids])
    assert seen == [(128, ids[:128]), (22, ids[128:])]
    del seen[:]
    vm = loaded.program("logits").vm
    assert loaded.logits(ids[:40]).shape == (40, WIDE["vocab_size"])
    assert seen == [(40, ids[:40])]


def test_ranks_that_the_cost_model_chose_give_way_to_what_the_card_places(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "best_ranks", lambda g, target: Ranks(3, 2))
    card.facts["CLUSTERS"] = 2  # one card all along: memory of a card that is gone must not be given back to another
    loaded: Any = amk_core.load(make_llama(**WIDE), "fast", context=64, backend="cuda", ranks="auto")
    assert loaded.ranks == Ranks(2, 2)
    assert type(loaded.program("decode").vm) is RankVM
    assert "R1.h" in {b.name for b in loaded.schedules["decode"].buffers}
    assert "R2.h" not in {b.name for b in loaded.schedules["decode"].buffers}
    card.facts["CLUSTERS"] = 1
    loaded = amk_core.load(make_llama(**WIDE), "fast", context=64, backend="cuda", ranks="auto")
    assert loaded.ranks is None
    assert type(loaded.program("decode").vm) is CudaVM
    with pytest.raises(TooFewClusters, match="places 1; lower for at most 1 ranks"):
        amk_core.load(make_llama(**WIDE), "fast", context=64, backend="cuda", ranks=Ranks(3, 2))


def test_ranks_are_off_where_nobody_asks_and_refused_where_they_serve_nothing() -> None:
    assert BY_DEFAULT == "off"  # slower on the card that timed them
    assert amk_core.load(make_llama(**WIDE), "fast", context=64, backend="cuda").ranks is None
    for settings in ({"batch": 2}, {"mode": "exact"}):
        chosen = {"mode": "fast", "context": 64, "backend": "cuda", "ranks": "auto", **settings}
        loaded: Any = amk_core.load(make_llama(**WIDE), **chosen)
        assert loaded.ranks is None
    with pytest.raises(RequestError, match=r"ranks decode one sequence .* asked is a batch of 2; leave ranks out"):
        amk_core.load(make_llama(**WIDE), "fast", batch=2, context=64, ranks=Ranks(3, 2))
    with pytest.raises(RequestError, match=r"asked is weights int8.*; leave ranks out"):
        amk_core.load(make_llama(**WIDE), "fast", context=64, weights="int8", ranks=Ranks(3, 2))
