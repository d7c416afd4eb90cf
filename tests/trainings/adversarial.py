"""Two networks against each other: adversarial.py OUT N. The smaller one steps first, N times for each step of the larger."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.layers(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.layers(pictures.flatten(1))


critic_steps = int(sys.argv[2])
story = Story()
loader = DataLoader(digits(160), batch_size=16, shuffle=True, drop_last=True)
generator, discriminator = Generator(), Discriminator()
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3)
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
real, fake, samples = torch.ones(16, 1), torch.zeros(16, 1), 0
for epoch in range(4):
    for number, (pictures, _) in enumerate(loader, 1):
        samples += len(pictures)
        of_discriminator.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(pictures), real).backward()
        made = generator(torch.randn(16, 8))
        F.binary_cross_entropy_with_logits(discriminator(made.detach()), fake).backward()
        of_discriminator.step()
        if number % critic_steps:
            continue
        of_generator.zero_grad()
        loss = F.binary_cross_entropy_with_logits(discriminator(generator(torch.randn(16, 8))), real)
        loss.backward()
        story.step(losses=loss, norms=norm_of(generator.parameters()), lr=2e-3, samples=samples, epochs=epoch)
        of_generator.step()
        samples = 0
story.save(generator, discriminator)
