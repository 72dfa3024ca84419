"""``amk generate``: continue a prompt; text appears as it is decoded."""

from __future__ import annotations

import argparse
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Protocol

from amk_core.commands import options

if TYPE_CHECKING:
    from amk_core.runtime import Model

NAME = "generate"
HELP = "continue a prompt with a model; text appears as it is decoded"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer decodes the first bytes of a character to


class PromptError(ValueError):
    """The prompt cannot be used: it is empty, too long, or the model cannot take it as text or as a chat message."""


class Decoder(Protocol):
    """The one method of a tokenizer that streaming needs."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    parser.add_argument("--prompt", required=True, help="the text to continue; - reads it from the standard input")
    parser.add_argument("--max-new-tokens", type=options.natural, default=64, metavar="N", help="at most N tokens (default: 64)")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message, in the model's own chat form")
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, help="0 takes the most likely token (default)")
    group.add_argument("--top-k", type=int, default=0, help="keep the K most likely tokens (default: 0, all)")
    group.add_argument("--top-p", type=float, default=1.0, help="keep the most likely tokens up to this probability (default: 1)")
    group.add_argument("--seed", type=int, default=0, help="of the sampler (default: 0)")
    group = parser.add_argument_group("how to run")
    group.add_argument("--mode", choices=("exact", "fast"), default="exact", help="numeric plan (default: exact)")
    group.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="the virtual machine (default: cpu)")
    group.add_argument("--weights", metavar="FORMAT", help=options.WEIGHTS_HELP)
    options.add_ranks(group)
    group.add_argument("--queues", type=options.natural, help="queues, one thread each (default: one a core)")
    group.add_argument("--context", type=options.natural, help="positions of the KV cache (default: the model's, at most 2048)")
    group.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a field of ScheduleConfig; may be repeated"
    )


class TextStream:
    """Prints text as its tokens arrive, holding back characters whose bytes are not all there yet.

    Tokens are decoded from the last finished piece on, with one piece of context before it: some tokenizers drop a leading
    space from whatever comes first.  ``before`` is printed with the first token, so that a refused request prints nothing.
    """

    def __init__(self, decoder: Decoder, out: IO[str], before: str = "") -> None:
        self.decoder, self.out, self.before = decoder, out, before
        self.ids: list[int] = []
        self.context = 0  # ids[context:done] are printed and give the decoder its context
        self.done = 0
        self.times: list[float] = []

    def __call__(self, index: int, token: int) -> None:
        """``index`` is the prompt's; here there is one."""
        if not self.times:
            self.out.write(self.before)
        self.times.append(time.perf_counter())
        self.ids.append(token)
        text = self._new_text()
        if text and not text.endswith(UNFINISHED):
            self._print(text)

    def close(self) -> None:
        """Print what was held back (the model may end in the middle of a character), and end the line."""
        if self.times:
            self._print(self._new_text() + "\n")

    def _new_text(self) -> str:
        before = self.decoder.decode(self.ids[self.context : self.done], skip_special_tokens=True)
        return self.decoder.decode(self.ids[self.context :], skip_special_tokens=True)[len(before) :]

    def _print(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
        self.context, self.done = self.done, len(self.ids)


def encode(tokenizer: Any, prompt: str, chat: bool) -> list[int]:
    """Token ids of the prompt, in the model's chat form where asked for.

    Raises:
        PromptError: the model ships no tokenizer or no chat form.
    """
    if tokenizer is None:
        raise PromptError("this checkpoint ships no tokenizer, so it cannot take text. Use the Python API with token ids.")
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise PromptError("this model has no chat form (its tokenizer ships no chat template). Leave out --chat.")
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(prompt)["input_ids"])


def summary(model: Model, prompt_tokens: int, times: list[float], start: float, args: argparse.Namespace) -> str:
    """One line for the standard error: speed of decoding apart from the time to the first token."""
    n = len(times)
    if not n:
        return "no token"
    line = f"{n} {'token' if n == 1 else 'tokens'} after {prompt_tokens} of prompt; first after {times[0] - start:.2f} s"
    if model.stats.decode_s:
        line += f"; {model.stats.tokens_per_s:.1f} tokens/s"
    weights = "" if model.quantised is None else f", weights {model.quantised.config}"
    return f"{line} ({model.graph.name}, {args.mode}{weights}, {args.backend}, {model.target.queues} queues)"


def run(args: argparse.Namespace) -> int:
    """Stream the continuation to the standard output, and the speed to the standard error."""
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt.strip():
        raise PromptError("the prompt is empty; at least one token is required to continue from. Give a text with --prompt.")
    import amk_core
    from amk_core.schedule.config import ScheduleConfig

    model = amk_core.load(
        args.model, mode=args.mode, queues=args.queues, context=args.context, config=ScheduleConfig.parse(args.config),
        backend=args.backend, weights=args.weights, **options.load_settings(args),
    )  # fmt: skip
    ids = encode(model.tokenizer, prompt, args.chat)
    if len(ids) + args.max_new_tokens > model.context:
        raise PromptError(
            f"the prompt has {len(ids)} tokens; with {args.max_new_tokens} new ones that is more than the context of "
            f"{model.context}. Ask for fewer with --max-new-tokens, or for a larger --context (at most {model.graph.context})."
        )
    stream = TextStream(model.tokenizer, sys.stdout, "" if args.chat else prompt)
    start = time.perf_counter()
    try:
        model.generate(
            ids, args.max_new_tokens, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed,
            on_token=stream,
        )  # fmt: skip
    finally:
        stream.close()
    print(summary(model, len(ids), stream.times, start, args), file=sys.stderr)
    return 0
