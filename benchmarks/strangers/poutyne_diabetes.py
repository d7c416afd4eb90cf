"""Poutyne's loop: a regression of scikit-learn's diabetes data, early stopping and a falling learning rate included."""

import numpy as np
import torch
from poutyne import EarlyStopping, ExponentialLR, Model, set_seeds
from sklearn.datasets import load_diabetes
from torch import nn

PACKAGE = "poutyne"
HALF = "build"

set_seeds(0)
inputs, targets = load_diabetes(return_X_y=True)
inputs = (inputs / inputs.std(0)).astype(np.float32)
targets = ((targets - targets.mean()) / targets.std()).astype(np.float32)[:, None]
network = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
model = Model(network, torch.optim.AdamW(network.parameters(), lr=2e-3), "mse")
model.fit(
    inputs[:360], targets[:360], validation_data=(inputs[360:], targets[360:]), epochs=40, batch_size=32,
    callbacks=[ExponentialLR(gamma=0.95), EarlyStopping(patience=30)], progress_options={"coloring": False},
)  # fmt: skip
