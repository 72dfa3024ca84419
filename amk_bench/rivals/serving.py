"""vLLM and llama.cpp as baselines: each in its own resident process, on the judge's very weights.

Where they are looked for (nothing is installed or downloaded):

``AMK_VLLM_PYTHON``, ``AMK_VLLM_PATH``: the interpreter that has vLLM (default: this one), and folders to add to its path.
``AMK_VLLM_MODES``: the modes to try, by commas (default: inproc-async,mp-async); the quickest is the one that is measured.
``AMK_LLAMA_CPP``: folder of llama.cpp's shared libraries (default: those inside an installed ``llama_cpp``).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amk_bench.baselines.registry import BaselineUnavailable, Setting
from amk_bench.rivals import checkpoints
from amk_bench.rivals.remote import RemoteEngine, TracingEngine, worker_command
from amk_bench.rivals.resident import Resident, RivalBroke
from amk_core.graph import ModelGraph
from amk_core.quant.config import QuantConfig

MODES = ("inproc-async", "mp-async")
TRIAL_TOKENS, TRIAL_CALLS = 32, 7  # what decides between modes; the measurement itself is the judge's
ASK_S = 60.0
KV_SPARE = 1.3  # blocks of the cache are rounded up, and one call's leftovers stay until the next evicts them
BEYOND = 6e9  # bytes that vLLM takes besides weights and cache: graphs, workspaces, the context
Worker = Callable[[str], Resident]  # mode -> its process


def _graph(setting: Setting) -> ModelGraph:
    from amk_core.importer import open_model

    return open_model(setting.source).graph


def _live(setting: Setting) -> Any:
    from amk_bench.baselines.factories import live_model

    return live_model(setting)


class BestOfModes(RemoteEngine):
    """An engine that can run in several modes: all are tried in the first cell, one after the other, and the quickest stays.

    ``together``: the device holds all of them at once, so that they start side by side.
    """

    def __init__(self, name: str, precision: str, workers: dict[str, Resident], together: bool = False) -> None:
        super().__init__(name, precision, next(iter(workers.values())))
        self._workers, self._together = workers, together
        self.tried: dict[str, str] = {}

    def launch(self) -> None:
        for worker in self._workers.values() if self._together else (self.resident,):
            if not worker.running:
                worker.launch()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def prepare(self, prefix: Sequence[int], batch: int, room: int) -> None:
        if len(self._workers) > 1 and not self.tried:
            self._choose(prefix, batch, room)
        super().prepare(prefix, batch, room)

    def _choose(self, prefix: Sequence[int], batch: int, room: int) -> None:
        times: dict[str, float] = {}
        for mode, worker in self._workers.items():
            self.resident = worker
            try:
                super().prepare(prefix, batch, room)
                tokens = max(1, min(TRIAL_TOKENS, room - 1))
                samples = []
                for call in range(TRIAL_CALLS):
                    super().decode([call + 1] * batch, tokens)
                    assert self.sample is not None
                    samples.append(self.sample.host_s / tokens)
                times[mode] = statistics.median(samples)
                self.tried[mode] = f"{1e6 * times[mode]:.0f} us"
            except RivalBroke as error:
                self.tried[mode] = " ".join(str(error).split())[:300]
            if not self._together:
                worker.close()
        if not times:
            told = "; ".join(f"{mode}: {said}" for mode, said in self.tried.items())
            raise RivalBroke(f"{self.name} runs in no mode: {told}")
        self.resident = self._workers[min(times, key=lambda mode: times[mode])]
        for worker in self._workers.values():
            if worker is not self.resident:
                worker.close()

    def describe(self) -> dict[str, str]:
        return {**super().describe(), **{f"tried {mode}": said for mode, said in self.tried.items()}}


def vllm_version(python: str, env: dict[str, str]) -> str:
    """Version of the vLLM that this interpreter has.  BaselineUnavailable with the reason where it has none."""
    code = "from importlib.metadata import version; print(version('vllm'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ASK_S, env={**os.environ, **env})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BaselineUnavailable(f"vLLM: {python} does not run: {error}") from None
    if done.returncode != 0:
        raise BaselineUnavailable("vLLM is not installed: pip install vllm, or name an interpreter that has it in AMK_VLLM_PYTHON")
    return done.stdout.strip()


def _bf16_on_a_card(setting: Setting, name: str) -> None:
    if setting.device != "cuda" or setting.precision != "bf16":
        raise BaselineUnavailable(f"{name} is measured on a card in bf16, not on {setting.device} in {setting.precision}")


def _checkpoint(setting: Setting) -> Path:
    folder = checkpoints.place(setting.shared, _graph(setting)) / "hf"
    return checkpoints.once(folder, "config.json", lambda to: checkpoints.hf_folder(_live(setting), to))


def vllm(setting: Setting) -> BestOfModes:
    """vLLM, resident; modes are tried in the first cell."""
    _bf16_on_a_card(setting, "vLLM")
    return _vllm(setting, "vLLM", "bf16", _checkpoint)


def vllm_gptq(setting: Setting) -> BestOfModes:
    """vLLM on a GPTQ checkpoint with the codes and scales of ours in the layers and a head in bf16."""
    name, quantised = "vLLM GPTQ", setting.shared.get("quantised")
    if quantised is None:
        raise BaselineUnavailable(f"{name}: the weights of this cell are not quantised")
    _bf16_on_a_card(setting, name)

    def checkpoint(setting: Setting) -> Path:
        folder = checkpoints.place(setting.shared, _graph(setting)) / "gptq"
        return checkpoints.once(folder, "config.json", lambda to: checkpoints.gptq_folder(_live(setting), quantised, to))

    try:
        return _vllm(setting, name, str(QuantConfig(quantised.config.layers)), checkpoint)
    except checkpoints.NoLayout as error:
        raise BaselineUnavailable(f"{name}: {error}") from None


def _vllm(setting: Setting, name: str, precision: str, checkpoint: Callable[[Setting], Path]) -> BestOfModes:
    python = os.environ.get("AMK_VLLM_PYTHON") or sys.executable
    added = os.environ.get("AMK_VLLM_PATH", "")
    # amk's own tree comes behind everything else (worker_command), so that its folders hide no package of vLLM's.
    tree = Path(__file__).resolve().parents[2]
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != tree]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [added, *others]))}
    vllm_version(python, env)
    graph = _graph(setting)
    rows = min(setting.context, graph.context)
    kv = int(2 * graph.n_layers * graph.kv_size * 2 * (rows + 64) * setting.batch * KV_SPARE) + (256 << 20)
    share = _share(graph, kv)
    values = {"model": str(checkpoint(setting)), "rows": rows, "batch": setting.batch, "kv_bytes": kv, "share": share}
    modes = [m for m in os.environ.get("AMK_VLLM_MODES", ",".join(MODES)).split(",") if m]
    workers = {m: Resident(worker_command(python, "amk_bench.rivals.vllm_worker", {**values, "mode": m}), env) for m in modes}
    return BestOfModes(name, precision, workers, together=len(workers) == 1 or _fit(len(workers) * share))


def _share(graph: ModelGraph, kv_bytes: int) -> float:
    """Of the card's memory, what vLLM needs: it refuses to start where less than the share it is given is free."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    return float(min(0.95, (2.2 * graph.parameters() + kv_bytes + BEYOND) / total))


def _fit(share: float) -> bool:
    """Whether this share of the card's memory is free."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return bool(share * total < free)


def llama_folder() -> Path:
    """Where llama.cpp's shared libraries are.  BaselineUnavailable where nothing says."""
    named = os.environ.get("AMK_LLAMA_CPP")
    if named:
        if not list(Path(named).glob("libllama*.so*")):
            raise BaselineUnavailable(f"llama.cpp: AMK_LLAMA_CPP names {named}, and there is no libllama there")
        return Path(named)
    spec = find_spec("llama_cpp")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if list((Path(place) / "lib").glob("libllama*.so*")):
            return Path(place) / "lib"
    raise BaselineUnavailable("llama.cpp is not installed: build it as shared libraries and name their folder in AMK_LLAMA_CPP")


def llama_cpp(setting: Setting) -> TracingEngine:
    """llama.cpp, resident, bf16 weights; on a processor too, where the tests run it."""
    folder = llama_folder()
    if setting.precision != "bf16":
        raise BaselineUnavailable(f"llama.cpp is measured with bf16 weights, not in {setting.precision}")
    graph = _graph(setting)
    file = checkpoints.place(setting.shared, graph) / "model.gguf"
    checkpoints.once(file, "", lambda to: checkpoints.gguf_file(graph, _live(setting), to))
    values = {
        "model": str(file), "library": str(folder), "rows": min(setting.context, graph.context), "batch": setting.batch,
        # With all layers on a card, more threads spin for nothing.
        "threads": 1 if setting.device == "cuda" else setting.threads, "card": setting.device == "cuda",
    }  # fmt: skip
    # libggml-cuda finds the CUDA libraries that came with torch.
    paths = [str(folder), *_cuda_libraries(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    command = worker_command(sys.executable, "amk_bench.rivals.llama_worker", values)
    return TracingEngine("llama.cpp", "bf16", Resident(command, {"LD_LIBRARY_PATH": os.pathsep.join(paths)}))


def _cuda_libraries() -> list[str]:
    spec = find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return sorted({str(so.parent) for root in roots for so in root.glob("*/lib/lib*.so*")})
