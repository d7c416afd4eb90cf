"""The short way of a common step and the long way of any other leave the same rows, weights and findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from watched_training import Recorded

from holdfast.inside.arm import armed
from holdfast.inside.common_step import CommonStep
from holdfast.inside.training import Training
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import STEPS

# Times, and what depends on them: when something is sampled, and so whether it is known how many gradients are bad.
TIMES = ("time", "step_seconds", "data_seconds", "holdfast_seconds", "host_rss", "weight_norm", "update_ratio", "non_finite")


def train() -> list[Any]:
    """A loop in which few steps are like the one before: clipped, accumulated, evaluated, bad, raised, by two optimizers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    for step in range(90):
        optimizer.zero_grad()
        for _ in range(2 if step % 10 == 3 else 1):
            loss = model(torch.randn(6, 4)).square().mean()
            (loss * (float("nan") if step in (41, 60) else 1.0)).backward()
        if step % 10 in (5, 6):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if step == 50:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
        if step == 70:
            model[2].weight.grad[0, 0] = float("inf")
        if step == 55:
            betas, optimizer.param_groups[0]["betas"] = optimizer.param_groups[0]["betas"], None
            with pytest.raises(TypeError):
                optimizer.step()
            optimizer.param_groups[0]["betas"] = betas
            continue
        optimizer.step((lambda made=loss: made) if step == 20 else None)
        if step % 9 == 0:
            schedule.step()
        if step % 30 == 8:
            model.eval()
            with torch.no_grad():
                nn.functional.mse_loss(model(torch.randn(6, 4)), torch.zeros(6, 1))
            model.train()
        if step == 75:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})
    return [parameter.tolist() for parameter in model.parameters()]  # no tensors: a finding would look at them


@pytest.mark.parametrize("policy", ["observe", "guard", "heal"])
def test_a_common_step_is_recorded_as_any_other(
    run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    taken: list[int] = []
    original = CommonStep.after_update
    monkeypatch.setattr(CommonStep, "after_update", lambda self, optimizer: (taken.append(1), original(self, optimizer))[1])

    def once(name: str) -> tuple[Any, ...]:
        folder = run(policy, name=name)
        weights = train()
        armed().close_all()
        recorded = Recorded(folder)
        findings = [(row["code"], row["step"]) for row in recorded.findings]
        return {name: recorded.steps[name] for name in STEPS.column_names if name not in TIMES}, findings, weights

    steps, findings, weights = once("short")
    assert len(taken) > 25, "most of the plain steps went the short way"
    taken.clear()
    monkeypatch.setattr(Training, "may_be_common", lambda _self, _optimizer: False)
    long_steps, long_findings, long_weights = once("long")
    assert not taken
    assert repr(steps) == repr(long_steps)
    assert findings == long_findings and {step for _, step in findings} >= ({41} if policy == "observe" else {41, 58, 68})
    assert repr(weights) == repr(long_weights)
