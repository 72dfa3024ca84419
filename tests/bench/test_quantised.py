"""Claims about quantised weights in torch and the peers that multiply with them; on the CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk_core.graph import ModelGraph, RopeSpec
from amk_core.quant import quantise
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError, QuantFormat

torch = pytest.importorskip("torch")
import amk_core  # noqa: E402
from amk_bench import arena as arenas  # noqa: E402
from amk_bench.baselines import registry  # noqa: E402
from amk_bench.baselines.engines import WeightOnlyEngine  # noqa: E402
from amk_bench.baselines.hf import HfEager  # noqa: E402
from amk_bench.baselines.products import NoProduct, int4  # noqa: E402
from amk_bench.baselines.quantised import Quantised, TorchMatrix  # noqa: E402
from amk_bench.baselines.reference import Reference, check_logits  # noqa: E402
from amk_bench.baselines.show import lines  # noqa: E402
from amk_bench.baselines.weights import random_weights  # noqa: E402
from amk_bench.cell import Cell  # noqa: E402
from amk_bench.floor import step_bytes  # noqa: E402
from amk_bench.ours import Ours  # noqa: E402
from amk_bench.results import LatencyRecord, ParityRecord, validate  # noqa: E402
from amk_bench.rivals import checkpoints, serving  # noqa: E402
from amk_core.importer import open_model  # noqa: E402
from amk_core.quant.checkpoint import open_quantised  # noqa: E402

ROPE = RopeSpec("llama3", 5e5, 16, 256, 8.0, 64)
GRAPH = ModelGraph("tiny", "llama", 304, 64, 128, 2, 4, 2, 16, 1e-5, True, 256, ROPE, 0.25)
ROWS = 96
FORMATS = ("int8", "int8-g32", "int8-g64-bf16", "int4-g32", "int4-g64-zero-bf16", "int4-g32-min")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("k", [128, 72])
def test_rounding_on_a_device_gives_the_codes_of_ours(name: str, k: int) -> None:
    w = np.random.default_rng(1).normal(size=(24, k)).astype(np.float32)
    w[3], w[5, :32], w[7] = 0.0, 0.25, np.linspace(1, 2, k)
    fmt = QuantFormat.parse(name)
    made, want = TorchMatrix.round(torch.from_numpy(w), fmt, "w"), quantise(w, fmt, "w")
    assert made.numpy().same(want)
    assert np.array_equal(made.dequantise().numpy(), want.dequantise())
    assert made.rows(8, 16).numpy().same(want.take(slice(8, 16)))
    w[2, 3] = np.inf
    with pytest.raises(QuantError, match="w holds values that are not finite"):
        TorchMatrix.round(torch.from_numpy(w), fmt, "w")


@pytest.mark.parametrize("name", FORMATS)
def test_a_product_multiplies_with_what_the_codes_stand_for(name: str) -> None:
    w, x = torch.randn(32, 128, generator=torch.Generator().manual_seed(2)), torch.randn(3, 128)
    made = TorchMatrix.round(w, QuantFormat.parse(name), "w")
    want = x @ made.dequantise().T
    seen = made.product(torch.float32).product(x)
    # scales and offsets of 4 bits stand in the type of the activations: nothing is rounded here
    assert (seen - want).abs().max() <= 2e-5 * want.abs().max()


def test_what_torch_has_no_product_for_is_refused_by_name() -> None:
    def quantised(config: str, **sizes: int) -> Quantised:
        graph = dataclasses.replace(GRAPH, **sizes)
        return Quantised(random_weights(graph, 1, "cpu", torch.float32), QuantConfig.parse(config))

    with pytest.raises(NoProduct, match=r"L0\.down: K = 96 ends in a shorter group"):
        quantised("int8-g64", intermediate_size=96).weight_only()
    with pytest.raises(NoProduct, match=r"L0\.qkv: a matrix of 128 x 64 in groups of 128; required are"):
        quantised("int4-g128").weight_only()
    with pytest.raises(NoProduct, match=r"L0\.down: a matrix of 64 x 48 .* K of 32"):
        quantised("int4-g32", intermediate_size=48).weight_only()
    with pytest.raises(QuantError, match="embed=head; required is embed=stored"):
        quantised("int8,embed=head")
    assert int4(torch.zeros(16, 64, dtype=torch.uint8), 32, torch.ones(16, 2), torch.zeros(16, 2), torch.float32).group == 32


def held(config: str, seed: int = 1) -> tuple[Quantised, Any, Reference]:
    """Quantised weights, the bf16 model of what they stand for, and the reference on that in float32."""
    torch.set_num_threads(1)
    live, shared, origin = arenas.quantised_model(random_weights(GRAPH, seed, "cpu", torch.bfloat16), QuantConfig.parse(config))
    assert origin.endswith(f"rounded to {QuantConfig.parse(config)}")
    quantised = shared["quantised"]
    return quantised, live, Reference(HfEager(live, 1, "fp32", "cpu", True, quantised.exact()), HfEager(live, 1, "bf16"))


@pytest.mark.parametrize("config", ["int8", "int8-g32,head=int8-g64", "int4-g32-bf16", "int4-g64-zero,head=stored"])
def test_a_peer_and_ours_hold_the_logits_of_one_reference(config: str) -> None:
    quantised, live, reference = held(config)
    text = np.random.default_rng(7).integers(0, GRAPH.vocab_size, 20)
    cell = Cell("toy", "tiny", "fast", 2, tuple(text.tolist()), tuple(range(GRAPH.vocab_size)))
    forced, wanted, limits = reference.enter(cell, 3)
    assert limits.hf_error > 0
    for mode in ("eager", "compile"):
        made = WeightOnlyEngine(quantised, quantised.config.layers.bits, 2, ROWS, mode)  # type: ignore[arg-type]
        made.backend = "eager"
        seen = check_logits(made, cell, forced, wanted, limits)
        assert seen.passed, (mode, seen)
    assert made.precision == str(quantised.config)
    assert len(made.constants()) > len(made.weights.tensors)
    loaded = amk_core.load(live, "fast", queues=2, batch=2, context=ROWS, weights=quantised.ours(open_model(live).weights.get))
    ours = Ours(loaded)
    assert ours.precision == made.precision
    assert check_logits(ours, cell, forced, wanted, limits).passed
    other = WeightOnlyEngine(held(config, 2)[0], quantised.config.layers.bits, 2, ROWS, "eager")
    assert not check_logits(other, cell, forced, wanted, limits).passed, "other weights"


def test_a_float32_peer_has_the_logits_of_the_dequantised_values() -> None:
    quantised = Quantised(random_weights(GRAPH, 1, "cpu", torch.float32), QuantConfig.parse("int8,head=int8-g32"))
    live = arenas.quantised_model(random_weights(GRAPH, 1, "cpu", torch.float32), quantised.config)[0]
    peer, full = WeightOnlyEngine(quantised, 8, 1, ROWS, "eager"), HfEager(live, 1)
    ids = list(range(30, 60))
    want = full.logits(ids)
    assert np.abs(peer.logits(ids) - want).max() <= 5e-6 * np.abs(want).max()
    peer.prepare(ids[:20], 1, 12)
    full.prepare(ids[:20], 1, 12)
    np.testing.assert_allclose(peer.trace([[i] for i in ids[20:24]])[:, 0], want[20:24], atol=5e-6 * np.abs(want).max())


def test_a_peer_is_made_for_its_own_bits_or_says_why_not() -> None:
    quantised, live, _ = held("int8")
    here = registry.Setting("tiny", live, "cpu", "bf16", ROWS, shared={"quantised": quantised})
    with pytest.raises(registry.BaselineUnavailable, match="a CUDA graph needs a GPU"):
        registry.make("torch-int8", here)
    with pytest.raises(registry.BaselineUnavailable, match="torch int4 weight-only: the layers of this cell are int8"):
        registry.make("torch-int4", here)
    with pytest.raises(registry.BaselineUnavailable, match="the weights of this cell are not quantised"):
        registry.make("torch-int8", dataclasses.replace(here, shared={}))
    narrow = Quantised(random_weights(GRAPH, 1, "cpu", torch.bfloat16), QuantConfig.parse("int4-g128"))
    with pytest.raises(registry.BaselineUnavailable, match=r"torch int4 weight-only: L0\.qkv: a matrix of 128 x 64"):
        registry.make("torch-int4", dataclasses.replace(here, shared={"quantised": narrow}))
    assert not set(registry.QUANTISED) & set(registry.names()), "cells of other weights have no row for them"


def test_on_a_card_ours_runs_on_the_codes_and_the_reference_on_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """:func:`amk_bench.arena.on_card`, whose card is the CPU."""
    real, wanted = amk_core.load, QuantConfig.parse("int4-g32,head=int8")

    def load(model: Any, backend: str, **told: Any) -> Any:
        assert backend == "cuda"
        loaded = real(model, queues=2, **told)
        loaded._card = SimpleNamespace(device=None)
        return loaded

    def eager(source: Any, threads: int, precision: str, device: str, *rest: Any) -> HfEager:
        assert device == "cuda"
        return HfEager(source, threads, precision, "cpu", *rest)

    monkeypatch.setattr(amk_core, "load", load)
    monkeypatch.setattr(arenas, "HfEager", eager)
    monkeypatch.setattr(arenas, "_room", lambda *sizes: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "toy")
    for name in ("CudaClock", "DriverEvents", "TorchEvents"):
        monkeypatch.setattr(f"amk_bench.cuda_clock.{name}", lambda *given: None)
    live, shared, origin = arenas.quantised_model(random_weights(GRAPH, 1, "cpu", torch.bfloat16), wanted)
    told: dict[str, Any] = {"model": "tiny", "text": list(range(60)), "rows": ROWS, "seed": 3, "threads": 1, "origin": origin}
    here = arenas.on_card(live, GRAPH, "fast", shared=shared, **told)
    record = here.parity(here.ours, 16)
    assert record is not None
    assert record.passed, record
    assert (record.value or 1) < 0.5 * (record.limit or 0), "weights that are not rounded to bf16 leave room"
    near, far = here.cell(16, "torch-int4"), here.cell(16, "fused-compile")
    assert near.ours_bytes == near.baseline_bytes == far.ours_bytes < far.baseline_bytes
    assert far.baseline_bytes == step_bytes(GRAPH, 2, 16, 1, 2)
    other = arenas.on_card(live, GRAPH, "fast", shared={"weights": shared["weights"]}, **told)
    assert other.ours.precision == "bf16"
    assert other.cell(16).ours_bytes == far.baseline_bytes


def test_a_step_reads_codes_and_scales() -> None:
    quantised, _, _ = held("int4-g32-zero,head=int8")
    matrices = 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128)
    norms, row = 5 * 64 * 2, 64 * 2
    assert quantised.step_bytes(2) == matrices // 2 + matrices // 32 * 4 + 304 * 64 + 304 * 2 + norms + row
    assert quantised.step_bytes(2) < step_bytes(quantised.graph, 2)


def test_files_of_results_are_shown_as_one_table() -> None:
    folder = Path(__file__).parents[2] / "reports" / "data" / "device"
    files = [folder / f"2026-11-30-h200-baselines-{model}.json" for model in ("llama-3.2-1b", "smollm2-135m")]
    records = [r for file in files for r in validate(json.loads(file.read_text("utf-8")))]
    shown = lines([*files, folder / "missing.json"])
    assert sum(line.startswith("| WIN ") for line in shown) == sum(isinstance(r, LatencyRecord) for r in records)
    gates = [r for r in records if isinstance(r, ParityRecord)]
    assert f"{len(gates)} of {len(gates)} parity claims hold" in shown
    assert lines([folder / "missing.json"])[0] == "no cell was timed"


@pytest.mark.parametrize("config", ["int4-g32-bf16,head=stored", "int8-g64,head=int8", "int8,head=stored"])
def test_a_gptq_checkpoint_has_the_codes_and_scales_it_was_made_from(config: str, tmp_path: Path) -> None:
    """Read back by the importer, which was written from the layout's description."""
    quantised, live, _ = held(config)
    folder = checkpoints.gptq_folder(live, quantised, tmp_path / "gptq")
    read = open_quantised(folder)
    wanted = {n: m for n, m in quantised.parts().items() if n != "head"}
    assert read.packed.keys() == wanted.keys()
    for name, m in wanted.items():
        got = read.packed[name]()
        assert np.array_equal(got.dequantise(), m.dequantise().numpy()), name
    seen = np.asarray(read.imported.weights.get("head")).astype(np.float32)
    assert np.array_equal(seen, live.lm_head.weight.float().numpy())


def test_what_gptq_or_a_card_cannot_hold_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quantised, live, _ = held("int4-g32-zero")
    with pytest.raises(
        checkpoints.NoLayout, match=r"model\.layers\.0\.self_attn\.q_proj: 64 x 64 in int4-g32-zero; required are a sym"
    ):
        checkpoints.gptq_folder(live, quantised, tmp_path)
    here = registry.Setting("tiny", live, "cpu", "bf16", ROWS, shared={"quantised": quantised, "weights": quantised.stored()})
    with pytest.raises(registry.BaselineUnavailable, match="vLLM GPTQ is measured on a card in bf16, not on cpu"):
        registry.make("vllm-gptq", here)
    with pytest.raises(registry.BaselineUnavailable, match="the weights of this cell are not quantised"):
        registry.make("vllm-gptq", dataclasses.replace(here, shared={}))
    monkeypatch.setattr(serving, "vllm_version", lambda python, env: "1")
    monkeypatch.setattr(serving, "_share", lambda graph, kv: 0.5)
    shared = {**here.shared, "hf bf16 cuda": live}
    with pytest.raises(registry.BaselineUnavailable, match=r"vLLM GPTQ: model\.layers\.0"):
        registry.make("vllm-gptq", dataclasses.replace(here, device="cuda", shared=shared))
    quantised, live, _ = held("int4-g32-bf16,head=stored")
    shared = {"quantised": quantised, "weights": quantised.stored(), "hf bf16 cuda": live}
    monkeypatch.setattr(serving, "_fit", lambda share: True)
    made = registry.make("vllm-gptq", registry.Setting("tiny", live, "cuda", "bf16", ROWS, shared=shared))
    assert made.precision == "int4-g32-bf16,head=stored"
    assert made.name == "vLLM GPTQ"
