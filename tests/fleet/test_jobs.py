"""Claims about the jobs that a request makes."""

from __future__ import annotations

import sys

import pytest

from amk_bench.baselines import run as baselines_run
from amk_bench.fleet.devices import FleetError
from amk_bench.fleet.jobs import MODELS, Job, plan, position_groups


def test_one_job_for_each_device_model_batch_and_group_of_positions() -> None:
    jobs = plan(["h200", "l4"], models=["a", "b"], batches=[1, 16], groups=position_groups("128,1024/4096"))
    assert len(jobs) == 2 * 2 * 2 * 2 == len({job.key for job in jobs})
    assert {job.positions for job in jobs} == {(128, 1024), (4096,)}
    filled = jobs[0].filled("sm_90", "/suites", "/out.json")
    assert filled[:3] == [sys.executable, "-m", "amk_bench.baselines.run"]
    assert " ".join(filled[3:]) == "--model a --batch 1 --positions 128,1024 --seconds 3240 --out /out.json"


def test_the_command_of_a_job_is_one_that_its_program_takes(capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = plan(["h200"], models=MODELS[:1], baselines=["fused-graph"])
    with pytest.raises(SystemExit) as refused:
        baselines_run.main([*job.filled("sm_90", "/s", "/o")[3:], "--no-such-option"])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --no-such-option" in said


def test_a_pytest_suite_is_one_job_a_device_and_fails_where_the_card_is_not() -> None:
    gpu, cpu = plan(["l4", "cpu"], suite="parity", models=["m"], tier="quick")
    assert gpu.filled("sm_89", "/s", "/o")[1:] == [
        "-m", "pytest", "/s/parity", "-q", "--amk-arch=sm_89", "--amk-model=m", "--benchmark-json=/o", "--amk-quick",
        "--amk-require-hardware",
    ]  # fmt: skip
    assert "--amk-require-hardware" not in cpu.argv


def test_braces_that_are_no_place_stay_as_they_are() -> None:
    job = Job("h200", "s", "m", "bf16", 4, (1, 2), ("{python}x", "{model}/{precision}/{batch}/{positions}/{device}", "{other}"), 10)
    assert job.filled("sm_90", "/s", "/o")[1:] == ["m/bf16/4/1,2/h200", "{other}"]


def test_another_command_is_another_cell_and_another_limit_is_not() -> None:
    a, b, c = (plan(["h200"], models=["a"], baselines=x, limit_s=y)[0] for x, y in ([["u"], 1.0], [["v"], 1.0], [["u"], 2.0]))
    assert a.key != b.key
    assert a.key == c.key
    assert Job.from_json(a.to_json()) == a


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"precisions": ["fp32"]}, "fp32 pairs are those of --suite latency"),
        ({"devices": ["cpu"]}, "suite rivals needs a card"),
    ],
)
def test_what_cannot_be_measured_is_refused(request_: dict, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        plan(request_.pop("devices", ["h200"]), **request_)


@pytest.mark.parametrize("text", ["", "a", "1;2", "1,-2", "1,,2"])
def test_positions_that_are_none(text: str) -> None:
    with pytest.raises(FleetError):
        position_groups(text)
