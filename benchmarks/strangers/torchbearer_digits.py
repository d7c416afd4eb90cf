"""Torchbearer's Trial: a residual network reads scikit-learn's digits, evaluated and saved after every epoch."""

import sys
import warnings
from pathlib import Path

import torch
import torchbearer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbearer import Trial
from torchbearer.callbacks import GradientNormClipping, ModelCheckpoint, StepLR

PACKAGE = "torchbearer"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, values):
        return torch.relu(values + self.layers(values))


folder = Path(sys.argv[1]).absolute()
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
loaders = [
    DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=32, shuffle=True),
    DataLoader(TensorDataset(images[1400:], labels[1400:]), batch_size=100),
]
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), Block(16), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), Block(32), nn.Flatten(),
    nn.Linear(32 * 16, 10),
)  # fmt: skip
latest = folder / "latest.pt"  # of an earlier start, which this one continues
trial = Trial(
    model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4), nn.CrossEntropyLoss(),
    metrics=["acc", "loss"], verbose=1,
    callbacks=[ModelCheckpoint(str(latest)), StepLR(step_size=5, gamma=0.5), GradientNormClipping(5.0)],
).with_generators(train_generator=loaders[0], val_generator=loaders[1])  # fmt: skip
if latest.exists():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial.load_state_dict(torch.load(latest, weights_only=False))
for epoch, row in enumerate(trial.run(epochs=14)):
    print(f"epoch {epoch}: val_acc {row['val_acc']:.4f}, val_loss {row['val_loss']:.4f}")
print(f"test accuracy {trial.evaluate(data_key=torchbearer.VALIDATION_DATA)['val_acc']:.4f}")
