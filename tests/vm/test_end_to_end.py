"""A whole tiny model through the VM: right against float64, and the same bits however it is scheduled, batched or disturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk_core import _native
from amk_core.schedule.config import ScheduleConfig

IDS = [int(x) for x in np.random.default_rng(5).integers(0, 100, 23)]
CONFIGS = [
    ScheduleConfig(),
    ScheduleConfig(tiles_per_queue=3, head_tiles_per_queue=2, row_align=2),
    ScheduleConfig(fuse_combine=False, placement="strided"),
    ScheduleConfig(fuse_qkv=False, placement="blocked"),
    ScheduleConfig(attn_splits=3, fuse_argmax=False, embed_tiles=3),
    ScheduleConfig(dependencies="head", sampler_queue=1),
]


@pytest.mark.parametrize(("dtype", "limit"), [("exact", 2e-5), ("fast", 2e-2)])
@pytest.mark.parametrize("chunk", [1, 7])
def test_logits_agree_with_the_float64_reference(dtype: str, limit: float, chunk: int, model: Callable[..., Any]) -> None:
    m = model("logits", chunk=chunk, mode=dtype)
    got = m.teacher(IDS, chunk).view(np.float32)
    prompt = np.full(m.vm.buffer("prompt").shape, -1, np.int32)
    prompt[0, : len(IDS)] = IDS
    buffers = m.reference(-(-len(IDS) // chunk), [0], [len(IDS)], prompt=prompt)
    want = buffers[[b.name for b in m.schedule.buffers].index("logits")][: len(IDS)]
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


def test_greedy_tokens_agree_with_the_float64_reference(model: Callable[..., Any]) -> None:
    m = model()
    out = m.generate([7], 20, poison=True)
    buffers = m.reference(20, [0], [20], first=[7])
    want = buffers[[b.name for b in m.schedule.buffers].index("out")][:20]
    np.testing.assert_array_equal(out, want)
    assert len(set(out[:, 0].tolist())) > 3, "the tiny model should not be stuck on one token"


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
@pytest.mark.parametrize("queues", [1, 3, 7])
def test_bits_do_not_depend_on_the_schedule(config: ScheduleConfig, queues: int, model: Callable[..., Any]) -> None:
    want = model("logits", chunk=4).teacher(IDS, 4)
    np.testing.assert_array_equal(model("logits", chunk=4, queues=queues, config=config).teacher(IDS, 4), want)


def test_bits_do_not_depend_on_the_chunk_or_the_isa(mode: str, model: Callable[..., Any]) -> None:
    want = model("logits", chunk=1, mode=mode).teacher(IDS, 1)
    for chunk in (7, 16):
        np.testing.assert_array_equal(model("logits", chunk=chunk, mode=mode).teacher(IDS, chunk), want)
    for isa in _native.cpu_isas():
        np.testing.assert_array_equal(model("logits", chunk=5, mode=mode, isa=isa).teacher(IDS, 5), want)


def test_tokens_do_not_depend_on_batch_slot_or_neighbours(model: Callable[..., Any]) -> None:
    alone = {first: model().generate([first], 12)[:, 0] for first in (7, 50)}
    for firsts in ([7, 50, 13], [50, 7]):
        together = model(batch=len(firsts)).generate(firsts, 12)
        for slot, first in enumerate(firsts):
            if first in alone:
                np.testing.assert_array_equal(together[:, slot], alone[first])


@pytest.mark.parametrize("seed", range(8))
def test_perturbed_threads_give_equal_bits(seed: int, model: Callable[..., Any]) -> None:
    config = ScheduleConfig(tiles_per_queue=2, dependencies="head" if seed % 2 else "phase")
    m = model(queues=3, config=config)
    want = m.generate([7], 6)
    bits = m.vm.buffer("logits").tobytes()
    np.testing.assert_array_equal(m.generate([7], 6, perturb_seed=seed, poison=True), want)
    assert m.vm.buffer("logits").tobytes() == bits


def test_kv_written_in_chunks_serves_a_decode_program(model: Callable[..., Any]) -> None:
    """Prompt through a prefill program, then decode from the shared pool: the tokens of decoding everything one by one."""
    whole = model("logits", chunk=1)
    prefill = model("prefill", chunk=4)
    prefill.vm.buffer("prompt")[0, :22] = IDS[:22]
    prefill.launch(6, [0], [22])
    decode = model(pools={"kv": prefill.vm.pool("kv")})
    decode.vm.buffer("token")[0, 0] = IDS[22]
    decode.launch(4, [22], [4])
    out = decode.vm.buffer("out")[:4, 0].tolist()
    logits = whole.teacher(IDS + out[:3], 1).view(np.float32)
    assert out == logits[22:].argmax(axis=1).tolist()


def test_launches_continue_where_the_last_one_stopped(model: Callable[..., Any]) -> None:
    m = model()
    want = m.generate([7], 10)[:, 0].tolist()
    got = m.generate([7], 4)[:, 0].tolist()
    m.launch(6, [4], [6])  # the token buffer still holds the last token
    assert got + m.vm.buffer("out")[:6, 0].tolist() == want


def test_stop_ids_end_the_launch_when_all_sequences_are_done(model: Callable[..., Any]) -> None:
    free = model(batch=2).generate([7, 50], 12)
    m = model(batch=2)
    ends = [3, 6]
    for seq, end in enumerate(ends):
        m.vm.buffer("stop_ids")[seq, 2] = free[end, seq]
    first = [int(np.flatnonzero(free[:, s] == free[ends[s], s])[0]) for s in range(2)]
    m.vm.buffer("token")[:, 0] = [7, 50]
    result = m.launch(12, [0, 0], [12, 12])
    assert result.stopped
    assert result.steps == max(first) + 1
    np.testing.assert_array_equal(m.vm.buffer("out")[: result.steps], free[: result.steps])
    assert m.vm.buffer("done")[:, 0].tolist() == [1, 1]


def test_a_sequence_that_has_no_tokens_left_is_left_alone(model: Callable[..., Any]) -> None:
    free = model(batch=2).generate([7, 50], 8)
    m = model(batch=2)
    m.vm.buffer("token")[:, 0] = [7, 50]
    kv = m.vm.pool("kv")
    kv[:] = 0xAB
    result = m.launch(8, [0, 0], [3, 8])
    out = m.vm.buffer("out")[: result.steps]
    np.testing.assert_array_equal(out[:3, 0], free[:3, 0])
    np.testing.assert_array_equal(out[3:, 0], [-1] * 5)
    np.testing.assert_array_equal(out[:, 1], free[:, 1])
    rows = m.schedule.meta["kv_rows"]
    touched = (m.vm.buffer("L1.k").view(np.uint8).reshape(2 * rows, -1) != 0xAB).any(axis=1)
    assert touched.nonzero()[0].tolist() == [0, 1, 2, *range(rows, rows + 8)]


def test_the_weights_are_not_written(model: Callable[..., Any]) -> None:
    m = model()
    before = m.tape.hash()
    m.generate([7], 5)
    assert m.tape.hash() == before
