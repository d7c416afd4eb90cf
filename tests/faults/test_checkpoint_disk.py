"""A disk that is full, gone or read-only costs the save: training goes on, the last good checkpoint stays, a finding says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoints import write
from holdfast.state import checkpoint_parts

pytestmark = pytest.mark.filterwarnings("ignore:holdfast")


@pytest.fixture
def disk(mount: Callable[..., Path]) -> Path:
    """A disk of two megabytes."""
    return mount("size=2m")


def fill(folder: Path, *, leave: int = 0) -> None:
    """Take all room but so many bytes."""
    with (folder / "ballast").open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(folder).free - leave) > 0:
            try:
                file.write(bytes(min(free, 1 << 16)))
            except OSError:
                return


class Training:
    """A watched training that saves into a store of its own; about 130 KB of state."""

    def __init__(self, runs: Path, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(100, 100)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.run = holdfast.watch(self.model, self.optimizer, folder=runs, name="run")
        self.store = holdfast.CheckpointStore(folder, keep_last=2)
        self.step = 0

    def save(self) -> Path | None:
        """Train a little and save."""
        self.step += 1
        self.model(torch.randn(4, 100)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.store.save(self.step, model=self.model, optimizer=self.optimizer, wait=True)

    def findings(self) -> list[str]:
        lines = (self.run.folder / "journal.jsonl").read_text().splitlines()
        return [row["code"] for row in map(json.loads, lines) if row["kind"] == "finding"]

    def is_good(self, step: int) -> bool:
        """Whether the newest checkpoint is of that step, and clean."""
        newest = self.store.newest_clean()
        return newest is not None and newest.name == f"step-{step:06d}" and newest == self.store.list()[-1].path


@pytest.fixture
def training(disk: Path, tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path, disk / "checkpoints")
    yield one
    one.run.close()


def test_a_full_disk_costs_the_save_and_there_is_saving_again_when_there_is_room(training: Training, disk: Path) -> None:
    assert training.save() and training.save() and training.is_good(2)
    fill(disk)
    assert [training.save() for _ in range(5)] == [None] * 5
    assert training.is_good(2) and len(training.store.list()) == 2
    assert {row["code"] for row in training.store.troubles} == {"disk-full"} and set(training.findings()) == {"disk-full"}
    (disk / "ballast").unlink()
    assert training.save() and training.is_good(8)
    assert not [path for path in training.store.folder.iterdir() if path.name.startswith(".")]


def test_the_disk_fills_up_in_the_middle_of_every_file(training: Training, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a page more room at each try, until one goes through."""
    monkeypatch.setattr(write, "_refuse_full_disk", lambda *_: None)
    training.save()
    leave, tries = 0, 0
    while True:
        (disk / "ballast").unlink(missing_ok=True)
        fill(disk, leave=leave)
        if training.save():
            break
        assert training.is_good(1), f"with {leave} bytes of room"
        assert sorted(path.name for path in training.store.folder.iterdir()) == ["step-000001"]
        leave, tries = leave + 4096, tries + 1
    assert tries > 30 and training.is_good(training.step)
    assert {row["code"] for row in training.store.troubles} == {"disk-full"}


def test_a_disk_that_becomes_read_only(training: Training, disk: Path) -> None:
    training.save()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert training.save() is None and training.is_good(1)
    assert training.findings() == ["checkpoint-not-saved"] and "Read-only" in training.store.troubles[0]["evidence"]["error"]
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert training.save() and training.is_good(3)


def test_a_folder_that_is_removed_while_it_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, tmp_path / "checkpoints")
    training.save()
    writing, removed, part = threading.Event(), threading.Event(), write._write_part

    def slow(*args: Any) -> dict[str, Any]:
        facts = part(*args)
        writing.set()
        assert removed.wait(600)
        return facts

    monkeypatch.setattr(write, "_write_part", slow)
    removing = threading.Thread(target=lambda: (writing.wait(600), shutil.rmtree(training.store.folder), removed.set()))
    removing.start()
    assert training.save() is None and training.findings() == ["checkpoint-not-saved"]
    removing.join()
    assert training.save() and training.is_good(3)
    training.run.close()


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    training = Training(tmp_path, tmp_path / "checkpoints")
    assert training.save() is None and training.findings() == ["checkpoint-not-saved"]
    (tmp_path / "checkpoints").unlink()
    assert training.save() and training.is_good(2)
    training.run.close()


def test_warnings_that_are_errors_are_not_errors_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, tmp_path / "checkpoints")

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(checkpoint_parts, "to_parts", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.save() is None
    assert training.findings() == ["checkpoint-not-saved"]
    training.run.close()
