"""The rows of every table: one pair a row, ours against one rival in one cell, with everything a reader needs to judge it.

A cell is a device, a model with its kind of weights, a mode, precisions, a batch and a position.  The newest record of each cell
and rival counts, INVALID ones too; each pair is of one run on one card, so no ratio ever spans two.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from amk_bench.report.cards import same
from amk_bench.report.sources import Source, of
from amk_bench.results import LatencyRecord, NoteRecord, SkipRecord
from amk_bench.rivals.absent import REASONS
from amk_bench.stats import CONFIDENCE
from amk_bench.verdict import Verdict

# What speaks against us first; INVALID has no number, so the worst number stands before it.
ORDER = (Verdict.LOSS, Verdict.INVALID, Verdict.AMBIGUOUS, Verdict.TIE, Verdict.WIN)
RANDOM, TRAINED = "random", "trained"
_RESAMPLES = 2000
_VERSION = re.compile(r"\b(vllm|llama\.cpp|sglang|tensorrt[-_]llm|transformers|triton|torch|version|build): ([^,]+)", re.IGNORECASE)
_SIDES = re.compile(r"\s+(?:against|vs\.?)\s+|\s*\|\s*")
_LABEL = re.compile(r"(?P<model>.*?),? \(?random weights\)?")
# How runs name the cells that they leave out; a name without a position or a rival stands for all of them.
_LEFT_OUT = (
    re.compile(r"(?P<model>.+) at (?P<position>\d+)(?:, batch (?P<batch>\d+))? against (?P<rival>.+)"),
    re.compile(r"(?P<model>.+): latency at position (?P<position>\d+)"),
    re.compile(r"(?P<model>.+): latency against (?P<rival>.+)"),
    re.compile(r"latency of (?P<model>.+)"),
)
_LIBRARIES = {
    "hf": ("transformers", "torch"), "vllm": ("vllm",), "llama.cpp": ("llama.cpp",), "fused": ("torch",),
    "triton step": ("triton", "torch"),
}  # fmt: skip


def named(label: str, told: str = "") -> tuple[str, str]:
    """(model, kind of weights) of a name in a table, "llama-3.2-1b (random weights)", and what the run says of its weights."""
    found = _LABEL.fullmatch(label)
    return (found["model"], RANDOM) if found else (label, RANDOM if RANDOM in told else TRAINED)


def sides(precision: str) -> list[str]:
    """Ours and the rival's precision where a record tells two, "bf16 against int8"; one that both have otherwise."""
    return _SIDES.split(precision)


class Cell(NamedTuple):
    """What is measured, whoever the rival is."""

    device: str
    model: str
    weights: str
    mode: str
    precision: str
    batch: int
    position: int


@dataclass(frozen=True)
class Pair:
    """One record of a result file, seen as a row.  Times in microseconds a step (or a call, ``record.unit``).

    ``rival_busy_us``: of a step, how long the device worked for the rival, by its own profiler, in the newest run that has it.
    """

    source: Source
    record: LatencyRecord
    rival_busy_us: float | None = None

    @property
    def cell(self) -> Cell:
        r = self.record
        return Cell(r.device, self.model, self.weights, r.mode, r.precision, r.batch, r.position)

    @property
    def model(self) -> str:
        return named(self.record.model)[0]

    @property
    def weights(self) -> str:
        """The record, the model's name or the run says that they are random; any other run is of a fetched checkpoint."""
        return named(self.record.model, self.record.weights or str(self.source.doc["options"].get("weights")))[1]

    @property
    def precisions(self) -> tuple[str, str]:
        """Ours and the rival's; a record that tells one has the same on both sides."""
        told = sides(self.record.precision)
        return told[0], told[-1]

    @property
    def rival(self) -> str:
        return self.record.baseline

    @property
    def rival_as_run(self) -> str:
        """The rival with its precision where that is not ours."""
        ours, theirs = self.precisions
        return self.rival if ours == theirs else f"{self.rival}, {theirs}"

    @cached_property
    def rival_version(self) -> str:
        """What the engine said of itself in the run, or else the libraries of the run; empty where nothing tells."""
        start = f"{self.record.model}: {self.rival}: "
        for note in self.source.records:
            if isinstance(note, NoteRecord) and note.text.startswith(start):
                found = {name.lower(): value.strip() for name, value in _VERSION.findall(note.text[len(start) :])}
                if found:
                    return ", ".join(
                        f"{k} {v}" if k not in ("version", "build") else v for k, v in sorted(found.items(), key=_own_first)
                    )
        libraries = self.source.fingerprint.get("libraries", {})
        for word, names in _LIBRARIES.items():
            if self.rival.lower().startswith(word):
                return ", ".join(f"{n} {libraries[n]}" for n in names if n in libraries)
        return ""

    @cached_property
    def ours_interval(self) -> tuple[float, float] | None:
        """95 % interval of our median, by a bootstrap over blocks of two calls; None without samples."""
        samples = np.asarray(self.record.ours_samples_us)
        if samples.size < 4:
            return None
        blocks = samples.reshape(-1, 2)
        drawn = np.random.default_rng(self.record.seed).integers(0, len(blocks), size=(_RESAMPLES, len(blocks)))
        medians = np.median(blocks[drawn].reshape(_RESAMPLES, -1), axis=1)
        tail = (1.0 - CONFIDENCE) / 2.0
        low, high = np.quantile(medians, [tail, 1.0 - tail])
        return float(low), float(high)

    def wall_us(self, side: str) -> float | None:
        """The host's clock around the same calls, median; ``side`` is "ours" or "baseline"."""
        readings = self.record.host.get(f"{side}_us")
        return statistics.median(readings) if readings else None

    @property
    def rank(self) -> tuple[int, float]:
        return ORDER.index(Verdict(self.record.verdict)), self.record.ratio or 0.0


def _own_first(item: tuple[str, str]) -> tuple[bool, str]:
    """torch last: an engine's own version tells more."""
    return item[0] == "torch", item[0]


@dataclass(frozen=True, slots=True)
class Gap:
    """A cell that a run left out, with its reason.

    ``model`` is empty where the record does not name a cell; without ``weights``, ``position`` or ``rival`` it is of all of them.
    """

    source: Source
    record: SkipRecord
    device: str
    model: str = ""
    weights: str = ""
    batch: int = 0
    position: int | None = None
    rival: str = ""

    @property
    def never_run(self) -> bool:
        """Of a rival that no run can have yet: the table of rivals gives its reason once."""
        return self.rival in REASONS

    def covers(self, cell: Cell) -> bool:
        mine = (self.model, self.batch) == (cell.model, cell.batch) and same(self.device, cell.device)
        return mine and self.weights in ("", cell.weights) and self.position in (None, cell.position)


def gaps(sources: Sequence[Source]) -> list[Gap]:
    """Every cell left out, newest run first; jobs of the fleet that came to nothing among them."""
    out = []
    for source in reversed(of(sources, "result", "fleet-cell")):
        if source.kind.name == "fleet-cell":
            out += _of_the_fleet(source)
            continue
        for record in source.records:
            if not isinstance(record, SkipRecord):
                continue
            found = next((m for pattern in _LEFT_OUT if (m := pattern.fullmatch(record.cell))), None)
            if found is None:
                out.append(Gap(source, record, source.device))
                continue
            said, options = found.groupdict(), source.doc["options"]
            model, weights = named(said["model"], str(options.get("weights") or ""))
            if weights == TRAINED and not options.get("weights"):
                weights = ""
            batch = int(said.get("batch") or options.get("batch") or 1)
            position = int(said["position"]) if said.get("position") else None
            out.append(Gap(source, record, source.device, model, weights, batch, position, said.get("rival") or ""))
    return out


def _of_the_fleet(source: Source) -> list[Gap]:
    """The cells of a job without a result."""
    state, job = source.doc["state"], source.doc["job"]
    if state == "finished":
        return []
    reason = f"{state}: {source.doc['reason']}" if source.doc["reason"] else str(state)
    out = []
    for position in job["positions"] or [None]:
        where = f"{job['model']} at {position}, batch {job['batch']}" if position is not None else f"{job['suite']}, {job['model']}"
        record = SkipRecord(f"{where} on {job['device']}", reason, broken=state in ("failed", "timed out", "lost"))
        out.append(Gap(source, record, job["device"], job["model"], "", job["batch"], position))
    return out


def newest(sources: Sequence[Source]) -> list[Pair]:
    """The newest pair of each cell and rival, worst first."""
    found: dict[tuple[Cell, str], Pair] = {}
    for source in of(sources, "result"):
        for record in source.records:
            if isinstance(record, LatencyRecord):
                pair = Pair(source, record)
                older = found.get((pair.cell, pair.rival))
                busy = record.derived.get("baseline_busy_us") or (older.rival_busy_us if older else None)
                found[pair.cell, pair.rival] = replace(pair, rival_busy_us=busy)
    return ordered(found.values())


def ordered(pairs: Iterable[Pair]) -> list[Pair]:
    """Worst first; where verdict and ratio are equal, by cell and rival."""
    return sorted(pairs, key=lambda p: (p.rank, p.cell, p.rival))


def best_rivals(pairs: Sequence[Pair]) -> list[Pair]:
    """One pair a cell, the one with the strongest rival that was timed, worst first; INVALID only where none was."""
    found: dict[Cell, Pair] = {}
    for pair in pairs:
        held = found.get(pair.cell)
        if held is None or _strength(pair) < _strength(held):
            found[pair.cell] = pair
    return ordered(found.values())


def _strength(pair: Pair) -> tuple[bool, float, str]:
    return pair.record.ratio is None, pair.record.ratio or 0.0, pair.rival


def tally(pairs: Sequence[Pair]) -> str:
    """ "1 LOSS, 2 WIN of 3 cells", in the tables' order."""
    counts = [(v, sum(p.record.verdict == v for p in pairs)) for v in ORDER]
    return ", ".join(f"{n} {v}" for v, n in counts if n) + f" of {len(pairs)} cell{'s' * (len(pairs) != 1)}"
