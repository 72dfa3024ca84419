"""``amk compile``: a model's device program to machine code, with or without a card."""

from __future__ import annotations

import argparse

from amk_core.commands import options

NAME = "compile"
HELP = "compile the device program of a model for an architecture (no card needed); prints registers, shared memory and spills"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP)
    parser.add_argument("--arch", default="auto", help="sm_80, sm_86, sm_89, sm_90, sm_120, or auto: this machine's card (default)")
    parser.add_argument("--mode", choices=("exact", "fast"), default="fast", help="numeric plan (default: fast)")
    parser.add_argument("--purpose", choices=("decode", "prefill", "logits"), default="decode", help="default: decode")
    parser.add_argument("--batch", type=options.natural, default=1, help="sequences, up to 16 (default: 1)")
    parser.add_argument("--chunk", type=options.natural, help="prompt tokens a step, up to 32 (default: 16; decode: 1)")
    parser.add_argument(
        "--weights", metavar="FORMAT", help="formats of quantised weights, such as int4-g128,head=int8 (default: none)"
    )
    parser.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a field of ScheduleConfig; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    """Compile, or say that the cache has it; one line a kernel."""
    from amk_core.machine import find_gpus
    from amk_core.quant.config import QuantConfig
    from amk_core.schedule.config import ScheduleConfig
    from amk_core.schedule.lower import Geometry, lower
    from amk_core.targets import Target
    from amk_core.vm import nvrtc
    from amk_core.vm.plan import Dims, plan_build

    arch = args.arch
    if arch == "auto":
        gpus = find_gpus()
        if not gpus:
            raise nvrtc.CompileError(f"no card is visible, so --arch must name one: {', '.join(nvrtc.ARCHITECTURES)}")
        arch = gpus[0].arch
    card = next((t for t in Target.profiles() if t.arch == arch), None)
    if card is None:
        raise nvrtc.CompileError(f"--arch is {args.arch}; this version compiles for {', '.join(nvrtc.ARCHITECTURES)}")
    graph = options.graph_of(args.model)
    chunk = args.chunk or (1 if args.purpose == "decode" else 16)
    # The program does not depend on the context, so the smallest one makes the tables quickly.
    quant = QuantConfig.parse(args.weights) if args.weights else None
    schedule = lower(graph, ScheduleConfig.parse(args.config), card, Geometry(args.purpose, args.batch, chunk, 1), args.mode, quant)
    build = plan_build(Dims.of(schedule), arch, card.smem_bytes)
    cubin = nvrtc.build(build.defines, arch)
    where = "from the cache" if cubin.cached else "compiled"
    print(f"{graph.name} {args.mode} {args.purpose} for {arch}: {options.size(len(cubin.data))} {where}, key {cubin.key[:16]}")
    print(f"{build.threads} threads and {options.size(build.shared_bytes)} of dynamic shared memory a CTA", end="")
    slots, units = build.defines["AMK_SLOTS"], build.defines["AMK_SLOT_UNITS"]
    print(
        "" if args.mode == "exact" else f", {slots} ring slots of {build.defines.get('AMK_SLOT_BYTES', units * 512) / 1024:g} KiB"
    )
    for k in cubin.kernels:
        print(
            f"{k.name:10s} {k.registers:3d} registers, {k.shared_bytes} B static shared memory, {k.stack_bytes} B stack, "
            f"spills {k.spill_store_bytes} B stored, {k.spill_load_bytes} B loaded"
        )
    return 0
