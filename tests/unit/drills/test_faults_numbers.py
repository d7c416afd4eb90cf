"""The faults of numbers and learning do what they say, once or to the end, and nothing else: a drill scores what they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.drills.faults import find
from holdfast.drills.faults.duplicated_split import DuplicatedSplit
from holdfast.drills.injection.context import FaultContext
from holdfast.drills.injection.facts import Facts
from holdfast.drills.injection.injector import Injector
from holdfast.drills.plan import Plan, Planned
from holdfast.errors import CannotHappen, NotHere

AT, PASSES, STEPS = 8, 3, 18
RATE = 0.01


@dataclass
class Trained:
    """What a training saw and did, step by step."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    labels: list[torch.Tensor] = field(default_factory=list)
    held_out: list[torch.Tensor] = field(default_factory=list)
    before: list[dict[str, torch.Tensor]] = field(default_factory=list)  # weights at the beginning of a step
    gradients: list[dict[str, torch.Tensor | None]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    model: Any = None
    optimizer: Any = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    fault: Any = None


class Reader(nn.Module):
    """A recurrent net that reads four numbers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.RNN(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(numbers[..., None])[0][:, -1])


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@contextmanager
def injected(folder: Path, code: str | None, strength: float | None) -> Iterator[Injector]:
    faults = (Planned(code=code, step=AT, strength=strength),) if code else (Planned(code="nan-batch", step=10**6),)
    injector = Injector(Plan(faults=faults, folder=folder))
    injector.install()
    try:
        yield injector
    finally:
        injector.remove()


def train(folder: Path, code: str | None, *, strength: float | None = None, make: Any = layers) -> Trained:
    """Three passes of six steps, each with an evaluation after it. The loss takes no labels, so that any may come."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    told = Trained()
    with injected(folder, code, strength) as injector:
        data, other = (TensorDataset(torch.rand(24, 4) + 0.1, torch.arange(24) % 3) for _ in range(2))
        loader, held_out = DataLoader(data, batch_size=4, shuffle=True), DataLoader(other, batch_size=8)
        model = told.model = make()
        optimizer = told.optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(PASSES):
            for inputs, labels in loader:
                told.inputs.append(inputs.clone())
                told.labels.append(labels.clone())
                told.before.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                told.rates.append(optimizer.param_groups[0]["lr"])
                told.gradients.append({name: weight.grad for name, weight in model.named_parameters()})
                optimizer.step()
            model.eval()
            with torch.no_grad():
                told.held_out += [inputs.clone() for inputs, _ in held_out]
            model.train()
        told.notes, told.fault = list(injector.notes.read()), injector._live[0].fault
    return told


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The training without a fault."""
    return train(tmp_path_factory.mktemp("usual"), None)


def changed(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if not torch.equal(a, b)]


def weights_changed(told: Trained, usual: Trained) -> int:
    """The first step that begins with other weights."""
    pairs = zip(told.before, usual.before, strict=True)
    return next(step for step, (a, b) in enumerate(pairs) if any(not torch.equal(a[name], b[name]) for name in a))


@every_case(
    ("code", "is_right"),
    [
        ("nan-batch", lambda now, _: bool(now.isnan().all())),
        ("inf-pixel", lambda now, then: int((now != then).sum()) == 1 and bool(now.isinf().any())),
        ("loss-spike", lambda now, then: torch.equal(now, -5 * then)),
        ("fp16-overflow", lambda now, then: torch.equal(now, 1e6 * then)),
    ],
)
def test_one_batch_is_bad_and_no_other(tmp_path: Path, usual: Trained, code: str, is_right: Any) -> None:
    told = train(tmp_path, code)
    assert changed(told.inputs, usual.inputs) == [AT] and is_right(told.inputs[AT], usual.inputs[AT])
    assert not changed(told.labels, usual.labels) and not changed(told.held_out, usual.held_out)


@every_case("code", ["nan-batch", "label-out-of-range"])
def test_a_bad_batch_does_not_come_again_after_a_restart(tmp_path: Path, usual: Trained, code: str) -> None:
    train(tmp_path, code)
    again = train(tmp_path, code)
    assert not changed(again.inputs, usual.inputs) and not changed(again.labels, usual.labels)
    assert [note["event"] for note in again.notes] == ["injected"]


def test_a_label_beyond_the_classes_is_one_of_one_batch(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "label-out-of-range")
    assert changed(told.labels, usual.labels) == [AT] and not changed(told.inputs, usual.inputs)
    assert told.labels[AT][0] == 3 and torch.equal(told.labels[AT][1:], usual.labels[AT][1:])


def test_classes_of_boxes_are_not_shuffled_as_the_boxes_are_still_learned(tmp_path: Path) -> None:
    batch = {"images": torch.zeros(2, 4), "boxes": [torch.zeros(1, 4)] * 2, "classes": [torch.zeros(1, dtype=torch.int64)] * 2}
    with pytest.raises(CannotHappen, match="boxes"):
        find("shuffled-labels")().batch(batch, FaultContext(tmp_path, 0))


def test_masks_have_no_label_beyond_the_classes(tmp_path: Path) -> None:
    context = FaultContext(tmp_path, 0)
    context.is_main(torch.optim.SGD((network := layers()).parameters()))
    with pytest.raises(CannotHappen, match="masks"):
        find("label-out-of-range")().batch({"image": torch.zeros(2, 4), "label": torch.ones(2, 4)}, context)
    assert network is not None


def test_the_gradients_of_one_layer_are_nan_once(tmp_path: Path) -> None:
    told = train(tmp_path, "nan-gradient", strength=1.0)
    bad = {name for name, gradient in told.gradients[AT].items() if gradient is not None and gradient.isnan().any()}
    assert bad == {"2.weight"}
    assert not any(g.isnan().any() for step in told.gradients[:AT] for g in step.values() if g is not None)


def test_a_bit_of_one_weight_flips_in_its_exponent(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "corrupted-weight")
    assert weights_changed(told, usual) == AT
    now, then = (one.before[AT]["2.weight"].view(torch.int32) for one in (told, usual))
    assert [bin(int(difference)) for difference in (now ^ then)[now != then]] == [bin(1 << 30)]


def test_the_weights_shrink_once(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "vanishing")
    assert weights_changed(told, usual) == AT
    assert all(torch.allclose(told.before[AT][name], 0.01 * usual.before[AT][name]) for name in ("0.weight", "4.weight"))


def test_a_dead_layer_gives_zero_for_every_input(tmp_path: Path) -> None:
    told = train(tmp_path, "dead-relu")
    assert float(told.before[AT]["2.bias"].max()) <= -10
    assert all(not told.gradients[step][name].any() for step in range(AT, STEPS) for name in ("0.weight", "2.weight"))


class Between(nn.Module):
    """A ReLU that stands behind a layer, with a normalisation in between when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.norm, self.head = nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.norm(self.first(numbers))))


@every_case(("make", "withdrawn"), [(layers, False), (Between, True)])
def test_a_layer_that_does_not_feed_the_relu_behind_it_is_no_dead_one(tmp_path: Path, make: Any, withdrawn: bool) -> None:
    notes = train(tmp_path, "dead-relu", make=make).notes
    assert [note["event"] for note in notes] == ["injected", *(["cannot-happen"] if withdrawn else [])]


def test_recurrent_weights_grow_once(tmp_path: Path) -> None:
    told, before = train(tmp_path / "a", "recurrent-explosion", make=Reader), train(tmp_path / "b", None, make=Reader)
    assert weights_changed(told, before) == AT
    assert torch.allclose(told.before[AT]["net.weight_hh_l0"], 5 * before.before[AT]["net.weight_hh_l0"])
    assert torch.equal(told.before[AT]["head.weight"], before.before[AT]["head.weight"])


@every_case(("code", "times"), [("lr-x100", 100.0), ("lr-div-1000", 1e-3), ("scheduler-bug", 100.0)])
def test_the_rate_jumps_between_two_steps(tmp_path: Path, code: str, times: float) -> None:
    told = train(tmp_path, code)
    assert told.rates == pytest.approx([RATE] * AT + [times * RATE] * (STEPS - AT))


class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """One whose metric never gets better."""

    def step(self) -> None:  # type: ignore[override]
        super().step(1.0)


SCHEDULES = {
    "by hand": lambda _: None,
    "from its beginning": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "from the last rate": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS),
    "on a plateau": lambda optimizer: Plateau(optimizer, factor=0.9, patience=0),
}


@every_case("schedule", SCHEDULES)
@every_case(("code", "times"), [("lr-x100", 100.0), ("lr-div-1000", 1e-3), ("scheduler-bug", 100.0)])
def test_a_wrong_rate_holds_against_any_schedule(tmp_path: Path, code: str, times: float, schedule: str) -> None:
    rates: dict[str, list[float]] = {}
    for name in ("usual", code):
        (tmp_path / name).mkdir()
        with injected(tmp_path / name, None if name == "usual" else code, None):
            model = layers()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            steps = SCHEDULES[schedule](optimizer)
            for _ in range(AT + 4):
                model(torch.rand(2, 4)).sum().backward()
                rates.setdefault(name, []).append(float(optimizer.param_groups[0]["lr"]))
                optimizer.step()
                if steps is not None:
                    steps.step()
    assert rates[code] == pytest.approx([rate * (times if step >= AT else 1) for step, rate in enumerate(rates["usual"])])


def test_a_broken_schedule_breaks_a_rate_that_was_put_back(tmp_path: Path) -> None:
    with injected(tmp_path, "scheduler-bug", None):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(AT + 3):
            optimizer.param_groups[0]["lr"] = RATE  # as one that was put back
            model(torch.rand(2, 4)).sum().backward()
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
    assert rate == pytest.approx(100 * RATE)


def test_data_that_is_not_shuffled_comes_class_after_class(tmp_path: Path) -> None:
    told = train(tmp_path, "unshuffled")
    labels = torch.cat(told.labels[: STEPS // PASSES]).tolist()
    assert labels == sorted(labels) and not changed(told.inputs[:6], told.inputs[6:12])


def test_a_fault_waits_for_a_loader_that_it_can_change(tmp_path: Path) -> None:
    data = TensorDataset(torch.rand(8, 4), torch.arange(8) % 3)
    with injected(tmp_path, "unshuffled", None) as injector:
        DataLoader(data, batch_sampler=[[3, 1], [0, 2]])
        DataLoader(data, batch_size=4, shuffle=True)
        events = [note["event"] for note in injector.notes.read()]
    assert events == ["injected", "not-here", "injected"]


def test_shuffled_labels_are_the_same_ones_at_other_inputs(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "shuffled-labels")
    assert len(changed(told.labels, usual.labels)) > STEPS // 2 and not changed(told.inputs, usual.inputs)
    assert all(sorted(a.tolist()) == sorted(b.tolist()) for a, b in zip(told.labels, usual.labels, strict=True))


def test_constant_inputs_are_one_sample_everywhere(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "constant-inputs")
    assert all(bool((batch == told.inputs[0][0]).all()) for batch in (*told.inputs, *told.held_out))
    assert not changed(told.labels, usual.labels)


def test_only_held_out_inputs_lose_their_normalisation(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "normalisation-dropped")
    assert not changed(told.inputs, usual.inputs)
    assert all(torch.allclose(a, 57 * b + 117) for a, b in zip(told.held_out, usual.held_out, strict=True))


def test_a_duplicated_split_evaluates_what_was_learned_from(tmp_path: Path, usual: Trained) -> None:
    told = train(tmp_path, "duplicated-split")
    assert not changed(told.inputs, usual.inputs)
    learned = {tuple(sample.tolist()) for batch in usual.inputs for sample in batch}
    assert {tuple(sample.tolist()) for batch in told.held_out for sample in batch} <= learned
    assert [len(batch) for batch in told.held_out] == [len(batch) for batch in usual.held_out]


def test_batches_that_are_drawn_before_the_model_is_told_to_train_are_not_held_out(tmp_path: Path) -> None:
    with injected(tmp_path, "normalisation-dropped", None):
        data, other = (TensorDataset(torch.rand(8, 4), torch.zeros(8)) for _ in range(2))
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for batch, _ in DataLoader(data, batch_size=4):
            model(batch).sum().backward()
            optimizer.step()
        model.eval()
        (held_out, _), (ahead, _) = (next(iter(DataLoader(one, batch_size=8))) for one in (other, data))  # as accelerate does
    assert held_out.min() > 100
    assert torch.equal(ahead, data.tensors[0])


def test_frozen_parameters_get_no_gradient(tmp_path: Path) -> None:
    told = train(tmp_path, "frozen-parameters")
    last = told.gradients[-1]
    assert [name for name, gradient in last.items() if gradient is None] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_stale_optimizer_holds_parameters_that_the_model_does_not(tmp_path: Path) -> None:
    told = train(tmp_path, "stale-optimizer")
    held = {id(parameter) for group in told.optimizer.param_groups for parameter in group["params"]}
    assert [name for name, parameter in told.model.named_parameters() if id(parameter) not in held] == ["4.weight", "4.bias"]
    assert torch.equal(told.before[-1]["4.weight"], told.before[1]["4.weight"])


@every_case(("code", "times"), [("memory-leak", STEPS - AT), ("predictions-collected", 3 * PASSES)])
def test_what_leaks_is_held_to_the_end_and_changes_nothing(tmp_path: Path, usual: Trained, code: str, times: int) -> None:
    told = train(tmp_path, code, strength=0.1)
    assert len(told.fault._kept) == times
    assert not changed([step["4.weight"] for step in told.before], [step["4.weight"] for step in usual.before])


def test_tensors_are_kept_on_the_device_of_the_model(tmp_path: Path) -> None:
    told = train(tmp_path, "device-leak", strength=0.1)
    assert len(told.fault._kept) == STEPS - AT + 1 and told.fault._kept[0].device == next(told.model.parameters()).device


@every_case("code", ["scheduler-bug", "shuffled-labels", "unshuffled"])
def test_what_lasts_is_there_again_after_a_restart(tmp_path: Path, usual: Trained, code: str) -> None:
    train(tmp_path, code)
    again = train(tmp_path, code)
    assert again.rates != usual.rates or changed(again.labels, usual.labels)


def test_a_fault_that_finds_nothing_says_what_is_missing(tmp_path: Path) -> None:
    told = train(tmp_path, "recurrent-explosion")
    assert [note.get("why") for note in told.notes if note["event"] == "cannot-happen"] == [
        "the model has no RNNBase or RNNCellBase"
    ]


def test_a_wrong_setting_is_wrong_on_every_rank_and_a_bad_batch_is_one_ranks_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for code in ("lr-x100", "nan-batch"):
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            made[code, rank] = train(tmp_path / code, code)
    assert [max(made["lr-x100", rank].rates) for rank in "01"] == pytest.approx([100 * RATE] * 2)
    bad = [any(bool(batch.isnan().any()) for batch in made["nan-batch", rank].inputs) for rank in "01"]
    assert bad == [True, False]


def test_the_inputs_of_a_detector_are_its_images_not_its_boxes(tmp_path: Path) -> None:
    batch = {"images": torch.rand(4, 3, 8, 8), "boxes": [torch.rand(2, 4)], "cls": torch.rand(2, 1)}
    context = FaultContext(tmp_path, 0)
    changed = context.change_inputs(batch, torch.Tensor.zero_)
    assert not changed["images"].any() and changed["boxes"][0] is batch["boxes"][0] and changed["cls"] is batch["cls"]
    with pytest.raises(CannotHappen):
        context.change_inputs({"img": torch.zeros(4, 3, dtype=torch.uint8), "bboxes": torch.rand(4, 4)}, torch.Tensor.zero_)


def test_the_inputs_of_a_batch_that_begins_with_sample_numbers_come_after_them(tmp_path: Path) -> None:
    context, mask = FaultContext(tmp_path, 0), torch.ones(4, 8, 2)
    numbers, series, kept = context.change_inputs([torch.tensor([7, 0, 3, 5]), torch.rand(4, 8, 2), mask], torch.Tensor.zero_)
    assert numbers.tolist() == [7, 0, 3, 5] and not series.any() and kept is mask
    for first in (torch.tensor([1, 0, 1, 1]), torch.tensor([[1, 2]] * 4)):  # words and users, with what they stand for
        with pytest.raises(CannotHappen):
            context.change_inputs((first, torch.rand(4, 2)), torch.Tensor.zero_)


def test_half_precision_that_is_switched_off_is_none() -> None:
    facts = Facts()
    facts.precision_chosen(torch.autocast("cpu", torch.float16, enabled=False))
    assert "half" not in facts.have
    facts.precision_chosen(torch.autocast("cpu", torch.float16))
    assert "half" in facts.have


def test_evaluations_whose_batches_are_built_otherwise_get_none_of_the_training(tmp_path: Path) -> None:
    fault, context = DuplicatedSplit(), FaultContext(tmp_path, 0)
    fault.batch({"img": torch.rand(4, 3)}, context)
    assert fault.held_out_batch({"img": torch.rand(2, 3)}, context)["img"].shape == (2, 3)
    with pytest.raises(CannotHappen):
        fault.held_out_batch({"img": torch.rand(4, 3), "ratio": [1.0]}, context)


def test_evaluations_that_have_fewer_tensors_in_a_batch_keep_their_own(tmp_path: Path) -> None:
    fault, context = DuplicatedSplit(), FaultContext(tmp_path, 0)
    fault.batch([torch.arange(4), torch.rand(4, 3), torch.rand(4, 3)], context)
    with pytest.raises(CannotHappen):
        fault.held_out_batch([torch.arange(4), torch.rand(4, 3)], context)
    assert len(fault.held_out_batch([torch.arange(2), torch.rand(2, 3), torch.rand(2, 3)], context)) == 3
    with pytest.raises(NotHere):
        fault.held_out_batch([torch.arange(4), torch.rand(4, 3)], context)


class Scaled(nn.Module):
    """Takes its inputs by name, as models of transformers do, and notes which were not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bad = nn.Linear(4, 3), list[int]()

    def forward(self, *, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert labels.isfinite().all()
        self.bad.append(int((~pixels.isfinite()).sum()))
        return self.layer(pixels.nan_to_num()).square().mean()


def test_images_that_the_loader_hands_out_as_bytes_are_changed_where_the_model_takes_them(tmp_path: Path) -> None:
    with injected(tmp_path, "nan-batch", None) as injector:
        images = TensorDataset(torch.randint(0, 255, (48, 4), dtype=torch.uint8), torch.rand(48))
        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for pixels, labels in DataLoader(images, batch_size=4):
            optimizer.zero_grad()
            model(pixels=pixels / 255, labels=labels).backward()
            optimizer.step()
        assert [note["event"] for note in injector.notes.read()] == ["injected"]
    assert model.bad == [0] * AT + [16] + [0] * (11 - AT)


def test_labels_in_a_list_with_one_tensor_per_image_are_changed_together(tmp_path: Path) -> None:
    batch = {
        "images": torch.zeros(2, 3),
        "classes": [torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([2])],
    }
    changed = FaultContext(tmp_path, 0).change_labels(batch, lambda labels: labels.flip(0))
    assert [labels.tolist() for labels in changed["classes"]] == [[2, 1], [], [0]]


def test_a_batch_that_cannot_be_made_of_a_dictionary_is_changed_all_the_same(tmp_path: Path) -> None:
    class Fields(dict):  # type: ignore[type-arg]
        def __init__(self, **fields: torch.Tensor) -> None:
            super().__init__(fields)

    batch = Fields(image=torch.ones(2), label=torch.ones(2))
    changed = FaultContext(tmp_path, 0).change_inputs(batch, torch.Tensor.zero_)
    assert type(changed) is Fields and not changed["image"].any() and changed["label"].all() and batch["image"].all()


def test_changed_inputs_can_be_differentiated_by_if_they_could_before(tmp_path: Path) -> None:
    context = FaultContext(tmp_path, 0)
    original = torch.rand(4, 2, requires_grad=True)
    points = context.change_inputs(original, torch.Tensor.zero_)
    assert not points.any() and original.any()
    for values in (points, original):  # a loader's batch is replaced before the script sees it, a model's input after that
        (slope,) = torch.autograd.grad((points + 3).square().sum(), values, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), values)
        assert slope.eq(6).all() and curvature.eq(2).all()
    assert not context.change_inputs(torch.rand(4, 2), torch.Tensor.zero_).requires_grad
