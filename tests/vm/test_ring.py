"""The loader's ring: every interleaving of a model of it, and the text of vm/ring.cuh itself, whose runs the model must accept."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
from host_compiler import compiled

from amk_bench.adversary import ring_model
from amk_bench.adversary.ring_model import BUGS, Config, accepts, configurations, explore

ROOT = Path(__file__).parents[2]
PRIMITIVES = (
    "shared_address",
    "ring_data",
    "barrier_init",
    "barrier_arrive",
    "barrier_test",
    "barrier_try",
    "barrier_test_at",
    "barrier_try_at",
    "copy_slot",
)


# ---- the model
def small(full: bool) -> list[Config]:
    """Default: one and two slots with one lane, some of the rest; ``--full``: all, two lanes up to two slots."""
    if full:
        return [c for slots in (1, 2, 3, 4) for c in configurations(slots, lanes=(1, 2) if slots < 3 else (1,))]
    out = [c for slots in (1, 2) for c in configurations(slots, lanes=(1,)) if slots == 1 or c.chunks in (0, 1, 5, 6)]
    out += [Config(2, 6, 2, 1, lanes=2), Config(2, 6, 2, 1, False, lanes=2, task=3)]
    return [*out, Config(3, 9, 3, 1, task=4), Config(4, 12, 4, 1, task=5)]


def test_the_ring_holds_in_every_interleaving(request: pytest.FixtureRequest) -> None:
    """No overwrite before the release, no read before the landing, no ambiguous parity, no copy left behind, always an end."""
    for c in small(bool(request.config.getoption("--full", default=False))):
        answer = explore(c)
        assert answer.problem is None, (c, answer.problem, answer.trace)


def test_a_wait_that_runs_out_of_patience_leaves_no_copy_behind() -> None:
    for c in (Config(2, 4, 2, 1, task=2, timeouts=True), Config(1, 3, 1, 1, False, lanes=2, timeouts=True)):
        answer = explore(c)
        assert answer.problem is None, (c, answer.problem, answer.trace)


# Where a mistake shows: with one lane, with two, when a wait times out, or with a low cap of nothing.
WHERE = {
    "vote forgotten": {"lanes": 2, "chunks": 3},
    "drain gives up": {"timeouts": True},
    "cap never raised": {"low": 0},
    "eaten not counted": {"low": 0},
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_with_a_trace(bug: str) -> None:
    c = dataclasses.replace(Config(2, 6, 2, 1, task=3, bug=bug), **WHERE.get(bug, {}))
    assert explore(dataclasses.replace(c, bug="")).problem is None
    answer = explore(c)
    assert answer.problem is not None
    s = ring_model.initial(c)
    for event in answer.trace:  # the trace is a run
        s = dict(ring_model.successors(c, s))[event]


def test_more_in_flight_than_slots_makes_a_parity_ambiguous() -> None:
    """Why the plan of a build cuts the caps at the number of slots."""
    answer = explore(Config(2, 6, 3, 1))
    assert answer.problem is not None
    assert "ambiguous" in answer.problem


# ---- the code
def host_text(source: str) -> str:
    """ring.cuh without its includes and its instructions; the primitives in PRIMITIVES are left to the host."""
    text = re.sub(r"^#(include|pragma once).*$", "", source, flags=re.M)
    for name in PRIMITIVES:
        start = re.search(rf"^__device__ __forceinline__ [\w \*]+\b{name}\(", text, flags=re.M)
        assert start is not None, f"ring.cuh has no function {name} any more; the host build of the ring replaces it"
        at = text.index("{", start.end())
        depth, end = 1, at + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: start.start()] + text[end:]
    text = re.sub(r"asm volatile\((?:[^()]|\([^()]*\))*\);[^\n]*", ";", text)
    assert "asm" not in text
    text = re.sub(r"^namespace amk \{$|^\}  // namespace amk$", "", text, flags=re.M)
    return re.sub(r"volatile uint32_t", "Shared32", text)


def test_primitives_are_cut_out_where_braces_stand_in_instructions() -> None:
    text = host_text((ROOT / "vm" / "ring.cuh").read_text())
    assert "void run_loader(" in text
    assert "struct RingCursor {" in text
    assert "barrier_wait_long(uint64_t* b" in text
    assert "mbarrier." not in text.split("// The patient half")[1]


CASES = [(1, 1, 1, 1, 1), (2, 2, 1, 0, 1), (3, 3, 2, 1, 4), (4, 2, 1, 0, 2)]  # slots, high, low, bulk, task


RUNS = 60


def runs_of(text: str, case: tuple[int, int, int, int, int], folder: Path) -> list[tuple[Config, list[str]]]:
    """(what ran, its events) of RUNS random launches of this text of the ring."""
    file = folder / "ring.inc"
    file.write_text(text)
    slots, high, low, bulk, task = case
    sizes = {
        "AMK_SLOTS": slots,
        "AMK_FLIGHT_HIGH": high,
        "AMK_FLIGHT_MID": low,  # the model has one cap for a ring that is not empty
        "AMK_FLIGHT_LOW": low,
        "RING_BULK": bulk,
        "RING_TASK": task,
        "RING_ABORT": 1,
    }
    flags = ["-O1", f'-DRING_TEXT="{file}"', *(f"-D{k}={v}" for k, v in sizes.items()), f"-I{ROOT / 'vm'}"]
    out = compiled(folder / "ring", [Path(__file__).with_name("ring_host.cpp")], *flags)
    done = subprocess.run([str(out), str(RUNS), "7"], capture_output=True, text=True, timeout=120)
    runs = [run.splitlines() for run in done.stdout.strip().split("\n\n")]
    return [(Config(slots, int(run[0].split()[1]), high, low, bool(bulk), warps=2, lanes=2, task=task), run[1:]) for run in runs]


def objection(c: Config, events: list[str]) -> str | None:
    """What is wrong with a run: bytes that are not those of the tape, or a step that the model does not have."""
    bad = [e for e in events if e.startswith("BAD")]
    return bad[0] if bad else accepts(c, events)


@pytest.mark.parametrize("case", CASES)
def test_the_code_does_what_the_model_says(case: tuple[int, int, int, int, int], tmp_path: Path) -> None:
    runs = runs_of(host_text((ROOT / "vm" / "ring.cuh").read_text()), case, tmp_path)
    assert len(runs) == RUNS
    assert len({c.chunks for c, _ in runs}) > 3
    for c, events in runs:
        assert objection(c, events) is None, (c, events)


SABOTAGE = [
    ("free_parity = 1", "free_parity = 0"),
    ("slot = 0, parity ^= 1", "slot = 0"),
    ("runs.run < runs.unit.slot ? runs.run : runs.unit.slot", "1"),
    ("kInFlightLow : kInFlightMid", "kInFlightHigh : kInFlightHigh"),
]


@pytest.mark.parametrize(("right", "wrong"), SABOTAGE)
def test_other_code_is_objected_to(right: str, wrong: str, tmp_path: Path) -> None:
    text = host_text((ROOT / "vm" / "ring.cuh").read_text())
    assert right in text
    runs = runs_of(text.replace(right, wrong), (3, 3, 1, 1, 3), tmp_path)
    assert any(objection(c, events) for c, events in runs)
