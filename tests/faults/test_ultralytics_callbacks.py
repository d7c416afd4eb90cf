"""Ultralytics' callbacks, with the real package in its own environment: it needs torchvision, and has the licence AGPL-3.0."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, environment, run, typed
from trained_with import verified
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ultralytics") is None, reason="Ultralytics is not installed: pip install ultralytics"
    ),
]
SCRIPT = str(VICTIMS / "ultralytics_trainer.py")


def test_evaluations_and_checkpoints_of_a_plain_script_are_recorded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    recorded = Recorded(RunFolder.open(tmp_path / "runs/yolo"))
    assert recorded.steps["epoch"] == [0, 0, 1, 1, 2, 2]
    rows = recorded.table("evaluations").where(name="metrics/mAP50(B)", split="val")
    assert [(row["step"], row["epoch"]) for row in rows] == [(2, 0), (4, 1), (6, 2)]
    assert {"last.pt", "best.pt"} <= set(verified(recorded))
    listed = json.loads(typed("checkpoints", "list", "yolo", "--json", folder=tmp_path).stdout)
    assert {Path(row["path"]).name: row["state"] for row in listed} == {"last.pt": "clean", "best.pt": "clean"}


def test_patience_stops_through_the_trainers_flag_and_its_counters_are_right(tmp_path: Path) -> None:
    done = run(tmp_path, "--policy", "heal", "--patience", "4", "--name", "a", PYTHON, SCRIPT, "--epochs", "200")
    assert done.returncode == 0 and "has not improved for 4 evaluations" in done.stderr, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == ["a"], "it has joined the run"
    end = json.loads(done.stdout.splitlines()[-1])
    steps = Recorded(RunFolder.open(tmp_path / "runs/a")).steps
    assert end["epoch"] < 200 and end["stopped"] and end["updates"] == len(steps)
    assert (tmp_path / "out/weights/last.pt").exists()


def test_without_the_callbacks_the_steps_of_ultralytics_are_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", PYTHON, SCRIPT, "--without")
    assert done.returncode == 0, done.stderr
    steps = Recorded(RunFolder.open(tmp_path / "runs/a")).steps
    assert len(steps) == 6 and None not in (*steps["loss"], *steps["lr"], *steps["grad_norm"])


def test_nothing_of_holdfast_imports_ultralytics() -> None:
    source = Path(__file__).parents[2] / "src/holdfast"
    texts = {path: path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    importing = [str(path) for path, text in texts.items() if "\nimport ultralytics" in text or "\nfrom ultralytics" in text]
    assert importing == []
