"""The wording of findings: what was seen, what is required, and the nearest repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amk_core.schedule import ops
from amk_core.schedule.ir import Schedule

Raw = Mapping[str, Any]  # a finding as the native validator returns it

_REF: Mapping[str, str] = {
    "steps": "steps is {have}, required is 1 to 2^31 - 1",
    "size": "more tasks or queues than the tables can hold",
    "pool": "pool {have} has a negative size",
    "cluster pool": "pool {have} is to have a part for each cluster of {need} queues; required are a positive cluster,"
    " no per_queue, and a size of whole parts",
    "buffer part": "{buffer}: it begins at byte {have} and ends in another part of its pool; each cluster has {need} bytes",
    "cluster": "{a} reaches {buffer}, which lies in the memory of another cluster",
    "variable": "variable {have}: min is above max, or a bound is out of range",
    "shape": "{buffer}: its shape, element size, kind or lifetime makes no sense",
    "buffer pool": "{buffer}: its pool is not declared",
    "buffer range": "{buffer}: it ends at byte {have} of its pool, which has {need} bytes",
    "address": "{buffer}: it ends beyond byte 2^60 of its pool",
    "queue entry": "queue {need} names task {have}, which does not exist",
    "queued twice": "{a} stands in queue {need} and again in queue {have}; every task stands in exactly one queue, once",
    "not queued": "{a} stands in no queue",
    "wait counter": "{a} waits on counter {have}, which does not exist",
    "wait epoch": "{a} waits with epoch {have}, required is 0 or -1",
    "signal counter": "{a} signals counter {have}, which does not exist",
    "access buffer": "{a} touches buffer {have}, which does not exist",
    "op": "{a}: unknown op code {have}",
    "initial buffer": "initial[{need}] names buffer {have}, which does not exist",
    "stop": "stop names buffer {have} and {a}; both must exist",
    "affine": "{a} {buffer}: a moving range names a variable that does not exist",
    "range": "{a} {access} {buffer} outside its shape (for some step or value of the launch variables)",
}
_COUNT: Mapping[str, str] = {
    "amount": "{a} signals {counter} by {have}, required is 1 or more",
    "per_step": "{counter}: per_step is {need}, its signals add up to {have}",
    "wrap": "{counter}: {have} a step over {need} steps does not fit 31 bits",
    "threshold": "{a} waits {counter} >= {have}, required is 1 to {need} (what one step adds)",
}
_DATA: Mapping[str, str] = {
    "COVER read": "{bytes}: {a} reads{at} what no task certainly wrote before, and it is not initial",
    "COVER poison": "{bytes}: {a} reads{at} data of a buffer of lifetime step that this step has not written (initial data counts"
    " for step 0 only)",
    "COVER tag": "{bytes}: {a} polls{at} for a tag that no task certainly writes",
    "COVER output": "{bytes}: this part of the output is written by no task for certain",
    "COVER dead": "{a}: its results reach no output, kv, token, persistent or host buffer",
    "COVER ring": "{buffer}: {b} writes in step {step_b} a row of this host ring that {a} wrote in step {step_a}",
    "FLOW output": "{bytes}: {a} overwrites{at} this part of the output under another name",
    "FLOW value": "{bytes}: {a} reads{at} the value of {b}, which is not the one it needs",
    "FLOW alias": "{bytes}: {a} reads{at} bytes that {b} wrote last through another buffer",
    "FLOW nothing": "{bytes}: {a} needs{at} a value that no task writes before it and that is not initial",
    "PROXY fence": "{bytes}: {a} reads{at} through the asynchronous proxy what {b} wrote through the generic one, without fence"
    ' "proxy.async"',
    "PROXY wait_group": '{bytes}: {a} stores asynchronously and is followed without fence "bulk.wait_group"',
    "PROXY read wait": '{bytes}: {a} stores asynchronously; "bulk.wait_group.read" says only that the source was read, required is'
    ' "bulk.wait_group"',
    "RO write": "{bytes}: {a} writes a read-only buffer",
    "RO alias": "{bytes}: {a} writes these bytes of a read-only buffer through another buffer",
    "STOP writer": "{buffer}: {b} writes the stop buffer; only {a} may",
    "STOP unwritten": "{buffer}: {a} does not certainly write the stop buffer",
    "STOP order": "{buffer}: the waits of {b} on the step before do not include {a}, which decides whether there is a next step",
    "TAG alias": "{bytes}: {a} and {b} reach tagged bytes under two names or without tags",
    "TAG alignment": "{buffer}: tagged elements are 8-byte {{value, tag}} pairs (dtype tag64, offset divisible by 8)",
    "TAG two writers": "{bytes}: {b} and {a} write the same tag in step {step_a}",
    "TAG overwrite": "{bytes}: {b} of step {step_b} overwrites what {a} of step {step_a} still uses; nothing orders them",
}
_REPAIRS: Mapping[str, str] = {
    "PROXY fence": 'fences: ["proxy.async"] on T{a}',
    "PROXY wait_group": 'fences: ["bulk.wait_group"] on T{a}',
    "PROXY read wait": 'fences: ["bulk.wait_group"] on T{a}',
    "COUNT per_step": "per_step: {have}",
}


class Wording:
    """Names of tasks, buffers and counters of one schedule, and sentences made of them."""

    def __init__(self, schedule: Schedule) -> None:
        self.s = schedule
        self._where: dict[int, tuple[int, int]] | None = None

    def position(self, task: int) -> tuple[int, int] | None:
        """(queue, position) of a task."""
        if self._where is None:
            self._where = {t: (q, j) for q in range(self.s.n_queues) for j, t in enumerate(self.s.queue(q))}
        return self._where.get(task)

    def place(self, task: int) -> str:
        at = self.position(task)
        return "" if at is None else f"SM{at[0]}#{at[1]}"

    def task(self, task: int) -> str:
        if not 0 <= task < self.s.n_tasks:
            return f"T{task}"
        c = self.s.columns
        code = int(c.task_op[task])
        spec = ops.BY_CODE.get(code)
        if not code or spec is None:
            return f"T{task}"
        words = spec.decode(c.par[c.par_off[task] : c.par_off[task + 1]])
        return f"T{task} L{words['layer']}.{spec.name}" if "layer" in words else f"T{task} {spec.name}"

    def buffer(self, buffer: int) -> str:
        return self.s.buffers[buffer].name if 0 <= buffer < len(self.s.buffers) else f"buffer {buffer}"

    def finding(self, f: Raw) -> tuple[str, str | None]:
        """(message, repair)."""
        if f["rule"] == "RACE":
            return self._race(f)
        if f["rule"] == "LIVE":
            return self._deadlock(f)
        a, b = (f"{self.task(f[k])} ({self.place(f[k])})" if self.place(f[k]) else self.task(f[k]) for k in ("a", "b"))
        buffer = self.buffer(f["buffer"])
        access = ("reads", "writes", "initial")[f["have"]] if f["what"] in ("range", "affine") and 0 <= f["have"] < 3 else ""
        if access == "initial":
            a = f"initial[{f['need']}]"
        if f["what"] == "undecided":
            text = f"{buffer}[{f['lo']}:{f['hi']}): {a}: undecided; moving ranges or variables beyond the budget of the exact check"
            return f"{f['rule']} {text}", None
        table = {"REF": _REF, "COUNT": _COUNT}.get(f["rule"])
        key = f["what"] if table is not None else f"{f['rule']} {f['what']}"
        if key == "buffer range" and f["need"] < 0:  # an unbounded pool
            key = "address"
        text = (table or _DATA)[key].format(
            a=a, b=b, buffer=buffer, access=access, have=f["have"], need=f["need"], counter=f"c{f['counter']}",
            bytes=f"{buffer}[{f['lo']}:{f['hi']})", step_a=f["step_a"], step_b=f["step_b"],
            at=f" in step {f['step_a']}" if self.s.steps > 1 else "",
        )  # fmt: skip
        repair = _REPAIRS.get(f"{f['rule']} {f['what']}")
        message = f"{f['rule']} {text}"
        if f["undecided"]:
            message += "\n  undecided: the order within reach of the budget does not settle it"
        if repair is not None:
            repair = repair.format(a=f["a"], have=f["have"])
            message += f"\n  nearest repair: {repair}"
        return message, repair

    def _race(self, f: Raw) -> tuple[str, str | None]:
        verb_a, verb_b = {"RAW": ("writes", "reads"), "WAR": ("reads", "writes"), "WAW": ("writes", "writes")}[f["what"]]
        steps = [f" step {f[k]}" if self.s.steps > 1 else "" for k in ("step_a", "step_b")]
        one, other = (
            f"{self.task(f[k])} {verb} ({self.place(f[k])}{step})"
            for k, verb, step in zip("ab", (verb_a, verb_b), steps, strict=True)
        )
        lines = [f"RACE {f['what']} {self.buffer(f['buffer'])}[{f['lo']}:{f['hi']}): {one} vs {other}"]
        repair = None
        if f["undecided"]:
            lines.append("  undecided: no order was found, and the budget ended before a run that shows the overlap")
        if f["counter"] >= 0 and f["need"] > 0 and f["need"] < f["have"] and f["step_a"] == f["step_b"]:
            lines.append(f"  no order: T{f['b']} waits c{f['counter']} >= {f['need']} of {f['have']}; reachable without T{f['a']}")
            repair = f"c{f['counter']} >= {f['have']}"
        elif f["counter"] >= 0:
            repair = f"T{f['b']} waits c{f['counter']} >= {f['have']}"
            if f["step_a"] != f["step_b"]:
                repair += " of the step before"
        if "completed" in f:
            lines.append(
                f"  witness: run all except {{T{f['a']}, T{f['b']}}}: both enabled, queues completed {_short(f['completed'])}"
            )
        if repair:
            lines.append(f"  nearest repair: {repair}")
        return "\n".join(lines), repair

    def _deadlock(self, f: Raw) -> tuple[str, str | None]:
        parts = []
        chain = [f["chain"][k : k + 6] for k in range(0, len(f["chain"]), 6)]
        for q, pos, task, counter, need, have in chain:
            what = f"c{counter} >= {need} (has {have})" if counter >= 0 else f"for {need} tagged writes (has {have})"
            parts.append(f"SM{q}#{pos} {self.task(task)} waits {what}")
        return "DEADLOCK every run stops here: " + ", behind which ".join(parts), None


def _short(numbers: list[int], most: int = 16) -> str:
    text = ", ".join(str(n) for n in numbers[:most])
    return f"[{text}, ...]" if len(numbers) > most else f"[{text}]"
