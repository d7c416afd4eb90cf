"""Snapshots on disk: a new process goes on from them bit for bit, and a torn one is passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from snapshot_loop import Loop, same, snapshots_of
from torch import nn

from holdfast.checkpoints.manifest import list_checkpoints
from holdfast.state.background import BackgroundThread
from holdfast.state.snapshots import Snapshots
from holdfast.state.training_state import TrainingState


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_snapshot_that_is_being_read_is_not_overwritten(loop: Loop, tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    snapshots = snapshots_of(loop, keep=1, run_later=jobs.append)
    loop.run(0, 5)
    snapshots.take(5)
    jobs.pop()()
    expected = loop.model[0].weight.detach().clone()
    assert snapshots.save(tmp_path) == tmp_path / "step-000005"
    loop.run(5, 8)
    assert not snapshots.take(8)  # its only place is being written to disk
    jobs.pop()()
    assert torch.equal(load_file(tmp_path / "step-000005" / "weights.safetensors")["0.weight"], expected)
    assert snapshots.take(8)


def test_the_outside_is_told_which_snapshots_are_clean(loop: Loop, tmp_path: Path) -> None:
    index = tmp_path / "snapshots.json"
    snapshots = snapshots_of(loop, index=index)
    snapshots.take(50)
    snapshots.take(100)
    assert json.loads(index.read_text()) == {"steps": [50, 100], "every": 50}
    snapshots.drop_after(50)
    assert json.loads(index.read_text())["steps"] == [50]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshots.json"]


def test_a_new_process_goes_on_from_disk_bit_for_bit(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 20)
    snapshots.take(20)
    snapshots.save(tmp_path)
    expected = loop.run(20, 40)
    other = Loop(seed=9)
    assert snapshots_of(other).restore_from_disk(tmp_path) == 20
    assert same(other.run(20, 40), expected)


def test_a_checkpoint_holds_nothing_twice_and_is_plain(loop: Loop, tmp_path: Path) -> None:
    wide = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
    state = TrainingState.discover([wide], [optimizer])
    snapshots = Snapshots(lambda: state, memory_limit=1 << 28)
    snapshots.take(3)
    path = snapshots.save(tmp_path)
    assert path is not None
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert sizes["weights.safetensors"] < 1.1 * 512 * 513 * 4 and sizes["training.pt"] < 50_000
    assert load_file(path / "weights.safetensors").keys() == {"weight", "bias"}
    assert torch.load(path / "training.pt", weights_only=True)["optimizers"][0] == optimizer.state_dict()


def test_the_newest_clean_one_is_saved_and_a_torn_checkpoint_is_passed_over(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    for step in (10, 20):
        loop.run(step, step + 5)
        snapshots.take(step)
        snapshots.save(tmp_path)
    (tmp_path / "step-000020" / "training.pt").write_bytes(b"")
    assert snapshots.restore_from_disk(tmp_path) == 10
    damaged = tmp_path / "step-000010" / "weights.safetensors"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    assert snapshots.restore_from_disk(tmp_path) is None


def test_only_four_checkpoints_stay_on_disk_and_one_is_from_long_before(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    for step in range(10, 130, 10):
        snapshots.take(step)
        snapshots.save(tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000010", "step-000090", "step-000110", "step-000120"]
    assert snapshots.restore_from_disk(tmp_path, at_or_before=105) == 90


def test_nothing_is_saved_when_there_is_nothing_clean(loop: Loop, tmp_path: Path) -> None:
    assert snapshots_of(loop).save(tmp_path) is None


def test_rank_one_of_a_replicated_model_writes_nothing_and_reads_rank_zeros(loop: Loop, tmp_path: Path) -> None:
    zero, one = snapshots_of(loop, world_size=2), snapshots_of(loop, world_size=2, rank=1)
    one.take(50)
    one.save(tmp_path)
    assert not list(tmp_path.iterdir())
    zero.take(50)
    zero.save(tmp_path)
    assert one.restore_from_disk(tmp_path) == 50


def test_training_and_helper_at_the_same_time(loop: Loop, tmp_path: Path) -> None:
    said: list[str] = []
    helper = BackgroundThread("test", on_error=lambda what, error: said.append(f"{what}: {error!r}"))
    snapshots = snapshots_of(loop, every=1, run_later=helper.submit, index=tmp_path / "snapshots.json")
    wanted = {}

    def between(step: int) -> None:
        if snapshots.due(step) and snapshots.take(step):
            wanted[step] = loop.model[0].weight.detach().clone()
            if step % 7 == 0:
                snapshots.save(tmp_path / "checkpoints")

    step = 0
    while len(wanted) < 40:
        loop.run(step, step + 20, between)
        step += 20
        found = snapshots.at_or_before(step)
        assert found is not None
        assert torch.equal(found.copy.hosts[found.copy.tree["models"][0]["parameters"]["0.weight"].number], wanted[found.step])
    helper.close()
    assert not said


@pytest.mark.parametrize("on_disk", [True, False])
def test_parameters_that_a_script_lists_in_another_order_each_time_get_their_own_state(tmp_path: Path, on_disk: bool) -> None:
    def training(order: list[int], seed: int) -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 2))
        parameters = list(model.parameters())
        optimizer = torch.optim.Adam([parameters[place] for place in order], lr=0.05)
        return model, optimizer, TrainingState.discover([model], [optimizer])

    def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
        batches = torch.Generator().manual_seed(steps)
        for _ in range(steps):
            model(torch.randn(8, 6, generator=batches)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    model, optimizer, state = training([0, 1, 2, 3, 4, 5], seed=0)
    learn(model, optimizer, 7)
    snapshots = Snapshots(lambda: state, memory_limit=1 << 28)
    snapshots.take(7)
    if on_disk:
        snapshots.save(tmp_path)
    expected = learn(model, optimizer, 5)
    if on_disk:  # 2 and 4 are of one shape: nothing but the name tells them apart
        model, optimizer, state = training([4, 3, 5, 0, 2, 1], seed=1)
        assert Snapshots(lambda: state, memory_limit=1 << 28).restore_from_disk(tmp_path) == 7
    else:
        optimizer.param_groups[0]["params"].reverse()
        snapshots.restore(7)
    assert all(map(torch.equal, learn(model, optimizer, 5), expected))
