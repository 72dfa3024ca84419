"""``amk inspect``: what a model computes, and what its schedule looks like."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from amk_core.commands import options

if TYPE_CHECKING:
    from amk_core.graph import ModelGraph
    from amk_core.schedule.ir import Schedule

NAME = "inspect"
HELP = "show a model's graph and sizes; with --schedule also its schedule and the validator's verdict"
MODE_DTYPES = {"exact": "f32", "fast": "bf16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP + "; shapes known without weights: see docs/cli.md")
    parser.add_argument("--schedule", action="store_true", help="lower it, validate it, and show the schedule")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_lowering(parser)


def describe_graph(g: ModelGraph) -> dict[str, Any]:
    """Every number that ``amk inspect`` shows of a graph; sizes in bytes."""
    rope = {"kind": g.rope.kind, "theta": g.rope.theta}
    if g.rope.kind != "default":
        rope |= {"factor": g.rope.factor, "original_context": g.rope.original_context}
    return {
        "name": g.name, "family": g.family, "layers": g.n_layers, "hidden": g.hidden_size, "mlp": g.intermediate_size,
        "heads": g.n_heads, "kv_heads": g.n_kv_heads, "group": g.group, "head_dim": g.head_dim, "vocabulary": g.vocab_size,
        "context": g.context, "rope": rope, "norm_eps": g.norm_eps, "attn_scale": g.attn_scale, "tied_head": g.tied_head,
        "bos": g.bos_id, "eos": list(g.eos_ids), "parameters": g.parameters(), "stored_dtype": g.stored_dtype,
        "weight_bytes": {mode: g.weight_bytes(dtype) for mode, dtype in MODE_DTYPES.items()},
        "kv_bytes_per_token": {mode: g.kv_bytes(1, dtype) for mode, dtype in MODE_DTYPES.items()},
    }  # fmt: skip


def describe_schedule(s: Schedule) -> dict[str, Any]:
    """Counts of a schedule, its weight tape, and the validator's verdict with its time."""
    import numpy as np

    from amk_core.schedule import ops, validate
    from amk_core.schedule.ir import Kind
    from amk_core.schedule.lower import hops

    codes, counts = np.unique(s.columns.task_op, return_counts=True)
    start = time.perf_counter()
    verdict = validate(s)
    seconds = time.perf_counter() - start
    return {
        "purpose": s.meta.get("purpose"), "mode": s.meta.get("mode"), "tasks": s.n_tasks,
        "tasks_per_op": {ops.BY_CODE[int(c)].name: int(n) for c, n in zip(codes, counts, strict=True)},
        "queues": s.n_queues, "longest_queue": int(np.diff(s.columns.queue_off).max()), "hops_per_layer": hops(s),
        "counters": len(s.counters), "waits": len(s.columns.wait_counter), "steps_per_launch": s.steps,
        "tape_bytes": sum(b.bytes for b in s.buffers if b.kind == Kind.WEIGHT), "accepted": bool(verdict.accepted),
        "findings": [f.message for f in verdict.findings], "validate_seconds": seconds,
    }  # fmt: skip


def _graph_page(d: dict[str, Any]) -> list[str]:
    rope = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in d["rope"].items() if k != "kind")
    size, head = options.size, "tied to the embedding" if d["tied_head"] else "of its own"
    heads = f"{d['heads']} query heads on {d['kv_heads']} KV heads (group {d['group']}) of {d['head_dim']}"
    rows = [
        (
            "layers",
            f"{d['layers']}, hidden {d['hidden']}, MLP {d['mlp']} (SwiGLU), RMSNorm before each block, eps {d['norm_eps']:g}",
        ),
        (
            "attention",
            f"{heads}, scale {d['attn_scale']:g}",
        ),
        ("position", f"RoPE {d['rope']['kind']}, {rope}; context {d['context']}"),
        (
            "vocabulary",
            f"{d['vocabulary']}, head {head}; bos {d['bos']}, eos {d['eos']}",
        ),
        ("parameters", f"{options.grouped(d['parameters'])}, stored as {d['stored_dtype']}"),
        ("weights", ", ".join(f"{m} {size(n)} ({MODE_DTYPES[m]})" for m, n in d["weight_bytes"].items())),
        ("KV a token", ", ".join(f"{m} {size(n)} ({MODE_DTYPES[m]})" for m, n in d["kv_bytes_per_token"].items())),
    ]
    return [f"{d['name']} ({d['family']})"] + [f"  {name:12} {text}" for name, text in rows]


def _schedule_page(d: dict[str, Any]) -> list[str]:
    per_op = ", ".join(f"{name} {options.grouped(n)}" for name, n in d["tasks_per_op"].items())
    verdict = "accepted" if d["accepted"] else f"REJECTED, {len(d['findings'])} findings"
    rows = [
        ("tasks", f"{options.grouped(d['tasks'])}: {per_op}"),
        ("queues", f"{d['queues']}, the longest has {options.grouped(d['longest_queue'])} tasks"),
        (
            "hops",
            f"{d['hops_per_layer']} a layer; {options.grouped(d['waits'])} waits on {options.grouped(d['counters'])} counters",
        ),
        ("launch", f"up to {d['steps_per_launch']} steps"),
        ("weight tape", options.size(d["tape_bytes"])),
        ("validator", f"{verdict} in {d['validate_seconds']:.3f} s"),
    ]
    page = [f"schedule ({d['purpose']}, {d['mode']})"] + [f"  {name:12} {text}" for name, text in rows]
    return page + [f"  {f}" for f in d["findings"][:10]]


def run(args: argparse.Namespace) -> int:
    """Print the pages; 1 where the schedule is rejected."""
    graph = options.graph_of(args.model)
    data: dict[str, Any] = {"graph": describe_graph(graph)}
    if args.schedule:
        data["schedule"] = describe_schedule(options.lowered(graph, args))
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        print("\n".join(_graph_page(data["graph"]) + (_schedule_page(data["schedule"]) if args.schedule else [])))
    return 0 if data.get("schedule", {}).get("accepted", True) else 1
