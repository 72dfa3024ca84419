"""Issue slots of the quantised products, counted in the machine code of sm_90; no card is needed.

    python -m amk_bench.issue_slots [several] [MODEL ...]      (default: the 1B and the 8B shape)

nvdisasm has to be on the path or in a Triton wheel.

A line for each loop that holds integer products, in the order of the code: instructions of one turn on the way where nothing waits,
integer products, bytes of codes that a warp has multiplied.  Then what all weights of a step take at one instruction a cycle and
scheduler, by the costliest loop, and what the integer products alone take at 8 cycles each.

several: the loops for 4 and for 16 sequences instead, with activations of 21 bits and of 8; that of long rows, in the middle, may
hold what stages a piece of the activations.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amk_bench.quant_check import ACTIVATIONS, BATCHES, CONTEXT, FORMATS, LOOPS, MODELS
from amk_core.cost import layer_matrices
from amk_core.graph import GRAPH_SHAPES, ModelGraph
from amk_core.quant import QuantFormat
from amk_core.quant.config import QuantConfig
from amk_core.schedule.lower import Geometry, lower
from amk_core.targets import Target
from amk_core.vm import nvrtc
from amk_core.vm.plan import Dims, plan_build

SCHEDULERS, HERTZ, PRODUCT_CYCLES = 132 * 4, 1.755e9, 8
LABEL, INSTRUCTION = re.compile(r"^\s*(\.L_x_\d+):"), re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
JUMP = re.compile(r"\bBRA\b(?!\.DIV).*`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Loop:
    """One turn of a loop: instructions where nothing waits, and integer products among them."""

    instructions: int
    products: int


def disassembler() -> str | None:
    """A program that prints machine code: of the path, or of a Triton wheel."""
    found = shutil.which("nvdisasm")
    wheels = (Path(p) / "triton" / "backends" / "nvidia" / "bin" / "nvdisasm" for p in sys.path)
    return found or next((str(p) for p in wheels if os.access(p, os.X_OK)), None)


def loops(listing: str) -> Iterator[Loop]:
    """Innermost loops with integer products, without what is left out where nothing waits: calls, and the way to them."""
    lines: list[str] = []
    places: dict[str, int] = {}
    for line in listing.splitlines():
        if m := LABEL.match(line):
            places[m[1]] = len(lines)
        elif m := INSTRUCTION.search(line):
            lines.append(m[1])
    jumps = [(places[m[1]], i) for i, text in enumerate(lines) if (m := JUMP.search(text)) and places.get(m[1], i) < i]
    held = [(a, b) for a, b in jumps if any("IMMA" in x for x in lines[a : b + 1])]
    for a, b in held:
        if any(c <= b and a <= d and d - c < b - a for c, d in held):  # around a shorter one, or a way back from out of line
            continue
        labels = {at for at in places.values() if a < at <= b}
        blocks: list[list[str]] = [[]]
        for i in range(a, b + 1):
            if i in labels:
                blocks.append([])
            blocks[-1].append(lines[i])
            if JUMP.search(lines[i]):
                blocks.append([])
        way = [text for block in blocks if not any("CALL" in text for text in block) for text in block]
        yield Loop(len(way), sum("IMMA" in text for text in way))


def codes_of(fmt: QuantFormat, products: int, as_rows: bool, rows: int = 1) -> int:
    """Bytes of codes that so many products of a warp with ``rows`` of activations take: 16 or 8 rows of weights by 32."""
    times = 1 if fmt.activations else (rows + 1) // 2  # two rows of 21 bits a product, or 16 of 8 bits
    return products // times * (16 if as_rows else 8) * 32 * fmt.bits // 8


def weight_bytes(g: ModelGraph, fmt: QuantFormat) -> int:
    """Codes of a step: the layers' matrices and the head."""
    layer = sum(rows * k for rows, k in layer_matrices(g))
    return (g.n_layers * layer + g.vocab_size * g.hidden_size) * fmt.bits // 8


def listing_of(model: str, weights: str, pairs: bool, program: str, batch: int = 1) -> str:
    card, quant = Target.named("h200"), QuantConfig.parse(f"{weights},head={weights}")
    s = lower(GRAPH_SHAPES[model], None, card, Geometry(batch=batch, context=CONTEXT), "fast", quant)
    cubin = nvrtc.build(plan_build(Dims.of(s), card.arch, card.smem_bytes, pairs=pairs).defines, card.arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin.data)
        f.flush()
        return subprocess.run([program, "-c", f.name], capture_output=True, text=True, check=True).stdout


def several(models: Sequence[str], program: str) -> None:
    for model in models:
        for weights in ACTIVATIONS:
            fmt = QuantFormat.parse(weights)
            for batch in BATCHES[1:]:
                turns = loops(listing_of(model, weights, False, program, batch))
                said = ", ".join(f"{x.instructions} / {x.products} / {codes_of(fmt, x.products, False, batch)}" for x in turns)
                print(f"{model} {weights}, {batch} sequences: {said}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    program = disassembler()
    if program is None:
        print("no nvdisasm on the path and no Triton wheel; it comes with CUDA", file=sys.stderr)
        return 2
    names = list(sys.argv[1:] if argv is None else argv)
    if names[:1] == ["several"]:
        several(names[1:] or MODELS, program)
        return 0
    for model in names or MODELS:
        for weights in FORMATS:
            fmt = QuantFormat.parse(weights)
            for pairs, name in LOOPS.items():
                turns = [(x, codes_of(fmt, x.products, pairs)) for x in loops(listing_of(model, weights, pairs, program))]
                said = ", ".join(f"{x.instructions} / {x.products} / {codes}" for x, codes in turns)
                per_second = SCHEDULERS * HERTZ / weight_bytes(GRAPH_SHAPES[model], fmt)
                issue, products = (
                    max(n / codes for n, codes in of) / per_second * 1e6
                    for of in ([(x.instructions, c) for x, c in turns], [(x.products * PRODUCT_CYCLES, c) for x, c in turns])
                )
                print(f"{model} {weights} {name}: {said}; issue {issue:.0f} us, products {products:.0f} us", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
