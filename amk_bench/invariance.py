"""What bits that depend on neither batch, neighbours nor chunks cost on a card, beside kernels that choose their order by size.

``python -m amk_bench.invariance --model llama-3.2-1b --out FILE`` (random weights of a public shape, bf16): a step of several
sequences against the fused PyTorch step in a CUDA graph, and a prompt, which goes through in chunks of 16 or 32 rows, against the
same prompt in one pass of cuBLAS.  Both have orders of summation that change with the number of rows; ours has one.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amk_bench import fingerprint
from amk_bench.arena import random_model
from amk_bench.baselines.engines import FusedEngine
from amk_bench.ours import Ours
from amk_bench.results import write_atomically
from amk_core.graph import GRAPH_SHAPES
from amk_core.machine import probe

BATCHES, PROMPTS = (1, 4, 16), (128, 512, 1024)
POSITION, TOKENS, REPEATS = 128, 32, 7
ROWS = 1280  # of every cache


@dataclass(frozen=True, slots=True)
class Price:
    """One row; times in milliseconds, a sample a repeat.  ``what``: "step" of ``rows`` sequences, or "prompt" of ``rows`` ids."""

    model: str
    what: str
    rows: int
    ours_ms: tuple[float, ...]
    theirs_ms: tuple[float, ...]
    theirs: str

    @property
    def ratio(self) -> float:
        """Theirs over ours: below 1, the price is that much."""
        return float(np.median(self.theirs_ms) / np.median(self.ours_ms))

    def __str__(self) -> str:
        mine, other = float(np.median(self.ours_ms)), float(np.median(self.theirs_ms))
        unit = "sequences" if self.what == "step" else "ids"
        about = f"{self.model:14s} {self.what:6s} of {self.rows:4d} {unit:9s}"
        return f"{about}: {mine:8.3f} ms, {self.theirs} {other:8.3f} ms, {self.ratio:.2f}x"


def timed(call: Callable[[], object], wait: Callable[[], object], scale: float = 1.0) -> tuple[float, ...]:
    """Milliseconds of ``REPEATS`` calls by the host's clock, each waited for, times ``scale``; two more warm up."""
    out = []
    for _ in range(REPEATS + 2):
        wait()
        start = time.perf_counter()
        call()
        wait()
        out.append((time.perf_counter() - start) * 1e3 * scale)
    return tuple(out[2:])


def prices(model: str, seed: int, batches: Sequence[int], prompts: Sequence[int], say: Callable[[str], None]) -> list[Price]:
    """Rows of one shape on the first card; both sides have the same weights and give a token a sequence and step."""
    import torch

    import amk_core

    graph = GRAPH_SHAPES[model]
    live, shared, _ = random_model(graph, seed)
    rows, wait = [], torch.cuda.synchronize
    text = np.random.default_rng(seed).integers(0, graph.vocab_size, max(*prompts, POSITION)).tolist()
    for batch in batches:
        ours = Ours(amk_core.load(live, mode="fast", backend="cuda", batch=batch, context=ROWS))
        theirs = FusedEngine(shared["weights"], batch, ROWS, "graph")
        for engine in (ours, theirs):
            engine.prepare(text[:POSITION], batch, TOKENS)

        def step(engine: Any, n: int = batch) -> Callable[[], object]:
            def call() -> None:
                engine.rewind()
                engine.decode([5] * n, TOKENS)

            return call

        rows.append(Price(model, "step", batch, timed(step(ours), wait, 1 / TOKENS), timed(step(theirs), wait, 1 / TOKENS),
                          "fused step, CUDA graph"))  # fmt: skip
        say(str(rows[-1]))
        if batch == 1:
            for n in prompts:
                mine = timed(lambda n=n, o=ours: o.model.prefill([text[:n]]), wait)  # type: ignore[misc]
                ids = torch.tensor([text[:n]], device="cuda")

                def once(t: Any = theirs, i: Any = ids) -> None:
                    with torch.no_grad():
                        t.step.prefill(i)

                rows.append(Price(model, "prompt", n, mine, timed(once, wait), "torch, one pass"))
                say(str(rows[-1]))
        del ours, theirs
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def document(rows: Sequence[Price], device: str, arch: str, command: Sequence[str], commit: str) -> dict[str, Any]:
    """What a run leaves behind.  No gate stands in it, so it is no result in the sense of the win/loss tables."""
    stamp = fingerprint.take(probe(), arch, device, command, {}, Path.cwd(), commit)
    return {
        "amk": {"schema": 1, "kind": "invariance", "fingerprint": stamp.to_json(),
                "prices": [{**asdict(r), "ratio": r.ratio, "weights": "random"} for r in rows]}
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=sorted(GRAPH_SHAPES), default="llama-3.2-1b")
    p.add_argument("--batches", default=",".join(map(str, BATCHES)), help="by commas")
    p.add_argument("--prompts", default=",".join(map(str, PROMPTS)), help="ids of each prompt, by commas")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--commit", default="", help="commit that is measured, where the tree is not a checkout")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args(argv)
    try:
        import torch

        name = torch.cuda.get_device_name()
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    except (ImportError, RuntimeError, AssertionError) as error:
        print(f"no card to measure: {error}; needs torch with CUDA and an NVIDIA card", file=sys.stderr)
        return 2
    batches, prompts = ([int(n) for n in text.split(",")] for text in (a.batches, a.prompts))
    rows = prices(a.model, a.seed, batches, prompts, lambda text: print(text, flush=True))
    command = ["python", "-m", "amk_bench.invariance", *fingerprint.without_places(sys.argv[1:])]
    write_atomically(a.out, document(rows, name, arch, command, a.commit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
