"""One added line: a training loop that records itself with `holdfast.watch`.

python examples/watch_digits.py
holdfast tail
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import holdfast

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with holdfast.watch(model, optimizer, name="watched-digits") as run:
    for _ in range(20):
        order = torch.randperm(1500)
        for batch in run.batches(order.split(50)):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        run.log(accuracy=accuracy, split="val")
    print(f"accuracy {accuracy:.3f}, recorded in {run.folder}")
