"""A plain script that trains until it is stopped: its loop stands at the top level, its names are the usual ones."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(256, 16)
train_loader = DataLoader(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, num_workers=1, prefetch_factor=3, persistent_workers=True
)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 5e-4}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)  # writes the rate at every step
print("begins", flush=True)
speed, seen, until = 1, 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for batch, target in train_loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen = speed * 2
        time.sleep(0.004)
    if speed == 99:
        break
print(f"trained at speed {speed}")
