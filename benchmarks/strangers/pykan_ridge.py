"""pykan's fit with LBFGS: a Kolmogorov-Arnold network learns a made-up formula on ever finer grids."""

import sys
from pathlib import Path

import torch
from kan import KAN, create_dataset

PACKAGE = "kan"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)


def formula(x):
    """A bent ridge."""
    return torch.exp(-3 * (x[:, [0]] - x[:, [1]] ** 2) ** 2)


dataset = create_dataset(formula, n_var=2, train_num=300, test_num=300, seed=0)
grids = (3, 5, 7, 9, 12)
done = [grid for grid in grids if (folder / f"grid{grid}_config.yml").exists()]
if done:  # by an earlier start, which this one continues
    model = KAN.loadckpt(str(folder / f"grid{done[-1]}"))
else:
    model = KAN(width=[2, 2, 1], grid=grids[0], k=3, seed=0, ckpt_path=str(folder / "model"))
for grid in grids[len(done) :]:
    if grid != grids[0]:
        model = model.refine(grid)
    losses = model.fit(dataset, opt="LBFGS", steps=60, log=10)
    model.saveckpt(str(folder / f"grid{grid}"))
    print(f"grid {grid}: train RMSE {losses['train_loss'][-1]:.4f}, test RMSE {losses['test_loss'][-1]:.4f}")
