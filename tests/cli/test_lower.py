"""``amk lower``: both formats hold the same schedule, and a failed write leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amk_core import cli
from amk_core.commands import options
from amk_core.schedule.ir import Schedule
from amk_core.schedule.tables import pack, unpack

MODEL = "smollm2-135m"


def test_json_and_tables_are_the_same_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("s.json", "s.amkt"):
        assert cli.main(["lower", MODEL, "--queues", "2", "-o", str(tmp_path / name)]) == 0
    text = Schedule.loads((tmp_path / "s.json").read_bytes())
    tables = (tmp_path / "s.amkt").read_bytes()
    assert pack(text) == tables
    assert unpack(tables).n_queues == 2
    assert f"{text.n_tasks} tasks on 2 queues, 5 hops a layer" in capsys.readouterr().err


def test_without_a_file_json_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", MODEL, "--queues", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "amk.schedule/1"


@pytest.mark.parametrize(
    ("extra", "hops"),
    [([], 5), (["--config", "fuse_combine=false"], 6), (["--config", "fuse_combine=false", "--config", "tiles_per_queue=3"], 6)],
)
def test_config_reaches_the_schedule(extra: list[str], hops: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", MODEL, "--queues", "3", "-o", str(tmp_path / "s.amkt"), *extra]) == 0
    assert f"{hops} hops a layer" in capsys.readouterr().err


def test_ranks_reach_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["lower", MODEL, "--queues", "8", "--ranks", "3x2", "-o", str(tmp_path / "s.amkt")]
    assert cli.main(argv) == 0
    assert "tasks on 6 queues, 7 hops a layer" in capsys.readouterr().err
    assert unpack((tmp_path / "s.amkt").read_bytes()).meta["ranks"] == 3
    for wrong in ("3", "0x2", "3x17", "ax2"):
        with pytest.raises(SystemExit):
            cli.main([*argv, "--ranks", wrong])
        assert "COUNTxCLUSTER" in capsys.readouterr().err


def test_targets_bring_their_queues(tmp_path: Path) -> None:
    cli.main(["lower", MODEL, "--target", "l4", "-o", str(tmp_path / "s.amkt")])
    assert unpack((tmp_path / "s.amkt").read_bytes()).n_queues == 58


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--target", "gtx970"], "rtx5090"),
        (["--config", "speed=11"], "tiles_per_queue"),
        (["--context", "9000"], "8192"),
        (["--batch", "17"], "1 to 16"),
        (["-o", "schedule.txt"], ".amkt"),
        (["-o", "/no/such/folder/s.json"], "/no/such/folder/s.json"),
    ],
)
def test_bad_input_says_what_is_required(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lower", MODEL, *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_failed_write_keeps_the_old_file_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "s.json"
    target.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as e:
        options.write_whole(target, b"new")
    assert e.value.filename == str(target)
    assert os.listdir(tmp_path) == ["s.json"]
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (538_060_032, "538.1 MB"), (32_121_044_992, "32.1 GB")]
)
def test_sizes_in_powers_of_ten(n: int, text: str) -> None:
    assert options.size(n) == text
