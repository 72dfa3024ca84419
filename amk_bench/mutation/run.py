"""Mutation testing of the validator: ``python -m amk_bench.mutation.run reference|checker|validator [--out FILE]``.

``--only PATTERN`` tries the survivors of the last result whose names match, on the cases that are aimed at survivors.  It keeps the
program in ``--folder`` and builds it again when its sources have changed.

``reports/data/mutation/equivalent.json`` accounts for survivors, pattern by pattern: why they change nothing, or that they are open
(nothing in the corpus notices them).  Exit 1 when more are open than that file allows: a test is missing, or an argument.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amk_bench.adversary.tally import save
from amk_core.resources import source_root

PER_CLASS = {"reference": 12, "checker": 2, "validator": 14}


def arguments(what: str) -> tuple[list[tuple[str, str]], int | None]:
    """(pattern, argument) in the order of the file, of which the first that matches counts; how many survivors may be open.

    The file names mutants by a pattern or by a list of their names.
    """
    root = source_root()
    if root is None:
        raise RuntimeError("run from a source tree: the sources and the list of arguments are there")
    text = (root / "reports" / "data" / "mutation" / "equivalent.json").read_text("utf-8")
    entry = json.loads(text)[what]
    listed = [
        (m if isinstance(m := line["mutant"], str) else "|".join(map(re.escape, m)), line["because"]) for line in entry["arguments"]
    ]
    return listed, entry["open_at_most"]


def account(survivors: Sequence[str], known: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Survivors by the argument that accounts for them; those without one are under "open"."""
    out: dict[str, list[str]] = {}
    for key in survivors:
        because = next((why for pattern, why in known if re.fullmatch(pattern, key)), "open")
        out.setdefault(because, []).append(key)
    return out


def outcome(what: str, per_class: int, processes: int, stride: int, log: Path | None) -> Mapping[str, Any]:
    """Try all mutants of one target: counts and survivors."""
    if what == "reference":
        from amk_bench.mutation import reference

        cases = reference.corpus(per_class)
        r = reference.run(cases, log=log)
        killed = r.mutants - len(r.survivors)
        return {
            "mutants": r.mutants,
            "cases": len(cases),
            "deaths": {"verdict": killed, "lives": len(r.survivors)},
            "survivors": r.survivors,
        }
    from amk_bench.mutation import checker, native, validator

    make = {"checker": checker.cases, "validator": validator.cases}[what]
    with tempfile.TemporaryDirectory() as folder:
        program = native.build(what, Path(folder), processes)
        found = list(make(per_class))
        native.write_corpus(found, Path(folder) / "corpus")
        n = native.run(program, Path(folder) / "corpus", len(found), processes, stride, log)
    return {"mutants": n.mutants, "cases": n.cases, "deaths": n.deaths, "survivors": n.survivors, "report_only": n.report_only}


def attempt(pattern: str, folder: Path, processes: int) -> dict[str, str]:
    """How survivors of the validator's last result fare on the aimed cases."""
    from amk_bench.mutation import native, validator

    root = source_root()
    if root is None:
        raise RuntimeError("run from a source tree: the last result is there")
    last = json.loads((root / "reports" / "data" / "mutation" / "validator.json").read_text("utf-8"))["survivors"]
    names = {name for group in last.values() for name in group if re.match(pattern, name)}
    program = native.kept("validator", folder, processes)
    native.write_corpus(list(validator.aimed_cases()), folder / "aimed")
    return native.some(program, folder / "aimed", names, processes)


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.mutation.run", description=__doc__)
    p.add_argument("what", choices=sorted(PER_CLASS))
    p.add_argument("--per-class", type=int, help="schedules of each attack class")
    p.add_argument("--stride", type=int, default=1, help="every so many mutants of native code only: a sample")
    p.add_argument("--processes", type=int, default=1)
    p.add_argument("--log", type=Path, help="file of what is tried: a run that was broken off goes on with it")
    p.add_argument("--out", type=Path, help="result file (JSON)")
    p.add_argument("--only", metavar="PATTERN", help="only survivors of these names, on the aimed cases alone (validator)")
    p.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "amk-mutants", help="where --only keeps the program"
    )
    a: Any = p.parse_args(argv)
    if a.only is not None:
        if a.what != "validator":
            p.error("only the validator has aimed cases")
        print(*(f"{how}: {name}" for name, how in attempt(a.only, a.folder, a.processes).items()), sep="\n")
        return 0
    result = dict(outcome(a.what, a.per_class or PER_CLASS[a.what], a.processes, a.stride, a.log))
    known, most = arguments(a.what)
    groups = account(result["survivors"], known)
    lives = len(result["survivors"])
    still_open = [key for why, keys in groups.items() if why.startswith("open") for key in keys]
    result["survivors"] = groups
    print(f"{a.what}: {result['mutants']} mutants on {result['cases']} cases: {result['deaths']}")
    print(f"{lives} live, {lives - len(still_open)} of them are argued to change nothing, {len(still_open)} are open")
    if a.out is not None:
        save(a.out, {"target": a.what, **result})
    if most is not None and len(still_open) > most:
        print(f"at most {most} may be open; among these is a new one:", *still_open, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
