"""The theory in proofs/ compiles, and none of its headline theorems rests on an axiom."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROOFS = ROOT / "proofs"
IMPORTED_AXIOM = "From Coq Require Import Classical.\nLemma lem : forall P, ~ ~ P -> P. Proof. exact NNPP. Qed.\n"

pytestmark = pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed; apt-get install coq, then: make proof")


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(folder), target], capture_output=True, text=True, timeout=600)


def test_the_theory_compiles_without_axioms() -> None:
    done = make(ROOT, "proof")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = len(re.findall(r"^Print Assumptions", (PROOFS / "Headlines.v").read_text(), re.MULTILINE))
    assert f"proofs: no axioms ({asked} headline theorems" in done.stdout


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
