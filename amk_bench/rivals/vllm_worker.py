"""vLLM's side of the wire: runs in vLLM's environment, resident; every call is a batch of requests, timed in its steady state.

A call sends one request a sequence, whose prompt is the prefix (kept by vLLM's prefix cache, a salt a sequence, so that no two
share memory) and the first token.  The clock starts when every request has its first token and stops when each has as many more
as were asked for: whole decode steps and nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from amk_bench.rivals.wire import serve

# Requests are longer than the window, so that it closes while the engine still runs as in the middle of a text.
EXTRA = 4
# Steps right before a call's window, of requests that are thrown away: a host that slept while the other side ran is slow at first,
# by a half of a step's time where the host is what limits the engine.
WARM = 32
MODES = ("inproc-async", "inproc-sync", "mp-async")
QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_HOST_IP": "127.0.0.1",
    "TOKENIZERS_PARALLELISM": "false", "VLLM_USE_FLASHINFER_SAMPLER": "0",
}  # fmt: skip


class VllmWorker:
    """One ``LLM`` in one mode.

    Args:
        model: folder with config.json and safetensors.
        mode: "inproc-async", "inproc-sync" or "mp-async": engine core in this process or its own, steps scheduled ahead or not.
        rows: positions a sequence may have.
        batch: most sequences at once.
        kv_bytes: for the cache.
        share: of the card's memory that vLLM may count on.
    """

    def __init__(self, model: str, mode: str, rows: int, batch: int, kv_bytes: int, share: float) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if mode.startswith("mp") else "0"
        torch: Any = importlib.import_module("torch")
        vllm: Any = importlib.import_module("vllm")
        self._torch, self._vllm, self.mode = torch, vllm, mode
        sizes = sorted({1, 2, 4, 8, 16, batch} & set(range(1, batch + 1)))
        self._llm = vllm.LLM(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=rows, max_num_seqs=batch,
            max_num_batched_tokens=max(2048, batch), enable_prefix_caching=True, generation_config="vllm",
            kv_cache_memory_bytes=kv_bytes, gpu_memory_utilization=share, disable_log_stats=True, seed=0,
            async_scheduling=mode.endswith("async"), compilation_config={"cudagraph_capture_sizes": sizes},
        )  # fmt: skip
        self._engine = self._llm.llm_engine
        self._prefix: list[int] = []
        self._batch, self._number, self._rows = 1, 0, rows

    def describe(self) -> dict[str, str]:
        config = getattr(self._engine, "vllm_config", None)
        graphs = getattr(getattr(config, "compilation_config", None), "cudagraph_mode", "as vLLM chooses")
        clock = "cuda.events in the rival's process" if self._inside else "host clock in the rival's process"
        return {
            "vllm": self._vllm.__version__, "torch": self._torch.__version__, "mode": self.mode,
            "graphs": str(graphs).rpartition(".")[2], "clock": clock, "sampling": "greedy, in the engine",
        }  # fmt: skip

    @property
    def _inside(self) -> bool:
        return not self.mode.startswith("mp")

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        """Fills the prefix cache for each sequence and runs a call, so that what is made once is made."""
        self._prefix, self._batch = list(prefix), batch
        # A token each, so that the prefixes are there when a call begins: computed in it, the first sequences would be through
        # before the last had begun.
        got = self._ask([1] * batch, 1)
        while self._engine.has_unfinished_requests():
            self._step(got)
        self.decode([1] * batch, max(2, min(8, room - 2 - EXTRA)))

    def decode(self, first: Sequence[int], tokens: int) -> dict[str, Any]:
        self._run(first, max(1, min(WARM, self._rows - len(self._prefix) - 2 - EXTRA)))
        chains, device_s, host_s = self._run(first, tokens)
        return {"chains": [chain[:tokens] for chain in chains], "device_s": device_s, "host_s": host_s}

    def _run(self, first: Sequence[int], tokens: int) -> tuple[list[list[int]], float, float]:
        got = self._ask(first, tokens + 1 + EXTRA)
        while not all(got.values()):
            self._step(got)
        least = {name: len(ids) + tokens for name, ids in got.items()}
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._inside else []
        start = time.perf_counter()
        if events:
            events[0].record()
        while any(len(ids) < least[name] for name, ids in got.items()):
            if not self._engine.has_unfinished_requests():
                raise RuntimeError(f"sequences began too far apart for {tokens} steps of all; is the prefix cache too small?")
            self._step(got)
        if events:
            events[1].record()
        host_s = time.perf_counter() - start
        while self._engine.has_unfinished_requests():
            self._step(got)
        if events:
            events[1].synchronize()
        device_s = events[0].elapsed_time(events[1]) * 1e-3 if events else host_s
        return list(got.values()), device_s, host_s

    def _ask(self, first: Sequence[int], tokens: int) -> dict[str, list[int]]:
        """Sends the requests; the ids that come back are collected by request, in the order of the sequences."""
        kinds = sys.modules["vllm.sampling_params"]
        settings = self._vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        settings.output_kind = kinds.RequestOutputKind.DELTA
        got: dict[str, list[int]] = {}
        for index, token in enumerate(first):
            self._number += 1
            name = f"r{self._number}"
            got[name] = []
            prompt = {"prompt_token_ids": [*self._prefix, token], "cache_salt": f"sequence {index}"}
            self._engine.add_request(name, prompt, settings)
        return got

    def _step(self, got: dict[str, list[int]]) -> None:
        for output in self._engine.step() or ():
            # A request's name may have gained a suffix that keeps it apart from others.
            name = output.request_id if output.request_id in got else output.request_id.partition("-")[0]
            got[name] += output.outputs[0].token_ids

    def busy(self, first: Sequence[int], tokens: int) -> float | None:
        """Seconds a token in which some kernel ran: union of their intervals in the later two thirds of a profiled call."""
        if not self._inside:
            return None
        from torch.profiler import ProfilerActivity, profile

        steps = max(tokens, 64)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self._run(first, steps)
            self._torch.cuda.synchronize()
        spans = [
            (e.time_range.start, e.time_range.end)
            for e in seen.events()
            if str(getattr(e, "device_type", "")).endswith("CUDA") and not e.name.startswith("gpu_user")
        ]
        return busy_us(spans) * 1e-6 / ((steps + 1 + EXTRA) * 2 / 3) if spans else None

    def logits(self, ids: Sequence[int], keep: int) -> list[list[float]]:
        raise ValueError("vLLM gives tokens here, not logits; its gate is on tokens")


def busy_us(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of the later two thirds of the spans, by their beginnings."""
    ordered = sorted(spans)
    total, reached = 0.0, float("-inf")
    for start, end in ordered[len(ordered) // 3 :]:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(serve(lambda: VllmWorker(**given)))
