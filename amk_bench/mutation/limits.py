"""Small limits for the programs of mutants: without them, no small case would lie beyond a limit of the code as written."""

from __future__ import annotations

import re

# The checker has these ones throughout.
CHECKER = {
    "kDenseEntries": 40, "kExactValues": 12, "kExactSteps": 5, "kMaxLag": 4, "kMaxCells": 144, "kMaxSteps": 50, "kMaxUnroll": 60,
    "kMaxRows": 3, "kMemo": 8, "kMaxReach": 40,
}  # fmt: skip
# The validator has its own ones in setting 0; each case of its corpus names its setting.
VALIDATOR: tuple[dict[str, int], ...] = (
    {"kJoinBits": 8},  # it only remembers less: to fill the table of its own size takes longer than a case
    # Periodic clocks have to do without clocks written out over steps, and start from bounds; reads are bundled.
    {"kUnrolledTasks": 1, "kLeast": 2, "kArena": 40, "kEagerWork": 0, "kWitnessSteps": 2, "kJoinBits": 4},
    # Few steps are written out, and few values and assignments are tried.
    {
        "kUnrolledTasks": 24, "kFirstSteps": 3, "kLeast": 1, "kEagerWork": 8, "kBoundRounds": 2, "kConcreteWork": 60,
        "kAssignments": 3, "kSampleSteps": 2, "kTagSteps": 3, "kAliasValues": 3, "kDistances": 2, "kEnumeration": 12,
        "kResidueBudget": 6, "kWrittenOut": 3, "kMaxPerRule": 1, "kJoinBits": 1,
    },
    # Budgets that end in the middle of the work.
    {
        "kMaxQueues": 3, "kMaxRounds": 4, "kBoundRounds": 3, "kEagerWork": 6, "kAccessPairs": 4, "kMaxPieces": 3,
        "kMaxIncidence": 12, "kAllMeetings": 8, "kAliasChecks": 6, "kUnrolledCells": 90, "kUnrolledWork": 400, "kMaxCells": 48,
        "kWitnessWork": 10, "kWitnessAhead": 12, "kWitnessSteps": 1, "kLeast": 3, "kAliasValues": 8, "kTagSteps": 5,
        "kJoinBits": 2,
    },
)  # fmt: skip
# Sizes of tables; for cases that are aimed at them.
SIZES = {"kTaskLimit": 4, "kQueueLimit": 4}
_SETTINGS = (*VALIDATOR, SIZES)
AIMED = len(VALIDATOR)
LIMITED = frozenset(name for setting in _SETTINGS for name in setting)
DECLARED = r"^ *(?:inline |static )?constexpr (\w+) ({}) = ([^;]+);"


def fixed(text: str) -> tuple[str, set[str]]:
    """A source of the checker with its small limits; the limits that it declares."""

    def small(found: re.Match[str]) -> str:
        return f"inline constexpr {found.group(1)} {found.group(2)} = {CHECKER[found.group(2)]};"

    pattern = DECLARED.format("|".join(CHECKER))
    declared = {m.group(2) for m in re.finditer(pattern, text, flags=re.MULTILINE)}
    return re.sub(pattern, small, text, flags=re.MULTILINE), declared


def chosen(text: str) -> tuple[str, set[str]]:
    """A source of the validator in which the variable ``amk_limits`` chooses among the settings; the limits that it declares."""

    def macro(found: re.Match[str]) -> str:
        kind, name, value = found.groups()
        tests = "".join(f"amk_limits == {k} ? {kind}({s[name]}) : " for k, s in enumerate(_SETTINGS) if name in s)
        return f"#define {name} ({tests}{kind}({value}))"

    declared = {m.group(2) for m in re.finditer(DECLARED.format("|".join(sorted(LIMITED))), text, flags=re.MULTILINE)}
    return re.sub(DECLARED.format("|".join(sorted(LIMITED))), macro, text, flags=re.MULTILINE), declared
