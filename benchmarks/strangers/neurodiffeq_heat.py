"""neurodiffeq's Solver2D: a small network solves the heat equation in a rod with cold ends; its internals saved on the way."""

import sys
from pathlib import Path

import dill
import torch
from neurodiffeq import diff
from neurodiffeq.callbacks import CheckpointCallback, PeriodLocal
from neurodiffeq.conditions import IBVP1D
from neurodiffeq.generators import Generator2D
from neurodiffeq.networks import FCNN
from neurodiffeq.solvers import Solver2D
from torch import nn

PACKAGE = "neurodiffeq"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def heat(u, x, t):
    return [diff(u, t) - 0.05 * diff(u, x, order=2)]


def exact(x, t):
    waves = ((1, 1), (0.5, 3))
    return sum(height * torch.exp(-0.05 * (n * torch.pi) ** 2 * t) * torch.sin(n * torch.pi * x) for height, n in waves)


dill.settings["recurse"] = True  # a function is saved with what it needs, not with this whole module
torch.manual_seed(0)
net = FCNN(n_input_units=2, n_output_units=1, hidden_units=(48, 48, 48), actv=nn.Tanh)
nets, optimizer, done = [net], torch.optim.Adam(net.parameters(), lr=2e-3), 0
saved = sorted(Path(sys.argv[1]).glob("*.internals"))
if saved:
    internals = dill.loads(saved[-1].read_bytes())
    nets, optimizer, done = (internals[name] for name in ("nets", "optimizer", "global_epoch"))
solver = Solver2D(
    pde_system=heat, nets=nets, optimizer=optimizer, n_batches_valid=1, xy_min=(0, 0), xy_max=(1, 1),
    conditions=[IBVP1D(0, 1, 0, lambda x: exact(x, 0 * x), x_min_val=torch.zeros_like, x_max_val=torch.zeros_like)],
    train_generator=Generator2D((28, 28), (0, 0), (1, 1), method="equally-spaced-noisy"),
    valid_generator=Generator2D((28, 28), (0, 0), (1, 1), method="equally-spaced"),
    metrics={"error": lambda u, x, t: ((u - exact(x, t)) ** 2).mean()},
)  # fmt: skip
solver.fit(max_epochs=400 - done, callbacks=[CheckpointCallback(sys.argv[1]).conditioned_on(PeriodLocal(80))])

losses = solver.metrics_history["valid_loss"]
print(f"validation loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last, {min(losses):.4f} at best")
x, t = torch.meshgrid(torch.linspace(0, 1, 51), torch.linspace(0, 1, 51), indexing="ij")
with torch.no_grad():
    print(f"test error {((solver.get_solution()(x, t) - exact(x, t)).norm() / exact(x, t).norm()).item():.4f}")
