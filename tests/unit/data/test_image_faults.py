"""One fault at a time is put into sound image data: it is found, and nothing else is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import made_data as made
import pytest
from every_case import every_case
from image_faults import CASES, MORE, cut, image, zero_area
from PIL import Image

from holdfast.data.validate import Report, Settings, validate

MAKERS: dict[str, Callable[[Path], None]] = {
    "yolo": made.yolo,
    "voc": made.voc,
    "coco": made.coco,
    "image-folder": made.image_folder,
    "masks": made.masks,
    "class-masks": made.class_masks,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with sound data of a format, made once."""
    ready: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in ready:
            ready[name] = tmp_path_factory.mktemp(name)
            MAKERS[name](ready[name])
        return ready[name]

    return make


def found(path: Path, **settings: object) -> Report:
    return validate(path, Settings(jobs=1, **settings))  # type: ignore[arg-type]


def codes(path: Path) -> set[str]:
    return {problem.code for problem in found(path).problems}


@every_case("name", MAKERS)
def test_sound_data_is_not_accused_of_anything(name: str, sound: Callable[[str], Path]) -> None:
    report = found(sound(name))
    assert report.problems == []
    assert report.splits == made.MANY
    assert report.format == name.replace("class-masks", "masks")


def fault_name(part: object) -> str:
    return str(getattr(part, "__name__", part))


@every_case(("name", "fault", "expected"), CASES, ids=fault_name)
def test_a_fault_is_found_and_nothing_else(
    name: str, fault: Callable[[Path], None], expected: set[str], sound: Callable[[str], Path], tmp_path: Path
) -> None:
    only_this_fault_is_found(name, fault, expected, sound, tmp_path)


@pytest.mark.slow
@every_case(("name", "fault", "expected"), MORE, ids=fault_name)
def test_a_fault_is_found_in_the_other_formats_too(
    name: str, fault: Callable[[Path], None], expected: set[str], sound: Callable[[str], Path], tmp_path: Path
) -> None:
    only_this_fault_is_found(name, fault, expected, sound, tmp_path)


def only_this_fault_is_found(
    name: str, fault: Callable[[Path], None], expected: set[str], sound: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(sound(name), folder)
    fault(folder)
    report = found(folder)
    assert {problem.code for problem in report.problems} == expected
    for problem in report.problems:
        assert problem.count >= 1 and problem.fix and problem.example and "{" not in problem.words
        if problem.code.startswith(("image-", "box-", "mask-")) and problem.code not in ("image-alpha", "image-missing"):
            assert problem.count == 1 and any(word in problem.files[0] for word in ("train03", "train04"))


def test_the_same_image_named_by_two_splits_is_a_leak(sound: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "yolo"
    shutil.copytree(sound("yolo"), folder)
    made.write(folder / "val.txt", "./images/val/val00.jpg\n./images/train/train03.jpg\n")
    made.write(folder / "data.yaml", f"train: images/train\nval: val.txt\nnames: {made.NAMES}\n")
    (problem,) = found(folder).problems
    assert (problem.code, problem.severity, problem.files) == ("split-leak", "critical", ["images/train/train03.jpg"])


def test_the_paths_that_one_export_writes_are_understood(sound: Callable[[str], Path], tmp_path: Path) -> None:
    for split in made.MANY:
        shutil.copytree(sound("yolo") / "images" / split, tmp_path / split / "images")
        shutil.copytree(sound("yolo") / "labels" / split, tmp_path / split / "labels")
    made.write(tmp_path / "data.yaml", "train: ../train/images\nval: ../val/images\nnames: [cat, dog, owl]\n")
    report = found(tmp_path)
    assert report.problems == [] and report.splits == made.MANY


def test_polygons_are_read_and_judged_by_the_box_around_them(sound: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "yolo"
    shutil.copytree(sound("yolo"), folder)
    made.write(folder / "labels/train/train03.txt", "0 0.1 0.1 0.6 0.2 0.5 0.8\n1 0.2 0.2 0.4 0.2 0.4 0.5 0.2 0.5\n")
    assert found(folder).problems == []
    made.write(folder / "labels/train/train03.txt", "0 0.1 0.1 0.6 0.2 0.5 1.8\n1 0.2 0.2 0.4\n")
    assert codes(folder) == {"box-outside", "label-unreadable"}


def test_one_mask_per_object_shows_which_objects_overlap(tmp_path: Path) -> None:
    for number in range(6):
        made.write(tmp_path / f"cell{number}/images/cell{number}.png", made.encoded(number, "PNG"))
        for place, left in enumerate((4, 30)):
            pixels = Image.new("L", made.SIZE)
            pixels.paste(255, (left, 5, left + 15 + (20 if number == 2 else 0), 30))
            made.write(tmp_path / f"cell{number}/masks/{number}{place}.png", b"")
            pixels.save(tmp_path / f"cell{number}/masks/{number}{place}.png")
    report = found(tmp_path)
    assert report.format == "masks"
    assert [(problem.code, problem.files) for problem in report.problems] == [("instances-overlap", ["cell2/images/cell2.png"])]


def test_a_quick_look_finds_what_headers_and_labels_show(sound: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "yolo"
    shutil.copytree(sound("yolo"), folder)
    assert found(folder, quick=True).problems == []
    cut(folder)
    zero_area(folder)
    leak_source = image(folder, "train07")
    image(folder, "val02").write_bytes(leak_source.read_bytes())
    assert {problem.code for problem in found(folder, quick=True).problems} == {"image-truncated", "box-zero-area", "split-leak"}
