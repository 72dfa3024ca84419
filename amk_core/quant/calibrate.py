"""Calibrated quantisation of a whole model, layer by layer: what a layer sees is what the quantised layers before it give.

The forward pass is the Llama family's in float32 (torch on the CPU), one layer in memory at a time.  Two residual streams run side
by side, of the model as stored and of the quantised one, and each matrix is fitted so that its product with the quantised inputs is
what the stored matrix gives for the stored inputs: the error of the layers before is made up for, not only its own.  The same ids
give the same weights on one machine and number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.importer.rope import rope_tables
from amk_core.quant import gptq
from amk_core.quant.config import QuantConfig
from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix
from amk_core.quant.source import QuantWeights

if TYPE_CHECKING:
    import torch

Get = Callable[[str], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the fit is made.

    Attributes:
        gptq: of each matrix.
        feedback: part of the accumulated error that a matrix is asked to make up for, 0 to 1.
        ridge: how strongly the fit is held to the stored weights, as a part of the inputs' mean energy.
    """

    gptq: gptq.GptqConfig = field(default_factory=gptq.GptqConfig)
    feedback: float = 0.5
    ridge: float = 0.01


def calibrate(
    graph: ModelGraph, get: Get, config: QuantConfig, ids: Sequence[Sequence[int]], calibration: Calibration | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> QuantWeights:  # fmt: skip
    """Quantise the weights of a model on sequences of token ids.

    Args:
        get: the stored weights by canonical name (``WeightSource.get``).
        ids: sequences of one length, at most the model's context.

    Raises:
        QuantError: no ids, sequences of several lengths, ids out of range, or weights that the format cannot hold.
    """
    import torch

    lengths = {len(s) for s in ids}
    if len(lengths) != 1 or not 2 <= next(iter(lengths), 0) <= graph.context:
        raise QuantError(f"calibration sequences of lengths {sorted(lengths)}; required is one length from 2 to {graph.context}")
    tokens = np.asarray(ids, np.int64)
    if tokens.min() < 0 or tokens.max() >= graph.vocab_size:
        raise QuantError(f"calibration ids from {tokens.min()} to {tokens.max()}; {graph.name} has 0 to {graph.vocab_size - 1}")
    with torch.no_grad():
        return _Calibrator(graph, get, config, tokens, calibration or Calibration(), say).run()


class _Calibrator:
    def __init__(
        self, graph: ModelGraph, get: Get, config: QuantConfig, tokens: npt.NDArray[np.int64], calibration: Calibration,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        import torch

        self.torch = torch
        self.g, self.get, self.config, self.c, self.say = graph, get, config, calibration, say
        self.done: dict[str, QuantMatrix] = {}
        cos, sin = rope_tables(graph.rope, tokens.shape[1])
        self.cos, self.sin = torch.from_numpy(cos.copy()), torch.from_numpy(sin.copy())
        table = self._dense("embed")
        self.exact = table[torch.from_numpy(tokens)]  # [sequences, positions, hidden], the stream of the model as stored
        self.rounded = self.exact.clone()  # and of the quantised one

    def _dense(self, name: str) -> torch.Tensor:
        return self.torch.from_numpy(np.array(self.get(name), np.float32))

    def run(self) -> QuantWeights:
        for i in range(self.g.n_layers):
            self.layer(i)
            drift = float((self.rounded - self.exact).norm() / self.exact.norm())
            self.say(f"layer {i + 1} of {self.g.n_layers}: residual stream off by {drift:.4f}")
        head = self.g.head_weight
        if self.config.head is not None:
            self.quantise(head, self._dense(head), self.normed("final_norm"), None, self.config.head)
        packed: dict[str, Callable[[], QuantMatrix]] = {}
        for name, m in self.done.items():
            packed[name] = lambda m=m: m  # type: ignore[misc]
        return QuantWeights(self.g, self.config, self.get, packed)

    # -- the model
    def norm(self, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = w * (h * self.torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.g.norm_eps))
        return out

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """[sequences, heads, positions, d], halves apart."""
        a, b = x.chunk(2, -1)
        return self.torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        g = self.g

        def heads(x: torch.Tensor, n: int) -> torch.Tensor:
            return x.reshape(*x.shape[:2], n, g.head_dim).transpose(1, 2)

        q, k, v = self.rotate(heads(q, g.n_heads)), self.rotate(heads(k, g.n_kv_heads)), heads(v, g.n_kv_heads)
        k, v = (x.repeat_interleave(g.group, 1) for x in (k, v))
        out = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=g.attn_scale)
        return out.transpose(1, 2).flatten(2)

    def layer(self, i: int) -> None:
        p, silu = f"L{i}", self.torch.nn.functional.silu
        inputs = self.normed(f"{p}.attn_norm")
        q, k, v = (self.fit(f"{p}.{n}", inputs) for n in ("q", "k", "v"))
        self.project(f"{p}.o", *(self.attention(q[j], k[j], v[j]) for j in (0, 1)))
        inputs = self.normed(f"{p}.mlp_norm")
        gate, up = self.fit(f"{p}.gate", inputs), self.fit(f"{p}.up", inputs)
        self.project(f"{p}.down", *(silu(gate[j]) * up[j] for j in (0, 1)))

    def normed(self, name: str) -> _Inputs:
        w = self._dense(name)
        return _Inputs(self.norm(self.exact, w), self.norm(self.rounded, w), self.c)

    def project(self, name: str, exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """A matrix whose product is added to the residual stream; it is asked to make up for what the stream lacks already."""
        a, b = self.fit(name, _Inputs(exact, rounded, self.c), self.exact - self.rounded)
        self.exact, self.rounded = self.exact + a, self.rounded + b

    def fit(self, name: str, inputs: _Inputs, lacking: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise one matrix; returns its products with the inputs as stored, and of the quantised model."""
        w = self._dense(name)
        m = self.quantise(name, w, inputs, lacking, self.config.layers)
        return inputs.exact @ w.T, inputs.rounded @ self.torch.from_numpy(m.dequantise()).T

    def quantise(
        self, name: str, w: torch.Tensor, inputs: _Inputs, lacking: torch.Tensor | None, fmt: QuantFormat
    ) -> QuantMatrix:  # fmt: skip
        wanted = w.double()
        if self.c.feedback > 0:
            # the matrix nearest to w whose products with the rounded inputs are those of w with the exact ones
            change = wanted @ inputs.cross
            if lacking is not None:
                change += (lacking.reshape(-1, lacking.shape[-1]).T @ inputs.rows).double()
            wanted = wanted + self.c.feedback * self.torch.cholesky_solve(change.T, inputs.held).T
        self.done[name] = inputs.solver.quantise(wanted.float().numpy(), fmt, name)
        return self.done[name]


class _Inputs:
    """The inputs of one or several matrices, in both streams, and what the fit needs of them."""

    def __init__(self, exact: torch.Tensor, rounded: torch.Tensor, c: Calibration) -> None:
        import torch

        self.exact, self.rounded = exact, rounded
        self.rows = rounded.reshape(-1, rounded.shape[-1])
        hessian = (self.rows.T @ self.rows).double()
        self.cross = ((exact - rounded).reshape(self.rows.shape).T @ self.rows).double()
        self.solver = gptq.Solver(hessian.numpy(), c.gptq)
        hessian.diagonal().add_(c.ridge * hessian.diagonal().mean() + 1e-12)
        self.held = torch.linalg.cholesky(hessian)
