"""fastai's loop: one cycle of a small network on scikit-learn's digits."""

import fastai.callback.schedule  # noqa: F401 - gives Learner its fit_one_cycle
import numpy as np
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.metrics import accuracy
from fastai.torch_core import set_seed
from sklearn.datasets import load_digits
from torch import nn

PACKAGE = "fastai"
HALF = "score"

set_seed(0)
images, labels = load_digits(return_X_y=True)
pairs = list(zip(torch.from_numpy((images / 16).astype(np.float32)), torch.from_numpy(labels), strict=True))
training, held_out = DataLoader(pairs[:1400], bs=64, shuffle=True, num_workers=0), DataLoader(pairs[1400:], bs=128, num_workers=0)
loaders = DataLoaders(training, held_out)
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
Learner(loaders, network, loss_func=nn.CrossEntropyLoss(), metrics=accuracy).fit_one_cycle(20, 3e-3)
