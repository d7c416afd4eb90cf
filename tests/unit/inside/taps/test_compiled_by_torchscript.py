"""A model that TorchScript compiles may differentiate in its forward pass, as those of forces and energies do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder


class Force(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        energy = self.energy(places.requires_grad_(True)).sum()
        force = torch.autograd.grad([energy], [places], create_graph=True)[0]
        assert force is not None
        return -force


def test_a_model_that_differentiates_in_its_forward_pass_is_compiled_as_without_holdfast(run: Callable[..., RunFolder]) -> None:
    listed = list(torch.jit._builtins._builtin_ops)
    run("guard")
    model = Force()
    compiled, places = torch.jit.script(model), torch.randn(5, 3)
    optimizer = torch.optim.Adam(compiled.parameters())
    torch.testing.assert_close(compiled(places), model(places))
    for _ in range(3):
        compiled(places.detach()).square().mean().backward()
        optimizer.step()
    armed().close_all()
    assert torch.jit._builtins._builtin_ops == listed, "nothing is left behind"
    torch.testing.assert_close(torch.jit.script(model)(places), model(places))
