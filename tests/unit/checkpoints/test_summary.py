"""Step, epoch, metric, age and what a checkpoint holds: as trainers write them, as people do, or as the name of the file says."""

from __future__ import annotations

import datetime
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from safetensors.torch import save_file
from torch import nn

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.parts import parts_of
from holdfast.checkpoints.summary import Summary, averages_of, summarise, weights_of, weights_part


def opened(folder: Path, content: Any, name: str = "checkpoint.pt") -> Contents:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return open_checkpoint(path)


def summary(folder: Path, content: Any, name: str = "checkpoint.pt") -> Summary:
    return summarise(opened(folder, content, name))


def state_dict() -> dict[str, torch.Tensor]:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()


def parts(steps: int = 5) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


# --- trainers


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, max_position_embeddings=8
    )
    rows = [{"input_ids": torch.randint(0, 20, (4,)), "labels": torch.tensor(number % 2)} for number in range(8)]
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=2, eval_steps=2, eval_strategy="steps", logging_steps=1, report_to=[],
        use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    transformers.Trainer(model=model, args=settings, train_dataset=rows, eval_dataset=rows).train()
    told = summarise(open_checkpoint(tmp_path / "checkpoint-2"))
    assert (told.step, told.epoch) == (2, 1)
    assert told.metric is not None and told.metric[0] == "eval_loss" and {"eval_loss", "loss"} == set(told.metrics)
    assert {"weights", "optimizer", "scheduler", "rng", "settings"} == told.holds
    assert told.settings["hidden_size"] == 8 and told.settings["learning_rate"] == pytest.approx(5e-5)
    assert told.parameters == sum(one.numel() for one in model.parameters())


@pytest.fixture
def pickled_whole(monkeypatch: pytest.MonkeyPatch) -> type[nn.Module]:
    """A model's class of another package, which is not there when the file is read."""
    module = types.ModuleType("ultralytics.nn.tasks")

    class DetectionModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
            self.register_buffer("stride", torch.ones(3))
            self.register_buffer("made_up", torch.ones(2), persistent=False)

    DetectionModel.__module__, DetectionModel.__qualname__ = module.__name__, "DetectionModel"
    module.DetectionModel = DetectionModel  # type: ignore[attr-defined]
    for name in ("ultralytics", "ultralytics.nn"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", module)
    return DetectionModel


def test_ultralytics(tmp_path: Path, pickled_whole: type[nn.Module]) -> None:
    model, (_, optimizer, _) = pickled_whole(), parts()
    content = {
        "epoch": 17, "best_fitness": 0.41, "model": None, "ema": model, "updates": 900, "optimizer": optimizer.state_dict(),
        "train_args": {"imgsz": 640, "lr0": 0.01},
        "train_metrics": {"metrics/mAP50-95(B)": 0.4, "fitness": 0.402, "val/box_loss": 1.2},
        "train_results": {"epoch": [1, 2]}, "date": "2025-03-01T12:00:00", "version": "8.3.0",
    }  # fmt: skip
    contents = opened(tmp_path, content, "weights/best.pt")
    told = summarise(contents)
    assert (told.epoch, told.step, told.metric) == (17, 900, ("fitness", 0.402))
    assert told.metrics["best_fitness"] == 0.41 and told.metrics["val/box_loss"] == 1.2
    assert told.saved_at == datetime.datetime(2025, 3, 1, 12).timestamp()
    assert told.holds == {"ema", "optimizer", "settings", "weights"} and told.settings == {"imgsz": 640, "lr0": 0.01}
    assert list(weights_of(contents)) == list(model.state_dict())
    assert told.parameters == sum(one.numel() for one in model.parameters())


def test_a_stripped_file_of_ultralytics_says_neither_epoch_nor_optimizer(tmp_path: Path, pickled_whole: type[nn.Module]) -> None:
    content = {
        "epoch": -1,
        "best_fitness": None,
        "model": pickled_whole(),
        "ema": None,
        "optimizer": None,
        "train_args": {"a": 1},
    }
    told = summary(tmp_path, content)
    assert told.epoch is None and told.weights_only and told.metric is None


# --- by hand


@every_case(
    ("content", "step", "epoch", "metric"),
    [
        ({"step": 120, "epoch": 3}, 120, 3, None),
        ({"iteration": 7, "best_acc": 0.9}, 7, None, ("best_acc", 0.9)),
        ({"iter_num": 500, "best_val_loss": torch.tensor(1.5), "config": {"n_layer": 12}}, 500, None, ("best_val_loss", 1.5)),
        ({"epoch": torch.tensor(4), "step": torch.tensor(80, dtype=torch.int32)}, 80, 4, None),
        ({"epoch": 2, "loss": 0.5, "val_loss": 0.6, "val_acc": 0.7}, None, 2, ("val_acc", 0.7)),
        ({"epoch": 2, "loss": 0.5, "metrics": {"val": {"miou": 0.6}}}, None, 2, ("val/miou", 0.6)),
        ({"meta": {"epoch": 12, "iter": 9000, "time": "Mon Jan  1 00:00:00 2024"}}, 9000, 12, None),
        ({"train_state": {"global_step": 10}, "state": {"epoch": 1}}, 10, 1, None),
        ({"epoch": True, "step": float("nan"), "loss": "low"}, None, None, None),
        ({"acc": torch.tensor(0.75, dtype=torch.bfloat16)}, None, None, ("acc", 0.75)),
        ({"lr_patience": 3, "loss_weight": 0.5, "best_epoch": 7, "val_interval": 10}, None, None, None),
    ],
)
def test_the_names_that_people_use(tmp_path: Path, content: Any, step: Any, epoch: Any, metric: Any) -> None:
    told = summary(tmp_path, {"model": state_dict(), **content})
    assert (told.step, told.epoch, told.metric) == (step, epoch, metric)


@every_case(
    ("name", "step", "epoch", "metrics"),
    [
        ("epoch=3-step=400-val_loss=0.12.ckpt", 400, 3, {"val_loss": 0.12}),
        ("epoch=03-val_loss=0.50-v1.ckpt", None, 3, {"val_loss": 0.5}),
        ("step-000123.pt", 123, None, {}),
        ("checkpoint-500/model.safetensors", 500, None, {}),
        ("ckpt_12000.pt", 12000, None, {}),
        ("epoch_5.pth", None, 5, {}),
        ("model_epoch12_acc0.934.pth", None, 12, {"acc": 0.934}),
        ("iter_40000.pth", 40000, None, {}),
        ("resnet50-0676ba61.pth", None, None, {}),
        ("yolov8n.pt", None, None, {}),
        ("best.pt", None, None, {}),
        ("checkpoint0.5.pt", None, None, {}),
    ],
)
def test_what_the_name_says_where_the_file_says_nothing(tmp_path: Path, name: str, step: Any, epoch: Any, metrics: Any) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name.endswith("safetensors"):
        save_file({"w.weight": torch.ones(3)}, path)
    else:
        torch.save(state_dict(), path)
    told = summarise(open_checkpoint(path))
    assert (told.step, told.epoch, told.metrics) == (step, epoch, metrics)


def test_the_file_is_believed_before_its_name(tmp_path: Path) -> None:
    told = summary(tmp_path, {"model": state_dict(), "step": 7}, "step=9-epoch=1.ckpt")
    assert (told.step, told.epoch) == (7, 1)


def test_the_optimizers_own_count_is_the_step_where_nothing_else_tells(tmp_path: Path) -> None:
    model, optimizer, _ = parts(steps=6)
    assert summary(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}).step == 6


def test_the_time_of_the_file_counts_where_it_says_none(tmp_path: Path) -> None:
    opened(tmp_path, state_dict())
    os.utime(tmp_path / "checkpoint.pt", (1.5e9, 1.5e9))
    assert summarise(open_checkpoint(tmp_path / "checkpoint.pt")).saved_at == 1.5e9


# --- what it holds


def test_all_that_a_training_needs_is_seen(tmp_path: Path) -> None:
    model, optimizer, scheduler = parts()
    content = {
        "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
        "lr_sched": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0}, "rng_state": {"torch": torch.get_rng_state()},
        "train_loader": {"position": 7}, "ema": {"decay": 0.99, "shadow": model.state_dict()}, "args": {"lr": 0.1},
    }  # fmt: skip
    told = summary(tmp_path, content)
    assert told.holds == {"weights", "optimizer", "scheduler", "scaler", "rng", "loader", "ema", "settings"}
    assert not told.weights_only and told.settings == {"lr": 0.1}


@every_case(
    "beside",
    [
        {"optimizer": "adamw", "scheduler": "cosine", "lr_scheduler": None, "seed": 3, "random_seed": 3},
        {"optimizer": {}, "scaler": {}, "ema": None, "rng": None, "loader": []},
        {"optimizer": None, "scaler": None, "ema_decay": 0.99, "num_loaders": 4, "data_scaler": {"mean": 1.0}},
    ],
)
def test_a_setting_of_that_name_is_not_taken_for_the_state(tmp_path: Path, beside: dict[str, Any]) -> None:
    told = summary(tmp_path, {"model": state_dict(), **beside})
    assert told.holds == {"weights"} and told.weights_only


def test_a_plain_state_dict_is_weights_only(tmp_path: Path) -> None:
    told = summary(tmp_path, state_dict())
    assert told.weights_only and list(told.model_keys) == list(state_dict())
    assert told.parameters == 3 * 4 + 4 + 4 + 4  # without the running statistics


@every_case(
    ("content", "path"),
    [
        (lambda weights: weights, ()),
        (lambda weights: {"state_dict": weights, "epoch": 1}, ("state_dict",)),
        (lambda weights: {"model_state_dict": weights}, ("model_state_dict",)),
        (lambda weights: {"model": weights, "args": {}}, ("model",)),
        (lambda weights: {"module": weights}, ("module",)),
        (lambda weights: {"net": weights, "acc": 1, "epoch": 2}, ("net",)),
        (lambda weights: {"model": {"state_dict": weights, "name": "x"}}, ("model", "state_dict")),
        (lambda weights: {"state": {"model": weights, "step": 3}}, ("state", "model")),
        (lambda weights: {"app": {"model": weights, "optim": parts()[1].state_dict()}}, ("app", "model")),
        (lambda weights: {"generator": weights, "discriminator": {"w.weight": torch.ones(1)}}, ("generator",)),
        (lambda weights: {"critic": {"w.weight": torch.ones(1)}, "model": weights}, ("model",)),
        (lambda weights: {"my_thing": weights, "epoch": 3}, ("my_thing",)),
        (lambda weights: {"generator_state_dict": weights}, ("generator_state_dict",)),
    ],
)
def test_the_weights_are_found_wherever_they_lie(tmp_path: Path, content: Any, path: tuple[str, ...]) -> None:
    contents = opened(tmp_path, content(state_dict()))
    assert {name: one.shape for name, one in weights_of(contents).items()} == {n: tuple(t.shape) for n, t in state_dict().items()}
    part = weights_part(contents)
    assert part is not None and part.path == path


def test_averaged_weights_are_told_apart_and_used_only_where_there_are_no_others(tmp_path: Path) -> None:
    averaged = {name: tensor.clone() for name, tensor in state_dict().items()}
    both = opened(tmp_path, {"model": state_dict(), "ema": averaged})
    assert {one.name.split(".")[0] for one in weights_of(both).values()} == {"model"}
    assert {one.name.split(".")[0] for one in averages_of(both).values()} == {"ema"}
    alone = opened(tmp_path, {"ema": averaged, "epoch": 1})
    assert list(weights_of(alone)) == list(averaged) and summarise(alone).weights_only


def test_a_tied_weight_counts_once(tmp_path: Path) -> None:
    embedding = torch.ones(10, 4)
    told = summary(tmp_path, {"model": {"emb.weight": embedding, "head.weight": embedding, "b.bias": torch.ones(3)}})
    assert told.parameters == 43 and len(told.model_keys) == 3


def test_a_module_that_was_pickled_whole_has_its_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    contents = opened(tmp_path, model)
    assert list(weights_of(contents)) == list(model.state_dict())
    assert summarise(contents).parameters == sum(one.numel() for one in model.parameters())


def test_settings_of_a_namespace_are_read(tmp_path: Path) -> None:
    import argparse

    told = summary(tmp_path, {"model": state_dict(), "args": argparse.Namespace(lr=0.1, layers=[1, 2])})
    assert told.settings == {"lr": 0.1, "layers": [1, 2]} and "settings" in told.holds


@every_case("content", [None, 3, "text", [], {}, [torch.ones(2)], {"a": {"b": {"c": 1}}}, {1: torch.ones(2)}])
def test_whatever_is_in_a_file_is_summarised(tmp_path: Path, content: Any) -> None:
    told = summary(tmp_path, content)
    assert told.step is None and told.as_row()["holds"] == [one for one in ("weights",) if one in told.holds]


def test_the_parts_of_a_tree_that_is_none(tmp_path: Path) -> None:
    assert parts_of(None) == []
    assert summarise(Contents(path=tmp_path / "x", format="unknown")) == Summary()
