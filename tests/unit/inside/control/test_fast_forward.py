"""A loop that knows nothing of resuming is brought to where it was, and ends as it would have."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoints.manifest import kept_in
from holdfast.inside.arm import armed
from holdfast.inside.control.restarted import restarted

STEPS, KEPT_AT = 40, 25
Between = Callable[[int], None]


@pytest.fixture
def started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Have this process believe that it was started again, with what the first attempt has kept."""

    def believe() -> None:
        gc.collect()  # optimizers of other tests would be waited for
        monkeypatch.setenv("HOLDFAST_RUN", str(tmp_path))
        monkeypatch.setenv("HOLDFAST_ATTEMPT", "2")
        monkeypatch.setenv("HOLDFAST_KEPT", str(tmp_path / "kept" / f"step-{KEPT_AT:06d}"))
        monkeypatch.setenv("HOLDFAST_KEPT_STEP", str(KEPT_AT))
        restarted.cache_clear()

    yield believe
    monkeypatch.undo()
    restarted.cache_clear()


def one_optimizer(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
    for step in range(STEPS):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        between(step + 1)
        schedule.step()
    return [*model.state_dict().values(), *schedule.get_last_lr()]


def two_optimizers(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    large, small = nn.Linear(4, 16), nn.Linear(4, 4)
    first, second = torch.optim.Adam(large.parameters(), lr=0.01), torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        x = torch.randn(8, 4)
        first.zero_grad()
        large(small(x).detach()).pow(2).mean().backward()
        first.step()
        between(step + 1)
        second.zero_grad()
        large(small(x)).pow(2).mean().backward()
        second.step()
    return [*large.state_dict().values(), *small.state_dict().values()]


def keep(folder: Path, step: int) -> None:
    """What the guard does every few minutes."""
    if step == KEPT_AT:
        _keep_now(folder, step)


def keep_twice_and_die(folder: Path, step: int) -> None:
    """Two are kept; the kill comes some steps later, and the newer one turns out to be damaged."""
    if step in (KEPT_AT - 10, KEPT_AT):
        _keep_now(folder, step)
    if step == KEPT_AT + 8:
        weights = kept_in(folder)[-1].path / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        raise InterruptedError


def _keep_now(folder: Path, step: int) -> None:
    snapshots = armed().runtime.trainings[-1].control.snapshots  # type: ignore[union-attr]
    assert snapshots.take(step) and snapshots.save(folder) is not None
    deadline = time.monotonic() + 600
    while not any(kept.step == step for kept in kept_in(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("loop", [one_optimizer, two_optimizers])
def test_it_ends_bit_for_bit_as_without_an_interruption(
    loop: Callable[..., list[Any]], tmp_path: Path, started_again: Callable[[], None]
) -> None:
    wanted = loop()
    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        loop(lambda step: keep(tmp_path / "kept", step))
    started_again()
    with holdfast.watch(folder=tmp_path, name="second", policy="heal"):
        found = loop()
        training = armed().runtime.trainings[-1]
        assert training.step == STEPS and armed().runtime.fast_forwarding is None
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))


def test_killed_between_two_saves_with_the_newer_one_damaged_it_catches_up_from_the_one_before(
    tmp_path: Path, started_again: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = one_optimizer()
    with pytest.raises(InterruptedError), holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        one_optimizer(lambda step: keep_twice_and_die(tmp_path / "kept", step))
    started_again()
    with holdfast.watch(folder=tmp_path, name="second", policy="heal"):
        found = one_optimizer()
        assert armed().runtime.trainings[-1].step == STEPS
    assert f"caught up at step {KEPT_AT - 10}" in capsys.readouterr().err
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))


def test_what_was_kept_of_another_model_is_left_alone(
    tmp_path: Path, started_again: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = one_optimizer()
    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        two_optimizers(lambda step: keep(tmp_path / "kept", step))
    started_again()
    with holdfast.watch(folder=tmp_path, name="second", policy="heal"):
        found = one_optimizer()
        assert armed().runtime.trainings[-1].step == STEPS
    assert "starting from scratch" in capsys.readouterr().err
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))
