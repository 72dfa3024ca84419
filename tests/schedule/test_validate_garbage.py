"""Whatever ``Schedule.from_json`` accepts gets a verdict, quickly; text it refuses gets one from the command line."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amk_bench.adversary.run import CLASSES, schedule_json
from amk_core import cli
from amk_core.schedule import Schedule, ScheduleFormatError, Verdict, validate
from amk_core.schedule.validate import RULES, validate_text

EXTREMES = [0, 1, -1, 2, 3, 65_536, 10**6, 2**31 - 1, -(2**31), 2**31, 2**40, 2**50, 2**61, 2**62, -(2**62)]
SECONDS = 20.0  # far above what a verdict takes; a hang is minutes


def integers(x: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(x, dict | list):
        for k, v in x.items() if isinstance(x, dict) else enumerate(x):
            yield from integers(v, (*path, k))
    elif isinstance(x, int) and not isinstance(x, bool):
        yield path


def replace(x: Any, path: tuple[Any, ...], value: Any) -> None:
    for k in path[:-1]:
        x = x[k]
    x[path[-1]] = value


def sensible(v: Verdict) -> None:
    assert v.accepted is (not v.findings)
    assert {f.rule for f in v.findings} == set(v.counts) <= set(RULES)
    json.dumps(v.to_json(certificate=True))
    assert str(v)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(CLASSES)), st.integers(0, 10**6), st.integers(0, 2**32), st.integers(1, 4))
def test_extreme_numbers_anywhere(name: str, index: int, seed: int, changes: int) -> None:
    s = schedule_json(name, 0, index)
    rng = random.Random(seed)
    leaves = list(integers(s))
    for _ in range(changes):
        replace(s, rng.choice(leaves), rng.choice(EXTREMES))
    start = time.monotonic()
    try:
        schedule = Schedule.from_json(s)
    except ScheduleFormatError:
        return
    sensible(validate(schedule))
    assert time.monotonic() - start < SECONDS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 2**32), VALUES)
def test_any_json_anywhere(index: int, seed: int, value: Any) -> None:
    s = schedule_json("loop", 0, index)
    rng = random.Random(seed)
    at: Any = s
    for _ in range(rng.randrange(1, 5)):
        if not isinstance(at, dict | list) or not at:
            break
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        parent, at = at, at[key]
    parent[key] = value
    sensible(validate_text(json.dumps(s)))


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"format": 1}', b"[" * 100_000, b'{"a":1,"a":2}', b"NaN"]
)
def test_text_that_is_no_schedule(text: bytes) -> None:
    v = validate_text(text)
    assert (v.accepted, v.rules) == (False, {"REF"})


def good() -> str:
    return json.dumps(schedule_json("overtaking_safe", 0, 0))


def bad() -> str:
    s = schedule_json("overtaking_safe", 0, 0)
    s["queues"].append([0])
    return json.dumps(s)


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"good": good(), "bad": bad(), "broken": "{"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    at = {name: str(tmp_path / name) for name in [*files, "missing"]}
    assert cli.main(["validate", at["good"]]) == 0
    assert cli.main(["validate", at["good"], at["bad"]]) == 1
    assert cli.main(["validate", at["bad"], at["broken"], at["good"]]) == 2
    assert cli.main(["validate", at["missing"]]) == 2
    capsys.readouterr()
    assert cli.main(["validate", "--json", "--certificate", at["good"]]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["accepted"] is True
    assert verdict["certificate"]["format"] == "amk.certificate/1"
    assert cli.main(["validate", "--json", at["bad"]]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "REF"


def test_one_verdict_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join([good(), bad(), "not json", good()]) + "\n")
    assert cli.main(["validate", "--jsonl", str(path)]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [v["accepted"] for v in lines] == [True, False, False, True]
    assert [{f["rule"] for f in v["findings"]} for v in lines] == [set(), {"REF"}, {"REF"}, set()]
