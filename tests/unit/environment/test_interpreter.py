from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast.environment.interpreter import find_program, with_own_python


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs of another Python, first on PATH; no environment is active."""
    programs = tmp_path / "elsewhere"
    _program(programs / "python")
    _program(programs / "train-it")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    return programs


def _program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_python_is_the_one_that_holdfast_runs_in_though_nobody_has_activated_it(elsewhere: Path) -> None:
    own = str(Path(sys.executable).parent / "python")
    assert find_program("python") == own != str(elsewhere / "python")
    assert with_own_python(["python", "train.py"]) == [own, "train.py"]


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_comes_first(
    variable: str, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = _program(tmp_path / "active" / "bin" / "python")
    monkeypatch.setenv(variable, str(tmp_path / "active"))
    assert find_program("python") == active != str(elsewhere / "python")


def test_condas_base_is_active_in_every_shell_and_nobodys_choice(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "conda" / "bin" / "python")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert find_program("python") == str(Path(sys.executable).parent / "python") != str(elsewhere / "python")


def test_a_path_and_other_programs_stay_what_they_are(elsewhere: Path) -> None:
    named = [str(elsewhere / "python"), "train.py"]
    assert with_own_python(named) == named and find_program(named[0]) == named[0]
    assert find_program("train-it") == str(elsewhere / "train-it") and with_own_python(["train-it"]) == ["train-it"]
    assert find_program("no-such-program-here") is None
