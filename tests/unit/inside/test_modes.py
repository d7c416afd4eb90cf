"""The script's own modes see the script's own operations, and a dry run is not recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from watched_training import Recorded

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder


class Dispatched(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Counts which functions of torch are called."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) != "__get__":  # in sampled steps it is asked where an output came from
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def train(steps: int, device: str = "cpu") -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("policy", ["observe", "heal"])
@pytest.mark.parametrize("mode", [Dispatched, Called])
def test_what_a_mode_counts_is_the_same(run: Callable[..., RunFolder], mode: Any, policy: str) -> None:
    counts = []
    for watched in (False, True):
        if watched:
            folder = run(policy)
        seen: Counter[str] = Counter()
        with mode(seen):
            train(30)
        counts.append(seen)
    armed().close_all()
    assert counts[0] == counts[1]
    assert len(Recorded(folder).steps) == 30


@pytest.mark.parametrize("how", ["fake", "meta"])
def test_a_dry_run_before_the_training_is_left_alone(run: Callable[..., RunFolder], how: str) -> None:
    folder = run("heal")
    if how == "fake":
        with FakeTensorMode():
            train(12)
    else:
        train(12, device="meta")
    train(30)
    armed().close_all()
    recorded = Recorded(folder)
    assert recorded.steps["step"] == list(range(30)) and not recorded.findings
