"""Waits, signals, spin bounds, aborts and everything that must be refused: a VM never hangs and never guesses."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk_core.schedule import tables, validate
from amk_core.schedule.build import Builder
from amk_core.schedule.ir import Kind, Lifetime, Variable
from amk_core.vm import CertificateRefused, LaunchAborted, VmFault
from amk_core.vm.cpu import CpuVM

COLS = 8


class Relay:
    """Hand-built: each task adds the identity times x to h, so h counts how often it ran."""

    def __init__(self, queues: int, steps: int = 3) -> None:
        self.b, self.steps = Builder(queues), steps
        self.x = self.b.buffer("x", Kind.ACTIVATION, "f32", (1, COLS), "main", Lifetime.PERSISTENT, initial=True)
        self.h = self.b.buffer("h", Kind.ACTIVATION, "f32", (1, COLS), "main", Lifetime.PERSISTENT, initial=True)
        self.w = self.b.buffer("L0.down", Kind.WEIGHT, "f32", (COLS, COLS), "weights")

    def task(self, queue: int, waits: Any, signals: Any) -> int:
        p = {"x": self.x, "w": self.w, "h": self.h, "out": self.h, "m": 1, "row0": 0, "row1": COLS,
             "k": COLS, "layer": 0, "packed": 0}  # fmt: skip
        return self.b.task("down_proj", queue, p, waits, signals)

    def packed(self) -> bytes:
        return tables.pack(self.b.build(self.steps, ("weights",), (Variable("p0", 1, 0, 9),), None, None, {}))

    def vm(self, unchecked: Any) -> Any:
        tile = np.zeros((COLS, 32), np.float32)
        tile[:, :COLS] = np.eye(COLS)
        n = len(self.b._op)
        vm = unchecked(self.packed(), np.zeros(n, np.int64), tile.reshape(-1).view(np.uint8), "f32")
        vm.buffer("x")[...] = np.arange(COLS)
        vm.buffer("h")[...] = 0
        return vm


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_chain_over_three_queues_runs_every_task_every_step(seed: int | None, unchecked: Any) -> None:
    r = Relay(3, steps=5)
    done = [r.b.counter(f"c{i}") for i in range(3)]
    r.task(0, [(done[2], 1, -1)], [done[0]])
    r.task(1, [(done[0], 1, 0)], [done[1]])
    r.task(2, [(done[1], 1, 0)], [done[2]])
    vm = r.vm(unchecked)
    vm.launch(5, [0], spin_timeout_s=20, perturb_seed=seed)
    assert vm.wait().steps == 5
    np.testing.assert_array_equal(vm.buffer("h")[0], 15 * np.arange(COLS))
    vm.launch(2, [0], spin_timeout_s=20)  # counters start from zero again
    assert vm.wait().steps == 2
    np.testing.assert_array_equal(vm.buffer("h")[0], 21 * np.arange(COLS))


def test_a_deadlock_becomes_a_fault_that_names_task_and_counter(unchecked: Any) -> None:
    r = Relay(2)
    a, b = r.b.counter("a"), r.b.counter("b")
    r.task(0, [], [a])
    second = r.task(0, [(b, 1, 0)], [a])
    r.task(1, [(a, 2, 0)], [b])
    vm = r.vm(unchecked)
    start = time.monotonic()
    vm.launch(3, [0], spin_timeout_s=0.2)
    with pytest.raises(VmFault, match="down_proj") as e:
        vm.wait()
    assert time.monotonic() - start < 5
    f = e.value.fault
    assert f.kind == "spin-timeout"
    assert (f.step, f.op) == (0, "down_proj")
    assert (f.task, f.queue, f.position, f.counter, f.has, f.needs) in [(second, 0, 1, b, 0, 1), (2, 1, 0, a, 1, 2)]
    vm.buffer("h")[...] = 0
    vm.launch(1, [0], spin_timeout_s=0.1)  # the machine can be launched again after a fault
    with pytest.raises(VmFault):
        vm.wait()


def test_a_wait_on_the_step_before_holds_in_step_0_and_blocks_later(unchecked: Any) -> None:
    r = Relay(1)
    c, other = r.b.counter("c"), r.b.counter("never")
    r.task(0, [(other, 1, -1)], [c])
    vm = r.vm(unchecked)
    vm.launch(1, [0], spin_timeout_s=5)
    assert vm.wait().steps == 1
    vm.launch(3, [0], spin_timeout_s=0.1)
    with pytest.raises(VmFault) as e:
        vm.wait()
    assert (e.value.fault.step, e.value.fault.needs) == (1, 1)


def stuck(unchecked: Any) -> Any:
    r = Relay(2)
    a = r.b.counter("a")
    r.task(0, [(a, 1, 0)], [])
    r.task(1, [(a, 1, 0)], [])
    return r.vm(unchecked)


def test_abort_ends_a_launch(unchecked: Any) -> None:
    vm = stuck(unchecked)
    vm.launch(1, [0], spin_timeout_s=60)
    with pytest.raises(ValueError, match="in flight"):
        vm.launch(1, [0])
    assert vm.running
    vm.abort()
    with pytest.raises(LaunchAborted):
        vm.wait()
    assert not vm.running


def test_ctrl_c_aborts_and_raises(unchecked: Any, interruptible: None) -> None:
    vm = stuck(unchecked)
    vm.launch(1, [0], spin_timeout_s=60)
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        vm.wait()
    assert time.monotonic() - start < 10
    assert not vm.running


def test_a_machine_that_is_dropped_in_flight_ends_its_threads(unchecked: Any) -> None:
    vm = stuck(unchecked)
    vm.launch(1, [0], spin_timeout_s=60)
    before = threading.active_count()
    start = time.monotonic()
    del vm
    assert time.monotonic() - start < 5
    assert threading.active_count() == before


def test_poll_sees_published_steps_while_the_launch_runs(model: Callable[..., Any]) -> None:
    m = model()
    m.vm.buffer("token")[:, 0] = 7
    m.vm.launch(100, [0, 100], spin_timeout_s=20, perturb_seed=3)
    seen = [m.vm.poll(k, 10.0) for k in (1, 20, 100)]
    assert seen == sorted(seen)
    assert seen[0] >= 1
    assert seen[2] == 100
    assert m.vm.wait().steps == 100


def test_a_token_outside_the_vocabulary_is_a_fault(model: Callable[..., Any]) -> None:
    for bad in (100, 2**31 - 1, -2, -(2**31)):
        m = model("logits", chunk=4, queues=3)
        m.vm.buffer("prompt")[0, :6] = [1, 2, 3, 4, 5, bad]
        m.vm.launch(2, [0, 6])
        with pytest.raises(VmFault, match=f"row 1 has token id {bad}, the vocabulary has 100") as e:
            m.vm.wait()
        assert (e.value.fault.kind, e.value.fault.op, e.value.fault.step) == ("token-range", "embed", 1)


def test_launch_arguments_outside_the_declared_ranges_are_refused(model: Callable[..., Any]) -> None:
    m = model(context=100)
    for steps, variables, message in [
        (0, [0, 1], "steps is 0"),
        (129, [0, 1], "steps is 129, required is 1 to 128"),
        (1, [0], "1 launch variables given, required are 2"),
        (1, [101, 1], "launch variable 0 is 101, its declared range is 0 to 100"),
        (1, [-1, 1], "launch variable 0 is -1"),
        (4, [0, 3], "3 active tokens, but the schedule promises a row for each of 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            m.vm.launch(steps, variables)
    with pytest.raises(ValueError, match="spin_timeout_s"):
        m.vm.launch(1, [0, 1], spin_timeout_s=0)
    with pytest.raises(ValueError, match="task 999 does not exist"):
        m.vm.run_task(999, 0, [0, 1])


def relay_tables() -> tuple[bytes, Any]:
    r = Relay(1)
    r.task(0, [], [r.b.counter("c")])
    return r.packed(), np.zeros(32 * COLS, np.float32).view(np.uint8)


def test_memory_that_does_not_fit_is_refused(unchecked: Any) -> None:
    packed, tape = relay_tables()
    zero = np.zeros(1, np.int64)
    for args, message in [
        ((packed, zero, tape[:-1], "f32"), "weight tile of 1024 bytes at offset 0 is not inside the tape of 1023"),
        ((packed, zero + 4, tape, "f32"), "not aligned to 64"),
        ((packed, zero - 1, tape, "f32"), "at offset -1"),
        ((packed, np.zeros(2, np.int64), tape, "f32"), "task_weight has 2 entries for 1 tasks"),
        ((packed, zero, tape, "bf16"), "dtype of the weight buffer is not the dtype of the tape"),
        ((packed, zero, tape, "f16"), "required is f32 or bf16"),
        ((packed[:-900], zero, tape, "f32"), "tables"),
        ((b"nonsense", zero, tape, "f32"), "tables"),
        ((packed, zero, tape, "f32", "sse9"), "instruction set sse9 is not available"),
        ((packed, zero, tape, "f32", None, {"h": np.zeros(COLS, np.float32)}), "only tables and inputs may be"),
        ((packed, zero, tape, "f32", None, {"nope": np.zeros(COLS, np.float32)}), "no buffer nope"),
        ((packed, zero, tape, "f32", None, None, {"main": np.zeros(16, np.uint8)}), "pool 0 is given 16 bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            unchecked(*args)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("row1", COLS + 1, "rows up to 9"), ("row0", 8, "row0 is 8"), ("m", 2, "is 1 x 8, the task needs 2 x 8"), ("m", 0, "m is 0"),
     ("k", 16, "of 16 columns"), ("x", 9, "does not exist"), ("h", 2, "is a weight"), ("w", 0, "kind weight")],
)  # fmt: skip
def test_parameters_outside_their_buffers_are_refused(name: str, value: int, message: str, unchecked: Any) -> None:
    r = Relay(1)
    p = {"x": r.x, "w": r.w, "h": r.h, "out": r.h, "m": 1, "row0": 0, "row1": COLS, "k": COLS, "layer": 0, "packed": 0, name: value}
    r.b.task("down_proj", 0, p, [], [r.b.counter("c")])
    with pytest.raises(ValueError, match=message):
        unchecked(r.packed(), np.zeros(1, np.int64), np.zeros(4096, np.uint8), "f32")


def test_opaque_tasks_are_refused(unchecked: Any) -> None:
    b = Builder(1)
    b.buffer("h", Kind.ACTIVATION, "f32", (1, COLS), "main")
    b.task("opaque", 0, {}, [], [b.counter("c")])
    with pytest.raises(ValueError, match=r"task 0 \(opaque\): an opaque task has no code"):
        unchecked(tables.pack(b.build(1, (), (), None, None, {})), np.full(1, -1, np.int64), np.zeros(0, np.uint8), "f32")


def test_tables_without_an_accepted_certificate_are_refused() -> None:
    packed, tape = relay_tables()
    with pytest.raises(CertificateRefused):
        CpuVM(packed, None, task_weight=np.zeros(1, np.int64), tape=tape, tape_dtype="f32")


def test_a_certificate_that_does_not_hold_is_refused() -> None:
    """The VM asks the checker: a right certificate with one number changed, and one of other tables, never start a thread."""
    b = Builder(1)
    b.buffer("h", Kind.ACTIVATION, "f32", (1, COLS), "main")
    b.task("opaque", 0, {}, [], [b.counter("c")])
    s = b.build(1, (), (), None, None, {})
    certificate = validate(s).certificate
    assert certificate is not None
    arguments: dict[str, Any] = {"task_weight": np.full(1, -1, np.int64), "tape": np.zeros(0, np.uint8), "tape_dtype": "f32"}
    with pytest.raises(ValueError, match="an opaque task has no code"):  # the certificate holds; only the VM objects
        CpuVM(tables.pack(s), certificate, **arguments)
    wrong = dataclasses.replace(certificate, replay=np.array([7], np.int32))
    with pytest.raises(CertificateRefused, match="replay"):
        CpuVM(tables.pack(s), wrong, **arguments)
    with pytest.raises(CertificateRefused, match="SHA-256"):
        CpuVM(relay_tables()[0], certificate, **arguments)
