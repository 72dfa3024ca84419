"""The theory in proofs/ compiles without axioms, and the checker extracted from it agrees with ours."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench.adversary.net import Net, access
from amk_core.schedule import Certificate, Schedule, validate

ROOT = Path(__file__).parents[1]
PROOFS = ROOT / "proofs"
IMPORTED_AXIOM = "From Coq Require Import Classical.\nLemma lem : forall P, ~ ~ P -> P. Proof. exact NNPP. Qed.\n"

pytestmark = pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed; apt-get install coq, then: make proof")


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", f"-j{os.cpu_count()}", "-C", str(folder), target], capture_output=True, text=True, timeout=600)


def test_the_theory_compiles_without_axioms() -> None:
    done = make(ROOT, "proof")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = len(re.findall(r"^Print Assumptions", (PROOFS / "Headlines.v").read_text(), re.MULTILINE))
    assert f"proofs: no axioms ({asked} headline theorems" in done.stdout


def test_the_documentation_names_exactly_the_theorems_that_are_checked() -> None:
    checked = set(re.findall(r"^Print Assumptions (\w+\.\w+)\.$", (PROOFS / "Headlines.v").read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "validator.md").read_text()
    proved = page[page.index("## Proved") : page.index("## Argued")]
    named = {x for row in re.findall(r"\| ([^|]*) \|$", proved, re.MULTILINE) for x in re.findall(r"`(\w+\.\w+)`", row)}
    assert named == checked


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("Axiom lem : 0 = 1.\n", "Axiom lem"),
        ("Lemma lem : 0 = 1. Admitted.\n", "Admitted"),
        (IMPORTED_AXIOM, "classic : forall P : Prop"),
    ],
)
def test_an_axiom_is_noticed(tmp_path: Path, source: str, seen: str) -> None:
    shutil.copy(PROOFS / "Makefile", tmp_path)
    (tmp_path / "Bad.v").write_text(source)
    (tmp_path / "Headlines.v").write_text("From AMK Require Bad.\nPrint Assumptions Bad.lem.\n")
    done = make(tmp_path, "axioms")
    assert done.returncode != 0
    assert seen in done.stdout + done.stderr


@pytest.fixture(scope="module")
def proved() -> Any:
    """The bridge to the extracted checker, built."""
    assert make(PROOFS, "checker").returncode == 0
    module = importlib.import_module("amk_bench.adversary.proved")
    module.PROGRAM = PROOFS / "extracted" / "checker"  # built in the source tree, also where amk_bench is installed
    return module


def certified(s: dict[str, Any]) -> tuple[Schedule, Certificate]:
    schedule = Schedule.from_json(s)
    v = validate(schedule)
    assert v.certificate is not None, str(v)
    return schedule, v.certificate


def pipeline(steps: int, free: int) -> dict[str, Any]:
    """T0 writes x, T1 reads it; T0 of the next step waits for T1 of ``free`` steps before it (0: it does not wait)."""
    n = Net(2, steps)
    x, ready, done = n.buffer(1), n.counter(), n.counter()
    n.task(0, [], [access(x, (0, 1))], [(done, 1, -1)] if free else [], [(ready, 1)])
    n.task(1, [access(x, (0, 1))], [], [(ready, 1)], [(done, 1)])
    return n.json()


def test_the_proved_checker_accepts_a_pipeline_for_any_number_of_steps(proved: Any) -> None:
    schedule, certificate = certified(pipeline(1000, 1))
    assert proved.judge([proved.case(schedule, certificate)]) == [True]


def test_the_proved_checker_refuses_a_race_whatever_the_clocks_say(proved: Any) -> None:
    """Without the wait for the step before, T0 may overwrite what T1 has not read: the old clocks are a lie."""
    _, certificate = certified(pipeline(2, 1))
    racy = Schedule.from_json(pipeline(2, 0))
    empty = dataclasses.replace(
        certificate,
        row=np.zeros(2, np.int32),
        row_off=np.zeros(2, np.int64),
        row_queue=certificate.row_queue[:0],
        row_value=certificate.row_value[:0],
    )
    assert not validate(racy).accepted
    assert proved.judge([proved.case(racy, certificate), proved.case(racy, empty)]) == [False, False]


def test_the_proved_checker_refuses_a_deadlock(proved: Any) -> None:
    n = Net(2)
    a, b = n.counter(), n.counter()
    n.task(0, [], [], [(a, 1)], [(b, 1)])
    n.task(1, [], [], [(b, 1)], [(a, 1)])
    s = Schedule.from_json(n.json())
    zero = np.zeros(2, np.int32)
    for order in ([0, 1], [1, 0]):
        c = Certificate("0" * 64, 0, 2, 2, np.array(order, np.int32), zero, np.zeros(2, np.int64), zero[:0], zero[:0])
        assert proved.judge([proved.case(s, c)]) == [False]


def test_the_proved_checker_agrees_with_ours(proved: Any) -> None:
    """A sample; the 10 000 of proofs/agreement.json are compared by python -m amk_bench.adversary.proved."""
    result = proved.compare(300, seed=5, batch=100)
    assert result["n"] == 300
    assert result["differ"] == []
    assert min(result[k] for k in (*proved.KINDS, "holds", "does_not_hold", "periodic", "written_out")) >= 20


def test_the_committed_comparison_is_of_ten_thousand_and_without_difference() -> None:
    result = json.loads((PROOFS / "agreement.json").read_text())
    assert result["n"] == result["holds"] + result["does_not_hold"] == 10_000
    assert result["n"] == result["original"] + result["corrupted"] + result["weaker_tables"]
    assert result["differ"] == []
