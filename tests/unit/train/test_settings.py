"""Settings of a training: flags and YAML give the same, and a mistake is named with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.train.arguments import parse, words_of
from holdfast.train.settings import DetectSettings, read_settings


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
    assert parse(words_of(arguments)).settings == arguments.settings


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
