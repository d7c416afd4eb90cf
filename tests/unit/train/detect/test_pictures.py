from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from holdfast.train.detect.evaluate import DetectionEvaluator, DetectionResult, Predictions, Targets
from holdfast.train.detect.pictures import draw_image, report_of
from holdfast.train.report import Picture, Table

pytest.importorskip("faster_coco_eval", reason="needs pip install 'holdfast[detect]'")

LEFT, RIGHT = [10.0, 20.0, 60.0, 80.0], [120.0, 30.0, 190.0, 90.0]
RED = (224, 36, 36)


def load(index: int) -> tuple[str, Image.Image]:
    return f"image-{index}.png", Image.new("RGB", (200, 100), (90, 90, 90))


def result_of(images: int = 9) -> DetectionResult:
    """The right object is missed in every third image, and its place is taken by a wrong class."""
    evaluator = DetectionEvaluator(["cat", "dog"])
    for index in range(images):
        kinds = [0, 0] if index % 3 == 2 else [0, 1]
        evaluator.add(Predictions([LEFT, RIGHT], [0.9, 0.8], kinds), Targets([LEFT, RIGHT], [0, 1], index))
    return evaluator.result()


def reds(image: Image.Image) -> np.ndarray:
    return np.argwhere((np.abs(np.asarray(image.convert("RGB")).astype(int) - RED) < 30).all(axis=-1))


def test_mistakes_are_red_in_truth_and_predictions_and_hits_are_not() -> None:
    result = result_of()
    wrong, right = (draw_image(result.images[index], result.classes, load) for index in (2, 0))
    assert wrong.caption == "image-2.png: 1 of 2 objects found, 1 wrong prediction"
    assert right.caption == "image-0.png: 2 of 2 objects found, 0 wrong predictions"
    columns = reds(wrong.image)[:, 1]
    half, scale = wrong.image.width / 2, 416 / 200
    assert columns.min() >= 120 * scale - 3
    assert set(np.unique(columns // half)) == {0, 1}, "the missed object on the left, the wrong prediction on the right"
    assert not len(reds(right.image))


def test_boxes_are_drawn_where_the_object_is() -> None:
    picture = draw_image(result_of().images[2], ["cat", "dog"], load).image
    rows, columns = reds(picture).T
    truth = columns < picture.width / 2
    scale = 412 / 200  # two pictures and a gap in 832 pixels
    assert columns[truth].max() == pytest.approx(190 * scale, abs=3)
    assert rows[truth].max() == pytest.approx(18 + 90 * 416 / 200, abs=3)


def test_an_image_that_cannot_be_opened_leaves_its_place_to_words() -> None:
    def broken(index: int) -> tuple[str, Image.Image]:
        raise OSError("truncated")

    assert draw_image(result_of().images[4], ["cat", "dog"], broken).caption == "image 4 cannot be decoded: truncated"


def test_the_report_gets_the_worst_images_and_others_beside_them(tmp_path: Path) -> None:
    shown = report_of(result_of(), load, tmp_path, pictures=3)
    worst, others = shown["Worst images"], shown["Validation images"]
    assert isinstance(worst, list) and isinstance(others, list)
    assert [picture.caption.partition(":")[0] for picture in worst] == ["image-2.png", "image-5.png", "image-8.png"]
    assert 1 <= len(others) <= 3 and not {one.caption for one in worst} & {one.caption for one in others}
    assert all(isinstance(one, Picture) for one in [*worst, *others])
    table = next(content for title, content in shown.items() if title.startswith("Classes at score ≥ 0.80"))
    assert isinstance(table, Table)
    assert table.rows == [["cat", 9, 12, 9, "100.0 %", "75.0 %"], ["dog", 9, 6, 6, "66.7 %", "100.0 %"]]


def test_everything_is_in_the_run_folder_too(tmp_path: Path) -> None:
    report_of(result_of(), load, tmp_path, pictures=2)
    assert len(list(tmp_path.glob("worst-images/*.png"))) == 2
    with Image.open(tmp_path / "validation-images" / "01.png") as image:
        assert image.width == 832
    assert ElementTree.parse(tmp_path / "confusion-matrix.svg").getroot().tag.endswith("svg")
    with (tmp_path / "precision-and-recall.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
        assert head[0] == "recall" and len(rows) == 101 and all(0 <= float(cell) <= 1 for row in rows for cell in row)
    with (tmp_path / "confusion-matrix.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:] == [["cat", "9", "0", "0"], ["dog", "3", "6", "0"], ["background", "0", "0", "0"]]


def test_a_full_disk_leaves_the_report_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = report_of(result_of(), load, Path("/dev/full"), pictures=2)
    assert len(shown) == 5
    assert "pictures could not be written" in capsys.readouterr().err


def test_a_thousand_classes_give_a_drawing_of_those_with_most_mistakes(tmp_path: Path) -> None:
    evaluator = DetectionEvaluator([f"class {number}" for number in range(1000)])
    for index in range(50):
        evaluator.add(Predictions([LEFT, RIGHT], [0.9, 0.8], [index, 999]), Targets([LEFT, RIGHT], [index, index + 500], index))
    drawing = str(report_of(evaluator.result(), load, tmp_path, pictures=1)["Confusion matrix"])
    assert drawing.count("<rect") == 41 * 41
    assert ">class 500<" in drawing and ">class 0<" not in drawing


def test_an_evaluation_that_found_nothing_is_drawn(tmp_path: Path) -> None:
    evaluator = DetectionEvaluator(["cat"])
    evaluator.add(Predictions([], [], []), Targets([LEFT], [0], 0))
    shown = report_of(evaluator.result(), load, tmp_path)
    assert "Worst images" in shown and "Validation images" not in shown
    assert report_of(DetectionEvaluator(["cat"]).result(), load, tmp_path)["Confusion matrix"]
