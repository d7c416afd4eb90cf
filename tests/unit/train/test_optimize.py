"""Schedules, averaged weights and weight decay do what their names say."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from holdfast.train.optimize import Ema, Schedule, make_optimizer
from holdfast.train.settings import TrainSettings


def schedule_of(**settings: object) -> tuple[Schedule, torch.optim.Optimizer]:
    chosen = TrainSettings(**{"epochs": 10, "warmup_epochs": 2, **settings})  # type: ignore[arg-type]
    optimizer = make_optimizer(nn.Linear(2, 2), chosen, 0.1)
    return Schedule(optimizer, chosen, 10), optimizer


def rates(schedule: Schedule, optimizer: torch.optim.Optimizer, updates: int) -> list[float]:
    seen = []
    for _ in range(updates):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("kind", ["cosine", "linear", "step", "constant"])
def test_the_learning_rate_warms_up_and_then_follows_the_schedule(kind: str) -> None:
    seen = rates(*schedule_of(scheduler=kind, lrf=0.01), updates=100)
    assert seen[0] == pytest.approx(0.1 / 20)
    assert seen[19] == seen[20] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in itertools.pairwise(seen[20:]))
    assert seen[-1] == pytest.approx({"constant": 0.1, "step": 0.001}.get(kind, 0.001), abs=0.002)


@pytest.mark.parametrize(
    ("optimizer", "read"), [("adamw", lambda group: group["betas"][0]), ("sgd", lambda group: group["momentum"])]
)
def test_the_momentum_warms_up(optimizer: str, read: object) -> None:
    schedule, made = schedule_of(optimizer=optimizer, momentum=0.9, warmup_momentum=0.8)
    before = read(made.param_groups[0])  # type: ignore[operator]
    rates(schedule, made, updates=30)
    assert before == pytest.approx(0.8)
    assert read(made.param_groups[0]) == pytest.approx(0.9)  # type: ignore[operator]


def test_a_schedule_resumes_where_it_was() -> None:
    whole = rates(*schedule_of(), updates=60)
    schedule, optimizer = schedule_of()
    rates(schedule, optimizer, updates=25)
    again, resumed = schedule_of()
    again.load_state_dict(schedule.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert rates(again, resumed, updates=35) == whole[25:]


def test_a_schedule_resumes_with_a_lower_peak_and_more_epochs() -> None:
    schedule, optimizer = schedule_of(epochs=10)
    rates(schedule, optimizer, updates=25)
    chosen = TrainSettings(epochs=20, warmup_epochs=2)
    resumed = make_optimizer(nn.Linear(2, 2), chosen, 0.05)
    again = Schedule(resumed, chosen, 10)
    again.load_state_dict(schedule.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    seen = rates(again, resumed, updates=170)
    assert seen[1] == pytest.approx(0.05 * again.factor(26)), "from the first update on that the schedule sets"
    assert seen[1] > 0.99 * 0.05 and seen[100] < 0.5 * 0.05 < seen[60], "the curve is that of 20 epochs"


def test_the_average_follows_the_weights_and_copies_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = Ema(model, 0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5.0)
        model[1].running_mean.fill_(3.0)
    before = [parameter.clone() for parameter in ema.module.parameters()]
    for _ in range(500):
        ema.update(model)
    for was, now in zip(before, ema.module.parameters(), strict=True):
        assert torch.allclose(now, torch.full_like(was, 5.0))
    assert ema.module[1].running_mean.tolist() == [3.0, 3.0]


def test_biases_and_normalisation_layers_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    decayed, kept = make_optimizer(model, TrainSettings(weight_decay=0.1), 0.1).param_groups
    assert [parameter.ndim for parameter in decayed["params"]] == [2]
    assert {parameter.ndim for parameter in kept["params"]} == {1}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
