from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.signals.registry import forget, live_runs, register, runtime_folder
from holdfast.signals.run_folder import RunFolder


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "runtime"
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base / "holdfast"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "run")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_live_run_is_listed_until_it_is_forgotten(run: RunFolder) -> None:
    register(run, os.getpid())
    assert [(live.folder, live.pid) for live in live_runs()] == [(run.path, os.getpid())]
    forget(os.getpid())
    forget(os.getpid())
    assert live_runs() == []


def test_a_run_whose_process_died_is_taken_off_the_list(run: RunFolder, runtime: Path) -> None:
    register(run, dead_pid())
    assert live_runs() == []
    assert list(runtime.iterdir()) == []


def test_a_run_whose_folder_was_deleted_is_taken_off_the_list(run: RunFolder) -> None:
    register(run, os.getpid())
    (run.path / "run.json").unlink()
    run.path.rmdir()
    assert live_runs() == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "folder": "/"}', json.dumps({"pid": 2**80, "folder": "/"})]
)
def test_a_broken_entry_hides_no_other_run(run: RunFolder, runtime: Path, content: str) -> None:
    register(run, os.getpid())
    (runtime / "1.json").write_text(content)
    assert [live.pid for live in live_runs()] == [os.getpid()]


def test_the_list_belongs_to_its_user_alone(runtime: Path) -> None:
    assert runtime_folder() == runtime
    assert runtime.stat().st_mode & 0o777 == 0o700


def test_a_list_planted_by_someone_else_is_not_used(run: RunFolder, runtime: Path, tmp_path: Path) -> None:
    runtime.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        runtime_folder()
    register(run, os.getpid())
    assert live_runs() == []
    assert not list(tmp_path.glob("*.json"))


def test_without_a_runtime_folder_the_temporary_one_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_folder() == tmp_path / f"holdfast-{os.getuid()}"
