"""On a GPU: snapshots are copied behind the training's back, and hold exactly the state of their step."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.state.background import BackgroundThread
from holdfast.state.snapshots import Snapshots
from holdfast.state.training_state import TrainingState

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


class Loop:
    """A training large enough for the copies to outlast several steps: 50 MB of weights, tiny batches."""

    def __init__(self, *, fused: bool = True, scaler: bool = False, average: bool = True) -> None:
        torch.manual_seed(0)
        width = 1024
        layers = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(12)]
        self.model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-3, total_steps=500)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if average else None
        self.scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=5) if scaler else None
        self.x, self.y = torch.randn(60, 16, width, device="cuda"), torch.randint(0, 10, (60, 16), device="cuda")
        self.state = TrainingState.discover([self.model], [self.optimizer])

    def step(self, number: int) -> None:
        loss = nn.functional.cross_entropy(self.model(self.x[number]), self.y[number])
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.model)  # asks the GPU for its count
        self.optimizer.zero_grad()

    def everything(self) -> list[torch.Tensor]:
        """A copy on the device, in the training's own stream."""
        return [source.tensor.clone() for source in self.state.read().sources]


def helper() -> BackgroundThread:
    return BackgroundThread("test", on_error=lambda what, error: pytest.fail(f"{what}: {error}"))


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("scaler", [True, False])
def test_a_snapshot_holds_the_state_of_its_step_while_the_training_runs_on(fused: bool, scaler: bool) -> None:
    loop, side = Loop(fused=fused, scaler=scaler), helper()
    snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30, run_later=side.submit)
    for number in range(5):
        loop.step(number)
    for number in range(5, 50, 5):
        torch.cuda.synchronize()
        expected = loop.everything()
        assert snapshots.take(number)
        for ahead in range(5):  # at once: the host does not wait for the copies
            loop.step(number + ahead)
        found = snapshots.at_or_before(number)
        assert found is not None and found.step == number
        assert same(found.copy.hosts, expected)
    side.close()


def test_nothing_waits_for_the_gpu() -> None:
    loop, side = Loop(average=False), helper()
    snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30, run_later=side.submit)
    for number in range(3):
        loop.step(number)
    for number in range(3):
        snapshots.take(number)  # makes the memory
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(3, 30):
            loop.step(number)
            if number % 9 == 0:
                assert snapshots.take(number + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side.close()
    assert all(snapshot.block.pinned for snapshot in snapshots._snapshots)


def test_a_restored_training_goes_on_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        loop, side = Loop(scaler=True), helper()
        snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30, run_later=side.submit)
        for number in range(20):
            loop.step(number)
        snapshots.take(20)
        for number in range(20, 40):
            loop.step(number)
        first = loop.everything()
        snapshots.restore(20)
        for number in range(20, 40):
            loop.step(number)
        assert same(loop.everything(), first)
        side.close()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_ema_swap_right_after_a_snapshot_does_not_get_into_it() -> None:
    """Through `.data`, where no hook and no version counter sees it: as evaluations with averaged weights do."""
    loop, jobs = Loop(), list[Any]()
    loop.step(0)
    snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30, run_later=jobs.append)
    assert loop.average is not None
    for step in range(1, 6):
        loop.step(step)
        torch.cuda.synchronize()
        expected = loop.everything()
        assert snapshots.take(step)
        for weight, averaged in zip(loop.model.parameters(), loop.average.module.parameters(), strict=True):
            weight.data.copy_(averaged.data)
        found = snapshots.at_or_before(step)
        assert found is not None and found.step == step
        assert same(found.copy.hosts, expected)
        while jobs:  # what the background thread would have done meanwhile: the memory can be used again
            jobs.pop(0)()


def test_a_nan_on_the_gpu_is_never_offered() -> None:
    loop = Loop()
    loop.step(0)
    snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30)
    snapshots.take(1)
    with torch.no_grad():
        loop.model[3][0].weight[5, 5] = torch.nan
    snapshots.take(2)
    assert snapshots.steps() == [1]


def test_another_process_goes_on_from_disk_with_state_on_the_gpu(tmp_path: Path) -> None:
    gc.collect()  # averages of other tests
    loop = Loop(fused=True)
    for number in range(5):
        loop.step(number)
    state = loop.state  # it refers to the loop weakly
    snapshots = Snapshots(lambda: state, memory_limit=8 << 30)
    snapshots.take(5)
    snapshots.save(tmp_path)
    expected = loop.everything()
    del loop, snapshots  # another process would not have them
    gc.collect()
    other = Loop(fused=True)
    assert Snapshots(lambda: other.state, memory_limit=8 << 30).restore_from_disk(tmp_path) == 5
    assert same(other.everything(), expected)
    assert all(value.is_cuda for entry in other.optimizer.state.values() for value in entry.values())
    other.step(5)


def test_memory_is_given_back() -> None:
    loop = Loop()
    loop.step(0)
    snapshots = Snapshots(lambda: loop.state, memory_limit=8 << 30)
    snapshots.take(1)
    block = weakref.ref(snapshots._snapshots[0].block)
    pinned = block()
    assert pinned is not None and pinned.pinned
    del pinned
    snapshots.forget()
    gc.collect()
    assert block() is None and snapshots.steps() == []
