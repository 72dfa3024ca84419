"""Footprint conformance of whole lowered programs on the CPU VM; and the check itself notices every kind of lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk_bench.device_cases import Case
from amk_bench.footprints import Contracts, CpuBench, Masks, chosen_tasks, violation
from amk_core.schedule import ops, tables
from amk_core.schedule.ir import Schedule
from amk_core.schedule.pack import Tape, TapeLayout
from amk_core.vm.cpu import CpuVM

CASES = (
    Case("exact-decode", "odd", "exact", batch=3, p0=(0, 5, 130), tokens=(9, 0, 9), steps=2),
    Case("exact-logits", "odd", "exact", "logits", batch=2, chunk=5, p0=(0, 120), tokens=(7, 10), steps=2),
    Case("fast-decode", "small", "fast", batch=3, p0=(0, 5, 130), tokens=(9, 0, 9), steps=2),
    Case("fast-prefill", "small", "fast", "prefill", batch=1, chunk=16, p0=(3,), tokens=(30,), steps=2),
)


def bench(case: Case, config: dict[str, Any]) -> CpuBench:
    s = case.schedule(3, config, "cpu")
    m = case.random_model()
    layout = TapeLayout.of(case.tiled(3, config, "cpu"))
    tape, bound = Tape.build(layout, m.logical).data, m.bound(s)
    where = layout.locate(s)
    vm = CpuVM.__new__(CpuVM)
    vm._start(tables.pack(s), where, tape, layout.dtype, bound, {}, None)
    return CpuBench(vm, s, bound, tape, where)


@pytest.mark.parametrize("config", [{}, {"fuse_combine": False, "fuse_argmax": False, "attn_splits": 2}], ids=["fused", "apart"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_no_task_of_a_program_touches_more_than_it_declares(case: Case, config: dict[str, Any]) -> None:
    b = bench(case, config)
    contracts = Contracts(b.schedule)
    for i, task in enumerate(chosen_tasks(b.schedule)):
        assert violation(b, contracts, task, case.variables, case.steps, seed=i) is None


class Lie(Contracts):
    """Contracts with something left out."""

    def __init__(self, s: Schedule, what: str) -> None:
        super().__init__(s)
        self.what = what

    def masks(self, *args: Any) -> Masks:
        m = super().masks(*args)
        side = m.reads if self.what == "read" else m.writes
        name = max(side, key=lambda k: int(side[k].sum() > 0) * (1 + (k in ("act", "kv", "io"))))
        hit = np.flatnonzero(side[name])
        side[name][hit[len(hit) // 2 :]] = False
        if self.what == "write":
            m.certain[name][:] &= side[name]
        return m


@pytest.mark.parametrize("what", ["read", "write"])
def test_an_undeclared_access_is_found(what: str) -> None:
    b = bench(CASES[2], {})
    lie = Lie(b.schedule, what)
    found = {}
    for op in ("qkv", "o_proj_combine", "gate_up", "down_proj", "lm_head"):
        task = int(np.flatnonzero(b.schedule.columns.task_op == ops.CODES[op])[0])
        found[op] = violation(b, lie, task, CASES[2].variables, 1, seed=1)
    words = "depend" if what == "read" else "does not declare"
    assert all(v is not None and words in v for v in found.values()), found


def test_the_check_leaves_weights_and_tables_as_they_were() -> None:
    b = bench(CASES[2], {})
    before = b.read()
    for task in chosen_tasks(b.schedule, 1):
        violation(b, Contracts(b.schedule), task, CASES[2].variables, 1, seed=2)
    after = b.read()
    for name in before:
        if name == "tape" or name.startswith("table:"):
            np.testing.assert_array_equal(before[name], after[name])


def test_every_op_is_chosen() -> None:
    s = CASES[2].schedule(3, {}, "cpu")
    chosen = chosen_tasks(s)
    assert {int(s.columns.task_op[t]) for t in chosen} == set(np.unique(s.columns.task_op).tolist())
    assert 0 in chosen
    assert s.n_tasks - 1 in chosen
