"""The operations a task may perform, and what each one touches.

This is the one table of ops: name, code, parameters and *contract*.  A contract derives the footprint of a task from its
parameters alone; the validator rejects a declared footprint that differs, the conformance tests check that the kernels touch
nothing else (contracts.py says what each op touches, footprint.py compares).

Layouts.  ``m = batch * chunk`` rows a step; row r is token ``r % chunk`` of sequence ``r // chunk``.  Query and key heads are
stored pair-interleaved: element pair (2i, 2i+1) of a head is (i, i + head_dim/2) of the HuggingFace layout, so a rotary pair is
adjacent and a tile of any even size is closed under rotation.  Gate and up rows alternate: row 2j is gate j, row 2j+1 is up j.

Ranks.  A rank's memory holds a row for all queries, keys and values of the step, of which it fills its own (``rank_qkv``).
``rank_attn`` takes every ``pieces``-th position for some heads and leaves {maximum, sum, values} in its piece of their rows;
``o_part`` merges the pieces.  Parts: a rank multiplies [k0, k1) of K with columns of the weight that have a buffer of their own,
and leaves its sums in rows [part * m, (part + 1) * m); ``o_sum`` and ``down_sum`` add the n parts of an element to the residual
stream, in a fixed tree.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amk_core.schedule import contracts
from amk_core.schedule.contracts import Contract, Ints

CODES = contracts.CODES
MARKED_VALUES = 4096  # of a normalised row that are in registers, or beside them, at once
MAX_PARTS = 16  # partial sums of an element: places of the tree in which they are added


@dataclass(frozen=True, slots=True)
class OpSpec:
    name: str
    code: int
    params: tuple[str, ...]
    floats: frozenset[str]
    contract: Contract
    weight: str = ""  # canonical name of the weight the op streams, with {layer} and other parameters; "" for none

    def encode(self, params: Mapping[str, Any]) -> list[int]:
        """Parameters as int32 words in table order (floats as their bit pattern)."""
        out = []
        for name in self.params:
            x = params[name]
            if isinstance(x, bool) or not isinstance(x, int | float) or (name not in self.floats and not isinstance(x, int)):
                raise TypeError(f"{name} is {str(x)[:40]!r}, a number is required")
            if name in self.floats:
                out.append(int(struct.unpack("<i", struct.pack("<f", x))[0]))
            elif not -(2**31) <= x < 2**31:
                raise ValueError(f"{name} is {str(x)[:40]}, which does not fit 32 bits")
            else:
                out.append(int(x))
        return out

    def decode(self, words: Sequence[int] | npt.NDArray[np.int32]) -> dict[str, int | float]:
        out: dict[str, int | float] = {}
        for name, w in zip(self.params, words, strict=True):
            out[name] = struct.unpack("<f", struct.pack("<i", int(w)))[0] if name in self.floats else int(w)
        return out


def _spec(name: str, params: str, contract: Contract, floats: str = "", weight: str = "") -> OpSpec:
    return OpSpec(name, CODES[name], tuple(params.split()), frozenset(floats.split()), contract, weight)


_ATTN = "m chunk batch ctx seq kv_head n_heads n_kv group head_dim splits blocks block pos_var layer"
SPECS: tuple[OpSpec, ...] = (
    _spec("opaque", "", lambda p: []),
    _spec("embed", "token table out m chunk feed col0 col1 vocab scale", contracts.embed, "scale"),
    _spec(
        "qkv",
        "h norm_w w cos sin q k v m chunk batch ctx row0 row1 hidden n_heads n_kv head_dim pos_var partial layer packed eps",
        contracts.qkv, "eps", "L{layer}.qkv",
    ),
    _spec("attn", f"q k v part out {_ATTN} split partial packed scale", contracts.attn, "scale"),
    _spec("attn_combine", f"part out {_ATTN}", contracts.attn_combine),
    _spec("o_proj", "x w h out m row0 row1 k layer packed", contracts.o_proj, "", "L{layer}.o"),
    _spec(
        "o_proj_combine",
        "part w h m row0 row1 k chunk batch ctx n_heads n_kv group head_dim splits blocks block pos_var layer",
        contracts.o_proj_combine, "", "L{layer}.o",
    ),
    _spec("gate_up", "h norm_w w act m row0 row1 hidden layer packed eps", contracts.gate_up, "eps", "L{layer}.gate_up"),
    _spec("down_proj", "x w h out m row0 row1 k layer packed", contracts.down_proj, "", "L{layer}.down"),
    _spec("lm_head", "h norm_w w logits amax m row0 row1 tile ring hidden layer eps", contracts.lm_head, "eps", "head"),
    _spec("sample", "logits amax control stop_ids token out stop done m tiles vocab n_stop_ids pos_var", contracts.sample),
    _spec("o_part", "attn w out m row0 row1 k0 k1 head_dim pieces part layer", contracts.o_part, "", "L{layer}.o.{k0}-{k1}"),
    _spec("down_part", "x w out m row0 row1 k0 k1 part layer", contracts.down_part, "", "L{layer}.down.{k0}-{k1}"),
    _spec("o_sum", "parts h out m col0 col1 n layer", contracts.o_sum),
    _spec("down_sum", "parts h out m col0 col1 n layer", contracts.down_sum),
    _spec(
        "rank_qkv", "h norm_w w cos sin q k v m ctx row0 row1 hidden n_heads n_kv head_dim pos_var layer eps",
        contracts.rank_qkv, "eps", "L{layer}.qkv",
    ),
    _spec(
        "rank_attn", "q k v attn m ctx kv_head head heads n_heads n_kv head_dim pieces piece pos_var layer scale",
        contracts.rank_attn, "scale",
    ),
)  # fmt: skip
BY_NAME: Mapping[str, OpSpec] = {s.name: s for s in SPECS}
BY_CODE: Mapping[int, OpSpec] = {s.code: s for s in SPECS}


def near_blocks(head_dim: int) -> int:
    """Blocks of positions that split 0 of a tagged program attends to alone, as near_blocks of vm/numerics.h."""
    return 2 if head_dim > 64 else 1


def markable(rows: int, *sizes: int) -> bool:
    """Whether a step with bf16 weights may hand values on without tags (kernels/marked.cuh): several rows of whole units of 32.

    Args:
        rows: of a step.
        sizes: values of a normalised row, at most MARKED_VALUES; then of the other rows that are multiplied.
    """
    return 1 < rows <= 16 and sizes[0] <= MARKED_VALUES and all(k % 32 == 0 for k in sizes)


def params_of(
    task_op: npt.NDArray[Any], par_off: npt.NDArray[Any], par: npt.NDArray[Any], spec: OpSpec
) -> tuple[Ints, dict[str, Ints]]:
    """(task ids, parameter columns) of every task of one op."""
    ids = np.flatnonzero(task_op == spec.code).astype(np.int64)
    grid = par[par_off[ids][:, None] + np.arange(len(spec.params))] if len(ids) else np.empty((0, len(spec.params)), np.int64)
    return ids, {name: grid[:, j].astype(np.int64) for j, name in enumerate(spec.params)}
