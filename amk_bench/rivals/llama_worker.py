"""llama.cpp's side of the wire: its C interface, greedy on the host, as its own programs do it.

The clock is this process's, from an idle device to the last token: llama.cpp hands logits to the host in every step, so that
nothing of a step can lie outside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench.rivals import llama_library
from amk_bench.rivals.llama_library import ALL_LAYERS, N_GPU_LAYERS_AT
from amk_bench.rivals.wire import serve

PART = 512  # tokens of a prefix that are decoded at once
WARM = 8  # steps right before a call's clock starts: a host that slept while the other side ran is slow at first


class LlamaWorker:
    """One model in one context.

    Args:
        model: a .gguf file.
        library: folder of llama.cpp's shared libraries.
        rows: positions a sequence may have.
        batch: sequences.
        threads: for what runs on the processor.
        card: everything has to be on a card; without one it is an error.
    """

    def __init__(self, model: str, library: str, rows: int, batch: int, threads: int, card: bool) -> None:
        self._lib = lib = llama_library.load(Path(library))
        if card and not any(name.startswith("CUDA") for name in lib.devices):
            raise RuntimeError(f"llama.cpp shows no CUDA device but {', '.join(lib.devices) or 'none'}; is libggml-cuda beside it?")
        lib.llama_backend_init()
        settings = lib.llama_model_default_params()
        seen = settings.number(N_GPU_LAYERS_AT)
        if seen not in (-1, 0, ALL_LAYERS, 99):
            raise RuntimeError(
                f"this llama.cpp keeps the number of layers on the card elsewhere (found {seen}); it is not supported"
            )
        settings.set_number(N_GPU_LAYERS_AT, ALL_LAYERS if card else 0)
        self._model = lib.llama_model_load_from_file(os.fsencode(model), settings)
        if not self._model:
            raise RuntimeError(f"{Path(model).name} does not load")
        context = lib.llama_context_default_params()
        rows = -(-rows // 256) * 256
        for at, value in ((0, rows * batch), (4, max(PART, batch)), (8, max(PART, batch)), (12, batch)):
            context.set_number(at, value)  # n_ctx, n_batch, n_ubatch, n_seq_max
        self._context = lib.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("a context cannot be made")
        lib.llama_set_n_threads(self._context, threads, threads)
        self._words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._memory = lib.llama_get_memory(self._context)
        self._sequences = batch
        self._batch, self._prefix = lib.llama_batch_init(max(PART, batch), 0, 1), 0
        self._held: tuple[int, ...] | None = None  # what the cache begins with, in every sequence
        self._library = Path(library)

    def describe(self) -> dict[str, str]:
        version = next((n.name for n in self._library.glob("libllama*") if any(c.isdigit() for c in n.name)), "unknown")
        version = os.environ.get("AMK_LLAMA_CPP_VERSION") or version
        return {
            "llama.cpp": version, "devices": " ".join(self._lib.devices), "sampling": "greedy on the host", "cache": "fp16",
            "clock": "host clock in the rival's process",
        }  # fmt: skip

    def _decode(self, entries: Sequence[tuple[int, int, int]], wanted: bool) -> None:
        """Tokens (id, position, sequence) through the model; logits of all of them where ``wanted``."""
        b = self._batch
        b.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, position, 1, sequence, int(wanted)
        code = self._lib.llama_decode(self._context, b)
        if code != 0:
            raise RuntimeError(f"llama_decode answered {code}")

    def _row(self, index: int) -> np.ndarray[Any, Any]:
        """Logits of the ``index``-th token of the last step, a view."""
        return np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._context, index), (self._words,))

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        if batch != self._sequences:
            raise ValueError(f"this context has {self._sequences} sequences, the cell {batch}")
        if self._held == tuple(prefix):
            self._rewind()
            return
        self._held = None
        self._lib.llama_memory_clear(self._memory, True)
        for sequence in range(batch):
            for start in range(0, len(prefix), PART):
                part = list(prefix[start : start + PART])
                self._decode([(token, start + i, sequence) for i, token in enumerate(part)], False)
        self._prefix, self._held = len(prefix), tuple(prefix)

    def _rewind(self) -> None:
        for sequence in range(self._sequences):
            self._lib.llama_memory_seq_rm(self._memory, sequence, self._prefix, -1)
        self._lib.llama_synchronize(self._context)

    def _feed(self, ids: Sequence[int], step: int) -> None:
        self._decode([(token, self._prefix + step, sequence) for sequence, token in enumerate(ids)], True)

    def decode(self, first: Sequence[int], tokens: int) -> dict[str, Any]:
        self._rewind()
        for step in range(min(WARM, tokens)):
            self._feed(first, step)
        self._rewind()
        ids, chains = list(first), [[] for _ in first]  # type: list[int], list[list[int]]
        start = time.perf_counter()
        for step in range(tokens):
            self._feed(ids, step)
            ids = [int(self._row(i).argmax()) for i in range(len(ids))]
            for chain, token in zip(chains, ids, strict=True):
                chain.append(token)
        seconds = time.perf_counter() - start
        return {"chains": chains, "device_s": seconds, "host_s": seconds}

    def busy(self, first: Sequence[int], tokens: int) -> float:
        """Seconds a token without choosing one: the same tokens fed again, each step waited for."""
        chains = self.decode(first, tokens)["chains"]
        self._rewind()
        start = time.perf_counter()
        for step in range(tokens):
            self._feed([first[i] if step == 0 else chain[step - 1] for i, chain in enumerate(chains)], step)
            self._lib.llama_synchronize(self._context)
        return (time.perf_counter() - start) / tokens

    def trace(self, forced: Sequence[Sequence[int]], path: str) -> None:
        """Writes the logits [steps, batch, vocabulary] of decode steps fed ``forced``."""
        self._rewind()
        rows = []
        for step, ids in enumerate(forced):
            self._feed(ids, step)
            rows.append([self._row(i).copy() for i in range(len(ids))])
        np.save(path, np.asarray(rows, np.float32))
        self._rewind()

    def logits(self, ids: Sequence[int], keep: int) -> list[list[float]]:
        """Teacher-forced logits of the last ``keep`` positions of one text; empties the cache."""
        self._lib.llama_memory_clear(self._memory, True)
        rows = []
        for position, token in enumerate(ids):
            self._decode([(token, position, 0)], True)
            if position >= len(ids) - (keep or len(ids)):
                rows.append(self._row(0).tolist())
        self._lib.llama_memory_clear(self._memory, True)
        self._prefix, self._held = 0, None
        return rows


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(serve(lambda: LlamaWorker(**given)))
