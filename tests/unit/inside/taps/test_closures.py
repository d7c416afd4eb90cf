"""What is given to `optimizer.step`: only a closure is a closure."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from watched_process import Watching, small


class Given(torch.optim.Optimizer):
    """An optimizer of one's own, whose step takes something else than a closure."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.given: list[Any] = []

    @torch.no_grad()
    def step(self, first: Any = None, second: Any = None, **more: Any) -> None:  # type: ignore[override]
        self.given.append((first, second, more))
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])


def backward(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(5, 4)).square().mean()
    loss.backward()
    return loss


def test_what_is_no_closure_goes_to_the_optimizer_untouched(watching: Watching) -> None:
    model = small()
    optimizer = Given(model.parameters())
    losses = []
    for how in range(5):
        loss = backward(model)
        losses.append(loss.item())
        given: tuple[Any, ...] = ((loss,), (0.5, loss), (model,), ([loss],), ())[how]
        more: dict[str, Any] = {"closure": 0.5} if how == 4 else {}
        optimizer.step(*given, **more)
        seen = optimizer.given[-1]
        assert all(one is other for one, other in zip(seen[:2], (*given, None, None), strict=False))
        assert seen[2] == more
    assert watching.close().steps["loss"] == losses


def test_a_closure_is_called_and_its_gradients_are_read(watching: Watching) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = [optimizer.step(lambda: backward(model)), optimizer.step(closure=lambda: backward(model))]
    assert watching.close().steps["loss"] == [loss.item() for loss in losses]
