"""Claims about the pytest plugin, each run in a pytest of its own."""

from __future__ import annotations

import builtins
import functools
import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk_bench import busy, clock, paired, results
from amk_core import machine

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("no_worker")
ROOT = Path(__file__).resolve().parents[2]
L4 = machine.Gpu("NVIDIA L4", "sm_89", 24 << 30, "580.1", "GPU-1")

SUITE = """
import pytest
from amk_bench.clock import Sample
from amk_bench.gate import Check, Subject, Timing, open_gate
from amk_bench.pairing import Block
from amk_bench.results import timed

def cell(device, position, ratio):
    gates = [open_gate(Subject(name, "m", 1, position), "P1", [Check("tokens", True, "all")]) for name in ("AMK", "HF eager")]
    block = Block((Sample(1e-4, 1e-4),) * 2, (Sample(1e-4 * ratio, 1e-4 * ratio),) * 2, "ABBA")
    return timed(Timing(*gates, (block,) * 6, 1, "toy"), device=device, mode="exact", precision="fp32", floor=0.012)

def test_parity(amk_record):
    amk_record.parity("P2", "logits against HF", measured="1.2e-6", required="<= 5e-6", passed=True, value=1.2e-6, limit=5e-6)

@pytest.mark.amk_device("latency")
@pytest.mark.parametrize(("position", "ratio"), [(0, 2.0), (128, 0.5)])
def test_latency(amk_record, amk_seconds, amk_arch, position, ratio):
    amk_record.latency(cell(amk_arch.device, position, ratio))
    amk_record.note("noise floor measured", {"noise_floor": 0.012})
    amk_seconds.store([0.25, 0.5, 0.75], {"position": position})

@pytest.mark.amk_gpu("CPU and GPU give equal bits")
def test_gpu_bits(amk_record):
    amk_record.parity("P5", "bits", measured="equal", required="equal", passed=True)

@pytest.fixture(scope="module")
def model():
    pytest.skip("m is not in the model cache; run: amk model fetch m")

def test_needs_model(model, amk_record):
    pass

@pytest.mark.amk_full("seventeen windows")
def test_full():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]")  # its own root, whatever lies in the folders above
    pytester.makeconftest('pytest_plugins = ["amk_bench.plugin"]')
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def run(suite: pytest.Pytester, *args: str) -> pytest.RunResult:
    """In this process: quick, and patches of the machine take effect."""
    return suite.runpytest_inprocess("-p", "no:cacheprovider", *args)


def pretend(monkeypatch: pytest.MonkeyPatch, *gpus: machine.Gpu) -> None:
    monkeypatch.setattr(machine, "find_gpus", lambda: gpus)


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)


def test_summary_ends_with_the_table_losses_first(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=cpu", "-rs")
    result.assert_outcomes(passed=3, skipped=3)
    result.stdout.fnmatch_lines(["amk: arch cpu (asked for); device *; model smollm2-135m; default run", "amk: CPU *cores*queues*"])
    result.stdout.fnmatch_lines(
        [
            "*parity: 1 of 1 claims hold*",
            "*pass*P2*logits against HF*1.2e-6*<= 5e-6*",
            "*not run: 3 cells*",
            "test_needs_model: m is not in the model cache",
            "    run: amk model fetch m",
            "*win/loss on *",
            "*LOSS*",
            "*WIN*",
        ]
    )
    table = [line for line in result.outlines if "LOSS" in line or "WIN" in line]
    assert "0.500x" in table[0]
    last = [line for line in result.outlines if line.strip()][-2]  # before pytest's own count
    assert last.startswith("1 LOSS, 1 WIN of 2 cells; noise floor")
    text = result.stdout.str()
    assert text.index("short test summary") < text.index("win/loss on"), "our table stands last"


def test_missing_card_is_skipped_with_reason_and_command_and_exit_code_zero(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=sm_89")
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=5)
    result.stdout.fnmatch_lines(
        [
            "*latency, CPU and GPU give equal bits: no sm_89 card on this machine (no NVIDIA GPU)",
            "*run: pytest --arch=sm_89",
        ]
    )


def test_require_hardware_turns_the_skip_into_a_failure(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=sm_89", "--require-hardware")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=3, skipped=2)
    result.stdout.fnmatch_lines(["*FAILED: --require-hardware, and no sm_89 card*"])


@pytest.mark.parametrize("args", [["-k", "parity"], ["-k", "nothing_matches"]])
def test_require_hardware_is_never_green_on_nothing(suite: pytest.Pytester, args: list[str]) -> None:
    assert run(suite, "--arch=sm_89", "--require-hardware", *args).ret == pytest.ExitCode.TESTS_FAILED
    assert run(suite, "--require-hardware", *args).ret == pytest.ExitCode.TESTS_FAILED


def test_require_hardware_is_satisfied_by_the_card_or_by_the_cpu_when_asked_for(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(suite, "--arch=cpu", "--require-hardware").assert_outcomes(passed=3, skipped=3)
    pretend(monkeypatch, L4)
    run(suite, "--arch=sm_89", "--require-hardware").assert_outcomes(passed=4, skipped=2)


def test_auto_takes_the_card_and_device_picks_by_name(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, L4, machine.Gpu("NVIDIA L40S", "sm_89", 48 << 30, "580.1"))
    run(suite).stdout.fnmatch_lines(["amk: arch sm_89 (auto: first matching card); device NVIDIA L4;*"])
    run(suite, "--device=l40s").stdout.fnmatch_lines(["amk: arch sm_89 (auto: first matching card); device NVIDIA L40S;*"])
    result = run(suite, "--arch=sm_89", "--device=RTX 4090")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*no sm_89 card named RTX 4090 on this machine (NVIDIA L4 (sm_89), NVIDIA L40S (sm_89))*"])


def test_full_runs_what_the_default_leaves_out(suite: pytest.Pytester) -> None:
    run(suite, "--full", "--arch=cpu").assert_outcomes(passed=4, skipped=2)
    result = run(suite, "--full", "--quick")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--quick and --full exclude each other*"])


def test_ranks_are_named_by_their_shape_and_stand_in_the_command_of_what_is_left_out(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=cpu", "--ranks=15")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ranks=15 is not COUNTxCLUSTER, as 15x8*"])
    assert "--ranks=7x16" in run(suite, "--arch=cpu", "--ranks=7x16").stdout.str().replace("\n", "")


def test_unknown_arch_is_refused_with_the_list(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=sm_75")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "sm_80" in result.stderr.str()


def test_device_seconds_and_our_block_are_in_the_benchmark_json(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=cpu", "--benchmark-json=out.json")
    assert result.ret == 0
    data = json.loads((suite.path / "out.json").read_text())
    assert [bench["extra_info"]["amk"] for bench in data["benchmarks"]] == [
        {"schema": 2, "position": 0},
        {"schema": 2, "position": 128},
    ]
    for bench in data["benchmarks"]:
        assert bench["stats"]["data"] == [0.25, 0.5, 0.75]
        assert bench["options"]["timer"] == "device_seconds"
    assert data["machine_info"]["amk"]["schema"] == 2
    assert data["machine_info"]["amk"]["cpu"]
    records = results.validate(data["amk"])
    assert [r.verdict for r in records if isinstance(r, results.LatencyRecord)] == ["WIN", "LOSS"]
    assert data["amk"]["fingerprint"]["seeds"]


def test_a_run_that_timed_nothing_still_writes_why(suite: pytest.Pytester) -> None:
    assert run(suite, "--arch=sm_89", "--benchmark-json=out.json").ret == 0
    data = json.loads((suite.path / "out.json").read_text())
    assert data["benchmarks"] == []
    skips = [r for r in results.validate(data["amk"]) if isinstance(r, results.SkipRecord)]
    assert {s.cell for s in skips} == {"latency", "CPU and GPU give equal bits", "seventeen windows", "test_needs_model"}
    assert all(s.command for s in skips)


@pytest.mark.parametrize("args", [[], ["-k", "nothing_matches"]])
def test_a_file_that_pytest_benchmark_has_opened_itself_is_written_whole_too(suite: pytest.Pytester, args: list[str]) -> None:
    """Versions before 5.3 open it while they read the command line."""
    suite.makeconftest(
        """
pytest_plugins = ["amk_bench.plugin"]

def pytest_configure(config):
    path = str(config.option.benchmark_json)
    config.option.benchmark_json = open(path, "wb")

def pytest_collection_modifyitems(config):
    import pathlib
    assert not pathlib.Path("out.json").exists(), "killed now, the run leaves no file"
"""
    )
    run(suite, "--arch=cpu", "--benchmark-json=out.json", *args)
    data = json.loads((suite.path / "out.json").read_text())
    results.validate(data["amk"])
    assert len(data["benchmarks"]) == (0 if args else 2)


def test_save_and_compare_work(suite: pytest.Pytester) -> None:
    assert run(suite, "--arch=cpu", "--benchmark-save=base").ret == 0
    result = run(suite, "--arch=cpu", "--benchmark-compare", "--benchmark-compare-fail=mean:5%")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_latency*(0001_base)*"])
    assert "machine_info is different" not in result.stdout.str() + result.stderr.str()


def test_a_saved_run_of_another_setup_is_compared_only_when_asked_for(suite: pytest.Pytester) -> None:
    assert run(suite, "--arch=cpu", "--benchmark-save=base").ret == 0
    (saved,) = suite.path.glob(".benchmarks/*/0001_base.json")
    data = json.loads(saved.read_text())
    data["machine_info"]["amk"]["libraries"]["torch"] = "0.1"
    saved.write_text(json.dumps(data))
    refused = run(suite, "--arch=cpu", "--benchmark-compare")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    said = refused.stdout.str() + refused.stderr.str()
    assert "another fingerprint: libraries.torch: '0.1' against" in said
    assert "--allow-different" in said
    assert run(suite, "--arch=cpu", "--benchmark-compare", "--allow-different").ret == 0


def test_saved_files_load_in_pytest_benchmark_s_own_command(suite: pytest.Pytester) -> None:
    assert run(suite, "--arch=cpu", "--benchmark-json=out.json", "--benchmark-save=base").ret == 0
    (saved,) = suite.path.glob(".benchmarks/*/0001_base.json")
    for file in ("out.json", str(saved)):
        command = [sys.executable, "-m", "pytest_benchmark", "compare", file]
        done = subprocess.run(command, cwd=suite.path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "test_latency[0-2.0]" in done.stdout


def test_benchmark_only_and_skip_see_our_timed_tests(suite: pytest.Pytester) -> None:
    run(suite, "--arch=cpu", "--benchmark-only").assert_outcomes(passed=2, skipped=4)
    run(suite, "--arch=cpu", "--benchmark-skip").assert_outcomes(passed=1, skipped=5)
    disabled = run(suite, "--arch=cpu", "--benchmark-disable")
    disabled.assert_outcomes(passed=1, skipped=5)
    disabled.stdout.fnmatch_lines(["*timing is switched off by --benchmark-disable*"])


def test_works_without_pytest_benchmark(suite: pytest.Pytester) -> None:
    result = run(suite, "--arch=cpu", "-p", "no:benchmark", "--strict-markers")
    result.assert_outcomes(passed=3, skipped=3)
    result.stdout.fnmatch_lines(["*1 LOSS, 1 WIN of 2 cells*"])


def environment(*paths: Path) -> dict[str, str]:
    """Children import amk from this source tree; installed plugins other than the needed ones do not slow them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(ROOT)])}


def in_child(suite: pytest.Pytester, *args: str, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    return subprocess.run(
        command, cwd=suite.path, env=environment(*paths), capture_output=True, text=True, timeout=120, check=False
    )


def test_xdist_passes_records_on_and_takes_no_times(suite: pytest.Pytester) -> None:
    done = in_child(suite, "-n2", "--arch=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parity: 1 of 1 claims hold" in done.stdout
    assert "times taken beside other xdist workers are no measurement" in done.stdout
    assert "win/loss on" not in done.stdout


def fake_installation(folder: Path) -> Path:
    """A dist-info that declares our entry point exactly as pyproject.toml does."""
    import tomllib

    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = folder / "amk_judged-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amk-judged\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("[pytest11]\n" + "\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("conftest", [True, False], ids=["conftest", "no conftest"])
@pytest.mark.parametrize("installed", [True, False], ids=["installed", "not installed"])
def test_registers_once_through_entry_point_conftest_or_both(
    suite: pytest.Pytester, tmp_path: Path, installed: bool, conftest: bool
) -> None:
    paths = (fake_installation(tmp_path / "site"),) if installed else ()
    extra = [] if installed or conftest else ["-p", "amk_bench.plugin"]
    if not conftest:
        (suite.path / "conftest.py").unlink()
    probe = """
        def test_once(request):
            plugins = request.config.pluginmanager.list_name_plugin()
            assert [n for n, p in plugins if getattr(p, "__name__", "") == "amk_bench.plugin"] == ["amk_bench.plugin"]
    """
    (suite.path / "test_once.py").write_text(textwrap.dedent(probe))
    done = in_child(suite, "--arch=cpu", *extra, paths=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 3 skipped" in done.stdout
    assert done.stdout.count("win/loss on") == 1


def test_root_conftest_declares_the_plugin_and_nothing_else() -> None:
    scope: dict[str, Any] = {}
    exec((ROOT / "conftest.py").read_text(), scope)
    names = {name for name in scope if not name.startswith("__")}
    assert names == {"pytest_plugins"}
    assert scope["pytest_plugins"] == ["amk_bench.plugin"]


def test_loading_is_light() -> None:
    code = textwrap.dedent("""
        import sys, time, pytest
        start = time.process_time(); import amk_bench.plugin; seconds = time.process_time() - start
        heavy = {"torch", "cupy", "numpy", "transformers", "tabulate", "scipy"} & set(sys.modules)
        assert not heavy, heavy
        print(seconds)
    """)
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout) for _ in range(3)
    ]
    assert min(seconds) < 0.3


def test_collecting_imports_no_torch_and_costs_little(suite: pytest.Pytester) -> None:
    (suite.path / "test_suite.py").unlink()
    (suite.path / "test_light.py").write_text(
        "import sys\nassert not {'torch', 'transformers', 'cupy', 'numpy'} & set(sys.modules)\n"
    )
    with_plugin = min(_seconds(suite, "--collect-only", "-q") for _ in range(3))
    (suite.path / "conftest.py").unlink()
    without = min(_seconds(suite, "--collect-only", "-q") for _ in range(3))
    assert with_plugin - without < 0.3


def _seconds(suite: pytest.Pytester, *args: str) -> float:
    """Processor time of the run: what it would take on idle cores, whatever else the machine does now."""
    before = os.times()
    done = in_child(suite, *args)
    after = os.times()
    assert "error" not in done.stdout.lower(), done.stdout
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_update_reports_appends_one_valid_file(suite: pytest.Pytester) -> None:
    assert run(suite, "--arch=cpu").ret == 0
    assert not (suite.path / "reports").exists()
    assert run(suite, "--arch=cpu", "--update-reports").ret == 0
    (report,) = (suite.path / "reports" / "data").glob("*.json")
    assert len(results.validate(json.loads(report.read_text()))) == 8


def test_header_remembers_the_noise_floor(suite: pytest.Pytester) -> None:
    first = suite.runpytest_inprocess("--arch=cpu")
    first.stdout.fnmatch_lines(["*noise floor not measured yet"])
    suite.runpytest_inprocess("--arch=cpu").stdout.fnmatch_lines(["*noise floor 1.2 % when last measured"])


def test_a_claim_that_breaks_is_told_apart_from_one_that_was_left_out(suite: pytest.Pytester) -> None:
    (suite.path / "test_broken.py").write_text("def test_broken(amk_record):\n    raise RuntimeError('the VM refuses')\n")
    result = run(suite, "--arch=cpu", "--benchmark-json=out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*BROKEN: 1 cell ended in an error*", "test_broken: RuntimeError: the VM refuses", "*not run: 3 cells*"]
    )
    records = results.validate(json.loads((suite.path / "out.json").read_text())["amk"])
    assert [r.cell for r in records if isinstance(r, results.SkipRecord) and r.broken] == ["test_broken"]


def test_progress_speaks_past_capture_on_long_work_only(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["amk_bench.plugin"]')
    pytester.makepyfile("""
        def test_long(amk_progress, monkeypatch):
            now = iter([0, 1, 4, 5, 20])
            monkeypatch.setattr(amk_progress, "_now", lambda: next(now))
            assert list(amk_progress.over([1, 2, 3, 4], "windows")) == [1, 2, 3, 4]
    """)
    result = run(pytester, "--arch=cpu")
    result.stdout.fnmatch_lines(
        ["  amk: windows: 1 of 4 after 4 s, about 12 s left", "  amk: windows: 3 of 4 after 20 s, about 7 s left"]
    )
    assert result.stdout.str().count("amk: windows") == 2


OTHER_OPTIONS = """
def pytest_addoption(parser):
    group = parser.getgroup("theirs")
    for name in ("--device", "--model", "--arch"):
        group.addoption(name, default="theirs")
    for name in ("--quick", "--full", "--require-hardware", "--update-reports"):
        group.addoption(name, action="store_true")
"""
THEIR_TEST = """
def test_both(request, amk_options):
    assert request.config.getoption("--device") == request.config.getoption("device") == "cpu:0"
    assert request.config.getoption("--model") == "theirs"
    assert request.config.getoption("--quick") is True
    assert (amk_options.arch, amk_options.device, amk_options.tier) == ("cpu", None, "full")
"""


@pytest.mark.parametrize("owner", ["conftest", "plugin before", "plugin after", "conftest below"])
def test_options_of_others_keep_their_names(pytester: pytest.Pytester, tmp_path: Path, owner: str) -> None:
    """Installed beside something that has --device, --model, --quick, ... of its own: nothing crashes, both are heard."""
    site = fake_installation(tmp_path / "site")
    pytester.makeini("[pytest]")
    folder = pytester.mkdir("below") if owner == "conftest below" else pytester.path
    (folder / "test_theirs.py").write_text(THEIR_TEST)
    extra: list[str] = []
    if "conftest" in owner:
        (folder / "conftest.py").write_text(OTHER_OPTIONS)
    elif owner == "plugin before":
        (pytester.path / "theirs.py").write_text(OTHER_OPTIONS)
        extra = ["-p", "theirs"]
    else:
        (site / "theirs.py").write_text(OTHER_OPTIONS)
        info = site / "zz_theirs-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zz-theirs\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[pytest11]\ntheirs = theirs\n")
    where = "below" if owner == "conftest below" else "."
    told = ["--amk-arch=cpu", "--amk-full", "--device=cpu:0", "--quick", where]
    done = in_child(pytester, *extra, *told, paths=(site, pytester.path))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_short_spellings_stand_where_nobody_else_has_them(pytester: pytest.Pytester, tmp_path: Path) -> None:
    site = fake_installation(tmp_path / "site")
    pytester.makeini("[pytest]")
    pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--device', default='theirs')\n")
    pytester.makepyfile(
        """
        def test_options(request, amk_options):
            assert (amk_options.arch, amk_options.device, amk_options.tier) == ("cpu", "H200", "quick")
            assert request.config.getoption("--device") == "x"
        """
    )
    done = in_child(pytester, "--arch=cpu", "--quick", "--device=x", "--amk-device=H200", paths=(site,))
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    said = in_child(pytester, "--help", paths=(site,)).stdout
    assert "--amk-device" in said
    assert "short for --amk-quick" in said
    assert "short for --amk-device" not in said


STRANGER = ROOT / "docs" / "examples" / "test_matvec.py"
LOADED = (np, paired)  # before pytester takes down what its runs import: numpy loads once a process
TICK = "from amk_bench.clock import _now_ns as tick"  # in the stranger's text: what calls it takes a millisecond more


@pytest.fixture
def stranger(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The 30 lines of the documentation, in a folder of their own; a look at the clock takes a millisecond, whatever else runs."""
    # witness() gives float, and float() is 0.0; a function from here would be an instrument that somebody replaced.
    monkeypatch.setattr(busy, "witness", functools.partial(getattr, builtins, "float"))
    monkeypatch.setattr(clock, "_now_ns", itertools.count(1, 10**6).__next__)
    pytester.makeini("[pytest]")
    pytester.makeconftest('pytest_plugins = ["amk_bench.plugin"]')
    (pytester.path / "test_matvec.py").write_text(STRANGER.read_text("utf-8"))
    return pytester


def test_a_stranger_s_thirty_lines_get_gates_pairs_floor_verdict_table_and_result_file(stranger: pytest.Pytester) -> None:
    text = STRANGER.read_text("utf-8")
    assert len(text.splitlines()) <= 30 + text.count("\n\n\n")
    assert "amk_bench" not in text, "the fixture is all it needs"
    storing = "lambda x: (w * x)"
    assert storing in text
    slower = text.replace(storing, "lambda x: tick() and (w * x)").replace("import pytest", f"import pytest\n{TICK}")
    (stranger.path / "test_matvec.py").write_text(slower)
    result = run(stranger, "--quick", "--arch=cpu", "--benchmark-json=out.json", "--update-reports")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*win/loss on*", "several cases; times a call; ratio = baseline / ours*", "*cells; noise floor*"])
    rows = [line for line in result.outlines if "reference" in line]
    assert len(rows) == 2
    assert "WIN" in rows[1]
    assert "einsum" in rows[1]
    data = json.loads((stranger.path / "out.json").read_text())
    assert len(data["benchmarks"]) == 2
    (report,) = (stranger.path / "reports" / "data").glob("*.json")
    for doc in (data["amk"], json.loads(report.read_text())):
        records = [r for r in results.validate(doc) if isinstance(r, results.LatencyRecord)]
        assert {(r.model, r.gate, r.unit) for r in records} == {
            ("einsum", "reference", "call"),
            ("product_and_sum", "reference", "call"),
        }
        assert all(len(r.ours_samples_us) == 16 and r.floor and r.ratio and r.clock for r in records)


def test_a_stranger_s_cheat_fails_with_the_reason(stranger: pytest.Pytester) -> None:
    path = stranger.path / "test_matvec.py"
    path.write_text(path.read_text("utf-8").replace('np.einsum("ij,j->i", w, x)', "w[0]"))
    result = run(stranger, "--quick", "--arch=cpu")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*einsum: INVALID: gate of ours: first weights: its output lies in the memory of its input*"])
    result.stdout.fnmatch_lines(["INVALID einsum, against baseline: gate of ours*", "1 INVALID, * of 2 cells*"])


def test_a_stranger_s_pairs_under_xdist_and_without_pytest_benchmark(stranger: pytest.Pytester) -> None:
    done = in_child(stranger, "-n2", "--arch=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    assert "run: pytest --arch=cpu -n0" in done.stdout
    run(stranger, "--quick", "--arch=cpu", "-p", "no:benchmark").assert_outcomes(passed=2)


def test_a_second_pair_in_one_test_is_refused(stranger: pytest.Pytester) -> None:
    path = stranger.path / "test_matvec.py"
    path.write_text(path.read_text("utf-8") + path.read_text("utf-8").splitlines()[-1] + "\n")
    result = run(stranger, "--quick", "--arch=cpu", "-k", "einsum")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*amk_pair was used twice in one test*"])


def test_skip_reasons_name_the_files_that_were_asked_for(suite: pytest.Pytester) -> None:
    run(suite, "--arch=sm_89", "--full", "test_suite.py").stdout.fnmatch_lines(["*run: pytest test_suite.py --arch=sm_89 --full"])


def test_a_stranger_s_pairs_are_saved_compared_selected_and_left_out(stranger: pytest.Pytester) -> None:
    args = ("--quick", "--arch=cpu", "-k", "einsum")
    assert run(stranger, *args, "--benchmark-save=base", "--benchmark-only").ret == 0
    compared = run(stranger, *args, "--benchmark-compare", "--benchmark-compare-fail=median:10000%")
    compared.assert_outcomes(passed=1, deselected=1)
    compared.stdout.fnmatch_lines(["*test_matvec*(0001_base)*"])
    run(stranger, *args, "--benchmark-skip").assert_outcomes(skipped=1, deselected=1)
    disabled = run(stranger, *args, "--benchmark-disable")
    disabled.stdout.fnmatch_lines(["*timing is switched off by --benchmark-disable*", "*run: pytest --arch=cpu --quick*"])


def test_require_hardware_holds_for_a_stranger_s_run_as_well(stranger: pytest.Pytester) -> None:
    result = run(stranger, "--quick", "--arch=sm_89", "--require-hardware", "-k", "einsum")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAILED: --require-hardware, and no sm_89 card*"])


ENGINES = """
import numpy as np
from amk_bench.clock import CpuClock, _now_ns as tick
from amk_bench.cell import Cell, Plan

W = np.random.default_rng(0).standard_normal((200, 200))

class Engine:
    precision = "fp64"

    def __init__(self, name, repeats):
        self.name, self.repeats = name, repeats

    def available(self):
        return None

    def prepare(self, prefix, batch, room):
        pass

    rewind = lambda self: None

    def decode(self, first, tokens):
        chain, token = [], first[0]
        for _ in range(tokens):
            for _ in range(self.repeats):
                tick()
                row = W @ W[token]
            token = int(row.argmax())
            chain.append(token)
        return [chain]

def score(ids, keep):
    return np.stack([W @ W[i] for i in ids[-keep:]]).astype(np.float32)

def test_engines(amk_pair):
    cell = Cell("toy", "matrix", "fp64", 1, (1, 2), tuple(range(200)))
    record = amk_pair.engines(Engine("one", 5), Engine("three", 15), cell, Plan(50, 8, 7), CpuClock(), score)
    assert record.verdict == "WIN"
    assert record.gate == "P1"
    assert 2 < record.ratio < 4
"""


def test_two_engines_go_through_the_same_fixture(stranger: pytest.Pytester) -> None:
    (stranger.path / "test_matvec.py").write_text(ENGINES)
    result = run(stranger, "--quick", "--arch=cpu")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["matrix, mode fp64, greedy decode; times a token;*", "*WIN*", "1 WIN of 1 cells; noise floor*"])
