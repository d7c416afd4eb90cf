"""Pyro's stochastic variational inference: a variational autoencoder of scikit-learn's digits."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

PACKAGE = "pyro"
PIP = "pyro-ppl"
HALF = "build"


class VAE(nn.Module):
    def __init__(self, z_dim: int = 8, hidden: int = 128) -> None:
        super().__init__()
        self.z_dim = z_dim
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.Softplus(), nn.Linear(hidden, 2 * z_dim))
        self.decoder = nn.Sequential(nn.Linear(z_dim, hidden), nn.Softplus(), nn.Linear(hidden, 64), nn.Sigmoid())

    def model(self, x: torch.Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            z = pyro.sample("latent", dist.Normal(x.new_zeros(x.shape[0], self.z_dim), 1.0).to_event(1))
            pyro.sample("obs", dist.Bernoulli(self.decoder(z), validate_args=False).to_event(1), obs=x)

    def guide(self, x: torch.Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            loc, scale = self.encoder(x).chunk(2, dim=-1)
            pyro.sample("latent", dist.Normal(loc, scale.exp()).to_event(1))


pyro.set_rng_seed(0)
pyro.clear_param_store()
images = torch.tensor(load_digits().data / 16).float()
train_loader, test_loader = DataLoader(images[:1400], batch_size=64, shuffle=True), DataLoader(images[1400:], batch_size=64)
vae = VAE()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1.0e-3}), loss=Trace_ELBO())
for epoch in range(60):
    train_loss = sum(svi.step(x) for x in train_loader) / 1400
    print(f"[epoch {epoch:03d}]  average training loss: {train_loss:.4f}", flush=True)
    if epoch % 5 == 0:
        test_loss = sum(svi.evaluate_loss(x) for x in test_loader) / len(test_loader.dataset)
        print(f"[epoch {epoch:03d}]  average test loss: {test_loss:.4f}", flush=True)
