"""A loaded model: ``generate`` and ``logits`` on its programs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from amk_core.programs import Program, Programs, RequestError
from amk_core.schedule.contracts import CONTROL_WORDS
from amk_core.schedule.lower import MAX_STOP_IDS
from amk_core.vm import LaunchAborted

POLL_S = 0.05  # a streaming launch that finishes no step within this is looked at again

Tokens = Sequence[int]
OnToken = Callable[[int, int], None]  # (index of the prompt, token id)


@dataclass(frozen=True, slots=True)
class Generation:
    """One continuation: token ids without the prompt, its text where a tokenizer is there, and why it ended."""

    tokens: list[int]
    text: str | None
    finish: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Stats:
    """What the last call did: tokens and wall seconds, prompt and continuation apart."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens a second over all sequences."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(slots=True)
class Model(Programs):
    """A model ready to run; make one with :func:`amk_core.load`.

    One call runs at a time; the KV cache belongs to the call.
    """

    stats: Stats = field(default_factory=Stats)
    _tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer (a transformers object), or None when it ships none."""
        if self._tokenizer is None and self.imported.tokenizer_path is not None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(str(self.imported.tokenizer_path))
        return self._tokenizer

    def _run(self, program: Program, steps: int, p0: Sequence[int], n: Sequence[int], seen: Callable[[int], None] | None) -> int:
        """Launch and wait; ``seen(k)`` is called as the number k of finished steps grows.  Returns the steps done."""
        vm = program.vm
        vm.launch(steps, [*p0, *n], spin_timeout_s=self.spin_timeout_s, perturb_seed=self.perturb_seed)
        try:
            k = 0
            while seen is not None and k < steps:
                now = vm.poll(k + 1, POLL_S)
                if now == k and not vm.running:  # it stopped early, or failed: wait() tells
                    break
                if now > k:
                    k = now
                    seen(k)
        except BaseException:
            vm.abort()
            with contextlib.suppress(LaunchAborted):
                vm.wait()
            raise
        done: int = vm.wait().steps
        if seen is not None:
            seen(done)
        return done

    def _prefill(self, prompts: Sequence[Tokens], start: int = 0) -> None:
        """Append the KV rows of every token but the last of each prompt (one prompt a sequence slot), from ``start`` on."""
        lengths = [max(0, len(p) - 1) for p in prompts] + [0] * (self.batch - len(prompts))
        if max(lengths) <= start:
            return
        program = self.program("prefill")
        width = program.geometry.max_steps * program.geometry.chunk
        for base in range(start, max(lengths), width):
            n = [min(max(length - base, 0), width) for length in lengths]
            buffer = program.vm.buffer("prompt")
            buffer[:] = 0
            for b, k in enumerate(n):
                if k:
                    buffer[b, :k] = prompts[b][base : base + k]
            steps = -(-max(n) // program.geometry.chunk)
            self._run(program, steps, [base if k else 0 for k in n], n, None)

    def generate(
        self,
        prompts: str | Tokens | Sequence[str] | Sequence[Tokens],
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_ids: Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> list[Generation]:
        """Continue one or several prompts (texts or token ids).

        Args:
            max_new_tokens: at most so many tokens each; prompt and continuation must fit the context.
            temperature: 0 takes the most likely token (lowest id among equals).
            top_k: keep so many candidates; 0 keeps all the sampler looks at.
            top_p: keep the smallest set of candidates that holds this probability.
            seed: of prompt 0; prompt i draws with seed + i.  A draw depends on the seed and the position alone.
            stop_ids: token ids that end a continuation (they are its last token); None: the model's own.
            on_token: called with (index of the prompt, token id) as tokens appear.

        Raises:
            RequestError: an empty prompt, a token id out of range, a prompt that does not fit, a bad sampling parameter.
        """
        requests = self._requests(prompts)
        stops = list(self.graph.eos_ids if stop_ids is None else stop_ids)
        self._check_sampling(max_new_tokens, temperature, top_k, top_p, seed, stops)
        for i, ids in enumerate(requests):
            if len(ids) + max_new_tokens > self.context:
                raise RequestError(
                    f"prompt {i} has {len(ids)} tokens; with {max_new_tokens} new ones that is more than the context of "
                    f"{self.context}. Load the model with a larger context (at most {self.graph.context}) or ask for fewer tokens."
                )
        self.stats = Stats()
        out: list[Generation] = []
        for first in range(0, len(requests), self.batch):
            group = requests[first : first + self.batch]
            control = np.zeros((self.batch, CONTROL_WORDS), np.uint32)
            control[:, 0] = np.float32(temperature).view(np.uint32)
            control[:, 1] = top_k
            control[:, 2] = np.float32(top_p).view(np.uint32)
            for b in range(len(group)):
                control[b, 3:5] = ((seed + first + b) & 0xFFFFFFFF, (seed + first + b) >> 32 & 0xFFFFFFFF)
            tokens = self._decode(group, max_new_tokens, control, stops, first, on_token)
            for t in tokens:
                text = self.tokenizer.decode(t, skip_special_tokens=True) if self.tokenizer is not None else None
                out.append(Generation(t, text, "stop" if t and t[-1] in stops else "length"))
        return out

    def _decode(
        self, group: Sequence[Tokens], limit: int, control: npt.NDArray[np.uint32], stops: Sequence[int], first: int,
        on_token: OnToken | None,
    ) -> list[list[int]]:  # fmt: skip
        """Continue ``group``, whose first prompt is prompt ``first`` of the request; keeps :attr:`stats`."""
        t0 = time.perf_counter()
        self._prefill(group)
        t1 = time.perf_counter()
        heard = None if on_token is None else lambda b, token: on_token(first + b, token)
        out = self._continue([p[-1] for p in group], [len(p) - 1 for p in group], limit, control, stops, heard)
        t2 = time.perf_counter()
        s = self.stats
        self.stats = Stats(
            s.prefill_tokens + sum(len(p) - 1 for p in group), s.prefill_s + t1 - t0,
            s.decode_tokens + sum(len(t) for t in out), s.decode_s + t2 - t1,
        )  # fmt: skip
        return out

    def _continue(
        self, last: Tokens, positions: Sequence[int], limit: int, control: npt.NDArray[np.uint32] | None, stops: Sequence[int],
        on_token: OnToken | None,
    ) -> list[list[int]]:  # fmt: skip
        """Feed ``last[b]`` at ``positions[b]`` on the KV rows that are there: at most ``limit`` ids each, a stop id ends them.

        ``control``: [batch, CONTROL_WORDS]; None: greedy.
        """
        program = self.program("decode")
        vm, used = program.vm, len(last)
        idle = self.batch - used
        vm.buffer("control")[:] = 0 if control is None else control.view(vm.buffer("control").dtype)
        vm.buffer("stop_ids")[:] = -1
        vm.buffer("stop_ids")[:, : len(stops)] = stops
        vm.buffer("token")[:, 0] = [*last, *[0] * idle]
        out: list[list[int]] = [[] for _ in last]
        live = [True] * used + [False] * idle
        made = 0
        while made < limit and any(live):
            steps = min(program.geometry.max_steps, limit - made)
            vm.buffer("done")[:, 0] = [not alive for alive in live]
            for b in range(self.batch):
                if not live[b]:
                    vm.buffer("token")[b, 0] = 0
            p0 = [positions[b] + made if live[b] else 0 for b in range(self.batch)]
            taken = 0

            def seen(k: int) -> None:
                nonlocal taken
                rows = vm.buffer("out")
                for i in range(taken, k):
                    for b in range(used):
                        if live[b]:
                            token = int(rows[i, b])
                            out[b].append(token)
                            live[b] = token not in stops
                            if on_token is not None:
                                on_token(b, token)
                taken = k

            n = [steps if alive else 0 for alive in live]
            if on_token is None:
                seen(self._run(program, steps, p0, n, None))
            else:
                self._run(program, steps, p0, n, seen)
            made += taken
        return out

    def prefill(self, prompts: Sequence[Tokens], start: int = 0) -> None:
        """Fill the KV rows of every token of each prompt (it may be empty), prompt b in sequence slot b.

        :meth:`resume` continues from them, any number of times.

        Args:
            start: the rows before it are there already, from an earlier call with the same ids.

        Raises:
            RequestError: more prompts than slots, a token id out of range, a prompt that does not fit.
        """
        if not 1 <= len(prompts) <= self.batch:
            raise RequestError(f"{len(prompts)} prompts, the model is loaded for 1 to {self.batch}; load it with a larger batch")
        requests = [self._tokens([*ids, 0], i) for i, ids in enumerate(prompts)]  # the last id is not fed
        longest = max(map(len, requests)) - 1
        if longest >= self.context:
            raise RequestError(
                f"a prompt of {longest} tokens leaves no room in the context of {self.context}; load with a larger one"
            )
        self._prefill(requests, start)

    def resume(self, last: Tokens, positions: Sequence[int], tokens: int) -> list[list[int]]:
        """Greedy continuation on the KV rows that are there: feed ``last[b]`` at ``positions[b]``, return ``tokens`` ids each.

        Stop ids are ignored.  Rows from ``positions[b]`` on are written anew, so the same call gives the same ids again.

        Raises:
            RequestError: as for :meth:`prefill`, and when a continuation does not fit the context.
        """
        if not (1 <= len(last) == len(positions) <= self.batch and tokens >= 1):
            raise RequestError(
                f"{len(last)} ids at {len(positions)} positions for {tokens} tokens; required: 1 to {self.batch} pairs"
            )
        first = self._tokens(last, 0)
        if min(positions) < 0 or max(positions) + tokens > self.context:
            raise RequestError(f"{tokens} tokens from positions {list(positions)} do not fit the context of {self.context}")
        return self._continue(first, positions, tokens, None, (), None)

    def logits(self, ids: Tokens, start: int = 0) -> npt.NDArray[np.float32]:
        """Teacher-forced logits, float32 [len(ids) - start, vocab]: row i is what follows ids[0..start + i].

        Args:
            start: the KV rows before it are there already, of :meth:`prefill` or of an earlier call with the same ids.  Batch 1
                only: the rows of a larger batch lie elsewhere.

        Raises:
            RequestError: as for :meth:`generate`; no ids from ``start`` on; ``start`` with a larger batch.
        """
        (ids,) = self._requests(ids)
        if len(ids) > self.context:
            raise RequestError(f"{len(ids)} tokens, the context is {self.context}; load the model with a larger context")
        t0 = time.perf_counter()
        program = self.program("logits")
        geo, vm = program.geometry, program.vm
        width = geo.max_steps * geo.chunk
        if start and self.batch > 1:
            raise RequestError(
                f"logits from position {start} of a model of batch {self.batch}; load it with batch=1, or start at 0"
            )
        if not 0 <= start < len(ids):
            raise RequestError(f"logits from position {start} of {len(ids)} ids; required: 0 to {len(ids) - 1}")
        out = np.empty((len(ids) - start, self.graph.vocab_size), np.float32)
        for base in range(start, len(ids), width):
            k = min(width, len(ids) - base)
            vm.buffer("prompt")[:] = 0
            vm.buffer("prompt")[0, :k] = ids[base : base + k]
            self._run(program, -(-k // geo.chunk), [base], [k], None)
            out[base - start : base - start + k] = vm.buffer("logits")[:k]
        self.stats = Stats(len(ids) - start, time.perf_counter() - t0)
        return out

    # -- requests
    def _requests(self, prompts: str | Tokens | Sequence[str] | Sequence[Tokens]) -> list[list[int]]:
        if isinstance(prompts, str):
            return [self._tokens(prompts, 0)]
        items = list(cast(Sequence[Any], prompts))
        if not items:
            raise RequestError("the prompt is empty; at least one token is required to continue from")
        if all(isinstance(x, int | np.integer) for x in items):
            return [self._tokens(items, 0)]
        return [self._tokens(x, i) for i, x in enumerate(items)]

    def _tokens(self, prompt: Any, index: int) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("this checkpoint ships no tokenizer; give token ids instead of text")
            prompt = self.tokenizer(prompt)["input_ids"] if prompt else []
        ids = [int(x) for x in prompt]
        if not ids:
            raise RequestError(f"prompt {index} is empty; at least one token is required to continue from")
        bad = [x for x in ids if not 0 <= x < self.graph.vocab_size]
        if bad:
            last = self.graph.vocab_size - 1
            raise RequestError(f"prompt {index}: token id {bad[0]} is out of range; {self.graph.name} has ids 0 to {last}")
        return ids

    def _check_sampling(self, limit: int, temperature: float, top_k: int, top_p: float, seed: int, stops: list[int]) -> None:
        checks: Mapping[str, tuple[object, bool, str]] = {
            "max_new_tokens": (limit, limit >= 1, "at least 1"),
            "temperature": (temperature, 0 <= temperature < 1e6, "0 (greedy) or more"),
            "top_k": (top_k, 0 <= top_k < 2**31, "0 (off) or more"),
            "top_p": (top_p, 0 < top_p <= 1, "above 0 and at most 1"),
            "seed": (seed, 0 <= seed < 2**63, "0 to 2**63 - 1"),
            "stop_ids": (stops, len(stops) <= MAX_STOP_IDS, f"at most {MAX_STOP_IDS} ids"),
        }
        for name, (seen, ok, required) in checks.items():
            if not ok:
                raise RequestError(f"{name} is {seen}; required is {required}")
