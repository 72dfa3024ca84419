"""What quantised weights cost: the table of docs/quantisation.md is that of the committed files."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quantisation.md"
FILES = sorted((ROOT / "reports" / "data" / "quant").glob("*-smollm2-135m-cpu-full*.json"))


def row(text: str, v: dict[str, float]) -> str:
    weights, method = text.split("perplexity")[0].split(maxsplit=1)
    activations = ", activations too" if "-a8" in weights else ""
    greedy = ""
    if "greedy_prefix" in v:
        same = int(v["greedy_prefix"])
        greedy = {0: "none", int(v["greedy_tokens"]): "all equal"}.get(same, f"first {same} equal")
    return (
        f"| `{weights}` | {method.strip()}{activations} | {v['increase'] * 100:+.2f} % | {v['kl']:.5f} | {v['top1'] * 100:.1f} % "
        f"| {v['traffic']:.3f} | {greedy} |"
    )


def test_every_row_is_a_measured_one_in_the_order_of_divergence() -> None:
    notes = [n for file in FILES for n in json.loads(file.read_text("utf-8"))["notes"] if "kl" in (n.get("values") or {})]
    assert {n["values"]["positions"] for n in notes} == {9207.0}
    measured: dict[str, tuple[float, str]] = {}
    for n in notes:
        key = n["text"].split("perplexity")[0]
        if key not in measured or "greedy_prefix" in n["values"]:  # some are measured twice, once without greedy tokens
            measured[key] = n["values"]["kl"], row(n["text"], n["values"])
    shown = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `int") and line.count("|") == 8]
    assert shown == [line for _, line in sorted(measured.values())]
