"""Cases aimed at single places that no other schedule reached: which values of variables are tried, proofs over steps,
windows of tags, half bytes of initial data, and what the search for clocks leaves open.

Each states the rules that it breaks; those of ``HALF`` are labelled by hand, because the oracle looks at bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from amk_bench.adversary.net import Net, access, affine
from amk_bench.mutation.aimed_model import BROKEN_OFF, FEW, ONE, WRITTEN_OUT, Aimed, changed, made, tag_column, unsure

LONG = 2**20  # steps: too many to be written out
NAME, OTHER_NAME = 70_000, 70_001  # of values


def _variables(n: Net, **variables: tuple[int, int]) -> None:
    n.extra["variables"] = {name: {"count": 1, "min": lo, "max": hi} for name, (lo, hi) in variables.items()}


def corners() -> Iterator[Aimed]:
    """One element is missing, of more assignments than are tried: both variables greatest, or one of them greatest or second."""
    for hole in ((5, 5), (5, 0), (1, 0)):
        n = Net(1)
        _variables(n, p=(0, 5), q=(0, 5))
        x = n.buffer(6, 6)
        n.initial += [access(x, (c, c + 1), (r, r + 1)) for r, c in itertools.product(range(6), repeat=2) if (r, c) != hole]
        n.task(0, [access(x, affine(0, 1, "q[0]"), affine(0, 1, "p[0]"))])
        yield made(n, "COVER", settings=(0, FEW))


def fifth() -> Iterator[Aimed]:
    """Of five variables only the first four are also tried one at a time."""
    for k in (3, 4):
        n = Net(1)
        _variables(n, **{name: (0, 5) for name in "pqrst"})
        x = n.buffer(1, 30)
        n.initial += [access(x, ONE, (0, 6 * k + 1)), access(x, ONE, (6 * k + 2, 30))]
        n.task(0, [access(x, ONE, affine(0, 1, f"{name}[0]", add=6 * j)) for j, name in enumerate("pqrst")])
        yield made(n, "COVER", settings=(0, FEW))


def much() -> Iterator[Aimed]:
    """Six assignments times as many accesses as are looked at under the small limits, and one more."""
    for accesses in (39, 40):
        n = Net(1)
        _variables(n, p=(0, 5), q=(0, 5))
        x = n.buffer(6, 6)
        n.initial.append(access(x, (0, 6), (0, 5)))
        n.task(0, [access(x, affine(0, 1, "q[0]"), affine(0, 1, "p[0]"))])
        for _ in range(accesses - 1):
            n.task(0, [access(x, ONE)])
        yield made(n, "COVER", settings=(0, FEW))


def no_writer() -> Iterator[Aimed]:
    """Tags on the bytes of a range that moves write nothing into it."""
    n = Net(1)
    _variables(n, p=(0, 1))
    tag, x = tag_column(n, 2, offset=0), n.buffer(2, 2, lifetime="persistent", offset=0)
    n.task(0, [], [access(tag, ONE, (0, 2))])
    n.task(0, [access(x, ONE, affine(0, 1, "p[0]"))])
    yield made(n, "TAG", "COVER")


def initial_ranges() -> Iterator[Aimed]:
    """Initial data whose extent is a variable, or wraps, or comes in two halves."""
    n = Net(1)  # through another name with tags: long enough, though it would not be were the variable 0
    _variables(n, p=(0, 1), q=(2, 3))
    x = n.buffer(2, 3, lifetime="persistent", offset=0)
    n.initial.append(access(tag_column(n, 3, offset=0), ONE, affine(0, {"base": "q[0]"})))
    n.task(0, [access(x, affine(0, 1, "p[0]"), affine(0, 1, "p[0]"))])
    yield made(n)
    n = Net(1)  # for one value it wraps, and ends before what is read
    _variables(n, p=(3, 4))
    x = n.buffer(1, 6)
    n.initial.append(access(x, ONE, affine(0, 3, "p[0]", mod=4)))
    n.task(0, [access(x, ONE, (5, 6))])
    yield made(n, "COVER")
    n = Net(1, LONG)  # two rows, read by columns that move
    _variables(n, p=(0, 3))
    x = n.buffer(4, 2, lifetime="persistent")
    n.initial += [access(x, (0, 4), (0, 1)), access(x, (0, 4), (1, 2))]
    n.task(0, [access(x, affine(0, 1, "p[0]"), (0, 2))])
    yield made(n)


def backwards() -> Iterator[Aimed]:
    """A range that grows forwards, read backwards from where it began."""
    n = Net(1, 3)
    x = n.buffer(1, 5, lifetime="persistent")
    n.task(0, [], [access(x, ONE, affine(1, add=2))])
    n.task(0, [access(x, ONE, affine(-1, {"stride": 1, "add": 1}, add=2))])
    yield made(n, "COVER")


def exhausted() -> Iterator[Aimed]:
    """A wait that holds for sure in the last steps only, because then nobody has steps left to run ahead."""
    n = Net(3, 3)
    c = n.counter()
    x = n.buffer(1, 4, lifetime="persistent")
    n.task(0, signals=[(c, 1)])
    n.task(1, [], [access(x, ONE, affine(1))], [], [(c, 1)])
    n.task(2, [access(x, ONE, affine(0, {"stride": 1, "add": 0}))], [], [(c, 1)])
    yield made(n, "RACE", "COVER")


def never_both() -> Iterator[Aimed]:
    """Two that may run at once where they do not meet; where they meet, in the last step, nobody can run ahead."""
    for moves in ("writer", "reader"):
        n = Net(3, 2)
        c, d = n.counter(), n.counter()
        x = n.buffer(1, 2, lifetime="persistent", filled=True)
        rows: tuple[Any, Any] = (affine(1), (1, 2)) if moves == "writer" else ((1, 2), affine(1))
        n.task(0, signals=[(c, 1)])
        n.task(1, [], [access(x, ONE, rows[0])], [(d, 1, -1)], [(c, 2)])
        n.task(2, [access(x, ONE, rows[1])], [], [(c, 2)], [(d, 1)])
        yield made(n)
        yield unsure(n, WRITTEN_OUT)


def behind_the_last() -> Iterator[Aimed]:
    """A reader follows the writer of the step before, because nobody can run ahead; its queue could go on behind the last step."""
    n = Net(3, 2)
    c, d = n.counter(), n.counter()
    x = n.buffer(1, lifetime="persistent", filled=True)
    n.task(0, signals=[(c, 1)])
    n.task(1, [], [access(x, ONE)], [(d, 1)], [(c, 2)])
    n.task(2)
    n.task(2, [access(x, ONE)], [], [(c, 3, -1)], [(d, 1)])
    yield made(n)
    yield unsure(n, WRITTEN_OUT)


def bounds() -> Iterator[Aimed]:
    """Bounds of a counter with producers on two queues, of which one is a step behind."""
    n = Net(2, 5)
    c = n.counter()
    x = n.buffer(1, 5, lifetime="persistent", filled=True)
    n.task(0)
    n.task(1, [], [access(x, ONE, affine(1))], [(c, 1, -1)], [(c, 1)])
    n.task(0, [access(x, ONE, affine(1))], [], [(c, 1)])
    n.task(1)
    n.task(0, signals=[(c, 1)])
    n.task(1)
    n.task(0)
    yield made(n, settings=(0, FEW))


def given_up() -> Iterator[Aimed]:
    """Within one step a clock falls once a round, for more rounds than the small limits allow, and never below what is needed."""
    chain = 5
    n = Net(chain + 2)
    first, falls = n.counter(), [n.counter() for _ in range(chain)]
    x = n.buffer(1)
    n.task(0, [], [access(x, ONE)], [], [(first, 1)])
    n.task(0)
    n.task(0, signals=[(c, 1) for c in reversed(falls)])
    for k, c in enumerate(falls):  # in the replay the last of the chain comes first
        n.task(2 + k, [access(x, ONE)] if k == chain - 1 else [], [], [(c, 1)], [(d, 1) for d in falls[k + 1 : k + 2]])
    for _ in range(4):
        n.task(1)
    n.task(1, waits=[(first, 1)], signals=[(falls[0], 1)])
    yield made(n)
    yield unsure(n, BROKEN_OFF)


def task_zero() -> Iterator[Aimed]:
    """The first task is the one that writes an output under another name, before the pieces become too many."""
    n = Net(1)
    _variables(n, w=(0, 3))
    y = n.buffer(1, 8, kind="output", lifetime="persistent", offset=0)
    z = n.buffer(2, 4, lifetime="persistent", offset=0)
    n.task(0, [], [access(y, ONE, (0, 8)), access(z, ONE, affine(0, {"base": "w[0]", "add": 1}))])
    yield made(n, "FLOW", settings=(0, BROKEN_OFF))


def overwritten_first() -> Iterator[Aimed]:
    """A value of an op that nobody needs, overwritten by a task that keeps what it writes, before many read that."""
    n = Net(1)
    x, y = n.buffer(1, filled=True), n.buffer(1, kind="output", lifetime="persistent")
    for _ in range(2):
        n.task(0, [], [access(x, ONE)])
    for _ in range(9):
        n.task(0, [access(x, ONE)])
    n.task(0, [], [access(y, ONE)])
    yield changed(n, [("task_op", 0, 1)], "COVER")


def tag_windows() -> Iterator[Aimed]:
    """Rings of tags: what repeats, after how many steps, and what never does."""
    for stride, mod in ((1, 25), (4, 12)):
        n = Net(1, 200)
        x = tag_column(n, mod)
        n.task(0, [], [access(x, ONE, affine(stride, mod=mod))])
        n.task(0, [access(x, ONE, affine(stride, mod=mod))])
        yield made(n)
    n = Net(1, 8)  # read further in each step
    x = tag_column(n, 9)
    n.task(0, [], [access(x, ONE, (0, 6))])
    n.task(0, [access(x, ONE, affine(1, {"stride": 1, "add": 1}, mod=2))])
    yield made(n, "COVER")


def unread() -> Iterator[Aimed]:
    """A tag that nobody reads, overwritten in the next step, in no order, by one that is read."""
    n = Net(2, 2)
    x = tag_column(n, 3)
    n.task(0, [], [access(x, ONE, affine(1, add=1))])
    n.task(1, [], [access(x, ONE, affine(1))])
    n.task(1, [access(x, ONE, affine(1))])
    yield made(n, "TAG")


def perhaps_of_this_step() -> Iterator[Aimed]:
    """A tag that is perhaps not written, behind another value of the step before."""
    n = Net(1, 2)
    x = tag_column(n, 3)
    n.task(0, [], [access(x, ONE, affine(1, add=1))])
    n.task(0, [], [access(x, ONE, affine(1), maybe=True)])
    n.task(0, [access(x, ONE, affine(1))])
    yield changed(n, [("acc_label", k, name) for k, name in enumerate((NAME, OTHER_NAME, OTHER_NAME))], "COVER")


def in_turn() -> Iterator[Aimed]:
    """Two write a tag in turn, of which one may not wait for those that read what the other one wrote before."""
    for waits in (True, False):
        n = Net(10, 4)
        x = tag_column(n, 2, filled=True)
        read, first, second = (n.counter() for _ in range(3))
        for k in range(8):
            n.task(k, [access(x, ONE, epoch=-1)], [], [(first, 1, -1), (second, 1, -1)], [(read, 1)])
        n.task(8, [], [access(x, ONE, affine(1, mod=2))], [(read, 8), (second, 1, -1)], [(first, 1)])
        also = [(read, 8)] if waits else []
        n.task(9, [], [access(x, ONE, affine(1, mod=2, add=1))], [*also, (first, 1, -1)], [(second, 1)])
        yield made(n, *([] if waits else ["TAG"]))


def half_bytes() -> Iterator[Aimed]:
    """All of a value is initial through another name of it, or all but half a byte."""
    for half in (1, 2):
        n = Net(1)
        x, z = (n.buffer(k, dtype=dtype, lifetime="persistent", offset=0) for k, dtype in ((1, "u8"), (2, "i4")))
        n.initial.append(access(z, (0, half)))
        n.task(0, [access(x, ONE)])
        yield made(n, *(["COVER"] if half == 1 else []))
    for half in (15, 16):
        n = Net(1)
        x, z = tag_column(n, offset=0), n.buffer(16, dtype="i4", lifetime="persistent", offset=0)
        n.initial.append(access(z, (0, half)))
        n.task(0, [access(x, ONE, epoch=-1)])
        yield made(n, *(["COVER"] if half == 15 else []))


def beside() -> Iterator[Aimed]:
    """Half a byte that stands still, beside one that moves and is written by an op that keeps nothing."""
    n = Net(1, LONG)
    _variables(n, p=(0, 2))
    x = n.buffer(4, dtype="i4")
    n.task(0, [], [access(x, affine(0, 1, "p[0]"))])
    n.task(0, [], [access(x, (3, 4))])
    n.task(0, [access(x, (3, 4))])
    yield changed(n, [("task_op", 0, 1)])


def of_other_names() -> Iterator[Aimed]:
    """What a read of a name need not fear, in more steps than are written out: a read without one, and a later write of another."""
    for reader in (True, False):
        n = Net(1, LONG)
        x = n.buffer(1, LONG + 1, lifetime="persistent")
        n.task(0, [], [access(x, ONE, affine(1, add=1))])
        n.task(0, [access(x, ONE, affine(1, add=1))])
        other = access(x, ONE, affine(1, add=int(reader)))
        n.task(0, [other] if reader else [], [] if reader else [other])
        yield changed(n, [("acc_label", k, name) for k, name in enumerate((NAME, NAME, -1 if reader else OTHER_NAME))])


SINGLE: tuple[Callable[[], Iterator[Aimed]], ...] = (
    corners, fifth, much, no_writer, initial_ranges, backwards, exhausted, never_both, behind_the_last, bounds, given_up, task_zero,
    overwritten_first, tag_windows, unread, perhaps_of_this_step, in_turn, of_other_names,
)  # fmt: skip
HALF = (half_bytes, beside)
