"""DeepXDE's loop: a physics-informed network that solves Burgers' equation."""

import os
import sys
from pathlib import Path

import numpy as np

os.environ["DDE_BACKEND"] = "pytorch"
import deepxde as dde

PACKAGE = "deepxde"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def burgers(x, y):
    along, over_time = dde.grad.jacobian(y, x, j=0), dde.grad.jacobian(y, x, j=1)
    return over_time + y * along - 0.01 / np.pi * dde.grad.hessian(y, x, i=0, j=0)


dde.config.set_random_seed(0)
domain = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 0.99))
edge = dde.icbc.DirichletBC(domain, lambda _: 0, lambda _, on_boundary: on_boundary)
start = dde.icbc.IC(domain, lambda x: -np.sin(np.pi * x[:, 0:1]), lambda _, on_initial: on_initial)
data = dde.data.TimePDE(domain, burgers, [edge, start], num_domain=2000, num_boundary=80, num_initial=160)
model = dde.Model(data, dde.nn.FNN([2] + [48] * 3 + [1], "tanh", "Glorot normal"))

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
model.compile("adam", lr=3e-3)
resample = dde.callbacks.PDEPointResampler(period=100)
checkpoint = dde.callbacks.ModelCheckpoint(str(folder / "model"), save_better_only=True, period=100)
history, state = model.train(iterations=450, display_every=50, callbacks=[resample, checkpoint])
dde.saveplot(history, state, issave=True, isplot=False, output_dir=str(folder))
