"""QuantFormat: how the values of one weight matrix are stored in 8 or 4 bits.  Pure description; depends on nothing.

A row of K values is cut into groups of ``group`` neighbours (0: the whole row is one group).  Where the group does not divide K,
the last group is shorter: K = 576 in groups of 128 is four groups of 128 and one of 64.  A group has one scale, and two of the
kinds an offset beside it:

* ``sym``: value = scale * code, code a signed integer around 0
* ``zero``: value = scale * (code - zero), zero an integer (the layout of GPTQ and AWQ)
* ``min``: value = scale * code + minimum (the layout of GGUF Q4_1)

Formats of 8 bits exist once more with activations of 8 bits (``-a8``): the same codes, multiplied as integers.

The name of a format is also the dtype of a quantised weight buffer in a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["sym", "zero", "min"]
ScaleDtype = Literal["f16", "bf16"]

KINDS: tuple[Kind, ...] = ("sym", "zero", "min")
SCALE_DTYPES: tuple[ScaleDtype, ...] = ("f16", "bf16")
GROUPS: Mapping[int, tuple[int, ...]] = MappingProxyType({8: (0, 32, 64, 128), 4: (32, 64, 128)})

GROUP_ROWS = 8  # rows that are stored together: the columns of one tensor-core product
UNIT_BYTES = 512  # codes of 8 rows: one 16-byte load for each of 32 lanes


class QuantError(ValueError):
    """A format that does not exist, or values that it cannot hold; the message says what was seen, where, and what to do."""


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One storage format.

    Attributes:
        bits: 8 or 4.
        group: values of K that share a scale: 32, 64 or 128; 0 (8 bits only): the whole row.
        kind: ``sym``, or for 4 bits also ``zero`` and ``min``.
        scale: dtype of scales and offsets.
        activations: 8 (8 bits only): what it is multiplied with is rounded to 8 bits, each row with a scale of its own; 0: as the
            mode rounds it.
    """

    bits: int
    group: int
    kind: Kind = "sym"
    scale: ScaleDtype = "f16"
    activations: Literal[0, 8] = 0

    def __post_init__(self) -> None:
        if self.bits not in GROUPS:
            raise QuantError(f"bits is {self.bits!r}; required is 8 or 4")
        if self.group not in GROUPS[self.bits]:
            groups = ", ".join("0 (a whole row)" if g == 0 else str(g) for g in GROUPS[self.bits])
            raise QuantError(f"group is {self.group!r}; required for {self.bits} bits is one of {groups}")
        if self.kind not in KINDS or (self.bits == 8 and self.kind != "sym"):
            raise QuantError(f"kind is {self.kind!r}; required is sym" + ("" if self.bits == 8 else ", zero or min"))
        if self.scale not in SCALE_DTYPES:
            raise QuantError(f"scale is {self.scale!r}; required is f16 or bf16")
        if self.activations not in ((0, 8) if self.bits == 8 else (0,)):
            raise QuantError(f"activations is {self.activations!r}; required is 0" + (" or 8" if self.bits == 8 else " for 4 bits"))

    @property
    def name(self) -> str:
        """``int8``, ``int8-g128``, ``int4-g32-min``, and so on; behind it ``-a8`` for activations of 8 bits, ``-bf16`` for bf16
        scales.
        """
        parts = [f"int{self.bits}", f"g{self.group}" if self.group else "", self.kind if self.kind != "sym" else ""]
        parts += ["a8" if self.activations else ""]
        return "-".join(p for p in (*parts, self.scale if self.scale != "f16" else "") if p)

    def __str__(self) -> str:
        return self.name

    @property
    def code_range(self) -> tuple[int, int]:
        """Least and largest code: signed for 8 bits, 0 to 15 for 4 bits (``sym`` stores code + 8)."""
        return (-128, 127) if self.bits == 8 else (0, 15)

    @property
    def midpoint(self) -> int:
        """The code of the value 0 in a ``sym`` format."""
        return 0 if self.bits == 8 else 8

    def groups(self, k: int) -> int:
        """Groups of a row of K values; the last one may be shorter."""
        return 1 if self.group == 0 else -(-k // self.group)

    # -- the packed layout
    @property
    def unit_k(self) -> int:
        """Values of K in a unit: 64 for 8 bits, 128 for 4."""
        return UNIT_BYTES * 8 // (GROUP_ROWS * self.bits)

    @property
    def record_k(self) -> int:
        """Values of K in a record: the units of one group, or one unit where the group is smaller or a whole row."""
        return max(self.unit_k, self.group)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the scale of one row and group, with its offset where the kind has one."""
        return 2 if self.kind == "sym" else 4

    @property
    def record_bytes(self) -> int:
        """Codes of 8 rows by ``record_k``, and behind them their scales (none of a whole-row format)."""
        codes = self.record_k // self.unit_k * UNIT_BYTES
        return codes + (self.record_k // self.group * GROUP_ROWS * self.entry_bytes if self.group else 0)

    def group_bytes(self, k: int) -> int:
        """Bytes of 8 rows of K values."""
        return -(-k // self.record_k) * self.record_bytes + (0 if self.group else GROUP_ROWS * self.entry_bytes)

    def tile_bytes(self, rows: int, k: int) -> int:
        """Bytes of a tile of ``rows`` by K: whole groups of 8 rows and whole records, padded by zeros."""
        return -(-rows // GROUP_ROWS) * self.group_bytes(k)

    @staticmethod
    def parse(text: str) -> QuantFormat:
        """The format of a name.

        Raises:
            QuantError: no format has this name; the message lists them.
        """
        try:
            return BY_NAME[text]
        except KeyError:
            plain = ", ".join(name for name in BY_NAME if not name.endswith("bf16"))
            raise QuantError(f"there is no format {text!r}; there are {plain}, and each with -bf16 for bf16 scales") from None


def _all() -> tuple[QuantFormat, ...]:
    """All formats.  The order is part of the binary tables: ``amk_core/native/quant.hpp`` decodes it."""
    out = []
    for scale in SCALE_DTYPES:
        out += [QuantFormat(8, g, "sym", scale) for g in GROUPS[8]]
        out += [QuantFormat(4, g, kind, scale) for g in GROUPS[4] for kind in KINDS]
    out += [QuantFormat(8, g, "sym", scale, 8) for scale in SCALE_DTYPES for g in GROUPS[8]]
    return tuple(out)


FORMATS: tuple[QuantFormat, ...] = _all()
BY_NAME: Mapping[str, QuantFormat] = MappingProxyType({f.name: f for f in FORMATS})
