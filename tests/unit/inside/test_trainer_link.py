"""A run and the trainer around it: checkpoints that it wrote, stops through its own API, updates that are not torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.inside.trainer_link import TrainerLink
from holdfast.probe.rows import last_rows
from holdfast.signals.actions import Action
from holdfast.signals.run_folder import RunFolder


def train(run: Any, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def test_a_checkpoint_of_the_trainer_is_listed_and_verified_and_a_torn_one_is_a_finding(parts: Any, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole.pt", tmp_path / "torn.pt"
    torch.save(nn.Linear(64, 64).state_dict(), whole)
    torn.write_bytes(whole.read_bytes()[:5000])
    with holdfast.watch(*parts, folder=tmp_path / "runs", name="a", control=False) as run:
        train(run, *parts)
        run.saved(whole)
        run.saved(torn, step=2)
    journal = list(RunFolder.open(tmp_path / "runs/a").journal)
    assert [(row["path"], row["step"]) for row in journal if row.get("event") == "saved"] == [(str(whole), 4), (str(torn), 2)]
    assert [row["path"] for row in journal if row.get("event") == "verified"] == [str(whole)]
    (finding,) = [row for row in journal if row["kind"] == "finding"]
    assert (finding["code"], finding["evidence"]["path"], finding["step"]) == ("checkpoint-torn", str(torn), 2)


def test_a_file_that_is_written_again_while_it_is_verified_is_not_torn(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    link = TrainerLink(run, place=lambda: {"step": 1}, on_error=lambda what, error: pytest.fail(f"{what}: {error}"))
    jobs: list[Callable[[], None]] = []
    link._verifying.submit = jobs.append  # type: ignore[method-assign]
    path = tmp_path / "last.pt"
    torch.save(nn.Linear(64, 64).state_dict(), path)
    link.wrote(path, None, is_listed=True)
    path.write_bytes(path.read_bytes()[:5000])  # the next save has begun
    jobs[0]()
    assert list(run.journal) == []


def test_heal_stops_through_the_trainer_if_it_can_and_ends_the_process_otherwise(parts: Any, tmp_path: Path) -> None:
    asked: list[Any] = []
    with holdfast.watch(*parts, folder=tmp_path, name="a", policy="heal", control=False) as run:
        train(run, *parts)
        control = run._scope.trainings[-1].control
        stop = Action("stop", step=4, because="loss-plateau", settings={"why": "no improvement", "code": 0})
        run.ask_trainer(stop=lambda *reason: asked.append(reason), save=lambda: asked.append("save"))
        control._apply_queued(_Queued(stop), 4)
        control._apply_queued(_Queued(Action("save-checkpoint", step=4, because="loss-plateau")), 4)
        assert asked == [("no improvement", 0), "save"]
        run.ask_trainer()
        with pytest.raises(SystemExit):
            control._apply_queued(_Queued(stop), 4)


class _Queued:
    """An action as the queue hands it out."""

    def __init__(self, action: Action) -> None:
        self.action, self.number, self.at = action, 1, 4


def test_updates_without_a_step_of_the_optimizer_are_recorded_from_the_first_backward_pass_on(parts: Any, tmp_path: Path) -> None:
    model, optimizer = parts
    with holdfast.watch(model, optimizer, folder=tmp_path, name="a", control=False) as run:
        updated = run.updates(optimizer)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
            updated()
    rows = last_rows(tmp_path / "a/rank-0", "steps", ("step", "lr", "backwards"), 10)
    assert rows["step"].tolist() == [0, 1, 2] and rows["lr"].tolist() == [0.01] * 3 and rows["backwards"].tolist() == [1] * 3


def test_a_trainer_that_resumed_counts_on(parts: Any, tmp_path: Path) -> None:
    with holdfast.watch(*parts, folder=tmp_path, name="a", control=False) as run:
        run.resumed(tmp_path / "checkpoint-40", step=40)
        train(run, *parts)
        assert run.num_steps == 44
    assert last_rows(tmp_path / "a/rank-0", "steps", ("step",), 10)["step"].tolist() == [40, 41, 42, 43]
    assert not [row for row in RunFolder.open(tmp_path / "a").journal if row["kind"] == "finding"]
