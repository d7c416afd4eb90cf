"""pytorch-metric-learning: an embedding of scikit-learn's digits by the triplet loss, with its own miner, sampler and trainer."""

import numpy as np
import torch
from pytorch_metric_learning import losses, miners, samplers, trainers
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

PACKAGE = "pytorch-metric-learning"
HALF = "build"

torch.manual_seed(0)
np.random.seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
device = "cuda" if torch.cuda.is_available() else "cpu"
trunk, embedder = nn.Sequential(nn.Linear(64, 128), nn.ReLU()).to(device), nn.Linear(128, 32).to(device)
optimizers = {
    f"{name}_optimizer": torch.optim.Adam(part.parameters(), 1e-3) for name, part in (("trunk", trunk), ("embedder", embedder))
}
trainers.MetricLossOnly(
    models={"trunk": trunk, "embedder": embedder}, optimizers=optimizers, batch_size=60, dataset=data,
    loss_funcs={"metric_loss": losses.TripletMarginLoss(margin=0.2)}, mining_funcs={"tuple_miner": miners.MultiSimilarityMiner()},
    sampler=samplers.MPerClassSampler(labels, m=6, length_before_new_iter=1500), dataloader_num_workers=0,
).train(num_epochs=20)  # fmt: skip
