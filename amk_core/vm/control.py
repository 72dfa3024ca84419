"""What a launch finds on the card and leaves there: the halt word, the fault report, the launch variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amk_core.schedule import ops
from amk_core.vm import Fault
from amk_core.vm.driver import Device, HostMemory, call
from amk_core.vm.program import FAULT

MAX_VARIABLES = 63  # words of shared memory that the kernels keep for them, less one for the sequence number
NO_HALT = 0xFFFFFFFF
BLOCK = np.dtype([("halt", "<u4"), ("pad", "<u4", 15), ("fault", FAULT), ("variables", "<i4", MAX_VARIABLES + 1)])
_KINDS = {1: "spin-timeout", 2: "token-range", 3: "weight-timeout", 4: "mail-timeout"}


class Control:
    """The block on the card, and the pinned copy that the next launch is given.

    The launch begins with one copy of it, so a captured launch takes whatever stands in the pinned copy when it is replayed.
    """

    def __init__(self, device: Device) -> None:
        self._memory, self._next = device.memory(BLOCK.itemsize), HostMemory(device, BLOCK.itemsize)

    def address(self, field: str) -> int:
        """Where a field lies on the card."""
        return self._memory.address + int(BLOCK.fields[field][1])  # type: ignore[index]

    def arm(self, variables: Sequence[int], number: int) -> None:
        """The next launch: no halt, no fault, its variables, and the sequence number before its first step."""
        block = self._next.bytes.view(BLOCK)[0]
        block["halt"], block["fault"] = NO_HALT, np.zeros((), FAULT)
        block["variables"][: len(variables)] = variables
        block["variables"][len(variables)] = np.uint32(number).view(np.int32)

    def upload(self, stream: Any) -> None:
        self._memory.upload(self._next.bytes, 0, stream)

    def halt(self, stream: Any) -> None:
        """Make every queue of the launch in flight leave."""
        self._memory.upload(np.zeros(1, np.uint32), 0, stream)
        call("cuStreamSynchronize", stream)

    def read(self) -> tuple[bool, Fault | None]:
        """After a launch: whether it was made to leave, and its fault."""
        block = np.zeros(1, BLOCK)
        self._memory.download(block)
        left, f = int(block[0]["halt"]) == 0, block[0]["fault"]
        if not int(f["kind"]):
            return left, None
        kind = _KINDS.get(int(f["kind"]), "unknown")
        return left, Fault(
            kind, int(f["task"]), ops.BY_CODE[int(f["op"])].name, int(f["queue"]), int(f["position"]), int(f["step"]),
            int(f["counter"]) if kind in ("spin-timeout", "mail-timeout") else -1, int(f["row"]) if kind == "token-range" else -1,
            int(f["has"]), int(f["needs"]),
        )  # fmt: skip
