"""A position in the data that cannot be gone on from as it was: refused, or told, in words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn_data import BATCH, SAMPLES, Augmented, same, seed, shuffled, train, written
from every_case import every_case
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

from holdfast.errors import CannotRestore
from holdfast.state.position import Position


def test_workers_that_live_on_give_the_same_order_and_it_is_said_that_augmentation_differs() -> None:
    seed(7)
    whole, _ = train(Position(shuffled(2, persistent_workers=True)), 3)
    for stop, is_exact in ((3, True), (9, False)):
        said: list[str] = []
        seed(7)
        before, state = train(Position(shuffled(2, persistent_workers=True)), 3, stop=stop)
        seed(99)
        position = Position(shuffled(2, persistent_workers=True), warn=said.append)
        position.load_state_dict(state)
        after, _ = train(position, 3)
        indices = [[entry[1][:, 0] for entry in story if entry[0] != "validation"] for story in ([*before, *after], whole)]
        assert same(*indices)
        assert same([*before, *after], whole) == is_exact
        assert bool(said) != is_exact and all("persistent_workers=False" in words for words in said)


@every_case(
    ("other", "words"),
    [
        (lambda: DataLoader(Augmented(), batch_size=3, shuffle=True), "batch size: 4 -> 3"),
        (lambda: DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH), "data set: Augmented -> TensorDataset"),
        (lambda: [1, 2], "kind: DataLoader -> list"),
    ],
)
def test_another_loader_in_the_middle_of_a_pass_is_refused_in_words(other: Callable[[], Any], words: str) -> None:
    _, state = train(Position(shuffled()), 1, stop=3)
    with pytest.raises(CannotRestore, match="data has changed") as refused:
        Position(other()).load_state_dict(state)
    assert words in refused.value.problem and "data=False" in refused.value.fix


def test_a_stream_that_has_become_shorter_is_refused_in_words() -> None:
    def stream(length: int) -> Any:
        return itertools.islice(itertools.count(), length)

    position = Position(stream(5))
    for batch in position:
        if batch == 3:
            state = position.state_dict()
            break
    fresh = Position(stream(2))
    fresh.load_state_dict(state)
    with pytest.raises(CannotRestore, match="has fewer now"):
        next(iter(fresh))


def test_other_workers_are_allowed_and_told() -> None:
    said: list[str] = []
    seed(0)
    _, state = train(Position(shuffled()), 1, stop=3)
    position = Position(shuffled(1), warn=said.append)
    position.load_state_dict(state)
    assert len(list(position)) == 3
    assert "1 workers instead of 0" in said[0]


class OwnData(list[int]):
    """A data set of the user's own: it might augment at random."""


@every_case(
    ("before", "after", "size", "fast"),
    [(2, 1, BATCH, False), (1, 2, BATCH, False), (2, 1, 2 * BATCH, False), (1, 2, BATCH, True)],
)
def test_another_number_of_ranks_goes_on_with_what_none_has_seen(
    before: int, after: int, size: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(ranks: int, size: int) -> list[Position[Any]]:
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        samplers = [DistributedSampler(range(48), num_replicas=ranks, rank=rank) for rank in range(ranks)]
        loaders = [DataLoader(OwnData(range(48)), batch_size=size, sampler=sampler) for sampler in samplers]
        return [Position(loader, fast=fast, warn=said.append) for loader in loaders]

    said: list[str] = []
    first, seen = places(before, BATCH), set[int]()
    for position in first:
        position.loader.sampler.set_epoch(3)
        drawing = iter(position)
        for _ in range(2):
            seen.update(next(drawing).tolist())
        state = written(position.state_dict())
    rest: list[int] = []
    for position in places(after, size):
        position.load_state_dict(state)
        rest += [index for batch in position for index in batch.tolist()]
    assert len(rest) == 48 - len(seen) and seen.isdisjoint(rest)
    assert said == [] if fast else "in the same order" in said[0]  # fast: the script says that samples do not depend on others


def test_a_number_of_ranks_that_cannot_share_out_the_rest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = train(Position(shuffled()), 1, stop=3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CannotRestore, match="ranks: 1 -> 2"):
        Position(shuffled()).load_state_dict(state)
