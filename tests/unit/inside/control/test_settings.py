from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from every_case import every_case

from holdfast.inside.control.settings import Settings, read_setting
from holdfast.signals.actions import Refused


def settings_of(*optimizers: torch.optim.Optimizer) -> Settings:
    return Settings(SimpleNamespace(step=0, optimizers=lambda: list(optimizers)))  # type: ignore[arg-type]


def sgd(lr: Any = 0.1, groups: int = 1) -> torch.optim.SGD:
    parameters = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    return torch.optim.SGD(parameters, lr=lr, weight_decay=0.5)


def in_force(settings: Settings, optimizer: torch.optim.Optimizer, name: str = "lr") -> list[float]:
    settings.apply(optimizer)
    found = [float(group[name]) for group in optimizer.param_groups]
    settings.revert()
    return found


def test_the_script_never_sees_the_change_and_its_schedule_goes_on_in_proportion() -> None:
    optimizer = sgd()
    settings = settings_of(optimizer)
    settings.change(read_setting("lr=0.02"))
    assert (in_force(settings, optimizer), optimizer.param_groups[0]["lr"]) == ([0.02], 0.1)
    optimizer.param_groups[0]["lr"] = 0.05  # the schedule
    assert in_force(settings, optimizer) == pytest.approx([0.01])


def test_changes_can_be_taken_back_in_any_order() -> None:
    optimizer = sgd()
    settings = settings_of(optimizer)
    first, second = settings.change(read_setting("lr*=0.1")), settings.change(read_setting("lr/=2"))
    settings.undo(first)
    assert in_force(settings, optimizer) == [0.05]
    settings.undo(second)
    assert in_force(settings, optimizer) == [0.1]


def test_groups_are_counted_through_all_optimizers_the_main_one_first() -> None:
    main, other = sgd(groups=2), sgd(lr=1.0)
    settings = settings_of(main, other)
    settings.change(read_setting("lr[2]=0.3"))
    assert (in_force(settings, main), in_force(settings, other)) == ([0.1, 0.1], [0.3])
    with pytest.raises(Refused, match="no group 3: there are 3"):
        settings.change(read_setting("lr[3]=0.3"))


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    optimizer = sgd(lr=torch.tensor(0.1))
    rate = optimizer.param_groups[0]["lr"]
    settings = settings_of(optimizer)
    settings.change(read_setting("lr*=0.5"))
    assert in_force(settings, optimizer) == pytest.approx([0.05])
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.1)


def test_a_rate_that_is_written_while_the_change_is_on_is_the_one_that_is_wanted() -> None:
    optimizer = sgd()
    settings = settings_of(optimizer)
    settings.change(read_setting("lr*=0.1"))
    settings.apply(optimizer)
    optimizer.param_groups[0]["lr"] *= 0.5
    settings.revert()
    assert in_force(settings, optimizer) == pytest.approx([0.005])


def test_a_rate_of_zero_is_held_where_it_is_set() -> None:
    optimizer = sgd(lr=0.0)
    settings = settings_of(optimizer)
    made = settings.change(read_setting("lr=0.01"))
    assert "held" in str(made.note)
    assert in_force(settings, optimizer) == [0.01]


def test_another_state_of_the_optimizer_does_not_undo_a_change() -> None:
    optimizer = sgd()
    settings = settings_of(optimizer)
    saved = optimizer.state_dict()
    settings.change(read_setting("weight_decay=0.25"))
    optimizer.load_state_dict(saved)  # as a roll-back does
    assert in_force(settings, optimizer, "weight_decay") == [0.25]


@every_case("text", ["lr", "lr=", "lr=abc", "lr=-1", "lr*=0", "lr=nan", "clip*=2", "clip=0", "lr=off", "=3", "lr+=1"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_setting(text)
