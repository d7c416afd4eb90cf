"""What the healthy trainings learn from: digits that come with scikit-learn, a text, and made-up sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_TEXT = Path(os.environ.get("TINYSHAKESPEARE", Path(__file__).parents[3] / "shared/data/tinyshakespeare/input.txt"))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 pictures of 8 x 8 in one row each, between 0 and 1, and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


def text(count: int = 200_000) -> tuple[torch.Tensor, int]:
    """Characters as numbers, and how many there are; a made-up text where Shakespeare is not at hand."""
    words = _TEXT.read_text(encoding="utf-8")[:count] if _TEXT.exists() else _made_up(count)
    letters = sorted(set(words))
    return torch.tensor([letters.index(letter) for letter in words]), len(letters)


def _made_up(count: int) -> str:
    generator = torch.Generator().manual_seed(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    chosen = torch.multinomial(1 / torch.arange(1.0, len(syllables) + 1), count, replacement=True, generator=generator)
    ends = torch.rand(count, generator=generator)
    return "".join(syllables[c] + (" " if e < 0.4 else "") for c, e in zip(chosen.tolist(), ends.tolist(), strict=True))[:count]


def batches(count: int, steps: int, size: int) -> Iterator[torch.Tensor]:
    """`steps` batches of positions, each pass over the data in a new order."""
    order = torch.randperm(count)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count)
        yield order[:size]
        order = order[size:]
