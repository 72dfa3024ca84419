"""The weight tape is a checked permutation: every row once, every tile found, wrong shapes refused."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from amk_core.graph import ModelGraph
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.pack import Tape, TapeError, TapeLayout, interleave_pairs, logical_weight, tiles
from amk_core.targets import Target

Graphs = Callable[..., ModelGraph]
RNG = np.random.default_rng(0)


def random_weights(g: ModelGraph) -> dict[str, npt.NDArray[np.float32]]:
    out = {"embed": (g.vocab_size, g.hidden_size), "head": (g.vocab_size, g.hidden_size)}
    for i in range(g.n_layers):
        out |= {
            f"L{i}.q": (48, 48), f"L{i}.k": (16, 48), f"L{i}.v": (16, 48), f"L{i}.o": (48, 48),
            f"L{i}.gate": (80, 48), f"L{i}.up": (80, 48), f"L{i}.down": (48, 80),
        }  # fmt: skip
    return {k: RNG.standard_normal(v, np.float32) for k, v in out.items()}


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_every_tile_holds_its_rows(mode: str, tiny: Graphs) -> None:
    g, weights = tiny(), random_weights(tiny())
    s = lower(g, ScheduleConfig(tiles_per_queue=2), Target.cpu(3), mode=mode)  # type: ignore[arg-type]
    tape = Tape.build(TapeLayout.of(s), lambda n: logical_weight(g, weights.__getitem__, n))
    assert tape.data.ctypes.data % 64 == 0
    where = tape.layout.locate(s)
    dtype = np.dtype(np.float32 if mode == "exact" else ml_dtypes.bfloat16)
    for t, (b, a, e, k) in enumerate(tiles(s)):
        assert (where[t] >= 0) == (b >= 0)
        if b < 0:
            continue
        padded = -(-k // 32) * 32
        tile = tape.data[where[t] :][: (e - a) * padded * dtype.itemsize].view(dtype).reshape(e - a, padded)
        want = logical_weight(g, weights.__getitem__, s.buffers[b].name)[a:e].astype(dtype)
        assert np.array_equal(tile[:, :k], want)
        assert not tile[:, k:].astype(np.float32).any()


def test_prefill_and_logits_share_the_tape_of_decode(tiny: Graphs) -> None:
    g, c, t = tiny(), ScheduleConfig(), Target.cpu(3)
    layout = TapeLayout.of(lower(g, c, t))
    for geo in (Geometry("prefill", 2, 7), Geometry("logits", 1, 16)):
        assert (layout.locate(lower(g, c, t, geo)) >= 0).any()
    with pytest.raises(TapeError, match="no tile of this f32 tape"):
        layout.locate(lower(g, c, Target.cpu(2)))
    with pytest.raises(TapeError, match="no tile of this f32 tape"):
        layout.locate(lower(g, c, t, mode="fast"))


def test_queues_stream_forward(tiny: Graphs) -> None:
    s = lower(tiny(), ScheduleConfig(), Target.cpu(3))
    where = TapeLayout.of(s).locate(s)
    for q in range(s.n_queues):
        mine = where[s.queue(q)]
        assert (np.diff(mine[mine >= 0]) > 0).all()


def test_a_missing_row_is_refused(tiny: Graphs) -> None:
    s = lower(tiny(), ScheduleConfig(), Target.cpu(2))
    access = next(a for a, b in enumerate(s.columns.acc_buffer) if s.buffers[b].name == "L0.o")
    s.columns.acc_r0[access] += 1
    with pytest.raises(TapeError, match=r"L0\.o"):
        TapeLayout.of(s)


def test_a_wrong_shape_is_refused(tiny: Graphs) -> None:
    g, weights = tiny(), random_weights(tiny())
    weights["L1.down"] = weights["L1.down"][:, :-1]
    layout = TapeLayout.of(lower(g, ScheduleConfig(), Target.cpu(2)))
    with pytest.raises(TapeError, match=r"L1\.down is \[48, 79\], the schedule expects \[48, 80\]"):
        Tape.build(layout, lambda n: logical_weight(g, weights.__getitem__, n))


def test_interleaving_makes_rotary_pairs_adjacent() -> None:
    rows = np.arange(2 * 6, dtype=np.float32)[:, None]  # two heads of d = 6
    assert interleave_pairs(rows, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
