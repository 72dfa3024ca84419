"""``amk quantise``: round the weights of a model, calibrated on a text, into a folder that ``--weights`` takes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from amk_core.commands import options

NAME = "quantise"
HELP = "store a model's weights in 8 or 4 bits, calibrated on a text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    parser.add_argument("--weights", required=True, metavar="FORMAT", help="int8, int4-g64-zero,head=int8-g32, ...")
    parser.add_argument("--text", type=Path, metavar="FILE", help="text to calibrate on; without it weights are rounded to nearest")
    parser.add_argument("--length", type=options.natural, default=1024, metavar="N", help="tokens of a sequence (default: 1024)")
    parser.add_argument("--sequences", type=options.natural, default=8, metavar="N", help="sequences at most (default: 8)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write; it must not be there")


def run(args: argparse.Namespace) -> int:
    """Quantise, write, and say how many bytes a token reads."""
    from amk_core.importer import open_model
    from amk_core.importer.hub import stderr
    from amk_core.quant import saved
    from amk_core.quant.calibrate import calibrate
    from amk_core.quant.config import QuantConfig
    from amk_core.quant.source import QuantWeights

    if args.out.exists():
        raise FileExistsError(f"{args.out} is there already; name a folder that is not, or remove it")
    config = QuantConfig.parse(args.weights)
    imported = open_model(args.model)
    get, start = imported.weights.get, time.perf_counter()
    if args.text is None:
        weights = QuantWeights(imported.graph, config, get)
    else:
        weights = calibrate(imported.graph, get, config, _sequences(args, imported.tokenizer_path), say=stderr)
    saved.save(weights, args.out)
    size = options.size(weights.weight_bytes(2))
    print(f"{args.out}: {config}, {size} of weights a token, {time.perf_counter() - start:.0f} s")
    return 0


def _sequences(args: argparse.Namespace, tokenizer: Path | None) -> list[list[int]]:
    if tokenizer is None:
        raise ValueError(f"{args.model} ships no tokenizer, so it cannot take a text; call amk_core.quant.calibrate with token ids")
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(str(tokenizer))(args.text.read_text(encoding="utf-8"), add_special_tokens=False)[
        "input_ids"
    ]
    out = [list(ids[a : a + args.length]) for a in range(0, len(ids) - args.length + 1, args.length)][: args.sequences]
    if not out:
        raise ValueError(
            f"{args.text} has {len(ids)} tokens; required is a sequence of {args.length} at least. Give --length or more text."
        )
    return out
