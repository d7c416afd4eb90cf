"""What a real shell completes after `holdfast`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BASH = """
eval "$(holdfast --show-completion)"
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _holdfast_completion holdfast; echo "${COMPREPLY[*]}"; }
try holdfast diagn
try holdfast diagnose dig
try holdfast run --hang
try holdfast run --to wa
try holdfast run -- pyth
"""
WHAT_BASH_SAYS = ["diagnose", "digits", "--hang-after", "wandb", ""]
OTHERS = {  # their scripts ask in the same way; the menu itself needs a terminal
    "zsh": """
compdef() { print -r -- "$1" >/dev/null }
eval "$(holdfast --show-completion)"
whence -w _holdfast_completion
_TYPER_COMPLETE_ARGS="holdfast diagnose dig" _HOLDFAST_COMPLETE=complete_zsh holdfast
""",
    "fish": """
holdfast --show-completion | source
complete --do-complete "holdfast diagnose dig"
""",
}


def ask(*words: str) -> str:
    """What a shell prints in which `holdfast` is this Python's."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_bash_completes_verbs_options_trackers_and_the_names_of_runs(training: Callable[..., Any]) -> None:
    training("digits", live=False)
    assert ask("bash", "-c", BASH).splitlines() == WHAT_BASH_SAYS


@pytest.mark.slow
@pytest.mark.parametrize("shell", OTHERS)
def test_zsh_and_fish_complete_the_names_of_runs(shell: str, training: Callable[..., Any]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    training("digits", live=False)
    assert "digits" in ask(shell, "-c", OTHERS[shell])


def test_the_runs_of_this_folder_are_offered(training: Callable[..., Any]) -> None:
    from holdfast.cli.options import run_names

    training("digits", live=False)
    training("other", live=False)
    assert run_names("dig") == ["digits"] and set(run_names("")) == {"digits", "other"}


def test_the_options_of_run_are_offered_and_nothing_behind_the_dashes() -> None:
    import typer.main

    from holdfast.cli.app import app

    command: Any = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]

    def offered(words: list[str], incomplete: str) -> list[str]:
        with command.make_context("run", words, resilient_parsing=True) as context:
            return [item.value for item in command.shell_complete(context, incomplete)]

    assert offered([], "--not") == ["--notify"] and offered(["--policy"], "h") == ["heal"]
    assert offered(["--", "python"], "") == []
