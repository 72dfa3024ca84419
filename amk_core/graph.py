"""ModelGraph: what a Llama-family model computes, with every number that changes the arithmetic and no weights.

The importer builds one from a checkpoint; lowering reads one; ``GRAPH_SHAPES`` holds the shapes of well-known public models, so
that schedules of their size can be built without their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "bf16": 2, "f16": 2})
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


class GraphError(ValueError):
    """The numbers do not describe a model of this family; the message names the field, what was seen and what is required."""


def _require(ok: bool, field: str, seen: object, required: str) -> None:
    if not ok:
        raise GraphError(f"{field} is {seen!r}; required is {required}. Correct the model's config.json.")


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _is_count(x: object, least: int = 1) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= least


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding: the angle tables follow from these numbers alone (``amk_core.importer.rope.rope_tables``).

    ``context`` is the model's ``max_position_embeddings``, ``original_context`` the one before scaling.  Fields that a kind does
    not use keep their defaults.  ``attention_factor`` None means: derived from ``factor`` (and the two mscales), as yarn says.
    Rotation is half-split, over the whole head.
    """

    kind: str
    theta: float
    head_dim: int
    context: int
    factor: float = 1.0
    original_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _require(self.kind in ROPE_KINDS, "rope.kind", self.kind, "one of " + ", ".join(ROPE_KINDS))
        _require(_is_number(self.theta) and self.theta > 0, "rope.theta", self.theta, "a positive number")
        _require(_is_count(self.head_dim, 2) and self.head_dim % 2 == 0, "rope.head_dim", self.head_dim, "an even number")
        _require(_is_count(self.context), "rope.context", self.context, "a positive integer")
        _require(_is_number(self.factor) and self.factor >= 1, "rope.factor", self.factor, "a number of at least 1")
        for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            x = getattr(self, name)
            _require(_is_number(x) and x > 0, f"rope.{name}", x, "a positive number")
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            x = getattr(self, name)
            _require(x is None or (_is_number(x) and x >= 0), f"rope.{name}", x, "absent or a number of at least 0")
        if self.kind in ("yarn", "llama3"):
            _require(_is_count(self.original_context), "rope.original_context", self.original_context, "a positive integer")
        if self.kind == "llama3":
            _require(
                self.high_freq_factor > self.low_freq_factor,
                "rope.high_freq_factor", self.high_freq_factor, f"more than rope.low_freq_factor = {self.low_freq_factor}",
            )  # fmt: skip
        if self.kind == "yarn":
            _require(self.beta_fast > self.beta_slow, "rope.beta_fast", self.beta_fast, f"more than beta_slow = {self.beta_slow}")
        if self.kind == "dynamic":
            _require(self.head_dim > 2, "rope.head_dim", self.head_dim, "more than 2 for dynamic scaling")

    def __repr__(self) -> str:
        return _short_repr(self, {"kind", "theta", "head_dim", "context"})


@dataclass(frozen=True, slots=True)
class Node:
    """One fused operation.  ``layer`` is -1 outside the layers; ``weights`` are canonical names; ``op`` is a name of the
    schedule's table of operations (its split forms are a choice of lowering)."""

    op: str
    layer: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.op if self.layer < 0 else f"L{self.layer}.{self.op}"


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A decoder of the Llama family: pre-norm RMSNorm, GQA attention with RoPE, SwiGLU MLP, no biases.

    ``context`` is the number of trained positions, ``attn_scale`` multiplies q.k, ``stored_dtype`` (f32, bf16, f16) is how most of
    the matrices are stored.  Matrices are [out, in], as in HuggingFace.  Raises :class:`GraphError` on construction.
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    tied_head: bool
    context: int
    rope: RopeSpec
    attn_scale: float
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    stored_dtype: str = "bf16"

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "intermediate_size", "n_layers", "n_heads", "n_kv_heads", "context"):
            x = getattr(self, field)
            _require(_is_count(x), field, x, "a positive integer")
        _require(bool(self.name), "name", self.name, "a non-empty string")
        _require(
            self.n_heads % self.n_kv_heads == 0,
            "n_heads", self.n_heads, f"a multiple of n_kv_heads = {self.n_kv_heads}",
        )  # fmt: skip
        _require(_is_count(self.head_dim, 2) and self.head_dim % 2 == 0, "head_dim", self.head_dim, "a positive even integer")
        _require(self.rope.head_dim == self.head_dim, "rope.head_dim", self.rope.head_dim, f"head_dim = {self.head_dim}")
        _require(self.rope.context == self.context, "rope.context", self.rope.context, f"context = {self.context}")
        _require(_is_number(self.norm_eps) and self.norm_eps > 0, "norm_eps", self.norm_eps, "a positive number")
        _require(_is_number(self.attn_scale) and self.attn_scale > 0, "attn_scale", self.attn_scale, "a positive number")
        _require(isinstance(self.tied_head, bool), "tied_head", self.tied_head, "true or false")
        _require(self.stored_dtype in DTYPE_BYTES, "stored_dtype", self.stored_dtype, "one of " + ", ".join(DTYPE_BYTES))
        _require(isinstance(self.eos_ids, tuple), "eos_ids", self.eos_ids, "a tuple of token ids")
        for field, ids in (("bos_id", () if self.bos_id is None else (self.bos_id,)), ("eos_ids", self.eos_ids)):
            for x in ids:
                _require(_is_count(x, 0) and x < self.vocab_size, field, x, f"a token id below vocab_size = {self.vocab_size}")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def head_weight(self) -> str:
        """Canonical name of the tensor the LM head multiplies with: the embedding where the two are tied."""
        return "embed" if self.tied_head else "head"

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every stored tensor, in execution order; a tied head is not listed a second time."""
        h, f, q, kv = self.hidden_size, self.intermediate_size, self.q_size, self.kv_size
        out: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, h)}
        for i in range(self.n_layers):
            layer: dict[str, tuple[int, ...]] = {
                "attn_norm": (h,), "q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q),
                "mlp_norm": (h,), "gate": (f, h), "up": (f, h), "down": (h, f),
            }  # fmt: skip
            out |= {f"L{i}.{name}": shape for name, shape in layer.items()}
        out["final_norm"] = (h,)
        if not self.tied_head:
            out["head"] = (self.vocab_size, h)
        return out

    def parameters(self) -> int:
        """Number of stored parameters; a tied head counts once, as HuggingFace counts."""
        return sum(math.prod(shape) for shape in self.weight_shapes().values())

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all stored weights in ``dtype`` (f32, bf16, f16), by default the stored one."""
        dtype = dtype or self.stored_dtype
        _require(dtype in DTYPE_BYTES, "dtype", dtype, "one of " + ", ".join(DTYPE_BYTES))
        return self.parameters() * DTYPE_BYTES[dtype]

    def kv_bytes(self, positions: int, dtype: str = "f32") -> int:
        """Bytes of keys and values of ``positions`` positions of one sequence, over all layers."""
        return 2 * self.n_layers * self.kv_size * positions * DTYPE_BYTES[dtype]

    def nodes(self) -> tuple[Node, ...]:
        """The operations of one step in execution order.

        ``h{i}`` is the residual stream at the entry of layer i, ``L{i}.mid`` the one after attention; ``L{i}.k`` and ``L{i}.v`` are
        rows appended to the cache.  ``qkv``, ``gate_up`` and ``lm_head`` begin with their RMSNorm; ``qkv`` ends with the rotation,
        ``gate_up`` with the SiLU product, ``o_proj`` and ``down_proj`` with the residual addition.
        """
        out = [Node("embed", -1, ("token",), ("h0",), ("embed",))]
        for i in range(self.n_layers):
            p, h = f"L{i}", f"h{i}"
            out += [
                Node("qkv", i, (h,), (f"{p}.q", f"{p}.k", f"{p}.v"), (f"{p}.attn_norm", f"{p}.q", f"{p}.k", f"{p}.v")),
                Node("attn", i, (f"{p}.q", f"{p}.k", f"{p}.v"), (f"{p}.attn",)),
                Node("o_proj", i, (f"{p}.attn", h), (f"{p}.mid",), (f"{p}.o",)),
                Node("gate_up", i, (f"{p}.mid",), (f"{p}.act",), (f"{p}.mlp_norm", f"{p}.gate", f"{p}.up")),
                Node("down_proj", i, (f"{p}.act", f"{p}.mid"), (f"h{i + 1}",), (f"{p}.down",)),
            ]
        out.append(Node("lm_head", -1, (f"h{self.n_layers}",), ("logits",), ("final_norm", self.head_weight)))
        out.append(Node("sample", -1, ("logits",), ("next_token",)))
        return tuple(out)

    def to_networkx(self) -> nx.DiGraph:
        """The nodes as a networkx DiGraph (attribute ``node``; edges carry the ``values`` that flow)."""
        import networkx as nx

        g: Any = nx.DiGraph(name=self.name)
        producer: dict[str, str] = {}
        for node in self.nodes():
            g.add_node(node.name, node=node)
            for value in node.inputs:
                source = producer.get(value)
                if source is None:
                    continue
                if g.has_edge(source, node.name):
                    g.edges[source, node.name]["values"] += (value,)
                else:
                    g.add_edge(source, node.name, values=(value,))
            producer |= {value: node.name for value in node.outputs}
        return g

    def __repr__(self) -> str:
        return _short_repr(self, {"name", "n_layers", "hidden_size", "n_heads", "n_kv_heads", "head_dim", "vocab_size"})


def _short_repr(x: RopeSpec | ModelGraph, always: set[str]) -> str:
    """``Type(field=value, ...)`` without the fields that stand at their default."""
    fields = []
    for name, f in type(x).__dataclass_fields__.items():
        if name in always or getattr(x, name) != f.default:
            fields.append(f"{name}={getattr(x, name)!r}")
    return f"{type(x).__name__}({', '.join(fields)})"


def _shape(
    name: str, vocab: int, hidden: int, ffn: int, layers: int, heads: tuple[int, int, int], context: int, theta: float,
    tied: bool, bos: int, eos: tuple[int, ...], llama3_factor: float | None = None,
) -> ModelGraph:  # fmt: skip
    n_heads, n_kv, head_dim = heads
    if llama3_factor is None:
        rope = RopeSpec("default", theta, head_dim, context)
    else:
        rope = RopeSpec("llama3", theta, head_dim, context, factor=llama3_factor, original_context=8192)
    return ModelGraph(
        name, "llama", vocab, hidden, ffn, layers, n_heads, n_kv, head_dim, 1e-5, tied, context, rope, head_dim**-0.5, bos, eos
    )


# Values of the public config.json of each model (SmolLM2: the Instruct one).
GRAPH_SHAPES: Mapping[str, ModelGraph] = MappingProxyType({
    g.name: g
    for g in (
        _shape("smollm2-135m", 49152, 576, 1536, 30, (9, 3, 64), 8192, 1e5, True, 1, (2,)),
        _shape("tinyllama-1.1b", 32000, 2048, 5632, 22, (32, 4, 64), 2048, 1e4, False, 1, (2,)),
        _shape("llama-3.2-1b", 128256, 2048, 8192, 16, (32, 8, 64), 131072, 5e5, True, 128000, (128001,), 32.0),
        _shape("llama-3.1-8b", 128256, 4096, 14336, 32, (32, 8, 128), 131072, 5e5, False, 128000, (128001,), 8.0),
    )
})  # fmt: skip
