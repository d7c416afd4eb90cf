from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import NewerFormat, NoSuchRun, NotARunFolder, UsageError
from holdfast.probe.target import resolve, runs_here
from holdfast.signals import registry
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the runs alpha, beta and, newest, gamma."""
    for age, name in enumerate(("alpha", "beta", "gamma")):
        run = RunFolder.create(tmp_path / "runs", name, started=1000.0 + age)
        os.utime(run.path / "run.json", (1000 + age, 1000 + age))
    return tmp_path


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child of its own; prints the child's id."""
    code = (
        "import subprocess, sys\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
        "print(grandchild.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_nothing_means_what_latest_points_to(here: Path) -> None:
    assert resolve(None, here=here).name == "gamma"
    (here / "runs" / "latest").unlink()
    (here / "runs" / "latest").symlink_to("alpha")
    assert resolve(None, here=here).name == "alpha"


def test_nothing_means_the_newest_run_when_latest_points_nowhere(here: Path) -> None:
    shutil.rmtree(here / "runs" / "gamma")
    assert resolve("", here=here).name == "beta"


def test_nothing_means_the_newest_live_run_where_there_are_none_here(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    registry.register(RunFolder(here / "runs" / "beta"), os.getpid())
    assert resolve(None, here=tmp_path_factory.mktemp("elsewhere")).name == "beta"


def test_a_run_that_ended_before_its_first_step_is_not_picked_while_another_lives(here: Path) -> None:
    RunFolder(here / "runs" / "gamma").update_info(ended=1003.0, exit_code=1)
    assert resolve(None, here=here).name == "gamma"
    registry.register(RunFolder(here / "runs" / "alpha"), os.getpid())
    assert resolve(None, here=here).name == "alpha"


def test_who_asks_a_training_gets_the_newest_live_one_and_who_reads_the_newest(here: Path) -> None:
    gamma = RunFolder(here / "runs" / "gamma")
    gamma.claim(0)
    gamma.update_info(ended=1003.0, exit_code=0)
    registry.register(RunFolder(here / "runs" / "beta"), os.getpid())
    assert resolve(None, here=here).name == "gamma" and resolve(None, here=here, live=True).name == "beta"


def test_nothing_at_all_says_how_to_start_a_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun) as caught:
        resolve(None, here=tmp_path)
    assert "holdfast run" in caught.value.fix


@pytest.mark.parametrize("target", ["runs/beta", "beta", "./runs/beta", "runs/beta/"])
def test_a_run_is_found_by_folder_and_by_name(here: Path, target: str) -> None:
    assert resolve(target, here=here).path == here / "runs" / "beta"


def test_an_absolute_folder_and_the_folder_of_a_rank_are_found(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (here / "runs" / "beta" / "rank-0").mkdir()
    assert resolve(str(here / "runs" / "beta"), here=elsewhere).name == "beta"
    assert resolve(str(here / "runs" / "beta" / "rank-0"), here=elsewhere).name == "beta"


def test_a_live_run_is_found_by_name_from_anywhere(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    registry.register(RunFolder(here / "runs" / "alpha"), os.getpid())
    assert resolve("alpha", here=tmp_path_factory.mktemp("elsewhere")).name == "alpha"


def test_a_wrong_name_gets_the_nearest_ones(here: Path) -> None:
    with pytest.raises(NoSuchRun, match="near it: gamma"):
        resolve("gama", here=here)
    with pytest.raises(NoSuchRun, match="near it: beta"):
        resolve("runs/betta", here=here)


def test_a_folder_that_is_no_run_and_a_file_are_refused_in_words(here: Path) -> None:
    (here / "data").mkdir()
    (here / "train.py").write_text("")
    with pytest.raises(NotARunFolder, match=r"holds no run\.json"):
        resolve("data", here=here)
    with pytest.raises(NotARunFolder, match="is a file"):
        resolve("train.py", here=here)
    with pytest.raises(NotARunFolder):
        resolve("runs", here=here)


def test_a_folder_of_a_newer_version_is_refused_with_the_upgrade(here: Path) -> None:
    (here / "runs" / "beta" / "run.json").write_text(json.dumps({"format": 99, "name": "beta"}))
    with pytest.raises(NewerFormat) as caught:
        resolve("beta", here=here)
    assert "upgrade" in caught.value.fix
    assert [run.name for run in runs_here(here)] == ["gamma", "alpha"]


@pytest.mark.parametrize("target", ["gpu17:8080", "10.0.0.3:80", "[::1]:9000"])
def test_a_server_is_no_run_of_this_machine(here: Path, target: str) -> None:
    with pytest.raises(UsageError, match="is a server"):
        resolve(target, here=here)


def test_any_process_of_a_run_means_that_run(here: Path, child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    registry.register(RunFolder(here / "runs" / "alpha"), child.pid)
    assert resolve(str(child.pid), here=here).name == "alpha"
    assert resolve(str(grandchild), here=here).name == "alpha"


def test_the_process_that_trains_means_its_run_even_after_its_death(here: Path) -> None:
    run = RunFolder(here / "runs" / "beta")
    Recorder.start(run, 0).close()
    info = run.recordings()[0].path / "process.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "pid": 4194300}))
    assert resolve("4194300", here=here).name == "beta"


def test_a_process_that_is_no_run_and_one_that_is_not_there_are_told_apart(here: Path, child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NoSuchRun, match=r"process \d+ \(.+\) belongs to no run"):
        resolve(str(child.pid), here=here)
    with pytest.raises(NoSuchRun, match="there is no process 4194301"):
        resolve("4194301", here=here)


def test_a_run_whose_name_is_a_number_is_found(here: Path) -> None:
    RunFolder.create(here / "runs", "42")
    assert resolve("42", here=here).name == "42"
