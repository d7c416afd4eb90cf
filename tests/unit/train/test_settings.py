"""Settings of a training: flags and YAML give the same, and a mistake is named with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.train.arguments import argv_of, parse
from holdfast.train.settings import DetectSettings, SegmentSettings, read_settings


def test_flags_and_yaml_give_the_same_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("data: d.yaml\nbatch-size: 8\nlr0: 1e-3\ncache: false\nhalf: bf16\ndevice: 0\nmosaic: 0\naugment: true\n")
    flags = "detect --data d.yaml --batch-size 8 --lr0 0.001 --cache false --half --device 0 --mosaic 0 --augment"
    assert read_settings(DetectSettings, file, {}) == parse(flags.split()).settings


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("data: d.yaml\nepochs: 7\n")
    assert parse(["detect", "--config", str(file), "--epochs", "9"]).settings.epochs == 9


def test_settings_written_to_a_run_are_read_again_unchanged(tmp_path: Path) -> None:
    settings = DetectSettings(data="a b.yaml", batch_size="auto", half="fp16", augment=False, lr0=3e-4)
    settings.write(tmp_path / "settings.yaml")
    assert read_settings(DetectSettings, tmp_path / "settings.yaml", {}) == settings


def test_the_training_process_gets_the_settings_of_the_command() -> None:
    arguments = parse(
        ["detect", "--data", "d.yaml", "--no-augment", "--fsdp", "--device", "cpu,cpu", "--name", "x", "--lrf", "0.5"]
    )
    assert parse(argv_of(arguments)).settings == arguments.settings


@pytest.mark.parametrize(
    ("values", "problem", "fix"),
    [
        ({"batch_size": "0"}, "batch_size = 0 is too small", "--batch-size 1 or more"),
        ({"batch_sise": "4"}, "there is no setting 'batch_sise'", "did you mean batch_size?"),
        ({"epochs": "2.5"}, "epochs = '2.5' is not a whole number", "--epochs with a whole number"),
        ({"lr0": "fast"}, "lr0 = 'fast' is not a number", "--lr0 with a number"),
        ({"lr0": "nan"}, "lr0 = 'nan' is not a number", "--lr0 with a number"),
        ({"scheduler": "cosin"}, "scheduler = 'cosin' does not exist", "--scheduler cosine"),
        ({"imgsz": "100"}, "image size 100 is not a multiple of 32", "--imgsz 96"),
        ({"fliplr": "1.5"}, "fliplr = 1.5 is too large", "--fliplr 1 or less"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(values: dict[str, str], problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(DetectSettings, None, {"data": "d.yaml", **values})
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        parse(["detect", "--data", "d.yaml", "--batchsize", "4"])
    assert caught.value.fix == "did you mean --batch-size?"


def test_a_file_that_is_not_yaml_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("epochs: [3\n")
    with pytest.raises(UsageError, match="is not YAML"):
        read_settings(DetectSettings, tmp_path / "bad.yaml", {})


def test_the_other_names_of_segmentation_settings_mean_the_same(tmp_path: Path) -> None:
    words = "--skip-stage1 --stage2-lr 5e-4 --stage2-batch-size 6 --accumulation-steps 2 --backbone resnet18 --num-experts 3"
    words += " --img-size 64 --scheduler cosine --min-lr 1e-6 --progressive-unfreeze --deep-supervision --warmup-epochs 2"
    words += " --resume-from runs/a --checkpoint-dir out --num-workers 1 --epochs 30"
    arguments = parse(["segment", "--data", "d", *words.split()])
    settings = arguments.settings
    assert isinstance(settings, SegmentSettings)
    assert (settings.batch_size, settings.accumulate, settings.imgsz, settings.project, settings.workers) == (6, 2, 64, "out", 1)
    assert str(arguments.resume) == "runs/a"
    assert [(stage.epochs, stage.lr) for stage in settings.stages] == [(30, 5e-4)]
    assert parse(argv_of(arguments)) == arguments
    (tmp_path / "s.yaml").write_text("data: d\nimg-size: 64\nnum_workers: 1\n")
    assert read_settings(SegmentSettings, tmp_path / "s.yaml", {}) == SegmentSettings(data="d", imgsz=64, workers=1)


@pytest.mark.parametrize(
    ("values", "problem", "fix"),
    [
        ({"epochs": "5", "stage1_epochs": "8"}, "stage 1 alone has 8 epochs", "--stage1-epochs 0"),
        ({"imgsz": "70"}, "not a multiple of 32", "--imgsz 64"),
        ({"fsdp": True}, "not sharded", "drop --fsdp"),
        ({"cache": "disk"}, "cache = 'disk' does not exist", "--cache"),
    ],
)
def test_a_wrong_value_of_segmentation_is_named_with_its_fix(values: dict[str, object], problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(SegmentSettings, None, {"data": "d", **values})
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_a_run_that_is_resumed_with_more_epochs_keeps_its_stage_1(tmp_path: Path) -> None:
    SegmentSettings(data="d", epochs=50).write(tmp_path / "settings.yaml")
    resumed = read_settings(SegmentSettings, tmp_path / "settings.yaml", {"epochs": "200"})
    assert [stage.epochs for stage in resumed.stages] == [5, 195]


def test_trackers_and_notifications_are_the_supervisors_not_the_trainings() -> None:
    arguments = parse(["detect", "--data", "d.yaml", "--to", "mlflow", "--to", "wandb", "--notify", "mail me"])
    assert arguments.to == ("mlflow", "wandb") and arguments.notify == ("mail me",)
    assert argv_of(arguments) == ["detect", "--data", "d.yaml"]
