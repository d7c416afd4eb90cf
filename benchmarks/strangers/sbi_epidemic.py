"""sbi's loop: a flow that tells from the cases of forty days how contagious an epidemic was."""

import sys

import torch
from sbi.inference import NPE
from sbi.neural_nets import posterior_nn
from sbi.utils import BoxUniform
from sbi.utils.tracking import TensorBoardTracker
from torch.utils.tensorboard import SummaryWriter

PACKAGE = "sbi"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def simulate(parameters):
    infection, recovery = parameters.T
    infected, susceptible, days = torch.full_like(infection, 0.01), torch.full_like(infection, 0.99), []
    for _ in range(40):
        new = infection * infected * susceptible
        susceptible, infected = susceptible - new, infected + new - recovery * infected
        days.append(infected)
    return torch.stack(days, dim=1) + 0.02 * torch.randn(len(parameters), 40)


torch.manual_seed(0)
prior = BoxUniform(low=torch.tensor([0.3, 0.05]), high=torch.tensor([1.0, 0.3]))
parameters = prior.sample((4000,))
tracker = TensorBoardTracker(SummaryWriter(sys.argv[1]))
inference = NPE(prior, density_estimator=posterior_nn("maf", hidden_features=64, num_transforms=5), tracker=tracker)
inference.append_simulations(parameters, simulate(parameters))
estimator = inference.train(training_batch_size=200, learning_rate=1e-3, max_num_epochs=25, show_train_summary=True)

losses = inference.summary["training_loss"]
print(f"training loss {losses[0]:.3f} after the first epoch, {losses[-1]:.3f} after the last")
truth = torch.tensor([[0.6, 0.15]])
samples = inference.build_posterior(estimator).sample((500,), x=simulate(truth), show_progress_bars=False)
print(f"true {truth[0].tolist()}, posterior mean {samples.mean(0).tolist()}")
