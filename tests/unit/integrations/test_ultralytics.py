"""Ultralytics' callbacks, called as its trainer calls them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from every_case import every_case
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.ultralytics import HoldfastCallbacks


def trainer_in(folder: Path, epoch: int = 0) -> Any:
    """What the callbacks use of a trainer; `epoch` is the one that it starts with."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ema = SimpleNamespace(ema=deepcopy(model), updates=2 * epoch)
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(0))
    args, last = SimpleNamespace(save=True), folder / "last.pt"
    return SimpleNamespace(
        model=model,
        optimizer=optimizer,
        ema=ema,
        args=args,
        wdir=folder,
        last=last,
        start_epoch=epoch,
        epoch=epoch,
        metrics={},
        train_loader=loader,
    )


def train_an_epoch(trainer: Any, callbacks: HoldfastCallbacks) -> None:
    callbacks.on_train_epoch_start(trainer)
    list(trainer.train_loader)
    for _ in range(2):
        trainer.model(torch.randn(4, 3)).square().mean().backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    callbacks.on_train_epoch_end(trainer)
    callbacks.on_model_save(trainer)


def values(trainer: Any) -> list[torch.Tensor]:
    moments = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    order = trainer.train_loader.sampler.generator.get_state()
    return [value.clone() for value in (*trainer.model.parameters(), *trainer.ema.ema.parameters(), *moments, order)]


@every_case(("epoch", "is_exact"), [(2, True), (1, True), (3, False)])
def test_under_heal_a_resumed_training_has_the_weights_and_data_order_of_the_epoch_that_ultralytics_resumes_from(
    epoch: int, is_exact: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"name": "yolo", "folder": tmp_path / "runs", "policy": "heal"}
    callbacks, trainer, after = HoldfastCallbacks(**options), trainer_in(tmp_path / "weights"), {}
    callbacks.on_train_start(trainer)
    for trainer.epoch in range(2):
        train_an_epoch(trainer, callbacks)
        after[trainer.epoch + 1] = values(trainer)
    assert callbacks.states is not None
    callbacks.states.wait()
    callbacks.holdfast.end()

    resumed, again = HoldfastCallbacks(**options), trainer_in(tmp_path / "weights", epoch)
    for value in again.model.parameters():
        value.grad = torch.ones_like(value)
    again.optimizer.step()  # it has moments of its own, as after a load
    own = values(again)
    resumed.on_train_start(again)
    assert all(map(torch.equal, values(again), after[epoch] if is_exact else own))
    resumed.on_train_end(again)
    assert not (tmp_path / "weights/state").exists(), "only a resume needs it"
