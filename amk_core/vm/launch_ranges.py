"""Steps and launch variables that the verdict on a schedule holds for; a launch outside them is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amk_core.schedule import ops
from amk_core.schedule.ir import Schedule


class LaunchRanges:
    """The declared ranges of a schedule, and the positions that its KV buffers have.

    Args:
        sequences, chunk: sequences of a step, and tokens of each.
    """

    def __init__(self, s: Schedule, sequences: int, chunk: int) -> None:
        self._steps, self._sequences, self._chunk = s.steps, sequences, chunk
        self._declared = [(v.min, v.max) for v in s.variables for _ in range(v.count)]
        c, self._geometries = s.columns, set[tuple[int, int, int]]()
        for name in ("qkv", "attn", "rank_qkv", "rank_attn"):
            _, p = ops.params_of(c.task_op, c.par_off, c.par, ops.BY_NAME[name])
            partial = p.get("partial", np.ones_like(p["ctx"]))  # ranks leave the rows of a sequence that has its tokens alone
            self._geometries |= set(zip(p["pos_var"].tolist(), p["ctx"].tolist(), partial.tolist(), strict=True))

    def check(self, steps: int, variables: Sequence[int]) -> None:
        """Raises ValueError: a number outside its range, or tokens that do not fit; the message says which."""
        if not 1 <= steps <= self._steps:
            raise ValueError(f"steps is {steps}, required is 1 to {self._steps}")
        if len(variables) != len(self._declared):
            raise ValueError(f"{len(variables)} launch variables given, required are {len(self._declared)}")
        for i, (x, (lo, hi)) in enumerate(zip(variables, self._declared, strict=True)):
            if not lo <= x <= hi:
                raise ValueError(f"launch variable {i} is {x}, its declared range is {lo} to {hi}")
        width = steps * self._chunk
        for pos_var, ctx, partial in self._geometries:
            for seq in range(self._sequences):
                p0, n = int(variables[pos_var + seq]), int(variables[pos_var + self._sequences + seq])
                tokens = min(n, width)
                if p0 < 0 or n < 0 or p0 + tokens > ctx:
                    raise ValueError(f"sequence {seq}: {n} tokens from position {p0} do not fit {ctx} positions")
                if partial == 0 and tokens < width:
                    raise ValueError(
                        f"sequence {seq} has {n} active tokens, but the schedule promises a row for each of {width}; "
                        "launch fewer steps, or lower with partial accesses"
                    )
