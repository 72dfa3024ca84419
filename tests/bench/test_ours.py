"""Our side as an engine, on the CPU VM and on a CUDA VM whose card is made of this process's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk_core
from amk_bench.ours import Ours


@pytest.fixture(scope="module")
def live() -> Any:
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).float().eval()


@pytest.fixture(scope="module")
def engine(live: Any) -> Ours:
    return Ours(amk_core.load(live, context=200, queues=2, batch=2))


PREFIX = list(range(5, 45))


def test_a_cell_is_prepared_decoded_and_rewound(engine: Ours) -> None:
    engine.prepare(PREFIX, 2, 9)
    first = engine.decode([7, 8], 8)
    engine.rewind()
    assert engine.decode([7, 8], 8) == first
    assert [len(c) for c in first] == [8, 8]
    for start, chain in zip((7, 8), first, strict=True):
        scored = engine.logits([*PREFIX, start, *chain[:-1]], keep=8)
        assert scored.argmax(axis=1).tolist() == chain
    engine.rewind()  # scoring wrote into the cache
    assert engine.decode([7, 8], 8) == first


def test_the_logits_of_the_timed_step_are_the_teacher_forced_ones(engine: Ours) -> None:
    engine.prepare(PREFIX, 2, 9)
    forced = [[7, 8], [3, 4], [100, 2]]
    got = engine.trace(forced)
    assert got.shape == (3, 2, 211)
    for b in range(2):
        np.testing.assert_array_equal(got[:, b], engine.logits([*PREFIX, *(step[b] for step in forced)], keep=3))


def test_scores_behind_a_prefilled_cache_are_those_of_the_whole_text(live: Any) -> None:
    one = Ours(amk_core.load(live, context=200, queues=2))
    whole = one.logits(PREFIX)
    np.testing.assert_array_equal(one.logits(PREFIX, keep=5), whole[-5:])
    one.model.prefill([PREFIX[:20]])
    one.model.prefill([PREFIX[:30]], start=20)
    np.testing.assert_array_equal(one.model.logits(PREFIX, start=30), whole[30:])
    with pytest.raises(ValueError, match="logits from position 40 of 40 ids"):
        one.model.logits(PREFIX, start=40)


def test_what_does_not_fit_is_refused(engine: Ours) -> None:
    with pytest.raises(ValueError, match="loaded for batch 2, the cell has 1"):
        engine.prepare(PREFIX, 1, 9)
    with pytest.raises(ValueError, match="beyond the context of 200"):
        engine.prepare(PREFIX * 4, 2, 41)
    assert (engine.name, engine.precision, engine.available(), engine.stream) == ("AMK CPU VM", "fp32", None, None)
    assert engine.describe()["queues"] == "2"


def test_on_a_card_a_call_is_one_replay_and_the_tokens_come_from_the_ring(
    live: Any, monkeypatch: pytest.MonkeyPatch, cubins: Path
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'amk[test]')")
    from fake_card import FakeCard

    from amk_core.vm import driver

    card = FakeCard()
    monkeypatch.setattr(driver, "_driver", lambda: card)

    def decode(c: Any, launch: Any) -> None:
        n = int(launch["n_variables"])
        variables = c.view(launch["variables"], np.int32, n + 1)
        if n == 4 and int(launch["n_tasks"]) == decode_tasks:
            ring = c.view(launch["ring"], np.uint64, 2 * int(launch["steps"]))
            for step in range(int(launch["steps"])):
                for seq in range(2):
                    ring[2 * step + seq] = (int(variables[-1]) + step + 1) << 32 | (10 * int(variables[seq]) + step + seq)

    model = amk_core.load(live, mode="fast", context=200, queues=4, batch=2, backend="cuda")
    decode_tasks = model.program("decode").schedule.n_tasks
    card.work = decode
    ours = Ours(model)
    assert ours.name == "AMK CUDA VM"
    assert ours.precision == "bf16"
    ours.prepare(PREFIX, 2, 9)
    ours.decode([7, 8], 8)  # captures
    card.log.clear()
    assert ours.decode([7, 8], 8) == [[400 + i for i in range(8)], [401 + i for i in range(8)]]
    assert card.log["cuGraphLaunch"] == 1
    assert card.log["cuMemcpyDtoH"] == 1  # the fault report
    assert card.log["cuStreamSynchronize"] == 1
    assert not [k for k in card.log if k.startswith("cuMemcpyHtoD")]
    seconds = ours.launch_seconds([7, 8], 8, 3)
    assert seconds == [pytest.approx(0.0005 / 8)] * 3
    assert ours.launch_seconds([7, 8], 8, 1, per_launch=1) == [pytest.approx(0.0005)]
