"""A model loaded with ranks has one set of bits: prompts, scored texts and decoding, however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from checkpoints import make_llama

import amk_core
from amk_core.programs import RequestError
from amk_core.runtime import Model
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Mode
from amk_core.schedule.lower_ranks import Ranks

SHAPE = {"vocab_size": 192, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 6, "num_key_value_heads": 2,
         "head_dim": 16, "max_position_embeddings": 256}  # fmt: skip
TEXT = [(37 * i + 11) % 190 for i in range(45)]
NEW = 9
GEOMETRIES = (Ranks(3, 1), Ranks(3, 2), Ranks(3, 4), Ranks(1, 3), Ranks(5, 2))
Load = Callable[..., Model]


@pytest.fixture(scope="module")
def checkpoint() -> Any:
    return make_llama(**SHAPE)


@pytest.fixture
def load(checkpoint: Any) -> Load:
    def made(ranks: Ranks | str, mode: Mode = "exact", **options: Any) -> Model:
        return amk_core.load(checkpoint, mode, queues=2, ranks=ranks, **{"context": 192, **options})

    return made


def caches(model: Model, n: int) -> list[bytes]:
    """Keys and values of the first ``n`` positions, of all layers."""
    vm = model.program("decode").vm
    return [vm.buffer(f"L{i}.{kind}")[:n].tobytes() for i in range(model.graph.n_layers) for kind in "kv"]


def decoded(model: Model, ids: list[int]) -> npt.NDArray[np.float32]:
    """Logits behind every id, each fed alone to the decode program."""
    vm, rows = model.program("decode").vm, []
    for position, token in enumerate(ids):
        model.resume([token], [position], 1)
        rows.append(vm.buffer("logits")[0].copy())
    return np.array(rows)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("ranks", GEOMETRIES, ids=lambda r: f"{r.count}x{r.cluster}")
def test_a_scored_text_a_prompt_and_decoding_have_the_same_bits(load: Load, ranks: Ranks, mode: Mode) -> None:
    model = load(ranks, mode)
    want = decoded(model, TEXT)
    kept = caches(model, len(TEXT))
    assert all(any(c) for c in kept)
    np.testing.assert_array_equal(model.logits(TEXT), want)
    assert caches(model, len(TEXT)) == kept
    for chunk in (1, 3, 16):
        other = load(ranks, mode, chunk=chunk)
        other.prefill([TEXT])
        assert caches(other, len(TEXT)) == kept
        np.testing.assert_array_equal(other.logits(TEXT, start=40), want[40:])
        made = other.generate(TEXT, NEW, stop_ids=[])[0].tokens
        assert other.logits([*TEXT, *made[:-1]])[len(TEXT) - 1 :].argmax(axis=1).tolist() == made
        assert model.resume([TEXT[-1]], [len(TEXT) - 1], NEW) == [made]


@pytest.mark.parametrize(
    "config", [{"row_align": 2}, {"row_align": 16, "head_tiles_per_queue": 3}, {"fuse_argmax": False}], ids=str
)
def test_no_config_changes_a_bit(load: Load, config: dict[str, Any]) -> None:
    mine, plain = (load(Ranks(5, 2), config=ScheduleConfig(**c)) for c in (config, {}))
    np.testing.assert_array_equal(mine.logits(TEXT), plain.logits(TEXT))
    assert mine.generate(TEXT, NEW, stop_ids=[])[0].tokens == plain.generate(TEXT, NEW, stop_ids=[])[0].tokens


def test_the_bits_belong_to_the_number_of_ranks(load: Load) -> None:
    logits = {r: load(r).logits(TEXT).tobytes() for r in (Ranks(3, 1), Ranks(3, 4), Ranks(1, 3))}
    assert logits[Ranks(3, 1)] == logits[Ranks(3, 4)] != logits[Ranks(1, 3)]
    plain = load("off").logits(TEXT)
    assert plain.tobytes() not in logits.values()
    mine = np.frombuffer(logits[Ranks(3, 1)], np.float32).reshape(plain.shape)
    assert np.abs(mine - plain).max() <= 2e-5 * np.abs(plain).max()


def test_a_prompt_that_is_longer_than_a_launch(load: Load) -> None:
    ids = [(53 * i + 7) % 190 for i in range(150)]
    model = load(Ranks(3, 2))
    whole = model.logits(ids)
    model.prefill([ids[:131]])
    np.testing.assert_array_equal(model.logits(ids, start=131), whole[131:])
    assert model.generate(ids, 4, stop_ids=[])[0].tokens[0] == int(whole[-1].argmax())


def test_timing_and_draws_change_nothing(load: Load) -> None:
    """Perturbed threads give the same bits; a draw is the same behind a prompt of any chunk, and in one launch or many."""
    drawn = {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 5, "stop_ids": []}
    model = load(Ranks(3, 2))
    want, tokens = model.logits(TEXT), model.generate(TEXT, NEW, **drawn)[0].tokens
    model.perturb_seed = 8
    np.testing.assert_array_equal(model.logits(TEXT), want)
    assert model.generate(TEXT, NEW, **drawn)[0].tokens == tokens
    heard: list[int] = []
    other = load(Ranks(3, 1), chunk=5)
    assert other.generate(TEXT, NEW, on_token=lambda _, t: heard.append(t), **drawn)[0].tokens == tokens == heard


def test_several_sequences_are_refused_by_name(load: Load) -> None:
    with pytest.raises(RequestError, match=r"ranks decode one sequence .* asked is a batch of 2; leave ranks out"):
        load(Ranks(3, 1), batch=2)


def test_prompts_one_after_the_other_do_not_see_each_other(load: Load) -> None:
    model = load(Ranks(3, 2))
    texts = [TEXT[:20], TEXT[5:12], TEXT]
    together = [g.tokens for g in model.generate(texts, NEW, stop_ids=[])]
    assert together == [load(Ranks(3, 2)).generate(t, NEW, stop_ids=[])[0].tokens for t in texts]
