"""The pytest plugin of AMK: options, markers, fixtures, header, and the table at the end.

Loaded through the entry point of the installed package or through the root ``conftest.py``, whichever comes first; both use the
name ``amk_bench.plugin``.  Imports neither torch nor cupy nor numpy: collecting tests costs nothing.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from amk_bench import options as command_line
from amk_bench.journal import Journal
from amk_bench.options import Arch, Options
from amk_bench.pair_fixture import PairedBenchmark
from amk_bench.places import runs_of
from amk_bench.progress import Progress
from amk_bench.recorder import PROPERTY, Recorder
from amk_bench.results import NoteRecord, SkipRecord, to_json
from amk_bench.resume import Resume
from amk_bench.session import Session
from amk_bench.storage import FIXTURE, BenchmarkHooks, Seconds

SESSION = pytest.StashKey[Session]()
FLOOR_CACHE = "amk/noise_floor"
MARKERS = (
    "amk_device(cell): measures or checks the device that --arch names; without it: skipped, or failed under --require-hardware",
    "amk_gpu(cell): needs a GPU besides the CPU; under --arch=cpu, or without the card, skipped with the command that runs it",
    "amk_full(cell): runs with --full only",
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    command_line.add_options(parser)
    if any(str(getattr(plugin, "__file__", "")).endswith("conftest.py") for plugin in pluginmanager.get_plugins()):
        command_line.add_short_spellings(parser)  # named by a conftest: the hook below has begun already


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, None, None]:
    """The last moment before the command line is parsed for good: everybody else's options are known."""
    yield
    command_line.add_short_spellings(parser)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    session = Session(command_line.read_options(config), Path(config.rootpath), hasattr(config, "workerinput"))
    config.stash[SESSION] = session
    if config.pluginmanager.hasplugin("benchmark") or config.pluginmanager.hasplugin("pytest_benchmark.plugin"):
        config.pluginmanager.register(BenchmarkHooks(session), "amk_bench.storage")
    if not session.worker:
        journal = Journal(runs_of(session.root))
        config.pluginmanager.register(Resume(session, journal), "amk_bench.resume")


def pytest_report_header(config: pytest.Config) -> list[str]:
    session = config.stash[SESSION]
    arch, options, machine = session.arch, session.options, session.machine
    device = f"{arch.device}" + ("" if arch.present else f" (NOT HERE: {arch.missing})")
    floor = _cached_floor(config)
    shown = f"noise floor {100 * floor:.1f} % when last measured" if floor else "noise floor not measured yet"
    return [
        f"amk: arch {arch.name} ({arch.chosen}); device {device}; model {options.model}; {options.tier} run",
        f"amk: CPU {machine.cpu}, {machine.cores} cores = {machine.cores} queues, {machine.memory_bytes / 2**30:.0f} GiB; {shown}",
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    session = item.config.stash[SESSION]
    options, arch = session.options, session.arch
    for marker in item.iter_markers("amk_full"):
        if options.tier != "full":
            _leave_out(item, marker, "part of the full run only", dataclasses.replace(options, tier="full").command())
    for marker in (*item.iter_markers("amk_device"), *item.iter_markers("amk_gpu")):
        if marker.name == "amk_gpu" and not arch.is_gpu:
            _leave_out(item, marker, f"the device of this run is the CPU ({arch.chosen})", options.command(arch="sm_90"))
        if arch.missing:
            if options.require_hardware:
                pytest.fail(f"{arch.missing}; --require-hardware makes that a failure", pytrace=False)
            _leave_out(item, marker, arch.missing, options.command())
    if FIXTURE in getattr(item, "fixturenames", ()):
        if session.worker:
            _leave_out(item, None, "times taken beside other xdist workers are no measurement", options.command("-n0"))
        if item.config.getoption("benchmark_disable", False):
            _leave_out(item, None, "timing is switched off by --benchmark-disable", options.command())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A suite's test that skips or breaks before it has recorded anything becomes an empty cell with that reason."""
    report = yield
    ours = any(name.startswith("amk_") for name in getattr(item, "fixturenames", ()))
    told = any(name == PROPERTY for name, _ in item.user_properties)
    if not ours or told or report.passed:
        return report
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
        reason, _, command = text.removeprefix("Skipped: ").partition("; run: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason, command = crash.message.splitlines()[0] if crash else "see the error above", ""
    item.user_properties.append((PROPERTY, to_json(SkipRecord(item.name, reason, command, broken=report.failed))))
    return report


def _leave_out(item: pytest.Item, marker: pytest.Mark | None, reason: str, command: str) -> None:
    cell = str(marker.args[0]) if marker and marker.args else item.name
    item.user_properties.append((PROPERTY, to_json(SkipRecord(cell, reason, command))))
    pytest.skip(f"{reason}; run: {command}")


class _Collector:
    """Takes records from reports; in the process that prints (under xdist: the controller)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._session.collect(report)


def pytest_sessionstart(session: pytest.Session) -> None:
    judge = session.config.stash[SESSION]
    if not judge.worker:
        session.config.pluginmanager.register(_Collector(judge), "amk_bench.collector")


def pytest_sessionfinish(session: pytest.Session) -> None:
    judge = session.config.stash[SESSION]
    if judge.worker:
        return
    if judge.hardware_missing and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    floors = [r.values["noise_floor"] for r in judge.records if isinstance(r, NoteRecord) and "noise_floor" in r.values]
    cache = getattr(session.config, "cache", None)
    if floors and cache is not None:
        cache.set(FLOOR_CACHE, {"device": judge.arch.device, "floor": floors[-1]})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Generator[None, None, None]:
    """The outermost wrapper: what it writes after the others stands last, where a reader looks first."""
    yield
    from amk_bench import summary

    session = config.stash[SESSION]
    width = min(shutil.get_terminal_size((120, 24)).columns, 132)
    summary.write(terminalreporter, session.records, session.options, session.arch, ascii_only=_ascii_only(), width=width)
    if session.hardware_missing:
        terminalreporter.write_line(f"FAILED: --require-hardware, and {session.hardware_missing}", red=True, bold=True)
    if session.options.update_reports and session.records:
        path = session.write_report()
        terminalreporter.write_line(f"report written: {path.relative_to(session.root)}")


def _cached_floor(config: pytest.Config) -> float | None:
    cache = getattr(config, "cache", None)
    entry = cache.get(FLOOR_CACHE, None) if cache is not None else None
    if not isinstance(entry, dict) or entry.get("device") != config.stash[SESSION].arch.device:
        return None
    return float(entry["floor"])


def _ascii_only() -> bool:
    try:
        "µ±╭─".encode(getattr(sys.__stdout__, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


@pytest.fixture(scope="session")
def amk_options(pytestconfig: pytest.Config) -> Options:
    """The options of this run; ``amk_options.tier`` is "quick", "default" or "full"."""
    return pytestconfig.stash[SESSION].options


@pytest.fixture(scope="session")
def amk_arch(pytestconfig: pytest.Config) -> Arch:
    """The device this run is about."""
    return pytestconfig.stash[SESSION].arch


@pytest.fixture(scope="session")
def amk_session(pytestconfig: pytest.Config) -> Session:
    """Everything the judge knows about this run."""
    return pytestconfig.stash[SESSION]


@pytest.fixture
def amk_record(request: pytest.FixtureRequest) -> Recorder:
    """Puts numbers into the summary and the result file; see :class:`amk_bench.recorder.Recorder`."""
    return Recorder(request.node)


@pytest.fixture(scope="session")
def amk_progress(pytestconfig: pytest.Config) -> Progress:
    """Lines on the terminal during long work, past the capture; silent in xdist workers."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")

    def write(text: str) -> None:
        if reporter is None or pytestconfig.stash[SESSION].worker:
            return
        if capture is None:
            _line(reporter, text)
        else:
            with capture.global_and_fixture_disabled():
                _line(reporter, text)

    return Progress(write)


def _line(reporter: Any, text: str) -> None:
    reporter.ensure_newline()
    reporter.write_line(f"  amk: {text}")
    reporter.flush()


@pytest.fixture
def amk_seconds(request: pytest.FixtureRequest) -> Seconds:
    """Stores device seconds through pytest-benchmark; without it, nothing is stored and the test runs all the same."""
    present = request.config.pluginmanager.hasplugin("amk_bench.storage")
    return Seconds(request.getfixturevalue("benchmark") if present else None, request.node)


@pytest.fixture
def amk_pair(pytestconfig: pytest.Config, amk_record: Recorder, amk_seconds: Seconds, amk_progress: Progress) -> PairedBenchmark:
    """Measures two callables against each other; see :class:`amk_bench.pair_fixture.PairedBenchmark`."""
    return PairedBenchmark(pytestconfig.stash[SESSION], amk_record, amk_seconds, amk_progress)
