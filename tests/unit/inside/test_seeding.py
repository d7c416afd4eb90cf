"""`holdfast.seed` makes everything draw the same again, workers included, and says what it could not do."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import holdfast


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    workspace, states = (
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        (random.getstate(), np.random.get_state(), torch.get_rng_state()),
    )
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    if workspace is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


class Drawn(Dataset[tuple[float, float, float]]):
    """Samples that are drawn from all three generators."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()


def draw() -> list[torch.Tensor]:
    here = [torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])]
    return here + [part for batch in DataLoader(Drawn(), batch_size=4, num_workers=1) for part in batch]


def test_everything_draws_the_same_again_also_in_workers() -> None:
    holdfast.seed(7)
    first = draw()
    holdfast.seed(7)
    second = draw()
    holdfast.seed(8)
    other = draw()
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_deterministic_kernels_are_asked_for_and_what_they_cost_is_said() -> None:
    said = str(holdfast.seed(1))
    assert torch.are_deterministic_algorithms_enabled()
    assert "slower" in said


def test_without_determinism_only_generators_are_touched() -> None:
    assert "slower" not in str(holdfast.seed(1, deterministic=False))
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_cannot_be_done_from_inside_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert any("PYTHONHASHSEED" in what for what in holdfast.seed(1).missing)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert not holdfast.seed(1).missing
