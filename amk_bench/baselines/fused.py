"""One decode step of a Llama-family model in PyTorch, written for speed: fused matrices, one KV tensor, no host in the loop.

The step reads and writes device tensors alone (token, position, KV rows, output ids), so that it can be captured in a CUDA graph
and replayed at any position.  Attention is the flash-attention kernel that ships with torch, which splits the keys over the device
and reads no more of the cache than is filled; where there is none (CPU, fp32), it is masked scaled-dot-product attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from amk_bench.baselines.products import linear
from amk_bench.baselines.weights import TorchWeights
from amk_core.importer.rope import rope_tables

FLASH_LEAST = (8, 0)  # compute capability of the kernel


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a layer needs to know besides its tensors."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    rows: int  # positions of the cache a sequence
    flash: bool
    functional: bool  # for a compiler: no writes into intermediate results


@dataclass(slots=True)
class Place:
    """Where a step is, [batch] tensors.  ``row``: the KV row it writes; ``used``: rows it reads; the rest serves attention."""

    row: Any
    used: Any
    cos: Any
    sin: Any
    starts_q: Any
    starts_k: Any
    mask: Any


def _rotate(qkv: Any, place: Place, s: Sizes) -> tuple[Any, Any]:
    """Splits [batch, heads + 2 kv_heads, head_dim] into rotated queries and the rows to keep (rotated keys, values).

    Rotation is half-split; the sine carries the sign.
    """
    n = s.heads + s.kv_heads
    if s.functional:
        # Apart, so that the compiler writes the new rows straight into the cache.
        queries, keys = (
            (t * place.cos + torch.roll(t, s.head_dim // 2, -1) * place.sin).to(qkv.dtype)
            for t in (qkv[:, : s.heads], qkv[:, s.heads : n])
        )
        return queries, torch.cat((keys, qkv[:, n:]), 1)
    turned = qkv[:, :n]
    torch.addcmul(turned * place.cos, torch.roll(turned, s.head_dim // 2, -1), place.sin, out=turned)
    return qkv[:, : s.heads], qkv[:, s.heads :]


def _attend(q: Any, kv: Any, place: Place, s: Sizes) -> Any:
    """Attention of one query a sequence over its filled rows of kv [batch * rows, 2 kv_heads, head_dim]."""
    batch = q.shape[0]
    k, v = kv[:, : s.kv_heads], kv[:, s.kv_heads :]
    if s.flash:
        out = torch.ops.aten._flash_attention_forward(
            q, k, v, place.starts_q, place.starts_k, 1, s.rows, 0.0, False, False, scale=s.scale, seqused_k=place.used
        )[0]
    else:
        k, v = (t.view(batch, s.rows, s.kv_heads, s.head_dim).transpose(1, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=place.mask, scale=s.scale, enable_gqa=True)
    return out.reshape(batch, -1)


def _linear_add(x: Any, a: Any, w: Any, s: Sizes) -> Any:
    """x + a w^T; outside a compiler the product of a tensor adds to x in place, in one kernel."""
    return x + linear(a, w) if s.functional or not isinstance(w, torch.Tensor) else x.addmm_(a, w.t())


def layer(x: Any, kv: Any, place: Place, s: Sizes, attn_norm: Any, qkv: Any, o: Any, mlp_norm: Any, gate_up: Any, down: Any) -> Any:
    """One layer: x [batch, hidden] -> x; appends a row of keys and values."""
    h = F.rms_norm(x, (x.shape[-1],), attn_norm, s.eps)
    queries, rows = _rotate(linear(h, qkv).view(x.shape[0], s.heads + 2 * s.kv_heads, s.head_dim), place, s)
    kv.index_copy_(0, place.row, rows)
    x = _linear_add(x, _attend(queries, kv, place, s), o, s)
    h = F.rms_norm(x, (x.shape[-1],), mlp_norm, s.eps)
    gate, up = linear(h, gate_up).chunk(2, -1)
    return _linear_add(x, F.silu(gate) * up, down, s)


def head(x: Any, norm: Any, w: Any, eps: float) -> tuple[Any, Any]:
    """Logits [batch, vocabulary] and their argmax [batch]."""
    logits = linear(F.rms_norm(x, (x.shape[-1],), norm, eps), w)
    return logits, logits.argmax(-1)


class FusedStep:
    """The step with its state.  ``compile`` wraps the layer (once, for all layers) and the head; see :mod:`.engines`.

    Attributes:
        token, position: [batch] int64: what the next step reads; a step writes both.
        out: [rows, batch] int64: ids by step since :meth:`start`.
        logits: [batch, vocabulary] of the last step.
    """

    def __init__(
        self, weights: TorchWeights, batch: int, rows: int, *, functional: bool = False,
        compile: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f,
    ) -> None:  # fmt: skip
        g, embed = weights.graph, weights.tensors["embed"]
        device, dtype = embed.device, embed.dtype
        flash = (
            device.type == "cuda"
            and dtype in (torch.bfloat16, torch.float16)
            and torch.cuda.get_device_capability(device) >= FLASH_LEAST
            and g.head_dim % 8 == 0
            and g.head_dim <= 256
        )
        self.weights, self.batch, self.rows, self.flash = weights, batch, rows, flash
        self.sizes = Sizes(g.n_heads, g.n_kv_heads, g.head_dim, g.norm_eps, g.attn_scale, rows, flash, functional)
        # The whole caches of all layers in one allocation: one fill empties them.
        self.kv = torch.zeros(g.n_layers, batch * rows, 2 * g.n_kv_heads, g.head_dim, device=device, dtype=dtype)
        cos, sin = (torch.from_numpy(t).to(device) for t in rope_tables(g.rope, min(rows, g.context)))
        kind = torch.float32 if functional else dtype
        self._cos, self._sin = torch.cat((cos, cos), 1).to(kind), torch.cat((-sin, sin), 1).to(kind)
        self._base = torch.arange(batch, device=device) * rows
        self._starts_q = torch.arange(batch + 1, device=device, dtype=torch.int32)
        self._starts_k = self._starts_q * rows
        self._columns = torch.arange(rows, device=device)
        self.token = torch.zeros(batch, device=device, dtype=torch.int64)
        self.position = torch.zeros(batch, device=device, dtype=torch.int64)
        self._count = torch.zeros(1, device=device, dtype=torch.int64)
        self.out = torch.zeros(rows, batch, device=device, dtype=torch.int64)
        self.logits = torch.zeros(batch, g.vocab_size, device=device, dtype=dtype)
        self._layer, self._head = compile(layer), compile(head)

    def start(self, position: int) -> None:
        """Back to ``position``; rows from there on are written anew."""
        self.position.fill_(position)
        self._count.zero_()

    def place(self) -> Place:
        p = self.position
        mask = None if self.flash else (self._columns <= p[:, None])[:, None, None]
        return Place(
            self._base + p,
            (p + 1).to(torch.int32),
            self._cos[p][:, None],
            self._sin[p][:, None],
            self._starts_q,
            self._starts_k,
            mask,
        )

    def __call__(self) -> None:
        """One step on device state."""
        t, s, place = self.weights.tensors, self.sizes, self.place()
        x = F.embedding(self.token, t["embed"])
        for i in range(self.weights.graph.n_layers):
            names = ("attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down")
            x = self._layer(x, self.kv[i], place, s, *(t[f"L{i}.{name}"] for name in names))
        logits, chosen = self._head(x, t["final_norm"], self.weights.head, s.eps)
        self.logits.copy_(logits)
        self.out.index_copy_(0, self._count, chosen[None])
        self.token.copy_(chosen)
        self.position.add_(1)
        self._count.add_(1)

    def prefill(self, ids: Any) -> None:
        """Fills rows 0 .. n of every sequence with ``ids`` [batch, n], or [1, n] for all; not timed, so written plainly."""
        g, t, s = self.weights.graph, self.weights.tensors, self.sizes
        batch, n = ids.shape
        if n == 0:
            return
        cos, sin = self._cos[:n, None].to(self.kv.dtype), self._sin[:n, None].to(self.kv.dtype)
        x = F.embedding(ids, t["embed"])
        for i in range(g.n_layers):
            h = F.rms_norm(x, (g.hidden_size,), t[f"L{i}.attn_norm"], s.eps)
            r = linear(h.flatten(0, 1), t[f"L{i}.qkv"]).view(batch, n, s.heads + 2 * s.kv_heads, s.head_dim)
            turned = r[:, :, : s.heads + s.kv_heads]
            turned.copy_(turned * cos + torch.roll(turned, s.head_dim // 2, -1) * sin)
            self.kv[i].view(self.batch, s.rows, 2 * s.kv_heads, s.head_dim)[:, :n] = r[:, :, s.heads :]
            q, k, v = (p.transpose(1, 2) for p in torch.split(r, [s.heads, s.kv_heads, s.kv_heads], 2))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=s.scale, enable_gqa=True)
            x = x + linear(a.transpose(1, 2).reshape(batch * n, -1), t[f"L{i}.o"]).view_as(x)
            h = F.rms_norm(x, (g.hidden_size,), t[f"L{i}.mlp_norm"], s.eps)
            gate, up = linear(h.flatten(0, 1), t[f"L{i}.gate_up"]).chunk(2, -1)
            x = x + linear(F.silu(gate) * up, t[f"L{i}.down"]).view_as(x)
