"""The choices that lowering leaves open.  Each field changes the packed tables; none changes a bit of the result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

Placement = Literal["blocked", "strided", "rotated"]
Dependencies = Literal["phase", "head"]
Handoff = Literal["auto", "counter", "tagged"]


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How one model step is cut into tasks and laid on queues.

    Attributes:
        tiles_per_queue: tiles of each layer matrix per queue (1: as many tiles as queues).
        head_tiles_per_queue: the same for the LM head.
        row_align: tile boundaries are multiples of this many output rows (even, so that rotary pairs stay together).
        placement: ``blocked`` gives a queue neighbouring tiles, ``strided`` deals them in turn, ``rotated`` deals them in turn
            and lets the next phase start where the last one stopped, so that left-over tiles do not always meet the same queue.
        fuse_qkv: cut the query, key and value rows as one matrix; otherwise each is spread over all queues.
        fuse_combine: every output-projection tile merges the attention partials itself (5 hops a layer), where they fit its shared
            memory and, in ``fast`` on a card, a step has fewer than 16 tokens of a sequence; otherwise separate tasks do it once
            (6 hops).
        fuse_argmax: LM-head tiles leave their maximum for the sampler; otherwise the sampler scans all logits.
        attn_splits: tasks an attention head group is split into along the context; 0: as many as fill the queues.
        dependencies: ``phase``: attention waits for all of QKV; ``head``: each head group starts as soon as its own rows are
            there, while other queues still compute theirs (pipelining inside a step).
        handoff: how activations reach the next phase. ``counter``: the phase is joined by a counter, its readers wait for all of
            it. ``tagged``: every value carries the number of its step and readers poll the values themselves; for fast decoding,
            where all rows of a step fit beside the weights, other programs use counters. ``auto``: tagged on a GPU.
        embed_tiles: column tiles of the embedding rows; tagged decoding has one a sequence at least.
        sampler_queue: queue that samples, counted from the end (0: the last one).
    """

    tiles_per_queue: int = 1
    head_tiles_per_queue: int = 1
    row_align: int = 8
    placement: Placement = "rotated"
    fuse_qkv: bool = True
    fuse_combine: bool = True
    fuse_argmax: bool = True
    attn_splits: int = 0
    dependencies: Dependencies = "phase"
    handoff: Handoff = "auto"
    embed_tiles: int = 1
    sampler_queue: int = 0

    def __post_init__(self) -> None:
        limits = {
            "tiles_per_queue": (1, 64), "head_tiles_per_queue": (1, 1024), "row_align": (2, 4096),
            "attn_splits": (0, 4096), "embed_tiles": (1, 1024), "sampler_queue": (0, 1023),
        }  # fmt: skip
        for name, (lo, hi) in limits.items():
            x = getattr(self, name)
            if isinstance(x, bool) or not isinstance(x, int) or not lo <= x <= hi:
                raise ValueError(f"ScheduleConfig.{name} is {x!r}, required is an integer from {lo} to {hi}")
        if self.row_align % 2:
            raise ValueError(f"ScheduleConfig.row_align is {self.row_align}, required is an even number (rotary pairs)")
        for name, allowed in (
            ("placement", get_args(Placement)), ("dependencies", get_args(Dependencies)), ("handoff", get_args(Handoff)),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"ScheduleConfig.{name} is {getattr(self, name)!r}, required is one of {', '.join(allowed)}")
        for name in ("fuse_qkv", "fuse_combine", "fuse_argmax"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"ScheduleConfig.{name} is {getattr(self, name)!r}, required is true or false")

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return f"ScheduleConfig({', '.join(changed)})"

    @classmethod
    def parse(cls, settings: list[str]) -> ScheduleConfig:
        """From ``key=value`` texts, as the command line gives them.

        Raises:
            ValueError: unknown key or a value of the wrong kind; the message lists the keys.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for s in settings:
            key, sep, text = s.partition("=")
            if not sep or key not in fields:
                raise ValueError(f"{s!r} is not KEY=VALUE with a known key; known are {', '.join(fields)}")
            default = fields[key].default
            if isinstance(default, bool):
                if text.lower() not in ("true", "false", "1", "0"):
                    raise ValueError(f"{key} is {text!r}, required is true or false")
                values[key] = text.lower() in ("true", "1")
            elif isinstance(default, int):
                try:
                    values[key] = int(text)
                except ValueError:
                    raise ValueError(f"{key} is {text!r}, required is an integer") from None
            else:
                values[key] = text
        return cls(**values)
