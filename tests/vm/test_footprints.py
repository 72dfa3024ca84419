"""Footprint conformance: a task touches exactly the bytes its contract declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def test_only_declared_bytes_change_and_only_declared_bytes_matter(
    op: str, shape: str, mode: str, case: Callable[..., Any], lab: Callable[..., Any]
) -> None:
    bench = lab(case(op, shape, seed=2, mode=mode))
    pool = bench.vm.pool("main")
    reads, writes, certain = bench.mask(write=False), bench.mask(write=True), bench.mask(write=True, maybe=False)
    rng = np.random.default_rng(0)
    pool[:] = rng.integers(0, 256, len(pool))  # canaries between the buffers
    bench.fill()
    before = pool.copy()
    bench.run()
    first = pool.copy()
    assert not (first != before)[~writes].any(), "a byte outside the write footprint changed"
    assert (first != before).any(), "the task wrote nothing"

    pool[:] = np.where(reads, before, 0xFF)  # everything the contract does not name becomes NaN, -1 and canary
    outside = pool.copy()
    bench.run()
    second = pool.copy()
    assert not (second != outside)[~writes].any(), "a byte outside the write footprint changed"
    assert (first == second)[certain].all(), "the result depends on bytes outside the read footprint, or is not all written"
    left_alone = (first == before) & (second == outside)
    assert ((first == second) | left_alone)[writes].all(), "a maybe-write depends on bytes outside the read footprint"


def test_attention_reads_no_key_behind_its_position(case: Callable[..., Any], lab: Callable[..., Any]) -> None:
    """Sharper than the contract: rows of the chunk see their own past only."""
    c = case("attn", "odd")
    c.params |= {"seq": 2, "split": 0, "splits": 1, "blocks": 8}
    width = 8 * (c.params["head_dim"] + 2)
    c.arrays["part"] = np.zeros((c.params["m"] * c.params["n_heads"], width), np.float32)
    results = []
    for later in (0.0, np.nan):
        position = c.variables[2] + c.step * c.params["chunk"]  # of the first row
        for name in ("k", "v"):
            c.arrays[name][2 * c.params["ctx"] + position + 1 :] = later
        bench = lab(c)
        bench.fill()
        bench.run()
        first_row = (2 * c.params["n_kv"] + c.params["kv_head"]) * c.params["chunk"] * c.params["group"]
        results.append(bench.result("part")[first_row : first_row + c.params["group"]])
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isfinite(results[0]).all()
    assert np.abs(results[0]).max() > 0
