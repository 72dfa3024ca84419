"""What a decode step costs: bytes, hand-offs, and what of the bytes passes in the shadow of the hand-offs.

One step in ``fast`` mode at a short context, in microseconds:

    step = hops * hand_off + polled / l2 + layers * max(0, layer_bytes / bandwidth - ring) + max(0, head_bytes / bandwidth - ring)

* ``hops``: dependent phases, five a layer and three around them (embedding, head, sampler);
* ``hand_off``: from the last value of a phase to the last value of the next one, without bytes: the one number that is fitted;
* ``polled``: bytes of tagged or marked values that a CTA reads in a step; every CTA reads all values of a phase, of every row, at
  ``L2_BYTES_PER_US``;
* ``ring``: the time in which the weight ring of an SM fills.  While the hand-offs of attention last, nothing is consumed and the
  ring fills, so that much of each layer's stream costs nothing.

Several sequences change what is polled and what the ring holds; nothing is fitted on them.

Ranks (:func:`predict_ranks`) have hand-offs of their own, and what a CTA multiplies is not hidden behind them:

    step = layers * (hand_offs + bytes_of_a_CTA / rate) + head_bytes_of_a_CTA / head_rate + token

with the rates and token's way of the experiment (26-cluster-step), and of a layer's seven phases what the VM's steps leave
(27-ranks): 2.5 times the experiment's, so no card's profile chooses ranks today.

Quantised weights change the bytes, and nothing else is told of them: their loop is taken to keep up with the stream.

The fit is from an H200.  For another card bandwidth, ring and number of SMs are its own, the hand-off is the H200's: a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amk_core.graph import ModelGraph
from amk_core.quant import QuantFormat
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import GROUP_ROWS
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.schedule.lower_ranks import Ranks
from amk_core.schedule.ops import MAX_PARTS
from amk_core.targets import Target
from amk_core.vm import quant_tape
from amk_core.vm.plan import UNIT_BYTES, Dims, ProgramError, plan_build

HAND_OFF_US = 2.11  # fitted on four models, reports/data/device/2026-11-30-h200-timing.json; tests/test_cost.py repeats the fit
FITTED_ON = "h200"
STREAM_SHARE = 0.954  # of the datasheet's bandwidth that bulk copies reach: 4.58 of 4.8 TB/s on the H200
L2_BYTES_PER_US = 41_700.0  # that one SM reads from L2 with all of them reading: 5.5 TB/s over 132 SMs
LAYER_HOPS, OTHER_HOPS = 5, 3
TAG_BYTES, MARKED_BYTES = 8, 4  # of an element {value, tag} and of one without; a pair of bf16 is one element
# Of ranks: what the VM's 603.9 and 601.5 us of SmolLM2 at position 128 (reports/data/device/development/27-ranks.txt) leave a layer
# when the bytes of a CTA take what they took in the experiment (26-cluster-step.txt).
RANK_HAND_OFFS_US = {8: 15.6, 16: 16.6}
RANK_BYTES_PER_US, RANK_HEAD_BYTES_PER_US, RANK_TOKEN_US = 29_000.0, 41_000.0, 3.3
RANK_MAX_HIDDEN = 2048  # values of a row that a slot of the ring holds
MAX_POSITION = 128  # beyond it attention takes several hand-offs, which the model does not know


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the microseconds of a step go.

    Attributes:
        target: card.
        weight_bytes: bytes streamed a step.
        hops: hand-offs a step.
        hand_off_us: of all hand-offs, without what is polled.
        polled_us: reading tagged or marked values.
        stream_us: weights that are not covered by hand-offs.
        floor_us: all weights at the bandwidth of bulk copies.
    """

    target: str
    weight_bytes: int
    hops: int
    hand_off_us: float
    polled_us: float
    stream_us: float
    floor_us: float

    @property
    def us(self) -> float:
        """The step."""
        return self.hand_off_us + self.polled_us + self.stream_us


def matrix_bytes(rows: int, k: int, fmt: QuantFormat | None) -> int:
    """A matrix on the tape: bf16, or records of codes and scales."""
    return 2 * rows * k if fmt is None else -(-rows // GROUP_ROWS) * int(quant_tape.records_of(k)) * quant_tape.record_bytes(fmt)


def layer_matrices(g: ModelGraph) -> tuple[tuple[int, int], ...]:
    """(rows, K) of the matrices of one layer."""
    q, h, ffn = g.n_heads * g.head_dim, g.hidden_size, g.intermediate_size
    return (q + 2 * g.n_kv_heads * g.head_dim, h), (h, q), (2 * ffn, h), (h, ffn)


def layer_bytes(g: ModelGraph, fmt: QuantFormat | None = None) -> int:
    """Weights of one layer."""
    return sum(matrix_bytes(rows, k, fmt) for rows, k in layer_matrices(g))


def polled_bytes(g: ModelGraph, batch: int = 1, element: int = TAG_BYTES) -> int:
    """Bytes of tagged or marked values that a CTA with a tile in every phase reads in a step."""
    floats = 2 * g.hidden_size  # before the two normalised products
    pairs = (g.n_heads * g.head_dim + g.intermediate_size) // 2
    return batch * element * (g.n_layers * (floats + pairs) + g.hidden_size)


def built(g: ModelGraph, target: Target, quant: QuantConfig | None = None, batch: int = 1) -> Mapping[str, int]:
    """The constants of the program on this card.

    Raises:
        ProgramError: the model does not fit the card's kernels, or values are handed on with counters.
    """
    few, geometry = Target("few", target.arch, 4, target.smem_bytes), Geometry(batch=batch, context=min(g.context, 2048))
    d = Dims.of(lower(g, ScheduleConfig(handoff="tagged"), few, geometry, "fast", quant))
    if not d.tagged:
        raise ProgramError(
            f"{batch} rows of activations take more than a third of a block's shared memory on {target.name}, so phases are joined "
            "by counters, whose cost is not known; take fewer sequences"
        )
    return plan_build(d, target.arch, target.smem_bytes).defines


def ring_bytes(target: Target, defines: Mapping[str, int]) -> int:
    """What the weight rings of all SMs hold."""
    return defines["AMK_SLOTS"] * defines.get("AMK_SLOT_BYTES", defines["AMK_SLOT_UNITS"] * UNIT_BYTES) * target.queues


def predict(
    g: ModelGraph, target: Target, hand_off_us: float = HAND_OFF_US, quant: QuantConfig | None = None, batch: int = 1
) -> Cost:
    """The cost of a decode step of ``batch`` sequences at positions up to ``MAX_POSITION``.

    Raises:
        ValueError: the target is no card whose bandwidth is known.
        ProgramError: the model does not fit the card's kernels.
    """
    if not target.dram_gb_s:
        raise ValueError(f"target {target.name} has no memory bandwidth on record; a cost needs one of the cards")
    per_us = target.dram_gb_s * 1e3 * STREAM_SHARE  # bytes a microsecond
    defines = built(g, target, quant, batch)
    ring_us = ring_bytes(target, defines) / per_us
    layer = layer_bytes(g, quant.layers if quant else None)
    head = matrix_bytes(g.vocab_size, g.hidden_size, quant.head if quant else None)
    hops = LAYER_HOPS * g.n_layers + OTHER_HOPS
    element = MARKED_BYTES if "AMK_MARKED" in defines else TAG_BYTES
    return Cost(
        target.name,
        g.n_layers * layer + head,
        hops,
        hops * hand_off_us,
        polled_bytes(g, batch, element) / L2_BYTES_PER_US,
        g.n_layers * max(0.0, layer / per_us - ring_us) + max(0.0, head / per_us - ring_us),
        (g.n_layers * layer + head) / per_us,
    )


def predict_ranks(g: ModelGraph, ranks: Ranks) -> float:
    """Microseconds of a decode step at position 128 on an H200 by ranks of KV heads; fitted on one model, see above.

    Raises:
        ValueError: clusters of a size that was not measured.
    """
    if ranks.cluster not in RANK_HAND_OFFS_US:
        raise ValueError(f"clusters of {ranks.cluster}, measured are {', '.join(map(str, RANK_HAND_OFFS_US))}")
    d, h, units = g.head_dim, g.hidden_size, -(-g.intermediate_size // ranks.count)
    group = g.n_heads // g.n_kv_heads
    heads = -(-g.n_kv_heads // ranks.count)  # of the busiest rank
    layer = 2 * h * (heads * ((group + 2) * d + group * d) + 3 * units) / ranks.cluster
    head = 2 * g.vocab_size * h / ranks.queues
    per_layer = RANK_HAND_OFFS_US[ranks.cluster] + layer / RANK_BYTES_PER_US
    return g.n_layers * per_layer + head / RANK_HEAD_BYTES_PER_US + RANK_TOKEN_US


def best_ranks(g: ModelGraph, target: Target) -> Ranks | None:
    """The ranks that should decode one sequence in ``fast``; None: the program without ranks should be as quick.

    Ranks are for models whose hand-offs last longer than the stream of their weights: what they save are hand-offs.
    """
    if not target.clusters or not target.dram_gb_s or g.hidden_size > RANK_MAX_HIDDEN or g.n_kv_heads > MAX_PARTS:
        return None
    plain = predict(g, target)
    if plain.hand_off_us <= plain.floor_us:
        return None
    sizes = [(size, count) for size, count in target.clusters if size in RANK_HAND_OFFS_US]
    fitting = [(min(count, MAX_PARTS, target.queues // size), size) for size, count in sizes]
    found = [Ranks(count, size) for count, size in fitting if count > 0]
    best = min(found, key=lambda r: predict_ranks(g, r), default=None)
    return best if best is not None and predict_ranks(g, best) < plain.us else None


def fit(measured: Mapping[str, Sequence[float]], graphs: Mapping[str, ModelGraph], target: Target) -> float:
    """The hand-off that makes the squared relative errors of the steps least.

    Args:
        measured: microseconds a step by model, at one or several short positions.
    """
    top = bottom = 0.0
    for name, values in measured.items():
        c = predict(graphs[name], target, 1.0)
        rest = c.us - c.hops
        for us in values:
            top += c.hops * (us - rest) / us**2
            bottom += (c.hops / us) ** 2
    return top / bottom
