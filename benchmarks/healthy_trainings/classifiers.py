"""Healthy trainings that tell digits apart: optimizers, schedules and batch sizes as people use them."""

from __future__ import annotations

import copy

import torch
from datasets import batches, digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


def mlp(width: int = 96, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, 10),
    )  # fmt: skip


def cnn() -> nn.Sequential:
    convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


def learn(model: nn.Module, optimizer, steps: int, size: int, scheduler=None, data=None) -> nn.Module:
    """The usual loop."""
    images, labels = data or digits()
    for chosen in batches(len(images), steps, size):
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return model


def onecycle() -> nn.Module:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return learn(model, optimizer, 1500, 64, lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=1500))


def warm_restarts() -> nn.Module:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return learn(model, optimizer, 1400, 64, lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=200, T_mult=2))


def large_warmup() -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return learn(model, optimizer, 1500, 64, lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 500)))


def cyclic() -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return learn(model, optimizer, 1500, 32, lr_scheduler.CyclicLR(optimizer, 0.01, 0.3, step_size_up=150))


def step_decay() -> nn.Module:
    """Through a real loader, with an evaluation after each epoch."""
    images, labels = digits()
    data = TensorDataset(images, labels)
    train, held_out = torch.utils.data.random_split(data, [0.8, 0.2])
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [15, 22])
    for _ in range(28):
        model.train()
        for batch, wanted in DataLoader(train, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(batch), wanted).backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            for batch, wanted in DataLoader(held_out, batch_size=256):
                cross_entropy(model(batch), wanted)
    return model


def tiny_batches() -> nn.Module:
    """One to four pictures at a time."""
    images, labels = digits()
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for _ in range(3000):
        chosen = torch.randint(len(images), (int(torch.randint(1, 5, ())),))
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model


def batch_of_one() -> nn.Module:
    model = mlp(48)
    return learn(model, torch.optim.SGD(model.parameters(), lr=0.02), 3500, 1)


def high_momentum() -> nn.Module:
    model = mlp()
    return learn(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True), 1800, 64)


def adagrad() -> nn.Module:
    model = mlp()
    return learn(model, torch.optim.Adagrad(model.parameters(), lr=0.02), 1500, 64)


def rmsprop() -> nn.Module:
    model = cnn()
    return learn(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), 1400, 32)


def lbfgs() -> nn.Module:
    """The optimizer calls the closure as often as it likes."""
    images, labels = digits()
    model = mlp(32)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=8, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels) + 1e-4 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(70):
        optimizer.step(closure)
    return model


def accumulation() -> nn.Module:
    images, labels = digits()
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, chosen in enumerate(batches(len(images), 4000, 16)):
        (cross_entropy(model(images[chosen]), labels[chosen]) / 4).backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


def scaler() -> nn.Module:
    """The last layer in half precision; the scale grows until it overflows, which the scaler is there to see to."""
    images, labels = digits()
    model = mlp(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=100)
    for chosen in batches(len(images), 1500, 64):
        optimizer.zero_grad()
        hidden = model[:-1](images[chosen])
        with torch.autocast("cpu", torch.float16):
            logits = model[-1](hidden)
        loss = cross_entropy(logits.float(), labels[chosen])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def label_noise() -> nn.Module:
    images, labels = digits()
    wrong = torch.rand(len(labels)) < 0.4
    labels = torch.where(wrong, torch.randint(0, 10, labels.shape), labels)
    model = mlp()
    return learn(model, torch.optim.Adam(model.parameters(), lr=2e-3), 1500, 32, data=(images, labels))


def curriculum() -> nn.Module:
    """Clear pictures first; midway they become noisy, and the loss goes to a new level."""
    images, labels = digits()
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, chosen in enumerate(batches(len(images), 1600, 64)):
        noise = 0.25 if step < 800 else 0.6
        optimizer.zero_grad()
        cross_entropy(model(images[chosen] + noise * torch.randn(64, 64)), labels[chosen]).backward()
        optimizer.step()
    return model


def fine_tuning() -> nn.Module:
    """A state that was trained before (here: by hand, without an optimizer) learns the same with noise and at a small rate."""
    images, labels = digits()
    before = mlp()
    for chosen in batches(len(images), 600, 64):
        loss = cross_entropy(before(images[chosen]), labels[chosen])
        for parameter, gradient in zip(before.parameters(), torch.autograd.grad(loss, list(before.parameters())), strict=True):
            parameter.data -= 0.2 * gradient
    model = mlp()
    model.load_state_dict(copy.deepcopy(before.state_dict()))
    noisy = images + 0.3 * torch.randn_like(images)
    return learn(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 1500, 32, data=(noisy, labels))


def unfreezing() -> nn.Module:
    """The last layer alone, then all of them with an optimizer of their own."""
    model = mlp(128)
    learn(model, torch.optim.SGD(model[-1].parameters(), lr=0.1, momentum=0.9), 700, 64)
    return learn(model, torch.optim.AdamW(model.parameters(), lr=5e-4), 900, 64)


def heavy_dropout() -> nn.Module:
    model = mlp(128, dropout=0.7)
    return learn(model, torch.optim.Adam(model.parameters(), lr=1e-3), 1500, 32)


def memorised() -> nn.Module:
    """Few pictures, learned by heart: the loss goes towards zero, and the optimizer's jumps there are large in proportion."""
    images, labels = digits()
    model = mlp(128)
    return learn(model, torch.optim.Adam(model.parameters(), lr=3e-3), 2500, 32, data=(images[:256], labels[:256]))


def rare_class() -> nn.Module:
    """One picture in fifty counts fifty times as much: steps without one and steps with one differ by far."""
    images, labels = digits()
    wanted = ((labels == 3) & (torch.rand(len(labels)) < 0.2)).float()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    weigh = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(50.0))
    for chosen in batches(len(images), 2000, 16):
        optimizer.zero_grad()
        weigh(model(images[chosen]).squeeze(1), wanted[chosen]).backward()
        optimizer.step()
    return model
