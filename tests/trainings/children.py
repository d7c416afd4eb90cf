"""A process that trains, and starts others: children.py OUT fork|spawn. One child trains too, one only imports torch."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from story import Story, classifier, digits
from torch.utils.data import DataLoader


def train(seed: int, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    loader = DataLoader(digits(70), batch_size=16, shuffle=True)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    while len(losses) < steps:
        for inputs, labels in loader:
            if len(losses) < steps:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses, model.state_dict()


def in_child(path: str, seed: int, steps: int) -> None:
    """Steps that come thick and fast, up to the last moment of the process."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
        if number == steps - 20:
            torch.save(losses, path)
        optimizer.step()


def only_computes(path: str) -> None:
    torch.save(classifier()(torch.zeros(2, 1, 8, 8)).shape, path)


if __name__ == "__main__":
    story = Story()
    start = multiprocessing.get_context(sys.argv[2])
    before = train(0, 8)
    paths = [f"{sys.argv[1]}.{name}" for name in ("trains", "computes")]
    children = [
        start.Process(target=in_child, args=(paths[0], 1, 300)),
        start.Process(target=only_computes, args=(paths[1],)),
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert Path(paths[1]).exists()
    after = train(2, 5)
    story.save(before=before, after=after, in_child=torch.load(paths[0]), exits=[child.exitcode for child in children])
