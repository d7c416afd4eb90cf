"""Which batches a step was made of, with their samples; what is said of their values; how they are kept."""

from __future__ import annotations

import json
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from holdfast.inside.guard.report import Report
from holdfast.inside.observers import batches as batches_module
from holdfast.inside.observers.batch_contents import input_status
from holdfast.inside.observers.batches import Batches
from holdfast.inside.taps.registry import Taps
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder

NAN, INF = float("nan"), float("inf")


class Numbers(Dataset[int]):
    """Gives its index; the odd one cannot be read."""

    def __init__(self, unreadable: int = -1) -> None:
        self.unreadable = unreadable

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == self.unreadable:
            raise ValueError("cannot be read")
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.fixture
def drawn() -> Iterator[Batches]:
    """Hears of every batch that a loader gives."""
    batches, taps = Batches(), Taps()

    def next_batch(original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            batches.note(iterator, batch)
            return batch

        return __next__

    batches.install(taps)
    taps.wrap("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", next_batch)
    yield batches
    taps.restore()


@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "shuffle": True, "num_workers": 2},
        {"batch_size": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True},
        {"batch_size": None, "shuffle": True},
        {"batch_sampler": [[3, 1], [2], [7, 7, 7]]},
        {"batch_size": 4, "sampler": [5, 4, 3, 2, 1, 0]},
    ],
)
def test_the_samples_of_every_batch_are_known(drawn: Batches, how: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(), **how)
    for stop in (4, 99):  # the first pass is left in the middle
        for number, batch in enumerate(loader):
            (one,) = drawn.current()
            assert one.indices == torch.as_tensor(batch).reshape(-1).tolist()
            assert (one.position, one.dataset, one.dataset_indices) == (number, "Numbers", one.indices)
            drawn.end_step()
            if number == stop:
                break


def test_samples_of_a_subset_are_named_in_the_data_set_under_it(drawn: Batches) -> None:
    inner = Subset(Numbers(), range(10, 20))
    loader = DataLoader(Subset(inner, torch.tensor([9, 3, 5])), batch_size=2)  # type: ignore[arg-type]
    assert next(iter(loader)).tolist() == [19, 13]
    (one,) = drawn.current()
    assert (one.indices, one.dataset_indices) == ([0, 1], [19, 13])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read_does_not_shift_the_others(drawn: Batches, workers: int) -> None:
    iterator = iter(DataLoader(Numbers(unreadable=2), batch_size=2, num_workers=workers))
    next(iterator)
    with pytest.raises(ValueError, match="cannot be read"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    assert drawn.current()[-1].indices == [4, 5]


@pytest.mark.parametrize("how", [{"num_workers": 2, "in_order": False}, {"num_workers": 0}])
def test_where_the_loader_cannot_say_the_samples_are_unknown(drawn: Batches, how: dict[str, Any]) -> None:
    source: Any = Numbers() if how["num_workers"] else Stream()
    try:
        loader = DataLoader(source, batch_size=2, **how)
    except TypeError:
        pytest.skip("this torch has no in_order")
    next(iter(loader))
    assert [one.indices for one in drawn.current()] == [None]


def test_batches_from_elsewhere_are_remembered_without_samples() -> None:
    batches = Batches()
    batches.note(None, "first")
    batches.note(None, "second")
    assert [(one.batch, one.indices, one.position) for one in batches.current()] == [("first", None, 0), ("second", None, 1)]
    batches.end_step()
    assert batches.current() == []


def test_accumulated_batches_belong_to_one_step(drawn: Batches) -> None:
    seen = []
    for number, _ in enumerate(DataLoader(Numbers(), batch_size=2), 1):
        if number % 5 == 0:
            seen.append([one.indices for one in drawn.current()])
            drawn.end_step()
    assert seen == [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], [[10, 11], [12, 13], [14, 15], [16, 17], [18, 19]]]


def test_who_reads_a_batch_ahead_is_seen_through_from_the_second_step(drawn: Batches) -> None:
    def ahead(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        held = next(iterator)
        for following in iterator:
            yield held
            held = following
        yield held

    loader, seen = DataLoader(Numbers(), batch_size=4), []
    for _ in range(2):
        for _batch in ahead(loader):
            seen.append([one.indices[0] for one in drawn.current() if one.indices])
            drawn.end_step()
    assert seen == [[0, 4], [4], [8], [12], [16], [0], [4], [8], [12], [16]]


def test_a_batch_drawn_to_look_at_it_is_told_apart(drawn: Batches) -> None:
    loader = DataLoader(Numbers(), batch_size=4)
    next(iter(loader))
    for _batch in loader:
        seen = [(one.loader, one.position) for one in drawn.current()]
        drawn.end_step()
        break
    assert seen == [(0, 0), (1, 0)]
    assert drawn.current() == []


def test_labels_that_a_script_pops_are_kept() -> None:
    batches, batch = Batches(), {"image": torch.ones(2), "label": torch.zeros(2)}
    batches.note(None, batch)
    batch.pop("label")
    assert set(batches.current()[0].batch) == {"image", "label"}


def test_of_many_large_batches_the_oldest_values_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_MAX_BYTES", 1000)
    batches = Batches()
    for _ in range(5):
        batches.note(None, torch.zeros(100))
    assert [one.batch is not None for one in batches.current()] == [False, False, False, True, True]


Pair = namedtuple("Pair", "image label")


@dataclass
class Sample:
    image: torch.Tensor


@every_case(
    ("batch", "words"),
    [
        (torch.ones(2, 3), "finite"),
        (torch.tensor([1, 2]), "finite"),
        ("a text", "unknown"),
        (torch.tensor([[1.0, 2.0], [NAN, NAN]]), "2 of 4 values are NaN, in sample 1"),
        ({"image": torch.tensor([1.0, INF])}, "field 'image': 1 of 2 values is Inf, in sample 1"),
        ([torch.ones(2), {"mask": torch.tensor(NAN)}], "field 1.'mask': 1 of 1 values is NaN"),
        ((np.array([1.0, -INF, NAN]), 3), "field 0: 2 of 3 values are NaN or Inf, in samples 1, 2"),
        (Pair(torch.tensor([NAN]), 1), "field 'image': 1 of 1 values is NaN, in sample 0"),
        (Sample(torch.tensor([NAN])), "field 'image': 1 of 1 values is NaN, in sample 0"),
        ([1.0, NAN], "field 1: 1 of 1 values is NaN"),
        (torch.full((9,), NAN), "9 of 9 values are NaN, in samples 0, 1, 2, 3, 4, …"),
        (torch.tensor([0.0, NAN]).to_sparse(), "1 of 1 values is NaN, in sample 0"),
        (torch.tensor([NAN], dtype=torch.float8_e4m3fn), "1 of 1 values is NaN, in sample 0"),
        (torch.tensor([1.0, NAN], dtype=torch.bfloat16), "1 of 2 values is NaN, in sample 1"),
        (torch.ones(0, 3), "finite"),
    ],
)
def test_values_that_are_not_finite_are_told_by_field_and_sample(batch: Any, words: str) -> None:
    assert input_status(batch) == words


def at_once(job: Callable[[], None]) -> None:
    job()


def kept(folder: Path, batch: Any, *, step: int = 7, state: Any = None) -> Any:
    batches = Batches()
    batches.note(None, batch)
    state = {"weight": torch.ones(2)} if state is None else state
    return batches_module.save_batches(folder, step, batches.current(), state=state, run_later=at_once)


def test_a_plain_batch_is_read_back_without_running_anything(drawn: Batches, tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(4.0), torch.tensor([0.0, NAN, 0.0, 0.0]))
    next(iter(DataLoader(Subset(data, [3, 1]), batch_size=2)))
    state = {"net": {"weight": torch.ones(2)}}
    saved = batches_module.save_batches(tmp_path, 12, drawn.current(), state=state, run_later=at_once)
    assert (saved.file, saved.not_saved) == (str(tmp_path / "step-000012.pt"), [])
    assert (saved.input, saved.bad_samples) == ("field 1: 1 of 2 values is NaN, in sample 1", [1])
    content = torch.load(tmp_path / "step-000012.pt", weights_only=True)
    assert content["batches"][0]["batch"][0].tolist() == [3.0, 1.0]
    beside = json.loads((tmp_path / "step-000012.json").read_text())
    assert (beside["dataset"], beside["indices"], beside["dataset_indices"]) == ("Subset", [[0, 1]], [[3, 1]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000012.json", "step-000012.pt"]


def test_values_are_copied_when_save_is_called_and_written_later(tmp_path: Path) -> None:
    batches, jobs, weight = Batches(), [], torch.ones(2)
    batch = [torch.ones(2)]
    batches.note(None, batch)
    batches_module.save_batches(tmp_path, 1, batches.current(), state={"weight": weight}, run_later=jobs.append)
    assert list(tmp_path.iterdir()) == []
    weight.zero_()
    batch[0].zero_()
    jobs[0]()
    content = torch.load(tmp_path / "step-000001.pt", weights_only=True)
    assert content["state"]["weight"].tolist() == content["batches"][0]["batch"][0].tolist() == [1.0, 1.0]


def test_a_batch_of_the_users_own_class_is_pickled(tmp_path: Path) -> None:
    saved = kept(tmp_path, Pair(torch.ones(2), 1))
    assert torch.load(saved.file, weights_only=False)["batches"][0]["batch"].image.tolist() == [1.0, 1.0]


def test_a_batch_of_the_users_own_class_is_copied_too(tmp_path: Path) -> None:
    batches, jobs, sample = Batches(), [], Sample(torch.ones(2))
    batches.note(None, [sample])
    saved = batches_module.save_batches(tmp_path, 1, batches.current(), state={}, run_later=jobs.append)
    sample.image.zero_()
    jobs[0]()
    assert torch.load(saved.file, weights_only=False)["batches"][0]["batch"][0].image.tolist() == [1.0, 1.0]


def test_a_batch_that_cannot_be_written_leaves_the_state(tmp_path: Path) -> None:
    saved = kept(tmp_path, [torch.ones(2), lambda: None])
    assert "cannot be written" in saved.not_saved[0]
    assert torch.load(saved.file, weights_only=True)["batches"] == []


def test_at_most_three_steps_are_kept(tmp_path: Path) -> None:
    batches = Batches()
    batches.note(None, torch.ones(2))
    recorder = Recorder.start(RunFolder.create(tmp_path, "run"), 0, 1)
    report = Report(recorder, list, str, batches=batches)
    saved = [report.batch_evidence(step, save=True)["batch"] for step in range(5)]
    recorder.close()
    assert ["file" in one for one in saved] == [True, True, True, False, False]
    assert saved[4]["not_saved"] == ["3 batches of this run are saved already"]
    assert len(list(tmp_path.glob("run/rank-0/batches/*.pt"))) == 3


def test_what_is_too_large_is_left_out_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 100)
    monkeypatch.setattr(batches_module, "STATE_BYTES", 100)
    saved = kept(tmp_path, torch.ones(99), state={"weight": torch.ones(99)})
    assert len(saved.not_saved) == 2 and "larger than" in saved.not_saved[0] and "the model's state" in saved.not_saved[1]
    content = torch.load(saved.file, weights_only=True)
    assert content["batches"] == [] and content["state"] == {}


def test_looking_and_remembering_give_no_warnings(drawn: Batches) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _batch in DataLoader(Numbers(), batch_size=5):
            input_status(drawn.current()[0].batch)
            drawn.end_step()
