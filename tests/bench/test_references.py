"""HuggingFace in float64, a layer at a time: what a float64 copy of the whole model gives, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest

from amk_bench.baselines.hf import _float64_copy
from amk_bench.references import in_float64, rows_of

torch = pytest.importorskip("torch")


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request: Any) -> Any:
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=request.param,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def test_it_is_the_float64_copy_and_leaves_no_trace(model: Any) -> None:
    ids = list(range(3, 40))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    low = rows_of(model, ids)
    want = rows_of(_float64_copy(model), ids)
    with in_float64(model) as wide:
        got, some = rows_of(wide, ids), rows_of(wide, ids, [0, 7, 36])
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(some, want[[0, 7, 36]], rtol=0, atol=1e-12)
    assert (got - low).abs().max() > 1e-4
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
    assert torch.equal(rows_of(model, ids), low)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_error_inside_leaves_the_model_as_it_was(model: Any) -> None:
    with pytest.raises(RuntimeError, match="stop"), in_float64(model):
        raise RuntimeError("stop")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
