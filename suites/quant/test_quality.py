"""What quantised weights cost: perplexity, KL and top-1 agreement against bf16 on the shared text, greedy tokens, bytes.

Windows 0 to 7 of the text are for calibration, 8 to 16 are held out; everything is measured on held-out windows.  Both sides run on
the CPU VM in mode ``fast`` (bf16 activations), so that what differs is the weights, and with ``-a8`` the activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench.options import Options
from amk_bench.progress import Progress
from amk_bench.quality import Quality, common_prefix, compare
from amk_bench.recorder import Recorder

WINDOW = 1024
TRAIN, HELD_OUT = range(8), range(8, 17)
WINDOWS = {"quick": (8,), "default": (8, 11, 14), "full": tuple(HELD_OUT)}
# int8 stands for the model, so it has to be near in every respect; 4 bits are allowed a few percent of perplexity.
INT8_PERPLEXITY, INT8_KL, INT4_PERPLEXITY = 0.005, 0.002, 0.06
# Activations of 8 bits with one scale a row lose what lies beside an outlier: no stand-in for the model, but no worse than 4 bits.
W8A8_PERPLEXITY, W8A8_KL = 0.06, 0.05
GREEDY_TOKENS, GREEDY_PROMPT = 256, 64
OWN_SAMPLES, DRAWN_AT_ONCE = 32, 8

INT8 = "int8-g32,head=int8-g32"
W8A8 = "int8-a8,head=int8-a8"
CALIBRATED = "int4-g64-zero,head=int8-g32"
ROUNDED = ("int8", "int8-g128,head=int8-g128", CALIBRATED, "int4-g128-zero,head=int8-g32")
ROUNDED_MORE = (
    "int8-g64,head=int8-g64", "int4-g32,head=int8-g32", "int4-g32-zero,head=int8-g32", "int4-g64,head=int8-g32",
    "int4-g64-min,head=int8-g32", "int4-g128,head=int8-g32", "int4-g128-min,head=int8-g32", "int4-g64-zero-bf16,head=int8-g32-bf16",
)  # fmt: skip
W8A8_MORE = ("int8-a8,head=int8", "int8-g32-a8,head=int8-g32-a8", "int8-g128-a8,head=int8-g128")
CALIBRATED_MORE = ("int4-g128-zero,head=int8-g32", "int4-g64,head=int8-g32", "int8")

Measure = Callable[..., Quality]


@pytest.fixture(scope="module")
def windows(text_ids: list[int], amk_options: Options) -> dict[int, list[int]]:
    """Held-out windows of this run, by index."""
    return {w: text_ids[w * WINDOW : (w + 1) * WINDOW] for w in WINDOWS[amk_options.tier]}


class Bf16:
    """The model with bf16 weights: its logits on the windows (in files, one window in memory) and its greedy tokens."""

    def __init__(self, path: Path, windows: dict[int, list[int]], folder: Path, progress: Progress) -> None:
        import amk_core

        progress.say(f"bf16 weights: {len(windows)} windows of {WINDOW} tokens")
        model = amk_core.load(str(path), "fast", context=WINDOW)
        self.files: dict[int, Path] = {}
        for w, ids in windows.items():
            self.files[w] = folder / f"{w}.npy"
            np.save(self.files[w], model.logits(ids))
        self.prompt = next(iter(windows.values()))[:GREEDY_PROMPT]
        self.tokens = model.generate([self.prompt], GREEDY_TOKENS, stop_ids=[])[0].tokens
        shapes = model.graph.weight_shapes()
        # a token reads every matrix of the layers and the head; of an embedding that is not the head it reads one row
        read = [s for n, s in shapes.items() if len(s) == 2 and (n != "embed" or model.graph.tied_head)]
        self.bytes = sum(2 * math.prod(s) for s in read)


@pytest.fixture(scope="module")
def bf16(
    model_path: Path, windows: dict[int, list[int]], tmp_path_factory: pytest.TempPathFactory, amk_progress: Progress
) -> Iterator[Bf16]:
    made = Bf16(model_path, windows, tmp_path_factory.mktemp("bf16"), amk_progress)
    yield made
    for file in made.files.values():
        file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def train(text_ids: list[int]) -> list[list[int]]:
    return [text_ids[w * WINDOW : (w + 1) * WINDOW] for w in TRAIN]


@pytest.fixture(scope="module")
def known() -> dict[str, Quality]:
    """What rounding cost, by format: several tests compare with it, and it is measured once."""
    return {}


@pytest.fixture
def measure(
    model_path: Path,
    windows: dict[int, list[int]],
    bf16: Bf16,
    known: dict[str, Quality],
    amk_record: Recorder,
    amk_progress: Progress,
) -> Measure:
    """``measure(method, weights)`` compares quantised weights with bf16 on the windows, and notes what came out."""
    import amk_core

    def run(method: str, weights: Any, greedy: bool = True) -> Quality:
        if method == "rounded" and not greedy and weights in known:
            return known[weights]
        loaded = amk_core.load(str(model_path), "fast", context=WINDOW, weights=weights)
        assert loaded.quantised is not None
        text = str(loaded.quantised.config)
        amk_progress.say(f"{text}, {method}: {len(windows)} windows")
        q = Quality(0, 0.0, 0.0, 0.0, 0)
        for w, ids in windows.items():
            q += compare(loaded.logits(ids)[:-1], np.load(bf16.files[w], mmap_mode="r")[:-1], ids[1:])
        size = loaded.quantised.weight_bytes(2)
        values = {
            "perplexity": q.perplexity, "bf16_perplexity": q.reference_perplexity, "increase": q.increase, "kl": q.mean_kl,
            "top1": q.agreement, "weight_bytes": float(size), "traffic": size / bf16.bytes, "positions": float(q.positions),
        }  # fmt: skip
        line = (
            f"{text:30} {method:10} perplexity {q.perplexity:7.3f} ({q.increase:+.2%}), KL {q.mean_kl:.5f}, "
            f"top-1 {q.agreement:.2%}, {size / 1e6:.1f} MB = {size / bf16.bytes:.3f} of bf16"
        )
        if greedy:
            tokens = loaded.generate([bf16.prompt], GREEDY_TOKENS, stop_ids=[])[0].tokens
            same = common_prefix(tokens, bf16.tokens)
            values |= {"greedy_prefix": float(same), "greedy_tokens": float(GREEDY_TOKENS)}
            line += f", greedy equal for {'all' if same == GREEDY_TOKENS else f'the first {same} of'} {GREEDY_TOKENS} tokens"
        amk_record.note(line, values)
        if method == "rounded":
            known[weights] = q
        return q

    return run


def test_a_quantised_file_run_as_it_is_has_the_bits_of_its_dequantised_values(
    amk_options: Options, model_path: Path, text_ids: list[int], amk_record: Recorder
) -> None:
    import amk_core
    from amk_core.importer import hub

    name = amk_options.model
    if not (hub.home() / "models" / f"{name}-packed" / hub.PACKED_FILE).is_file():
        amk_record.skip(
            "Q0 packed file",
            f"the GGUF file of {name} is not in the model cache",
            f"amk generate {name} --weights stored --prompt A",
        )
    ids = text_ids[8 * WINDOW : 8 * WINDOW + 128]
    want = amk_core.load(str(model_path), context=WINDOW).logits(ids)
    loaded = amk_core.load(name, context=WINDOW, weights="stored")
    same = loaded.logits(ids).tobytes() == want.tobytes()
    assert loaded.quantised is not None
    amk_record.parity(
        "Q0", f"{loaded.quantised.config}, as the file holds it, against its de-quantised values, exact, {len(ids)} positions",
        measured="equal bits" if same else "other bits", required="equal bits", passed=same,
    )  # fmt: skip
    assert same


def claim(record: Recorder, level: str, what: str, seen: float, limit: float, unit: str) -> None:
    passed = seen <= limit
    shown = (f"{seen:+.3%}", f"<= {limit:.1%}") if unit == "%" else (f"{seen:.5f}", f"<= {limit}")
    record.parity(level, what, measured=shown[0], required=shown[1], passed=passed, value=seen, limit=limit)
    assert passed, f"{what}: {shown[0]}, required {shown[1]}"


def test_int8_is_near_bf16(measure: Measure, amk_options: Options, amk_record: Recorder) -> None:
    q = measure("rounded", INT8)
    claim(amk_record, "Q1", f"KL of {INT8} from bf16, nats a position", q.mean_kl, INT8_KL, "nats")
    if amk_options.tier == "quick":  # one window is too little text to judge the increase by; it is noted
        return
    claim(amk_record, "Q1", f"perplexity of {INT8} over bf16's", q.increase, INT8_PERPLEXITY, "%")


def test_integers_on_both_sides_are_as_near_as_4_bits(measure: Measure, amk_options: Options, amk_record: Recorder) -> None:
    q = measure("rounded", W8A8)
    claim(amk_record, "Q3", f"KL of {W8A8} from bf16, nats a position", q.mean_kl, W8A8_KL, "nats")
    if amk_options.tier == "quick":
        return
    claim(amk_record, "Q3", f"perplexity of {W8A8} over bf16's", q.increase, W8A8_PERPLEXITY, "%")


def own_samples(path: Path, progress: Progress) -> list[list[int]]:
    """Text that nobody wrote: what the model itself says after one random token each, drawn at temperature 1."""
    import amk_core

    model = amk_core.load(str(path), "fast", context=WINDOW, batch=DRAWN_AT_ONCE)
    first = [[int(t)] for t in np.random.default_rng(0).integers(model.graph.vocab_size, size=OWN_SAMPLES)]
    progress.say(f"drawing {OWN_SAMPLES} samples of {WINDOW} tokens")
    drawn = model.generate(first, WINDOW - 1, temperature=1.0, stop_ids=[])
    return [[*a, *g.tokens] for a, g in zip(first, drawn, strict=True)]


def calibrated(path: Path, text: str, sequences: list[list[int]], progress: Progress) -> Any:
    from amk_core.importer import open_model
    from amk_core.quant.calibrate import calibrate
    from amk_core.quant.config import QuantConfig

    imported = open_model(path)
    progress.say(f"calibrating {text} on {len(sequences)} windows")
    return calibrate(imported.graph, imported.weights.get, QuantConfig.parse(text), sequences)


def test_calibrated_int4_is_within_a_few_percent(
    amk_options: Options, measure: Measure, model_path: Path, train: list[list[int]], amk_record: Recorder, amk_progress: Progress
) -> None:
    if amk_options.tier == "quick":
        amk_record.skip("Q2 calibrated int4", "calibration takes minutes", "pytest suites/quant")
    q = measure("calibrated", calibrated(model_path, CALIBRATED, train, amk_progress))
    claim(amk_record, "Q2", f"perplexity of {CALIBRATED}, calibrated, over bf16's", q.increase, INT4_PERPLEXITY, "%")


@pytest.mark.parametrize("text", ROUNDED)
def test_rounded(text: str, amk_options: Options, measure: Measure, amk_record: Recorder) -> None:
    """No limit: what rounding alone costs, for the table."""
    if amk_options.tier == "quick":
        amk_record.skip(f"rounded {text}", "left out of --quick", "pytest suites/quant")
    assert np.isfinite(measure("rounded", text).perplexity)


@pytest.mark.amk_full("more formats, rounded")
@pytest.mark.parametrize("text", ROUNDED_MORE)
def test_rounded_more(text: str, measure: Measure) -> None:
    assert np.isfinite(measure("rounded", text, greedy=False).perplexity)


@pytest.mark.amk_full("more formats with activations of 8 bits")
@pytest.mark.parametrize("text", W8A8_MORE)
def test_integers_on_both_sides_more(text: str, measure: Measure) -> None:
    """No limit of its own; activations are what costs, so that no scales of weights make it worse than the gate allows."""
    assert measure("rounded", text, greedy=False).mean_kl < W8A8_KL


@pytest.mark.amk_full("more formats, calibrated")
@pytest.mark.parametrize("text", CALIBRATED_MORE)
def test_calibrated_more(
    text: str, measure: Measure, model_path: Path, train: list[list[int]], amk_progress: Progress
) -> None:  # fmt: skip
    """No limit of its own, but calibration must not lose to rounding."""
    rounded = measure("rounded", text, greedy=False)
    assert measure("calibrated", calibrated(model_path, text, train, amk_progress), greedy=False).mean_kl < rounded.mean_kl


@pytest.mark.amk_full("calibrated without the novel that is judged")
def test_calibrated_on_own_samples(measure: Measure, model_path: Path, amk_progress: Progress) -> None:
    """The calibration text above is the first half of the novel whose second half is measured; here it is no part of it."""
    rounded = measure("rounded", CALIBRATED, greedy=False)
    weights = calibrated(model_path, CALIBRATED, own_samples(model_path, amk_progress), amk_progress)
    assert measure("own samples", weights).mean_kl < rounded.mean_kl
