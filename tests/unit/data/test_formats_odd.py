"""Layouts that are common and a little odd: they are read as they are meant, and `--fix` leaves out only what is bad."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_data as made
import pytest
import yaml
from every_case import every_case

from holdfast.data.cleaned import read_quarantine, write_cleaned, write_quarantine
from holdfast.data.formats import coco
from holdfast.data.formats.detect import Settings, list_data, open_data
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.validate import Report, validate
from holdfast.errors import UsageError

KINDS = [{"id": number + 1, "name": name} for number, name in enumerate(made.NAMES)]


def found(path: Path, **settings: Any) -> Report:
    return validate(path, Settings(jobs=1, **settings))


def told(report: Report) -> dict[str, list[str]]:
    return {problem.code: problem.files for problem in report.problems}


def entries(path: Path) -> list[Entry]:
    data = open_data(path, Settings())
    assert isinstance(data, ImageSet)
    return data.entries


def cleaned(folder: Path) -> list[str]:
    return list(write_cleaned(found(folder), str(folder), Settings(jobs=1), None))


# COCO


def coco_images(names: list[str]) -> list[dict[str, Any]]:
    return [{"id": 7 + place, "file_name": name, "width": 64, "height": 48} for place, name in enumerate(names)]


def coco_objects(names: list[str]) -> list[dict[str, Any]]:
    rows = [
        {"image_id": 7 + place, "category_id": kind + 1, "bbox": [left, top, right - left, bottom - top]}
        for place in range(len(names))
        for kind, left, top, right, bottom in made.boxes(place)
    ]
    return [{"id": number, **row} for number, row in enumerate(rows)]


def coco_file(path: Path, names: list[str], **changed: Any) -> None:
    content = {"images": coco_images(names), "annotations": coco_objects(names), "categories": KINDS, **changed}
    made.write(path, json.dumps({key: value for key, value in content.items() if value is not None}))


def official_coco(folder: Path) -> list[str]:
    """Four images and `instances_val2017.json`, as the official archives unpack."""
    names = [f"{number:012}.jpg" for number in range(4)]
    for number, name in enumerate(names):
        made.write(folder / "val2017" / name, made.encoded(number, quality=85))
    coco_file(folder / "annotations/instances_val2017.json", names)
    return names


def captions(folder: Path, names: list[str]) -> None:
    rows = [{"id": place, "image_id": 7 + place, "caption": "a cat and a dog"} for place in range(len(names))]
    coco_file(folder / "annotations/captions_val2017.json", names, annotations=rows, categories=None)


def keypoints(folder: Path, names: list[str]) -> None:
    rows = [{**row, "category_id": 1, "keypoints": [3, 4, 2] * 17} for row in coco_objects(names)[:3]]
    coco_file(folder / "annotations/person_keypoints_val2017.json", names, annotations=rows, categories=KINDS[:1])


def panoptic(folder: Path, names: list[str]) -> None:
    rows = [{"image_id": 7 + place, "segments_info": [{"id": 1, "category_id": 1}]} for place in range(len(names))]
    coco_file(folder / "annotations/panoptic_val2017.json", names, annotations=rows)


@every_case("also", [(captions,), (keypoints,), (panoptic,), (captions, keypoints, panoptic)])
def test_captions_keypoints_and_panoptic_files_beside_the_boxes_of_coco_change_nothing(
    also: tuple[Callable[[Path, list[str]], None], ...], tmp_path: Path
) -> None:
    names = official_coco(tmp_path)
    before = found(tmp_path)
    assert before.problems == [] and before.splits == {"val": 4}
    for add in also:
        add(tmp_path, names)
    after = found(tmp_path)
    assert after.problems == [] and (after.splits, after.classes) == (before.splits, before.classes)


def test_captions_alone_are_not_taken_for_boxes(tmp_path: Path) -> None:
    captions(tmp_path, official_coco(tmp_path))
    (tmp_path / "annotations/instances_val2017.json").unlink()
    listing, named = list_data(tmp_path, Settings())
    assert coco.recognise(listing, named) is None
    with pytest.raises(UsageError, match="no COCO file with boxes"):
        found(tmp_path, format="coco")


def test_of_files_without_the_name_instances_the_first_one_is_taken(tmp_path: Path) -> None:
    names = official_coco(tmp_path)
    (tmp_path / "annotations/instances_val2017.json").rename(tmp_path / "annotations/a_val.json")
    coco_file(tmp_path / "annotations/b_val.json", names)
    assert found(tmp_path).problems == []
    assert {entry.label for entry in entries(tmp_path)} == {"annotations/a_val.json"}


def test_two_files_of_one_split_with_other_images_are_both_read_and_an_image_in_both_is_told(tmp_path: Path) -> None:
    names = official_coco(tmp_path)
    more = [f"more{number}.jpg" for number in range(4)]
    for number, name in enumerate(more):
        made.write(tmp_path / "val2017" / name, made.encoded(50 + number, quality=85))
    coco_file(tmp_path / "annotations/instances_more_val2017.json", more)
    report = found(tmp_path)
    assert report.problems == [] and report.splits == {"val": 8}
    coco_file(tmp_path / "annotations/instances_more_val2017.json", [*more, names[2]])
    assert told(found(tmp_path)) == {"duplicate-sample": [f"val2017/{names[2]}"]}


def test_a_coco_file_that_ends_before_its_categories_is_told(tmp_path: Path) -> None:
    made.coco(tmp_path)
    path = tmp_path / "annotations/instances_train.json"
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b'"categories"') - 40])
    report = found(tmp_path)
    assert told(report) == {"label-unreadable": ["annotations/instances_train.json"]} and report.splits == {"val": 22}


def same_names(folder: Path) -> None:
    """Three images, two of one name in two folders, the first of those empty."""
    names = ["a/0001.jpg", "b/0001.jpg", "b/0002.jpg"]
    for number, name in enumerate(names):
        made.write(folder / name, made.encoded(number, quality=85) if number else b"")
    coco_file(folder / "instances.json", names)


def test_fix_leaves_out_only_the_bad_one_of_two_coco_images_with_the_same_name(tmp_path: Path) -> None:
    same_names(tmp_path)
    assert cleaned(tmp_path)[-1].startswith("2 of 3 samples are kept")
    content = json.loads((tmp_path / "instances.cleaned.json").read_text())
    assert [row["file_name"] for row in content["images"]] == ["b/0001.jpg", "b/0002.jpg"]
    assert [row["image_id"] for row in content["annotations"]] == [8, 8, 9, 9]
    assert found(tmp_path / "instances.cleaned.json").problems == []


def test_fix_of_a_coco_file_whose_names_are_without_folder_leaves_out_the_bad_image(tmp_path: Path) -> None:
    names = official_coco(tmp_path)
    made.write(tmp_path / "val2017" / names[1], b"")
    assert cleaned(tmp_path)[-1].startswith("3 of 4 samples are kept")
    content = json.loads((tmp_path / "annotations/instances_val2017.cleaned.json").read_text())
    assert [row["file_name"] for row in content["images"]] == [names[0], *names[2:]]


def test_a_cleaned_coco_file_beside_its_original_is_no_second_set(tmp_path: Path) -> None:
    same_names(tmp_path)
    before = found(tmp_path)
    cleaned(tmp_path)
    after = found(tmp_path)
    assert told(after) == told(before) == {"image-empty": ["a/0001.jpg"]} and after.splits == before.splits == {"all": 3}


def test_two_coco_files_of_one_name_are_both_written_into_another_folder(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "valid")):
        made.write(tmp_path / f"data/{split}/{number}.jpg", made.encoded(number, quality=85))
        coco_file(tmp_path / f"data/{split}/_annotations.coco.json", [f"{number}.jpg"])
    data = tmp_path / "data"
    list(write_cleaned(found(data), str(data), Settings(jobs=1), tmp_path / "into"))
    written = {path.relative_to(tmp_path / "into").as_posix() for path in (tmp_path / "into").rglob("*.json")}
    assert written == {"train/_annotations.coco.cleaned.json", "valid/_annotations.coco.cleaned.json"}


# Pascal VOC


def voc_sample(folder: Path, image: str, label: str | None, seed: int, size: tuple[int, int] = made.SIZE) -> None:
    name = Path(image).stem
    made.write(folder / image, b"")
    made.picture(seed, size).save(folder / image, quality=85)
    if label:
        made.write(folder / label, made.voc_xml(name, made.boxes(seed), size))


def voc_with_lists(folder: Path, **lists: str) -> None:
    for number in range(6):
        voc_sample(folder, f"JPEGImages/{number}.jpg", f"Annotations/{number}.xml", number)
    for name, words in lists.items():
        made.write(folder / f"ImageSets/Main/{name}.txt", "".join(f"{word}\n" for word in words.split()))


def test_an_image_in_two_lists_of_voc_is_a_leak(tmp_path: Path) -> None:
    voc_with_lists(tmp_path, train="0 1 2 3", val="3 2 4 5", trainval="0 1 2 3 4 5")
    report = found(tmp_path)
    assert report.splits == {"train": 4, "val": 4}
    assert told(report) == {"split-leak": ["JPEGImages/2.jpg", "JPEGImages/3.jpg"]}
    assert report.problems[0].severity == "critical"
    cleaned(tmp_path)
    assert (tmp_path / "ImageSets/Main/train.cleaned.txt").read_text().split() == ["0", "1", "2", "3"]
    assert (tmp_path / "ImageSets/Main/val.cleaned.txt").read_text().split() == ["4", "5"]


def test_lists_of_one_class_each_are_no_leak(tmp_path: Path) -> None:
    voc_with_lists(tmp_path, cat_train="0 1 2", dog_train="2 1 0", cat_val="3 4 5", dog_val="3 4 5", cat_trainval="0 1 2 3 4 5")
    report = found(tmp_path)
    assert report.problems == [] and report.splits == {"train": 3, "val": 3}


def test_lists_that_name_no_split_put_an_image_into_one_of_them(tmp_path: Path) -> None:
    voc_with_lists(tmp_path, cat_trainval="0 1 2", dog_trainval="2 3 4 5")
    report = found(tmp_path)
    assert report.problems == [] and report.samples == 6


USUAL = [
    ("{}/images/{}.jpg", "{}/annotations/{}.xml"),
    ("{}/{}.jpg", "{}/{}.xml"),
    ("images/{}/{}.jpg", "annotations/{}/{}.xml"),
]
CASES = [(folders, *layout) for folders in (("train", "val"), ("camera1", "camera2")) for layout in USUAL]
CASES.append((("train", "val"), "{}/photos/{}.jpg", "{}/boxes/{}.xml"))


@every_case(("folders", "of_image", "of_label"), CASES)
def test_the_same_names_in_two_folders_of_voc_are_two_samples(
    folders: tuple[str, str], of_image: str, of_label: str, tmp_path: Path
) -> None:
    sizes = ((64, 48), (60, 52))
    for place, (folder, size) in enumerate(zip(folders, sizes, strict=True)):
        for number in range(3):
            image, label = of_image.format(folder, number), of_label.format(folder, number)
            voc_sample(tmp_path, image, label, 10 * place + number, size)
    report = found(tmp_path)
    assert report.problems == []
    assert report.splits == ({"train": 3, "val": 3} if "train" in folders else {"all": 6})
    (tmp_path / of_label.format(folders[1], 1)).unlink()
    assert told(found(tmp_path)) == {"label-missing": [of_image.format(folders[1], 1)]}


def test_a_label_whose_image_could_be_two_is_guessed_for_neither(tmp_path: Path) -> None:
    for place, split in enumerate(("train", "val")):
        voc_sample(tmp_path, f"images/{split}/0.jpg", None, place)
        voc_sample(tmp_path, f"images/{split}/only_{split}.jpg", f"xml/only_{split}.xml", 5 + place)
    voc_sample(tmp_path, "images/train/0.jpg", "xml/0.xml", 0)
    told_of = told(found(tmp_path))
    assert told_of == {"label-missing": ["images/train/0.jpg", "images/val/0.jpg"], "label-orphaned": ["xml/0.xml"]}


def test_a_label_of_another_split_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    for place, split in enumerate(("train", "val")):
        for number in range(3):
            voc_sample(tmp_path, f"{split}/images/{number}.jpg", f"{split}/annotations/{number}.xml", 10 * place + number)
    voc_sample(tmp_path, "train/images/7.jpg", None, 7)
    made.write(tmp_path / "val/annotations/7.xml", made.voc_xml("7", made.boxes(7), (640, 480)))
    (tmp_path / "val/annotations/1.xml").rename(tmp_path / "1.xml")
    told_of = told(found(tmp_path))
    assert told_of == {
        "label-missing": ["train/images/7.jpg", "val/images/1.jpg"],
        "label-orphaned": ["1.xml", "val/annotations/7.xml"],
    }


def test_masks_of_voc_are_no_samples(tmp_path: Path) -> None:
    voc_with_lists(tmp_path)
    for number in range(4):
        voc_sample(tmp_path, f"SegmentationClass/{number}.png", None, 30 + number)
        voc_sample(tmp_path, f"AnOtherView/{number}.png", None, 40 + number)
    assert found(tmp_path).samples == 6
    (tmp_path / "Annotations/2.xml").unlink()
    assert told(found(tmp_path)) == {"label-missing": ["JPEGImages/2.jpg"]}


def test_masks_in_the_folder_of_the_labels_are_not_taken_for_the_images(tmp_path: Path) -> None:
    for number in range(4):
        voc_sample(tmp_path, f"images/{number}.jpg", f"annotations/{number}.xml", number)
        voc_sample(tmp_path, f"annotations/{number}.png", None, 30 + number)
        voc_sample(tmp_path, f"annotations/trimaps/{number}.png", None, 40 + number)
    assert [entry.image for entry in entries(tmp_path)] == [f"images/{number}.jpg" for number in range(4)]


def test_two_years_of_voc_in_one_folder_keep_their_own_lists(tmp_path: Path) -> None:
    for place, year in enumerate(("VOC2007", "VOC2012")):
        for number in range(4):
            inner = f"VOCdevkit/{year}"
            voc_sample(tmp_path, f"{inner}/JPEGImages/{number}.jpg", f"{inner}/Annotations/{number}.xml", 10 * place + number)
        made.write(tmp_path / inner / "ImageSets/Main/train.txt", "0\n1\n2\n")
        made.write(tmp_path / inner / "ImageSets/Main/val.txt", "3\n9\n")
    report = found(tmp_path)
    assert report.splits == {"train": 6, "val": 2}
    assert told(report) == {"image-missing": [f"VOCdevkit/{year}/ImageSets/Main/val.txt" for year in ("VOC2007", "VOC2012")]}


# YOLO with keypoints


def pose_line(seed: int, points: int, width: int, **changed: str) -> str:
    parts = [f"{0.2 + 0.03 * ((seed + place) % 20):.3f} {0.9 - 0.04 * place:.3f}" for place in range(points)]
    words = [part + (f" {place % 3}" if width == 3 else "") for place, part in enumerate(parts)]
    for place, word in changed.items():
        words[int(place[1:])] = word
    return made.yolo_line(0, 4 + seed, 5, 40 + seed, 41).strip() + " " + " ".join(words) + "\n"


def pose(folder: Path, points: int, width: int) -> None:
    for place, split in enumerate(("train", "val")):
        for number in range(4):
            made.write(folder / f"images/{split}/{number}.jpg", made.encoded(10 * place + number, quality=85))
            lines = pose_line(number, points, width) + pose_line(number + 9, points, width)
            made.write(folder / f"labels/{split}/{number}.txt", lines)
    described = {"path": ".", "train": "images/train", "val": "images/val", "names": {0: "person"}}
    more = {"kpt_shape": [points, width], "flip_idx": list(range(points))}
    made.write(folder / "data.yaml", yaml.safe_dump({**described, **more}))


@every_case(("points", "width"), [(17, 3), (17, 2), (1, 2), (1, 3), (4, 2)])
def test_keypoints_behind_the_box_are_neither_wrong_nor_a_polygon(points: int, width: int, tmp_path: Path) -> None:
    pose(tmp_path, points, width)
    report = found(tmp_path)
    assert report.problems == [] and report.classes == {"person": 16}
    data = open_data(tmp_path, Settings(format="yolo"))
    assert isinstance(data, ImageSet)
    first, second = data.label_of(data.entries[0]).things
    assert (first.polygon, second.line) == (None, 2)
    assert first.box == pytest.approx((4 / 64, 5 / 48, 40 / 64, 41 / 48), abs=1e-5)


def test_keypoints_are_read_by_several_processes_too(tmp_path: Path) -> None:
    pose(tmp_path, 17, 3)
    for number in range(4, 60):
        made.write(tmp_path / f"images/train/{number}.jpg", made.encoded(100 + number, quality=85))
        made.write(tmp_path / f"labels/train/{number}.txt", pose_line(number % 20, 17, 3))
    assert validate(tmp_path, Settings(jobs=2)).problems == []


def test_a_line_with_too_few_numbers_for_its_keypoints_says_how_many_there_must_be(tmp_path: Path) -> None:
    pose(tmp_path, 17, 3)
    made.write(tmp_path / "labels/train/1.txt", made.yolo_line(0, 4, 5, 40, 41))
    made.write(tmp_path / "labels/val/2.txt", pose_line(1, 17, 3) + pose_line(2, 17, 2))
    (problem,) = found(tmp_path).problems
    assert (problem.code, problem.count) == ("label-unreadable", 2)
    assert "5 numbers" in problem.example and "56" in problem.example and "17 × 3" in problem.example


@every_case(
    ("width", "point", "is_bad"),
    [(3, "1.4 0.5 2", True), (3, "0.5 -0.2 1", True), (3, "1.4 0.5 0", False), (3, "1.004 0.5 2", False), (2, "0.5 7", True)],
)
def test_a_visible_keypoint_outside_the_image_is_told(width: int, point: str, is_bad: bool, tmp_path: Path) -> None:
    pose(tmp_path, 17, width)
    made.write(tmp_path / "labels/train/1.txt", pose_line(1, 17, width) + pose_line(2, 17, width, _5=point))
    report = found(tmp_path)
    assert told(report) == ({"box-outside": ["labels/train/1.txt"]} if is_bad else {})
    if is_bad:
        assert report.problems[0].example.startswith("labels/train/1.txt:2: keypoint 6 ")


def test_fix_of_a_set_with_keypoints_keeps_their_shape(tmp_path: Path) -> None:
    pose(tmp_path, 17, 3)
    made.write(tmp_path / "images/train/2.jpg", b"")
    cleaned(tmp_path)
    report = found(tmp_path / "data.cleaned.yaml")
    assert report.problems == [] and report.samples == 7
    assert len(yaml.safe_load((tmp_path / "data.cleaned.yaml").read_text())["flip_idx"]) == 17


def test_boxes_and_polygons_are_read_as_before_where_no_shape_of_keypoints_is_named(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    for wrong in ("[17]", "17", "[0, 3]", "[17, 5]", "null", "[a, 3]"):
        made.write(tmp_path / "data.yaml", f"train: images/train\nval: images/val\nnames: {made.NAMES}\nkpt_shape: {wrong}\n")
        assert found(tmp_path, quick=True).problems == []


def test_from_the_folder_of_a_project_the_only_data_yaml_below_names_the_classes(tmp_path: Path) -> None:
    made.yolo(tmp_path / "data")
    report = validate(tmp_path, Settings(jobs=1))
    assert list(report.classes) == made.NAMES and set(report.splits) == {"train", "val"} and not report.problems
    made.yolo(tmp_path / "second")
    assert set(validate(tmp_path, Settings(jobs=1)).classes) == {"0", "1", "2"}, "of two none is preferred"


def test_a_byte_order_mark_and_windows_line_ends_in_labels_are_read_and_told(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    labels = sorted((tmp_path / "labels").rglob("*.txt"))
    for path in labels:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = found(tmp_path)
    assert before.problems == []
    labels[0].write_bytes(b"\xef\xbb\xbf" + labels[0].read_bytes())
    after = found(tmp_path)
    assert told(after) == {"label-bom": [labels[0].relative_to(tmp_path).as_posix()]} and after.classes == before.classes


def test_a_split_with_backslashes_in_data_yaml_is_told_with_the_right_path(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    described = tmp_path / "data.yaml"
    described.write_text(described.read_text().replace("images/val", r"images\val"))
    (problem,) = (one for one in found(tmp_path).problems if one.code == "split-missing")
    assert problem.example == r"data.yaml: 'images\\val' is not there, but images/val is"


@every_case("as_id", [float, str])
def test_coco_ids_that_a_table_wrote_as_numbers_with_a_point_or_as_text_are_ids(as_id: Any, tmp_path: Path) -> None:
    names = official_coco(tmp_path)
    before = found(tmp_path)
    for path in (tmp_path / "annotations").glob("*.json"):
        content = json.loads(path.read_text())
        for row in content["images"]:
            row["id"], row["width"] = as_id(row["id"]), float(row["width"])
        for row in content["annotations"]:
            row["image_id"], row["category_id"] = as_id(row["image_id"]), float(row["category_id"])
        path.write_text(json.dumps(content))
    after = found(tmp_path)
    assert names and told(after) == told(before) and (after.classes, after.splits) == (before.classes, before.splits)


@every_case("row", [None, 3, {}, {"id": [1], "file_name": "x.jpg"}, {"id": 1, "file_name": ["x"]}])
def test_fix_of_a_coco_file_drops_rows_that_are_no_images(row: Any, tmp_path: Path) -> None:
    official_coco(tmp_path)
    for path in (tmp_path / "annotations").glob("*.json"):
        content = json.loads(path.read_text())
        path.write_text(
            json.dumps({**content, "images": [row, *content["images"]], "annotations": [row, *content["annotations"]]})
        )
    assert cleaned(tmp_path)
    for path in (tmp_path / "annotations").glob("*.cleaned.json"):
        assert row not in json.loads(path.read_text())["annotations"]


def test_links_to_nothing_and_links_in_a_circle_are_told(tmp_path: Path) -> None:
    made.image_folder(tmp_path)
    folder = next(path for path in sorted(tmp_path.rglob("*")) if path.is_dir() and list(path.glob("*.png")))
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    (folder / "self.png").symlink_to("self.png")
    (folder / "up").symlink_to("..")
    (folder / "other.txt").symlink_to("nowhere")
    where = folder.relative_to(tmp_path).as_posix()
    assert told(found(tmp_path)) == {"image-missing": [f"{where}/gone.jpg", f"{where}/self.png"]}


def test_a_name_that_is_not_utf_8_is_read_remembered_and_written(tmp_path: Path) -> None:
    made.image_folder(tmp_path / "data")
    folder = next(path for path in sorted((tmp_path / "data").rglob("*")) if path.is_dir() and list(path.glob("*.png")))
    name = os.fsdecode(b"cut\xff.jpg")
    (folder / name).write_bytes(made.encoded(77)[:300])
    settings = Settings(jobs=1, cache=tmp_path / "cache")
    first, second = (validate(tmp_path / "data", settings) for _ in range(2))
    assert second.remembered and told(first) == told(second) and "image-truncated" in told(first)
    (tmp_path / "data" / "later.txt").write_text("")  # the report is made again, from what is remembered of the samples
    assert told(validate(tmp_path / "data", settings)) == told(first)
    write_quarantine(first, str(tmp_path / "data"), settings, tmp_path / "skip.txt")
    assert [Path(path).name for path in read_quarantine(tmp_path / "skip.txt")] == [name]
    assert list(write_cleaned(first, str(tmp_path / "data"), settings, tmp_path / "clean"))


def test_images_that_no_loader_decodes_are_named(tmp_path: Path) -> None:
    made.write(tmp_path / "a" / "photo.HEIC", b"\0\0\0\x18ftypheic")
    with pytest.raises(UsageError, match=r"1 \.heic files, which most loaders cannot decode"):
        found(tmp_path)
    made.image_folder(tmp_path)
    assert "not checked, because most loaders cannot decode them: 1 .heic files" in found(tmp_path).notes


def test_a_jpeg_with_four_channels_is_cmyk_not_rgba(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    made.picture(5, mode="CMYK").save(tmp_path / "images/train/train00.jpg")
    (problem,) = (one for one in found(tmp_path).problems if one.code == "image-channels")
    assert problem.example.startswith("images/train/train00.jpg: 4 channels (CMYK); ")
    assert problem.example.endswith("others have 3 channels (RGB)")


def test_a_data_yaml_whose_text_would_fill_the_memory_is_judged_without_writing_it_out(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    bomb = "".join(f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 10)}]\n" for level in range(12))
    described = tmp_path / "data.yaml"
    described.write_text(f"a0: &a0 [x]\n{bomb}{re.sub('nc:.*', '', described.read_text())}\nnc: *a12\n")
    (problem,) = found(tmp_path).problems
    assert problem.example == "data.yaml: nc is a list, not a number of classes"
