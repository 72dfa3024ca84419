"""A loaded model: checkpoint, schedules, certificates, weight tape and VM, behind ``generate`` and ``logits``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from amk_core.graph import ModelGraph
from amk_core.importer import ImportedModel, open_model
from amk_core.importer.rope import rope_tables
from amk_core.quant.config import QuantConfig
from amk_core.quant.saved import is_saved, open_saved
from amk_core.quant.source import QuantWeights
from amk_core.schedule import tables
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.ir import Kind, Schedule
from amk_core.schedule.lower import MAX_STOP_IDS, Geometry, Mode, Purpose, lower
from amk_core.schedule.lower_ranks import BY_DEFAULT, Ranks, lower_ranks
from amk_core.schedule.ops import CONTROL_WORDS
from amk_core.schedule.pack import TAPE_DTYPES, Tape, TapeLayout, aligned_zeros, logical_weight
from amk_core.schedule.validate import Verdict, validate
from amk_core.targets import Target
from amk_core.vm import LaunchAborted
from amk_core.vm.cpu import CpuVM

Backend = Literal["cpu", "cuda"]

POLL_S = 0.05  # a streaming launch that finishes no step within this is looked at again
DEFAULT_CONTEXT = 2048

Tokens = Sequence[int]
OnToken = Callable[[int, int], None]  # (index of the prompt, token id)


class RequestError(ValueError):
    """A request the loaded model cannot serve; the message says what was asked, what is possible and what to do."""


class ScheduleRejected(RuntimeError):
    """Lowering produced a schedule that the validator does not accept; nothing was run."""

    def __init__(self, purpose: str, verdict: Verdict) -> None:
        self.verdict = verdict
        first = verdict.findings[0].message if verdict.findings else "no finding"
        super().__init__(f"the {purpose} schedule is rejected with {len(verdict.findings)} findings; the first: {first}")


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
class Program:
    """A schedule that was accepted, its tables and the VM that runs them."""

    schedule: Schedule
    verdict: Verdict
    geometry: Geometry
    vm: Any  # a CpuVM or a CudaVM


@dataclass(slots=True)
class Model:
    """A model ready to run; make one with :func:`load`.

    One call runs at a time; the KV cache belongs to the call.
    """

    imported: ImportedModel
    mode: Mode
    target: Target
    batch: int
    chunk: int
    context: int
    config: ScheduleConfig
    perturb_seed: int | None = None  # random delays around every task, for tests of determinism
    spin_timeout_s: float = 60.0  # a wait longer than this is a fault, not a hang
    backend: Backend = "cpu"
    quantised: QuantWeights | None = None  # the weights that are multiplied with, where they are not the checkpoint's own
    ranks: Ranks | None = None  # that share every step, which then takes one row
    ranks_are_chosen: bool = False  # by the cost model, so that fewer or none will do where the card does not place them
    stats: Stats = field(default_factory=Stats)
    _programs: dict[Purpose, Program] = field(default_factory=dict)
    _tape: Tape | None = None
    _kv: npt.NDArray[np.uint8] | None = None
    _card: Any = None  # amk_core.vm.card.Card, what the programs share on a device
    _constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _tokenizer: Any = None

    # -- parts
    @property
    def graph(self) -> ModelGraph:
        return self.imported.graph

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules built so far, by purpose."""
        return {str(k): p.schedule for k, p in self._programs.items()}

    @property
    def tape(self) -> Tape:
        """The weight tape in this machine's memory (built by the first program of the CPU backend)."""
        self.program("decode")
        assert self._tape is not None
        return self._tape

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer (a transformers object), or None when it ships none."""
        if self._tokenizer is None and self.imported.tokenizer_path is not None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(str(self.imported.tokenizer_path))
        return self._tokenizer

    def geometry(self, purpose: Purpose) -> Geometry:
        if purpose == "decode":
            return Geometry("decode", self.batch, 1, self.context)
        chunk = 1 if self.ranks is not None else self.chunk  # a prompt by ranks has the bits of decoding: a row a step
        return Geometry(purpose, self.batch if purpose == "prefill" else 1, chunk, self.context)

    def program(self, purpose: Purpose) -> Program:
        """Lower, validate and load the schedule of a purpose (once).

        Raises:
            ScheduleRejected: the validator found something; nothing is run.
        """
        if purpose in self._programs:
            return self._programs[purpose]
        if purpose != "decode":
            self.program("decode")  # it streams every weight and needs the most KV: the others share its tape and its pool
        while True:
            schedule = self._lower(purpose)
            verdict = validate(schedule)
            if not verdict.accepted or verdict.certificate is None:
                raise ScheduleRejected(purpose, verdict)
            if self.backend != "cuda":
                vm: Any = self._cpu_vm(schedule, verdict.certificate)
                break
            from amk_core.vm.rank_vm import TooFewClusters

            try:
                vm = self._card.vm(self, schedule, verdict.certificate)
                break
            except TooFewClusters as e:
                if not self.ranks_are_chosen or self.ranks is None or purpose != "decode":
                    raise
                self.ranks = Ranks(e.fit, self.ranks.cluster) if e.fit > 1 else None
        self._programs[purpose] = Program(schedule, verdict, self.geometry(purpose), vm)
        return self._programs[purpose]

    def _lower(self, purpose: Purpose) -> Schedule:
        if self.ranks is None:
            return self.unshared(purpose)
        queues = max(self.target.queues, self.ranks.queues) if self.backend == "cpu" else self.target.queues
        target = replace(self.target, queues=queues)
        return lower_ranks(self.graph, self.ranks, target, self.geometry(purpose), self.mode, self.config)

    def unshared(self, purpose: Purpose) -> Schedule:
        """The schedule of a purpose without ranks."""
        quant = None if self.quantised is None else self.quantised.config
        return lower(self.graph, self.config, self.target, self.geometry(purpose), self.mode, quant)

    def traced(self) -> Any:
        """The decode program once more, built with the tracer, on the same weights and KV rows; a CudaVM.

        Raises:
            RequestError: the model is not on a card.
        """
        if self._card is None:
            raise RequestError("only a model on a card can be traced; load it with backend='cuda'")
        program = self.program("decode")
        return self._card.vm(self, program.schedule, program.verdict.certificate, trace=True)

    def _cpu_vm(self, schedule: Schedule, certificate: object) -> CpuVM:
        if self._tape is None:
            self._tape = Tape.build(TapeLayout.of(schedule), self.weight)
        if self._kv is None:
            self._kv = aligned_zeros(schedule.pool_bytes("kv"))
        return CpuVM(
            tables.pack(schedule),
            certificate,
            task_weight=self._tape.layout.locate(schedule),
            tape=self._tape.data,
            tape_dtype=self._tape.layout.dtype,
            bound={b.name: self.constant(b.name, b.dtype, b.rows) for b in schedule.buffers if b.kind is Kind.TABLE},
            pools={"kv": self._kv},
        )

    def weight(self, name: str) -> Any:
        """A weight buffer of the schedule as the tape takes it."""
        if self.quantised is not None:
            return self.quantised.on_tape(name)
        return logical_weight(self.graph, self.imported.weights.get, name)

    def constant(self, name: str, dtype: str, rows: int) -> npt.NDArray[Any]:
        """A table buffer: embedding, norm weights, rotary tables (padded with zero rows behind the trained context)."""
        if name not in self._constants:
            if name.startswith("rope."):
                cos, sin = rope_tables(self.graph.rope, min(rows, self.graph.context))
                pad = ((0, rows - len(cos)), (0, 0))
                self._constants["rope.cos"], self._constants["rope.sin"] = np.pad(cos, pad), np.pad(sin, pad)
            else:
                a = np.asarray(self.imported.weights.get(name) if self.quantised is None else self.quantised.dense(name))
                a = a.reshape(1, -1) if a.ndim == 1 else a
                self._constants[name] = np.ascontiguousarray(a.astype(TAPE_DTYPES[dtype], copy=False))
        return self._constants[name]

    # -- running
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


def _open(
    model: str | Path | Any, weights: str | QuantConfig | QuantWeights | None
) -> tuple[ImportedModel, QuantWeights | None]:  # fmt: skip
    """The model, and its quantised weights where some are asked for."""
    if weights is None:
        return open_model(model), None
    if isinstance(weights, QuantWeights):
        imported = open_model(model)
        if weights.graph.weight_shapes() != imported.graph.weight_shapes():
            raise RequestError(f"weights are those of {weights.graph.name}, the model is {imported.graph.name}")
        return imported, weights
    if weights == "stored":
        from amk_core.quant.checkpoint import open_quantised

        checkpoint = open_quantised(model)
        return checkpoint.imported, checkpoint.weights()
    imported = open_model(model)
    if isinstance(weights, str) and is_saved(weights):
        return imported, open_saved(Path(weights), imported.graph, imported.weights.get)
    config = QuantConfig.parse(weights) if isinstance(weights, str) else weights
    return imported, QuantWeights(imported.graph, config, imported.weights.get)


def load(
    model: str | Path | Any,
    mode: Mode = "exact",
    queues: int | None = None,
    batch: int = 1,
    context: int | None = None,
    chunk: int = 16,
    config: ScheduleConfig | None = None,
    backend: Backend = "cpu",
    weights: str | QuantConfig | QuantWeights | None = None,
    ranks: Ranks | Literal["auto", "off"] = BY_DEFAULT,
) -> Model:
    """Open a checkpoint, lower it, prove the schedule safe and load it.

    Args:
        model: a known name (``amk model list``), a HuggingFace hub id, a directory, a .gguf file, or a live transformers model.
        mode: ``exact`` (fp32, the same bits everywhere) or ``fast`` (bf16 weights and KV).
        queues: CPU threads, by default the cores this process may use; SMs of the card, by default all of them.
        batch: sequences decoded side by side, 1 to 16.
        context: positions a sequence may have (sizes the KV cache); by default 2048 or what the model was trained for.
        chunk: prompt tokens a step, 1 to 32; with ranks a step takes one.
        config: scheduling choices; they never change a bit of the result.
        backend: ``cpu``, or ``cuda``: one cooperative launch on the first NVIDIA card.
        weights: how weights are stored. None: as the mode stores them. ``int8``, ``int4-g64`` and so on, with ``,head=...``:
            rounded to nearest (see :class:`amk_core.quant.config.QuantConfig`). ``stored``: quantised as the checkpoint holds
            them. A folder that ``amk quantise`` wrote. Or QuantWeights that were made otherwise.
        ranks: clusters of queues that share every step, for one sequence with weights as the mode stores them: on a card less
            waiting while decoding, but prompts and scored texts take a step a token, so that all positions have the same bits.
            They are other bits than those without ranks, and belong to the number of ranks.  They have not run on a card yet.
            ``auto``: on a card in ``fast``, where the cost model expects decoding to be quicker.

    Raises:
        ModelRefused, CheckpointError: the checkpoint is not one AMK understands whole.
        ValueError: an impossible size; the message says what is possible.
        CudaError, CompileError: no card, driver or compiler for ``backend="cuda"``, or the model does not fit the card.
    """
    if backend not in ("cpu", "cuda"):
        raise RequestError(f"backend is {backend!r}; required is 'cpu' or 'cuda'")
    if mode not in ("exact", "fast"):
        raise RequestError(f"mode is {mode!r}; required is 'exact' or 'fast'")
    card: Any = None
    target = Target.cpu(queues)
    if backend == "cuda":
        from amk_core.vm.card import Card

        card = Card()  # before the checkpoint is read: a machine without a card says so at once
        target = card.target(queues)
    imported, quantised = _open(model, weights)
    if card is not None and quantised is not None and quantised.config.integer:
        from amk_core.vm.plan import INTEGER_ACTIVATIONS

        raise RequestError(INTEGER_ACTIVATIONS)
    if card is not None:
        chunk = card.chunk(mode, batch, chunk, imported.graph, None if quantised is None else quantised.config)
    if context is None:
        context = min(DEFAULT_CONTEXT, imported.graph.context)
    chosen = ranks == "auto" and backend == "cuda" and mode == "fast" and batch == 1 and quantised is None
    if isinstance(ranks, Ranks) and (batch != 1 or quantised is not None):
        asked = f"a batch of {batch}" if batch != 1 else f"weights {quantised.config}" if quantised is not None else ""
        raise RequestError(f"ranks decode one sequence with weights as the mode stores them, asked is {asked}; leave ranks out")
    shared = ranks if isinstance(ranks, Ranks) else None
    if chosen:
        from amk_core.cost import best_ranks

        shared = best_ranks(imported.graph, target)
    loaded = Model(
        imported, mode, target, batch, chunk, context, config or ScheduleConfig(), backend=backend, quantised=quantised,
        ranks=shared, ranks_are_chosen=chosen, _card=card,
    )  # fmt: skip
    loaded.program("decode")
    return loaded
