"""Samples and passes of the training loader, event by event."""

from __future__ import annotations

from typing import Any

import torch
from every_case import every_case
from torch.utils.data import DataLoader, TensorDataset

from holdfast.inside.observers.loader import Loader, count_samples


def data(count: int = 10) -> TensorDataset:
    return TensorDataset(torch.zeros(count, 2))


class Drawing:
    """Draws from a real loader and tells a `Loader` of it, as the hooks do."""

    def __init__(self, loader: Loader, source: Any, *, batch_size: int = 4) -> None:
        self._loader, self._source = loader, DataLoader(source, batch_size=batch_size)
        self.again()

    def again(self) -> None:
        self._iterator = iter(self._source)

    def draw(self, *, evaluating: bool = False) -> bool:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._loader.note_end(self._iterator)
            return False
        self._loader.note_batch(self._iterator, batch, 0.5, evaluating=evaluating)
        return True


def test_the_first_pass_is_epoch_0_and_its_end_counts_with_the_next_batch() -> None:
    loader = Loader()
    drawing = Drawing(loader, data())
    drawing.draw()
    loader.begin()
    assert (loader.epoch, loader.take()) == (0, (0.5, 4))
    while drawing.draw():
        pass
    assert (loader.epoch, loader.take()) == (0, (1.0, 6))
    drawing.again()
    drawing.draw()
    assert (loader.epoch, loader.take()) == (1, (0.5, 4))


def test_a_dataset_that_is_made_anew_for_each_pass_counts_epochs() -> None:
    loader = Loader()
    drawing = Drawing(loader, data())  # a look, and then it is gone
    drawing.draw()
    drawing = Drawing(loader, data())
    drawing.draw()
    loader.begin()
    epochs = []
    for _ in range(3):
        while drawing.draw():
            epochs.append(loader.epoch)
        drawing = Drawing(loader, data())
    assert epochs == [0, 0, 1, 1, 1, 2, 2, 2]


def test_a_dataset_that_outlives_its_pass_for_a_moment_ends_its_epoch_all_the_same() -> None:
    loader = Loader()
    held = data()
    drawing = Drawing(loader, held)
    drawing.draw()
    loader.begin()
    while drawing.draw():
        pass
    drawing = Drawing(loader, data())
    drawing.draw()
    del held
    drawing.draw()
    assert loader.epoch == 1


def test_a_look_at_one_batch_before_the_training_is_none_of_it() -> None:
    loader = Loader()
    drawing = Drawing(loader, data())
    drawing.draw()
    drawing.again()
    drawing.draw()
    loader.begin()
    assert loader.take() == (0.5, 4)


def test_a_whole_pass_before_the_training_is_no_epoch_of_it() -> None:
    loader = Loader()
    drawing = Drawing(loader, data())
    while drawing.draw():
        pass
    drawing.again()
    drawing.draw()
    loader.begin()
    assert (loader.epoch, loader.take()) == (0, (0.5, 4))


def test_an_evaluation_set_that_was_drawn_to_its_end_is_not_the_training_set() -> None:
    loader = Loader()
    held_out, training = Drawing(loader, data(3)), Drawing(loader, data())
    while held_out.draw():
        pass
    training.draw()
    loader.begin()
    assert loader.take() == (0.5, 4)


def test_one_batch_of_each_set_for_a_try_does_not_make_the_evaluation_set_the_training_set() -> None:
    loader = Loader()
    training, held_out = Drawing(loader, data()), Drawing(loader, data(3))
    for tried in (training, held_out):
        tried.draw()
        tried.again()
    training.draw()
    loader.begin()
    assert loader.take() == (0.5, 4)


def test_of_two_loaders_drawn_in_turn_the_first_is_the_training_set() -> None:
    loader = Loader()
    labelled, unlabelled = Drawing(loader, data()), Drawing(loader, data(), batch_size=7)
    labelled.draw()
    unlabelled.draw()
    loader.begin()
    assert loader.samples == 4
    labelled.draw()
    unlabelled.draw()
    assert loader.samples == 8


def test_the_next_training_has_its_own_loader_though_the_old_one_lives() -> None:
    loader = Loader()
    first, second = Drawing(loader, data()), Drawing(loader, list(data(9)), batch_size=3)
    first.draw()
    loader.begin()
    loader.take()
    second.draw()
    loader.begin()
    assert (loader.epoch, loader.take()) == (0, (0.5, 3))


def test_a_training_without_loader_after_one_with_it_knows_no_epoch() -> None:
    loader = Loader()
    first = Drawing(loader, data())
    first.draw()
    loader.begin()
    loader.take()
    loader.begin()
    assert loader.epoch is None


def test_batches_of_another_set_drawn_while_evaluating_are_not_waited_for() -> None:
    loader = Loader()
    training, held_out = Drawing(loader, data()), Drawing(loader, data(3))
    training.draw()
    loader.begin()
    loader.take()
    held_out.draw(evaluating=True)
    assert loader.take() == (0.0, 0)


@every_case(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(5, 2), torch.zeros(5)), 5),
        ({"ids": torch.zeros(3, 7), "n": 1}, 3),
        ([{"a": (torch.zeros(6),)}], 6),
        (torch.tensor(1.0), 1),
        (["text"], 0),
        (None, 0),
        ([[[[torch.zeros(4)]]]], 0),
    ],
)
def test_samples_are_the_length_of_the_first_tensor(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples
