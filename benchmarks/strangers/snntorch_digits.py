"""snnTorch's BPTT: a convolutional network of leaky neurons classifies scikit-learn's digits, turned into trains of spikes."""

import sys
from pathlib import Path

import snntorch as snn
import snntorch.functional as SF
import torch
from sklearn.datasets import load_digits
from snntorch import backprop, spikegen, surrogate, utils
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "snntorch"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
spikes = spikegen.rate(images, num_steps=12).transpose(0, 1)
train = DataLoader(TensorDataset(spikes[:1400], labels[:1400]), batch_size=32, shuffle=True)

beta, gradient = 0.9, surrogate.fast_sigmoid(slope=25)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), snn.Leaky(beta=beta, spike_grad=gradient, init_hidden=True), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), snn.Leaky(beta=beta, spike_grad=gradient, init_hidden=True), nn.Flatten(),
    nn.Linear(32 * 16, 10), snn.Leaky(beta=beta, spike_grad=gradient, init_hidden=True, output=True),
)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.999))
loss_fn = SF.ce_rate_loss()


def accuracy():
    net.eval()
    utils.reset(net)
    with torch.no_grad():
        answers = torch.stack([net(step)[0] for step in spikes[1400:].transpose(0, 1)])
    return SF.accuracy_rate(answers, labels[1400:])


for epoch in range(12):  # it cannot resume
    loss = backprop.BPTT(net, train, optimizer, loss_fn, time_var=True, time_first=False)
    print(f"epoch {epoch}: loss {loss.item():.4f}, test accuracy {accuracy():.4f}")
torch.save(net.state_dict(), folder / "net.pt")
