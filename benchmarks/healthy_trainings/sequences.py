"""Healthy trainings on sequences, and on losses that are not cross entropy: text, noise, rewards, densities."""

from __future__ import annotations

import copy

import torch
from datasets import text
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler


class Transformer(nn.Module):
    """Two layers over characters."""

    def __init__(self, letters: int, width: int = 48, length: int = 32) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.letter(letters) + self.place.weight, mask=self.mask, is_causal=True))


def transformer() -> nn.Module:
    letters, count = text()
    model = Transformer(count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warm = lr_scheduler.LinearLR(optimizer, 0.05, total_iters=100)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 500)], [100])
    for _ in range(600):
        starts = torch.randint(len(letters) - 33, (12,))
        rows = letters[starts[:, None] + torch.arange(33)]
        optimizer.zero_grad()
        functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return model


def lstm() -> nn.Module:
    """Add two marked numbers of a sequence: a plateau for long, then a fall."""
    net, head = nn.LSTM(2, 48, batch_first=True), nn.Linear(48, 1)
    parameters = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(1000):
        inputs = torch.stack([torch.rand(32, 20), torch.zeros(32, 20)], 2)
        inputs[torch.arange(32), torch.randint(0, 10, (32,)), 1] = 1
        inputs[torch.arange(32), torch.randint(10, 20, (32,)), 1] = 1
        wanted = (inputs[..., 0] * inputs[..., 1]).sum(1, keepdim=True)
        optimizer.zero_grad()
        functional.mse_loss(head(net(inputs)[0][:, -1]), wanted).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return nn.ModuleList([net, head])


def gru_unclipped() -> nn.Module:
    """Characters with a recurrent net and no clipping: norms move a good deal."""
    letters, count = text()
    embedding, net, head = nn.Embedding(count, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, count)
    model = nn.ModuleList([embedding, net, head])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    for _ in range(600):
        starts = torch.randint(len(letters) - 25, (16,))
        rows = letters[starts[:, None] + torch.arange(25)]
        optimizer.zero_grad()
        functional.cross_entropy(head(net(embedding(rows[:, :-1]))[0]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
    return model


def heavy_tails() -> nn.Module:
    """Squares of noise that has no variance: single losses many times the usual one, again and again."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    noise = torch.distributions.StudentT(2.0)
    for _ in range(2500):
        inputs = torch.randn(32, 8)
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), inputs.sin().sum(1, keepdim=True) + noise.sample((32, 1))).backward()
        optimizer.step()
    return model


def density() -> nn.Module:
    """A likelihood whose negative logarithm passes through zero."""
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(2000):
        inputs = torch.rand(64, 1) * 4 - 2
        mean, log_scale = model(inputs).chunk(2, 1)
        wanted = (2 * inputs).sin() + 0.05 * torch.randn(64, 1)
        optimizer.zero_grad()
        functional.gaussian_nll_loss(mean, wanted, (2 * log_scale).exp()).backward()
        optimizer.step()
    return model


def reinforce() -> nn.Module:
    """Policy gradient on a corridor: the loss has either sign and says little."""
    policy = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 3))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    baseline = 0.0
    for _ in range(900):
        place, total, logs = torch.randint(0, 6, (16,)), torch.zeros(16), []
        for _ in range(8):
            choice = torch.distributions.Categorical(logits=policy(functional.one_hot(place, 6).float()))
            action = choice.sample()
            logs.append(choice.log_prob(action))
            place = (place + action - 1).clamp(0, 5)
            total += (place == 5).float() + 0.3 * torch.randn(16)
        loss = -(torch.stack(logs).sum(0) * (total - baseline)).mean()
        baseline = 0.95 * baseline + 0.05 * float(total.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def q_learning() -> nn.Module:
    """Values learned from values: the target moves every 100 steps, and the loss grows while the agent gets better."""
    values = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(values)
    optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
    for step in range(2000):
        if step % 100 == 0:
            target.load_state_dict(values.state_dict())
        place, action = torch.randint(0, 10, (32,)), torch.randint(0, 2, (32,))
        after = (place + 2 * action - 1).clamp(0, 9)
        reward = (after == 9).float()
        with torch.no_grad():
            wanted = reward + 0.95 * target(functional.one_hot(after, 10).float()).max(1).values
        found = values(functional.one_hot(place, 10).float()).gather(1, action[:, None]).squeeze(1)
        optimizer.zero_grad()
        functional.smooth_l1_loss(found, wanted).backward()
        optimizer.step()
    return values
