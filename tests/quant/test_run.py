"""The CPU VM on packed weights: the bits of the de-quantised model, whatever the format, schedule and instruction set."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from checkpoints import IDS, make_llama

import amk_core
from amk_core import ScheduleConfig, _native
from amk_core.importer import open_model
from amk_core.importer.weights import canonical
from amk_core.programs import RequestError
from amk_core.quant import QuantError
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import FORMATS
from amk_core.quant.source import QuantWeights

pytest.importorskip("transformers")
# K = 36, 45, 60, and here 168, 96, 1100: no group divides most of them, and 1100 has two slices
WIDE: dict[str, Any] = {"hidden_size": 168, "intermediate_size": 1100, "num_hidden_layers": 1, "head_dim": 16}


def dequantised(model: Any, config: QuantConfig, tied: bool) -> Any:
    """The same model with the values that its quantised weights stand for, in float32."""
    graph = open_model(model).graph
    state = {canonical(k): v for k, v in model.state_dict().items()}
    w = QuantWeights(graph, config, lambda name: state[name].numpy())
    out = copy.deepcopy(model)
    import torch

    with torch.no_grad():
        for key, p in out.state_dict().items():
            name = canonical(key)
            assert name is not None
            if w.format_of(name) is not None and not (name == "embed" and tied):
                p.copy_(torch.from_numpy(w.matrix(name).dequantise()))
        if tied:
            # a head of its own, so that the embedding keeps its values
            out.config.tie_word_embeddings = False
            head = w.matrix("embed").dequantise() if config.head else state["embed"].numpy()
            out.lm_head.weight = torch.nn.Parameter(torch.from_numpy(head.copy()))
            if config.embed == "head":
                out.model.embed_tokens.weight = torch.nn.Parameter(torch.from_numpy(head.copy()))
    return out


@pytest.mark.parametrize("fmt", [f for f in FORMATS if not f.activations], ids=str)
def test_exact_bits_are_those_of_the_dequantised_model(fmt: Any) -> None:
    model = make_llama(tie_word_embeddings=False, vocab_size=101, **WIDE)
    config = QuantConfig(fmt, fmt)
    want = amk_core.load(dequantised(model, config, False), context=32).logits(IDS)
    got = amk_core.load(model, context=32, weights=config).logits(IDS)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", [n for n in _native.cpu_isas() if n != "auto"])
@pytest.mark.parametrize("weights", ["int8", "int8-g64", "int4-g32-min", "int4-g128", "int4-g64-zero-bf16"])
def test_instruction_sets_and_one_row_or_several_give_equal_bits(isa: str, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama(tie_word_embeddings=False, vocab_size=101, **WIDE)
    want = amk_core.load(dequantised(model, QuantConfig.parse(weights), False), context=32).logits(IDS)
    monkeypatch.setenv("AMK_ISA", isa)
    for chunk in (1, 3, 16):
        got = amk_core.load(model, context=32, weights=weights, chunk=chunk, queues=2).logits(IDS)
        assert got.tobytes() == want.tobytes(), (isa, chunk)


@pytest.mark.parametrize("weights", ["int4-g32", "int8-a8,head=int8-g32-a8"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_schedules_and_batches_give_equal_tokens_and_bits(mode: Any, weights: str) -> None:
    model = make_llama(intermediate_size=46)
    one = amk_core.load(model, mode, queues=1, context=64, weights=weights)
    logits, tokens = one.logits(IDS), one.generate([IDS], 12, stop_ids=[])[0].tokens
    for settings in (
        {"queues": 3, "config": ScheduleConfig(row_align=2, tiles_per_queue=3, placement="strided", fuse_qkv=False)},
        {"queues": 2, "batch": 3, "config": ScheduleConfig(fuse_combine=False, fuse_argmax=False, dependencies="head")},
        {"queues": 2, "config": ScheduleConfig(handoff="tagged")},
    ):
        other = amk_core.load(model, mode, context=64, weights=weights, **settings)  # type: ignore[arg-type]
        prompts = [IDS] * settings.get("batch", 1)  # type: ignore[operator]
        assert all(g.tokens == tokens for g in other.generate(prompts, 12, stop_ids=[]))
        assert other.logits(IDS).tobytes() == logits.tobytes()


@pytest.mark.parametrize("text", ["int8,head=int8", "int4-g32,head=stored", "int4-g32-min,head=int8-g32,embed=head"])
def test_a_tied_head_and_the_choice_of_head_and_embedding(text: str) -> None:
    model = make_llama(tie_word_embeddings=True)
    config = QuantConfig.parse(text)
    want = amk_core.load(dequantised(model, config, True), context=32).logits(IDS)
    got = amk_core.load(model, context=32, weights=text).logits(IDS)
    assert got.tobytes() == want.tobytes()


def test_fast_mode_rounds_activations_and_not_the_weights() -> None:
    """Against float64 on the de-quantised model: no further than the rounding of activations explains."""
    from checkpoints import hf_logits

    model = make_llama()
    exact = hf_logits(dequantised(model, QuantConfig.parse("int8,head=int8"), False))
    got = amk_core.load(model, "fast", context=32, weights="int8,head=int8").logits(IDS)
    assert np.abs(got - exact).max() < 0.03 * np.abs(exact).max()


def test_activations_of_8_bits_cost_a_little_and_no_bytes() -> None:
    model = make_llama()
    near = amk_core.load(model, context=32, weights="int8,head=int8")
    far = amk_core.load(model, context=32, weights="int8-a8,head=int8-a8")
    assert far.tape.data.tobytes() == near.tape.data.tobytes(), "packed as int8"
    want, got = near.logits(IDS), far.logits(IDS)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert 1e-4 < error < 0.1


def test_the_tape_holds_the_packed_bytes_and_nothing_else() -> None:
    model = make_llama(tie_word_embeddings=False)
    loaded = amk_core.load(model, context=32, weights="int4-g32,head=int8", queues=1)
    assert loaded.quantised is not None
    # one queue, one tile a weight: groups of 8 rows, K padded to 128 (64 of the head), and their scales
    rows = [100, 36, 90, 36]  # qkv, o, gate_up, down
    int4, head = sum(-(-n // 8) * (512 + 4 * 16) for n in rows) * 2, -(-101 // 8) * (512 + 16)
    assert loaded.tape.layout.bytes == int4 + head + (-head) % 64
    assert loaded.schedules["decode"].meta["weights"] == "int4-g32,head=int8"
    assert {b.dtype for b in loaded.schedules["decode"].buffers if b.kind.name == "WEIGHT"} == {"int4-g32", "int8"}


def test_what_cannot_run_is_refused_by_name() -> None:
    model = make_llama()
    with pytest.raises(QuantError, match="there is no format 'int5'"):
        amk_core.load(model, context=32, weights="int5")
    other = make_llama(vocab_size=77)
    taken = amk_core.load(other, context=32, weights="int8").quantised
    with pytest.raises(RequestError, match="weights are those of"):
        amk_core.load(model, context=32, weights=taken)


def test_a_weight_that_is_not_finite_is_refused_before_anything_runs() -> None:
    import torch

    model = make_llama(tie_word_embeddings=False)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(ValueError, match="up_proj"):
        amk_core.load(model, context=32, weights="int8")
