"""What must hold for any bytes at all: an answer that says what was seen, soon; never a crash, never a hang.

Three doors are open to bytes from elsewhere: schedule text, packed tables, certificates.  Each has a check here that raises
AssertionError where the promise is broken; the property tests and the coverage-guided fuzzer feed the same checks.

``python -m amk_bench.adversary.garbage --n 10000`` feeds seeded changes to them, without a fuzzer: for a build with sanitizers.
"""

# ruff: noqa: PT017 - a check may see an exception or not; both are answers
from __future__ import annotations

import argparse
import copy
import json
import random
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from amk_bench.adversary.run import CLASSES, schedule_json
from amk_core import _native
from amk_core.schedule import Certificate, Schedule, check_certificate, validate
from amk_core.schedule.ir import ScheduleFormatError
from amk_core.schedule.tables import TableError, pack, table_hash, unpack
from amk_core.schedule.validate import RULES, Verdict, validate_text

SECONDS = 20.0  # of processor time; far above what an answer takes
MAX_MESSAGE = 4096  # characters of one finding: the input is not echoed
SEEDS = 4  # schedules of a class in a corpus
NUMBERS = (0, 1, -1, 2, 3, 255, 65_535, 65_536, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))

VALUES: tuple[Any, ...] = (
    None, True, False, 0.5, -0.0, 1e308, 2**64, 10**30, "", "x", "p[0]", "\ud800", "\0", [], [[]], [0], [[0, 1]], {}, {"id": 0},
    {"start": 0, "length": 1}, {"start": {"stride": 1, "mod": 3}, "length": 1}, {"start": 0, "length": {"stride": 1}},
)  # fmt: skip


@contextmanager
def soon(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Raises AssertionError where the body took more than ``seconds`` of this process's time."""
    start = time.process_time()
    yield
    took = time.process_time() - start
    assert took < seconds, f"{what} took {took:.0f} s"


def sensible(v: Verdict) -> None:
    """A verdict that can be read, printed and sent."""
    assert v.accepted is (not v.findings)
    assert {f.rule for f in v.findings} == set(v.counts) <= set(RULES)
    assert all(f.message and len(f.message) < MAX_MESSAGE for f in v.findings)
    json.dumps(v.to_json(certificate=True), allow_nan=False)
    str(v).encode()


def check_text(data: bytes) -> Verdict:
    """Schedule text: it gets a verdict, and what was read can be written and read again."""
    with soon("a verdict on text"):
        v = validate_text(data)
        sensible(v)
        try:
            s = Schedule.loads(data)
        except ScheduleFormatError as e:
            assert not v.accepted
            assert 0 < len(str(e)) < MAX_MESSAGE
            return v
        if "REF" not in v.rules:
            tables = pack(s)
            assert pack(unpack(tables)) == tables
            assert v.certificate is None or check_certificate(tables, v.certificate) == []
    return v


def check_tables(data: bytes, certificate: Certificate) -> None:
    """Packed tables: every native door answers or says TableError, also with a certificate bound to these very bytes."""
    with soon("an answer on tables"):
        try:
            answer = _native.validate(data, True)
        except ValueError as e:  # what a native TableError arrives as
            assert str(e).startswith("tables:")
        else:
            assert answer["accepted"] is (not answer["findings"])
        bound = Certificate(
            table_hash(data), certificate.unroll, certificate.n_tasks, certificate.n_queues, certificate.replay, certificate.row,
            certificate.row_off, certificate.row_queue, certificate.row_value,
        )  # fmt: skip
        assert all(check_certificate(data, bound))  # no empty line
        try:
            unpack(data)
        except TableError as e:
            assert str(e)


def check_certificate_bytes(tables: bytes, data: bytes) -> None:
    """Certificate bytes: a list of what is wrong, for both engines."""
    with soon("an answer on a certificate"):
        wrong = check_certificate(tables, data)
        assert all(isinstance(x, str) and x for x in wrong)
        try:
            c = Certificate.from_bytes(data)
        except TableError as e:
            assert wrong
            assert str(e)
            return
        assert Certificate.from_bytes(c.to_bytes()) == c
        bound = Certificate(
            table_hash(tables), c.unroll, c.n_tasks, c.n_queues, c.replay, c.row, c.row_off, c.row_queue, c.row_value
        )
        assert all(check_certificate(tables, bound))


# ---- seeds and changes
@cache
def texts() -> tuple[bytes, ...]:
    """Small schedules of every class, as text."""
    return tuple(json.dumps(schedule_json(name, 3, k), separators=(",", ":")).encode() for name in CLASSES for k in range(SEEDS))


@cache
def accepted() -> tuple[tuple[bytes, Certificate], ...]:
    """(tables, certificate) of those that are accepted."""
    out = []
    for text in texts():
        s = Schedule.loads(text)
        v = validate(s)
        if v.certificate is not None:
            out.append((pack(s), v.certificate))
    return tuple(out)


def seeds() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of a starting corpus: texts, tables and certificates, each after the byte that chooses its door."""
    for k, text in enumerate(texts()):
        yield f"text-{k:03}", b"\0" + text
    for k, (tables, c) in enumerate(accepted()):
        if k % SEEDS == 0:
            yield f"tables-{k:03}", b"\1" + bytes([k % 256]) + tables
            yield f"certificate-{k:03}", b"\2" + bytes([k % 256]) + c.to_bytes()


def flip(rng: random.Random, data: bytes) -> bytes:
    """Some bits of the bytes flipped, some of its words replaced, the end cut off or lengthened."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        how = rng.random()
        if not out:
            break
        at = rng.randrange(len(out))
        if how < 0.45:
            out[at] ^= 1 << rng.randrange(8)
        elif how < 0.9:
            width = rng.choice((4, 8))
            at -= at % width
            number = rng.choice(NUMBERS) & (2 ** (8 * width) - 1)
            out[at : at + width] = struct.pack("<I" if width == 4 else "<Q", number)
        elif how < 0.95:
            del out[rng.randrange(len(out)) :]
        else:
            out += rng.randbytes(rng.choice((1, 8, 64)))
    return bytes(out)


def flip_body(rng: random.Random, data: bytes) -> bytes:
    """Like :func:`flip`, past the directory only: the columns change, the sections stay where they are."""
    n = struct.unpack_from("<I", data, 8)[0]
    head = 16 + 48 * n
    body = flip(rng, data[head:])
    return data[:head] + body[: len(data) - head].ljust(len(data) - head, b"\0")


def change_json(rng: random.Random, text: bytes) -> bytes:
    """One to three values of a JSON text replaced, removed, repeated, or exchanged for another part of it."""
    try:
        x = json.loads(text)
    except (ValueError, RecursionError):
        return flip(rng, text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(x))
        if not places:
            break
        holder, key = rng.choice(places)
        how = rng.random()
        if how < 0.35:
            holder[key] = rng.choice(NUMBERS)
        elif how < 0.5:
            holder[key] = copy.deepcopy(rng.choice(VALUES))  # lists among them are changed later
        elif how < 0.7:
            other, at = rng.choice(places)
            holder[key] = copy.deepcopy(other[at])
        elif how < 0.85:
            del holder[key]
        elif isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 2, 40))
        elif isinstance(holder[key], int):
            holder[key] += rng.choice((-1, 1))
    return json.dumps(x, separators=(",", ":")).encode()


def _places(x: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key or index) of every value inside."""
    for key, inner in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield x, key
        yield from _places(inner)


DOORS: Mapping[int, Callable[[bytes], object]] = {
    0: lambda data: check_text(data),
    1: lambda data: check_tables(data[1:], accepted()[data[0] % len(accepted())][1]),
    2: lambda data: check_certificate_bytes(accepted()[data[0] % len(accepted())][0], data[1:]),
}


def check(data: bytes) -> None:
    """One input of the fuzzer: the first byte chooses the door."""
    if len(data) > 1:
        DOORS[data[0] % len(DOORS)](data[1:])


def draw(rng: random.Random) -> bytes:
    """One input of :func:`check`, of the form that its door takes, more or less."""
    k = rng.randrange(256)
    tables, certificate = accepted()[k % len(accepted())]
    change = flip_body if rng.random() < 0.8 else flip
    door = rng.choice((0, 1, 1, 1, 2))
    if door == 0:
        return b"\0" + change_json(rng, rng.choice(texts()))
    return bytes([door, k]) + change(rng, tables if door == 1 else certificate.to_bytes())


def main(argv: list[str] | None = None) -> int:
    """0: every input was answered."""
    p = argparse.ArgumentParser(prog="python -m amk_bench.adversary.garbage", description=main.__doc__)
    p.add_argument("--n", type=int, default=10_000)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args(argv)
    rng, doors, start = random.Random(a.seed), [0] * len(DOORS), time.process_time()
    for _ in range(a.n):
        data = draw(rng)
        doors[data[0]] += 1
        check(data)
    print(
        f"{a.n} inputs answered ({doors[0]} texts, {doors[1]} tables, {doors[2]} certificates), {time.process_time() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
