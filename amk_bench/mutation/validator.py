"""Cases of the native validator: schedules of every attack class, at the borders of the rules, under exact clocks, and damaged.

The exhaustive oracle says which of them are safe; where it gives up, a certificate that the checker accepts does.  Each is judged
under the limits of the code as written, and under small ones (limits.py), where the validator may be undecided and nothing worse.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from amk_bench.adversary import run as attack
from amk_bench.adversary.net import Json
from amk_bench.adversary.regressions import REGRESSIONS
from amk_bench.mutation import aimed, aimed_kinds, aimed_last, aimed_model, aimed_rules, checker, directed, exact, phases, small
from amk_bench.mutation.edges import edges
from amk_bench.mutation.limits import VALIDATOR
from amk_bench.mutation.native import words
from amk_bench.mutation.reference import comparable
from amk_core import _native
from amk_core.schedule import check_certificate, footprint, oracle, reference, validate
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import MAGIC, TableError, pack, read_sections, unpack

RULES = ("REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "PROXY")  # bit k, as in validate.hpp
SEED = 55
SETTINGS = range(len(VALIDATOR))
MAX_STATES = 100_000  # of the oracle
REFERENCE_INSTANCES = 60  # larger schedules are not given to the slow reference
DEAR_CLASSES = frozenset(
    ("real_lowering", "real_alias", "wrong_shape_parameters", "ordered_clobber_by_alias", "duplicated_accumulate")
)
GEOMETRY, NETS, PHASES, DAMAGED = 2500, 600, 700, 60


@dataclass(frozen=True, slots=True)
class Truth:
    """Whether a schedule is safe, and the rules that it breaks among ``kept`` ones (-1: not known)."""

    safe: bool
    rules: int = -1
    kept: int = -1


def _bits(rules: frozenset[str] | set[str]) -> int:
    return sum(1 << k for k, r in enumerate(RULES) if r in rules)


def _shared_rules(s: Schedule, native: frozenset[str], seen: frozenset[str]) -> tuple[int, int]:
    """(rules, kept): those on which the native validator and the oracle or the reference agree, or have to."""
    if native == seen:
        return _bits(native), _bits(set(RULES))
    if s.n_tasks * s.steps >= REFERENCE_INSTANCES:
        return -1, -1
    try:
        mine = reference.validate(s).rules
    except reference.TooLarge:
        return -1, -1
    if mine == native:
        return _bits(native), _bits(set(RULES))
    if comparable(mine) != comparable(native):
        if "TAG" in mine | native:  # tags of two buffers on the same bytes: whether a reader goes on is anybody's guess
            return -1, -1
        raise RuntimeError(f"the reference says {sorted(mine)}, the validator {sorted(native)}: {s.to_json()}")
    kept = frozenset({"LIVE", "RO"}) if "LIVE" in mine else frozenset(RULES)
    kept -= {"COVER", "FLOW"} if "RACE" in mine else set()
    kept -= {"COVER"} if "TAG" in mine else set()
    return _bits(comparable(mine)), _bits(kept)


def truth(s: Schedule, tables: bytes) -> Truth | None:
    """What is known of a schedule; None where it is not for the native code to decide, or nobody decides it.

    Raises:
        RuntimeError: the native validator is wrong.
    """
    if s.defects or any(b.pool not in {p.id for p in s.pools} for b in s.buffers) or any((p.bytes or 0) < 0 for p in s.pools):
        return None
    if (s.columns.task_op != 0).any() and footprint.problems(s):
        return None
    native = validate(s, witness=False)
    if "FIT" in native.rules:
        return None
    label = oracle.label(s, tables, max_states=MAX_STATES, atomic=True)
    if "FIT" in label.rules:
        return None
    proved = native.certificate is not None and not check_certificate(tables, native.certificate)
    if native.accepted and not proved:
        return None  # beyond a limit of the checker
    if label.undecided is not None:
        return Truth(True, 0, _bits(set(RULES))) if proved else None
    if native.undecided:
        return Truth(label.safe)
    if label.safe != native.accepted:
        raise RuntimeError(f"the oracle says {sorted(label.rules)}, the validator {native}: {s.to_json()}")
    return Truth(label.safe, *_shared_rules(s, native.rules, label.rules))


def damaged_truth(tables: bytes, senseless: bool) -> Truth | None:
    """What is known of tables that no reader makes."""
    flags = read_sections(MAGIC, tables)["acc_flags"]
    if flags.size and not 0 <= flags.min() <= flags.max() < 16:
        return None
    try:
        accepted, counts = (answer := _native.validate(tables, False))["accepted"], answer["counts"]
        bits, _, undecided, notes = _native.oracle(tables, MAX_STATES, True)
    except ValueError:
        return None
    seen = {rule for k, rule in enumerate(oracle.RULES) if bits >> k & 1} - {"FIT"}  # not of the native code
    early = {"REF", "COUNT"}
    if accepted and (seen or senseless) and not undecided:
        raise RuntimeError(f"damaged tables are accepted: the oracle says {sorted(seen)} {list(notes)}")
    if early & counts.keys():
        return Truth(False, _bits(set(counts)), _bits(early)) if early & seen == early & counts.keys() or senseless else None
    if undecided or any(f["undecided"] for f in answer["findings"]):
        return None
    if not accepted and not seen:
        return None  # widths that their data type has not, or a decision to stop of no bytes
    return Truth(not seen, *((_bits(seen), _bits(set(RULES))) if seen == counts.keys() else (-1, -1)))


def tables_truth(tables: bytes) -> Truth | None:
    """What is known of tables whose values may have any names.

    Raises:
        RuntimeError: the native validator is wrong.
    """
    answer = _native.validate(tables, True)
    nibbles = (
        read_sections(MAGIC, tables)["buffers"].reshape(-1, 9)[:, 2] == 4
    ).any()  # the oracle looks at bytes, not at elements
    bits, _, undecided, notes = _native.oracle(tables, MAX_STATES, True)
    seen, found = {rule for k, rule in enumerate(oracle.RULES) if bits >> k & 1}, answer["findings"]
    if answer["accepted"]:
        arrays = [np.asarray(answer[k]) for k in ("replay", "row", "row_off", "row_queue", "row_value")]
        n_tasks, queues = arrays[1].size // max(1, answer["unroll"]), read_sections(MAGIC, tables)["queue_off"].size - 1
        if _native.check_certificate(tables, answer["unroll"], n_tasks, queues, *arrays):
            return None  # beyond a limit of the checker
        if seen and not nibbles:
            raise RuntimeError(f"the oracle says {sorted(seen)} of what is accepted: {list(notes)}")
        return None if seen else Truth(True, 0, _bits(set(RULES)))
    if undecided:
        return None
    if all(f["undecided"] for f in found):
        return Truth(not seen)
    if not seen and (nibbles or found[0]["what"] == "dead"):
        return None  # the oracle takes a write of no bytes for an effect
    if not seen:
        raise RuntimeError(f"the oracle finds nothing where the validator says {found}")
    return Truth(False, _bits(seen), _bits(set(RULES))) if seen == answer["counts"].keys() else Truth(False)


def _named(per_class: int, seed: int) -> Iterator[tuple[Json, bool]]:
    """(schedule, whether it is judged under all settings)."""
    yield from ((data, True) for _, data in edges())
    yield from ((r.build(), True) for r in REGRESSIONS)
    for index in range(per_class):
        for name in attack.CLASSES:
            if name in DEAR_CLASSES and index * 3 >= per_class:
                continue
            for more in range(3 if name in checker.MOVING_CLASSES else 1):
                yield attack.schedule_json(name, seed, index * 3 + more), index < per_class // 4


def _schedules(per_class: int, seed: int) -> Iterator[tuple[Schedule, bool]]:
    yield from ((Schedule.from_json(data), all_) for data, all_ in _named(per_class, seed))
    yield from ((s, True) for s in checker.rings())
    for steps, most in ((3, 2), (5, 11), (6, 3), (9, 40)):
        yield from ((s, True) for s in checker.long(steps, most))
    yield from ((s, True) for s in (*checker.far(), *checker.shared()))
    yield from ((s, True) for s in exact.schedules(random.Random(f"{seed}/exact"), NETS))
    yield from ((s, True) for s in phases.schedules(random.Random(f"{seed}/phases"), PHASES))
    seen = set()
    for tables, _ in (*small.cases(seed, GEOMETRY, 10), *directed.cases(seed)):
        if tables not in seen:
            seen.add(tables)
            yield unpack(tables), True


def aimed_cases() -> Iterator[list[int]]:
    """Those aimed at mutants that nothing else notices."""
    yield from _judged(((s, True) for s in aimed.schedules()), random.Random(SEED))
    for tables in aimed_kinds.chosen():
        if (known := tables_truth(tables)) is not None:
            yield from (words(known.safe, known.rules, known.kept, tables, None, setting) for setting in SETTINGS)
    for make in (*aimed_model.SINGLE, *aimed_rules.SINGLE, *aimed_last.SINGLE, *aimed_last.HALF):
        for case in make():
            stated = -1 if case.rules is None else _bits(case.rules)
            for setting in case.settings:
                yield words(not case.rules, stated, _bits(set(RULES)), case.tables, None, setting)
    for accept, given in ((False, aimed.unsafe()), (True, aimed.safe())):
        for s in given:
            for setting in SETTINGS:
                yield words(accept, -1, 0, pack(s), None, setting)


def _judged(schedules: Iterable[tuple[Schedule, bool]], rng: random.Random) -> Iterator[list[int]]:
    """Under the limits as written, and under one or all of the settings with small ones."""
    for s, all_ in schedules:
        tables = pack(s)
        known = truth(s, tables)
        if known is None:
            continue
        for setting in SETTINGS if all_ else (0, rng.choice(SETTINGS[1:])):
            yield words(known.safe, known.rules, known.kept, tables, None, setting)


def cases(per_class: int, seed: int = SEED) -> Iterator[list[int]]:
    """All of them."""
    rng = random.Random(f"{seed}/settings")
    yield from _judged(_schedules(per_class, seed), rng)
    yield from aimed_cases()
    opaque = (s for data, _ in _named(1, seed) if not (s := Schedule.from_json(data)).columns.task_op.any())  # derive no footprint
    for tables in rng.sample([pack(s) for s in opaque], DAMAGED):
        for broken, senseless in islice(checker.damages(tables, 20), 0, None, 23):
            try:
                known = damaged_truth(broken, senseless)
            except TableError:
                continue
            if known is not None:
                yield words(known.safe, known.rules, known.kept, broken, None)
