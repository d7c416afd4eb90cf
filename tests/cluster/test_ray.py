"""Two real Ray workers, one killed: Ray restarts both, from a checkpoint that Holdfast has verified."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder

PYTHON = os.environ.get("HOLDFAST_RAY_PYTHON", "")
TRAINING = Path(__file__).with_name("ray_training.py")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not PYTHON, reason="make test-ray sets up Ray and torchft")]


def train(folder: Path, *, killed: bool, damage: bool) -> list[RunFolder]:
    words = [PYTHON, str(TRAINING), str(folder), str(int(killed)), str(int(damage))]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=800)
    runs = [RunFolder.open(path) for path in (folder / "runs").iterdir() if not path.is_symlink()]
    return sorted(runs, key=lambda run: run.info()["started"])


@pytest.mark.parametrize("damage", [False, True])
def test_a_killed_worker_is_restarted_from_a_verified_checkpoint(tmp_path: Path, damage: bool) -> None:
    runs = train(tmp_path / "killed", killed=True, damage=damage)
    assert len(runs) == 2 and [[one.rank for one in run.recordings()] for run in runs] == [[0, 1], [0, 1]]
    metrics = [last_rows(run.recordings()[0].path, "evaluations", ("name",), 100)["name"].tolist() for run in runs]
    assert all("val_loss" in names for names in metrics), metrics
    findings = [row for run in runs for row in run.journal if row["kind"] == "finding" and row["severity"] != "info"]
    assert {row["code"] for row in findings} <= {"process-died"}, findings
    assert {int((tmp_path / "killed" / f"resumed-{rank}").read_text()) for rank in (0, 1)} <= ({1, 2} if damage else {1, 2, 3})
    train(tmp_path / "whole", killed=False, damage=False)
    assert (tmp_path / "killed" / "weights.json").read_text() == (tmp_path / "whole" / "weights.json").read_text()
