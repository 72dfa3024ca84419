"""The weights of a Llama-family model as torch tensors, one set for every torch baseline, fused and as HuggingFace sees them.

Weights come from a live transformers model or are drawn at random in a public shape.  Random ones are labelled so, and have planted
outlier channels, because trained models have them and because without them a wrong rounding hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amk_core.graph import ModelGraph

OUTLIERS = 4  # channels of the residual stream
OUTLIER_GAIN = 4.0  # their norm weights and rows against the others'; with more, bf16 says little about fp32
STD = 0.02


@dataclass(frozen=True, slots=True)
class TorchWeights:
    """Tensors by canonical name, on one device in one type; ``L0.qkv`` [q + 2 kv, h] and ``L0.gate_up`` [2 f, h] are fused.

    Those of a quantised model that torch multiplies as codes are products (:mod:`.products`) and no tensors.  ``origin`` says where
    they come from, for every result.
    """

    graph: ModelGraph
    tensors: dict[str, Any]
    origin: str

    @property
    def head(self) -> Any:
        return self.tensors[self.graph.head_weight]

    def memory(self) -> list[Any]:
        """Every tensor, those inside of products too."""
        return [t for w in self.tensors.values() for t in (w.tensors() if hasattr(w, "tensors") else [w])]

    def split(self) -> dict[str, Any]:
        """HuggingFace's names -> tensors that share the memory of these."""
        g, out = self.graph, {}
        out["model.embed_tokens.weight"] = self.tensors["embed"]
        out["model.norm.weight"] = self.tensors["final_norm"]
        out["lm_head.weight"] = self.head
        for i in range(g.n_layers):
            t, p = (
                {k: self.tensors[f"L{i}.{k}"] for k in ("qkv", "o", "gate_up", "down", "attn_norm", "mlp_norm")},
                f"model.layers.{i}.",
            )
            q, k, v = t["qkv"].split([g.q_size, g.kv_size, g.kv_size])
            gate, up = t["gate_up"].split([g.intermediate_size] * 2)
            named = {
                "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": t["o"],
                "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": t["down"],
                "input_layernorm": t["attn_norm"], "post_attention_layernorm": t["mlp_norm"],
            }  # fmt: skip
            out |= {f"{p}{name}.weight": tensor for name, tensor in named.items()}
        return out

    def to(self, dtype: Any) -> TorchWeights:
        """The same values in another type, copied."""
        return TorchWeights(self.graph, {k: t.to(dtype) for k, t in self.tensors.items()}, self.origin)

    def bytes_a_step(self, batch: int = 1) -> int:
        """Bytes of weights that a decode step reads."""
        total: int = sum(t.nbytes for t in self.tensors.values())
        if not self.graph.tied_head:  # one row a sequence of an embedding that is not the head
            total -= self.tensors["embed"].nbytes - batch * self.graph.hidden_size * self.tensors["embed"].element_size()
        return total


def random_weights(graph: ModelGraph, seed: int, device: str, dtype: Any) -> TorchWeights:
    """Seeded normal weights of the graph's shape, made on the device, with outlier channels in norms and residual matrices."""
    import torch

    g = graph
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, STD, generator=generator)

    def norm() -> Any:
        w = torch.empty(g.hidden_size, device=device, dtype=torch.float32).uniform_(0.5, 1.5, generator=generator)
        w[channels] *= OUTLIER_GAIN
        return w.to(dtype)

    channels = torch.randperm(g.hidden_size, generator=generator, device=device)[:OUTLIERS]
    tensors = {"embed": normal(g.vocab_size, g.hidden_size)}
    for i in range(g.n_layers):
        layer = {
            "attn_norm": norm(), "qkv": normal(g.q_size + 2 * g.kv_size, g.hidden_size), "o": normal(g.hidden_size, g.q_size),
            "mlp_norm": norm(), "gate_up": normal(2 * g.intermediate_size, g.hidden_size),
            "down": normal(g.hidden_size, g.intermediate_size),
        }  # fmt: skip
        for name in ("o", "down"):
            layer[name][channels] *= OUTLIER_GAIN
        tensors |= {f"L{i}.{name}": tensor for name, tensor in layer.items()}
    tensors["final_norm"] = norm()
    if not g.tied_head:
        tensors["head"] = normal(g.vocab_size, g.hidden_size)
    planted = ", ".join(map(str, sorted(channels.tolist())))
    return TorchWeights(g, tensors, f"random weights, seed {seed}, outlier channels {planted}")


def from_live(graph: ModelGraph, model: Any, device: str, dtype: Any) -> TorchWeights:
    """Copies of a live transformers model's weights, fused."""
    import torch

    state = {name: t.detach() for name, t in model.state_dict().items()}

    def get(*names: str) -> Any:
        return (
            torch.cat([state[n].to(device=device, dtype=dtype) for n in names])
            if len(names) > 1
            else state[names[0]].to(device=device, dtype=dtype)
        )

    tensors = {"embed": get("model.embed_tokens.weight"), "final_norm": get("model.norm.weight")}
    for i in range(graph.n_layers):
        p = f"model.layers.{i}."
        attention, mlp = p + "self_attn.", p + "mlp."
        tensors |= {
            f"L{i}.qkv": get(*(f"{attention}{x}_proj.weight" for x in "qkv")), f"L{i}.o": get(f"{attention}o_proj.weight"),
            f"L{i}.gate_up": get(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"), f"L{i}.down": get(f"{mlp}down_proj.weight"),
            f"L{i}.attn_norm": get(f"{p}input_layernorm.weight"), f"L{i}.mlp_norm": get(f"{p}post_attention_layernorm.weight"),
        }  # fmt: skip
    if not graph.tied_head:
        tensors["head"] = get("lm_head.weight")
    return TorchWeights(graph, tensors, "the checkpoint's weights")


def hf_config(graph: ModelGraph) -> Any:
    """The transformers configuration that computes what the graph says; ValueError for a rotary kind it has no fields for."""
    from transformers import LlamaConfig

    rope = graph.rope
    fields: dict[str, Any] = {"rope_theta": rope.theta, "rope_type": rope.kind}
    if rope.kind == "llama3":
        fields |= {
            "factor": rope.factor, "low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        }  # fmt: skip
    elif rope.kind != "default":
        raise ValueError(f"a transformers model with {rope.kind} rotary scaling is built from its checkpoint, not from a shape")
    kind: Any = LlamaConfig
    config = kind(
        vocab_size=graph.vocab_size, hidden_size=graph.hidden_size, intermediate_size=graph.intermediate_size,
        num_hidden_layers=graph.n_layers, num_attention_heads=graph.n_heads, num_key_value_heads=graph.n_kv_heads,
        head_dim=graph.head_dim, rms_norm_eps=graph.norm_eps, max_position_embeddings=graph.context,
        tie_word_embeddings=graph.tied_head, rope_theta=rope.theta,
    )  # fmt: skip
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = fields
    elif rope.kind != "default":
        config.rope_scaling = {k: v for k, v in fields.items() if k != "rope_theta"}
    return config


def hf_model(weights: TorchWeights) -> Any:
    """A ``LlamaForCausalLM`` on these very tensors (no copy), in evaluation mode."""
    import torch
    from transformers import LlamaForCausalLM

    config = hf_config(weights.graph)
    embed = weights.tensors["embed"]
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(embed.dtype)
    model.load_state_dict(weights.split(), strict=True, assign=True)
    if weights.graph.tied_head:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(embed.device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.config._name_or_path = weights.graph.name
    return model.eval()
