"""Claim: what cheats on a real card gets no time there either.  Contenders multiply a vector by a matrix with torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU; run: pytest tests/bench/test_cheats_gpu.py on a machine with one", allow_module_level=True)

from amk_bench.cuda_clock import CudaClock, TorchEvents  # noqa: E402
from amk_bench.paired import Pair, PairPlan, measure_pair  # noqa: E402
from amk_bench.results import LatencyRecord  # noqa: E402

N = 4096
PLAN = PairPlan(torch.cuda.get_device_name(), blocks=6, min_sample_s=5e-4)
TIMED = 60  # calls after which a contender is past its gates
LONG = 2_000_000  # clock cycles: about a millisecond
Call = Callable[[Any], Any]


def weights(seed: int) -> Any:
    return torch.randn(N, N, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def vector(seed: int) -> Any:
    return torch.randn(N, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def exact(w: Any, x: Any) -> Any:
    return w[:, : len(x)].double() @ x.double()


def honest(w: Any) -> Call:
    return lambda x: w[:, : len(x)] @ x


class Count:
    def __init__(self) -> None:
        self.calls = 0

    def past_the_gates(self) -> bool:
        self.calls += 1
        return self.calls > TIMED


def stale(w: Any) -> Call:
    count, kept = Count(), [torch.zeros(N, device="cuda")]

    def call(x: Any) -> Any:
        if not count.past_the_gates():
            kept[0] = w @ x
        return kept[0].clone()

    return call


def skips(w: Any) -> Call:
    return lambda x: w[:, : N // 2] @ x[: N // 2]


def writes_nothing(w: Any) -> Call:
    buffer, turn = torch.zeros(N, device="cuda"), [0]

    def call(x: Any) -> Any:
        turn[0] += 1
        if turn[0] % 2:
            torch.mv(w, x, out=buffer)
        return buffer

    return call


def nan(w: Any) -> Call:
    def call(x: Any) -> Any:
        out = w @ x
        out[7] = float("nan")
        return out

    return call


def side_stream(w: Any) -> Call:
    side, cuda = torch.cuda.Stream(), torch.cuda

    def call(x: Any) -> Any:
        out = torch.zeros(N, device="cuda")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(LONG)
            torch.mv(w, x, out=out)
        return out

    return call


def side_stream_when_timed(w: Any) -> Call:
    late, count = side_stream(w), Count()
    return lambda x: late(x) if count.past_the_gates() else w @ x


def left_running(w: Any) -> Call:
    """Its results are right and in time; something else of it still runs when the window has closed."""
    side, count = torch.cuda.Stream(), Count()

    def call(x: Any) -> Any:
        out = w @ x
        if count.past_the_gates():
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG)
        return out

    return call


def changes_its_input(w: Any) -> Call:
    def call(x: Any) -> Any:
        out = w @ x
        x[0] += 1
        return out

    return call


def lower_precision(w: Any) -> Call:
    packed = w.bfloat16()
    return lambda x: (packed @ x.bfloat16()).float()


def this_shape_only(w: Any) -> Call:
    return lambda x: w @ x if len(x) == N else torch.zeros(N, device="cuda")


def deferred(w: Any) -> Call:
    return lambda x: lambda: w @ x


def batched(w: Any) -> Call:
    """Computes eight calls with one read of the weights, at the eighth."""
    count, waiting = Count(), []  # type: ignore[var-annotated]

    def call(x: Any) -> Any:
        if not count.past_the_gates():
            return w @ x
        out = torch.zeros(N, device="cuda")
        waiting.append((x, out))
        if len(waiting) == 8:
            product = w @ torch.stack([y for y, _ in waiting], 1)
            for i, (_, later) in enumerate(waiting):
                later.copy_(product[:, i])
            waiting.clear()
        return out

    return call


_packs: dict[int, Any] = {}


def packed_once(w: Any) -> Call:
    packed = _packs.setdefault(w.data_ptr(), w.clone())
    return lambda x: packed @ x


def judged(contender: Callable[[Any], Call], plan: PairPlan = PLAN, **facts: Any) -> LatencyRecord:
    pair = Pair("matvec", contender, honest, vector, weights=weights, reference=exact, ours_name="cheat", **facts)
    record, timing = measure_pair(pair, plan, CudaClock(TorchEvents()))
    assert (timing is None) == (record.verdict == "INVALID") == (record.ours_us is None)
    print(f"{contender.__name__}: {record.verdict} {record.reason or record.ratio}")
    return record


def test_the_honest_one_gets_a_time() -> None:
    record = judged(
        honest, dataclasses.replace(PLAN, blocks=12, min_sample_s=2e-3), probes=lambda seed: vector(seed)[: 64 + seed % 1000]
    )
    assert record.verdict != "INVALID", record.reason
    assert record.ratio == pytest.approx(1.0, abs=0.25)
    assert record.clock == "cuda.events.torch"
    assert record.tokens >= 2


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [
        (stale, "timed sample"),
        (skips, "gate of cheat: first weights: error"),
        (writes_nothing, "gate of cheat"),
        (nan, "error inf"),
        (side_stream, "gate of cheat"),
        (side_stream_when_timed, "cheat: timed sample"),
        (left_running, "still working after the timed window"),
        (changes_its_input, "it changed its input"),
        (lower_precision, "error"),
        (deferred, "no plain value"),
        (batched, "cheat: timed sample"),
        (packed_once, "other weights at the same address"),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_a_cheat_is_invalid(cheat: Callable[[Any], Call], reason: str) -> None:
    record = judged(cheat, dataclasses.replace(PLAN, min_sample_s=2e-3) if cheat is batched else PLAN)
    assert record.verdict == "INVALID"
    assert reason in record.reason


def test_right_for_the_shapes_of_the_tests_only() -> None:
    assert "other shapes" in judged(this_shape_only, probes=lambda seed: vector(seed)[: 64 + seed % 1000]).reason


def test_faster_than_the_memory() -> None:
    """It claims to read thirty times what it reads."""
    plan = dataclasses.replace(PLAN, least_s=lambda n: n / 4.8e12)
    assert judged(honest, plan, bytes_moved=4 * N * N // 30).verdict != "INVALID"
    assert "it did not do the work" in judged(honest, plan, bytes_moved=4 * N * N * 30).reason


@pytest.mark.parametrize("name", ["elapsed_time", "record", "synchronize"])
def test_the_timer_is_patched(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    count, real = Count(), getattr(torch.cuda.Event, name)

    def patches(w: Any) -> Call:
        def call(x: Any) -> Any:
            if count.past_the_gates():
                monkeypatch.setattr(torch.cuda.Event, name, lambda self, *args: real(self, *args))
            return w @ x

        return call

    record = judged(patches)
    monkeypatch.undo()
    assert f"torch.cuda.Event.{name}" in record.reason or "torch.cuda.Event" in record.reason
