"""Tables of the schedules that are aimed at the rules of data, by kind and number; ``CHOSEN`` ones are part of the corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator

from amk_bench.mutation import aimed_data, aimed_more, aimed_useless
from amk_core.schedule.tables import pack

KINDS = {
    "ranges": aimed_data.ranges,
    "grown": aimed_data.grown,
    "tags": aimed_data.tags,
    "host": aimed_data.host,
    "crowd": aimed_more.crowd,
    "pieces": aimed_more.pieces,
    "stretched": aimed_more.stretched,
    "shared": aimed_more.shared,
    "useless": aimed_useless.useless,
}
# Each kills a mutant that no other case notices.
CHOSEN: dict[str, tuple[int, ...]] = {}


def made(kind: str, number: int) -> bytes | None:
    """The tables of a number of a kind; None where ranges leave their buffers."""
    rng = random.Random(f"aimed/{kind}/{number}")
    s = KINDS[kind](rng)
    if s.defects:
        return None
    tables = pack(s)
    return aimed_data.named(rng, tables) if rng.random() < 0.4 or kind == "useless" else tables


def chosen() -> Iterator[bytes]:
    """Those that are part of the corpus."""
    for kind, numbers in CHOSEN.items():
        yield from (tables for number in numbers if (tables := made(kind, number)) is not None)
