"""GPyTorch's stochastic variational regression: an approximate Gaussian process on scikit-learn's diabetes data."""

import gpytorch
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "gpytorch"
HALF = "build"


class GPModel(gpytorch.models.ApproximateGP):
    def __init__(self, inducing_points: torch.Tensor) -> None:
        distribution = CholeskyVariationalDistribution(inducing_points.size(0))
        super().__init__(VariationalStrategy(self, inducing_points, distribution, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


torch.manual_seed(0)
inputs, targets = (torch.tensor(array).float() for array in load_diabetes(return_X_y=True))
inputs, targets = inputs / inputs.std(0), (targets - targets.mean()) / targets.std()
train_loader = DataLoader(TensorDataset(inputs[:360], targets[:360]), batch_size=32, shuffle=True)
model, likelihood = GPModel(inputs[:64].clone()), gpytorch.likelihoods.GaussianLikelihood()
optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=360)
for epoch in range(1, 61):
    model.train(), likelihood.train()
    for x_batch, y_batch in train_loader:
        optimizer.zero_grad()
        loss = -mll(model(x_batch), y_batch)
        loss.backward()
        optimizer.step()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        error = (likelihood(model(inputs[360:])).mean - targets[360:]).abs().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} test MAE {error:.4f}", flush=True)
