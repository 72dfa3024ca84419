"""pytest-benchmark as our storage: device seconds go in through a named timer, our versioned block rides along.

:class:`BenchmarkHooks` is registered only where pytest-benchmark is loaded, because pytest refuses hooks it does not know.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from amk_bench.clock import device_seconds
from amk_bench.fingerprint import differences
from amk_bench.results import SCHEMA, _plain, write_atomically, write_text_atomically
from amk_bench.session import Session

FIXTURE = "amk_seconds"
Groups = list[tuple[str | None, list[dict[str, Any]]]]


class Seconds:
    """Stores the samples of one cell; the ``amk_seconds`` fixture.  Without pytest-benchmark it stores nothing."""

    def __init__(self, benchmark: Any | None, item: pytest.Item | None = None) -> None:
        self._benchmark = benchmark
        self._item = item  # whose report carries the seconds to the journal

    def store(self, samples_s: Sequence[float], block: dict[str, Any]) -> None:
        """Enters ``samples_s`` (device seconds of whole calls, in order) and ``block`` as ``extra_info["amk"]``."""
        if self._benchmark is None:
            return
        replay = iter(samples_s)
        if self._item is not None:
            self._item.user_properties.append((FIXTURE, {"samples_s": list(samples_s), "block": _plain(block)}))
        self._benchmark.extra_info["amk"] = {"schema": SCHEMA, **block}
        self._benchmark.pedantic(lambda: device_seconds.advance(next(replay)), rounds=len(samples_s), iterations=1)


class BenchmarkHooks:
    """Our side of pytest-benchmark's hooks."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """pytest-benchmark writes its files in place; ours are whole or absent."""
        benchmarks = getattr(session.config, "_benchmarksession", None)
        _give_up_the_handle(session.config, benchmarks)
        if benchmarks is not None and not self._session.worker:
            benchmarks.save_json = functools.partial(_save_json, benchmarks)
            storage: Any = getattr(benchmarks, "storage", None)
            if hasattr(storage, "_next_num") and hasattr(storage, "get"):  # a folder; other storages are databases
                storage.save = functools.partial(_save_file, storage)

    def pytest_benchmark_compare_machine_info(self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]) -> None:
        """Times of another machine, driver or policy are compared only when that is asked for."""
        then, now = compared_benchmark.get("machine_info", {}).get("amk"), machine_info.get("amk")
        apart = differences(then, now) if then and now else []
        if apart and not self._session.options.allow_different:
            raise pytest.UsageError(
                "--benchmark-compare: the saved run has another fingerprint: "
                + "; ".join(apart)
                + ". Compare runs of one machine and setup, or add --allow-different."
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A test that stores device seconds is a benchmark test: --benchmark-only and --benchmark-skip must see it as one."""
        for item in items:
            names = getattr(item, "fixturenames", [])
            if FIXTURE in names:
                item.add_marker(pytest.mark.benchmark(timer=device_seconds))
                if "benchmark" not in names:  # the items of one parametrised test share this list
                    names.append("benchmark")

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Only what must agree before results compare: pytest-benchmark warns about every other difference."""
        machine_info["amk"] = {"schema": SCHEMA, **self._session.fingerprint.comparable()}

    @pytest.hookimpl(wrapper=True)
    def pytest_benchmark_group_stats(self, config: pytest.Config) -> Generator[None, Groups, Groups]:
        """Our cells stand in the win/loss table; pytest-benchmark shows them only when it compares with a saved run."""
        groups = yield
        if config.getoption("benchmark_compare"):
            return groups
        others = [(name, [b for b in members if "amk" not in b["extra_info"]]) for name, members in groups]
        return [(name, members) for name, members in others if members]

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        output_json["amk"] = self._session.document()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """pytest-benchmark writes no file when nothing was timed; a run that says why all was skipped is a result too."""
        path: Path | None = session.config.getoption("benchmark_json", None)
        timed = getattr(getattr(session.config, "_benchmarksession", None), "benchmarks", None)
        if path is None or timed or self._session.worker or session.config.option.collectonly:
            return
        hook = session.config.hook
        machine_info = hook.pytest_benchmark_generate_machine_info(config=session.config)
        hook.pytest_benchmark_update_machine_info(config=session.config, machine_info=machine_info)
        output = {
            "machine_info": machine_info,
            "commit_info": hook.pytest_benchmark_generate_commit_info(config=session.config),
            "benchmarks": [],
            "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": _benchmark_version(),
            "amk": self._session.document(),
        }
        write_atomically(path, output, replace=True)


def _give_up_the_handle(config: pytest.Config, benchmarks: Any | None) -> None:
    """Before 5.3, pytest-benchmark opens its file with the command line; a killed run must not leave it behind empty."""
    opened: Any = getattr(config.option, "benchmark_json", None)
    if not hasattr(opened, "close"):
        return
    opened.close()
    path = Path(opened.name)
    if path.is_file() and not path.stat().st_size:
        path.unlink()
    config.option.benchmark_json = path
    if benchmarks is not None:
        benchmarks.json = path


def _benchmark_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("pytest-benchmark")


def _save_json(benchmarks: Any, output_json: dict[str, Any]) -> None:
    """What ``--benchmark-json`` asks for, in place of ``BenchmarkSession.save_json``."""
    write_text_atomically(Path(benchmarks.json), _text(output_json), replace=True)
    benchmarks.logger.info(f"Wrote benchmark data in: {benchmarks.json}", purple=True)


def _save_file(storage: Any, output_json: dict[str, Any], name: str) -> None:
    """What ``--benchmark-save`` asks for, in place of ``FileStorage.save``."""
    path = storage.get(f"{storage._next_num}_{name}.json")
    write_text_atomically(path, _text(output_json))
    storage.logger.info(f"Saved benchmark data in: {path}")


def _text(output_json: dict[str, Any]) -> str:
    """JSON as pytest-benchmark writes it: what JSON does not know becomes text."""
    from pytest_benchmark import utils

    dumps: Any = utils.safe_dumps
    return str(dumps(output_json, ensure_ascii=True, indent=4))
