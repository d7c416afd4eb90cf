"""An update that is not finite never reaches the weights: what is left is bit for bit what it would be without that batch."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.inside.arm import arm_from_environment, armed
from holdfast.signals.run_folder import RunFolder

STEPS, BAD = 24, 10
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@contextmanager
def guarded_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """A run that a training can be armed with; what was put into torch is out again at the end."""
    folder = RunFolder.create(place, "run")
    for name, value in {"RUN": str(folder.path), "DEBUG": "raise", "POLICY": "guard", "RULES": "", "SAMPLING": ""}.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)
    gc.collect()
    try:
        yield folder
    finally:
        armed().close_all()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    with guarded_run(tmp_path, monkeypatch) as folder:
        yield folder


class Outcome:
    """Everything that a bad update could have spoiled."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *others: nn.Module) -> None:
        tensors = [t for m in (model, *others) for t in m.state_dict().values()]
        tensors += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        self.tensors = [tensor.detach().clone() for tensor in tensors]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        pairs = zip(self.tensors, other.tensors, strict=True)
        return all(a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


def data(poison: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(STEPS, 16, 8), torch.randint(0, 3, (STEPS, 16))
    x[BAD, 3, 2] = poison
    return x, y


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def train(make: Make, poison: float, *, without: int | None = None, scaler: Any = None, clip: float | None = None) -> Outcome:
    x, y = data(poison)
    model = make_model()
    optimizer = make(model.parameters())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(STEPS):
        if step == without:
            continue
        optimizer.zero_grad()
        loss = cross_entropy(model(x[step]), y[step])
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update(65536.0)
        average.update_parameters(model)
    return Outcome(model, optimizer, average)


@every_case("poison", [math.nan, math.inf])
def test_without_the_guard_the_bad_batch_has_an_effect(poison: float) -> None:
    assert train(OPTIMIZERS["sgd"], poison) != train(OPTIMIZERS["sgd"], poison, without=BAD)


@every_case(("name", "poison"), [*((name, math.nan) for name in OPTIMIZERS), ("sgd", math.inf), ("adam fused", math.inf)])
def test_a_bad_batch_leaves_everything_bit_equal_to_a_run_without_that_batch(
    name: str, poison: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(OPTIMIZERS[name], poison, without=BAD)
    with guarded_run(tmp_path, monkeypatch) as run:
        arm_from_environment()
        assert train(OPTIMIZERS[name], poison) == expected
        actions = [entry for entry in run.journal if entry["kind"] == "action"]
        assert [(a["action"], a["step"], a["state"]) for a in actions] == [("skip-batch", BAD, "done")]


def test_a_script_that_clips_is_guarded_too_and_the_first_bad_parameter_is_named(run: RunFolder) -> None:
    expected = train(OPTIMIZERS["adam"], math.nan, without=BAD, clip=1.0)
    arm_from_environment()
    assert train(OPTIMIZERS["adam"], math.nan, clip=1.0) == expected
    finding = next(entry for entry in run.journal if entry["kind"] == "finding")
    assert finding["step"] == BAD and finding["evidence"]["parameter"] == "0.weight"


@every_case("name", ["sgd", "adamw", "adamw fused"])
def test_with_a_scaler_the_statistics_are_put_back_as_well(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaler() -> Any:
        return torch.amp.GradScaler("cpu", init_scale=65536.0)

    expected = train(OPTIMIZERS[name], math.nan, without=BAD, scaler=scaler())
    with guarded_run(tmp_path, monkeypatch) as run:
        arm_from_environment()
        found = train(OPTIMIZERS[name], math.nan, scaler=scaler())
        buffers = slice(0, 8)  # weights and statistics of the model; the average is the script's own business under a scaler
        assert all(a.equal(b) for a, b in zip(found.tensors[buffers], expected.tensors[buffers], strict=True))
        assert not [entry for entry in run.journal if entry["kind"] == "action"], "the scaler skipped it, not Holdfast"


def test_with_accumulation_the_whole_update_is_left_out(run: RunFolder) -> None:
    def accumulate(without: int | None) -> Outcome:
        x, y = data(math.nan)
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(0, STEPS, 2):
            if step == without:
                continue
            for part in (step, step + 1):
                (cross_entropy(model(x[part]), y[part]) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return Outcome(model, optimizer)

    expected = accumulate(BAD)
    arm_from_environment()
    assert accumulate(None) == expected


def test_a_registered_average_does_not_move_over_an_update_that_was_left_out(tmp_path: Path) -> None:
    def average_by_hand(run: Any, *, without: int | None = None) -> Outcome:
        x, y = data(math.nan)
        model, average = make_model(), make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watched = run(model, optimizer, average)
        for step in range(STEPS):
            if step == without:
                continue
            optimizer.zero_grad()
            cross_entropy(model(x[step]), y[step]).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
        if watched is not None:
            watched.close()
        return Outcome(model, optimizer, average)

    def watch(model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module) -> Any:
        run = holdfast.watch(model, optimizer, policy="guard", folder=tmp_path)
        run.ema(average)
        return run

    assert average_by_hand(watch) == average_by_hand(lambda *_: None, without=BAD)


def test_a_bad_loss_with_good_gradients_is_left_out(run: RunFolder) -> None:
    arm_from_environment()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).mean() + (math.inf if step == 1 else 0.0)
        before = model.weight.clone()
        loss.backward()
        optimizer.step()
        assert model.weight.equal(before) == (step == 1)
        assert model.weight.grad is not None, "the script finds its gradients after the step"
    assert [entry["code"] for entry in run.journal if entry["kind"] == "finding"] == ["non-finite-loss"]


def test_statistics_that_the_script_loads_are_not_undone(run: RunFolder) -> None:
    arm_from_environment()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    good = {name: torch.full_like(value, 2) for name, value in model.state_dict().items()}
    for step in range(4):
        optimizer.zero_grad()
        if step == 2:
            model.load_state_dict(good)
        batch = torch.randn(16, 8) if step < 3 else torch.full((16, 8), math.nan)
        model(batch).square().mean().backward()
        optimizer.step()
        if step == 2:
            kept = model[1].running_mean.clone()
    assert model[1].running_mean.equal(kept)


def test_a_very_first_batch_that_is_bad_does_not_spoil_the_statistics(run: RunFolder) -> None:
    arm_from_environment()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8) * (math.nan if step == 0 else 1.0)).square().mean().backward()
        optimizer.step()
    assert model[1].running_mean.isfinite().all() and model[1].num_batches_tracked == 2


def test_observing_changes_nothing_even_when_it_is_bad(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", "observe")
    expected = train(OPTIMIZERS["adamw"], math.nan)
    arm_from_environment()
    assert train(OPTIMIZERS["adamw"], math.nan) == expected
    assert not [entry for entry in run.journal if entry["kind"] == "action"]


def test_a_rule_can_leave_a_finding_to_the_script(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RULES", "non-finite-loss=observe")
    expected = train(OPTIMIZERS["adamw"], math.nan)
    arm_from_environment()
    found = train(OPTIMIZERS["adamw"], math.nan)
    assert found.tensors[0].isnan().any() and expected.tensors[0].isnan().any()


def test_a_thousand_bad_updates_fill_no_journal(run: RunFolder) -> None:
    arm_from_environment()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1000):
        optimizer.zero_grad()
        model(torch.full((4, 2), math.nan)).mean().backward()
        optimizer.step()
    assert model.weight.isfinite().all()
    assert len(list(run.journal)) < 120


@pytest.mark.parametrize("thawed", [True, False])
def test_a_gradient_far_larger_than_any_before_is_clipped_unless_other_parameters_are_trained(
    thawed: bool, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", "heal")
    arm_from_environment()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    model[0].requires_grad_(not thawed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(90):
        optimizer.zero_grad()
        model[0].requires_grad_(not thawed or step >= 80)
        (model(torch.randn(16, 8)).square().mean() * (100.0 if step == 80 else 1.0)).backward()
        optimizer.step()
    clipped = [entry["step"] for entry in run.journal if entry["kind"] == "action"]
    assert clipped == ([] if thawed else [80])
