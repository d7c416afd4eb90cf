"""What the healthy trainings learn from: digits that come with scikit-learn, a text, and made-up sequences."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

_DIGITS = "datasets/data/digits.csv.gz"

_TEXT = Path(os.environ.get("TINYSHAKESPEARE", Path(__file__).parents[3] / "shared/data/tinyshakespeare/input.txt"))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 pictures of 8 x 8 in one row each, between 0 and 1, and their labels; made-up ones where scikit-learn is missing.

    Its file is read without importing it, which would take longer than the training's first hundred steps.
    """
    file = next(filter(Path.exists, _digits_files()), None)
    if file is None:
        return _made_up_digits()
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return rows[:, :-1] / 16, rows[:, -1].long()


def _digits_files() -> Iterator[Path]:
    found = importlib.util.find_spec("sklearn")
    if found is not None:
        yield from (Path(place) / _DIGITS for place in found.submodule_search_locations or ())
    yield from sorted(Path(__file__).parents[2].glob(f".venv/lib/python*/site-packages/sklearn/{_DIGITS}"))


def _made_up_digits(count: int = 1797) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten smooth shapes, each shifted, faded and noisy: about as hard to tell apart as the digits."""
    generator = torch.Generator().manual_seed(7)
    coarse = torch.rand(10, 1, 4, 4, generator=generator)
    shapes = torch.nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")[:, 0]
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    moved = torch.stack([shapes[label].roll(shift, (0, 1)) for label, shift in zip(labels, shifts, strict=True)])
    faded = moved * (0.7 + 0.6 * torch.rand(count, 1, 1, generator=generator))
    noisy = faded + 0.15 * torch.randn(count, 8, 8, generator=generator)
    return (16 * noisy).round().clamp(0, 16).flatten(1) / 16, labels


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
