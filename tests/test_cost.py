"""The cost model: fitted on three models it tells the fourth, and its one constant is the fit of the committed run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from amk_core import cost
from amk_core.cli import main
from amk_core.cost import best_ranks, predict_ranks
from amk_core.graph import GRAPH_SHAPES
from amk_core.quant.config import QuantConfig
from amk_core.schedule.lower_ranks import Ranks
from amk_core.targets import Target
from amk_core.vm.plan import ProgramError

ROOT = Path(__file__).parents[1]
FILE = "2026-11-30-h200-timing.json"
SHORT = (0, 16)  # positions of the fit


def measured(positions: tuple[int, ...]) -> dict[str, list[float]]:
    """Microseconds a step with tagged hand-offs by model."""
    out: dict[str, list[float]] = {}
    for t in json.loads((ROOT / "reports" / "data" / "device" / FILE).read_text())["amk"]["timings"]:
        if t["config"].get("handoff", "tagged") == "tagged" and t["position"] in positions:
            out.setdefault(t["model"], []).append(t["median_us"])
    return out


@pytest.mark.parametrize("left_out", GRAPH_SHAPES)
def test_three_models_tell_the_fourth_within_a_tenth(left_out: str) -> None:
    h200, steps = Target.named("h200"), measured(SHORT)
    assert set(steps) == set(GRAPH_SHAPES)
    hand_off = cost.fit({m: v for m, v in steps.items() if m != left_out}, GRAPH_SHAPES, h200)
    told = cost.predict(GRAPH_SHAPES[left_out], h200, hand_off).us
    for us in steps[left_out]:
        assert told == pytest.approx(us, rel=0.03)  # a tenth is asked for
    for us in measured((cost.MAX_POSITION,))[left_out]:
        assert told == pytest.approx(us, rel=0.10)


def test_the_constant_is_the_fit_of_the_committed_run() -> None:
    assert cost.fit(measured(SHORT), GRAPH_SHAPES, Target.named("h200")) == pytest.approx(cost.HAND_OFF_US, abs=0.005)
    text = (ROOT / "amk_core" / "cost.py").read_text()
    assert FILE in text


def test_the_parts_of_a_step_are_what_they_say() -> None:
    g, h200 = GRAPH_SHAPES["llama-3.2-1b"], Target.named("h200")
    c = cost.predict(g, h200, 2.0)
    assert c.weight_bytes == 2 * (16 * (2048 * 3072 + 2048 * 2048 + 3 * 2048 * 8192) + 128256 * 2048)
    assert (c.hops, c.hand_off_us) == (83, 166.0)
    assert c.floor_us == pytest.approx(540, rel=0.01)
    assert c.us == pytest.approx(c.hand_off_us + c.polled_us + c.stream_us)
    assert c.stream_us < c.floor_us
    small = cost.predict(GRAPH_SHAPES["smollm2-135m"], h200)
    assert small.stream_us < 0.2 * small.floor_us  # its layers pass in the shadow of the hand-offs
    with pytest.raises(ValueError, match="no memory bandwidth"):
        cost.predict(g, Target.cpu(2))


def test_steps_of_several_sequences_are_told_within_a_tenth() -> None:
    """Nothing is fitted on them: what one sequence costs, and what more rows poll."""
    g, h200 = GRAPH_SHAPES["llama-3.2-1b"], Target.named("h200")
    folder = ROOT / "reports" / "data" / "device" / "development"
    steps: dict[int, float] = {}
    for name, way in (("27-rows.txt", "marked"), ("30-rows.txt", "v2")):  # of a batch of 2 the former, of others what came later
        for line in (folder / name).read_text().splitlines():
            if found := re.match(rf"batch +(\d+) {way} +([\d.]+) us a step", line):
                steps[int(found[1])] = float(found[2])
    assert steps == {2: 688.5, 4: 729.7, 8: 764.7, 16: 894.4}
    assert [cost.predict(g, h200, batch=b).us for b in steps] == pytest.approx(list(steps.values()), rel=0.10)
    told = [cost.predict(g, h200, batch=b) for b in (1, 2, 16)]
    assert told[1].polled_us == told[0].polled_us == told[2].polled_us / 8  # marked values are half as long
    assert told[0].weight_bytes == told[2].weight_bytes
    found = re.findall(r"32 layers, batch +(\d+) as built +([\d.]+)", (folder / "32-rows-8b.txt").read_text())
    long = {int(batch): float(us) for batch, us in found}
    assert long == {2: 3881.9, 4: 3985.1, 8: 4108.6, 16: 4779.3}
    g = GRAPH_SHAPES["llama-3.1-8b"]
    assert [cost.predict(g, h200, batch=b).us for b in long] == pytest.approx(list(long.values()), rel=0.10)
    g = GRAPH_SHAPES["llama-3.2-1b"]
    with pytest.raises(ProgramError, match="16 rows of activations take more than a third of a block's shared memory on l4"):
        cost.predict(g, Target.named("l4"), batch=16)


def test_quantised_weights_change_the_bytes() -> None:
    g, h200 = GRAPH_SHAPES["llama-3.2-1b"], Target.named("h200")
    plain, four = (cost.predict(g, h200, quant=q) for q in (None, QuantConfig.parse("int4-g128,head=int4-g128")))
    assert four.weight_bytes * 2048 == plain.weight_bytes * 528  # a record is 528 bytes for 1 024 weights
    assert (four.hand_off_us, four.polled_us) == (plain.hand_off_us, plain.polled_us)
    assert 0 < four.stream_us < plain.stream_us / 4
    mixed = cost.predict(g, h200, quant=QuantConfig.parse("int8,head=stored"))
    assert mixed.weight_bytes == 1040 * (2048 * 3072 + 2048 * 2048 + 3 * 2048 * 8192) // 1024 * 16 + 2 * 128256 * 2048


def test_the_command_marks_what_was_never_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "smollm2-135m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(Target.profiles())
    assert [line.split()[0] for line in lines if "fitted" in line] == ["h200"]
    assert sum("a prediction, not measured" in line for line in lines) == len(Target.profiles()) - 1
    assert main(["predict", "smollm2-135m", "--target", "l4", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["costs"]
    assert (only["target"], only["basis"]) == ("l4", "prediction")
    assert main(["predict", "smollm2-135m", "--target", "cpu"]) == 2
    assert main(["predict", "smollm2-135m", "--batch", "17"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "smollm2-135m", "--batch", "0"])


def test_ranks_are_chosen_where_they_cost_less(monkeypatch: pytest.MonkeyPatch) -> None:
    h200, names = Target.named("h200"), ("smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b")
    assert not any(best_ranks(GRAPH_SHAPES[n], t) for n in names for t in Target.profiles())  # as the VM's phases are today
    monkeypatch.setattr(cost, "RANK_HAND_OFFS_US", {8: 3.66, 16: 4.1})  # the experiment's
    assert {n: best_ranks(GRAPH_SHAPES[n], h200) for n in names} == {
        "smollm2-135m": Ranks(7, 16), "tinyllama-1.1b": None, "llama-3.2-1b": None, "llama-3.1-8b": None,
    }  # fmt: skip
    small = dataclasses.replace(h200, clusters=((8, 15), (4, 33)))
    assert best_ranks(GRAPH_SHAPES["smollm2-135m"], small) == Ranks(15, 8)
    assert best_ranks(GRAPH_SHAPES["smollm2-135m"], dataclasses.replace(small, queues=66)) == Ranks(8, 8)
    assert best_ranks(GRAPH_SHAPES["smollm2-135m"], dataclasses.replace(h200, clusters=())) is None
    assert [t.name for t in Target.profiles() if best_ranks(GRAPH_SHAPES["smollm2-135m"], t)] == ["h100", "h200"]


def test_the_cost_of_ranks_gives_the_measurement_back() -> None:
    """The medians of the card's run stand in its file, a line a shape and position."""
    text = (ROOT / "reports/data/device/development/27-ranks.txt").read_text()
    found = re.findall(r"smollm2-135m (\d+x\d+) position +128: +([\d.]+) us a token", text)
    assert len(found) == 2
    for shape, us in found:
        assert predict_ranks(GRAPH_SHAPES["smollm2-135m"], Ranks.parse(shape)) == pytest.approx(float(us), rel=0.01)
    with pytest.raises(ValueError, match="clusters of 4, measured are 8, 16"):
        predict_ranks(GRAPH_SHAPES["smollm2-135m"], Ranks(15, 4))
