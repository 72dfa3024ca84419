"""Claims about the nightly workflow: it is what GitHub takes, and its command is one that amk takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from amk_core import cli

yaml = pytest.importorskip("yaml", reason="reading the workflow needs PyYAML: pip install pyyaml")
WORKFLOW = Path(__file__).parents[2] / ".github" / "workflows" / "nightly.yml"


@pytest.fixture(scope="module")
def doc() -> dict[Any, Any]:
    read: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    return read


def test_it_is_a_workflow_that_no_fork_queues_for(doc: dict[Any, Any]) -> None:
    on = doc[True]  # YAML 1.1 reads the key "on" as a truth value
    assert re.fullmatch(r"\d+ \d+ \* \* \*", on["schedule"][0]["cron"])
    assert doc["permissions"] == {"contents": "read"}
    (job,) = doc["jobs"].values()
    assert job["runs-on"][0] == "self-hosted"
    assert "vars.AMK_FLEET" in job["if"]
    assert job["timeout-minutes"] > 0
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)


def test_its_command_is_one_that_amk_takes(doc: dict[Any, Any]) -> None:
    steps = next(iter(doc["jobs"].values()))["steps"]
    (line,) = [s["run"] for s in steps if "amk fleet run" in s.get("run", "")]
    words = line.replace("\\\n", " ").replace('"', "").split()
    args = cli.build_parser(words[1:]).parse_args(words[1:])
    assert (args.runner, args.batches, args.positions) == ("ray", "1,4,16", "128,1024,4096")


def test_nothing_that_a_caller_types_is_pasted_into_a_shell(doc: dict[Any, Any]) -> None:
    steps = next(iter(doc["jobs"].values()))["steps"]
    assert not [s["run"] for s in steps if "${{" in s.get("run", "")]
