"""Garbage in: no crash, no hang, an error that names what was seen.  The fuzzer beside this file looks further."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amk_bench.adversary import garbage
from amk_bench.adversary.net import Json, Net, access, affine
from amk_core import cli
from amk_core.schedule import Certificate, Schedule, ScheduleFormatError, validate
from amk_core.schedule.tables import TableError, unpack
from amk_core.schedule.validate import validate_text

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
INDEX = st.integers(0, 10**6)
MEBIBYTE = 1 << 20


def small(steps: int = 2) -> Json:
    """Two queues, one buffer, one counter, everything that the format has."""
    n = Net(2, steps)
    x, c = n.buffer(2, rows=4), n.counter()
    n.extra |= {
        "variables": {"p": {"count": 1, "min": 0, "max": 1}},
        "target": {"sms": 2, "smem_bytes": 1024, "arch": "sm_90"},
        "meta": {"m": 1, "n": "text"},
        "stop": {"buffer": x, "task": 0},
    }
    n.task(0, [], [access(x, (0, 2), affine(1, base="p"))], [], [(c, 1)], fences=["proxy.async"])
    n.task(1, [access(x, (0, 1), (0, 1), maybe=True, proxy="async")], [], [(c, 1, -1)])
    n.initial.append(access(x, (0, 2)))
    return n.json()


def paths(x: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    here = [at] if at else []
    inner = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    return here + [p for k, v in inner for p in paths(v, (*at, k))]


def put(x: Any, at: tuple[Any, ...], value: Any) -> Any:
    out = copy.deepcopy(x)
    inner = out
    for k in at[:-1]:
        inner = inner[k]
    inner[at[-1]] = value
    return out


# ---- text
WRONG = (*garbage.VALUES, *garbage.NUMBERS, [None], [2**63], [[], []], [{}])


@pytest.mark.parametrize("at", paths(small()), ids=lambda at: ".".join(map(str, at)))
def test_a_wrong_value_anywhere(at: tuple[Any, ...]) -> None:
    for value in WRONG:
        garbage.check_text(json.dumps(put(small(), at, value)).encode())


@pytest.mark.parametrize("at", paths(small()), ids=lambda at: ".".join(map(str, at)))
def test_a_wrong_value_in_an_object(at: tuple[Any, ...]) -> None:
    """``from_json`` takes objects too, which may hold what no JSON text can."""
    for value in [float("nan"), float("inf"), 10**400, (), {1: 2}, b"bytes", 1j, object(), {1, 2}]:
        try:
            s = Schedule.from_json(put(small(), at, value))
        except ScheduleFormatError:
            continue
        garbage.sensible(validate(s))


@EXAMPLES
@given(INDEX, st.integers(0, 2**32))
def test_text_with_flipped_bytes(index: int, seed: int) -> None:
    texts = garbage.texts()
    garbage.check_text(garbage.flip(random.Random(seed), texts[index % len(texts)]))


@EXAMPLES
@given(INDEX, st.integers(0, 2**32))
def test_text_with_other_values(index: int, seed: int) -> None:
    texts = garbage.texts()
    garbage.check_text(garbage.change_json(random.Random(seed), texts[index % len(texts)]))


@EXAMPLES
@given(INDEX, st.floats(0, 1))
def test_truncated_text(index: int, share: float) -> None:
    text = garbage.texts()[index % len(garbage.texts())]
    cut = text[: int(share * (len(text) - 1))]
    v = garbage.check_text(cut)
    assert v.rules == {"REF"}


@EXAMPLES
@given(st.binary(max_size=200))
def test_bytes_that_are_no_text(data: bytes) -> None:
    assert garbage.check_text(data).rules == {"REF"}


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"format":', '[{"a":[', '{"tasks":['])
@pytest.mark.parametrize("closed", [True, False])
def test_ten_megabytes_of_nesting(opening: str, closed: bool) -> None:
    depth = 10 * MEBIBYTE // len(opening)
    closing = opening.translate(str.maketrans("[{", "]}", '"aformtsk:'))[::-1]
    assert garbage.check_text((opening * depth + (closing * depth if closed else "")).encode()).rules == {"REF"}


@pytest.mark.parametrize("depth", range(900, 1000, 7))
@pytest.mark.parametrize("field", ['"steps": ', '"per_step": ', '"offset": ', '"maybe": '])
def test_nesting_just_below_what_the_reader_can_take(depth: int, field: str) -> None:
    text = json.dumps(small())
    before, _, after = text.partition(field)
    rest = after[min(k for k in (after.find(","), after.find("}")) if k >= 0) :]
    for a, b in (("[", "]"), ('{"a":', "}")):
        nested = a * depth + ("0" if a != "[" else "") + b * depth
        assert garbage.check_text((before + field + nested + rest).encode()).rules == {"REF"}


def test_an_error_does_not_echo_the_input() -> None:
    long = "x" * MEBIBYTE
    for at, value in [
        (("format",), long),
        (("tasks", 0, "op"), long),
        ((long,), 1),
        (("buffers", 0, "dtype"), long),
        (("steps",), [0] * 10**5),
    ]:
        garbage.check_text(json.dumps(put(small(), at, value)).encode())


# ---- small files that claim a lot
HUGE = 2**31


def claims() -> dict[str, Json]:
    rows = [2**31, 2**40 - 1, 2**50]
    out: dict[str, Json] = {f"steps {n}": small() | {"steps": n} for n in (HUGE - 1, HUGE, 2**62)}
    for n in rows:
        out[f"rows {n}"] = put(put(small(), ("buffers", 0, "shape"), [n, 2]), ("tasks", 0, "writes", 0, "rows"), [0, n])
        out[f"cols {n}"] = put(put(small(), ("buffers", 0, "shape"), [4, n]), ("tasks", 0, "writes", 0, "cols"), [0, n])
        out[f"offset {n}"] = put(small(), ("buffers", 0, "offset"), n)
        out[f"amount {n}"] = put(put(small(), ("tasks", 0, "signals", 0, 1), n), ("counters", 0, "per_step"), n)
        out[f"smem {n}"] = put(small(), ("target", "smem_bytes"), n)
    out["many variables"] = small() | {"variables": {f"v{k}": {"count": 65_536, "min": 0, "max": 1} for k in range(100)}}
    out["wide variable"] = put(small(), ("variables", "p", "max"), 2**60)
    out["task 2^31"] = put(small(), ("queues", 0, 0), HUGE - 1)
    out["counter 2^31"] = put(small(), ("tasks", 1, "waits", 0, 0), HUGE - 1)
    out["empty queues"] = small() | {"queues": [[0], [1], *([] for _ in range(200_000))]}
    out["one task many times"] = small() | {"queues": [[0] * 10**5, [1] * 10**5]}
    out["long shape"] = put(small(), ("buffers", 0, "shape"), [2**39] * 10_000)
    return out


@pytest.mark.parametrize("name", claims())
def test_a_small_file_that_claims_a_lot(name: str) -> None:
    garbage.check_text(json.dumps(claims()[name]).encode())


def chain(queues: int) -> Json:
    """As many queues as tasks, each of which waits for the one before."""
    n = Net(queues, 2)
    x, c = n.buffer(queues), [n.counter() for _ in range(queues)]
    for q in range(queues):
        reads = [access(x, (q - 1, q))] if q else []
        n.task(q, reads, [access(x, (q, q + 1))], [(c[q - 1], 1)] if q else [], [(c[q], 1)])
    return n.json()


def test_more_queues_than_any_device_has() -> None:
    """Decided, or refused with the reason; the clocks of all pairs of queues are not built."""
    v = garbage.check_text(json.dumps(chain(5_000)).encode())
    assert not v.accepted  # a queue may lap the next one


# ---- the command
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not readable as JSON"),
    "truncated": (json.dumps(small()).encode()[:-1], "not readable as JSON"),
    "nested": (b"[" * (10 * MEBIBYTE), "not readable as JSON"),
    "NaN": (json.dumps(small() | {"steps": float("nan")}).encode(), "NaN"),
    "infinite": (json.dumps(small() | {"steps": float("-inf")}).encode(), "Infinity"),
    "2^63": (json.dumps(small() | {"steps": 2**63}).encode(), "steps: integer out of range"),
    "negative mod": (json.dumps(put(small(), ("tasks", 0, "writes", 0, "rows", "start", "mod"), -1)).encode(), "mod is -1"),
    "wrong type": (json.dumps(small() | {"variables": 5}).encode(), "variables: an object is required, seen int"),
    "wrong fence": (json.dumps(put(small(), ("tasks", 0, "fences"), [[]])).encode(), "unknown fence '[]'"),
    "duplicate key": (b'{"format": "amk.schedule/1", "format": "amk.schedule/1"}', "duplicate key"),
    "surrogate": (json.dumps(put(small(), ("buffers", 0, "name"), "\ud800")).encode(), "surrogate"),
    "latin": ('{"format": "\xe4"}'.encode("latin-1"), "not readable as JSON"),
    "unknown field": (json.dumps(small() | {"quueues": []}).encode(), "unknown field 'quueues'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_command_says_what_it_saw(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, seen = BROKEN[name]
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    assert cli.main(["validate", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert seen in err
    assert str(path) in err
    assert len(err) < garbage.MAX_MESSAGE
    assert "Traceback" not in err


REJECTED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "negative size": (("buffers", 0, "shape"), [-4, 2], "is not a shape"),
    "negative pool": (("pools", 0, "bytes"), -1, "bytes is -1"),
    "negative offset": (("buffers", 0, "offset"), -8, "buffer 0"),
    "negative rows": (("tasks", 1, "reads", 0, "rows"), [-1, 1], "outside its shape"),
    "duplicate id": (("tasks", 1, "id"), 0, "id is 0, required is 1"),
    "duplicate pool": (("pools",), [{"id": "global"}, {"id": "global"}], "two pools have the same id"),
    "task twice": (("queues",), [[0, 0], [1]], "exactly one queue"),
    "no steps": (("steps",), 0, "steps is 0"),
    "unknown op": (("tasks", 0, "op"), "spin", "unknown op 'spin'"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_can_be_read_and_makes_no_sense_is_rejected_by_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, value, seen = REJECTED[name]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(put(small(), at, value)))
    assert cli.main(["validate", str(path)]) == 1
    assert seen in capsys.readouterr().out


def test_a_broken_line_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"\n".join(text for text, _ in BROKEN.values() if text and b"\n" not in text))
    assert cli.main(["validate", "--jsonl", str(path)]) == 2
    verdicts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(verdicts) == len(BROKEN) - 1
    assert all({f["rule"] for f in v["findings"]} == {"REF"} for v in verdicts)


# ---- tables and certificates
@EXAMPLES
@given(INDEX, st.integers(0, 2**32), st.booleans())
def test_tables_with_flipped_bits(index: int, seed: int, body: bool) -> None:
    tables, c = garbage.accepted()[index % len(garbage.accepted())]
    rng = random.Random(seed)
    garbage.check_tables((garbage.flip_body if body else garbage.flip)(rng, tables), c)


@EXAMPLES
@given(INDEX, st.integers(0, 2**32), st.booleans())
def test_certificates_with_flipped_bits(index: int, seed: int, body: bool) -> None:
    tables, c = garbage.accepted()[index % len(garbage.accepted())]
    rng = random.Random(seed)
    garbage.check_certificate_bytes(tables, (garbage.flip_body if body else garbage.flip)(rng, c.to_bytes()))


@EXAMPLES
@given(st.binary(max_size=300))
def test_bytes_that_are_no_tables_and_no_certificate(data: bytes) -> None:
    tables, c = garbage.accepted()[0]
    garbage.check_tables(data, c)
    garbage.check_certificate_bytes(tables, data)


@EXAMPLES
@given(INDEX, INDEX)
def test_a_certificate_of_other_tables(index: int, other: int) -> None:
    """Bound to them by hash: sizes that do not fit are refused before they are used."""
    tables, _ = garbage.accepted()[index % len(garbage.accepted())]
    garbage.check_tables(tables, garbage.accepted()[other % len(garbage.accepted())][1])


def test_a_check_that_finds_something_says_so() -> None:
    with pytest.raises(AssertionError, match="took"), garbage.soon("nothing", seconds=-1.0):
        pass
    good = validate_text(json.dumps(chain(1)).encode())
    assert good.accepted
    with pytest.raises(AssertionError):
        garbage.sensible(type(good)(False, (), None, {}))


def test_a_section_that_is_not_aligned_is_damaged() -> None:
    """The native side reads numbers where they lie."""
    tables, c = garbage.accepted()[0]
    for raw, read in ((tables, unpack), (c.to_bytes(), Certificate.from_bytes)):
        entry = 16 + 48 * next(k for k in range(64) if raw[16 + 48 * k + 24] in (4, 8))
        offset = int.from_bytes(raw[entry + 40 : entry + 48], "little")
        moved = raw[: entry + 40] + (offset + 1).to_bytes(8, "little") + raw[entry + 48 :] + b"\0" * 64
        with pytest.raises(TableError, match="damaged"):
            read(moved)
