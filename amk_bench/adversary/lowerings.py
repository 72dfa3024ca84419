"""Every real lowering: model shapes x device profiles x knobs x geometries, at full depth, validated and certificate-checked.

``python -m amk_bench.adversary.lowerings --out FILE`` prints the table and writes it as JSON and as text; no weights needed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from amk_bench.adversary.tally import save
from amk_core.graph import GRAPH_SHAPES
from amk_core.schedule import check_certificate, validate
from amk_core.schedule.config import ScheduleConfig
from amk_core.schedule.lower import Geometry, Mode, lower
from amk_core.schedule.tables import pack
from amk_core.targets import Target

MODELS = tuple(GRAPH_SHAPES)
TARGETS = {t.name: t for t in (*Target.profiles(), Target("cpu-2", "cpu", 2))}
CONTEXT = 1024
CONFIGS = (
    ScheduleConfig(), ScheduleConfig(tiles_per_queue=2), ScheduleConfig(head_tiles_per_queue=4), ScheduleConfig(row_align=2),
    ScheduleConfig(placement="blocked"), ScheduleConfig(placement="strided"), ScheduleConfig(fuse_qkv=False),
    ScheduleConfig(fuse_combine=False), ScheduleConfig(fuse_argmax=False), ScheduleConfig(attn_splits=1),
    ScheduleConfig(dependencies="head"), ScheduleConfig(embed_tiles=4), ScheduleConfig(sampler_queue=1),
    ScheduleConfig(handoff="tagged"),  # lowered in mode fast, where it means something
)  # fmt: skip
GEOMETRIES = (
    Geometry("decode", context=CONTEXT),
    Geometry("prefill", chunk=16, context=CONTEXT),
    Geometry("logits", chunk=7, context=CONTEXT),
    Geometry("decode", batch=3, context=CONTEXT),
    Geometry("prefill", batch=16, chunk=4, context=CONTEXT),
)
MAX_MESSAGE = 400  # characters of a verdict that a failure keeps


@dataclass(frozen=True, slots=True)
class Lowering:
    """One schedule of the grid."""

    model: str
    target: str
    config: ScheduleConfig
    geometry: Geometry

    def __str__(self) -> str:
        g = self.geometry
        return f"{self.model} on {self.target}, {self.config}, {g.purpose} {g.batch}x{g.chunk} of {g.context}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``accepted``: by the validator; ``checked``: its certificate holds; ``seconds``: lowering, verdict and check together."""

    tasks: int
    accepted: bool
    checked: bool
    undecided: bool
    seconds: float
    failure: str = ""

    @property
    def good(self) -> bool:
        return self.accepted and self.checked


@dataclass(slots=True)
class Row:
    """A model shape on a device profile."""

    model: str
    target: str
    queues: int
    n: int = 0
    accepted: int = 0
    checked: int = 0
    undecided: int = 0
    tasks_min: int = 0
    tasks_max: int = 0
    seconds: float = 0.0

    def add(self, o: Outcome) -> None:
        self.tasks_min = min(self.tasks_min, o.tasks) if self.n else o.tasks
        self.tasks_max = max(self.tasks_max, o.tasks)
        self.n += 1
        self.accepted += o.accepted
        self.checked += o.checked
        self.undecided += o.undecided
        self.seconds += o.seconds


def grid() -> Iterator[Lowering]:
    """All of them: every model shape x device profile x config x geometry."""
    for model, target, config, geometry in itertools.product(MODELS, TARGETS, CONFIGS, GEOMETRIES):
        yield Lowering(model, target, config, geometry)


def judge(x: Lowering) -> Outcome:
    """Lower, validate and check the certificate of one schedule."""
    start = time.perf_counter()
    mode: Mode = "fast" if x.config.handoff == "tagged" else "exact"
    s = lower(GRAPH_SHAPES[x.model], x.config, TARGETS[x.target], x.geometry, mode)
    v = validate(s)
    wrong = ["no certificate"] if v.certificate is None else check_certificate(pack(s), v.certificate)
    failure = "" if v.accepted and not wrong else f"{x}: {str(v)[:MAX_MESSAGE]}; {'; '.join(wrong)[:MAX_MESSAGE]}"
    return Outcome(s.n_tasks, v.accepted, not wrong, v.undecided, time.perf_counter() - start, failure)


def outcomes(processes: int = 1) -> Iterator[tuple[Lowering, Outcome]]:
    """The whole grid, judged."""
    if processes == 1:
        yield from ((x, judge(x)) for x in grid())
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from zip(grid(), pool.map(judge, grid(), chunksize=len(GEOMETRIES)), strict=True)


def table(rows: Iterable[Row]) -> str:
    """One line a model shape and device profile, and the total."""
    rows = list(rows)
    total = Row("total", "", 0)
    for r in rows:
        total.tasks_min = min(total.tasks_min, r.tasks_min) if total.n else r.tasks_min
        total.tasks_max = max(total.tasks_max, r.tasks_max)
        for name in ("n", "accepted", "checked", "undecided", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(r, name))
    head = ("queues", "n", "accepted", "certificates", "undecided", "tasks", "seconds")
    width = (7, 6, 10, 14, 11, 16, 9)
    lines = [f"{'model':<16}{'target':<9}" + "".join(f"{h:>{w}}" for h, w in zip(head, width, strict=True))]
    for r in [*rows, total]:
        cells = (r.queues or "", r.n, r.accepted, r.checked, r.undecided, f"{r.tasks_min}..{r.tasks_max}", f"{r.seconds:.1f}")
        lines.append(f"{r.model:<16}{r.target:<9}" + "".join(f"{c:>{w}}" for c, w in zip(cells, width, strict=True)))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """0: every lowering is accepted and its certificate holds; 1: some are not; they are printed."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.lowerings", description=__doc__)
    p.add_argument("--out", type=Path, help="the table as JSON; the text goes beside it as .txt")
    p.add_argument("--processes", type=int, default=1)
    a = p.parse_args(argv)
    rows: dict[tuple[str, str], Row] = {}
    failures = []
    for k, (x, o) in enumerate(outcomes(a.processes)):
        row = rows.setdefault((x.model, x.target), Row(x.model, x.target, TARGETS[x.target].queues))
        row.add(o)
        failures += [o.failure] if o.failure else []
        print(f"\r{k + 1} lowerings, {len(failures)} failures", end="", file=sys.stderr)
    print(file=sys.stderr)
    layers = {m: GRAPH_SHAPES[m].n_layers for m in MODELS}
    text = (
        f"{len(MODELS)} model shapes (all layers: {', '.join(f'{m} {n}' for m, n in layers.items())}) x {len(TARGETS)} profiles x "
        f"{len(CONFIGS)} configs x {len(GEOMETRIES)} geometries\n{table(rows.values())}\n"
    )
    print(text, end="")
    for f in failures[:20]:
        print(f)
    if a.out is not None:
        record = {
            "layers": layers, "configs": [repr(c) for c in CONFIGS], "geometries": [asdict(g) for g in GEOMETRIES],
            "rows": [{**asdict(r), "seconds": round(r.seconds, 2)} for r in rows.values()], "failures": failures,
        }  # fmt: skip
        save(a.out, record, text)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
