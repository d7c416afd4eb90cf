"""What a process that was started again does differently."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.inside.control import restarted
from holdfast.inside.control.restarted import Restarted, cap_workers, read
from holdfast.inside.taps.registry import Taps

DATA = TensorDataset(torch.zeros(8, 1))


def test_the_environment_is_read_and_a_first_attempt_has_none() -> None:
    assert read({"HOLDFAST_RUN": "runs/a"}) is None
    told = read({"HOLDFAST_RUN": "runs/a", "HOLDFAST_ATTEMPT": "2", "HOLDFAST_WORKERS": "0", "HOLDFAST_LR_FACTOR": "0.5"})
    assert told == Restarted(attempt=2, workers=0, lr_factor=0.5)


def test_what_cannot_be_read_is_as_if_it_were_not_there() -> None:
    told = read({"HOLDFAST_RUN": "a", "HOLDFAST_ATTEMPT": "2", "HOLDFAST_WORKERS": "many", "HOLDFAST_LR_FACTOR": "x"})
    assert told == Restarted(attempt=2)


def test_a_script_that_resumes_from_another_of_its_own_checkpoints_counts_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    saved, fresh = {"/a/last.pt": 24, "/a/best.pt": 18}, torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    chosen = Restarted(attempt=2, checkpoint="/a/best.pt", step=18, saved=saved, reached=30)
    monkeypatch.setattr(restarted, "restarted", lambda: chosen)
    assert restarted.step_loaded(["/a/best.pt"], fresh, resumes=False) == 18
    assert restarted.step_loaded(["/a/last.pt"], fresh, resumes=False) == 24
    assert restarted.step_loaded(["/b/pretrained.pt"], fresh, resumes=True) == 0
    weight = torch.nn.Parameter(torch.zeros(3))
    adam = torch.optim.Adam([weight])
    weight.grad = torch.ones(3)
    for _ in range(5):
        adam.step()
    assert restarted.step_loaded(["/b/unknown.pt"], adam, resumes=True) == 5
    monkeypatch.setattr(restarted, "restarted", lambda: replace(chosen, reached=3))
    assert restarted.step_loaded(["/b/pretrained.pt"], adam, resumes=True) == 0, "its updates were made elsewhere"
    kept = replace(chosen, kept="step-000020", kept_step=20)
    monkeypatch.setattr(restarted, "restarted", lambda: kept)
    assert restarted.step_loaded(["/a/last.pt"], fresh, resumes=True) == 24
    assert restarted.step_loaded(["/a/last.pt"], fresh, resumes=False) == 0, "without an optimizer's state it is fast-forwarded"
    monkeypatch.setattr(restarted, "restarted", lambda: None)
    assert restarted.step_loaded(["/a/last.pt"], fresh, resumes=True) == 0


def test_a_loader_gets_so_many_workers_at_most() -> None:
    taps = Taps()
    cap_workers(taps, 2)
    try:
        loaders = [DataLoader(DATA, num_workers=8), DataLoader(DATA, 4, True, None, None, 8), DataLoader(DATA)]
        assert [loader.num_workers for loader in loaders] == [2, 2, 0] and loaders[1].batch_size == 4
        assert DataLoader(DATA, num_workers=1, prefetch_factor=4).prefetch_factor == 4
    finally:
        taps.restore()


def test_a_loader_without_workers_is_made_without_the_options_that_need_some() -> None:
    taps = Taps()
    cap_workers(taps, 0)
    try:
        loader = DataLoader(DATA, batch_size=4, num_workers=4, prefetch_factor=8, persistent_workers=True, timeout=60)
        assert loader.num_workers == 0 and len(list(loader)) == 2
    finally:
        taps.restore()
    assert DataLoader(DATA, num_workers=3).num_workers == 3


def test_the_checkpoint_counts_as_loaded_by_its_path_or_a_file_in_it() -> None:
    told = Restarted(attempt=2, checkpoint="/a/checkpoint-20")
    assert told.loaded_by_script(["/a/checkpoint-20/optimizer.pt"]) and told.loaded_by_script(["/a/checkpoint-20"])
    assert not told.loaded_by_script(["/a/checkpoint-2", "/b/pretrained.pt"])
    assert not Restarted(attempt=2).loaded_by_script(["/a/checkpoint-20"])


def lightning(calls: list[Any]) -> types.ModuleType:
    """Stands in for Lightning: notes the checkpoint that each `fit` is given."""

    class Trainer:
        def fit(self, model: Any, loader: Any = None, val: Any = None, data: Any = None, ckpt_path: Any = None) -> None:
            calls.append(ckpt_path)

    module = types.ModuleType("lightning.pytorch.trainer.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    return module


def test_a_trainer_that_is_given_no_checkpoint_gets_the_chosen_one(tmp_path: Path) -> None:
    calls = list[Any]()
    module = lightning(calls)
    restarted.pass_checkpoint(module, str(tmp_path / "last.ckpt"))
    module.Trainer().fit("model")
    module.Trainer().fit("model", ckpt_path="mine.ckpt")
    module.Trainer().fit("model", None, None, None, "mine.ckpt")
    assert calls == [str(tmp_path / "last.ckpt"), "mine.ckpt", "mine.ckpt"]


def test_a_trainer_is_not_given_the_checkpoint_of_another_fold(tmp_path: Path) -> None:
    calls = list[Any]()
    module = lightning(calls)
    restarted.pass_checkpoint(module, str(tmp_path / "last.ckpt"), lambda: len(calls) == 1)
    for _ in range(3):
        module.Trainer().fit("model")
    assert calls == [None, str(tmp_path / "last.ckpt"), None]


def test_lightning_resumes_from_a_checkpoint_that_holds_objects_of_the_script(tmp_path: Path) -> None:
    import lightning.pytorch.trainer.trainer as trainers
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Demo(BoringModel):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["own"] = Settings()

    def trainer(epochs: int) -> trainers.Trainer:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return trainers.Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=tmp_path, **quiet)  # type: ignore[arg-type]

    trainer(1).fit(Demo())
    module = types.ModuleType(trainers.__name__)
    module.Trainer = type("Trainer", (trainers.Trainer,), {})  # type: ignore[attr-defined]
    restarted.pass_checkpoint(module, str(next(tmp_path.rglob("*.ckpt"))))
    resumed = trainer(2)
    resumed.__class__ = module.Trainer
    resumed.fit(Demo())
    assert (resumed.current_epoch, resumed.global_step) == (2, 128)


class Settings:
    """What a model of somebody else's puts into its checkpoint."""


def test_a_trainer_is_not_given_a_checkpoint_of_another_kind(tmp_path: Path) -> None:
    class Trainer:
        def train(self, resume_from_checkpoint: Any = None) -> Any:
            return resume_from_checkpoint

    module = types.ModuleType("transformers.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    restarted.pass_checkpoint(module, str(tmp_path / "last.pt"))
    assert Trainer().train() is None
    (tmp_path / "trainer_state.json").touch()
    restarted.pass_checkpoint(module, str(tmp_path))
    assert Trainer().train() == str(tmp_path) and Trainer().train("mine") == "mine"
