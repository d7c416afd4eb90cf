"""What belongs to the state of a training is found, behind wrappers and in plain objects, or it is said what is missing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kept_state import kept as kept_copy
from torch import nn
from torch.optim import lr_scheduler as schedules

from holdfast.state.training_state import TrainingState


def test_schedulers_and_optimizers_behind_wrappers_are_found() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Linear(2, 2)
    accelerator = accelerate.Accelerator(cpu=True)
    plain = torch.optim.AdamW(model.parameters())
    schedule = schedules.LambdaLR(plain, lambda step: 0.5**step)
    wrapped = accelerator.prepare(model, plain, schedule)
    state = TrainingState.discover([wrapped[0]], [wrapped[1]])
    tree = state.read().tree
    assert len(tree["optimizers"]) == 1 and len(tree["schedulers"]) == 1 and not state.missing()


class MyWarmup:
    """A scheduler that nobody can save."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        self.count += 1


class ModelEMA:
    """An average as some trainers keep it: a plain object with a copy of the model and a count."""

    def __init__(self, model: nn.Module) -> None:
        self.ema, self.updates = copy.deepcopy(model), 0


class ShadowEMA:
    """An average as a list of tensors."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = [p.detach().clone() for p in model.parameters()]


def test_what_cannot_be_restored_is_said_with_the_line_to_add() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup, shadow = MyWarmup(optimizer), ShadowEMA(model)
    words = TrainingState.discover([model], [optimizer]).missing()
    assert len(words) == 2
    assert any("MyWarmup" in line and "state_dict()" in line for line in words)
    assert any("ShadowEMA" in line and "run.ema(" in line for line in words)
    assert any("model" in line for line in TrainingState([], [optimizer]).missing())
    del warmup, shadow


def test_an_average_in_a_plain_object_is_restored_with_its_count() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = ModelEMA(model)
    average.updates = 5
    state = TrainingState.discover([model], [optimizer])
    kept, before = kept_copy(state), average.ema.weight.clone()
    with torch.no_grad():
        average.ema.weight.zero_()
    average.updates = 9
    state.restore(kept.tree, kept.hosts)
    assert average.updates == 5 and torch.equal(average.ema.weight, before)


def test_a_large_frozen_base_under_small_adapters_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.objects._FROZEN_SMALL", 0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    state = TrainingState.discover([model], [optimizer])
    assert state.read().size < 64 * 64 * 4
    assert "frozen" in state.missing()[0]


def test_values_lie_as_in_the_model_so_that_they_are_copied_in_one_piece() -> None:
    model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    state = TrainingState([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
    kept = kept_copy(state)
    assert kept.hosts[0].stride() == model.weight.stride()
    assert torch.equal(kept.hosts[0], model.weight)


def test_of_sharded_parameters_the_local_part_is_kept_and_put_back() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Linear(4, 4)
        for name, parameter in list(model.named_parameters()):
            setattr(model, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        state = TrainingState.discover([model], [optimizer])

        def train(steps: int) -> list[torch.Tensor]:
            for _ in range(steps):
                for parameter in model.parameters():
                    parameter.grad = parameter.detach() * 0.5 + 1.0
                optimizer.step()
            moments = [entry["exp_avg_sq"] for entry in optimizer.state.values()]
            return [tensor.to_local().detach().clone() for tensor in (*model.parameters(), *moments)]

        train(3)
        kept = kept_copy(state)
        assert state.is_sharded() and all(type(host) is torch.Tensor for host in kept.hosts)
        first = train(3)
        for forgotten in (False, True):
            if forgotten:
                optimizer.state.clear()
            state.restore(kept.tree, kept.hosts)
            assert all(torch.equal(a, b) for a, b in zip(first, train(3), strict=True))
    finally:
        dist.destroy_process_group()


def test_an_optimizer_inside_another_is_restored_with_it() -> None:
    class Sharp(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"rho": 0.05})
            self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
            self.param_groups = self.base.param_groups

        def step(self, closure: Any = None) -> None:
            self.base.step()

    model = nn.Linear(2, 2)
    optimizer = Sharp(model.parameters())
    state = TrainingState.discover([model], [optimizer])
    kept = kept_copy(state)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.base.state
    state.restore(kept.tree, kept.hosts)
    assert not optimizer.base.state


class Passing:
    """A scheduler around torch's that passes everything on, as MACE's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.lr_scheduler = optimizer, schedules.ExponentialLR(optimizer, 0.5)

    def step(self) -> None:
        self.lr_scheduler.step()

    def __getattr__(self, name: str) -> Any:
        if name == "lr_scheduler":
            raise AttributeError(name)
        return getattr(self.lr_scheduler, name)


class PassingScheduler(Passing):
    """Under a name that schedulers have."""


def test_the_scheduler_inside_one_that_passes_everything_on_is_restored() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = PassingScheduler(optimizer)
    state = TrainingState.discover([model], [optimizer])
    assert not state.missing() and len(state.read().tree["schedulers"]) == 1
    scheduler.step()
