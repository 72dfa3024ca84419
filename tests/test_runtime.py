"""load, generate and logits on a small random Llama: against HuggingFace, and the same bits for every way to run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import amk_core
from amk_core.programs import RequestError, ScheduleRejected
from amk_core.runtime import Model
from amk_core.schedule.config import ScheduleConfig

PROMPTS = [[5, 17, 3], [9], [250, 4, 4, 8, 11, 90, 33, 2, 1, 77, 60, 19, 20, 21, 22, 23, 24, 100]]
NEW = 12
Load = Callable[..., Model]


@pytest.fixture(scope="module")
def hf() -> Any:
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=301, hidden_size=72, intermediate_size=136, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=640, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
    return model


@pytest.fixture
def load(hf: Any) -> Load:
    def make(**options: Any) -> Model:
        return amk_core.load(hf, **{"context": 256, "queues": 2, **options})

    return make


def hf_logits(hf: Any, ids: list[int]) -> npt.NDArray[np.float64]:
    import torch

    with torch.no_grad():
        out: npt.NDArray[np.float64] = hf(torch.tensor([ids])).logits[0].double().numpy()
    return out


@pytest.fixture(scope="module")
def reference(hf: Any) -> list[list[int]]:
    """Continuations by the defaults: one sequence at a time."""
    m = amk_core.load(hf, context=256, queues=2)
    return [m.generate(p, NEW, stop_ids=[])[0].tokens for p in PROMPTS]


def test_logits_match_huggingface(hf: Any, load: Load) -> None:
    ids = [int(x) for x in np.random.default_rng(1).integers(0, 301, 200)]
    want = hf_logits(hf, ids)
    got = load().logits(ids)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 5e-6 * np.abs(want).max()


def test_greedy_matches_huggingface(hf: Any, reference: list[list[int]]) -> None:
    for prompt, tokens in zip(PROMPTS, reference, strict=True):
        rows = hf_logits(hf, prompt + tokens[:-1])[len(prompt) - 1 :]
        assert rows.argmax(axis=1).tolist() == tokens


def test_fast_mode_is_close_but_not_equal(load: Load) -> None:
    ids = list(range(40, 90))
    exact, fast = load().logits(ids), load(mode="fast").logits(ids)
    error = np.abs(exact - fast).max() / np.abs(exact).max()
    assert 1e-5 < error < 5e-2


CONFIGS = [
    ScheduleConfig(tiles_per_queue=3),
    ScheduleConfig(row_align=2, placement="strided"),
    ScheduleConfig(placement="blocked", tiles_per_queue=2),
    ScheduleConfig(fuse_qkv=False),
    ScheduleConfig(fuse_combine=False),
    ScheduleConfig(fuse_argmax=False, head_tiles_per_queue=4),
    ScheduleConfig(attn_splits=3, dependencies="head"),
    ScheduleConfig(embed_tiles=2, sampler_queue=1, dependencies="head", fuse_combine=False),
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_no_config_changes_a_bit(load: Load, reference: list[list[int]], config: ScheduleConfig) -> None:
    m = load(config=config)
    assert [g.tokens for g in m.generate(PROMPTS, NEW, stop_ids=[])] == reference
    base = load()
    assert np.array_equal(m.logits(PROMPTS[2]), base.logits(PROMPTS[2]))


GEOMETRIES = [{"queues": 1}, {"queues": 3}, {"queues": 7}, {"batch": 3}, {"batch": 16}, {"chunk": 1}, {"chunk": 7}]


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
def test_no_geometry_changes_a_bit(load: Load, reference: list[list[int]], options: dict[str, int]) -> None:
    m = load(**options)
    assert [g.tokens for g in m.generate(PROMPTS, NEW, stop_ids=[])] == reference
    if "batch" not in options:
        assert np.array_equal(m.logits(PROMPTS[2]), load().logits(PROMPTS[2]))


def test_random_delays_change_nothing(load: Load, reference: list[list[int]]) -> None:
    m = load(queues=3, batch=2)
    for seed in range(3):
        m.perturb_seed = seed
        assert [g.tokens for g in m.generate(PROMPTS, NEW, stop_ids=[])] == reference


def test_a_launch_may_be_longer_than_the_schedule(hf: Any, load: Load) -> None:
    m = load()
    tokens = m.generate([7, 8, 9], 150, stop_ids=[])[0].tokens  # more than one launch of 128 steps
    rows = hf_logits(hf, [7, 8, 9, *tokens[:-1]])[2:]
    margin = np.sort(rows, axis=1)
    sure = margin[:, -1] - margin[:, -2] > 1e-3
    assert sure.mean() > 0.9
    assert (rows.argmax(axis=1) == tokens)[sure].all()


def test_stop_ids_end_a_sequence_and_not_its_neighbours(load: Load, reference: list[list[int]]) -> None:
    stop = reference[0][4]
    cut = [t[: t.index(stop) + 1] if stop in t else t for t in reference]
    m = load(batch=3)
    out = m.generate(PROMPTS, NEW, stop_ids=[stop])
    assert [g.tokens for g in out] == cut
    assert [g.finish for g in out] == ["stop" if stop in t else "length" for t in reference]


def test_sampling_depends_on_seed_and_position_only(load: Load) -> None:
    options: dict[str, Any] = {"temperature": 1.2, "top_k": 50, "top_p": 0.95, "stop_ids": []}
    alone = [load().generate(p, NEW, seed=11 + i, **options)[0].tokens for i, p in enumerate(PROMPTS)]
    together = [g.tokens for g in load(batch=3, queues=3).generate(PROMPTS, NEW, seed=11, **options)]
    assert together == alone
    assert load().generate(PROMPTS[0], NEW, seed=12, **options)[0].tokens != alone[0]


def test_sampled_frequencies_follow_the_distribution(hf: Any, load: Load) -> None:
    temperature, draws = 2.0, 1500
    m = load(batch=16, context=16)
    tokens = [g.tokens[0] for g in m.generate([[5, 17, 3]] * draws, 1, temperature=temperature, seed=0, stop_ids=[])]
    logits = hf_logits(hf, [5, 17, 3])[-1] / temperature
    p = np.exp(logits - logits.max())
    p /= p.sum()
    top = np.argsort(-p)[:5]
    for t in top:
        seen = tokens.count(int(t)) / draws
        assert abs(seen - p[t]) < 5 * np.sqrt(p[t] * (1 - p[t]) / draws) + 1e-9


def test_tokens_stream_in_order(load: Load, reference: list[list[int]]) -> None:
    seen: list[tuple[int, int]] = []
    load(batch=2).generate(PROMPTS, NEW, stop_ids=[], on_token=lambda i, t: seen.append((i, t)))
    assert [[t for i, t in seen if i == k] for k in range(3)] == reference


@pytest.mark.parametrize("batch", [3, 4])
def test_resuming_on_filled_rows_gives_what_generate_gives(load: Load, reference: list[list[int]], batch: int) -> None:
    m = load(batch=batch)
    m.prefill([p[:-1] for p in PROMPTS])
    last, positions = [p[-1] for p in PROMPTS], [len(p) - 1 for p in PROMPTS]
    assert m.resume(last, positions, NEW) == reference
    assert m.resume(last, positions, 3) == [r[:3] for r in reference]


def test_resuming_past_one_launch(hf: Any, load: Load) -> None:
    m = load()
    whole = m.generate(PROMPTS[0], 200, stop_ids=[])[0].tokens
    m.prefill([PROMPTS[0][:-1]])
    assert m.resume([PROMPTS[0][-1]], [len(PROMPTS[0]) - 1], 200) == [whole]


def test_an_interrupted_call_leaves_a_usable_model(load: Load, reference: list[list[int]]) -> None:
    m = load()

    def interrupt(_: int, __: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        m.generate(PROMPTS[0], 100, stop_ids=[], on_token=interrupt)
    assert m.generate(PROMPTS[0], NEW, stop_ids=[])[0].tokens == reference[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate([]), "prompt is empty"),
        (lambda m: m.generate([[1], []]), "prompt 1 is empty"),
        (lambda m: m.generate("text"), "ships no tokenizer"),
        (lambda m: m.generate([1, 301]), "token id 301 is out of range; .* 0 to 300"),
        (lambda m: m.generate([-1]), "token id -1 is out of range"),
        (lambda m: m.generate([1, 2], 255), "more than the context of 256"),
        (lambda m: m.generate([1], 0), "max_new_tokens is 0"),
        (lambda m: m.generate([1], top_p=0.0), "top_p is 0"),
        (lambda m: m.generate([1], temperature=float("nan")), "temperature is nan"),
        (lambda m: m.generate([1], stop_ids=list(range(17))), "at most 16 ids"),
        (lambda m: m.logits([1] * 257), "the context is 256"),
        (lambda m: m.prefill([[1], [2]]), "2 prompts, the model is loaded for 1 to 1"),
        (lambda m: m.prefill([[1] * 256]), "leaves no room in the context of 256"),
        (lambda m: m.prefill([[301]]), "token id 301 is out of range"),
        (lambda m: m.resume([1], [250], 7), "do not fit the context of 256"),
        (lambda m: m.resume([1], [-1], 2), "do not fit"),
        (lambda m: m.resume([1, 2], [0], 2), "2 ids at 1 positions"),
    ],
)
def test_bad_requests_are_named(load: Load, call: Callable[[Model], object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call(load())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 641}, "trained for 640"),
        ({"batch": 17}, "batch is 17"),
        ({"chunk": 0}, "chunk is 0"),
        ({"queues": 5000}, "5000 queues"),
        ({"mode": "int3"}, "mode is 'int3'"),
        ({"backend": "tpu"}, "backend is 'tpu'"),
    ],
)
def test_bad_sizes_are_named(load: Load, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**options).program("prefill")


def test_a_rejected_schedule_never_runs(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    import amk_core.programs as programs

    def drop_a_wait(*args: Any) -> Any:
        s = lower(*args)
        s.columns.wait_t[1] = 0
        return s

    lower = programs.lower
    monkeypatch.setattr(programs, "lower", drop_a_wait)
    with pytest.raises(ScheduleRejected, match="rejected"):
        load()
