"""Trainings that do not learn, or not the right thing."""

from __future__ import annotations

import torch
from loop import digits, learn, mlp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, lr_scheduler


def vanishing() -> None:
    """Twelve sigmoid layers: nothing of the gradient comes to the first ones."""
    train, held_out = digits()
    model = mlp(*[32] * 12, activation=nn.Sigmoid)
    learn(model, SGD(model.parameters(), lr=0.1), epochs=10, train=train, held_out=held_out)


def dead_relus() -> None:
    """Biases far below zero: no unit of the first layer ever answers."""
    train, held_out = digits()
    model = mlp(64, 64)
    nn.init.constant_(model[2].bias, -50.0)
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=10, train=train, held_out=held_out)


def rate_too_low() -> None:
    train, held_out = digits()
    model = mlp(64, 64)
    learn(model, SGD(model.parameters(), lr=1e-7), epochs=10, train=train, held_out=held_out)


def rate_too_high() -> None:
    train, held_out = digits()
    model = mlp(64, 64)
    learn(model, SGD(model.parameters(), lr=5.0, momentum=0.9), epochs=10, train=train, held_out=held_out)


def frozen() -> None:
    """What should be trained runs without gradients."""
    train, held_out = digits()

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, 10)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                features = self.body(inputs)
            return self.head(features)

    model = Cut()
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=8, train=train, held_out=held_out)


def other_head() -> None:
    """The last layer is replaced after the optimizer was made."""
    train, held_out = digits()
    model = mlp(64, 64)
    optimizer = Adam(model.parameters(), lr=1e-3)
    model[-1] = nn.Linear(64, 10)
    learn(model, optimizer, epochs=8, train=train, held_out=held_out)


def shuffled_labels() -> None:
    """Labels that have nothing to do with the pictures, and a model too small to learn them by heart."""
    (images, labels), held_out = digits()
    model = mlp(16)
    shuffled = labels[torch.randperm(len(labels))]
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=8, train=(images, shuffled), held_out=held_out)


def shuffled_labels_memorised() -> None:
    """The same with a model that is large enough for that."""
    (images, labels), held_out = digits()
    model = mlp(512, 512)
    shuffled = labels[torch.randperm(len(labels))]
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=16, train=(images, shuffled), held_out=held_out)


def sorted_data() -> None:
    """One class after the other."""
    (images, labels), held_out = digits()
    order = labels.argsort()
    model = mlp(64)
    learn(
        model, SGD(model.parameters(), lr=0.05), epochs=12, train=(images[order], labels[order]), held_out=held_out, shuffle=False
    )


def constant_input() -> None:
    """The same picture every time (a file that is read once too often)."""
    (images, labels), held_out = digits()
    model = mlp(64, 64)
    train = images[:1].expand(len(images), -1), labels
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=8, train=train, held_out=held_out)


def duplicates() -> None:
    """What is held out is what is learned from."""
    train, _ = digits()
    model = mlp(128, 128)
    learn(model, Adam(model.parameters(), lr=2e-3), epochs=25, train=train, held_out=train)


def exploding_rnn() -> None:
    """A recurrent network that adds up long sequences, with nothing that holds its gradients."""
    model, head = nn.RNN(4, 32, batch_first=True, nonlinearity="relu"), nn.Linear(32, 1)
    nn.init.orthogonal_(model.weight_hh_l0, gain=1.05)
    head.weight.data.mul_(0.1)
    optimizer = SGD(nn.ModuleList([model, head]).parameters(), lr=0.0015)
    for step in range(300):
        inputs = torch.rand(16, 20 + step // 2, 4)
        loss = (head(model(inputs)[0][:, -1]) - inputs.sum((1, 2))[:, None] / 20).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def overfit() -> None:
    """Fifty pictures, and a model that could hold thousands."""
    (images, labels), held_out = digits()
    wrong = torch.where(torch.rand(50) < 0.2, torch.randint(10, (50,)), labels[:50])
    model = mlp(512, 512)
    learn(model, Adam(model.parameters(), lr=1e-3), epochs=80, train=(images[:50], wrong), held_out=held_out, size=10)


def schedule_too_short() -> None:
    """A schedule of 90 steps for a run of 450."""
    train, held_out = digits()
    model = mlp(64, 64)
    optimizer = Adam(model.parameters(), lr=1e-3)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / 90))
    learn(model, optimizer, epochs=10, train=train, held_out=held_out, scheduler=scheduler)


def rate_zero() -> None:
    """A warm-up that never begins."""
    train, held_out = digits()
    model = mlp(64, 64)
    optimizer = SGD(model.parameters(), lr=0.1)
    learn(
        model,
        optimizer,
        epochs=10,
        train=train,
        held_out=held_out,
        scheduler=lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step < 10_000 else 1.0),
    )


def wrong_optimizer() -> None:
    """The optimizer holds the parameters of a model that was thrown away."""
    train, _ = digits()
    model = mlp(64)
    optimizer = Adam(model.parameters(), lr=1e-3)
    model = mlp(64)
    for _ in range(300):
        chosen = torch.randint(len(train[0]), (32,))
        loss = cross_entropy(model(train[0][chosen]), train[1][chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


FAULTS = {
    "vanishing": vanishing,
    "dead-relus": dead_relus,
    "rate-too-low": rate_too_low,
    "rate-too-high": rate_too_high,
    "rate-zero": rate_zero,
    "frozen": frozen,
    "other-head": other_head,
    "wrong-optimizer": wrong_optimizer,
    "shuffled-labels": shuffled_labels,
    "shuffled-labels-memorised": shuffled_labels_memorised,
    "sorted-data": sorted_data,
    "constant-input": constant_input,
    "duplicates": duplicates,
    "exploding-rnn": exploding_rnn,
    "overfit": overfit,
    "schedule-too-short": schedule_too_short,
}
