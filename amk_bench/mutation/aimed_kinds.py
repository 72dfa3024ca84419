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
# Each kills a mutant that no other case notices, or did when it was chosen.
# fmt: off
CHOSEN: dict[str, tuple[int, ...]] = {
    "crowd": (
        8, 26, 82, 121, 138, 360, 579, 1656, 1889,
    ),
    "grown": (
        1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 14, 16, 17, 23, 24, 25, 37, 39, 44, 45, 46, 49, 50, 60, 61, 103, 107, 118, 120, 145,
        169, 203, 215, 243, 291, 304, 329, 373, 380, 499, 520, 550, 587, 913, 1079, 2077, 22183,
    ),
    "host": (
        0, 1, 2, 4, 7, 8, 9, 11, 13, 14, 19, 20, 21, 30, 33, 38, 57, 60, 80, 93, 95, 106, 133, 189, 205, 220, 249, 280, 312,
        327, 342, 365, 376, 390, 477, 513, 556, 916, 1226, 1417, 1688, 2225,
    ),
    "pieces": (
        0, 17, 41, 47, 59, 443, 2015, 22040,
    ),
    "ranges": (
        0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 19, 20, 22, 24, 26, 28, 30, 31, 32, 35, 37, 38, 40, 47, 48, 49,
        50, 55, 58, 59, 61, 64, 82, 96, 100, 108, 109, 110, 131, 134, 153, 165, 171, 180, 186, 242, 247, 281, 286, 304, 323,
        364, 386, 528, 540, 912, 979, 1624, 1835, 2046, 22035,
    ),
    "shared": (
        6, 39, 49, 939, 1006,
    ),
    "stretched": (
        58, 64, 199, 281, 324, 501, 568, 1505, 2240, 22008,
    ),
    "tags": (
        0, 1, 2, 3, 5, 6, 7, 16, 17, 24, 26, 32, 34, 37, 40, 43, 55, 69, 70, 71, 74, 83, 90, 97, 121, 122, 127, 154, 155, 171,
        191, 238, 251, 329, 361, 383, 424, 517, 985, 1413, 1500, 1573, 1596,
    ),
    "useless": (
        13, 22, 31, 55, 56, 60, 63, 67, 73, 176, 294, 483, 1066, 1281, 2743, 3214, 3989, 22054, 22527,
    ),
}
# fmt: on


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
