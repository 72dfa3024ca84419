"""GPTQ and the calibration of a whole model: where they must equal rounding, what they must gain, and that they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoints import make_llama

import amk_core
from amk_core.importer import open_model
from amk_core.quant import QuantError, QuantFormat, gptq, quantise
from amk_core.quant.calibrate import Calibration, calibrate
from amk_core.quant.config import QuantConfig

FORMATS = [QuantFormat(8, 0), QuantFormat(4, 32), QuantFormat(4, 64, "zero"), QuantFormat(4, 32, "min")]


def inputs(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Correlated inputs of very different energies, as activations are."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k // 4)) @ rng.normal(size=(k // 4, k)) * rng.lognormal(0, 1, k) + 0.1 * rng.normal(size=(n, k))


def weights(rows: int, k: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_with_independent_inputs_it_is_rounding_to_nearest(fmt: QuantFormat) -> None:
    """Nothing can be made up for where no two inputs go together, however large each is."""
    w = weights(9, 150)
    hessian = np.diag(np.random.default_rng(2).uniform(0.1, 10, 150))
    got = gptq.quantise(w, hessian, fmt, config=gptq.GptqConfig(search=False))
    assert got.same(quantise(w, fmt))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_the_error_on_the_inputs_is_well_below_that_of_rounding(fmt: QuantFormat) -> None:
    w, x = weights(24, 192), inputs(400, 192)
    hessian = x.T @ x

    def error(m: Any) -> float:
        d = m.dequantise().astype(np.float64) - w
        return float(np.einsum("ik,kl,il->", d, hessian, d))

    assert error(gptq.quantise(w, hessian, fmt)) < 0.5 * error(quantise(w, fmt))


def test_it_repeats_and_inputs_that_are_always_zero_are_no_trouble() -> None:
    w, x = weights(8, 128), inputs(200, 128)
    x[:, 5] = 0
    one, two = (gptq.quantise(w, x.T @ x, FORMATS[1]) for _ in range(2))
    assert one.same(two)
    assert np.isfinite(gptq.quantise(w, np.zeros((128, 128)), FORMATS[1]).dequantise()).all()


def test_what_it_cannot_use_is_refused() -> None:
    w = weights(4, 64)
    with pytest.raises(QuantError, match="down has K = 64, the Hessian"):
        gptq.quantise(w, np.eye(63), FORMATS[0], "down")
    with pytest.raises(QuantError, match="the Hessian"):
        gptq.quantise(w, np.full((64, 64), np.nan), FORMATS[0])
    w[1, 2] = np.inf
    with pytest.raises(QuantError, match="row 1, column 2"):
        gptq.quantise(w, np.eye(64), FORMATS[0])


# -- a whole model
def model() -> Any:
    return make_llama(tie_word_embeddings=False, vocab_size=120, hidden_size=96, intermediate_size=160, head_dim=16)


def ids(n: int = 6, length: int = 48) -> list[list[int]]:
    return np.random.default_rng(0).integers(0, 120, (n, length)).tolist()


def test_its_own_forward_pass_is_the_model() -> None:
    """In 8 bits the quantised stream is near, and the stored one is HuggingFace's."""
    import torch

    from amk_core.quant.calibrate import _Calibrator

    hf = model()
    imported = open_model(hf)
    config, get = QuantConfig.parse("int8,head=stored"), imported.weights.get
    run = _Calibrator(imported.graph, get, config, np.asarray(ids(2)), Calibration(), lambda text: None)
    with torch.no_grad():
        run.run()
        want = hf.model(torch.tensor(ids(2)), output_hidden_states=True)
        got = run.norm(run.exact, hf.model.norm.weight)
    assert torch.allclose(got, want.last_hidden_state, atol=2e-4 * float(want.last_hidden_state.abs().max()))
    assert float((run.rounded - run.exact).norm() / run.exact.norm()) < 0.05


def test_a_calibrated_model_is_nearer_than_a_rounded_one_on_other_ids_and_repeats() -> None:
    hf, config = model(), QuantConfig.parse("int4-g32-zero,head=int8")
    imported = open_model(hf)
    one, two = (calibrate(imported.graph, imported.weights.get, config, ids()) for _ in range(2))
    names = [n for n in imported.graph.weight_shapes() if one.format_of(n) is not None]
    assert all(one.matrix(n).same(two.matrix(n)) for n in names)
    other = np.random.default_rng(9).integers(0, 120, 40).tolist()
    want = amk_core.load(hf, context=64).logits(other)
    far = {
        name: float(np.square(amk_core.load(hf, context=64, weights=w).logits(other) - want).mean())
        for name, w in (("rounded", config), ("calibrated", one))
    }
    assert far["calibrated"] < far["rounded"]


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ([], "lengths"),
        ([[1, 2], [1, 2, 3]], "lengths"),
        ([[1]], "lengths"),
        ([[1, 120]], "ids from 1 to 120"),
        ([[1] * 500], "lengths"),
    ],
)
def test_ids_that_cannot_be_used_are_refused(sequences: list[list[int]], words: str) -> None:
    imported = open_model(model())
    with pytest.raises(QuantError, match=words):
        calibrate(imported.graph, imported.weights.get, QuantConfig.parse("int8"), sequences)
