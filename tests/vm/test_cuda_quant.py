"""Quantised weights on a card: batches, and that they are used.  Bits and accuracy: test_cuda_device.py.  Seeded random weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import QUANT_BATCHES, QUANT_CASES, Alone, Case, bits, relative, run_cuda
from amk_core.vm.driver import library_present

pytestmark = pytest.mark.skipif(
    not library_present(),
    reason="needs an NVIDIA card: no libcuda.so.1 on this machine; there run: pytest tests/vm/test_cuda_quant.py",
)


@pytest.mark.parametrize("whole", QUANT_BATCHES, ids=lambda c: c.name)
def test_a_sequence_has_the_same_bits_alone_and_beside_others(whole: Case, device: Any) -> None:
    got = run_cuda(whole, device.facts.sms, {}, device)
    for seq in {0, whole.batch // 2, whole.batch - 1}:
        alone = run_cuda(Alone.of(whole, seq), device.facts.sms, {}, device)
        assert bits(got["logits"][seq]) == bits(alone["logits"][0])
        assert np.array_equal(got["out"][:, seq], alone["out"][:, 0])


def test_quantised_weights_are_not_those_they_come_from(device: Any) -> None:
    case = next(c for c in QUANT_CASES if c.mode == "fast" and c.weights.startswith("int4-g128"))
    stored = run_cuda(dataclasses.replace(case, weights=""), device.facts.sms, {}, device)
    assert relative(run_cuda(case, device.facts.sms, {}, device)["logits"], stored["logits"]) > 1e-2


def test_activations_of_8_bits_a8_are_not_those_of_21(device: Any) -> None:
    case = next(c for c in QUANT_CASES if c.name == "fast-small-int8-a8")
    finer = run_cuda(dataclasses.replace(case, weights="int8,head=int8"), device.facts.sms, {}, device)
    assert relative(run_cuda(case, device.facts.sms, {}, device)["logits"], finer["logits"]) > 1e-3
