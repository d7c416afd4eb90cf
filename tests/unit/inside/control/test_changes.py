"""What the script says about its settings is written down, and compared with where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoints.write import write_checkpoint
from holdfast.inside import watch as watching
from holdfast.signals.run_folder import RunFolder


@pytest.fixture(autouse=True)
def no_side_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_start_side_process", lambda run: None)


def changes(folder: Path) -> list[str]:
    return [entry["what"] for entry in RunFolder.open(folder).journal if entry["kind"] == "change"]


def test_settings_that_differ_from_the_checkpoint_are_a_change(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "checkpoints", 40, {}, settings={"batch": 32, "deep_supervision": False, "width": 8})
    with holdfast.watch(name="next", folder=tmp_path) as run:
        run.settings(batch=64, deep_supervision=True, width=8)
        run.resumed(source)
    assert changes(run.folder) == ["batch 32 -> 64; deep_supervision False -> True"]
    assert run._scope.run.info()["settings"] == {"batch": 64, "deep_supervision": True, "width": 8}


def test_the_same_settings_are_no_change_and_a_run_can_be_the_source(tmp_path: Path) -> None:
    with holdfast.watch(name="first", folder=tmp_path) as first:
        first.settings(batch=32)
    with holdfast.watch(name="second", folder=tmp_path) as second:
        second.settings(batch=32)
        second.resumed(first.folder)
    assert changes(second.folder) == []


def test_a_source_without_settings_is_said_and_nothing_breaks(tmp_path: Path) -> None:
    with holdfast.watch(name="run", folder=tmp_path) as run:
        run.resumed(tmp_path / "nowhere")
    (finding,) = [entry for entry in RunFolder.open(run.folder).journal if entry["kind"] == "finding"]
    assert "not a checkpoint or run" in finding["evidence"]["error"]


def test_rules_leave_the_name_of_the_run_alone(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, name="mine", folder=tmp_path, policy="guard", rules={"loss-spike": "observe"}) as run:
        assert run.name == "mine"
