"""Claims: the floor follows from bytes, bandwidth and cache; probes read more than a cache; what undercuts the floor is no time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk_bench import bandwidth
from amk_bench.clock import Sample
from amk_bench.floor import CACHES_FOR_COLD, MARGIN, Bandwidth, step_bytes, violation
from amk_core import _native
from amk_core.graph import GRAPH_SHAPES
from amk_core.vm import nvrtc

CARD = Bandwidth(4e12, 50_000_000, 10**9, "toy", 4.8e12)


def test_the_floor_counts_what_the_cache_cannot_hold() -> None:
    assert CARD.least_s(2_000_000_000) == pytest.approx((1 - MARGIN) * 1.95e9 / 4e12)
    assert CARD.least_s(2_000_000_000, flushed=True) == pytest.approx((1 - MARGIN) * 2e9 / 4e12)
    assert CARD.least_s(50_000_000) == 0.0
    assert CARD.least_s(10_000_000) == 0.0
    assert CARD.share_of_datasheet() == pytest.approx(4 / 4.8)
    assert (CARD.needs_flush(199_999_999), CARD.needs_flush(200_000_000)) == (True, False)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_bytes_never_have_a_lower_floor(a: int, b: int) -> None:
    small, large = sorted((a, b))
    assert 0.0 <= CARD.least_s(small) <= CARD.least_s(large) <= CARD.least_s(large, flushed=True)


def test_how_cache_and_working_set_stand_is_said() -> None:
    assert CARD.explain(10**9, False) == "cold: working set 1000.0 MB, cache 50.0 MB"
    assert CARD.explain(10**8, False).startswith("warm")
    assert CARD.explain(10**7, False).endswith("not flushed; no floor")
    assert CARD.explain(10**7, True).startswith("cold")


def test_a_step_reads_every_weight_once_and_one_embedding_row_a_sequence() -> None:
    """SmolLM2-135M has 134 515 008 parameters with its head tied; TinyLlama 1 100 048 384, of which 65 536 000 embed."""
    assert step_bytes(GRAPH_SHAPES["smollm2-135m"], 4) == 4 * 134_515_008
    assert step_bytes(GRAPH_SHAPES["tinyllama-1.1b"], 2, batch=3) == 2 * (1_100_048_384 - 65_536_000 + 3 * 2048)
    cache = step_bytes(GRAPH_SHAPES["smollm2-135m"], 2, 100, 2, 2) - step_bytes(GRAPH_SHAPES["smollm2-135m"], 2)
    assert cache == 2 * 30 * 3 * 64 * 100 * 2 * 2


def test_one_call_below_the_floor_is_enough_and_the_reason_names_the_numbers() -> None:
    least = CARD.least_s(10**9)
    honest = [Sample(least * f, least * f) for f in (1.0, 1.3, 2.0)]
    assert violation(honest, 10**9, least, CARD) is None
    fault = violation([*honest, Sample(0.99 * least, least)], 10**9, least, CARD)
    assert fault is not None
    assert "4000 GB/s measured, margin 5 %" in fault
    assert "1000.0 MB a call" in fault


def test_a_probe_that_may_have_read_its_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="cache is measured instead"):
        Bandwidth(1e12, 10**8, CACHES_FOR_COLD * 10**8, "too small")
    with pytest.raises(ValueError, match="bandwidth of 0"):
        Bandwidth(0.0, 10, 10**9, "nothing")


def test_native_reader_reads_all_words_in_each_pass() -> None:
    """Twice the bytes take longer: nothing is skipped; one duration a pass; impossible requests are refused."""
    small, large = np.ones(1 << 19, np.uint64), np.ones(1 << 22, np.uint64)
    for ahead in bandwidth.AHEADS:
        passes = _native.read_passes(small, 2, 7, ahead)
        assert len(passes) == 7
        assert min(_native.read_passes(large, 1, 5, ahead)) > 2 * min(_native.read_passes(small, 1, 9, ahead))
    for threads, repeats in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="read_passes"):
            _native.read_passes(small, threads, repeats)


def test_the_cpu_probe_gives_a_plausible_bandwidth_over_a_buffer_beyond_the_cache() -> None:
    seen = bandwidth.probe_cpu(1, cache_bytes=8 << 20, repeats=2)
    assert 0.2e9 < seen.bytes_per_s < 2e12
    assert seen.buffer_bytes > CACHES_FOR_COLD * seen.cache_bytes


def test_last_cache_is_the_largest_that_the_system_names(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "36M", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert bandwidth.last_cache_bytes(tmp_path) == 36 << 20
    assert bandwidth.last_cache_bytes(tmp_path / "nothing") == 0


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_the_card_s_probe_compiles_to_wide_loads(arch: str) -> None:
    assert bandwidth.compiled(bandwidth.KERNEL, arch)[:4] == b"\x7fELF"
    assert "uint4 v[8]" in bandwidth.KERNEL


@pytest.mark.parametrize(
    ("card", "gb_s"),
    [("NVIDIA H200", 4800), ("NVIDIA L4", 300), ("NVIDIA L40S", 864), ("NVIDIA A100-SXM4-80GB", 2039), ("NVIDIA A10G", 600),
     ("NVIDIA H100 80GB HBM3", 3352), ("NVIDIA GeForce RTX 5090", 1792), ("Some Card", None)],
)  # fmt: skip
def test_datasheets(card: str, gb_s: float | None) -> None:
    assert bandwidth.datasheet(card) == (None if gb_s is None else gb_s * 1e9)


def test_the_fastest_probe_of_a_device_is_kept(tmp_path: Path) -> None:
    path = bandwidth.cache_file(tmp_path, {"device": "toy", "driver": "1"})
    assert path != bandwidth.cache_file(tmp_path, {"device": "toy", "driver": "2"})
    speeds = iter([1e9, 0.5e9, 2e9])

    def probe() -> Bandwidth:
        return Bandwidth(next(speeds), 1, 10**6, "toy")

    assert bandwidth.measured(path, probe).bytes_per_s == 1e9
    assert bandwidth.measured(path, probe).bytes_per_s == 1e9  # kept, not probed
    assert bandwidth.measured(path, probe, again=True).bytes_per_s == 1e9  # 0.5e9 was a slower look
    assert bandwidth.measured(path, probe, again=True).bytes_per_s == 2e9
    assert json.loads(path.read_text())["bytes_per_s"] == 2e9
    path.write_text("{")
    assert bandwidth.known(path) is None
