"""deeptime's VAMPNet: finds the slow states of particles that hop among four wells, in what thirty noisy sensors see of them."""

import sys
from pathlib import Path

import numpy as np
import torch
from deeptime.data import quadruple_well
from deeptime.decomposition.deep import VAMPNet
from deeptime.util.data import TrajectoryDataset
from deeptime.util.torch import MLP
from sklearn.metrics import adjusted_rand_score
from torch import nn
from torch.utils.data import DataLoader

PACKAGE = "deeptime"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
random = np.random.default_rng(0)
system, mixing = quadruple_well(n_steps=1000), random.normal(size=(2, 30))


def seen(length, seed):
    """The well of each moment, and what the sensors see."""
    walk = system.trajectory(np.array([[0.5, 0.5]]), length, seed=seed)
    sight = np.sin(2 * walk @ mixing) + random.normal(size=(length, 30))
    return (walk > 0) @ [2, 1], sight.astype(np.float32)


(_, train), (wells, test) = seen(30_000, 0), seen(15_000, 1)
datasets = [TrajectoryDataset(lagtime=1, trajectory=sight) for sight in (train, test)]
network = MLP(units=[30, 128, 128, 64, 4], nonlinearity=nn.ELU, output_nonlinearity=lambda: nn.Softmax(dim=1))
vampnet = VAMPNet(lobe=nn.Sequential(nn.BatchNorm1d(30), network), learning_rate=5e-4)
model = vampnet.fit(  # it cannot resume
    DataLoader(datasets[0], batch_size=1000, shuffle=True),
    n_epochs=16,
    validation_loader=DataLoader(datasets[1], batch_size=len(datasets[1])),
    validation_score_callback=lambda step, score: print(f"step {step}: validation score {score.item():.4f}"),
).fetch_model()
torch.save(model.lobe.state_dict(), folder / "lobe.pt")
print(f"agreement of the states with the wells: {adjusted_rand_score(wells, model.transform(test).argmax(axis=1)):.4f}")
