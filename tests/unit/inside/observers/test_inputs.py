"""What is noted of inputs: their scale, which samples they are, and that noting them changes nothing of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, TensorDataset
from watched_training import Recorded

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder

Run = Callable[..., RunFolder]


def data(count: int = 96, *, seed: int = 0, scale: float = 1.0) -> TensorDataset:
    numbers = torch.Generator().manual_seed(seed)
    return TensorDataset(scale * torch.randn(count, 6, generator=numbers), torch.arange(count) % 3)


def train(
    train_set: Any,
    held_out: Any = None,
    *,
    passes: int = 3,
    shuffle: bool = True,
    batch: int = 8,
    spoil: Any = None,
    held_out_batch: int = 8,
    draws_early: bool = False,
    split_at: int = 0,
) -> dict[str, torch.Tensor]:
    """A training as users write it; `spoil(step, model, inputs)` is called before each step.

    With `split_at` one data set is split by samplers.
    """
    parts = [SubsetRandomSampler(part) for part in (range(split_at), range(split_at, len(train_set)))] if split_at else [None] * 2
    held_out = train_set if split_at else held_out
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for _ in range(passes):
        for inputs, labels in DataLoader(train_set, batch_size=batch, shuffle=shuffle and not split_at, sampler=parts[0]):
            if spoil is not None:
                spoil(step, model, inputs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            step += 1
        loader = DataLoader(held_out, batch_size=held_out_batch, sampler=parts[1]) if held_out is not None else ()
        batches = iter(loader)
        first = [next(batches)] if draws_early else []
        model.eval()
        with torch.no_grad():
            for inputs, _ in (*first, *batches):
                model(inputs)
        model.train()
    return {name: value.clone() for name, value in model.state_dict().items()}


def rows_of(run: RunFolder, split: str, field: str = "0") -> list[dict[str, Any]]:
    armed().close_all()
    return Recorded(run).table("inputs").where(split=split, field=field)


def test_the_scale_of_held_out_inputs_is_noted_beside_that_of_the_training(run: Run) -> None:
    folder = run()
    train(data(), data(seed=1, scale=50.0))
    learned, held_out = rows_of(folder, "train"), rows_of(folder, "val")
    assert len(learned) >= 3 and all(0.5 < row["deviation"] < 2 and row["source"] == 0 for row in learned)
    assert held_out and all(25 < row["deviation"] < 100 and row["source"] == 1 for row in held_out)


def test_samples_that_come_again_are_known(run: Run) -> None:
    folder, both = run(), data()
    train(both, TensorDataset(*(part.clone() for part in both.tensors)), passes=4)
    assert sum(row["known"] for row in rows_of(folder, "val")) > 4


@pytest.mark.parametrize("held_out_batch", [1, 8, 96])
def test_of_each_evaluation_as_many_samples_are_looked_at_however_small_its_batches_are(run: Run, held_out_batch: int) -> None:
    folder = run()
    train(data(), data(seed=1), passes=2, held_out_batch=held_out_batch)
    rows = rows_of(folder, "val")
    assert {step: sum(row["samples"] for row in rows if row["step"] == step) for step in (12, 24)} == {12: 32, 24: 32}


def test_of_held_out_batches_in_order_the_samples_are_from_all_of_the_batch(run: Run) -> None:
    folder, inputs = run(), torch.arange(96.0)[:, None] + torch.zeros(96, 6)
    train(data(), TensorDataset(inputs, torch.arange(96) % 3), held_out_batch=96)
    (row, *_) = rows_of(folder, "val")
    assert 45 <= row["mean"] <= 50 and row["deviation"] > 25


def test_the_parts_of_one_data_set_that_samplers_take_are_told_apart(run: Run) -> None:
    folder = run()
    train(data(), passes=4, split_at=64)
    learned, held_out = rows_of(folder, "train"), rows_of(folder, "val")
    assert learned and all(row["source"] == 0 for row in learned)
    assert held_out and all(row["source"] == 1 and row["known"] == 0 for row in held_out)


def test_evaluations_are_looked_at_ever_more_rarely_but_never_no_more(run: Run) -> None:
    folder = run()
    train(data(), data(seed=1), passes=17)
    assert {12, 24, 48, 96, 192} <= {row["step"] for row in rows_of(folder, "val")}


def test_samples_that_are_held_out_are_not_known(run: Run) -> None:
    folder = run()
    train(data(), data(seed=1), passes=4)
    held_out = rows_of(folder, "val")
    assert held_out and all(row["known"] == 0 for row in held_out)


def test_a_held_out_batch_that_is_drawn_before_the_model_is_switched_is_none_to_learn_from(run: Run) -> None:
    folder = run()
    train(data(), data(seed=1), passes=4, draws_early=True)
    learned, held_out = rows_of(folder, "train"), rows_of(folder, "val")
    assert {row["source"] for row in learned} == {0} and len(learned) >= 3
    assert held_out and all(row["known"] == 0 and row["source"] == 1 for row in held_out)


def test_a_second_data_set_that_is_learned_from_is_noted(run: Run) -> None:
    folder = run()
    train(data(), passes=2)
    train(data(seed=1), passes=2)
    assert len(rows_of(folder, "train")) >= 3


@pytest.mark.parametrize(("shuffle", "repeats"), [(True, 0), (False, 3)])
def test_passes_that_begin_with_the_same_batch_are_counted(run: Run, shuffle: bool, repeats: int) -> None:
    folder = run()
    train(data(), passes=5, shuffle=shuffle)
    assert max(row["repeats"] or 0 for row in rows_of(folder, "train")) == repeats


class Files(Dataset[Any]):
    """Samples that are augmented, and named as their files are; or each as all others are."""

    def __init__(self, *, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.randn(6), "y": index % 3, "file": f"{index}.png" if self.named else "xy"[index % 2]}


class Endless(Sampler[int]):
    """Passes over a sampler that never end, as Ultralytics' loader makes them."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from self.sampler


@pytest.mark.parametrize(("shuffle", "named", "repeats"), [(True, True, 0), (False, True, 3), (False, False, 0)])
def test_passes_of_an_endless_loader_are_told_apart_by_the_epoch_and_augmented_samples_by_their_names(
    run: Run, shuffle: bool, named: bool, repeats: int
) -> None:
    folder, samples = run(), Files(named=named)
    sampler = Endless(RandomSampler(samples) if shuffle else SequentialSampler(samples))
    batches, model = iter(DataLoader(samples, batch_size=8, sampler=sampler)), nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        armed().runtime.set_epoch(epoch)
        for _ in range(12):
            batch = next(batches)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
    assert max(row["repeats"] or 0 for row in rows_of(folder, "train", "'y'")) == repeats


def test_the_entropy_of_labels_is_that_of_all_batches_together(run: Run) -> None:
    folder = run()
    train(data(), passes=6)
    assert rows_of(folder, "train", "1")[-1]["entropy"] == pytest.approx(1.0986, abs=0.05)


def test_a_training_that_is_looked_at_computes_the_same_bits(run: Run) -> None:
    alone = train(data(), data(seed=1))
    run()
    watched = train(data(), data(seed=1))
    assert all(torch.equal(alone[name], watched[name]) for name in alone)


def _nan_input(step: int, _model: nn.Module, inputs: torch.Tensor) -> None:
    if step == 5:
        inputs[2] = torch.nan


def _huge_weight(step: int, model: nn.Module, _inputs: torch.Tensor) -> None:
    if step == 5:
        with torch.no_grad():
            model[2].weight[1, 1] = 1e38


@pytest.mark.parametrize(
    ("spoil", "input_says", "weights_say"),
    [(_nan_input, "NaN, in sample 2", "finite"), (_huge_weight, "finite", "2.weight: a weight of 1e+38")],
)
def test_whoever_only_observes_is_told_what_the_first_bad_update_held(
    run: Run, spoil: Any, input_says: str, weights_say: str
) -> None:
    folder = run()
    train(data(), spoil=spoil, passes=1)
    armed().close_all()
    found = [row for row in folder.journal if row.get("code") in ("non-finite-loss", "non-finite-gradient")]
    assert len(found) == 1 and found[0]["step"] == 5, "told once, however many follow"
    assert input_says in found[0]["evidence"]["input"] and found[0]["evidence"]["weights"].startswith(weights_say)
