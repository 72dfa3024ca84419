"""The cells of result files as one short table: ``python -m amk_bench.baselines.show FILE ...``; missing files are left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from amk_bench import table
from amk_bench.results import LatencyRecord, ParityRecord, SkipRecord, validate


def lines(files: Sequence[Path]) -> list[str]:
    """Times with the worst first, gates that did not open, cells without a time."""
    records = [r for file in files if file.is_file() for r in validate(json.loads(file.read_text(encoding="utf-8")))]
    times = [r for r in records if isinstance(r, LatencyRecord)]
    gates = [r for r in records if isinstance(r, ParityRecord)]
    out = table.win_loss(times, ascii_only=True)[0] if times else ["no cell was timed"]
    out += [f"INVALID {r.model}, {r.baseline}: {r.reason}" for r in times if r.reason]
    out += table.machine(times)
    out += [f"FAIL {r.level} {r.claim}: {r.measured}, required {r.required}" for r in gates if not r.passed]
    out.append(f"{sum(r.passed for r in gates)} of {len(gates)} parity claims hold")
    return out + table.skipped([r for r in records if isinstance(r, SkipRecord)])


if __name__ == "__main__":
    print("\n".join(lines([Path(name) for name in sys.argv[1:]])))
