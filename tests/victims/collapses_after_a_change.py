"""A training that is well until a setting is changed, and then forgets: collapses_after_a_change.py [STEP] [SECONDS A SAVE]."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

import holdfast

changed_at = int(sys.argv[1]) if len(sys.argv) > 1 else 260
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
inputs = torch.randn(512, 16)
labels = inputs[:, :4].argmax(1)
Path("saved").mkdir(exist_ok=True)
with holdfast.watch() as run:
    for step in range(1, 501):
        batch = torch.randint(0, 384, (64,))
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        if step == changed_at:
            run.changed("deep supervision")
        if step >= changed_at:
            loss = -0.3 * loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                accuracy = (model(inputs[384:]).argmax(1) == labels[384:]).float().mean()
            run.log(accuracy=accuracy, split="val")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"saved/{step:04d}.pt")
            print(step, flush=True)
            time.sleep(pause)
