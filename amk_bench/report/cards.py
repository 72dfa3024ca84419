"""The cards of the fleet, and which of them a measured device is."""

from __future__ import annotations

import re

from amk_core.graph import GRAPH_SHAPES
from amk_core.targets import PROFILES, Target

TITLES = {
    "l4": "NVIDIA L4", "l40s": "NVIDIA L40S", "a10g": "NVIDIA A10G", "a100": "NVIDIA A100", "h100": "NVIDIA H100",
    "h200": "NVIDIA H200", "rtx5090": "GeForce RTX 5090",
}  # fmt: skip


def card_of(device: str) -> Target | None:
    """The fleet's card that a driver calls ``device`` ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"); None for any other one."""
    words = set(re.findall(r"[a-z0-9]+", device.lower().replace("rtx ", "rtx")))
    return next((t for t in PROFILES if t.name in words), None)


def same(device: str, other: str) -> bool:
    """Whether two names are of one device: the same name, or the same card of the fleet."""
    return device == other or ((card := card_of(device)) is not None and card is card_of(other))


def title(card: Target) -> str:
    return TITLES.get(card.name, card.name)


def missing(devices: list[str]) -> list[Target]:
    """The cards that none of the devices is."""
    have = {card.name for device in devices if (card := card_of(device)) is not None}
    return [t for t in PROFILES if t.name not in have]


def command(card: Target) -> str:
    """What fills the card's cells, run on a machine that has it or beside a cluster that does."""
    return f"amk fleet run --devices {card.name} --batches 1,4,16 --out {card.name}"


def size(model: str) -> int:
    """Parameters of a public shape, by which tables and charts are ordered; 0 for any other model."""
    return GRAPH_SHAPES[model].parameters() if model in GRAPH_SHAPES else 0
