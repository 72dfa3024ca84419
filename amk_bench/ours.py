"""Our side as an engine: a model loaded by ``amk_core``, decoding from its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amk_bench.engine import F32

NAMES = {"cpu": "AMK CPU VM", "cuda": "AMK CUDA VM"}


class Ours:
    """Wraps a loaded ``amk_core`` model whose batch is the cell's batch.

    On a card a call of :meth:`decode` is one replay of a CUDA graph of all its steps (tokens in, cleared counters, one cooperative
    launch), and its results come from the ring, so that a window around the call holds device work and next to nothing else.
    :meth:`launch_seconds` gives the card's time of the cooperative launches alone, for many tokens a launch or for one.
    """

    def __init__(self, model: Any, name: str = "") -> None:
        self.name = name or NAMES[model.backend]
        self.model = model
        self.precision = "fp32" if model.mode == "exact" else "bf16"
        if model.quantised is not None:
            self.precision = str(model.quantised.config)
        self._prefix: list[int] = []
        self._dirty = True
        self._graphs: dict[int, Any] = {}

    def available(self) -> str | None:
        return None

    def describe(self) -> dict[str, str]:
        target = self.model.target
        told = {"mode": self.model.mode, "queues": str(target.queues), "config": repr(self.model.config)}
        if self.model.backend == "cuda":
            vm = self.model.program("decode").vm
            told |= {"launch": "one cooperative launch a call, in a CUDA graph", "cubin": vm.cubin.key[:16],
                     "cache": f"{self.model.context} rows"}  # fmt: skip
        return told

    @property
    def stream(self) -> Any:
        """The stream that calls work on; None on a CPU."""
        return self.model.program("decode").vm.stream if self.model.backend == "cuda" else None

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        if batch != self.model.batch:
            raise ValueError(f"the model is loaded for batch {self.model.batch}, the cell has {batch}; load it with batch={batch}")
        if len(prefix) + room > self.model.context:
            raise ValueError(
                f"position {len(prefix)} + {room} is beyond the context of {self.model.context}; load with a larger one"
            )
        if list(prefix) != self._prefix:
            self._prefix, self._dirty = list(prefix), True
        self.rewind()

    def rewind(self) -> None:
        """Decoding again from the same position writes the same rows again; only after :meth:`logits` the cache is filled anew."""
        if self._dirty:
            self.model.prefill([self._prefix] * self.model.batch)
            if self.model.backend == "cuda":  # greedy, no stop ids, nobody done: what a replay finds on the card
                self.model.resume([0] * self.model.batch, [len(self._prefix)] * self.model.batch, 1)
            self._dirty = False

    def decode(self, first: Sequence[int], tokens: int) -> list[list[int]]:
        position = len(self._prefix)
        if self.model.backend == "cpu" or tokens > self.model.program("decode").geometry.max_steps:
            chains: list[list[int]] = self.model.resume(list(first), [position] * len(first), tokens)
            return chains
        vm = self.model.program("decode").vm
        variables = vm.variables(position, tokens)
        if tokens not in self._graphs:
            self._graphs[tokens] = vm.capture(tokens, variables, feed=True)
        vm.replay(self._graphs[tokens], variables, list(first))
        vm.poll(tokens, timeout_s=60.0)
        vm.wait(refresh=False)
        chains = vm.tokens(tokens).T.tolist()
        return chains

    def launch_seconds(self, first: Sequence[int], tokens: int, repeats: int, per_launch: int = 0) -> list[float]:
        """Device seconds a token by events around the cooperative launch alone, ``repeats`` values; needs a card.

        Args:
            per_launch: tokens of a launch; 0: all of them in one, which is what :meth:`decode` does and what tables quote; 1: a
                launch a token, for comparison with engines that return to the host after every token.
        """
        vm, position = self.model.program("decode").vm, len(self._prefix)
        n = per_launch or tokens
        out = []
        for _ in range(repeats):
            vm.memory.write("token", np.array(first, np.int32)[:, None])
            seconds = 0.0
            for done in range(0, tokens, n):
                steps = min(n, tokens - done)
                seconds += vm.time_launches(steps, vm.variables(position + done, steps), 1, refresh=False)[0]
            out.append(seconds / tokens)
        return out

    def trace(self, forced: Sequence[Sequence[int]]) -> F32:
        """Logits [steps, batch, vocabulary] of the very decode step that is timed, fed ``forced`` ids [steps][batch]."""
        vm, rows = self.model.program("decode").vm, []
        for i, ids in enumerate(forced):
            self.model.resume(list(ids), [len(self._prefix) + i] * self.model.batch, 1)
            rows.append(np.array(vm.memory.read("logits") if self.model.backend == "cuda" else vm.buffer("logits")))
        self.rewind()
        return np.stack(rows)

    def logits(self, ids: Sequence[int], keep: int = 0) -> F32:
        """Teacher-forced logits of one text; overwrites the cache, which the next :meth:`rewind` fills again."""
        self._dirty = True
        start = len(ids) - keep if keep and self.model.batch == 1 else 0
        if start:
            self.model.prefill([list(ids[:start])])
        scores: F32 = self.model.logits(list(ids), start)
        return scores[-keep:] if keep else scores
