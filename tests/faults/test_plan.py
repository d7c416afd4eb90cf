"""`holdfast plan` on real small trainings: what it predicts is what a larger batch then needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, Done, typed
from warm_command import WarmCommand
from watched_training import WarmPython

from holdfast.environment.plan import factory
from holdfast.environment.plan.trial import _GIVE_BACK

FACTORY = """
import torch
from torch import nn

def wide(batch):
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*blocks), torch.randn(batch, 256, 128)
"""
HAND_MADE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""

SAMPLED = """
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
data = TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, drop_last=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""

FEW_SAMPLES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(100, 64), torch.randn(100, 1)), batch_size=16)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""


def plan(folder: Path, *words: str) -> Done:
    return typed("plan", *words, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "made.py").write_text(FACTORY)
    return folder


@pytest.fixture(scope="module")
def lean_command(folder: Path) -> Iterator[WarmCommand]:
    """A command in a Python of its own that gives back what is freed at once, as the processes that are measured do."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _GIVE_BACK.items():
            patch.setenv(name, value)
        warm = WarmPython(folder)
    command = WarmCommand(warm)
    yield command
    command.close()
    warm.close()


@pytest.fixture(scope="module")
def planned(folder: Path, lean_command: WarmCommand) -> dict[str, Any]:
    """The program that a factory is measured with, as `made:wide` would start it."""
    command = [*lean_command.words, str(factory.__file__), "made:wide"]
    done = plan(folder, "--json", "--effective", "4096", "--rows", "12000000", "--", *command)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_a_sample_needs_what_its_activations_take(planned: dict[str, Any]) -> None:
    activations = 4 * 4 * 256 * 128 * 4  # kept by each Linear and each GELU
    assert 0.5 * activations < planned["per_sample"] < 2.5 * activations


def test_weights_gradients_and_the_state_of_the_optimizer_are_told(planned: dict[str, Any]) -> None:
    parameters = 4 * 2 * (128 * 128 + 128) * 4
    assert planned["parameters"] == planned["gradients"] == parameters
    assert planned["optimizer"] == pytest.approx(2 * parameters, rel=0.01)


def test_levers_cards_host_and_predictions_are_told(planned: dict[str, Any]) -> None:
    assert {lever["lever"] for lever in planned["levers"]} >= {"activation checkpointing", "half the batch, accumulate 2"}
    assert planned["fits"][0]["card"] == "8 GB"
    assert planned["fits"][0]["batch"] > 100
    assert planned["host"]["8"] > planned["host"]["0"]
    assert planned["predictions"] == 2_400_000_000


def test_a_script_without_a_loader_is_told_what_to_do(tmp_path: Path, lean_command: WarmCommand) -> None:
    (tmp_path / "t.py").write_text(HAND_MADE)
    done = plan(tmp_path, "--", *lean_command.words, "t.py")
    assert done.returncode == 2
    assert "do not come from a DataLoader" in done.stderr
    assert "holdfast plan train:make" in done.stderr


def test_no_batch_larger_than_the_data_set_is_recommended(tmp_path: Path, lean_command: WarmCommand) -> None:
    (tmp_path / "t.py").write_text(FEW_SAMPLES)
    done = plan(tmp_path, "--json", "--", *lean_command.words, "t.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["dataset_size"] == 100 and {fits["batch"] for fits in told["fits"]} == {100}
    assert max(point["batch"] for point in told["points"]) == 100


def test_a_script_that_makes_few_steps_is_planned_from_the_batches_that_leave_enough(
    tmp_path: Path, lean_command: WarmCommand
) -> None:
    (tmp_path / "t.py").write_text(FEW_SAMPLES.replace("range(5)", "range(1)"))
    done = plan(tmp_path, "--json", "--", *lean_command.words, "t.py")
    assert done.returncode == 0, done.stderr
    plan_row = json.loads(done.stdout)
    assert [point["batch"] for point in plan_row["points"]] == [16, 32]
    assert {fits["batch"] for fits in plan_row["fits"]} == {100}  # although no batch of 100 was measured


@pytest.mark.slow
def test_a_loader_whose_batches_cannot_be_changed_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SAMPLED)
    done = plan(tmp_path, "--", PYTHON, "t.py")
    assert done.returncode == 2
    assert "its batches have one size" in done.stderr and "holdfast plan train:make" in done.stderr, done.stderr


def test_a_command_that_fails_shows_its_last_lines_and_no_traceback_of_ours(tmp_path: Path) -> None:
    done = plan(tmp_path, "nowhere:make")
    assert done.returncode == 2
    assert "No module named 'nowhere'" in done.stderr
    assert "holdfast/cli" not in done.stderr
