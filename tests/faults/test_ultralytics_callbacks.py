"""Ultralytics' callbacks, with the real package in its own environment: it needs torchvision, and has the licence AGPL-3.0."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, environment, run, typed
from trained_with import KILLED, cut_short, steps_and_epochs, verified
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ultralytics") is None, reason="Ultralytics is not installed: pip install ultralytics"
    ),
]
SCRIPT = str(VICTIMS / "ultralytics_trainer.py")


def alone(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the script without `holdfast run`, and what it printed last."""
    command = [sys.executable, SCRIPT, *words]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def listed(folder: Path, name: str) -> dict[str, str]:
    rows = json.loads(typed("checkpoints", "list", name, "--json", folder=folder).stdout)
    return {Path(row["path"]).name: row["state"] for row in rows}


def test_evaluations_and_checkpoints_of_a_plain_script_are_recorded(tmp_path: Path) -> None:
    alone(tmp_path)
    recorded = Recorded(RunFolder.open(tmp_path / "runs/yolo"))
    assert recorded.steps["epoch"] == [0, 0, 1, 1, 2, 2]
    assert steps_and_epochs(recorded, "metrics/mAP50(B)") == [(2, 0), (4, 1), (6, 2)]
    names = ("last.pt", "best.pt", "epoch0.pt", "epoch1.pt", "epoch2.pt")
    assert set(verified(recorded)) == set(names)
    assert listed(tmp_path, "yolo") == dict.fromkeys(names, "clean")


def test_ultralytics_resumes_from_the_checkpoint_before_a_torn_one_and_counts_on(tmp_path: Path) -> None:
    assert alone(tmp_path, "--kill-at", "3", "--epochs", "4")[0] == KILLED
    weights = tmp_path / "out/weights"
    before = (weights / "epoch2.pt").stat().st_mtime - 0.5
    for path in (path for path in weights.iterdir() if path.name in ("epoch2.pt", "last.pt") or path.stat().st_mtime > before):
        cut_short(path)
    _, end = alone(tmp_path, "--resume")
    assert Path(end["from"]).name in ("epoch1.pt", "best.pt"), "both are of that epoch, if it was the best"
    assert (end["epoch"], end["updates"]) == (4, 8)
    steps = Recorded(RunFolder.open(tmp_path / "runs/yolo-2")).steps
    assert (steps["step"], steps["epoch"]) == ([4, 5, 6, 7], [2, 2, 3, 3])


def test_under_heal_a_killed_training_continues_bit_for_bit(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    _, whole = alone(folders[0], "--policy", "heal", "--epochs", "5")
    assert alone(folders[1], "--policy", "heal", "--epochs", "5", "--kill-at", "3")[0] == KILLED
    _, resumed = alone(folders[1], "--policy", "heal", "--resume")
    assert (resumed["epoch"], resumed["updates"]) == (5, 10)
    assert resumed["weights"] == whole["weights"], "Ultralytics itself continues from averaged weights in half precision"


def test_patience_stops_through_the_trainers_flag_and_saves_by_its_means(tmp_path: Path) -> None:
    done = run(tmp_path, "--policy", "heal", "--patience", "4", "--name", "a", PYTHON, SCRIPT, "--epochs", "200", "--no-save")
    assert done.returncode == 0 and "has not improved for 4 evaluations" in done.stderr, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == ["a"], "it has joined the run"
    end, recorded = json.loads(done.stdout.splitlines()[-1]), Recorded(RunFolder.open(tmp_path / "runs/a"))
    assert end["epoch"] < 200 and end["stopped"] and end["updates"] == len(recorded.steps["step"])
    assert set(verified(recorded)) == {"last.pt", "best.pt"}, "the script had switched saving off: `heal` asked for it"
    assert not end["save"], "and it is off again"


def test_a_roll_back_leaves_the_counters_of_ultralytics_right(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--restarts", "0", "--name", "a")  # else the training is started again instead
    done = run(tmp_path, *words, PYTHON, SCRIPT, "--epochs", "60", "--lr-at", "45", "--no-save")
    assert done.returncode == 0, done.stderr
    recorded = Recorded(RunFolder.open(tmp_path / "runs/a"))
    (rolled,) = [row for row in recorded.run.journal if row.get("action") == "roll-back" and row["state"] == "done"]
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["epoch"] == 60 and recorded.steps["step"] == [*range(120)]
    assert end["updates"] == 120 - (rolled["at"] - rolled["to"]), "the averaged weights are as old as their count says"


def test_without_the_callbacks_the_steps_of_ultralytics_are_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", PYTHON, SCRIPT, "--without")
    assert done.returncode == 0, done.stderr
    steps = Recorded(RunFolder.open(tmp_path / "runs/a")).steps
    assert len(steps) == 6 and None not in (*steps["loss"], *steps["lr"], *steps["grad_norm"])


def test_nothing_of_holdfast_imports_ultralytics() -> None:
    source = Path(__file__).parents[2] / "src/holdfast"
    nodes = [(path, node) for path in source.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    imported = [(str(path), node.module or "") for path, node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    imported += [(str(path), name.name) for path, node in nodes if isinstance(node, ast.Import) for name in node.names]
    assert imported and [path for path, module in imported if module.partition(".")[0] == "ultralytics"] == []
