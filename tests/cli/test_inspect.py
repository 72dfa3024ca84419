"""``amk inspect``: the numbers of public models, the schedule's counts, and models that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk_core import cli
from amk_core.commands import inspect
from amk_core.graph import GRAPH_SHAPES


def inspected(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["inspect", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


# Parameters as their publishers count them; KV bytes a token: 2 * layers * KV heads * head size * 4.
@pytest.mark.parametrize(
    ("model", "parameters", "kv"),
    [
        ("smollm2-135m", 134_515_008, 2 * 30 * 3 * 64 * 4),
        ("tinyllama-1.1b", 1_100_048_384, 2 * 22 * 4 * 64 * 4),
        ("llama-3.2-1b", 1_235_814_400, 2 * 16 * 8 * 64 * 4),
        ("llama-3.1-8b", 8_030_261_248, 2 * 32 * 8 * 128 * 4),
    ],
)
def test_sizes_of_public_models(model: str, parameters: int, kv: int, capsys: pytest.CaptureFixture[str]) -> None:
    graph = inspected(capsys, model)["graph"]
    assert graph["parameters"] == parameters
    assert graph["weight_bytes"] == {"exact": 4 * parameters, "fast": 2 * parameters}
    assert graph["kv_bytes_per_token"] == {"exact": kv, "fast": kv // 2}


def test_schedule_counts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    s = inspected(capsys, "smollm2-135m", "--schedule", "--queues", "3")["schedule"]
    assert s["accepted"]
    assert s["findings"] == []
    assert sum(s["tasks_per_op"].values()) == s["tasks"]
    assert s["queues"] == 3
    assert s["tasks_per_op"]["gate_up"] == 30 * 3  # a tile a queue, 30 layers
    # every layer matrix and the head is on the tape once: all parameters but the 61 norms and, tied, the embedding itself
    assert s["tape_bytes"] == 4 * (134_515_008 - 61 * 576)


def test_a_rejected_schedule_answers_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = inspect.describe_schedule
    monkeypatch.setattr(inspect, "describe_schedule", lambda s: real(s) | {"accepted": False, "findings": ["RACE WAR h"]})
    assert cli.main(["inspect", "smollm2-135m", "--schedule", "--queues", "1"]) == 1
    out = capsys.readouterr().out
    assert "REJECTED, 1 findings" in out
    assert "RACE WAR h" in out


def test_the_page_has_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "smollm2-135m", "--schedule", "--queues", "2"]) == 0
    page = capsys.readouterr().out
    for text in (
        "134 515 008",
        "9 query heads on 3 KV heads (group 3) of 64",
        "538.1 MB (f32)",
        "tied",
        "5 a layer",
        "accepted in",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "mixtral"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": True}, "attention_bias"),
    ],
)
def test_models_are_refused_by_name(config: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = GRAPH_SHAPES["smollm2-135m"]
    sizes = {
        "vocab_size": g.vocab_size, "hidden_size": g.hidden_size, "intermediate_size": g.intermediate_size,
        "num_hidden_layers": 1, "num_attention_heads": g.n_heads, "num_key_value_heads": g.n_kv_heads, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    assert cli.main(["inspect", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("model", ["no-such-model", "/no/such/folder"])
def test_an_unknown_model_says_what_is_known(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", model]) == 2
    assert "smollm2-135m" in capsys.readouterr().err
