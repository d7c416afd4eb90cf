from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.errors import UsageError
from holdfast.supervisor.command import find_command
from holdfast.supervisor.launch import SITE, Settings, prepare


@every_case(
    ("theirs", "path"),
    [(None, f"{SITE}"), ("", f"{SITE}"), ("/a:/b", f"{SITE}:/a:/b"), (f"{SITE}:/a", f"{SITE}:/a")],
)
def test_our_folder_comes_first_on_pythonpath_and_nothing_else_is_added(
    theirs: str | None, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if theirs is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", theirs)
    launch = prepare(find_command(["true"]), Settings(folder=tmp_path))
    assert launch.environment()["PYTHONPATH"] == path
    assert (SITE / "sitecustomize.py").is_file()


def test_the_environment_carries_the_run_to_all_processes_of_the_command(tmp_path: Path) -> None:
    launch = prepare(find_command(["true"]), Settings(folder=tmp_path, name="a", budget=0.02))
    environment = launch.environment("1=2:3:4")
    assert environment["HOLDFAST_RUN"] == str(tmp_path / "a")
    assert environment["HOLDFAST_BUDGET"] == "0.02"
    assert environment["HOLDFAST_POLICY"] == "observe"
    assert environment["HOLDFAST_SUPERVISOR"] == str(os.getpid())
    assert environment["HOLDFAST_STREAMS"] == "1=2:3:4"
    assert "HOLDFAST_RUN" not in os.environ


@every_case("name", ["", ".", "..", ".hidden", "a/b", "latest", " a", "a\n", "x" * 201])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        Settings(name=name)
    assert "--name" in refused.value.fix


@every_case("name", ["a", "first try", "läuft", "a.b-2_c"])
def test_any_other_name_will_do(name: str, tmp_path: Path) -> None:
    launch = prepare(find_command(["true"]), Settings(name=name, folder=tmp_path))
    assert launch.run is not None and launch.run.name == name


def test_a_tracker_that_is_not_installed_is_named_with_the_command_and_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.chdir(tmp_path)
    launch = prepare(find_command(["true"]), Settings(name="a", folder=Path("runs"), to=("tensorboard", "trackio")))
    said = launch.line.splitlines()[1:]
    assert said == ["holdfast: trackio is not installed: pip install trackio, then: holdfast sync a --to trackio"]
    assert launch.run is not None and launch.run.info()["to"] == ["tensorboard", "trackio"]
