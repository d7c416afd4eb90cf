"""YOLO by Ultralytics: our settings in its words, nothing of it imported, and the same results with and without Holdfast."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from holdfast.errors import UsageError
from holdfast.state.store import CheckpointStore
from holdfast.train.__main__ import _become_ultralytics
from holdfast.train.detect.ultralytics import command, cut_results, is_yolo, newest, remarks, translated
from holdfast.train.settings import DetectSettings

IS_INSTALLED = importlib.util.find_spec("ultralytics") is not None


def settings(**changes: Any) -> DetectSettings:
    return DetectSettings(**{"data": "data.yaml", "architecture": "yolov8n", "weights": "none", **changes})


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like Ultralytics in what is read of it; to import it is an error."""
    package = tmp_path / "site" / "ultralytics"
    (package / "cfg" / "models" / "v8").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "cfg" / "default.yaml").write_text("amp: True # True/'fp16', 'bf16', or False\n")
    for name in ("yolov8", "yolov8-seg", "yolov10n"):  # the last describes one scale
        (package / "cfg" / "models" / "v8" / f"{name}.yaml").write_text("scales: {n: [0.33, 0.25, 1024], s: [0.33, 0.5, 1024]}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    return package


def test_a_torn_checkpoint_is_passed_over_and_results_are_cut_to_what_was_saved(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    assert newest(tmp_path) is None
    for name, epoch in (("epoch2.pt", 2), ("best.pt", 1), ("last.pt", 3)):
        torch.save({"epoch": epoch, "best_fitness": 0.5, "ema": torch.zeros(9)}, weights / name)
    assert newest(tmp_path) == (weights / "last.pt", 4)
    (weights / "last.pt").write_bytes((weights / "last.pt").read_bytes()[:-100])
    assert newest(tmp_path) == (weights / "epoch2.pt", 3)
    (tmp_path / "results.csv").write_text("epoch,loss\n1,4\n2,3\n3,2\n4,1\n")
    cut_results(tmp_path, 3)
    assert (tmp_path / "results.csv").read_text() == "epoch,loss\n1,4\n2,3\n3,2\n"
    torch.save({"epoch": -1, "optimizer": None}, weights / "last.pt")
    assert newest(tmp_path) == (weights / "last.pt", 0)  # finished


def test_of_a_training_that_went_wrong_the_last_epoch_before_it_is_resumed(tmp_path: Path) -> None:
    states = CheckpointStore(tmp_path / "weights" / "state")
    for epochs in (1, 2, 3):
        states.save(8 * epochs, epoch=epochs, model=torch.nn.Linear(2, 1))
        states.wait()
        torch.save({"epoch": epochs - 1, "ema": torch.zeros(9)}, states.folder / f"epoch-{epochs}.pt")
    torch.save({"epoch": 2, "ema": torch.zeros(9)}, tmp_path / "weights" / "last.pt")
    assert newest(tmp_path, before=20) == (states.folder / "epoch-2.pt", 2)
    (states.folder / "epoch-2.pt").write_bytes(b"torn")
    assert newest(tmp_path, before=20) == (states.folder / "epoch-1.pt", 1)
    assert newest(tmp_path, before=8) is None, "from the beginning"
    (states.folder / "epoch-1.pt").unlink()
    torch.save({"epoch": 0, "ema": torch.zeros(9)}, tmp_path / "weights" / "best.pt")
    assert newest(tmp_path, before=20) == (tmp_path / "weights" / "best.pt", 1), "rather than from the beginning"


def test_a_run_killed_after_its_last_epoch_is_finished_with_a_whole_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "ultralytics" / "weights"
    weights.mkdir(parents=True)
    torch.save({"epoch": 5, "ema": torch.ones(9)}, weights / "epoch5.pt")
    (weights / "last.pt").write_bytes(b"torn")
    monkeypatch.setenv("HOLDFAST_RUN", str(tmp_path))
    assert _become_ultralytics(settings(epochs=6), None) == 0
    assert f"the training is finished: {weights / 'last.pt'}" in capsys.readouterr().out
    assert torch.equal(torch.load(weights / "last.pt")["ema"], torch.ones(9))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten images with a red and a green rectangle each; `path` is relative, as many data sets have it."""
    folder, random = tmp_path / "shapes", np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 4)):
        for part in ("images", "labels"):
            (folder / part / split).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 60, (64, 64, 3), dtype=np.uint8)
            lines = []
            for kind, colour in enumerate([(220, 40, 40), (40, 220, 40)]):
                (x, y), (width, height) = random.integers(4, 40, 2), random.integers(10, 20, 2)
                pixels[y : y + height, x : x + width] = colour
                lines.append(f"{kind} {(x + width / 2) / 64} {(y + height / 2) / 64} {width / 64} {height / 64}")
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
            (folder / "labels" / split / f"{number}.txt").write_text("\n".join(lines))
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [red, green]\n")
    return folder / "data.yaml"


def words_of(line: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line if "=" in word and " " not in word.split("=", 1)[0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch_size": 8, "accumulate": 4}, {"batch": 8, "nbs": 32}),
        ({"batch_size": 8}, {"batch": 8, "nbs": 8}),
        ({"batch_size": "auto"}, {"batch": -1}),
        ({"weights": "none"}, {"model": "yolov8n.yaml", "pretrained": False}),
        ({"weights": "auto"}, {"model": "yolov8n.pt", "pretrained": True}),
        ({"lr0": 0.02, "optimizer": "sgd", "momentum": 0.9}, {"lr0": 0.02, "optimizer": "SGD", "momentum": 0.9}),
        ({"lr0": 0.001}, {"lr0": 0.001, "optimizer": "AdamW", "warmup_bias_lr": 0.0}),
        ({"imgsz": 320, "epochs": 7, "seed": 3, "workers": 2}, {"imgsz": 320, "epochs": 7, "seed": 3, "workers": 2}),
        ({"warmup_epochs": 2, "warmup_momentum": 0.7}, {"warmup_epochs": 2.0, "warmup_momentum": 0.7}),
        ({"weight_decay": 0.1, "patience": 0, "dropout": 0.2}, {"weight_decay": 0.1, "patience": 0, "dropout": 0.2}),
        ({"cache": "ram"}, {"cache": "ram"}),
        ({"cache": "false"}, {"cache": False}),
        ({"device": "0,1"}, {"device": "0,1"}),
        ({"save_period": 0}, {"save_period": -1}),
        ({"scheduler": "cosine", "lrf": 0.1}, {"cos_lr": True, "lrf": 0.1}),
        ({"scheduler": "constant"}, {"cos_lr": False, "lrf": 1.0}),
        ({"compile": "max-autotune"}, {"compile": "max-autotune-no-cudagraphs"}),
        ({"hsv_h": 0.1, "degrees": 5, "mosaic": 0.5}, {"hsv_h": 0.1, "degrees": 5.0, "mosaic": 0.5}),
        ({"augment": False}, {"hsv_s": 0.0, "translate": 0.0, "scale": 0.0, "fliplr": 0.0, "mosaic": 0.0}),
    ],
)
def test_our_settings_in_the_words_of_ultralytics(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    values = translated(settings(**changes))
    assert {name: values[name] for name in expected} == expected


def test_what_is_not_set_is_left_to_ultralytics() -> None:
    assert not {"lr0", "optimizer", "device", "compile"} & translated(settings()).keys()
    assert "nbs" not in translated(settings(batch_size="auto"))


def test_the_licence_is_said_once_and_a_fixed_clip_norm_where_another_was_asked_for() -> None:
    assert [line for line in remarks(settings()) if "AGPL-3.0" in line] == remarks(settings())
    assert "10" in remarks(settings(max_grad_norm=1.0))[1]


def test_only_names_of_yolo_go_to_ultralytics() -> None:
    assert [name for name in ("yolov8n", "yolo11x", "YOLOv8n", "dfine-n", "rtdetr-r18") if is_yolo(name)] == [
        "yolov8n", "yolo11x", "YOLOv8n",
    ]  # fmt: skip


def test_a_command_is_made_without_importing_it(described: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a" / "ultralytics"
    line = command(settings(data=str(data), half="bf16"), folder)
    words = words_of(line)
    assert line[0] == sys.executable
    assert words_of(command(settings(data=str(data), architecture="yolov10n"), folder))["model"] == "yolov10n.yaml"
    assert words["amp"] == "bf16"
    assert (words["project"], words["name"]) == (str(folder.parent), "ultralytics")
    assert yaml.safe_load(Path(words["data"]).read_text())["path"] == str(data.parent)  # not the working folder
    assert not folder.parent.exists()  # the supervisor makes it; a folder that exists is another run's
    assert "ultralytics" not in sys.modules


def test_an_older_version_gets_the_precision_that_it_has(described: Path, data: Path, tmp_path: Path) -> None:
    (described / "cfg" / "default.yaml").write_text("amp: True # (bool) Automatic Mixed Precision\n")
    assert words_of(command(settings(data=str(data), half="bf16"), tmp_path / "a"))["amp"] == "True"
    assert words_of(command(settings(data=str(data), half="none"), tmp_path / "a"))["amp"] == "False"


def test_a_resumed_command_names_the_checkpoint(described: Path, tmp_path: Path) -> None:
    line = command(settings(), tmp_path / "new", resume=tmp_path / "last one.pt")
    assert line[-3:] == ["resume=True", f"model={tmp_path / 'last one.pt'}", f"save_dir={tmp_path / 'new'}"]


@pytest.mark.parametrize(
    ("changes", "problem", "fix"),
    [
        ({"architecture": "yolov8z"}, "no architecture 'yolov8z'", "--architecture yolov8"),
        ({"scheduler": "step"}, "step schedule", "--scheduler cosine"),
        ({"fsdp": True}, "FSDP", "DDP"),
        ({"batch_size": "auto", "accumulate": 2}, "accumulated", "--batch-size 16"),
        ({"data": "annotations.json"}, "not a YOLO data.yaml", "--architecture dfine-n"),
        ({"weights": "model.safetensors"}, "not a .pt file", "--weights"),
    ],
)
def test_what_ultralytics_cannot_do_is_refused(
    described: Path, data: Path, tmp_path: Path, changes: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        command(settings(**{"data": str(data), **changes}), tmp_path / "a")
    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.skipif(IS_INSTALLED, reason="Ultralytics is installed")
def test_not_installed_names_the_pip_command_and_the_free_alternative(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not installed") as caught:
        command(settings(), tmp_path)
    assert "pip install ultralytics" in caught.value.fix
    assert "--architecture dfine-n" in caught.value.fix


@pytest.mark.skipif(not IS_INSTALLED, reason="Ultralytics is not installed; it is never a dependency")
def test_its_results_are_the_same_with_and_without_holdfast(data: Path, tmp_path: Path) -> None:
    wanted = settings(
        data=str(data), epochs=2, imgsz=64, batch_size=2, accumulate=2, workers=0, device="cpu", lr0=0.001, warmup_epochs=0
    )
    holdfast = [
        str(Path(sys.executable).with_name("holdfast")),
        "run",
        "--policy",
        "heal",
        "--folder",
        str(tmp_path / "runs"),
        "--",
    ]
    results = []
    for name, before in (("alone", []), ("held", holdfast)):
        folder = tmp_path / name
        subprocess.run(
            [*before, *command(wanted, folder)], check=True, env={**os.environ, "YOLO_OFFLINE": "true"}, stdout=subprocess.DEVNULL
        )
        rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
        results.append([{key: value for key, value in row.items() if key.strip() != "time"} for row in rows])
    assert len(results[0]) == 2
    assert results[0] == results[1]
