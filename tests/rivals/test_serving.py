"""Claims about vLLM and llama.cpp as baselines: weights in their formats, processes, modes, reasons; a vLLM made of arithmetic."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from amk_bench.baselines import registry  # noqa: E402
from amk_bench.baselines.hf import HfEager  # noqa: E402
from amk_bench.baselines.reference import Reference, check_logits  # noqa: E402
from amk_bench.baselines.registry import BaselineUnavailable, Setting  # noqa: E402
from amk_bench.baselines.weights import hf_model, random_weights  # noqa: E402
from amk_bench.cell import Cell  # noqa: E402
from amk_bench.rivals import absent, checkpoints, serving, vllm_worker  # noqa: E402
from amk_bench.rivals.vllm_worker import EXTRA, VllmWorker, busy_us  # noqa: E402
from amk_core.graph import ModelGraph, RopeSpec  # noqa: E402

V = 300
PLAIN = RopeSpec("default", 1e4, 16, 512)
LLAMA3 = RopeSpec("llama3", 5e5, 16, 512, 8.0, 128)


def graph(rope: RopeSpec = PLAIN, tied: bool = False) -> ModelGraph:
    return ModelGraph("tiny", "llama", V, 64, 96, 2, 4, 2, 16, 1e-5, tied, 512, rope, 0.25)


def setting(rope: RopeSpec = PLAIN, tied: bool = False, **changes: Any) -> Setting:
    torch.set_num_threads(1)
    weights = random_weights(graph(rope, tied), 1, "cpu", torch.bfloat16)
    live = hf_model(weights)
    values = {"device": "cpu", "precision": "bf16", "context": 256, **changes}
    key = f"hf bf16 {values['device']}"
    return Setting("tiny", live, **values, shared={"weights": weights, key: live})


def test_runs_side_by_side_write_the_same_weights_once(tmp_path: Path) -> None:
    """Eight threads, each with a lock of its own as processes have: one makes the folder, and nobody sees half of it."""
    made: list[Path] = []

    def make(to: Path) -> None:
        made.append(to)
        to.mkdir()
        time.sleep(0.2)
        (to / "config.json").write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        seen = list(
            pool.map(lambda _: (checkpoints.once(tmp_path / "hf", "config.json", make) / "config.json").read_text(), range(8))
        )
    assert seen == ["whole"] * 8
    assert made == [tmp_path / "hf"]


@pytest.mark.parametrize(("rope", "tied"), [(PLAIN, False), (LLAMA3, True)])
def test_a_gguf_file_has_the_weights_it_was_made_from(tmp_path: Path, rope: RopeSpec, tied: bool) -> None:
    """Rows of Q and K stand in the format's own order, in which the two of a rotated pair are neighbours."""
    import gguf

    own = setting(rope, tied)
    path = checkpoints.gguf_file(graph(rope, tied), own.source, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(path)
    told = {name: reader.fields[f"llama.{name}"].contents() for name in ("block_count", "attention.head_count_kv", "vocab_size")}
    assert told == {"block_count": 2, "attention.head_count_kv": 2, "vocab_size": V}
    tensors = {t.name: t for t in reader.tensors}
    assert ("output.weight" in tensors) != tied
    assert ("rope_freqs.weight" in tensors) == (rope.kind == "llama3")
    state = own.source.state_dict()
    for name, hf, heads in (
        ("blk.1.attn_q.weight", "self_attn.q_proj", 4), ("blk.1.attn_k.weight", "self_attn.k_proj", 2),
        ("blk.1.attn_v.weight", "self_attn.v_proj", 0), ("blk.1.ffn_down.weight", "mlp.down_proj", 0),
    ):  # fmt: skip
        raw = np.asarray(tensors[name].data).view(np.uint16).reshape(state[f"model.layers.1.{hf}.weight"].shape)
        wanted = state[f"model.layers.1.{hf}.weight"].view(torch.uint16).numpy()
        if heads:  # row 2 i + j of a head is row i of its j-th half
            d = wanted.shape[0] // heads
            order = [h * d + (r % 2) * (d // 2) + r // 2 for h in range(heads) for r in range(d)]
            wanted = wanted[order]
        assert np.array_equal(raw, wanted), name


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_that_transformers_reads_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    own = setting(LLAMA3, tied)
    folder = checkpoints.hf_folder(own.source, tmp_path / "hf")
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(read(ids).logits, own.source(ids).logits)


def test_rotary_kinds_without_fields_in_gguf_are_refused(tmp_path: Path) -> None:
    yarn = ModelGraph("y", "llama", V, 64, 96, 2, 4, 2, 16, 1e-5, True, 512, RopeSpec("yarn", 1e4, 16, 512, 4.0, 128), 0.25)
    with pytest.raises(ValueError, match="rotary kind yarn"):
        checkpoints.gguf_file(yarn, None, tmp_path / "m.gguf")


@pytest.mark.skipif(
    not os.environ.get("AMK_LLAMA_CPP"), reason="llama.cpp itself: name the folder of its libraries in AMK_LLAMA_CPP"
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rope", [PLAIN, LLAMA3], ids=["plain", "llama3"])
def test_llama_cpp_on_these_weights_computes_what_huggingface_does(rope: RopeSpec, batch: int) -> None:
    own = setting(rope, batch=batch)
    engine: Any = registry.make("llama.cpp", own)
    reference = Reference(HfEager(own.source, 1, "fp32"), HfEager(own.source, 1, "bf16"))
    text = tuple(range(7, 107))
    for position in (0, 1, 100):
        cell = Cell("toy", "tiny", "fast", batch, text[:position], tuple(range(V)))
        record = check_logits(engine, cell, *reference.enter(cell, 3))
        assert record.passed, record
    engine.close()


def test_where_llama_cpp_is_not_there_the_cell_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AMK_LLAMA_CPP", raising=False)
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with pytest.raises(BaselineUnavailable, match="name their folder in AMK_LLAMA_CPP"):
        registry.make("llama.cpp", setting())
    monkeypatch.setenv("AMK_LLAMA_CPP", str(tmp_path))
    with pytest.raises(BaselineUnavailable, match="there is no libllama there"):
        registry.make("llama.cpp", setting())


@pytest.mark.parametrize("name", list(absent.REASONS))
def test_a_rival_that_is_not_run_has_its_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in registry.names()
    with pytest.raises(BaselineUnavailable) as left_out:
        registry.make(name, setting())
    assert len(str(left_out.value)) > 30
    module = absent.REASONS[name][0]
    if module:
        monkeypatch.setattr(absent, "find_spec", lambda name: object())
        with pytest.raises(BaselineUnavailable, match=f"{module} is installed, but no adapter runs it yet"):
            registry.make(name, setting())


FAKE = '''
"""A vLLM made of arithmetic: next = (3 token + position) mod V; it schedules one new request a step, as a full batch would."""
import json, os, time
from types import SimpleNamespace
from vllm.sampling_params import SamplingParams
__version__ = "0.0.fake"

class Engine:
    def __init__(self, vocabulary, step_s):
        self.v, self.step_s, self.asked, self.seen = vocabulary, step_s, {}, []
    def add_request(self, name, prompt, params):
        ids = prompt["prompt_token_ids"]
        self.seen.append((name, ids, prompt["cache_salt"]))
        self.asked[name] = [ids[-1], len(ids) - 1, params.max_tokens, False]
    def has_unfinished_requests(self):
        return bool(self.asked)
    def step(self):
        time.sleep(self.step_s)
        out, new = [], 1
        for name, r in list(self.asked.items()):
            if not r[3]:
                if not new:
                    continue
                new -= 1
                r[3] = True
            r[0] = (3 * r[0] + r[1]) % self.v
            r[1] += 1
            r[2] -= 1
            out.append(SimpleNamespace(request_id=name + "-4f2a", outputs=[SimpleNamespace(token_ids=[r[0]])]))
            if r[2] == 0:
                del self.asked[name]
        return out

class LLM:
    def __init__(self, model, **settings):
        assert settings["kv_cache_memory_bytes"] > 0 and os.environ["VLLM_NO_USAGE_STATS"] == "1"
        config = json.load(open(os.path.join(model, "config.json")))
        assert os.path.exists(os.path.join(model, "model.safetensors.index.json"))
        if os.environ.get("FAKE_FAILS") == os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]:
            raise RuntimeError("the engine core died")
        print("INFO loading weights")
        slow = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1" and not settings["async_scheduling"]
        self.llm_engine = Engine(config["vocab_size"], 0.004 if not settings["async_scheduling"] else 0.0005)
'''
PARAMS = """
class RequestOutputKind:
    DELTA = 1
class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize):
        assert temperature == 0.0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package; workers find it there, this process does not."""
    place = tmp_path / "site"
    (place / "vllm").mkdir(parents=True)
    (place / "vllm" / "__init__.py").write_text(textwrap.dedent(FAKE))
    (place / "vllm" / "sampling_params.py").write_text(PARAMS)
    (place / "vllm-0.0.dist-info").mkdir()
    (place / "vllm-0.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.0\n")
    monkeypatch.setenv("AMK_VLLM_PATH", str(place))
    monkeypatch.setattr(serving, "_share", lambda graph, kv: 0.1)
    monkeypatch.setattr(serving, "_fit", lambda share: False)
    return place


def expected(first: int, prefix: int, tokens: int) -> list[int]:
    out, token = [], first
    for i in range(tokens):
        token = (3 * token + prefix + i) % V
        out.append(token)
    return out


def card(**changes: Any) -> Setting:
    own = setting(**changes)
    return Setting("tiny", own.source, "cuda", "bf16", 256, own.batch, shared={**own.shared, "hf bf16 cuda": own.source})


def test_vllm_is_started_with_these_weights_tried_in_its_modes_and_the_quickest_stays(
    fake_vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMK_VLLM_MODES", "mp-sync,mp-async")
    engine: Any = registry.make("vllm", card(batch=3))
    engine.prepare([5, 6, 7], 3, 12)
    assert engine.resident.told["mode"] == "mp-async"
    assert engine.decode([1, 2, 9], 6) == [expected(t, 3, 6) for t in (1, 2, 9)]
    told = engine.describe()
    assert told["vllm"] == "0.0.fake"
    assert told["tried mp-sync"].endswith(" us")
    assert told["clock"] == "host clock in the rival's process"
    engine.close()


def test_modes_that_fit_the_card_together_start_side_by_side_and_the_quickest_stays(
    fake_vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMK_VLLM_MODES", "mp-sync,mp-async")
    monkeypatch.setattr(serving, "_fit", lambda share: share == pytest.approx(0.2))
    engine: Any = registry.make("vllm", card())
    engine.launch()
    both = list(engine._workers.values())
    assert [worker.running for worker in both] == [True, True]
    engine.prepare([5, 6], 1, 12)
    assert engine.resident is both[1]
    assert [worker.running for worker in both] == [False, True]
    assert [worker.starts for worker in both] == [1, 1]
    assert engine.decode([1], 4) == [expected(1, 2, 4)]
    engine.close()
    assert not both[1].running


def test_a_mode_that_does_not_start_is_told_and_the_other_is_used(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMK_VLLM_MODES", "inproc-async,mp-async")
    monkeypatch.setenv("FAKE_FAILS", "0")
    engine: Any = registry.make("vllm", card())
    engine.prepare([5], 1, 12)
    assert engine.resident.told["mode"] == "mp-async"
    assert "the engine core died" in engine.describe()["tried inproc-async"]
    engine.close()


def test_vllm_that_starts_in_no_mode_is_an_error_with_every_reason(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMK_VLLM_MODES", "mp-sync,mp-async")
    monkeypatch.setenv("FAKE_FAILS", "1")
    engine: Any = registry.make("vllm", card())
    with pytest.raises(serving.RivalBroke, match=r"vLLM runs in no mode: mp-sync: .*core died.*mp-async: .*core died"):
        engine.prepare([5], 1, 12)


def test_without_vllm_the_cell_says_how_to_get_it() -> None:
    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed here")
    with pytest.raises(BaselineUnavailable, match="vLLM is not installed: pip install vllm"):
        registry.make("vllm", card())
    with pytest.raises(BaselineUnavailable, match="measured on a card in bf16, not on cpu"):
        registry.make("vllm", setting())


class Event:
    """A CUDA event that reads a clock which only steps advance."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


@pytest.fixture
def inside(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VllmWorker:
    """The worker in this process, in a mode whose clock is that of the device."""
    monkeypatch.syspath_prepend(str(fake_vllm))
    for name in ("vllm", "vllm.sampling_params"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    folder = checkpoints.hf_folder(setting().source, tmp_path / "hf")
    worker = VllmWorker(str(folder), "inproc-async", 256, 4, 1 << 20, 0.1)
    worker._torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event), __version__="t")
    engine = worker._engine
    plain = engine.step

    def step() -> Any:
        Event.now += 1e-3
        return plain()

    engine.step = step
    yield worker  # type: ignore[misc]
    for name in ("vllm", "vllm.sampling_params"):
        sys.modules.pop(name, None)


def test_the_window_holds_as_many_steps_as_tokens_whatever_the_start_costs(inside: VllmWorker) -> None:
    """Four requests enter one a step, so the first is three tokens ahead when the window opens; seven steps are timed."""
    inside.prepare([4, 5], 4, 30)
    inside._engine.seen.clear()
    answer = inside.decode([1, 2, 3, 4], 7)
    assert answer["device_s"] == pytest.approx(7e-3)
    assert answer["chains"] == [expected(t, 2, 7) for t in (1, 2, 3, 4)]
    # Twice: what comes before the window is thrown away.
    assert [ids for _, ids, _ in inside._engine.seen] == 2 * [[4, 5, t] for t in (1, 2, 3, 4)]
    assert len({salt for _, _, salt in inside._engine.seen}) == 4  # no two sequences share their cache
    assert not inside._engine.has_unfinished_requests()
    assert EXTRA >= 4


def test_prefixes_are_filled_before_a_call_and_sequences_too_far_apart_are_an_error(inside: VllmWorker) -> None:
    """Where the last sequence begins when the others are through, a call ends with an error and not never."""
    inside.prepare([4, 5], 4, 30)
    assert [ids for _, ids, _ in inside._engine.seen[:4]] == [[4, 5, 1]] * 4
    engine, plain = inside._engine, inside._engine.step

    def late() -> Any:
        """The last request waits until the others are through."""
        last = next(reversed(engine.asked))
        if len(engine.asked) > 1:
            kept = engine.asked.pop(last)
            out = plain()
            engine.asked[last] = kept
            return out
        return plain()

    engine.step = late
    with pytest.raises(RuntimeError, match="began too far apart for"):
        inside.decode([1, 2, 3, 4], 7)


def test_the_device_is_busy_for_the_union_of_its_kernels() -> None:
    assert busy_us([(0, 100), (10, 12), (11, 14), (20, 21)]) == pytest.approx(5.0)  # of four, the first third is one
    assert busy_us([(0.0, 1.0), (2.0, 9.0), (3.0, 4.0)]) == pytest.approx(7.0)
    assert vllm_worker.MODES[0] == "inproc-async"
