"""What the tests of `inside` share.

Searches for living models go through all objects of the process: those that torch itself has made are set apart.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from quiet_process import one_thread, only_our_own_objects  # noqa: F401 - fixtures
from saving_script import LOAD, RENAME, REPLACE, SAVE
from watched_process import Watching

from holdfast.inside import watch as watched_runs
from holdfast.inside.arm import arm_from_environment, armed
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunFolder]]:
    """Starts a run in this process, as `holdfast run` does; what it has put into torch is out again at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)

    def start(policy: str = "observe", rules: str = "", name: str = "run") -> RunFolder:
        armed().close_all()
        folder = RunFolder.create(tmp_path / "runs", name, command=["python", "train.py"])
        settings = {"RUN": str(folder.path), "DEBUG": "raise", "POLICY": policy, "RULES": rules, "SAMPLING": ""}
        for key, value in settings.items():
            monkeypatch.setenv(f"HOLDFAST_{key}", value)
        gc.collect()
        arm_from_environment()
        return folder

    yield start
    armed().close_all()
    assert (torch.save, torch.load, os.replace, os.rename) == (SAVE, LOAD, REPLACE, RENAME)


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    """Everything is sampled at every step."""
    yield from _watched(tmp_path, monkeypatch, full=True)


@pytest.fixture
def seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    """Sampled as by default: some steps in the beginning, then every ten or so."""
    yield from _watched(tmp_path, monkeypatch, full=False)


def _watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool) -> Iterator[Watching]:
    run = RunFolder.create(folder, "run")
    monkeypatch.setenv("HOLDFAST_RUN", str(run.path))
    monkeypatch.setenv("HOLDFAST_SAMPLING", "full" if full else "")
    monkeypatch.setenv("HOLDFAST_DEBUG", "raise")
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)
    torch.manual_seed(0)
    gc.collect()  # models and optimizers of other tests
    watching = Watching(run)
    yield watching
    told = [finding["code"] for finding in watching.close().findings]
    assert all(code.startswith("non-finite-") for code in told), told  # what a test made so; nothing of Holdfast's own


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of Holdfast's is raised, and not only told."""
    monkeypatch.setenv("HOLDFAST_DEBUG", "raise")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No side process, no outer run, and nothing left behind."""
    monkeypatch.setattr(watched_runs, "_start_side_process", lambda _run: None)
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_RUN", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    yield
    armed().close_all()
    watched_runs._open_runs.clear()
