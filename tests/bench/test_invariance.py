"""What bits that depend on nobody cost: rows, file and errors; the times themselves need a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk_bench.invariance import REPEATS, Price, document, main, timed
from amk_bench.report.kinds import kind_of
from amk_bench.results import ResultError

PRICE = Price("llama-3.2-1b", "step", 4, (1.0, 2.0, 3.0), (3.0, 3.0, 9.0), "fused step, CUDA graph")


def test_the_ratio_is_of_medians_and_below_one_where_ours_is_slower() -> None:
    assert PRICE.ratio == 1.5
    assert "2.000 ms, fused step, CUDA graph    3.000 ms, 1.50x" in str(PRICE)


def test_calls_are_waited_for_on_both_sides_and_warmed_up() -> None:
    seen: list[str] = []
    samples = timed(lambda: seen.append("call"), lambda: seen.append("wait"), 0.5)
    assert len(samples) == REPEATS
    assert seen == ["wait", "call", "wait"] * (REPEATS + 2)


def test_its_file_is_of_a_known_kind_and_a_wrong_ratio_is_refused() -> None:
    doc: Any = document([PRICE], "NVIDIA H200", "sm_90", ["python", "-m", "amk_bench.invariance"], "0" * 12)
    kind = kind_of(doc)
    assert kind.name == "invariance"
    listed = json.loads(json.dumps(doc))
    kind.holds(listed)
    listed["amk"]["prices"][0]["ratio"] = 2.0
    with pytest.raises(ResultError, match=r"prices\[0\].ratio: 2.0, but its samples give 1.5"):
        kind.holds(listed)


def test_without_a_card_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a card is here")
    assert main(["--out", str(tmp_path / "x.json")]) == 2
    assert "needs torch with CUDA and an NVIDIA card" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
