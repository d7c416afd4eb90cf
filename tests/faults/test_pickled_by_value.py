"""What a script saves with dill is what it would save without Holdfast: dill takes an optimizer's class and functions along."""

from __future__ import annotations

import subprocess
from pathlib import Path

from holdfast_run import PYTHON, VICTIMS, environment, run

SCRIPT = str(VICTIMS / "saves_with_dill.py")


def plain(folder: Path, *words: str) -> str:
    """The script without Holdfast: what it prints."""
    done = subprocess.run([PYTHON, *words], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_optimizer_saved_with_dill_continues_with_holdfast_and_without(tmp_path: Path) -> None:
    expected = [plain(tmp_path, SCRIPT, "alone") for _ in range(2)]
    first = run(tmp_path, "--policy", "heal", PYTHON, SCRIPT, "watched")
    assert (first.returncode, first.stdout) == (0, expected[0]), first.stderr
    (tmp_path / "again").write_bytes((tmp_path / "watched").read_bytes())
    assert b"holdfast." not in (tmp_path / "watched").read_bytes(), "it must load where Holdfast is not installed"
    assert plain(tmp_path, SCRIPT, "watched") == expected[1]
    resumed = run(tmp_path, "--policy", "heal", PYTHON, SCRIPT, "again")
    assert (resumed.returncode, resumed.stdout) == (0, expected[1]), resumed.stderr
