"""The mutation tools: every place is found, each mutant is one change, and what should be noticed is."""

from __future__ import annotations

import ast
import dataclasses
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from amk_bench.adversary.net import Net, access, affine
from amk_bench.mutation import (
    aimed,
    aimed_bundles,
    aimed_kinds,
    aimed_order,
    aimed_search,
    directed,
    python,
    reference,
    run,
    validator,
)
from amk_bench.mutation.edges import edges
from amk_bench.mutation.small import Case
from amk_core import _native
from amk_core.schedule.checker import check_certificate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC, pack, read_sections, table_hash, write_sections

SOURCE = '''
def clip(x, low):
    """Never below low."""
    if x < low and x != 7:
        x = low
    return x + 1
'''
CASES = [(1, 3), (3, 3), (7, 9), (4, 3), (0, 0)]


def behaviour(tree: ast.Module) -> list[object]:
    namespace: dict[str, object] = {}
    exec(compile(tree, "toy", "exec"), namespace)
    clip = namespace["clip"]
    assert callable(clip)
    return [clip(*case) for case in CASES]


def test_every_mutant_of_a_module_is_one_change_that_can_be_undone() -> None:
    tree = ast.parse(SOURCE)
    plain, text = behaviour(tree), ast.unparse(tree)
    found = list(python.mutants(tree))
    keys = python.keys(tree, found)
    assert len(set(keys)) == len(keys) == 14
    alive = []
    for m, key in zip(found, keys, strict=True):
        m.apply()
        assert ast.unparse(tree) != text, key
        if behaviour(tree) == plain:
            alive.append(key)
        m.undo()
        assert ast.unparse(tree) == text, key
    assert alive == ["clip: Lt -> LtE in x < low"]  # equal numbers are clipped to themselves


def test_every_chosen_schedule_is_decided() -> None:
    known = [validator.tables_truth(tables) for tables in aimed_kinds.chosen()]
    assert len(known) == sum(map(len, aimed_kinds.CHOSEN.values()))
    safe = [k.safe for k in known if k is not None]
    assert len(safe) == len(known)
    assert 0 < sum(safe) < len(safe)


def test_the_borders_kill_mutants_of_the_reference(tmp_path: Path) -> None:
    known = [k for name, data in edges() if (k := reference.known(name, Schedule.from_json(data))) is not None]
    only = frozenset(
        (
            "before: Gt -> GtE in self.clock[b][self.queue[a]] > self.p...",
            "threshold: GtE -> Gt in low >= need",
            "tag_alignment: without b.offset % 8",
            "races: without self.found.add('RACE')",
        )
    )
    result = reference.run(known, only=only, log=tmp_path / "log")
    assert (result.mutants, result.survivors) == (4, ())
    assert reference.run([], only=only, log=tmp_path / "log").survivors == ()  # none is tried again
    assert set(reference.run([], only=only).survivors) == only


def test_a_survivor_without_an_argument_is_open() -> None:
    known = [(r"f: .*", "f is never called"), (r"g: 1 -> 2", "an index that wraps")]
    groups = run.account(["f: a", "g: 1 -> 2", "g: 1 -> 0"], known)
    assert groups == {"f is never called": ["f: a"], "an index that wraps": ["g: 1 -> 2"], "open": ["g: 1 -> 0"]}


def holds(case: Case, engine: Literal["native", "python"]) -> bool:
    tables, c = case
    return not check_certificate(tables, dataclasses.replace(c, table_hash=table_hash(tables)), engine=engine)


@pytest.mark.parametrize("made", directed.SINGLE)
def test_cases_aimed_at_one_rule_have_both_answers_and_one_for_both_engines(made: Callable[[], Iterator[Case]]) -> None:
    answers = [holds(case, "native") for case in made()]
    assert answers == [holds(case, "python") for case in made()]
    assert set(answers) == {True, False}


def test_the_checker_refuses_columns_beyond_its_limit_and_queues_that_are_too_short() -> None:
    assert [holds(case, "native") for case in directed.damaged()] == [False] * 6


def test_the_validator_refuses_ranges_of_no_variable_and_of_no_form() -> None:
    n = Net(1)
    n.extra["variables"] = {"p": {"count": 1, "min": 0, "max": 1}}
    n.task(0, [], [access(n.buffer(1, 4), (0, 1), affine(1, base="p[0]"))])
    tables = pack(Schedule.from_json(n.json()))
    sections = read_sections(MAGIC, tables)
    for section, field, value in (("affine", 1, -2), ("affine", 5, -2), ("acc_raff", 0, -2), ("acc_caff", 0, -2)):
        changed = {name: a.copy() for name, a in sections.items()}
        changed[section].reshape(-1)[field] = value
        assert _native.validate(write_sections(MAGIC, changed), False)["counts"] == {"REF": 1}, (section, field)
    assert _native.validate(tables, False)["accepted"]


TOY = """
#include <cstdio>
static int f(int a, int b) {
  int out = 0;
  for (int i = 0; i < 3; ++i) {
    if (a < b && !(a == 2)) out += 2 * a;
    else out -= 1;
    if (i == 1) continue;
    ++out;
  }
  return out;
}
static bool g(int a) { return a >= 2 || a == -1; }
int main() {
  for (int a = -2; a < 4; ++a) std::printf("%d %d ", f(a, 2), f(a, 3)), std::printf("%d\\n", int(g(a)));
}
"""


ALIVE = ["1 + 1", "1 - 1"]  # skipping another one of the three rounds gives the same sum


def test_schemata_of_a_c_plus_plus_file(tmp_path: Path) -> None:
    pytest.importorskip("clang.cindex", reason="needs libclang: pip install libclang")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    from amk_bench.mutation import cpp

    source = tmp_path / "toy.cpp"
    source.write_text(TOY)
    schemata = cpp.Schemata([tmp_path])
    # the number comes from the command line: one program is all mutants
    planted = schemata.plant(source) + "int amk_mutant = 0;\nchar* amk_seen = nullptr;\n"
    planted = planted.replace("int main() {", "int main(int, char** argv) { amk_mutant = std::atoi(argv[1]);")
    (tmp_path / "amk_mutants.hpp").write_text("#include <cstdlib>\n" + cpp.HEADER)
    (tmp_path / "planted.cpp").write_text(planted)
    program = tmp_path / "toy"
    built = subprocess.run(
        [compiler, "-std=c++20", "-w", f"-I{tmp_path}", str(tmp_path / "planted.cpp"), "-o", str(program)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[:3000]

    def output(number: int) -> str:
        try:
            return subprocess.run([str(program), str(number)], capture_output=True, text=True, timeout=2).stdout
        except subprocess.TimeoutExpired:
            return "hangs"

    plain = output(0)
    mine = [m for m in schemata.mutants if m.function in ("f", "g")]
    assert {m.what.split(" in ")[0] for m in mine} >= {
        "< -> <=",
        "&& -> ||",
        "== -> !=",
        "* -> +",
        "without ++out;",
        "0 + 1",
        ">= -> >",
    }
    alive = [m.what for m in mine if output(m.number) == plain]
    assert len(mine) > 40
    assert alive == ALIVE


def test_aimed_schedules_are_judged_as_they_were_made() -> None:
    assert [s for s in aimed.unsafe() if _native.validate(pack(s), False)["accepted"]] == []
    assert [s for s in aimed.safe() if not _native.validate(pack(s), False)["accepted"]] == []


def test_the_nets_that_were_chosen_are_still_made() -> None:
    made = [aimed_search.random_net(random.Random(f"{seed}/{k}")) for seed, numbers in aimed_search.CHOSEN.items() for k in numbers]
    made += [
        aimed_bundles.broadcast(random.Random(f"{seed}/{k}")) for seed, numbers in aimed_bundles.CHOSEN.items() for k in numbers
    ]
    assert None not in made
    assert sum(map(len, aimed_order.USEFUL.values())) == len(list(aimed_order.never_dead()))
