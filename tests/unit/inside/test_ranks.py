"""What ranks that share a model say to each other: the same kind of number in the same order, whatever each of them has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_case import every_case

from holdfast.inside import ranks
from holdfast.inside.arm import armed
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.guard import Guard
from holdfast.inside.guard.skipping import Averages
from holdfast.inside.policy import Policy
from holdfast.inside.ranks import RankAgreement, sharing_ranks
from holdfast.signals.run_folder import RunFolder


class Group:
    """A group whose other rank says a number; keeps what this one has said."""

    _device_types = (torch.device("cpu"),)

    def __init__(self, other: float = 0.0) -> None:
        self.other, self.heard = other, list[torch.Tensor]()

    def allreduce(self, tensors: list[torch.Tensor]) -> Group:
        self.heard.append(tensors[0].clone())
        tensors[0].add_(self.other)
        return self

    def wait(self) -> None: ...


class OnDevice(RankAgreement):
    """As if the shards lay on a GPU."""

    def __init__(self, group: Group) -> None:
        super().__init__([group], torch.device("cpu"))
        self.on_device = True


class Told:
    """Stands for the report of the guard."""

    def __init__(self) -> None:
        self.words = list[str]()

    def cannot(self, what: str, words: str) -> None:
        self.words.append(f"{what}: {words}")

    def bad_update(self, _step: int, code: str, *_: Any, **__: Any) -> None:
        self.words.append(code)


def test_every_vote_is_one_number_of_the_same_kind() -> None:
    group = Group()
    together = RankAgreement([group], torch.device("cpu"))
    together.sum(2.0)
    for flag in (True, False, torch.tensor(1.0), torch.tensor(0.0)):
        together.any(flag)
    assert {(vote.dtype, vote.shape) for vote in group.heard} == {(torch.float64, torch.Size([1]))}


@every_case(("own", "other", "bad"), [(False, 9.0, 0.0), (False, math.nan, 1.0), (True, 9.0, 1.0), (True, 0.0, 1.0)])
def test_one_bad_rank_is_enough_and_a_norm_of_another_is_no_fault(own: bool, other: float, bad: float) -> None:
    together = RankAgreement([Group(other)], torch.device("cpu"))
    for flag in (own, torch.tensor(float(own))):
        assert together.any(flag).item() == bad
    assert math.isnan(together.sum(math.nan)) and (math.isnan(other) or together.sum(1.0) == 1.0 + other)


def guard_of(together: RankAgreement | None, monkeypatch: pytest.MonkeyPatch, unknown: str = "") -> tuple[Guard, Told]:
    told: Any = Told()
    guard = Guard(Policy("guard"), told, Averages())
    guard._several = True
    monkeypatch.setattr("holdfast.inside.guard.guard.sharing_ranks", lambda _parameters: (together, unknown))
    return guard, told


@every_case("other", [0.0, math.nan])
@every_case("kind", [RankAgreement, OnDevice])
def test_a_rank_without_gradients_takes_part_and_finds_no_fault(kind: Any, other: float, monkeypatch: pytest.MonkeyPatch) -> None:
    group, optimizer = Group(other), torch.optim.SGD([torch.zeros(2)], lr=0.1)
    together = OnDevice(group) if kind is OnDevice else RankAgreement([group], torch.device("cpu"))
    guard, told = guard_of(together, monkeypatch)
    guard.before(optimizer, StepMetrics(None), 0, is_main=True)
    assert [vote.item() for vote in group.heard] == [0.0]
    assert guard.after(optimizer, None, skipped=False, is_main=False) == math.isnan(other)
    assert told.words == (["non-finite-gradient"] if math.isnan(other) and kind is RankAgreement else [])


def test_ranks_that_are_not_known_are_not_waited_for_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, told = guard_of(None, monkeypatch, unknown="not one group")
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
    for step in range(3):
        guard.before(optimizer, StepMetrics(None), step, is_main=True)
    assert told.words == ["guard: not one group: each rank decides alone whether an update is skipped"]


def test_shards_on_ranks_of_which_no_group_holds_all_are_not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter: Any = torch.zeros(2)
    parameter._fsdp_flattened = True
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for found, known in (([{0, 1}, {2, 3}], False), ([{0, 1}, {0, 1, 2}], True), ([{0, 1}, set()], False)):
        wrappers = [(members, [Group()], 1) for members in found]
        monkeypatch.setattr(ranks, "_fsdp1_groups", lambda _parameters, wrappers=wrappers: wrappers)
        together, unknown = sharing_ranks([parameter])
        assert (together is not None) == known and bool(unknown) != known
    assert sharing_ranks([torch.zeros(2)]) == (None, "")


def test_a_rank_whose_guard_fails_votes_at_every_update_all_the_same(
    run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("guard")
    monkeypatch.setattr(armed()._hooks._shield, "_raise", False)  # type: ignore[union-attr]
    group, model = Group(), torch.nn.Linear(2, 1)
    monkeypatch.setattr("holdfast.inside.guard.guard.sharing_ranks", lambda _: (RankAgreement([group], torch.device("cpu")), ""))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        guard: Any = armed().runtime.trainings[0].guard
        guard._several = True
        if step == 2:
            guard.averages = None
    assert [vote.item() > 0.0 for vote in group.heard] == [True, True, *[False] * 9]  # not at the first, when it was alone
