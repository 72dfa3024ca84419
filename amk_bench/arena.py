"""One model on one device, ours and the baselines on the same weights, and what both are held to: cells are measured here.

Made by :func:`on_cpu` or :func:`on_card`; the latency suite and :mod:`amk_bench.baselines.run` both measure through it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amk_bench.baselines import registry
from amk_bench.baselines.hf import HfEager
from amk_bench.baselines.reference import Limits, Reference, check_logits
from amk_bench.cell import Cell, Plan
from amk_bench.clock import Clock, CpuClock
from amk_bench.engine import F32, Engine
from amk_bench.floor import step_bytes
from amk_bench.measure import Result, Run, Sitting, ended, noise, sittings
from amk_bench.ours import Ours
from amk_bench.results import ParityRecord
from amk_bench.stats import noise_floor

if TYPE_CHECKING:
    from amk_bench.baselines.weights import TorchWeights
    from amk_core.graph import ModelGraph
    from amk_core.quant.config import QuantConfig

WIDTHS = {"fp32": 4, "bf16": 2}  # bytes of a weight and of a number in the cache
# What returns to the host for every kernel of a step takes many times as long: fewer steps tell as much of it.
SLOW, SLOW_TOKENS, SLOW_BLOCKS = "hf-eager", 4, 6
LEAST_ROWS = 2176  # of every static cache on a card
LEAN_FROM = 1e9  # weights: from so many on, the reference in float32 has none of its own


class NoRoom(RuntimeError):
    """The card's memory does not hold the engines and the reference side by side; the message has both figures."""


@dataclass(slots=True)
class Arena:
    """What cells of one model on one device have in common.

    Attributes:
        graph, model: the shape, and the name in the table.
        device: the name in the table.
        setting: what baselines are made for.
        ours: our engine.
        reference: HuggingFace in float32 on the same weights, with caches of its own.
        text: ids whose beginnings fill the caches.
        clocks: of our engine and of the baselines, which work on other streams.
        seed: of first tokens and forced ones.
        origin: where the weights come from, "" where from the model's checkpoint.
    """

    graph: ModelGraph
    model: str
    device: str
    mode: str
    setting: registry.Setting
    ours: Ours
    reference: Reference
    text: Sequence[int]
    clocks: tuple[Clock, Clock]
    seed: int
    origin: str
    engines: dict[str, Engine] = field(default_factory=dict)
    _at: int | None = None
    _held: tuple[list[list[int]], Any, Limits] | None = None
    _parity: dict[tuple[str, int], ParityRecord | None] = field(default_factory=dict)
    _floor: float | None = None

    def rival(self, name: str) -> Engine:
        """The baseline of that name, made and run once, so that what it compiles is compiled.

        Raises BaselineUnavailable where it cannot be had here, and whatever a broken one raises.
        """
        if name not in self.engines:
            engine = self.setting.shared.pop(f"launched {name}", None) or registry.make(name, self.setting)
            warm(engine, self.setting.batch)
            self.engines[name] = engine
        return self.engines[name]

    def cell(self, position: int, rival: str = "") -> Cell:
        """The cell at ``position``: bytes a step from the shape, of quantised weights those of codes and scales; first tokens
        drawn from the text.
        """
        width, quantised = WIDTHS[self.setting.precision], self.setting.shared.get("quantised")
        theirs = ours = step_bytes(self.graph, width, position, self.setting.batch, width)
        if quantised is not None:
            ours += quantised.step_bytes(width) - step_bytes(self.graph, width)
            theirs = theirs if rival in registry.BUILT_IN else ours
        vocabulary = tuple(sorted(set(self.text)))
        prefix = tuple(self.text[:position])
        return Cell(self.device, self.model, self.mode, self.setting.batch, prefix, vocabulary, ours, theirs, self.origin)

    def limits(self, position: int) -> Limits:
        """Brings the reference to ``position`` and says how far engines may be from it there."""
        return self._enter(position)[2]

    def _enter(self, position: int) -> tuple[list[list[int]], Any, Limits]:
        if self._held is None or self._at != position:
            self._held = self.reference.enter(self.cell(position), self.seed)
            self._at = position
        return self._held

    def parity(self, engine: Any, position: int) -> ParityRecord | None:
        """P2 of the very step that is timed, once an engine and position.

        None for an engine that shows no logits, and where nothing is rounded below float32: tokens have no slack there.
        """
        key = (engine.name, position)
        if key not in self._parity:
            forced, wanted, limits = self._enter(position)
            held = limits.hf_error > 0 and hasattr(engine, "trace")
            self._parity[key] = check_logits(engine, self.cell(position), forced, wanted, limits) if held else None
        return self._parity[key]

    def floor(self, position: int, plan: Plan) -> float:
        """The device's noise floor, measured once: ours against ourselves."""
        if self._floor is None:
            self._floor = noise_floor(noise(cast("Engine", self.ours), self.cell(position), plan, self.clocks[0]))
        return self._floor

    def compare(self, name: str, position: int, plan: Plan, floor: float, watch: Callable[[Run], Run] = lambda run: run) -> Result:
        """One pair in one cell (:func:`amk_bench.measure.compare`); the baseline has been made."""
        return ended(self.sittings(name, position, plan, floor, watch))

    def sittings(
        self,
        name: str,
        position: int,
        plan: Plan,
        floor: float,
        watch: Callable[[Run], Run] = lambda run: run,
        halves: bool = False,
    ) -> Sitting:
        """The same, with a pause half-way where ``halves`` (:func:`amk_bench.measure.sittings`)."""
        if name == SLOW and self.setting.device == "cuda":
            plan = dataclasses.replace(plan, tokens=min(plan.tokens, SLOW_TOKENS), blocks=min(plan.blocks, SLOW_BLOCKS))
        plan = dataclasses.replace(plan, slack=self.limits(position).slack)
        engine = self.engines[name]
        clock, other = self.clocks[0], getattr(engine, "clock", self.clocks[1])  # one in its own process has its own

        def score(ids: Sequence[int], keep: int) -> F32:
            self.limits(position)  # another cell may have been measured during the pause
            return self.reference.score(ids, keep)

        return (
            yield from sittings(
                cast("Engine", self.ours), engine, self.cell(position, name), plan, clock, floor, score, watch, other, halves
            )
        )


def warm(engine: Any, batch: int) -> None:
    """One short text through an engine: compiles and captures what has to be."""
    engine.prepare([1] * 3, batch, 4)
    engine.decode([1] * batch, 3)


def rows_for(graph: ModelGraph, last: int, tokens: int) -> int:
    """Rows of the caches for cells up to position ``last``: a multiple of 128, within the model's context."""
    return min(max(LEAST_ROWS, -(-(last + tokens + 1) // 128) * 128), graph.context)


def on_cpu(hf: HfEager, ours: Ours, model: str, device: str, text: Sequence[int], seed: int) -> Arena:
    """Both sides in float32 on the processor; ``hf`` is at the same time the baseline of that name."""
    live = hf.model
    setting = registry.Setting(model, live, "cpu", ours.precision, ours.model.context, ours.model.batch, hf.threads)
    clock = CpuClock()
    reference = Reference(HfEager(live, hf.threads), None)
    return Arena(
        ours.model.graph, model, device, ours.model.mode, setting, ours, reference, text, (clock, clock), seed, ""
    )  # fmt: skip


def random_model(graph: ModelGraph, seed: int) -> tuple[Any, dict[str, Any], str]:
    """A bf16 model of a public shape on the card: the transformers model, what baselines share of it, and its origin."""
    import torch

    from amk_bench.baselines.weights import hf_model, random_weights

    weights = random_weights(graph, seed, "cuda", torch.bfloat16)
    return hf_model(weights), {"weights": weights}, weights.origin


def quantised_model(weights: TorchWeights, config: QuantConfig) -> tuple[Any, dict[str, Any], str]:
    """A model whose weights are rounded to ``config``: for what takes no codes a transformers model of the values that they stand
    for, in the type of ``weights``; what baselines share of it, and its origin.
    """
    import torch

    from amk_bench.baselines.quantised import Quantised
    from amk_bench.baselines.weights import hf_model

    quantised = Quantised(weights, config)
    if quantised.matrices["L0.qkv"].codes.is_cuda:
        torch.cuda.empty_cache()  # what was rounded; ours is not allocated through torch
    stored = quantised.stored()
    return hf_model(stored), {"weights": stored, "quantised": quantised}, quantised.origin


def random_quantised(graph: ModelGraph, seed: int, config: QuantConfig) -> tuple[Any, dict[str, Any], str]:
    """As :func:`random_model`, rounded to ``config``."""
    import torch

    from amk_bench.baselines.weights import random_weights

    return quantised_model(random_weights(graph, seed, "cuda", torch.bfloat16), config)


def real_quantised(folder: str | Path, threads: int, config: QuantConfig) -> tuple[Any, dict[str, Any], str]:
    """A checkpoint's weights in bf16, rounded to ``config``, as :func:`quantised_model` gives them."""
    import torch

    from amk_bench.baselines.weights import from_live
    from amk_core.importer import open_model

    live = real_model(folder, "fast", threads)
    return quantised_model(from_live(open_model(live).graph, live, "cuda", torch.bfloat16), config)


def real_model(folder: str | Path, mode: str, threads: int) -> Any:
    """A checkpoint as a transformers model on the card, in the precision of ``mode``."""
    model = HfEager(folder, threads, "fp32" if mode == "exact" else "bf16", "cuda").model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def on_card(
    live: Any, graph: ModelGraph, mode: str, *, model: str, text: Sequence[int], rows: int, seed: int, threads: int,
    origin: str = "", batch: int = 1, shared: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Arena:  # fmt: skip
    """Everything on the first card, on the weights of ``live`` (a transformers model there, bf16 for ``fast``, else float32).

    Where ``shared`` has quantised weights (:func:`quantised_model`), ours runs on them and the reference on what they stand for.

    Raises NoRoom where the memory does not hold it, and what loading ours raises.
    """
    import torch

    import amk_core
    from amk_bench.cuda_clock import CudaClock, DriverEvents, TorchEvents
    from amk_core.importer import open_model

    precision, quantised = "fp32" if mode == "exact" else "bf16", (shared or {}).get("quantised")
    lean = graph.parameters() > LEAN_FROM or quantised is not None
    _room(graph, WIDTHS[precision], bool(shared), lean)
    low = None if mode == "exact" else HfEager(live, threads, "bf16", "cuda")
    exact = None if quantised is None else quantised.exact()
    reference = Reference(HfEager(live, threads, "fp32", "cuda", lean, exact), low)
    setting = registry.Setting(
        model, live, "cuda", precision, rows, batch, threads, {**(shared or {}), f"hf {precision} cuda": live}
    )
    weights = None if quantised is None else quantised.ours(open_model(live).weights.get)
    loaded = amk_core.load(live, mode=cast(Any, mode), backend="cuda", batch=batch, context=rows, weights=weights)
    ours = Ours(loaded)
    warm(ours, batch)
    say("ours ready")
    clocks = CudaClock(DriverEvents(loaded._card.device, ours.stream)), CudaClock(TorchEvents())
    name = torch.cuda.get_device_name()
    return Arena(graph, model, name, mode, setting, ours, reference, text, clocks, seed, origin)


def _room(graph: ModelGraph, width: int, fused: bool, lean: bool) -> None:
    """Ours, the fused weights where they are not there yet, and a float32 reference, beside the model that is on the card."""
    import torch

    a_weight = width + (0 if fused else width) + (4 if width < 4 and not lean else 0)
    need, free = graph.parameters() * a_weight * 1.05 + 2e9, torch.cuda.mem_get_info()[0]
    if need > free:
        raise NoRoom(
            f"{graph.name}: ours, the baselines and the float32 reference side by side need {need / 1e9:.0f} GB more, "
            f"{free / 1e9:.0f} GB of the card are free"
        )
