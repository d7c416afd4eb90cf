"""Healthy trainings that make pictures, texts and embeddings: adversaries, autoencoders, denoisers, contrast."""

from __future__ import annotations

import torch
from datasets import batches, digits
from torch import nn
from torch.nn import functional


def gan() -> nn.Module:
    """Two networks against each other, an optimizer each."""
    images, _ = digits()
    generator = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for chosen in batches(len(images), 1200, 64):
        made = generator(torch.randn(64, 16))
        judges.zero_grad()
        judgement = functional.binary_cross_entropy_with_logits
        (judgement(critic(images[chosen]), ones) + judgement(critic(made.detach()), zeros)).backward()
        judges.step()
        makes.zero_grad()
        judgement(critic(made), ones).backward()
        makes.step()
    return nn.ModuleList([generator, critic])


def vae() -> nn.Module:
    """The weight of the second term grows over the first half, and with it the loss."""
    images, _ = digits()
    encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))
    decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64))
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, chosen in enumerate(batches(len(images), 1500, 64)):
        mean, log_variance = encoder(images[chosen]).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        like = functional.binary_cross_entropy_with_logits(decoder(code), images[chosen], reduction="sum") / 64
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / 64
        loss = like + min(1.0, step / 750) * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def autoencoder() -> nn.Module:
    images, _ = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8), nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4, momentum=0.5)
    for chosen in batches(len(images), 2000, 64):
        optimizer.zero_grad()
        functional.mse_loss(model(images[chosen]), images[chosen]).backward()
        optimizer.step()
    return model


def denoiser() -> nn.Module:
    """Noise of a strength drawn anew at every step: the loss differs by the draw."""
    images, _ = digits()
    model = nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for chosen in batches(len(images), 1800, 16):
        time = torch.rand(16, 1)
        noise = torch.randn(16, 64)
        mixed = (1 - time) * (2 * images[chosen] - 1) + time * noise
        optimizer.zero_grad()
        loss = ((model(torch.cat([mixed, time], 1)) - noise).square() / (time + 0.02)).mean()
        loss.backward()
        optimizer.step()
    return model


def contrastive() -> nn.Module:
    """Two views of a picture belong together; the temperature is learned."""
    images, _ = digits()
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    temperature = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.Adam([*encoder.parameters(), temperature], lr=1e-3)
    for chosen in batches(len(images), 1200, 64):
        views = [functional.normalize(encoder(images[chosen] + 0.2 * torch.randn(64, 64)), dim=1) for _ in range(2)]
        optimizer.zero_grad()
        functional.cross_entropy(temperature.exp() * views[0] @ views[1].T, torch.arange(64)).backward()
        optimizer.step()
    return encoder
