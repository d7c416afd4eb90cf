"""Real data sets: what is known to be wrong with them is found, and they are accused of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_case import every_case

from holdfast.data.validate import Report, Settings, validate

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets (../shared/data) are not here")


def found(name: str, **settings: object) -> Report:
    return validate(DATA / name, Settings(**settings))  # type: ignore[arg-type]


def told(report: Report) -> list[tuple[str, str, int]]:
    return [(problem.severity, problem.code, problem.count) for problem in report.problems]


LIT_UNEVENLY = ("info", "image-blurred", 1)  # a false alarm: the limit was chosen on BCCD, and is not changed to please this set
TWO_SHOTS_OF_ONE_SCENE = ("warning", "split-leak", 1)


def test_the_two_zero_size_boxes_of_bccd_are_found_in_its_voc_annotations() -> None:
    report = found("bccd/BCCD")
    assert told(report) == [("critical", "box-zero-area", 2), TWO_SHOTS_OF_ONE_SCENE]
    assert report.problems[0].files == ["Annotations/BloodImage_00343.xml", "Annotations/BloodImage_00338.xml"]
    assert report.splits == {"train": 205, "val": 87, "test": 72}
    assert report.classes == {"WBC": 372, "RBC": 4155, "Platelets": 361}


def test_the_yolo_conversion_of_bccd_is_clean_but_for_two_shots_of_one_scene() -> None:
    report = found("bccd/yolo")
    assert told(report) == [TWO_SHOTS_OF_ONE_SCENE]
    pair = ["images/train/BloodImage_00038.jpg", "images/val/BloodImage_00037.jpg"]  # the same cells, at two depths of focus
    assert report.problems[0].evidence["pairs"] == [pair]


def test_the_nuclei_have_an_alpha_channel_and_instances_that_touch_and_nothing_wrong() -> None:
    report = found("nuclei_dsb2018_256")
    assert told(report) == [("info", "image-alpha", 334), ("info", "instances-touch", 226), LIT_UNEVENLY]
    assert report.splits == {"train": 264, "val": 35, "test": 35}


def test_a_random_split_of_the_zmumu_rows_is_said_to_leak_events() -> None:
    report = found("hep_root/uproot-Zmumu.root")
    assert [(problem.code, problem.severity) for problem in report.problems] == [("split-leak", "warning")]
    assert "2,304 rows, but only 500 distinct (Event, Run)" in report.problems[0].example


@every_case("name", ["uproot-small-flat-tree", "uproot-nesteddirs"])
def test_sound_trees_are_not_accused_of_anything(name: str) -> None:
    assert found(f"hep_root/{name}.root").problems == []


@every_case(("name", "columns"), [("uproot-HZZ", 20), ("uproot-issue429", 5)])
def test_of_real_trees_only_constant_columns_are_told(name: str, columns: int) -> None:
    assert told(found(f"hep_root/{name}.root")) == [("warning", "column-constant", columns)]


def test_shakespeare_is_fine_with_a_vocabulary_of_his_own_characters(tmp_path: Path) -> None:
    text = (DATA / "tinyshakespeare/input.txt").read_text()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(set(text) - {"\n"})))
    report = found("tinyshakespeare/input.txt", tokenizer=tmp_path / "vocab.txt", embedding_rows=128)
    assert report.problems == [] and report.samples == len(text) - text.count("\n")
    (tmp_path / "vocab.txt").write_text("\n".join("abcdefghijklmnopqrstuvwxyz"))
    assert [problem.code for problem in found("tinyshakespeare/input.txt", tokenizer=tmp_path / "vocab.txt").problems] == [
        "unknown-tokens"
    ]


@pytest.mark.slow
@every_case("name", ["bccd/yolo/images/train", "nuclei_dsb2018_256/images/train"])
def test_real_images_that_were_blurred_are_told_from_sharp_ones(name: str, tmp_path: Path) -> None:
    """The limit was chosen on BCCD; the nuclei are what it is judged by."""
    from PIL import Image, ImageFilter

    files = sorted((DATA / name).iterdir())[:60]
    for number, path in enumerate(files):
        picture = Image.open(path).convert("RGB")
        if number % 6 == 0:
            picture = picture.filter(ImageFilter.GaussianBlur(0.04 * picture.width))
        (tmp_path / "a").mkdir(exist_ok=True)
        picture.save(tmp_path / "a" / f"{path.stem}.png")
    blurred = next(one for one in validate(tmp_path, Settings(format="image-folder")).problems if one.code == "image-blurred")
    assert blurred.files == [f"a/{path.stem}.png" for path in files[::6]]


def test_real_images_that_were_saved_again_are_recognised(tmp_path: Path) -> None:
    """The other side of the threshold: no two images of these sets are taken for one, but each is known in another guise."""
    from PIL import Image

    for name in ("bccd/yolo/images/train", "nuclei_dsb2018_256/images/train"):
        for number, path in enumerate(sorted((DATA / name).iterdir())[:6]):
            picture = Image.open(path).convert("RGB")
            (tmp_path / "train/a").mkdir(parents=True, exist_ok=True)
            (tmp_path / "val/a").mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "train/a" / f"{path.stem}.png")
            smaller = picture.resize((picture.width * 2 // 3, picture.height * 2 // 3))
            brighter = picture.point(lambda value: min(255, int(value * 1.15)))
            (smaller, brighter, picture)[number % 3].save(
                tmp_path / "val/a" / f"{path.stem}.jpg", quality=(85, 85, 40)[number % 3]
            )
    report = validate(tmp_path, Settings(format="image-folder"))
    (leak,) = [problem for problem in report.problems if problem.code == "split-leak"]
    assert leak.count == 12
