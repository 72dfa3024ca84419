"""Programs for ranks on a card, against the float64 reference and the CPU VM; and what of them runs without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import run_cpu
from amk_bench.rank_check import CASES, RankCase, check, make_rank_vm, named, run_ranks
from amk_core.schedule import ops, validate
from amk_core.vm import VmFault
from amk_core.vm.driver import library_present

on_a_card = pytest.mark.skipif(
    not library_present(),
    reason="needs an NVIDIA card: no libcuda.so.1 on this machine; there run: pytest tests/vm/test_cuda_ranks.py",
)


@pytest.fixture(scope="module")
def device(device: Any) -> Any:
    if int(device.facts.arch[3:]) < 90:
        pytest.skip(f"clusters need sm_90 or later, this card is {device.facts.arch}")
    return device


@on_a_card
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_ranks_are_as_accurate_as_the_cpu_vm_and_repeat_their_bits(case: RankCase, device: Any) -> None:
    assert check(case, device) == ""


@on_a_card
def test_a_cluster_that_waits_for_ever_ends_in_a_fault_report(device: Any) -> None:
    case = CASES[3]
    vm = make_rank_vm(case, device)
    tasks = vm._program.tasks.copy()
    tasks["par"][np.flatnonzero(tasks["op"] == ops.CODES["gate_up"])[0], 21] += 4  # bytes that nobody sends
    vm._kept["tasks"].upload(tasks)
    vm.launch(case.steps, case.variables, spin_timeout_s=0.5)
    with pytest.raises(VmFault, match=r"waits at barrier .* and nothing moves"):
        vm.wait()
    vm._kept["tasks"].upload(vm._program.tasks)
    assert np.isfinite(run_ranks(case, vm)["logits"]).all()


@pytest.mark.parametrize("case", [c for c in CASES if c.model == "small" and c.ranks.queues <= 6], ids=lambda c: c.name)
def test_the_cases_are_certified_and_the_cpu_vm_runs_them(case: RankCase) -> None:
    assert validate(case.schedule(0, {}, "sm_90")).accepted
    assert named(case.name) == case
    assert 0 < case.distance(run_cpu(case.on_cpu)) < 2e-2
