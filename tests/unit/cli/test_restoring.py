"""The lines that `choose` prints for the script: they are run here as they are printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.optim import lr_scheduler

import holdfast
from holdfast.checkpoints.summary import Summary
from holdfast.checkpoints.verify import Verdict
from holdfast.cli.checkpoints.restoring import commands_for, lines_for
from holdfast.recovery.choosing.candidates import Candidate
from holdfast.recovery.choosing.options import Option

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 10)], [4]
    ),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer),
}


def option(path: Path, producer: str | None, holds: set[str], **settings: Any) -> Option:
    candidate = Candidate(
        path=path, verdict=Verdict(path=path, state="clean"), summary=Summary(step=4, holds=frozenset(holds)), producer=producer
    )
    return Option(kind="best", candidate=candidate, position=4, settings=settings, because=(), folder=Path("run-resumed"))


def made(schedule: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, SCHEDULES[schedule](optimizer)


def rates(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    """Train some steps; the rate of each."""
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return found


@every_case("schedule", SCHEDULES)
@every_case("how", ["plain", "store"])
@pytest.mark.filterwarnings("ignore:The epoch parameter", "ignore:Detected call")
def test_after_the_printed_lines_every_step_has_three_quarters_of_the_rate_it_had(
    tmp_path: Path, schedule: str, how: str
) -> None:
    model, optimizer, scheduler = made(schedule)
    rates(model, optimizer, scheduler, 3)
    if how == "plain":
        path = tmp_path / "checkpoint.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "step": 3}
        torch.save(state, path)
    else:
        with holdfast.CheckpointStore(tmp_path / "kept") as store:
            path = store.save(3, model=model, optimizer=optimizer, scheduler=scheduler, wait=True) or tmp_path
    usual = rates(model, optimizer, scheduler, 6)
    model, optimizer, scheduler = made(schedule)
    about = option(
        path, "holdfast" if how == "store" else None, {"weights", "optimizer", "scheduler"}, lr={"op": "multiply", "value": 0.75}
    )
    exec("\n".join(lines_for(about)), {"holdfast": holdfast, "model": model, "optimizer": optimizer, "scheduler": scheduler})
    assert rates(model, optimizer, scheduler, 6) == pytest.approx([0.75 * rate for rate in usual])


def test_a_run_that_was_well_is_restored_and_nothing_else() -> None:
    everything = {"weights", "optimizer", "scheduler", "scaler"}
    assert lines_for(option(Path("a.pt"), None, everything)) == [
        'holdfast.load(model, "a.pt", optimizer=optimizer, scheduler=scheduler, scaler=scaler)'
    ]
    assert lines_for(option(Path("a.ckpt"), "lightning", everything)) == [
        'trainer = L.Trainer(default_root_dir="run-resumed", ...)', 'trainer.fit(model, ckpt_path="a.ckpt")',
    ]  # fmt: skip
    assert lines_for(option(Path("out/checkpoint-500"), "transformers", everything))[-1] == (
        'trainer.train(resume_from_checkpoint="out/checkpoint-500")'
    )
    assert lines_for(option(Path("state"), "accelerate", everything)) == ['accelerator.load_state("state")']
    assert lines_for(option(Path("zero/global_step4"), "deepspeed", everything)) == [
        'engine.load_checkpoint("zero", tag="global_step4")'
    ]
    assert lines_for(option(Path("last.pt"), "ultralytics", everything)) == ['YOLO("last.pt").train(resume=True)']


def test_other_settings_for_ultralytics_begin_from_the_weights_since_resume_takes_its_own() -> None:
    settings = {
        "lr": {"op": "multiply", "value": 0.75, "was": 0.01, "becomes": 0.0075},
        "warmup_epochs": {"op": "set", "value": 5},
    }
    (line,) = lines_for(option(Path("weights/best.pt"), "ultralytics", {"weights", "optimizer"}, **settings))
    assert line == 'YOLO("weights/best.pt").train(data=..., lr0=0.0075, warmup_epochs=5, project=".", name="run-resumed")'


def test_weights_alone_of_a_trainer_are_put_into_the_model() -> None:
    assert lines_for(option(Path("a.ckpt"), "lightning", {"weights"})) == ['holdfast.load(model, "a.ckpt")']


def test_a_fresh_start_needs_no_lines() -> None:
    assert lines_for(Option(kind="fresh", candidate=None, position=None, settings={}, because=())) == []


def test_the_command_of_the_run_is_repeated_under_a_name_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my run").mkdir()
    info = {"command": ["python", "train.py", "--name", "a b"], "cwd": str(tmp_path)}
    commands = commands_for(option(Path("a.pt"), None, {"weights"}), info, tmp_path / "my run")
    assert commands is not None and not commands.resumes
    assert commands.start == "holdfast run --name 'my run-resumed' -- python train.py --name 'a b'"
    monkeypatch.chdir("/")
    moved = commands_for(option(Path("a.pt"), None, {"weights"}), info, tmp_path / "my run")
    assert moved is not None and moved.start == f"cd {tmp_path} && {commands.start}", "pasted anywhere, it starts where it did"


def test_a_script_with_a_flag_for_resuming_is_not_to_be_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text('import argparse\nargparse.ArgumentParser().add_argument("--resume")\n')
    info = {"command": ["python", "train.py"], "cwd": str(tmp_path)}
    settings = {"lr": {"op": "multiply", "value": 0.25}, "clip_norm": {"op": "set", "value": 1.0}}
    commands = commands_for(option(tmp_path / "out/a.pt", None, {"weights", "optimizer"}, **settings), info, tmp_path / "night")
    assert commands is not None and commands.resumes
    assert commands.start == "holdfast run --name night-resumed -- python train.py --resume out/a.pt"
    assert commands.change == "holdfast set 'lr*=0.25' clip=1 -t night-resumed"
    store = commands_for(option(tmp_path / "step-000004", "holdfast", {"weights"}), info, tmp_path / "night")
    assert store is not None and not store.resumes, "no script of theirs loads a checkpoint of Holdfast's own store"
