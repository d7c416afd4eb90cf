"""`holdfast train detect` on bad input: two lines that say what is wrong and what to do, no traceback, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import HOLDFAST, environment, findings_of, wait_until

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from make_shapes import main as make_shapes

from holdfast.train.settings import DetectSettings

SMALL = ("--weights", "none", "--imgsz", "32", "--batch-size", "2", "--workers", "0", "--device", "cpu")
Bad = Callable[[Path], tuple[str, ...] | None]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six training and two validation images."""
    make_shapes(tmp_path / "shapes", 8)
    return tmp_path / "shapes"


def start(folder: Path, *words: str, **how: Any) -> subprocess.Popen[str]:
    """`holdfast train detect` on the shapes; a word given twice counts as the later one."""
    command = [*HOLDFAST, "train", "detect", "--data", "shapes/data.yaml", *SMALL, *words]
    env = environment(folder, HOLDFAST_CACHE=str(folder / "cache"), HOLDFAST_BACK_OFF="0.01")
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def train(folder: Path, *words: str) -> tuple[int, str, str]:
    """Train to the end: exit code, stdout and stderr."""
    process = start(folder, *words)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in out + err, out + err
    return process.returncode, out, err


def no_images(data: Path) -> None:
    for file in data.glob("images/*/*"):
        file.unlink()


def wrong_class_count(data: Path) -> None:
    described = data / "data.yaml"
    described.write_text(described.read_text() + "nc: 5\n")


def unknown_class(data: Path) -> None:
    label = data / "labels/train/0001.txt"
    label.write_text(label.read_text() + "7 0.5 0.5 0.2 0.2\n")


def no_val(data: Path) -> None:
    described = data / "data.yaml"
    described.write_text(described.read_text().replace("val: images/val\n", ""))


def truncated_image(data: Path) -> None:
    image = data / "images/train/0002.png"
    image.write_bytes(image.read_bytes()[:200])


def text(data: Path) -> tuple[str, ...]:
    (data.parent / "text").mkdir()
    (data.parent / "text/input.txt").write_text("First Citizen:\nBefore we proceed any further, hear me speak.\n" * 20)
    return ("--data", "text")


def unknown_key(data: Path) -> tuple[str, ...]:
    (data.parent / "settings.yaml").write_text("bach_size: 4\n")
    return ("--config", "settings.yaml")


def project_is_a_file(data: Path) -> tuple[str, ...]:
    (data.parent / "results").touch()
    return ("--project", "results")


def words(*words: str) -> Bad:
    return lambda _data: words


REFUSED: dict[str, tuple[Bad, str, str]] = {
    "no images": (no_images, "no images in the split train", "train: images/train"),
    "wrong class count": (wrong_class_count, "nc is 5, but names has 3", "remove the line that begins with nc"),
    "unknown class": (unknown_class, "labels/train/0001.txt:", "holdfast validate shapes/data.yaml"),
    "no val": (no_val, "no images in the split val; its splits: train.", "val: images/val"),
    "truncated image": (truncated_image, "images/train/0002.png", "holdfast validate shapes/data.yaml"),
    "batch size 0": (words("--batch-size", "0"), "batch_size = 0 is too small.", "--batch-size 1 or more"),
    "no such GPU": (words("--device", "977"), "GPU 977 was requested, but this machine has", "--device "),
    "no boxes": (text, "text holds no boxes to detect.", "YOLO, COCO or Pascal VOC"),
    "unknown architecture": (
        words("--architecture", "dfine-nn"),
        "there is no architecture 'dfine-nn'.",
        "--architecture dfine-n",
    ),
    "unknown key": (unknown_key, "there is no setting 'bach_size' in settings.yaml.", "did you mean batch_size?"),
    "unwritable folder": (project_is_a_file, "cannot be written to the folder results: it is a file.", "--project ~/runs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_written(case: str, data: Path, tmp_path: Path) -> None:
    spoil, problem, fix = REFUSED[case]
    code, out, err = train(tmp_path, *(spoil(data) or ()))
    said, _, proposed = err.partition("\n  fix: ")
    assert (code, out) == (2, "")
    assert said.startswith("error: ") and problem in said
    assert fix in proposed and proposed.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_a_read_only_folder_is_refused(data: Path, tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("ro,size=1m")
    code, _, err = train(tmp_path, "--project", str(disk))
    assert code == 2 and f"runs cannot be written to the folder {disk}: Read-only file system." in err


RESUMES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a run that is not there": (("resume", "other"), "there is no run other.", "holdfast resume with one of: shapes"),
    "all epochs are done": (
        ("resume",),
        "runs/shapes has trained all of its 3 epochs.",
        "holdfast resume runs/shapes --epochs 6",
    ),
    "other architecture": (
        ("resume", "--architecture", "dfine-s", "--epochs", "4"),
        "runs/shapes was trained with dfine-n; its state does not fit dfine-s.",
        "holdfast train detect --architecture dfine-s --data shapes/data.yaml",
    ),
    "a file that is not there": (
        ("resume", "--checkpoint", "runs/shapes/checkpoints/step-000009"),
        "runs/shapes/checkpoints/step-000009 does not exist.",
        "--checkpoint runs/shapes/checkpoints/step-000003",
    ),
    "weights only": (
        ("resume", "--checkpoint", "runs/shapes/model"),
        "runs/shapes/model has no optimizer state, schedule or position in the data.",
        "holdfast train detect --weights runs/shapes/model --data data.yaml",
    ),
}


@pytest.mark.parametrize("case", RESUMES)
def test_what_cannot_be_resumed_says_what_can(case: str, data: Path, tmp_path: Path) -> None:
    words, problem, fix = RESUMES[case]
    run, failed = tmp_path / "runs/shapes", tmp_path / "runs/failed"  # the second is newer, and has nothing to resume from
    for folder in (run / "checkpoints/step-000003", run / "model", failed):
        folder.mkdir(parents=True)
    for folder in (run, failed):
        DetectSettings(data="shapes/data.yaml", epochs=3).write(folder / "settings.yaml")
    (run / "metrics.csv").write_text("epoch,step\n1,3\n2,6\n3,9\n")
    (run / "report.html").touch()
    os.utime(run, (0, 0))
    if case == "a run that is not there":
        (failed / "settings.yaml").unlink()
    done = subprocess.run(
        [*HOLDFAST, *words], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert f"error: {problem}\n  fix: " in done.stderr and fix in done.stderr


@pytest.mark.slow
def test_a_name_that_is_taken_and_an_image_that_cannot_be_read_any_more(data: Path, tmp_path: Path) -> None:
    image = data / "images/train/0002.png"
    pixels = image.read_bytes()
    process = start(tmp_path, "--epochs", "2000", "--name", "shapes")
    run = tmp_path / "runs/shapes"
    wait_until(lambda: len(list(run.glob("checkpoints/step-*/manifest.json"))) > 0)
    code, _, err = train(tmp_path, "--name", "shapes")
    assert code == 2 and "there is already a run shapes in runs/shapes." in err
    assert "holdfast resume runs/shapes, or --name shapes-2" in err

    image.write_bytes(pixels[:200])
    out, err = process.communicate(timeout=600)
    assert process.returncode == 2 and "Traceback" not in out + err
    assert "error: images/train/0002.png cannot be read: image file is truncated." in err
    assert "then: holdfast resume\n" in err and "[unreadable-sample]" in err

    image.write_bytes(pixels)
    resumed = subprocess.run(
        [*HOLDFAST, "resume", "--epochs", "1"],
        cwd=tmp_path,
        env=environment(tmp_path, HOLDFAST_CACHE=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0 and "resumed from step " in resumed.stdout, resumed.stderr


@pytest.mark.slow
def test_a_disk_that_is_too_small_is_refused_and_one_that_fills_up_costs_no_training(
    data: Path, tmp_path: Path, mount: Callable[..., Path]
) -> None:
    disk = mount("size=80m")
    code, _, err = train(tmp_path, "--project", "disk", "--epochs", "1")
    assert code == 2 and "two checkpoints take " in err and "--project with a folder on a larger disk" in err
    mount("remount,size=200m")
    process = start(tmp_path, "--project", "disk", "--epochs", "3", "--name", "fills")
    wait_until(lambda: len(list(disk.glob("fills/checkpoints/step-*/manifest.json"))) > 0)
    with (disk / "of-somebody-else").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * 4096 - (40 << 20))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "Traceback" not in out + err, err
    assert "could not be written" in err and "Training continues; earlier checkpoints are kept." in err
    assert "finished, but the disk is full from step" in err
    assert "disk-full" in [finding["code"] for finding in findings_of(disk / "fills")]
    assert list(disk.glob("fills/checkpoints/step-*/manifest.json")) and (disk / "fills/model/model.safetensors").exists()
