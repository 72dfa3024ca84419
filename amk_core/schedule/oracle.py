"""Ground truth for small schedules: every interleaving, every number of steps, every value of the launch variables.

The oracle knows nothing of clocks or of must-order.  It walks the reachable states (start and end of a task are separate events)
and labels what it sees with the rule that forbids it.  It answers ``undecided`` where a schedule is too large to walk.
"""

from __future__ import annotations

from dataclasses import dataclass

from amk_core import _native
from amk_core.schedule import footprint
from amk_core.schedule.ir import Schedule
from amk_core.schedule.quant_rules import quant_problems
from amk_core.schedule.tables import pack

# Bit k of the native answer is RULES[k].
RULES: tuple[str, ...] = ("REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "FIT", "PROXY")
MAX_STATES = 2_000_000  # about a second
# The four kinds of unsafe that the reports tell apart; a schedule with several counts as the first.
DEADLOCK, RACE, WRONG_DATA, OTHER = "deadlock", "race", "wrong data flow", "other"


@dataclass(frozen=True, slots=True)
class Label:
    """What the oracle saw.  ``undecided`` is None or the reason; an undecided schedule may still have rules it surely breaks."""

    rules: frozenset[str]
    states: int
    undecided: str | None
    notes: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        return not self.rules and self.undecided is None

    @property
    def unsafe(self) -> bool:
        return bool(self.rules)

    @property
    def kind(self) -> str | None:
        """deadlock, race, wrong data flow, other; None where nothing is wrong."""
        if "LIVE" in self.rules:
            return DEADLOCK
        if "RACE" in self.rules:
            return RACE
        if self.rules & {"COVER", "FLOW", "TAG"}:
            return WRONG_DATA
        return OTHER if self.rules else None


def label(schedule: Schedule, tables: bytes | None = None, *, max_states: int = MAX_STATES, atomic: bool = False) -> Label:
    """Label a schedule (pass its packed ``tables`` where they are at hand).

    ``atomic`` walks states in which no task is running and calls two tasks overlapping when both are enabled: the same labels
    (``overlap_iff_coenabled`` in proofs/Events.v) from far fewer states.

    Raises:
        amk_core.schedule.tables.TableError: never for tables that ``pack`` wrote.
    """
    bits, states, undecided, notes = _native.oracle(tables if tables is not None else pack(schedule), max_states, atomic)
    rules = {rule for k, rule in enumerate(RULES) if bits >> k & 1}
    if schedule.defects:
        rules.add("REF")
        notes = [*notes, schedule.defects[0]]
    if any(p.bytes is not None and p.bytes < 0 for p in schedule.pools):  # tables say -1 for an unbounded one
        rules.add("REF")
        notes = [*notes, "pool of negative size"]
    problems = quant_problems(schedule)
    if problems:
        rules.add("REF")
        notes = [*notes, problems[0][1]]
    problems = footprint.problems(schedule) if (schedule.columns.task_op != 0).any() else []
    if problems:
        rules.add("REF")
        notes = [*notes, problems[0][1]]
    return Label(frozenset(rules), states, undecided or None, tuple(notes))
