"""`holdfast visualize --augmented` shows training images with their boxes, and writes over nothing."""

from __future__ import annotations

import json
from pathlib import Path

import made_data as made
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from holdfast.data.visualize.pictures import colour_of
from holdfast.train.detect.preview import draw_sample


@pytest.fixture(autouse=True)
def yolo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made.yolo(tmp_path / "set")
    return tmp_path / "set/data.yaml"


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, ["visualize", *map(str, words), "--augmented"])


def test_a_sheet_of_training_images_is_drawn_the_same_for_the_same_seed(tmp_path: Path) -> None:
    answer = typed("set", "-n", 6)
    assert answer.exit_code == 0, answer.stderr
    assert "wrote set-augmented.png: 6 training images as the model gets them" in answer.stderr
    first = np.asarray(Image.open("set-augmented.png"))
    assert first.shape[1] == 4 * 330 + 10 and first.shape[0] > 2 * 340
    for name, seed in (("again", 0), ("other", 1)):
        answer = typed("set", "-n", 6, "--seed", seed, "-o", f"{name}.png", "--json")
        assert json.loads(answer.stdout) == {"path": "set", "samples": 6, "seed": seed, "file": f"{name}.png"}
        assert np.array_equal(np.asarray(Image.open(f"{name}.png")), first) == (name == "again")


def test_a_box_is_drawn_around_its_object() -> None:
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, 16:48, 8:24] = 255
    sample = {"image": image, "boxes": torch.tensor([[0.25, 0.5, 0.25, 0.5]]), "classes": torch.tensor([1])}
    pixels = np.asarray(draw_sample(sample, side=64))
    down, across = np.nonzero((pixels == colour_of(1)).all(axis=-1))
    assert (across.min(), down.min(), across.max(), down.max()) == (8, 16, 24, 48)


def test_a_file_of_somebody_else_and_the_data_are_left_alone(tmp_path: Path) -> None:
    for _ in range(2):
        assert typed("set", "-n", 1).exit_code == 0, "its own file is replaced"
    Image.new("RGB", (4, 4)).save("mine.png")
    before = Path("mine.png").read_bytes()
    for place, said in (("mine.png", "was not made by"), ("set/images/a.png", "is inside the data")):
        answer = typed("set", "-o", place)
        assert answer.exit_code == 2 and said in answer.stderr and "--output" in answer.stderr
    assert Path("mine.png").read_bytes() == before


def test_what_does_not_go_with_it_is_told(tmp_path: Path) -> None:
    made.image_folder(tmp_path / "folder")
    for words, said in ((("folder",), "no boxes"), (("set", "--class", "cat"), "drop --class"), (("no",), "does not exist")):
        answer = typed(*words)
        assert answer.exit_code == 2 and said in answer.stderr and "Traceback" not in answer.stderr
