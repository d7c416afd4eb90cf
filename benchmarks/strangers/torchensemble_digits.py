"""Ensemble-PyTorch's VotingClassifier: four convolutional networks vote on scikit-learn's digits; the best vote is saved."""

import os
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchensemble import VotingClassifier
from torchensemble.utils.logging import set_logger

PACKAGE = "torchensemble"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
os.chdir(sys.argv[1])
torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
train, validation, test = (
    DataLoader(TensorDataset(images[part], labels[part]), batch_size=32, shuffle=part.start == 0)
    for part in (slice(0, 1200), slice(1200, 1400), slice(1400, None))
)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        )  # fmt: skip
        self.head = nn.Linear(2 * width * 16, 10)

    def forward(self, images):
        return self.head(self.features(images))


set_logger("digits")
epochs = 5
model = VotingClassifier(estimator=Net, n_estimators=4, estimator_args={"width": 32}, cuda=False)
model.set_criterion(nn.CrossEntropyLoss())
model.set_optimizer("Adam", lr=1e-3, weight_decay=5e-4)
model.set_scheduler("CosineAnnealingLR", T_max=epochs)
model.fit(train, epochs=epochs, log_interval=10, test_loader=validation, save_model=True, save_dir="saved")  # it cannot resume
print(f"test accuracy {model.evaluate(test):.2f} %")
