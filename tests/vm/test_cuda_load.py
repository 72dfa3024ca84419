"""Quantised weights loaded for a card, up to the launch: the bytes on the card, programs that share them, chunks that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import make_llama
from fake_card import FakeCard

import amk_core
from amk_core.graph import GRAPH_SHAPES
from amk_core.quant.config import QuantConfig
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.vm import driver
from amk_core.vm.card import Card
from amk_core.vm.device_tape import DeviceTapeLayout

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
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCard:
    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)
    monkeypatch.setenv("AMK_HOME", str(tmp_path))
    return card


@pytest.mark.parametrize("weights", ["int4-g64-zero,head=int8-g32", "int8"])
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
    assert Card().chunk("fast", 1, 16, GRAPH_SHAPES["llama-3.1-8b"], None) == 16
    assert Card().chunk("exact", 1, 16, GRAPH_SHAPES["llama-3.1-8b"], QuantConfig.parse("int8")) == 16
