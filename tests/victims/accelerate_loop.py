"""A loop on Accelerate that can be killed at a step and resumed; prints a checksum of its weights at the end.

accelerate_loop.py [--kill-at N] [--resume] [--policy heal] [--epochs N] [--lr-at N]

Under torchrun each rank trains on its part of the data. With `--ids NAME` the samples of each batch go to the file NAME-RANK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sample_ids import RANK, WORLD, note_ids
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.accelerate import HoldfastTracker, newest_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=-1)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr-at", type=int, default=-1, help="step at which the learning rate becomes far too high")
parser.add_argument("--save-every", type=int, default=4)
parser.add_argument("--ids")
options = parser.parse_args()


def data(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long(), torch.arange(count))


set_seed(RANK)
tracker = HoldfastTracker(name="acc", policy=options.policy)
accelerator = Accelerator(cpu=True, log_with=tracker, project_dir="saved")
accelerator.init_trackers("project", config={"epochs": options.epochs})
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
model, optimizer, loader, held_out = accelerator.prepare(
    net,
    torch.optim.AdamW(net.parameters(), lr=1e-2),
    DataLoader(data(160, 1), batch_size=16 // WORLD, shuffle=True),
    DataLoader(data(32, 2), batch_size=16),
)
(batches,) = tracker.attach(accelerator, loader, trigger=True)
path = newest_checkpoint("saved") if options.resume else None
if path is not None:
    accelerator.load_state(path)
step, stopped = tracker.holdfast.run.num_steps, False
for epoch in range(batches.passes, options.epochs):
    model.train()
    for inputs, labels, ids in batches:
        if step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == options.lr_at:
            optimizer.param_groups[0]["lr"] = 100.0
        note_ids(options.ids, ids.tolist())
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % options.save_every == 0:
            accelerator.save_state(f"saved/step_{step}")
        if stopped := accelerator.check_trigger():
            break
    if stopped:
        break
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(inputs), labels) for inputs, labels, _ in held_out]
    accelerator.log({"epoch": epoch, "val_loss": torch.stack(losses).mean().item()}, step=step)
accelerator.end_training()
weights = b"".join(tensor.detach().numpy().tobytes() for tensor in net.state_dict().values())
digest = hashlib.sha256(weights).hexdigest()
print(json.dumps({"from": path, "step": step, "epoch": batches.passes, "stopped": stopped, "weights": digest, "rank": RANK}))
