"""A small training with all that has a state: resumable_training.py FOLDER OUT STEPS HOW SETTINGS.

HOW is `alone` (without Holdfast), `run` (holdfast.watch) or `store` (a bare CheckpointStore). SETTINGS is JSON: workers,
scheduler, scaler, ema, accumulate, stop (the batch after which it saves and ends), killed (it ends by SIGKILL right after the
save). Writes weights, states and the losses of every batch that it has seen to OUT.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import holdfast

folder, out, steps, how = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
settings: dict[str, Any] = {"workers": 0, "scheduler": None, "scaler": None, "ema": None, "accumulate": 1}
settings.update(json.loads(sys.argv[5]))


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Ten small images of each of three classes; each time they are a little different, by all three generators."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 6, 6), index / 30)
        image[0, index % 3] += 1.0
        if random.random() < 0.5:
            image = image.flip(-1)
        noise = torch.from_numpy(np.random.normal(size=(1, 6, 6)).astype(np.float32))
        return image + 0.1 * noise + 0.1 * torch.rand(1), index % 3


class Ema:
    """A hand-written average that warms up: its decay depends on how often it was updated."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow, self.updates = {name: p.detach().clone() for name, p in model.named_parameters()}, 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(0.9, self.updates / (10 + self.updates))
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)


def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    kind = settings["scheduler"]
    if kind == "one-cycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
    if kind == "cosine":
        first = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        then = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[3])
    return None


torch.manual_seed(3)
np.random.seed(3)
random.seed(3)
if "seed" in settings:  # what a fresh process draws before it restores is none of the checkpoint's
    torch.manual_seed(settings["seed"])
body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
model = nn.Sequential(body, nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer: torch.optim.Optimizer
if settings["scheduler"] == "cosine":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = make_scheduler(optimizer)
half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(settings["scaler"])
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3) if settings["scaler"] == "fp16" else None
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if settings["ema"] == "averaged" else None
by_hand = Ema(model) if settings["ema"] == "by hand" else None
loader: Any = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=settings["workers"])
losses: list[float] = []
given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "ema": averaged or by_hand}
run = store = restored = None
if how == "run":
    run = holdfast.watch(model, optimizer, name="exact", folder=folder)
    if by_hand is not None:
        run.ema(by_hand)
    restored = run.restore()
elif how == "store":
    store, loader = holdfast.CheckpointStore(folder), holdfast.Position(loader)
    restored = store.restore(**given, loader=loader)
first = restored.step if restored is not None else 0


def update() -> None:
    """One step of the optimizer, and all that follows it."""
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
    if scheduler is not None:
        scheduler.step()
    if averaged is not None:
        averaged.update_parameters(model)
    if by_hand is not None:
        by_hand.update(model)


def save(step: int) -> None:
    waiting = any(p.grad is not None for p in model.parameters())
    if run is not None:
        assert run.save(wait=True) is not None
    elif store is not None:
        assert store.save(step, **given, loader=loader, gradients=waiting, wait=True) is not None, store.troubles
    if settings.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def train(step: int) -> None:
    while True:
        batches = run.batches(loader) if run is not None else iter(loader)
        for number, (images, labels) in enumerate(batches, getattr(batches, "done", 0)):
            with torch.autocast("cpu", dtype=half, enabled=half is not None):
                loss = cross_entropy(model(images), labels) / settings["accumulate"]
            (scaler.scale(loss) if scaler is not None else loss).backward()
            losses.append(loss.item())
            if (number + 1) % settings["accumulate"] == 0:
                update()
                step += 1
            if settings.get("stop") == len(losses):
                save(step)
                return
            if step == steps:
                return


def tell() -> None:
    """Everything that a user could lose."""
    state = {name: thing.state_dict() for name, thing in given.items() if thing is not None}
    draws = [torch.rand(3), np.random.rand(), random.random()]
    out.mkdir(parents=True, exist_ok=True)
    torch.save({"state": state, "losses": losses, "draws": draws, "first": first}, out / "end.pt")


train(first)
tell()
if run is not None:
    run.close()
