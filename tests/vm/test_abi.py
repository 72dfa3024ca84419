"""vm/abi.h and ops.py say the same."""

from __future__ import annotations

import re
from pathlib import Path

from amk_core.schedule import contracts, ops

ABI = (Path(__file__).parents[2] / "vm" / "abi.h").read_text()


def test_every_op_has_its_code_and_its_parameters_in_order() -> None:
    codes = {m[1]: int(m[2]) for m in re.finditer(r"\bk(\w+) = (\d+)", ABI[ABI.index("enum OpCode") : ABI.index("kOpCount")])}
    lists = {m[1]: re.findall(r"\w+", m[2]) for m in re.finditer(r"namespace (\w+) \{\s*enum \{([^}]*)\}", ABI)}
    for spec in ops.SPECS:
        camel = "".join(part.capitalize() for part in spec.name.split("_"))
        assert codes[camel] == spec.code
        if spec.code:
            assert lists[spec.name] == [*spec.params, "count"]
    assert len(codes) == len(ops.SPECS)


def test_control_words_fit_their_row() -> None:
    words = re.search(r"namespace control \{ enum \{ (.*?), count = (\d+) \}", ABI)
    assert words is not None
    assert words[1].split(", ") == ["temperature", "top_k", "top_p", "seed_lo", "seed_hi"]
    assert int(words[2]) == contracts.CONTROL_WORDS
