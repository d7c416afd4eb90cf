"""CEBRA's solver: embeds the activity of made-up neurons by where on a circular track the animal was."""

import sys
from pathlib import Path

import cebra
import numpy as np
import torch
from cebra.data import ContinuousDataLoader, TensorDataset
from cebra.models.criterions import LearnableCosineInfoNCE

PACKAGE = "cebra"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
random = np.random.default_rng(0)
moments, neurons, steps = 6000, 60, 50
angle = np.cumsum(0.05 + 0.03 * random.normal(size=moments))
track = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
places = random.uniform(0, 2 * np.pi, neurons)
rates = 0.05 + 0.5 * np.exp(4 * (np.cos(angle[:, None] - places) - 1))
activity = torch.tensor(random.poisson(rates)).float()

dataset = TensorDataset(activity[:5000], continuous=torch.tensor(track[:5000]))
model = cebra.models.init("offset10-model", neurons, 32, 3, True)
dataset.configure_for(model)
loader = ContinuousDataLoader(dataset, num_steps=steps, batch_size=256, conditional="time_delta", time_offset=10)
for part in (loader.distribution, loader.distribution.prior):
    part.generator.manual_seed(0)  # which the package seeds at random
criterion = LearnableCosineInfoNCE(temperature=0.5, min_temperature=0.1)
optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-3)
solver = cebra.solver.init("single-session", model=model, criterion=criterion, optimizer=optimizer, tqdm_on=False)
solver.load(folder, "checkpoint_last.pth")  # of an earlier start, which this one continues
for part in range(len(solver.history) // steps, 12):
    solver.fit(loader)
    solver.save(folder, "checkpoint_last.pth")
    print(f"{(part + 1) * steps} steps: loss {np.mean(solver.history[-steps:]):.4f}")

embedding = solver.transform(activity).numpy()
decoder = cebra.KNNDecoder(n_neighbors=25).fit(embedding[:5000], track[:5000])
print(f"R2 of the decoded place, of the last thousand moments: {decoder.score(embedding[5000:], track[5000:]):.4f}")
