"""The CUDA VM on a card: the bits of the CPU VM in exact mode, float64 accuracy and schedule-invariant bits in fast mode."""

from __future__ import annotations

from typing import Any

import pytest

from amk_bench.device_cases import CASES, Case, bits, relative, run_cpu, run_cuda, run_reference
from amk_core.vm.driver import library_present

pytestmark = pytest.mark.skipif(not library_present(), reason="needs an NVIDIA card: no libcuda.so.1 on this machine")


@pytest.fixture(scope="module")
def device() -> Any:
    from amk_core.vm.driver import CudaError, Device

    try:
        return Device()
    except CudaError as e:
        pytest.skip(str(e))


def named(prefix: str) -> list[Case]:
    return [c for c in CASES if c.name.startswith(prefix)]


@pytest.mark.parametrize("case", named("exact"), ids=lambda c: c.name)
def test_exact_gives_the_bits_of_the_cpu_vm(case: Case, device: Any) -> None:
    want = run_cpu(case)
    for queues, config in case.variants:
        got = run_cuda(case, min(queues, device.facts.sms), config, device)
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in want.items()}


@pytest.mark.parametrize("case", named("fast-small"), ids=lambda c: c.name)
def test_fast_is_as_accurate_as_the_cpu_vm_and_its_bits_do_not_depend_on_the_schedule(case: Case, device: Any) -> None:
    cpu = run_cpu(case)
    results = [run_cuda(case, min(queues, device.facts.sms), config, device) for queues, config in case.variants]
    for other in results[1:]:
        assert {k: bits(v) for k, v in other.items()} == {k: bits(v) for k, v in results[0].items()}
    limit = 1.5 * relative(cpu["logits"], run_reference(case, cpu)["logits"])
    assert relative(results[0]["logits"], run_reference(case, results[0])["logits"]) <= limit
