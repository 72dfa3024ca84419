"""Claim: no cheat gets a time.  Every one comes out INVALID with the reason, in a judge that passes the honest one beside it.

The contenders multiply a vector by a matrix on the CPU.  The synthetic clock counts a fixed time for each call, so that the load of
the machine decides nothing; what is tested is what the judge looks at, not how fast the machine is.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from amk_bench import clock as clock_module
from amk_bench import paired, stats, verdict
from amk_bench.clock import Sample
from amk_bench.paired import Pair, PairPlan, measure_pair
from amk_bench.results import LatencyRecord

T = TypeVar("T")
F = npt.NDArray[Any]
N = 24
STEP_S = 1e-3
CLOCK_NOISE = np.random.default_rng(5)


class Clock:
    """Each call of a contender takes STEP_S, or what it asks for by ``clock.now_s``, with 0.2 % noise."""

    name = "synthetic"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tail_s = 0.0

    def spend(self, seconds: float) -> None:
        self.now_s += seconds * (1 + 0.002 * float(CLOCK_NOISE.standard_normal()))

    def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
        start, self.tail_s = self.now_s, 0.0
        result = work()
        return Sample(self.now_s - start, self.now_s - start, self.tail_s), result


def weights(seed: int) -> F:
    return np.random.default_rng(seed).standard_normal((N, N)).astype(np.float32)


def vector(seed: int) -> F:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def exact(w: F, x: F) -> F:
    out: F = w[:, : len(x)].astype(np.float64) @ x
    return out


def honest(clock: Clock, step_s: float = STEP_S) -> Callable[[F], Callable[[F], F]]:
    def load(w: F) -> Callable[[F], F]:
        packed = np.ascontiguousarray(w.T)

        def call(x: F) -> F:
            clock.spend(step_s)
            return x @ packed[: len(x)]

        return call

    return load


PLAN = PairPlan("toy", blocks=6, min_sample_s=4 * STEP_S)


def judged(clock: Clock, cheat: Callable[[F], Callable[[F], F]], plan: PairPlan = PLAN, **facts: Any) -> LatencyRecord:
    given = {"weights": weights, "reference": exact, "ours_name": "cheat", "baseline_name": "honest", **facts}
    record, timing = measure_pair(Pair("matvec", cheat, honest(clock), vector, **given), plan, clock)
    assert (timing is None) == (record.verdict == "INVALID") == (record.ours_us is None)
    return record


def refused(record: LatencyRecord, reason: str) -> None:
    assert record.verdict == "INVALID"
    assert reason in record.reason


def test_the_honest_one_gets_a_time() -> None:
    clock = Clock()
    record = judged(clock, honest(clock, 0.5 * STEP_S), probes=lambda seed: vector(seed)[: 1 + seed % N])
    assert (record.verdict, record.gate, record.unit) == ("WIN", "reference", "call")
    assert record.ratio == pytest.approx(2.0, rel=0.01)
    assert record.ours_us == pytest.approx(500, rel=0.01)
    assert record.tokens > 4
    assert judged(clock, honest(clock)).verdict in ("TIE", "AMBIGUOUS")
    assert judged(clock, honest(clock, 1.1 * STEP_S)).verdict == "LOSS"


def wrapped(clock: Clock, after: Callable[[F, F, F], F]) -> Callable[[F], Callable[[F], F]]:
    """An honest contender whose result is spoiled: after(weights, input, result)."""

    def load(w: F) -> Callable[[F], F]:
        call = honest(clock)(w)
        return lambda x: after(w, x, call(x))

    return load


def test_the_output_of_the_last_input_is_returned() -> None:
    clock, last = Clock(), [np.zeros(N, np.float32)]

    def previous(w: F, x: F, out: F) -> F:
        last.append(out)
        return last[-2].copy()

    refused(judged(clock, wrapped(clock, previous)), "gate of cheat: ")


def test_the_cache_starts_after_the_gate() -> None:
    clock, seen = Clock(), [0]

    def stale(w: F, x: F, out: F) -> F:
        seen[0] += 1
        if seen[0] < 30:
            stale.kept = out  # type: ignore[attr-defined]
            return out
        kept: F = stale.kept  # type: ignore[attr-defined]
        return kept.copy()

    refused(judged(clock, wrapped(clock, stale)), "cheat: timed sample")


def test_work_is_skipped() -> None:
    clock = Clock()

    def half(w: F, x: F, out: F) -> F:
        return (x[: N // 2] @ w[:, : N // 2].T).astype(np.float32)

    refused(judged(clock, wrapped(clock, half)), "gate of cheat: first weights: error")


def test_nothing_is_written() -> None:
    """The buffer that holds the right result of an earlier call is returned without a new one being computed."""
    clock, buffer, count = Clock(), np.zeros(N, np.float32), [0]

    def nothing(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] % 2:
            buffer[:] = out
        return buffer

    refused(judged(clock, wrapped(clock, nothing)), "gate of cheat")


def test_nan_is_written() -> None:
    clock = Clock()

    def not_a_number(w: F, x: F, out: F) -> F:
        out[3] = np.nan
        return out

    refused(judged(clock, wrapped(clock, not_a_number)), "error inf")
    refused(judged(clock, wrapped(clock, not_a_number), reference=None), "not finite")


def test_the_input_is_changed() -> None:
    clock = Clock()

    def negate(w: F, x: F, out: F) -> F:
        x *= -1
        return out

    refused(judged(clock, wrapped(clock, negate)), "it changed its input")


def test_the_input_is_changed_only_when_it_is_timed() -> None:
    clock, count = Clock(), [0]

    def later(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] > 40:
            x[0] += 1
        return out

    refused(judged(clock, wrapped(clock, later)), "it changed its input")


def test_the_result_lies_in_the_input() -> None:
    clock = Clock()

    def in_place(w: F, x: F, out: F) -> F:
        return x[:]

    refused(judged(clock, wrapped(clock, in_place)), "lies in the memory")


def test_lower_precision_than_declared() -> None:
    clock = Clock()

    def half(w: F, x: F, out: F) -> F:
        return (w.astype(np.float16) @ x.astype(np.float16)).astype(np.float32)

    refused(judged(clock, wrapped(clock, half)), "error")
    assert judged(clock, wrapped(clock, half), precision="fp16", baseline_precision="fp32").verdict != "INVALID"


def test_right_for_the_shapes_of_the_tests_only() -> None:
    clock = Clock()

    def this_size(w: F, x: F, out: F) -> F:
        return out if len(x) == N else np.zeros(N, np.float32)

    assert judged(clock, wrapped(clock, this_size)).verdict != "INVALID"
    probes: Callable[[int], F] = lambda seed: vector(seed)[: 1 + seed % (N - 1)]  # noqa: E731
    refused(judged(clock, wrapped(clock, this_size), probes=probes), "other shapes")


def test_packed_weights_are_reused_across_different_weights() -> None:
    """Keyed by shape, by address, by object: the second weights lie where the first ones lay."""
    for key in (lambda w: w.shape, lambda w: w.ctypes.data, id):
        clock, cache = Clock(), {}

        def load(w: F, key: Any = key, cache: Any = cache, clock: Clock = clock) -> Callable[[F], F]:
            packed = cache.setdefault(key(w), np.ascontiguousarray(w.T))

            def call(x: F) -> F:
                clock.spend(STEP_S)
                return x @ packed

            return call

        refused(judged(clock, load), "other weights at the same address")


def test_weights_are_changed() -> None:
    clock, w, count = Clock(), weights(1), [0]

    def call(x: F) -> F:
        clock.spend(STEP_S)
        count[0] += 1
        out: F = w @ x
        if count[0] > 30:
            w[0] = 0
        return out

    record, _ = measure_pair(Pair("matvec", call, lambda x: call(x), vector, weights=w), PLAN, clock)
    refused(record, "the weights were changed")


def test_faster_than_the_floor() -> None:
    clock = Clock()
    plan = dataclasses.replace(PLAN, least_s=lambda n: n / 1e9)
    bytes_moved = int(0.4e6)  # 0.4 ms
    assert judged(clock, honest(clock, 0.5 * STEP_S), plan, bytes_moved=bytes_moved).verdict == "WIN"
    refused(judged(clock, honest(clock, 0.3 * STEP_S), plan, bytes_moved=bytes_moved), "it did not do the work")


def test_work_goes_on_after_the_call_has_returned() -> None:
    """A thread fills the output later: what is copied inside the window is not there yet."""
    clock, threads = Clock(), []

    def load(w: F) -> Callable[[F], F]:
        def call(x: F) -> F:
            clock.spend(1e-5)
            out = np.full(N, np.nan, np.float32)

            def work() -> None:
                time.sleep(0.002)
                out[:] = w @ x

            threads.append(threading.Thread(target=work))
            threads[-1].start()
            return out

        return call

    refused(judged(clock, load), "gate of cheat")
    for thread in threads:
        thread.join()


def test_a_kernel_is_left_running_when_it_is_timed() -> None:
    """Honest under inspection; in the timed part the device still works when the window has closed."""
    clock, count = Clock(), [0]

    def load(w: F) -> Callable[[F], F]:
        def call(x: F) -> F:
            count[0] += 1
            late = count[0] > 40
            clock.spend(STEP_S / 2 if late else STEP_S)
            clock.tail_s += STEP_S / 2 if late else 0.0
            return w @ x

        return call

    refused(judged(clock, load), "still working after the timed window")


def test_host_and_device_clock_disagree() -> None:
    """Work on a side stream, seen by the host only."""

    class TwoClocks(Clock):
        hidden_s = 0.0

        def measure(self, work: Callable[[], T]) -> tuple[Sample, T]:
            self.hidden_s = 0.0
            sample, result = super().measure(work)
            return Sample(sample.device_s, sample.host_s + self.hidden_s), result

    clock = TwoClocks()

    def load(w: F) -> Callable[[F], F]:
        def call(x: F) -> F:
            clock.spend(STEP_S / 4)
            clock.hidden_s += STEP_S
            return w @ x

        return call

    refused(judged(clock, load), "host and device clock disagree")


@pytest.mark.parametrize("batch", [4, 5])
def test_many_calls_are_batched_into_one(batch: int) -> None:
    """Calls return a buffer each and are all computed by every ``batch``-th of them, in time for the end of the sample."""
    clock, pending, count = Clock(), [], [0]

    def load(w: F) -> Callable[[F], F]:
        pending.clear()

        def call(x: F) -> F:
            count[0] += 1
            out = np.zeros(N, np.float32)
            pending.append((x, out))
            if count[0] <= 40 or len(pending) >= batch:
                clock.spend(STEP_S)
                for y, later in pending:
                    later[:] = w @ y
                pending.clear()
            return out

        return call

    refused(judged(clock, load, dataclasses.replace(PLAN, blocks=12, min_sample_s=batch * STEP_S)), "timed sample")


def test_outputs_are_deferred() -> None:
    clock = Clock()

    class Lazy(np.ndarray[Any, Any]):
        pass

    refused(judged(clock, lambda w: lambda x: (clock.spend(1e-6), (w @ x).view(Lazy))[1]), "no plain value")
    refused(judged(clock, lambda w: lambda x: (clock.spend(1e-6), lambda: w @ x)[1]), "no plain value")
    refused(judged(clock, lambda w: lambda x: (clock.spend(1e-6), (v for v in w @ x))[1]), "no plain value")


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (clock_module, "_now_ns", lambda: 0),
        (time, "perf_counter_ns", lambda: 0),
        (stats, "bootstrap", lambda *_, **__: stats.Interval(9.0, 9.0, 9.0, 50)),
        (np, "median", lambda *_, **__: 9.0),
        (verdict, "judge", lambda *_: "WIN"),
        (stats, "MIN_FLOOR", 0.5),
        (clock_module, "disagreement", lambda samples: None),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_timer_or_statistics_are_patched(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any) -> None:
    clock, count = Clock(), [0]

    def patch(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] == 50:
            monkeypatch.setattr(module, name, value)
        return out

    record = judged(clock, wrapped(clock, patch))
    monkeypatch.undo()
    refused(record, f"instruments were changed while it ran: {module.__name__}.{name}")


def test_a_limit_is_raised_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, count = Clock(), [0]

    def raise_limit(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] == 50:
            monkeypatch.setitem(paired.LIMITS, "fp32", 0.5)
        return out

    record = judged(clock, wrapped(clock, raise_limit))
    monkeypatch.undo()
    refused(record, "amk_bench.paired.LIMITS")


@pytest.mark.parametrize(
    ("module", "name"), [(time, "perf_counter_ns"), (np, "median"), (stats, "bootstrap"), (clock_module, "disagreement")],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_instruments_that_were_replaced_before_the_run(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """A test file may do it when it is imported, before any seal is put on."""
    clock, real = Clock(), getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **settings: real(*args, **settings))
    record = judged(clock, honest(clock))
    monkeypatch.undo()
    refused(record, f"instruments were replaced before it ran: {module.__name__}.{name}")


def test_the_code_of_a_statistic_is_swapped_in_place() -> None:
    clock, count, real = Clock(), [0], stats.noise_floor.__code__

    def swap(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] == 50:
            stats.noise_floor.__code__ = (lambda a_over_a: 0.9).__code__
        return out

    try:
        record = judged(clock, wrapped(clock, swap))
    finally:
        stats.noise_floor.__code__ = real
    refused(record, "amk_bench.stats.noise_floor")


def test_a_contender_that_breaks_is_invalid_and_says_how() -> None:
    clock, count = Clock(), [0]

    def breaks(w: F, x: F, out: F) -> F:
        count[0] += 1
        if count[0] > 40:
            raise RuntimeError("out of memory")
        return out

    refused(judged(clock, wrapped(clock, breaks)), "a timed call failed: RuntimeError: out of memory")


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (lambda seed: np.ones(N, np.float32), "does not depend on its seed"),
        (lambda seed: np.random.default_rng().standard_normal(N), "not the same twice"),
    ],
)
def test_inputs_that_let_a_cheat_through_are_refused(inputs: Callable[[int], F], reason: str) -> None:
    clock = Clock()
    record, _ = measure_pair(Pair("matvec", honest(clock), honest(clock), inputs, weights=weights, reference=exact), PLAN, clock)
    refused(record, reason)


def test_a_cheating_baseline_does_not_pass_either() -> None:
    clock = Clock()
    zeros: Callable[[F], Callable[[F], F]] = lambda w: lambda x: (clock.spend(STEP_S), np.zeros(N))[1]  # noqa: E731
    record, _ = measure_pair(
        Pair("matvec", honest(clock), zeros, vector, weights=weights, reference=exact, baseline_name="strawman"), PLAN, clock
    )
    refused(record, "gate of strawman")


def test_without_a_reference_the_sides_have_to_agree() -> None:
    clock = Clock()
    w = weights(3)
    same = Pair("matvec", honest(clock)(w), honest(clock)(w), vector, weights=w)
    record, _ = measure_pair(same, PLAN, clock)
    assert record.gate == "agree"
    other = dataclasses.replace(same, baseline=honest(clock)(weights(4)))
    refused(measure_pair(other, PLAN, clock)[0], "the two sides differ")
