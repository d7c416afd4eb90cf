"""Torch-RecHub's CTRTrainer: DeepFM predicts clicks, made from hidden tastes of users and items."""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

PACKAGE = "torch-rechub"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
os.chdir(sys.argv[1])
torch.manual_seed(0)
random = np.random.default_rng(0)
users, items, clicks = 200, 300, 12_000
tastes, kinds = random.normal(size=(users, 4)), random.normal(size=(items, 4))
x = {
    "user": random.integers(users, size=clicks), "item": random.integers(items, size=clicks),
    "hour": random.integers(24, size=clicks), "price": random.random(clicks).astype(np.float32),
}  # fmt: skip
score = (tastes[x["user"]] * kinds[x["item"]]).sum(axis=1) + np.sin(x["hour"] / 4) - 2 * x["price"]
y = (score + random.normal(size=clicks) > 0).astype(np.float32)
parts = [
    ({name: values[chosen] for name, values in x.items()}, y[chosen]) for chosen in np.split(np.arange(clicks), [9600, 10800])
]
loaders = DataGenerator(*parts[0]).generate_dataloader(*parts[1], *parts[2], batch_size=256)
sparse = [
    SparseFeature("user", users, embed_dim=8),
    SparseFeature("item", items, embed_dim=8),
    SparseFeature("hour", 24, embed_dim=8),
]
model = DeepFM([*sparse, DenseFeature("price")], sparse, {"dims": [64, 32], "dropout": 0.1, "activation": "relu"})
trainer = CTRTrainer(model, optimizer_params={"lr": 5e-3, "weight_decay": 1e-5}, n_epoch=14, earlystop_patience=14)
trainer.fit(loaders[0], loaders[1])  # it cannot resume
print(f"test auc: {trainer.evaluate(trainer.model, loaders[2]):.4f}")
