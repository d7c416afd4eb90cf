"""Ranks learn digits together by DDP over gloo: four_ranks.py mlp|cnn|rnn|attention [--resume last.pt]."""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from digits_data import begin, split
from learning import evaluate, learn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

EPOCHS = int(os.environ.get("EPOCHS", "24"))


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.drop, self.head = nn.GRU(8, 64, batch_first=True), nn.Dropout(0.1), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.head(self.drop(self.reader(images.reshape(-1, 8, 8))[0][:, -1]))


class Attention(nn.Module):
    """Attends from each row of an image to all others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, 32), nn.Parameter(torch.zeros(8, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.head(self.layer(self.embed(images.reshape(-1, 8, 8)) + self.place).mean(1))


def make(kind: str) -> nn.Module:
    """The network."""
    if kind == "attention":
        return Attention()
    if kind == "rnn":
        return Rows()
    if kind == "cnn":
        convolutions = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 36, 10))
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def main() -> None:
    """Train, evaluate after each pass, keep the last by rank 0, and print the last accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--resume")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    begin()
    data, rest = split(64)
    sampler = DistributedSampler(data, drop_last=True)
    train = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    held_out = DataLoader(rest, batch_size=200)
    network = make(given.kind)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train))
    parts = {"model": network, "optimizer": optimizer, "schedule": schedule}
    first, accuracy = 0, 0.0
    if given.resume:
        saved = torch.load(given.resume)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first = saved["epoch"]
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        mean = learn(model, optimizer, schedule, train)
        loss, accuracy = evaluate(network, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"epoch": epoch + 1, "step": (epoch + 1) * len(train)}, "last.pt")
    if dist.get_rank() == 0:
        print(json.dumps({"accuracy": accuracy}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
