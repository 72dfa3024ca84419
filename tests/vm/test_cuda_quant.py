"""Quantised weights on a card: bits of `exact`, accuracy of `fast`, batches.  Seeded random weights; no checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import QUANT_BATCHES, QUANT_CASES, Alone, Case, bits, relative, run_cpu, run_cuda, run_reference
from amk_core.vm.driver import library_present

pytestmark = pytest.mark.skipif(
    not library_present(),
    reason="needs an NVIDIA card: no libcuda.so.1 on this machine; there run: pytest tests/vm/test_cuda_quant.py",
)


@pytest.fixture(scope="module")
def device() -> Any:
    from amk_core.vm.driver import CudaError, Device

    try:
        return Device()
    except CudaError as e:
        pytest.skip(str(e))


def of_mode(mode: str) -> list[Case]:
    return [c for c in QUANT_CASES if c.mode == mode]


@pytest.mark.parametrize("case", of_mode("exact"), ids=lambda c: c.name)
def test_exact_gives_the_bits_of_the_cpu_vm(case: Case, device: Any) -> None:
    want = run_cpu(case)
    for queues, config in case.variants:
        got = run_cuda(case, min(queues, device.facts.sms), config, device)
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in want.items()}


@pytest.mark.parametrize("case", of_mode("fast"), ids=lambda c: c.name)
def test_fast_is_as_accurate_as_the_cpu_vm_and_its_bits_do_not_depend_on_the_schedule(case: Case, device: Any) -> None:
    cpu = run_cpu(case)
    results = [run_cuda(case, min(queues, device.facts.sms), config, device) for queues, config in case.variants]
    for other in results[1:]:
        assert {k: bits(v) for k, v in other.items()} == {k: bits(v) for k, v in results[0].items()}
    limit = 1.5 * relative(cpu["logits"], run_reference(case, cpu)["logits"])
    assert relative(results[0]["logits"], run_reference(case, results[0])["logits"]) <= limit


@pytest.mark.parametrize("whole", QUANT_BATCHES, ids=lambda c: c.name)
def test_a_sequence_has_the_same_bits_alone_and_beside_others(whole: Case, device: Any) -> None:
    got = run_cuda(whole, device.facts.sms, {}, device)
    for seq in {0, whole.batch // 2, whole.batch - 1}:
        alone = run_cuda(Alone.of(whole, seq), device.facts.sms, {}, device)
        assert bits(got["logits"][seq]) == bits(alone["logits"][0])
        assert np.array_equal(got["out"][:, seq], alone["out"][:, 0])


def test_quantised_weights_are_not_those_they_come_from(device: Any) -> None:
    case = next(c for c in of_mode("fast") if c.weights.startswith("int4-g128"))
    stored = run_cuda(dataclasses.replace(case, weights=""), device.facts.sms, {}, device)
    assert relative(run_cuda(case, device.facts.sms, {}, device)["logits"], stored["logits"]) > 1e-2
