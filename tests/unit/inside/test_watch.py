"""`holdfast.watch`: the recording from one line in the code, in the process of the tests."""

from __future__ import annotations

import gc
import math
import mmap
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.utils.data import DataLoader
from watched_training import Recorded, difference

import holdfast
from holdfast.errors import UsageError
from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder


def replaceable() -> tuple[Any, ...]:
    """Some of what is replaced in torch while something is watched."""
    scaler, clip = torch.amp.GradScaler.step, torch.nn.utils.clip_grad_norm_
    return torch.autograd.backward, nn.Module.train, nn.Module.__getstate__, scaler, clip


ORIGINALS = replaceable()


pytestmark = pytest.mark.usefixtures("alone")


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    return [step(model, optimizer, torch.randn(6, 4)) for _ in range(steps)]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def recorded(run: holdfast.Run) -> Recorded:
    return Recorded(RunFolder(run.folder))


def hooks_are_out() -> bool:
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    return replaceable() == ORIGINALS and not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks


def test_a_backward_pass_without_a_step_is_not_counted_in_the_next_run(tmp_path: Path) -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer, name="first"):
        train(model, optimizer, 2)
        (100 * model(torch.ones(1, next(model.parameters()).shape[1])).sum()).backward()
    optimizer.zero_grad()
    with holdfast.watch(model, optimizer, name="second") as run:
        losses = train(model, optimizer, 3)
    assert recorded(run).steps["loss"] == losses


def test_a_block_records_its_steps_and_takes_the_hooks_out_afterwards(tmp_path: Path) -> None:
    model, optimizer = made()
    train(model, optimizer, 2)
    with holdfast.watch(model, optimizer, name="block") as run:
        losses = train(model, optimizer, 7)
        assert not hooks_are_out()
    train(model, optimizer, 3)
    assert hooks_are_out()
    assert run.folder == tmp_path / "runs" / "block"
    assert recorded(run).steps["loss"] == losses
    assert recorded(run).findings == []
    assert run.closed
    assert RunFolder.open(run.folder).info()["ended"]


def test_watching_changes_no_bit() -> None:
    def outcome(watched: bool) -> list[Any]:
        model, optimizer = made()
        run = holdfast.watch(model, optimizer) if watched else None
        losses = train(model, optimizer, 20)
        if run is not None:
            run.close()
        return [losses, list(model.state_dict().values()), torch.get_rng_state()]

    assert difference(outcome(False), outcome(True)) is None


def test_a_run_that_is_left_open_is_written_at_the_end_of_the_process() -> None:
    model, optimizer = made()
    run = holdfast.watch(model, optimizer)
    losses = train(model, optimizer, 5)
    until = time.monotonic() + 600
    while len(recorded(run).steps) < 5 and time.monotonic() < until:
        time.sleep(0.05)
    assert recorded(run).steps["loss"] == losses  # there for others to read, though nothing more happens
    armed().close_all()
    assert hooks_are_out()
    assert recorded(run).steps["loss"] == losses


def test_an_error_in_the_block_is_the_scripts_own() -> None:
    model, optimizer = made()
    with pytest.raises(ZeroDivisionError), holdfast.watch(model, optimizer) as run:
        train(model, optimizer, 3)
        _ = 1 / 0
    assert run.closed
    assert len(recorded(run).steps) == 3
    assert hooks_are_out()


def test_the_same_optimizer_again_closes_the_run_that_was_left_open() -> None:
    model, optimizer = made()
    first = holdfast.watch(model, optimizer, name="cell")
    train(model, optimizer, 3)
    second = holdfast.watch(model, optimizer, name="cell")
    train(model, optimizer, 4)
    assert first.closed
    assert not second.closed
    second.close()
    assert [len(recorded(run).steps) for run in (first, second)] == [3, 4]
    assert first.folder != second.folder


def test_a_cell_executed_again_with_a_new_optimizer_closes_the_old_run_too() -> None:
    model, optimizer = made()
    first = holdfast.watch(model, optimizer)
    train(model, optimizer, 3)
    model, optimizer = made()
    gc.collect()
    holdfast.watch(model, optimizer)
    assert first.closed


def test_only_the_optimizer_that_was_named_is_recorded() -> None:
    model, optimizer = made()
    other_model, other = made()
    with holdfast.watch(model, optimizer) as run:
        train(other_model, other, 5)
        losses = train(model, optimizer, 3)
    assert recorded(run).names == ["rank-0"]
    assert recorded(run).steps["loss"] == losses


def test_two_runs_at_once_are_kept_apart() -> None:
    one, two = made(), made()
    with holdfast.watch(*one) as first, holdfast.watch(*two) as second:
        losses = [train(*one, 2), train(*two, 3), train(*one, 2)]
    assert recorded(first).steps["loss"] == losses[0] + losses[2]
    assert recorded(second).steps["loss"] == losses[1]


def test_nothing_is_kept_alive_by_an_open_run() -> None:
    model, optimizer = made()
    holdfast.watch(model, optimizer)
    train(model, optimizer, 5)
    references = [weakref.ref(thing) for thing in (model, optimizer, *model.parameters())]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_batches_from_a_list_give_samples_passes_and_waiting_time() -> None:
    model, optimizer = made()
    data = [torch.randn(6, 4), torch.randn(6, 4), torch.randn(2, 4)]
    with holdfast.watch(model, optimizer) as run:
        for _ in range(3):
            for batch in run.batches(data):
                step(model, optimizer, batch)
    steps = recorded(run).steps
    assert steps["samples"] == [6, 6, 2] * 3
    assert steps["epoch"] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(waited >= 0 for waited in steps["data_seconds"])


def test_batches_from_a_loader_are_counted_once() -> None:
    model, optimizer = made()
    loader = DataLoader(torch.randn(10, 4), batch_size=4)
    with holdfast.watch(model, optimizer) as run:
        for _ in range(2):
            for batch in run.batches(loader):
                step(model, optimizer, batch)
    assert recorded(run).steps["samples"] == [4, 4, 2] * 2
    assert recorded(run).steps["epoch"] == [0, 0, 0, 1, 1, 1]


def test_the_epoch_can_be_said() -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer) as run:
        for epoch in (3, 4):
            run.epoch(epoch)
            train(model, optimizer, 2)
    assert recorded(run).steps["epoch"] == [3, 3, 4, 4]


def test_metrics_are_logged_with_split_and_step_even_before_the_first_step() -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer) as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log(untrained=0.1, split="val")
        train(model, optimizer, 2)
        run.log(accuracy=0.5, f1=torch.tensor(0.25), split="val")
        run.log(loss=(model(torch.ones(1, 4)) * 0).sum() + 2, step=77)
    rows = recorded(run).table("evaluations").where()
    told = [(row["step"], row["split"], row["name"], row["value"]) for row in rows]
    assert told == [(0, "val", "untrained", 0.1), (2, "val", "accuracy", 0.5), (2, "val", "f1", 0.25), (77, "train", "loss", 2.0)]


@pytest.mark.parametrize(("loss", "split", "sampled"), [(math.nan, "val", True), (0.5, "val", False), (math.nan, "train", False)])
def test_the_weights_are_looked_at_when_a_held_out_loss_is_not_finite(loss: float, split: str, sampled: bool) -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer) as run:
        train(model, optimizer, 16)
        run.log(loss=loss, split=split)
        train(model, optimizer, 3)
    norms = recorded(run).steps["weight_norm"]
    assert [norm is not None and math.isfinite(norm) for norm in norms[16:19]] == [False, sampled, False]


def test_layers_that_are_unfrozen_do_not_look_like_weights_that_jumped() -> None:
    model, optimizer = made()
    first = next(iter(model.parameters()))
    first.requires_grad_(False)
    with holdfast.watch(model, optimizer) as run:
        train(model, optimizer, 40)
        first.requires_grad_(True)
        train(model, optimizer, 40)
    norms = [norm for norm in recorded(run).steps["weight_norm"] if norm is not None]
    assert len(norms) >= 3 and max(norms) < 1.2 * min(norms)


@every_case("write_every", [0.05, 0.0])  # with 0.0, the row of the last step is always written before the evaluation begins
def test_memory_that_steps_have_taken_is_not_put_down_to_the_evaluation_after_them(
    write_every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.inside.training._WRITE_EVERY", write_every)
    model, optimizer = made()
    kept = []
    with holdfast.watch(model, optimizer) as run:
        train(model, optimizer, 4)
        for _ in range(3):
            for _ in range(10):
                train(model.train(), optimizer, 1)
                kept.append(mmap.mmap(-1, 1 << 22))  # four megabytes a step, not from memory that was freed before
                kept[-1].write(b"x" * (1 << 22))
            model.eval()
        train(model.train(), optimizer, 1)
    memory = recorded(run).steps["host_rss"]
    in_evaluations = sum(memory[step + 1] - memory[step] for step in (13, 23, 33))
    assert memory[34] - memory[4] > 100e6 and in_evaluations < 0.25 * (memory[34] - memory[4])


def test_a_metric_that_is_no_number_does_not_end_the_training() -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer) as run:
        train(model, optimizer, 2)
        run.log(accuracy="high")  # type: ignore[arg-type]
        run.log(scores=torch.zeros(3))
        train(model, optimizer, 2)
    assert len(recorded(run).steps) == 4
    assert [finding["code"] for finding in recorded(run).findings] == 2 * ["holdfast-degraded"]


def test_a_folder_that_cannot_be_written_is_a_warning_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model, optimizer = made()
    with pytest.warns(UserWarning, match="not recorded"):
        run = holdfast.watch(model, optimizer, folder=tmp_path / "file" / "runs")
    with run:
        run.log(accuracy=0.5)
        for batch in run.batches([torch.randn(3, 4)] * 4):
            step(model, optimizer, batch)
    assert hooks_are_out()


@every_case("wrong", [{"policy": "magic"}, {"budget": 0.0}, {"budget": 2.0}])
def test_wrong_settings_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        holdfast.watch(*made(), **wrong)
    assert hooks_are_out()


@every_case("wrong", [("my-run",), (Path("runs"),), (None, 3)])
def test_what_is_no_model_or_optimizer_is_refused_in_words(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"is not of type (Module|Optimizer)"):
        holdfast.watch(*wrong)
    assert hooks_are_out()


def test_under_holdfast_run_it_gives_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.inside.arm import arm_from_environment

    outer = RunFolder.create(tmp_path, "outer")
    monkeypatch.setenv("HOLDFAST_RUN", str(outer.path))
    arm_from_environment()
    model, optimizer = made()
    with holdfast.watch(model, optimizer) as run:
        losses = train(model, optimizer, 2)
        run.log(accuracy=0.5)
    losses += train(model, optimizer, 3)  # the block's end does not end what `holdfast run` began
    armed().close_all()
    assert run.folder == outer.path
    assert recorded(run).steps["loss"] == losses
    assert len(recorded(run).table("evaluations")) == 1
