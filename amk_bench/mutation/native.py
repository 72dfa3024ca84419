"""Mutants of the native validator and of the certificate checker, all in one program each (see cpp.py and runner.cpp).

The validator is judged by the exhaustive oracle (verdict) and by the Python reference (rules), and what it accepts by the unmutated
checker; the checker by the Python engine on true certificates, on corrupted ones, and on true ones under changed tables.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amk_bench.mutation import limits
from amk_bench.mutation.cpp import HEADER, Mutant, Schemata
from amk_core.resources import source_root
from amk_core.schedule.certificate import Certificate

CHUNK = 1500  # mutants of one process


@dataclass(frozen=True, slots=True)
class Program:
    path: Path
    mutants: list[Mutant]


def sources(what: str) -> list[str]:
    """Files of ``validator`` or ``checker`` that are mutated."""
    found = ("validate*.hpp", "validate*.cpp") if what == "validator" else ("checker*.hpp", "checker*.cpp")
    return [name for pattern in found for name in sorted(p.name for p in _native().glob(pattern))]


def _native() -> Path:
    root = source_root()
    if root is None:
        raise RuntimeError("the native sources are needed: run from a source tree")
    return root / "amk_core" / "native"


def _digest(what: str) -> str:
    """Of all that the program of ``what`` is made from."""
    here = (Path(__file__).with_name(n) for n in ("cpp.py", "limits.py", "native.py", "runner.cpp"))
    made_from = [*sorted(_native().glob("*.?pp")), *here]
    return hashlib.sha256(b"".join(f.read_bytes() for f in made_from) + what.encode()).hexdigest()


def kept(what: str, folder: Path, jobs: int = 2) -> Program:
    """The program that an earlier call left in the folder, built again when its sources have changed."""
    note, digest = folder / f"{what}.json", _digest(what)
    if note.exists() and (known := json.loads(note.read_text("utf-8")))["digest"] == digest:
        return Program(folder / what, [Mutant(*m) for m in known["mutants"]])
    folder.mkdir(parents=True, exist_ok=True)
    program = build(what, folder, jobs)
    note.write_text(json.dumps({"digest": digest, "mutants": [dataclasses.astuple(m) for m in program.mutants]}), "utf-8")
    return program


def build(what: str, folder: Path, jobs: int = 2) -> Program:
    """Plant all mutants of ``validator`` or ``checker`` and compile them with the runner.

    Raises:
        RuntimeError: what was planted does not compile.
        ValueError: libclang cannot parse a source, or a limit is declared nowhere.
    """
    native = _native()
    (folder / "amk_mutants.hpp").write_text(HEADER)
    schemata = Schemata([native])
    mutated = sources(what)
    make_small, limited = (limits.chosen, limits.LIMITED) if what == "validator" else (limits.fixed, frozenset(limits.CHECKER))
    found: set[str] = set()
    for name in mutated:
        text, declared = make_small(schemata.plant(native / name))
        found |= declared
        (folder / name).write_text(text)
    if missing := limited - found:
        raise ValueError(f"the {what} declares no {', '.join(sorted(missing))}: correct {what.upper()} in limits.py")
    files = [folder / name for name in mutated if name.endswith(".cpp")] + [native / "tables.cpp"]
    files.append(Path(__file__).with_name("runner.cpp"))
    if what == "validator":
        files += sorted(native.glob("checker*.cpp"))
    flags = [
        "-std=c++20",
        "-D_GLIBCXX_ASSERTIONS",  # an index outside of its array is a crash
        "-Wno-narrowing",
        "-w",
        f"-DAMK_VALIDATOR={int(what == 'validator')}",
        f"-I{folder}",
        f"-I{native}",
    ]

    def compile_one(file: Path) -> str:
        out = folder / f"{file.stem}.o"
        done = subprocess.run(
            ["g++", "-O1" if file.name in mutated else "-O2", *flags, "-c", str(file), "-o", str(out)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{file.name} with its mutants does not compile:\n{done.stderr[:3000]}")
        return str(out)

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, files))
    program = folder / what
    subprocess.run(["g++", *objects, "-o", str(program)], check=True)
    return Program(program, schemata.mutants)


def words(accept: bool, rules: int, kept: int, tables: bytes, certificate: Certificate | None, setting: int = 0) -> list[int]:
    """A case as runner.cpp reads it."""
    padded = tables + bytes(-len(tables) % 8)
    out = [int(accept), rules, kept, setting, len(tables), *np.frombuffer(padded, np.int64).tolist()]
    if certificate is None:
        return [*out, *[0] * 6]
    lists = [[certificate.unroll, certificate.n_tasks, certificate.n_queues]]
    lists += [np.asarray(getattr(certificate, n)).tolist() for n in ("replay", "row", "row_off", "row_queue", "row_value")]
    return out + [x for list_ in lists for x in (len(list_), *list_)]


@dataclass(frozen=True, slots=True)
class Result:
    """``deaths``: how many mutants died of what; ``survivors``: those that changed nothing at all, by key."""

    mutants: int
    cases: int
    deaths: dict[str, int]
    survivors: tuple[str, ...]
    report_only: tuple[str, ...]


def write_corpus(cases: Sequence[list[int]], path: Path) -> None:
    path.write_bytes(np.array([x for c in cases for x in c], np.int64).tobytes())


def keys(mutants: Sequence[Mutant]) -> dict[int, str]:
    """A name of each mutant by its number; several alike in one function are numbered."""
    seen: dict[str, int] = {}
    out = {}
    for m in mutants:
        seen[m.key] = seen.get(m.key, 0) + 1
        out[m.number] = m.key if seen[m.key] == 1 else f"{m.key} ({seen[m.key]})"
    return out


def attempt(program: Program, corpus: Path, numbers: Sequence[int], processes: int, note: Callable[[str], None]) -> None:
    """Try some mutants on a corpus; each line of the runner ("number how case") is handed to ``note`` as soon as it is there.

    Raises:
        RuntimeError: the code as written disagrees with the corpus.
    """

    def chunk(some: Sequence[int]) -> None:
        command = [str(program.path), str(corpus), ",".join(map(str, some))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            heard = []
            for line in process.stdout:
                heard.append(line)
                if not line.startswith("case "):
                    note(line)
        if process.returncode != 0:
            raise RuntimeError(f"{program.path.name}: exit {process.returncode}: {''.join(heard)[-300:]}")

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(chunk, [numbers[k : k + CHUNK] for k in range(0, len(numbers), CHUNK)]))


def run(program: Program, corpus: Path, n_cases: int, processes: int = 1, stride: int = 1, log: Path | None = None) -> Result:
    """Try every mutant of a program, or every ``stride``-th one.

    ``log`` keeps what is known: a run of the same mutants on the same corpus that was broken off goes on with it.

    Raises:
        RuntimeError: the code as written disagrees with the corpus.
    """
    names = keys(program.mutants)
    digest = hashlib.sha256(corpus.read_bytes() + repr(sorted(names.items())).encode()).hexdigest()
    lines: list[str] = []
    if log is not None:
        if not log.exists() or log.read_text().partition("\n")[0] != digest:
            log.write_text(digest + "\n")
        lines = log.read_text().splitlines()[1:]
    how = {int(line.split()[0]): line.split()[1] for line in lines}

    def note(text: str) -> None:
        how.update((int(line.split()[0]), line.split()[1]) for line in text.splitlines())
        if log is not None:
            with log.open("a") as file:
                file.write(text)

    attempt(program, corpus, [k for k in range(1, len(names) + 1, stride) if k not in how], processes, note)
    return summary(names, how, n_cases)


def some(program: Program, corpus: Path, names: Container[str], processes: int = 1) -> dict[str, str]:
    """Try only mutants of these names: how each died, or that it lives.

    Raises:
        RuntimeError: the code as written disagrees with the corpus.
    """
    known = {number: name for number, name in keys(program.mutants).items() if name in names}
    out: dict[str, str] = {}

    def note(text: str) -> None:
        number, how, case = text.split()
        out[known[int(number)]] = f"{how} (case {case})" if how != "lives" else how

    attempt(program, corpus, sorted(known), processes, note)
    return out


def summary(names: Mapping[int, str], how: Mapping[int, str], n_cases: int) -> Result:
    survivors = tuple(names[k] for k in sorted(how) if how[k] == "lives")
    report_only = tuple(names[k] for k in sorted(how) if how[k] == "report")
    return Result(len(how), n_cases, dict(collections.Counter(how.values())), survivors, report_only)
