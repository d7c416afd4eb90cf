"""On a GPU: a bad update is left out on the device, with nothing waiting for it where the optimizer is fused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import holdfast
from holdfast.inside.arm import armed
from holdfast.inside.gradients import device_reader as device
from holdfast.inside.scope import Scope
from holdfast.signals.run_folder import RunFolder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
STEPS, BAD = 24, 10
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.setenv("HOLDFAST_DEBUG", "raise")

    def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        return holdfast.watch(model, optimizer, policy="guard", folder=tmp_path, name="run")

    yield watch
    armed().close_all()


def train(
    make: Callable[[Any], Any], poison: float, watch: Any = None, *, without: int | None = None, sync: str = "default"
) -> Any:
    torch.manual_seed(1)
    x, y = torch.randn(STEPS, 32, 64, device="cuda"), torch.randint(0, 10, (STEPS, 32), device="cuda")
    x[BAD, 3, 5] = poison
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    optimizer = make(model.parameters())
    run = watch(model, optimizer) if watch is not None else None
    for step in range(STEPS):
        if step == without:
            continue
        if step == 5:
            torch.cuda.set_sync_debug_mode(sync)
        optimizer.zero_grad()
        cross_entropy(model(x[step]), y[step]).backward()
        optimizer.step()
    torch.cuda.set_sync_debug_mode("default")
    if run is not None:
        run.close()
    tensors = list(model.state_dict().values())
    tensors += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return [tensor.cpu() for tensor in tensors]


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_batch_leaves_everything_bit_equal_to_a_run_without_that_batch(
    name: str, poison: float, guarded: Any, tmp_path: Path
) -> None:
    expected = train(OPTIMIZERS[name], poison, without=BAD)
    assert not same(train(OPTIMIZERS[name], poison), expected)
    assert same(train(OPTIMIZERS[name], poison, guarded), expected)
    entries = list(RunFolder.open(tmp_path / "run").journal)
    actions = [(e["action"], e["step"], e["state"]) for e in entries if e["kind"] == "action"]
    assert actions == [("skip-batch", BAD, "done")], entries
    finding = next(e for e in entries if e["kind"] == "finding")
    assert finding["evidence"].get("parameter") == "0.weight", finding


@pytest.mark.parametrize("name", ["sgd fused", "adam fused", "adamw fused"])
def test_with_a_fused_optimizer_nothing_waits_for_the_gpu(name: str, guarded: Any) -> None:
    train(OPTIMIZERS[name], math.nan, guarded, sync="error")  # torch raises at the first wait


def test_a_healthy_run_under_guard_is_bit_equal_to_one_without_holdfast(guarded: Any) -> None:
    assert same(train(OPTIMIZERS["adamw fused"], 0.0, guarded), train(OPTIMIZERS["adamw fused"], 0.0))


def test_hooks_of_a_guarded_scope_leave_nothing_on_the_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    from holdfast.inside.policy import Policy

    scope = Scope(RunFolder.create(tmp_path, "run"), policy=Policy("guard"))
    armed().add(scope)
    for _ in range(4):
        model(torch.randn(4, 8, device="cuda")).square().mean().backward()
        optimizer.step()
    armed().close_all()
    assert "found_inf" not in vars(optimizer) and "grad_scale" not in vars(optimizer)


def test_a_bad_update_is_left_out_however_far_the_host_is_ahead_of_the_gpu(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_ROWS", 4)  # more than 64 steps ahead of it a host never is: the driver's own queue is shorter
    steps, bad = 60, 40
    torch.manual_seed(0)
    model = nn.Linear(8, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    run = guarded(model, optimizer)
    x = torch.randn(steps, 4, 8, device="cuda")
    x[bad] = math.nan
    for step in range(steps):
        if step == 5:
            torch.cuda._sleep(2_000_000_000)  # about a second, in which the host makes all the other steps
        optimizer.zero_grad()
        model(x[step]).square().mean().backward()
        optimizer.step()
    reader = armed().runtime.scopes[0].trainings[0].reader
    run.close()
    assert reader.waits > 0
    assert all(parameter.isfinite().all() for parameter in model.parameters())
