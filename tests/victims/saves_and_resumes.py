"""A plain training script with `--resume`, as people write them: it saves as it goes, and may forget something when it goes on.

python saves_and_resumes.py --steps 400 --save last.pt                         the first part
python saves_and_resumes.py --steps 300 --resume last.pt --forget optimizer    goes on without the optimizer's moments
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=400)
options.add_argument("--planned", type=int, default=1200, help="length of the schedule")
options.add_argument("--seed", type=int, default=0)
options.add_argument("--batch", type=int, default=32)
options.add_argument("--lr", type=float, default=3e-3)
options.add_argument("--dropout", type=float, default=0.0)
options.add_argument("--norm", action="store_true", help="batch normalisation")
options.add_argument("--samples", type=int, default=1600)
options.add_argument("--noise", type=float, default=0.1, help="share of wrong labels")
options.add_argument("--schedule", default="cosine", choices=("cosine", "none"))
options.add_argument("--save", help="where to save")
options.add_argument("--save-at", type=int, help="only at this step; else every 100 and at the end")
options.add_argument("--atomic", action="store_true", help="save under another name and move it over")
options.add_argument("--resume")
options.add_argument("--forget", default="", help="optimizer, scheduler, statistics, weights, key")
options.add_argument("--times-lr", type=float, default=1.0, help="multiply the learning rate after the resume")
options.add_argument("--classes", type=int, default=10)
options.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
chosen = options.parse_args()
forgotten = chosen.forget.split(",")

torch.set_num_threads(1)
torch.manual_seed(7)  # the data is the same whatever the seed
centres = torch.randn(10, 20)
labels = torch.randint(0, 10, (chosen.samples,))
inputs = centres[labels] + 1.2 * torch.randn(chosen.samples, 20)
wrong = torch.rand(chosen.samples) < chosen.noise
labels[wrong] = torch.randint(0, 10, (int(wrong.sum()),))
torch.manual_seed(chosen.seed + (1000 if chosen.resume else 0))


def layer(inside: int, outside: int) -> list[nn.Module]:
    parts: list[nn.Module] = [nn.Linear(inside, outside)]
    parts += [nn.BatchNorm1d(outside)] if chosen.norm else []
    return [*parts, nn.ReLU(), nn.Dropout(chosen.dropout)]


model = nn.Sequential(*layer(20, 64), *layer(64, 64), nn.Linear(64, chosen.classes))
optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.lr)
schedule = None
if chosen.schedule == "cosine":
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, chosen.planned, eta_min=chosen.lr / 100)
begin = 0
if chosen.resume:
    state = torch.load(chosen.resume, weights_only=True)
    begin = state["step"]
    weights = state["model"]
    if chosen.classes != 10:
        weights = {name: value for name, value in weights.items() if value.shape == model.state_dict()[name].shape}
    if "statistics" in forgotten:
        weights = {name: value for name, value in weights.items() if "running" not in name}
    if "key" in forgotten:
        weights = state.get("state_dict", {})
    if "weights" not in forgotten:
        model.load_state_dict(weights, strict=not forgotten[0] and chosen.classes == 10)
    if "optimizer" not in forgotten:
        optimizer.load_state_dict(state["optimizer"])
    if schedule is not None and "scheduler" not in forgotten:
        schedule.load_state_dict(state["schedule"])
    elif schedule is not None and "optimizer" not in forgotten:
        for group in optimizer.param_groups:
            group["lr"] = chosen.lr
    for group in optimizer.param_groups:
        group["lr"] *= chosen.times_lr
    if schedule is not None:
        schedule.base_lrs = [rate * chosen.times_lr for rate in schedule.base_lrs]


def save(step: int) -> None:
    content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if schedule is not None:
        content["schedule"] = schedule.state_dict()
    path = Path(chosen.save)
    torch.save(content, path.with_suffix(".tmp") if chosen.atomic else path)
    if chosen.atomic:
        os.replace(path.with_suffix(".tmp"), path)  # noqa: PTH105


def batches():
    while True:
        yield from DataLoader(TensorDataset(inputs, labels), chosen.batch, shuffle=True, drop_last=True)


drawn = batches()
for step in range(begin, begin + chosen.steps):
    x, y = next(drawn)
    loss = F.cross_entropy(model(x), y % chosen.classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
    time.sleep(chosen.pause)
    done = step + 1
    if chosen.save and (done == chosen.save_at if chosen.save_at else done % 100 == 0 or done == begin + chosen.steps):
        save(done)
print(f"step {done} loss {loss.item():.4f}")
