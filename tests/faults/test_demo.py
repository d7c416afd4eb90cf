"""The first thing a new user types must work, within a minute, and leave a run behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_run import environment, typed

ROOT = Path(__file__).parents[2]


def test_the_demo_breaks_its_training_and_heals_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "demo", "--epochs", "12"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "step" in done.stdout and "loss" in done.stdout  # the live view, as lines
    assert "update skipped" in done.stdout and "rolled back" in done.stdout  # the journal
    told = done.stdout[done.stdout.index("Holdfast repaired it") :]  # and at its end the diagnosis of what it broke
    assert "likely cause: data non-finite" in told and "likely cause: weights damaged" in told
    alone, healed = (float(right) for right in re.findall(r"Holdfast +epoch +12: accuracy ([\d.]+) %", done.stdout))
    assert alone < 50 and healed > 90
    assert "What to try next" in done.stderr


def test_the_demo_without_scikit_learn_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['sklearn'] = None; from holdfast.cli.main import main; sys.argv[1:] = ['demo']; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "holdfast[demo]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [pytest.param("train_digits", marks=pytest.mark.slow), "watch_digits"])
def test_every_example_runs_and_is_recorded(name: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / f"{name}.py"
    start = [] if "watch" in example.stem else ["-m", "holdfast", "run", "--name", example.stem, "--"]
    command = [sys.executable, *start, *([sys.executable] if start else []), str(example)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    answer = typed("query", "--json", "SELECT COUNT(*) AS steps, COUNT(loss) AS losses FROM steps", folder=tmp_path)
    assert answer.stdout.strip() in ('[{"steps": 600, "losses": 600}]', '[{"steps": 580, "losses": 580}]')
