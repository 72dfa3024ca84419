"""Claim: no time exists without a passed gate of the same cell."""

from __future__ import annotations

import copy
import pickle

import pytest

from amk_bench.clock import Sample
from amk_bench.gate import Check, FailedGate, PassedGate, Subject, Timing, open_gate
from amk_bench.pairing import Block

OURS, THEIRS = Subject("ours", "m", 1, 128), Subject("hf", "m", 1, 128)
GOOD, BAD = Check("tokens", True, "8 of 8"), Check("logits", False, "off by 3")
BLOCK = Block((Sample(1, 1), Sample(1, 1)), (Sample(2, 2), Sample(2, 2)), "ABBA")


def passed(subject: Subject) -> PassedGate:
    gate = open_gate(subject, "P1", [GOOD])
    assert isinstance(gate, PassedGate)
    return gate


def test_one_failed_check_closes_the_gate_and_says_which() -> None:
    gate = open_gate(OURS, "P1", [GOOD, BAD])
    assert isinstance(gate, FailedGate)
    assert gate.reason == "logits: off by 3"


def test_no_check_is_no_gate() -> None:
    gate = open_gate(OURS, "P1", [])
    assert isinstance(gate, FailedGate)
    assert gate.reason == "no check was made"


def test_a_passed_gate_cannot_be_made_changed_copied_or_subclassed() -> None:
    with pytest.raises(TypeError, match="open_gate"):
        PassedGate(object(), OURS, "P1", (GOOD,))
    gate = passed(OURS)
    with pytest.raises(AttributeError):
        gate.subject = THEIRS
    with pytest.raises(AttributeError):
        del gate.checks
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(gate)
    with pytest.raises(TypeError):
        type("Forged", (PassedGate,), {})


def test_a_timing_needs_both_gates() -> None:
    closed = open_gate(OURS, "P1", [BAD])
    with pytest.raises(TypeError, match="needs a PassedGate, got FailedGate"):
        Timing(closed, passed(THEIRS), (BLOCK,), 4, "cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="baseline"):
        Timing(passed(OURS), None, (BLOCK,), 4, "cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [Subject("hf", "m", 1, 0), Subject("hf", "m", 2, 128), Subject("hf", "other", 1, 128)])
def test_gates_of_another_cell_do_not_count(other: Subject) -> None:
    with pytest.raises(ValueError, match="different cells"):
        Timing(passed(OURS), passed(other), (BLOCK,), 4, "cpu")


def test_a_timing_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        Timing(passed(OURS), passed(THEIRS), (), 4, "cpu")
    with pytest.raises(ValueError, match="tokens"):
        Timing(passed(OURS), passed(THEIRS), (BLOCK,), 0, "cpu")


def test_microseconds_are_per_token() -> None:
    timing = Timing(passed(OURS), passed(THEIRS), (BLOCK,), 4, "cpu")
    assert timing.microseconds("a") == [250_000.0, 250_000.0]
    assert timing.microseconds("b") == [500_000.0, 500_000.0]
