"""fleet/check_card.sh: a card has one part at a time, no part is left out or done twice, and what failed is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "fleet" / "check_card.sh"
PARTS = ("robust", "crowd", "time", "rows", "price")
FAKE = """\
#!/usr/bin/env bash
lock=$LOCKS/${CUDA_VISIBLE_DEVICES:-none}
mkdir "$lock" || echo "two parts on one card" >>"$LOCKS/clash"
echo "card ${CUDA_VISIBLE_DEVICES:-none}: $*"
sleep 0.2
rmdir "$lock"
case "$*" in *crowd*) exit 3 ;; esac
"""


@pytest.mark.parametrize("cards", ["", "0 1", "2 0 1"])
def test_every_part_runs_once_and_alone_on_its_card(cards: str, tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "fleet")
    python, locks, out = tmp_path / "python", tmp_path / "locks", tmp_path / "out"
    python.write_text(FAKE)
    python.chmod(0o755)
    locks.mkdir()
    told = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "CARDS")}
    environment = {**told, "PYTHON": str(python), "LOCKS": str(locks), **({"CARDS": cards} if cards else {})}
    done = subprocess.run(["bash", script, str(out), *PARTS], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    lines = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}
    assert lines == {name: "FAIL" if name == "crowd" else "ok" for name in PARTS}
    assert len(done.stdout.splitlines()) == len(PARTS)
    assert not (locks / "clash").exists()
    used = {(out / f"{name}.txt").read_text().partition(":")[0] for name in PARTS}
    assert used <= {f"card {c}" for c in cards.split() or ["none", *map(str, range(16))]}
    assert len(used) >= min(2, len(cards.split()) or 1)


def test_a_part_of_no_known_name_fails_and_says_so(tmp_path: Path) -> None:
    done = subprocess.run(["bash", SCRIPT, tmp_path, "no-such-part"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no part named no-such-part" in done.stdout
