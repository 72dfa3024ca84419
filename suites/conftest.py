"""Fixtures of the suites: the model, the HuggingFace reference, the pinned texts, and comparisons that several suites share."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench import parity
from amk_bench.baselines.hf import HfEager
from amk_bench.options import DEFAULT_MODEL, Arch, Options
from amk_bench.progress import Progress
from amk_bench.recorder import Recorder
from amk_bench.session import Session

HERE = Path(__file__).resolve().parent
TEXT_SHA256 = "b87b019028ef5cd4962f98ab2d0deecabc5ceef81e6bdca2cccdbeb1873e7c13"
IDS_SHA256 = "9fd324413f8d3707241c2e6803964dc9a2297daa12d3d96722e16e5951a5f03a"
PINNED_VOCABULARY = 49_152  # the pinned ids are SmolLM2's
WINDOW = 1024

Load = Callable[..., Any]


@dataclass(frozen=True)
class Engine:
    """One way to run the model, whose cells have the same claims and limits as those of the others.

    Attributes:
        where, said: of a record of it, its place and what stands behind the claim.
        most: sequences that it decodes side by side.
    """

    loader: Load
    where: str
    ranks: Any = None  # amk_core.schedule.lower_ranks.Ranks
    options: Options = dataclasses.field(default_factory=Options)

    @property
    def said(self) -> str:
        return f", {self.ranks.count}x{self.ranks.cluster} ranks" if self.ranks else ""

    @property
    def most(self) -> int:
        return 1 if self.ranks else 16

    def load(self, **settings: Any) -> Any:
        """As the fixture ``load``; a test that asks ranks on a card for another mode than ``fast`` is left out."""
        if self.ranks and self.where != "cpu" and settings.get("mode") != "fast" and settings.get("backend") != "cpu":
            command = dataclasses.replace(self.options, tier="full", ranks=None).command(arch="cpu")
            pytest.skip(f"on a card ranks run in fast mode; run: {command}")
        return self.loader(**{"ranks": self.ranks or "off", **settings})


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """One 1024-token window of the text through both models: logit distance and the two sums of negative log-likelihood."""

    distance: parity.LogitDistance
    ours_nll: float
    theirs_nll: float


@pytest.fixture
def hold_logits(amk_record: Recorder) -> Callable[[parity.LogitDistance, str, str], None]:
    """Records P2 of a distance, of what and where, and asserts it."""

    def hold(distance: parity.LogitDistance, claim: str, where: str) -> None:
        amk_record.parity(
            "P2",
            claim,
            measured=f"{distance.relative:.2e} relative",
            required=f"<= {parity.P2_LIMIT:.0e}",
            passed=distance.relative <= parity.P2_LIMIT,
            value=distance.relative,
            limit=parity.P2_LIMIT,
            where=where,
            detail=f"largest difference {distance.max_abs:.2e} at position {distance.row}; largest logit {distance.largest:.2f}",
        )
        assert distance.relative <= parity.P2_LIMIT

    return hold


@pytest.fixture(scope="session")
def model_path(amk_options: Options, amk_progress: Progress) -> Path:
    """The model's directory.  Fetched only when the user named the model; otherwise the suite says how to fetch it."""
    from amk_core.importer import ImporterError, hub

    name = amk_options.model
    if name == DEFAULT_MODEL and not amk_options.model_given and not hub.is_cached(name):
        pytest.skip(f"{name} is not in the model cache {hub.home()}; run: amk model fetch {name}")
    try:
        return hub.resolve(name, amk_progress.say)
    except ImporterError as error:
        pytest.skip(f"{name} cannot be opened: {error}; run: amk model fetch {name}")


@pytest.fixture(scope="session")
def hf(model_path: Path, amk_session: Session, amk_progress: Progress) -> HfEager:
    """HuggingFace in float32 on the CPU: the reference of parity and the baseline of latency."""
    engine = HfEager(model_path, amk_session.machine.cores)
    reason = engine.available()
    if reason:
        pytest.skip(reason)
    amk_progress.say("loading the HuggingFace reference (float32)")
    if engine.model.config.vocab_size != PINNED_VOCABULARY:
        pytest.skip(f"the pinned ids are of a vocabulary of {PINNED_VOCABULARY}, this model has {engine.model.config.vocab_size}")
    return engine


@pytest.fixture(scope="session")
def backend(amk_arch: Arch) -> str:
    """The VM that this run is about: "cuda" where the card that it names is here, else "cpu"."""
    return "cuda" if amk_arch.is_gpu and amk_arch.present else "cpu"


@pytest.fixture(scope="session")
def where(amk_arch: Arch, backend: str) -> str:
    """How a record names that VM: the architecture, or "cpu"."""
    return amk_arch.name if backend == "cuda" else "cpu"


@pytest.fixture(scope="session")
def load(model_path: Path, backend: str) -> Iterator[Load]:
    """``load(batch=..., context=..., ...)``: the model through ``amk_core``, on this run's VM unless ``backend`` names one.

    Only the last one is kept, to bound memory.
    """
    import amk_core

    kept: dict[tuple[tuple[str, Any], ...], Any] = {}

    def loader(**settings: Any) -> Any:
        settings = {"backend": backend, **settings}
        key = tuple(sorted(settings.items()))
        if key not in kept:
            kept.clear()
            gc.collect()
            kept[key] = amk_core.load(str(model_path), **settings)
        return kept[key]

    yield loader
    kept.clear()


@pytest.fixture(scope="session", params=["plain", "ranks"])
def engine(request: pytest.FixtureRequest, load: Load, backend: str, where: str, amk_options: Options) -> Engine:
    """The model without ranks, and with those of ``--ranks``, by default those of ``amk_core.load(ranks="auto")`` on a card."""
    from amk_core.schedule.lower_ranks import Ranks

    if request.param == "plain":
        return Engine(load, where)
    if amk_options.ranks or backend == "cpu":
        return Engine(load, where, Ranks.parse(amk_options.ranks or "3x1"), amk_options)
    chosen = load(mode="fast", context=WINDOW, ranks="auto").ranks
    if chosen is None:
        pytest.skip(
            f"ranks are clusters (sm_90 and later) where the cost model expects them to be quicker: none on this {where} card"
        )
    return Engine(load, where, chosen, amk_options)


@pytest.fixture(scope="session")
def patient_engine(engine: Engine, amk_options: Options) -> Engine:
    """An engine for thousands of positions: threads that share a step take as long for each as others for a chunk."""
    if engine.ranks and engine.where == "cpu" and amk_options.tier != "full":
        command = dataclasses.replace(amk_options, tier="full").command()
        pytest.skip(f"ranks on the CPU VM take a step for every position: part of the full run only; run: {command}")
    return engine


@pytest.fixture(scope="session")
def text_ids() -> list[int]:
    """The pinned ids of the perplexity text: 17 870, in SmolLM2's vocabulary."""
    data = HERE / "perplexity" / "data"
    for name, digest in (("mansfield_park_80k.txt", TEXT_SHA256), ("mansfield_park_80k.smollm2.u16", IDS_SHA256)):
        seen = hashlib.sha256((data / name).read_bytes()).hexdigest()
        assert seen == digest, f"{name} has sha256 {seen}, required is {digest}; restore it from the repository"
    ids: list[int] = np.fromfile(data / "mansfield_park_80k.smollm2.u16", dtype="<u2").tolist()
    return ids


@pytest.fixture(scope="session")
def prompts(text_ids: list[int]) -> dict[str, list[int]]:
    """Pinned prompts: six short ones and one of 600 tokens, whose continuation lies past position 512."""
    pinned = json.loads((HERE / "parity" / "data" / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    return {**{p["name"]: p["ids"] for p in pinned}, "novel": text_ids[:600]}


@pytest.fixture(scope="session")
def window(patient_engine: Engine, hf: HfEager, text_ids: list[int], amk_progress: Progress) -> Callable[[int], WindowComparison]:
    """``window(i)`` compares window i once; P2 and P3 read the same comparison."""
    done: dict[int, WindowComparison] = {}

    def compare(index: int) -> WindowComparison:
        if index not in done:
            ids = text_ids[index * WINDOW : (index + 1) * WINDOW]
            assert len(ids) == WINDOW, f"the text has {len(text_ids) // WINDOW} full windows, window {index} was asked for"
            amk_progress.say(f"window {index}: {WINDOW} tokens through both models")
            # The context is the window: its last rows are the end of the KV cache.
            ours = patient_engine.load(context=WINDOW).logits(ids)
            theirs = hf.logits(ids)
            targets = np.asarray(ids[1:])
            done[index] = WindowComparison(
                parity.logit_distance(ours, theirs), parity.nll_sum(ours[:-1], targets), parity.nll_sum(theirs[:-1], targets)
            )
        return done[index]

    return compare
