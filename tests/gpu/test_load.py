"""`holdfast.load` into models on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_a_model_on_the_gpu_gets_the_same_numbers_and_stays_there(tmp_path: Path) -> None:
    """Pieces are copied out of one room that is used again: each must have arrived before the next is read."""
    torch.manual_seed(0)
    source = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(4))  # 64 MB each: several pieces
    optimizer = torch.optim.AdamW(source.parameters())
    for parameter in source.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = {f"module.{name}": tensor for name, tensor in source.state_dict().items()}
    torch.save({"state_dict": state, "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    model = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(4)).cuda()
    other = torch.optim.AdamW(model.parameters())
    holdfast.load(model, tmp_path / "a.pt", optimizer=other)
    for name, tensor in model.state_dict().items():
        assert tensor.is_cuda and torch.equal(tensor.cpu(), source.state_dict()[name])
    for one, two in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert two["exp_avg"].is_cuda and torch.equal(two["exp_avg"].cpu(), one["exp_avg"])
    half = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(4)).to("cuda", torch.bfloat16)
    holdfast.load(half, tmp_path / "a.pt")
    assert all(torch.equal(tensor.cpu(), source.state_dict()[name].bfloat16()) for name, tensor in half.state_dict().items())
