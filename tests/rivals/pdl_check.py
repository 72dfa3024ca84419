"""Run by test_pdl.py: ``pdl_check.py interpret BATCH ROWS``, ``compile ARCH`` or ``shapes ARCH``; prints what it found as JSON."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def interpret(batch: int, rows: int) -> dict:
    """Logits and tokens of the step, by Triton's interpreter, against HuggingFace in float32."""
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    import torch

    from amk_bench.baselines.hf import HfEager
    from amk_bench.baselines.reference import Reference, check_logits
    from amk_bench.baselines.weights import hf_model, random_weights
    from amk_bench.cell import Cell, Plan
    from amk_bench.measure import gate
    from amk_bench.rivals.pdl import PdlEngine, Tile
    from amk_core.graph import ModelGraph, RopeSpec

    torch.set_num_threads(1)
    # Sides that are no powers of two; three query heads a KV head.
    rope = RopeSpec("llama3", 5e5, 8, 1024, 8.0, 128)
    graph = ModelGraph("tiny", "llama", 70, 48, 56, 2, 6, 2, 8, 1e-5, False, 1024, rope, 8**-0.5)
    weights = random_weights(graph, 1, "cpu", torch.float32)
    reference = Reference(HfEager(hf_model(weights), 1, "fp32"), None)
    engine = PdlEngine(weights, batch, rows, (Tile(elements=512, rows=16, depth=32),))
    text, out = tuple(np.random.default_rng(0).integers(0, 70, rows).tolist()), {}
    for position in (0, 5, rows - 12):
        cell = Cell("toy", "tiny", "fast", batch, text[:position], tuple(range(70)))
        record = check_logits(engine, cell, *reference.enter(cell, 3))
        engine.prepare(cell.prefix, batch, 6)
        opened = gate(engine, cell, Plan(3, 5, 3), reference.score)
        out[position] = [record.passed, record.measured, type(opened).__name__]
    return {"splits": engine.step.splits, "cells": out}


def compiled(arch: int) -> dict:
    """Each kernel for a card that need not be here: what it does before and after it waits."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from amk_bench.rivals import pdl_kernels as k

    types = {
        "w": "*bf16", "x": "*fp32", "a": "*bf16", "norm": "*bf16", "eps": "fp32", "cos": "*fp32", "sin": "*fp32",
        "position": "*i64", "q": "*bf16", "kv": "*bf16", "cache_rows": "i32", "out": "*bf16", "sums": "*fp32",
        "tops": "*fp32", "mass": "*fp32", "tickets": "*i32", "scale": "fp32", "act": "*bf16", "logits": "*fp32",
        "best": "*fp32", "where": "*i32",
    }  # fmt: skip
    out = {}
    for batch in (1, 16):
        same = {"K": 2048, "KP": 2048, "B": batch, "PB": batch, "BK": 256, "PDL": True}
        heads = {"HEADS": 32, "KV_HEADS": 8, "D": 64}
        kernels = {
            "qkv": (k.qkv_kernel, {**heads, **same, "HALF": 4 if batch == 1 else 8}),
            "add": (k.add_kernel, {**same, "N": 2048, "BN": 8 if batch == 1 else 16}),
            "gate_up": (k.gate_up_kernel, {**same, "F": 8192, "HALF": 4 if batch == 1 else 8}),
            "head": (k.head_kernel, {**same, "N": 128256, "BN": 8 if batch == 1 else 16}),
            "attend": (k.attend_kernel, {**heads, "GROUP": 4, "GP": 16, "SPLITS": 16, "BT": 64, "PDL": True}),
        }
        for name, (kernel, constants) in kernels.items():
            names = kernel.arg_names
            signature = {n: "constexpr" if n in constants else types[n] for n in names}
            aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
            values = {(names.index(n),): v for n, v in constants.items()}
            source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "launch_pdl": True})
            before, _, _ = made.asm["ptx"].partition("griddepcontrol.wait")
            out[f"{name} {batch}"] = {
                "released": before.count("griddepcontrol.launch_dependents"),
                "waits": made.asm["ptx"].count("griddepcontrol.wait"),
                "loads before": before.count("ld.global") + before.count("cp.async.c"), "stores before": before.count("st.global"),
                "shared": made.metadata.shared,
            }  # fmt: skip
    return out


def shapes(arch: int) -> dict:
    """Every kernel of the public shapes, compiled for a card that need not be here, in every tile that is tried there."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from amk_bench.baselines.weights import TorchWeights
    from amk_bench.rivals.pdl import TILES, PdlStep
    from amk_core.graph import GRAPH_SHAPES

    types = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", float: "fp32", int: "i32"}
    seen: dict[str, dict] = {}

    class Compiled(PdlStep):
        def _launch(self, kernel, grid, *values, **constants) -> None:
            assert all(0 < n < 2**31 for n in grid)
            constants["PDL"] = True
            key = f"{kernel.__name__} {sorted(constants.items())} {self.tile.warps}"
            if key in seen:
                return
            names, given = kernel.arg_names, dict(zip(kernel.arg_names, values, strict=False))
            signature = {n: "constexpr" if n in constants else types[getattr(given[n], "dtype", type(given[n]))] for n in names}
            aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
            source = ASTSource(
                fn=kernel, signature=signature, constexprs={(names.index(n),): v for n, v in constants.items()}, attrs=aligned
            )
            options = {"num_warps": self.tile.warps, "launch_pdl": True}
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
            seen[key] = {"shared": made.metadata.shared, "waits": made.asm["ptx"].count("griddepcontrol.wait")}

    def on_no_card(g) -> TorchWeights:
        def empty(*shape: int):
            return torch.empty(shape, device="meta", dtype=torch.bfloat16)

        sizes = {
            "attn_norm": (g.hidden_size,), "qkv": (g.q_size + 2 * g.kv_size, g.hidden_size), "o": (g.hidden_size, g.q_size),
            "mlp_norm": (g.hidden_size,), "gate_up": (2 * g.intermediate_size, g.hidden_size),
            "down": (g.hidden_size, g.intermediate_size),
        }  # fmt: skip
        tensors = {"embed": empty(g.vocab_size, g.hidden_size), "final_norm": empty(g.hidden_size)}
        tensors["head"] = empty(g.vocab_size, g.hidden_size)
        tensors |= {f"L{i}.{name}": empty(*shape) for i in range(g.n_layers) for name, shape in sizes.items()}
        return TorchWeights(g, tensors, "none")

    for graph in GRAPH_SHAPES.values():
        for batch in (1, 4, 16):
            for tile in TILES:
                Compiled(on_no_card(graph), batch, 1152, tile, dependent=True, interpreted=False)()
    return seen


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    print(json.dumps({"interpret": interpret, "compile": compiled, "shapes": shapes}[what](*map(int, numbers))))
