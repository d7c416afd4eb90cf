"""A position in the data: stopped anywhere, the rest of the batches is bit for bit what it would have been."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from drawn_data import BATCH, SAMPLES, Augmented, CountingSampler, same, seed, shuffled, train, with_sampler, written
from every_case import every_case
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from holdfast.state.fast_forward import is_deterministic
from holdfast.state.position import Position, Positions


class WithOwnGenerators(Augmented):
    """Draws from generators that it holds itself, as careful data sets do."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = [{"noise": np.random.default_rng(1)}, {"flip": random.Random(2)}]
        self.legacy, self.crop = np.random.RandomState(3), torch.Generator().manual_seed(4)

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = self.transforms[0]["noise"].random(), self.transforms[1]["flip"].random(), self.legacy.rand()
        return torch.tensor([index, *drawn, torch.rand((), generator=self.crop).item()], dtype=torch.float64)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        for number in range(worker.id if worker else 0, SAMPLES, worker.num_workers if worker else 1):
            yield torch.tensor([number, torch.rand(()).item(), np.random.rand()], dtype=torch.float64)


class KeptSampler(CountingSampler):
    """Has a state of its own that nobody could guess."""

    def __init__(self) -> None:
        self.secret = 5

    def __iter__(self) -> Iterator[int]:
        self.secret = self.secret * 7 % 1009
        return iter(np.random.default_rng(self.secret).permutation(SAMPLES).tolist())

    def state_dict(self) -> dict[str, int]:
        return {"secret": self.secret}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.secret = state["secret"]


def by_batches(workers: int = 0) -> DataLoader[Any]:
    sampler = RandomSampler(range(SAMPLES), replacement=True, generator=torch.Generator().manual_seed(5))
    return DataLoader(Augmented(), batch_sampler=BatchSampler(sampler, BATCH, True), num_workers=workers)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": shuffled,
    "shuffled, own generator": lambda: shuffled(generator=torch.Generator().manual_seed(3)),
    "generators in the data set": lambda: shuffled(data=WithOwnGenerators),
    "in order": lambda: DataLoader(Augmented(), batch_size=BATCH),
    "one by one": lambda: DataLoader(Augmented(), batch_size=None),
    "subset": lambda: with_sampler(lambda: SubsetRandomSampler(range(3, SAMPLES))),
    "weighted": lambda: with_sampler(lambda: WeightedRandomSampler([1.0 + n for n in range(SAMPLES)], SAMPLES)),
    "distributed": lambda: with_sampler(lambda: DistributedSampler(range(2 * SAMPLES), num_replicas=2, rank=1)),
    "a sampler that counts passes": lambda: with_sampler(CountingSampler),
    "a sampler with a state": lambda: with_sampler(KeptSampler),
    "batches drawn with replacement": by_batches,
    "drawn with replacement from tensors": lambda: DataLoader(
        TensorDataset(torch.arange(SAMPLES)),
        batch_size=BATCH,
        sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=90, generator=torch.Generator().manual_seed(1)),
    ),
    "tensors": lambda: shuffled(data=lambda: TensorDataset(torch.arange(SAMPLES))),
    "a stream": lambda: DataLoader(Stream(), batch_size=BATCH),
    "a list": lambda: [torch.full((2,), n) for n in range(6)],
    "2 workers": lambda: shuffled(2),
    "2 workers, own generator, far ahead": lambda: shuffled(2, generator=torch.Generator().manual_seed(3), prefetch_factor=4),
    "2 workers, generators in the data set": lambda: shuffled(2, data=WithOwnGenerators),
    "2 workers, batches drawn with replacement": lambda: by_batches(2),
    "2 workers, a stream": lambda: DataLoader(Stream(), batch_size=BATCH, num_workers=2),
}


@every_case("kind", LOADERS)
def test_a_training_that_was_stopped_anywhere_goes_on_with_the_very_same_batches(kind: str) -> None:
    quick = "worker" not in kind
    stops = (1, 6, 9) if quick else (5, 9)  # in the first pass of six, at its end, in the second
    seed(7)
    whole, _ = train(Position(LOADERS[kind]()), 3 if quick else 2)
    for stop in stops:
        seed(7)
        before, state = train(Position(LOADERS[kind]()), 3, stop=stop)
        seed(99)  # the process that goes on is another one
        position = Position(LOADERS[kind]())
        position.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after, _ = train(position, 3 if quick else 2)
        assert same([*before, *after], whole), f"stopped after {stop}"


def test_a_save_after_the_last_batch_goes_on_with_what_follows_the_pass() -> None:
    seed(0)
    _, state = train(Position(shuffled()), 2, stop=6)  # the loop has not seen the end of the pass yet
    position = Position(shuffled())
    position.load_state_dict(state)
    assert list(position) == []
    assert (position.passes, position.batches) == (1, 0)


@every_case("workers", [0, 2])
def test_a_save_between_two_passes_begins_the_next_one_as_it_would_have_begun(workers: int) -> None:
    own = {"generator": torch.Generator().manual_seed(3)}
    seed(0)
    position = Position(shuffled(workers, **own))
    first = list(position)
    state = written(position.state_dict())
    second = list(position)
    assert not same(first, second)
    process = state["now"]["process"]
    fresh = Position(shuffled(workers, generator=torch.Generator().manual_seed(3)))
    fresh.load_state_dict(state)
    assert fresh.passes == 1 and fresh.done == 0
    torch.set_rng_state(process["torch"])  # as the store does when it restores
    np.random.seed(0)
    random.seed(0)
    assert same([batch[:, 0] for batch in fresh], [batch[:, 0] for batch in second])


def test_a_pass_that_was_broken_off_is_over_unless_the_save_handles_what_broke_it() -> None:
    position = Position(shuffled())
    for _ in itertools.islice(position, 2):  # a script with its own length of an epoch
        pass
    state = position.state_dict()
    assert not state["under_way"] and state["passes"] == 1
    try:
        for _ in position:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupted = position.state_dict()
    assert interrupted["under_way"] and interrupted["batches"] == 1 and interrupted["passes"] == 1
    next(iter(position))
    assert position.passes == 2


def test_batches_that_are_done_are_counted_on() -> None:
    seed(0)
    _, state = train(Position(shuffled()), 2, stop=9)
    position = Position(shuffled())
    position.load_state_dict(state)
    batches = iter(position)
    assert batches.done == 3
    assert [number for number, _ in enumerate(batches, batches.done)] == [3, 4, 5]


def test_a_state_that_was_loaded_and_not_used_yet_can_be_saved_again() -> None:
    _, state = train(Position(shuffled()), 1, stop=2)
    position = Position(shuffled())
    position.load_state_dict(state)
    assert position.state_dict() is state


def test_resumed_twice_within_one_pass_is_still_the_same() -> None:
    seed(7)
    whole, _ = train(Position(shuffled(2)), 1)
    seed(7)
    first, state = train(Position(shuffled(2)), 1, stop=2)
    for stop in (2, None):
        seed(99)
        position = Position(shuffled(2))
        position.load_state_dict(state)
        more, state = train(position, 1, stop=stop)
        first += more
    assert same(first, whole)


def test_what_was_used_is_not_loaded_again_where_samples_cannot_depend_on_it() -> None:
    assert is_deterministic(shuffled(data=lambda: TensorDataset(torch.arange(SAMPLES))))
    assert not is_deterministic(shuffled())
    _, state = train(Position(shuffled()), 1, stop=4)
    for fast, loaded in ((False, SAMPLES), (True, SAMPLES - 4 * BATCH)):
        loader = shuffled()
        position = Position(loader, fast=fast)
        position.load_state_dict(state)
        assert len(list(position)) == 2
        assert loader.dataset.loaded == loaded
        assert isinstance(loader.batch_sampler, BatchSampler) and len(list(loader)) == 6  # nothing was left in the loader


@every_case("persistent", [False, True])
def test_skipping_in_the_sampler_keeps_the_order_with_workers(persistent: bool) -> None:
    def make() -> DataLoader[Any]:
        return shuffled(2, persistent_workers=persistent)

    def indices(position: Position[Any]) -> list[int]:
        return [int(index) for batch in position for index in batch[:, 0]]

    seed(0)
    whole = Position(make())
    expected = [indices(whole) for _ in range(3)]
    seed(0)
    _, state = train_without_draws(Position(make()), stop=8)
    position = Position(make(), fast=True, warn=lambda _words: None)
    position.load_state_dict(state)
    assert [indices(position), indices(position)] == [expected[1][2 * BATCH :], expected[2]]


def train_without_draws(position: Position[Any], stop: int) -> tuple[int, Any]:
    drawn = 0
    while True:
        for _ in position:
            drawn += 1
            if drawn == stop:
                return drawn, written(position.state_dict())


class Stateful:
    """A loader that keeps its own position, as torchdata's does."""

    def __init__(self) -> None:
        self.at, self.loads = 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.loads = state["at"], self.loads + 1


def test_a_loader_with_a_state_of_its_own_is_asked_instead() -> None:
    position = Position(Stateful())
    for batch in position:
        if batch == 4:
            break_here = written(position.state_dict())
    assert break_here["own"] == {"at": 4} and break_here["begin"] is None
    fresh = Position(Stateful())
    fresh.load_state_dict(break_here)
    batches = iter(fresh)
    assert batches.done == 4 and list(batches) == [5, 6] and list(fresh) == [1, 2, 3, 4, 5, 6]
    assert fresh.loader.loads == 1


def test_a_loader_can_go_while_a_run_remembers_its_place() -> None:
    loader = shuffled()
    position = Position(loader, keep=False)
    next(iter(position))
    del loader
    assert position.loader is None


def test_two_loaders_alike_that_both_live_have_a_place_each() -> None:
    positions = Positions(warn=lambda _: None, on_batch=lambda *_: None, on_end=lambda: None)
    one, other = (DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4) for _ in range(2))
    first = positions.of(one, fast=False, timed=False)
    list(first)
    second = positions.of(other, fast=False, timed=False)
    assert second is not first and second.passes == 0 and positions.of(one, fast=False, timed=False) is first
    del one, other
