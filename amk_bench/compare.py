"""Two result files against each other: what became faster or slower between them, cell by cell.

Two runs were not paired: the machine may have changed between them.  So the baseline, which is the same program in both, is the
control: where it moved as well, the change of ours is judged after taking the baseline's own change out.  Results of different
machines or setups are refused unless that is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk_bench.results import LatencyRecord, ResultError, validate
from amk_bench.verdict import Verdict, placed

SEED = 1
RESAMPLES = 2000
# The judge's rule, in the words of a comparison.
WORDS = {Verdict.WIN: "FASTER", Verdict.LOSS: "SLOWER", Verdict.TIE: "SAME", Verdict.AMBIGUOUS: "UNCLEAR"}


class Incomparable(ValueError):
    """The two results are of different machines or setups; the message names every difference."""


@dataclass(frozen=True, slots=True)
class Change:
    """One cell in both files.

    Attributes:
        ours, baseline: time before over time after: above 1 the later one is faster.
        relative, low, high: the change of ours over the baseline's, with its 95 % interval.
        verdict: FASTER, SLOWER, SAME or UNCLEAR, against the wider noise floor of the two runs.
    """

    name: str
    before_us: float
    after_us: float
    ours: float
    baseline: float
    relative: float
    low: float
    high: float
    floor: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """``only``: cells that only one of the files has, or has a time for, with what is said there."""

    changes: tuple[Change, ...]
    only: tuple[str, ...]
    differences: tuple[str, ...]


def load(path: Path) -> dict[str, Any]:
    """The ``amk`` document of a result file: one of ours, or one that pytest-benchmark wrote (``--benchmark-json``, ``-save``).

    Raises ResultError (the file is not one, or does not hold) and OSError.
    """
    try:
        doc = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ResultError(f"{path}: not JSON: {error}") from None
    if isinstance(doc, dict) and "benchmarks" in doc:
        if not isinstance(doc.get("amk"), dict):
            raise ResultError(f"{path}: a file of pytest-benchmark without AMK's results; was the plugin amk_bench loaded?")
        doc = doc["amk"]
    try:
        validate(doc)
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from None
    result: dict[str, Any] = doc
    return result


def compare(before: Mapping[str, Any], after: Mapping[str, Any], *, allow_different: bool = False) -> Comparison:
    """Compares two documents.

    Raises Incomparable where the fingerprints differ in what has to be the same, unless ``allow_different``.
    """
    from amk_bench.fingerprint import differences

    apart = differences(before["fingerprint"], after["fingerprint"])
    if apart and not allow_different:
        raise Incomparable("the two results have different fingerprints: " + "; ".join(apart))
    first, second = _cells(before), _cells(after)
    both = [key for key in first if key in second]
    changes = [_change(key, first[key], second[key]) for key in both if _sampled(first[key]) and _sampled(second[key])]
    only = [f"{_name(key)}: only in the first" for key in first if key not in second]
    only += [f"{_name(key)}: only in the second" for key in second if key not in first]
    for key in both:
        for which, record in (("first", first[key]), ("second", second[key])):
            if record.ratio is None:
                only.append(f"{_name(key)}: {record.verdict} in the {which}: {record.reason}")
            elif not _sampled(record):
                only.append(f"{_name(key)}: no samples in the {which}")
    order = {"SLOWER": 0, "UNCLEAR": 1, "SAME": 2, "FASTER": 3}
    return Comparison(tuple(sorted(changes, key=lambda c: (order[c.verdict], c.relative))), tuple(only), tuple(apart))


Key = tuple[str, ...]


def _sampled(record: LatencyRecord) -> bool:
    """Results of schema 1 may lack samples; nothing can be said of their noise."""
    return record.ratio is not None and len(record.ours_samples_us) > 0


def _cells(doc: Mapping[str, Any]) -> dict[Key, LatencyRecord]:
    """Cells by what they measure; the device is the fingerprint's business."""
    records = [r for r in validate(dict(doc)) if isinstance(r, LatencyRecord)]
    return {(r.model, r.mode, r.precision, str(r.batch), str(r.position), r.baseline): r for r in records}


def _name(key: Key) -> str:
    model, mode, precision, batch, position, baseline = key
    return f"{model}, {mode}, position {position}, batch {batch}, against {baseline} {precision}"


def _blocks(samples: Sequence[float]) -> list[float]:
    """Logarithm of each block's time."""
    return [math.log(samples[i] + samples[i + 1]) for i in range(0, len(samples), 2)]


def _change(key: Key, before: LatencyRecord, after: LatencyRecord) -> Change:
    import numpy as np

    from amk_bench.stats import CONFIDENCE

    rng = np.random.default_rng(SEED)
    spread = np.zeros(RESAMPLES)
    for record, sign in ((before, 1.0), (after, -1.0)):
        log_ratio = np.asarray(_blocks(record.ours_samples_us)) - np.asarray(_blocks(record.baseline_samples_us))
        drawn = rng.integers(0, log_ratio.size, size=(RESAMPLES, log_ratio.size))
        spread += sign * np.median(log_ratio[drawn], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = (math.exp(float(x)) for x in np.quantile(spread, [tail, 1.0 - tail]))
    floor = max(before.floor or 0.0, after.floor or 0.0)
    (ours_before, base_before, ratio_before), (ours_after, base_after, ratio_after) = _numbers(before), _numbers(after)
    return Change(
        _name(key), ours_before, ours_after, ours_before / ours_after, base_before / base_after, ratio_after / ratio_before, low,
        high, floor, WORDS[placed(low, high, floor)],
    )  # fmt: skip


def _numbers(record: LatencyRecord) -> tuple[float, float, float]:
    """Times of ours and of the baseline, and their ratio, of a cell that is not INVALID."""
    return float(record.ours_us or 0), float(record.baseline_us or 0), float(record.ratio or 0)


def lines(result: Comparison) -> list[str]:
    """The comparison as text, what became slower first."""
    from tabulate import tabulate

    out = [f"different: {text}" for text in result.differences]
    if result.changes:
        rows = [
            [c.verdict, c.name, f"{c.before_us:.1f}", f"{c.after_us:.1f}", f"{c.ours:.3f}x", f"{c.baseline:.3f}x",
             f"{c.relative:.3f}x", f"{c.low:.3f} .. {c.high:.3f}", f"{100 * c.floor:.1f} %"]
            for c in result.changes
        ]  # fmt: skip
        heads = ["verdict", "cell", "before us", "after us", "ours", "baseline", "ours over baseline", "95 % interval", "floor"]
        align = ["left", "left", *["right"] * 7]
        out += tabulate(rows, headers=heads, tablefmt="simple", colalign=align, disable_numparse=True).splitlines()
        out.append("a factor above 1: the second is faster; runs are not paired, so the verdict is on ours over baseline")
    else:
        out.append("the two results have no timed cell in common")
    return out + list(result.only)
