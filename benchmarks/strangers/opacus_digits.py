"""Opacus' PrivacyEngine: scikit-learn's digits learned by DP-SGD, within a privacy budget; saved with its accountant."""

import sys
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "opacus"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
train = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=100, shuffle=True)
epochs, delta = 25, 1e-4

model = ModuleValidator.fix(nn.Sequential(  # which turns the BatchNorm into a GroupNorm
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
))  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
loss_fn = nn.CrossEntropyLoss()
engine = PrivacyEngine()
model, optimizer, train = engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=train, target_epsilon=10, target_delta=delta, epochs=epochs, max_grad_norm=1.0
)
last, done = folder / "last.pt", 0
if last.exists():  # of an earlier start, which this one continues
    done = engine.load_checkpoint(path=last, module=model, optimizer=optimizer)["epochs"]

for epoch in range(done, epochs):
    model.train()
    losses = []
    with BatchMemoryManager(data_loader=train, max_physical_batch_size=64, optimizer=optimizer) as parts:
        for x, y in parts:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
    spent = engine.get_epsilon(delta)
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}, test accuracy {accuracy:.4f}, epsilon {spent:.2f}")
    engine.save_checkpoint(path=last, module=model, optimizer=optimizer, checkpoint_dict={"epochs": epoch + 1})
