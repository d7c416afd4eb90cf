"""Faults that are put into sound image data, one at a time: what each does, and the code under which it is found."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import made_data as made
from PIL import Image, ImageFilter


def image(folder: Path, name: str = "train03") -> Path:
    return next(
        path for path in sorted(folder.rglob(f"{name}.*")) if path.suffix in (".jpg", ".png") and path.parents[1].name != "masks"
    )


def cut(folder: Path) -> None:
    path = image(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def scramble(folder: Path) -> None:
    image(folder).write_bytes(b"this is no image, whatever its name says" * 20)


def empty_image(folder: Path) -> None:
    image(folder).write_bytes(b"")


def rename(folder: Path) -> None:
    """BMP content under the old name."""
    path = image(folder)
    buffer = io.BytesIO()
    Image.open(path).save(buffer, "BMP")
    path.write_bytes(buffer.getvalue())


def tiny(folder: Path) -> None:
    save(made.picture(900, (64, 6)), image(folder))


def long(folder: Path) -> None:
    save(made.picture(900, (264, 48)), image(folder))


def black(folder: Path) -> None:
    save(made.picture(900).point(lambda value: value // 20), image(folder))


def white(folder: Path) -> None:
    save(made.picture(900).point(lambda value: 243 + value // 20), image(folder))


def one_colour(folder: Path) -> None:
    save(Image.new("RGB", made.SIZE, (90, 120, 30)), image(folder))


def blurred(folder: Path) -> None:
    save(made.picture(900).filter(ImageFilter.GaussianBlur(10)), image(folder))


def grey(folder: Path) -> None:
    save(made.picture(900, made.SIZE, "L"), image(folder))


def save(picture: Image.Image, path: Path, **options: object) -> None:
    picture.save(path, "JPEG" if path.suffix == ".jpg" else "PNG", **options)


def turn(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = image(folder)
    picture = Image.open(path).copy()
    save(picture, path, exif=exif.tobytes())


def twice(folder: Path) -> None:
    image(folder, "train04").write_bytes(image(folder).read_bytes())


def nearly_twice(folder: Path) -> None:
    brighter = Image.open(image(folder)).point(lambda value: min(255, int(value * 1.08)))
    save(brighter, image(folder, "train04"))


def leak(folder: Path) -> None:
    image(folder, "val02").write_bytes(image(folder).read_bytes())


def near_leak(folder: Path) -> None:
    picture = Image.open(image(folder))
    smaller = picture.resize((48, 36)).resize(picture.size)
    save(smaller, image(folder, "val02"))


def darker_validation(folder: Path) -> None:
    """Validation images twice as dark, as where one side is prepared differently."""
    for number in range(made.MANY["val"]):
        path = image(folder, f"val{number:02}")
        save(Image.open(path).point(lambda value: value // 3), path)


def all_in_one_mode(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        Image.open(path).convert("RGBA").save(path)


ANY_IMAGE = [
    (cut, {"image-truncated"}),
    (scramble, {"image-unreadable"}),
    (empty_image, {"image-empty"}),
    (rename, {"image-extension"}),
    (grey, {"image-channels"}),
    (black, {"image-blank"}),
    (white, {"image-blank"}),
    (one_colour, {"image-blank"}),
    (blurred, {"image-blurred"}),
    (twice, {"duplicate-sample"}),
    (nearly_twice, {"near-duplicate"}),
    (leak, {"split-leak"}),
    (near_leak, {"split-leak"}),
    (darker_validation, {"preprocessing-mismatch"}),
]


def label(folder: Path) -> Path:
    return next(path for ending in (".txt", ".xml") for path in sorted(folder.rglob(f"train03{ending}")))


def edit_boxes(folder: Path, change: Callable[[list[tuple[int, int, int, int, int]]], None]) -> None:
    """Change the boxes of train03 in whatever format."""
    objects = made.boxes(3)
    change(objects)
    if (folder / "annotations").is_dir():
        edit_json(folder, lambda content: replace_boxes(content, objects))
    elif label(folder).suffix == ".xml":
        label(folder).write_text(made.voc_xml("train03", objects))
    else:
        label(folder).write_text("".join(made.yolo_line(*box) for box in objects))


def edit_json(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def replace_boxes(content: dict, objects: list[tuple[int, int, int, int, int]]) -> None:
    others = [row for row in content["annotations"] if row["image_id"] != 3]
    content["annotations"] = others + [
        {"id": 9000 + place, "image_id": 3, "category_id": kind + 1, "bbox": [left, top, right - left, bottom - top]}
        for place, (kind, left, top, right, bottom) in enumerate(objects)
    ]


def zero_area(folder: Path) -> None:
    edit_boxes(folder, lambda objects: objects.append((0, 40, 30, 40, 30)))


def outside(folder: Path) -> None:
    edit_boxes(folder, lambda objects: objects.append((0, 50, 30, 90, 40)))


def absurd(folder: Path) -> None:
    edit_boxes(folder, lambda objects: objects.append((0, 1, 44, 63, 45)))


def repeated(folder: Path) -> None:
    edit_boxes(folder, lambda objects: objects.append(objects[0]))


def no_object(folder: Path) -> None:
    edit_boxes(folder, lambda objects: objects.clear())


BOXES = [
    (zero_area, {"box-zero-area"}),
    (outside, {"box-outside"}),
    (absurd, {"box-aspect"}),
    (repeated, {"box-duplicate"}),
    (no_object, {"label-empty"}),
]


def unknown_class(folder: Path) -> None:
    if (folder / "annotations").is_dir():
        edit_json(folder, lambda content: content["annotations"][0].update(category_id=77))
    elif label(folder).suffix == ".xml":
        label(folder).write_text(label(folder).read_text().replace(f"<name>{made.NAMES[0]}", "<name>bat"))
    else:
        label(folder).write_text("7 0.5 0.5 0.2 0.2\n")


def unused_class(folder: Path) -> None:
    if (folder / "annotations").is_dir():
        edit_json(folder, lambda content: content["categories"].append({"id": 9, "name": "bat"}))
    elif (folder / "classes.txt").exists():
        (folder / "classes.txt").write_text("\n".join([*made.NAMES, "bat"]))
    else:
        (folder / "data.yaml").write_text((folder / "data.yaml").read_text().replace("'owl'", "'owl', 'bat'"))


def bad_label(folder: Path) -> None:
    if (folder / "annotations").is_dir():
        edit_json(folder, lambda content: content["annotations"][0].update(bbox=["a", None, 3, 4]))
    else:
        label(folder).write_text("0 0.5 nonsense 0.2 0.2\n" if label(folder).suffix == ".txt" else "<annotation><object>")


def other_size(folder: Path) -> None:
    if (folder / "annotations").is_dir():
        edit_json(folder, lambda content: content["images"][0].update(width=640, height=480))
    else:
        label(folder).write_text(made.voc_xml("train03", made.boxes(3), (640, 480)))


def shared_image_id(folder: Path) -> None:
    path = folder / "annotations/instances_train.json"
    path.write_text(
        path.read_text().replace('{"id": 4, "file_name"', '{"id": 3, "file_name"').replace('"image_id": 4,', '"image_id": 3,')
    )


def shared_annotation_id(folder: Path) -> None:
    edit_json(folder, lambda content: content["annotations"][5].update(id=content["annotations"][4]["id"]))


def shared_category_id(folder: Path) -> None:
    edit_json(folder, lambda content: content["categories"].append({"id": 2, "name": "bat"}))


def put_mask(folder: Path, **mask: object) -> None:
    edit_json(folder, lambda content: content["annotations"][0].update(segmentation=mask))


def other_mask(folder: Path) -> None:
    put_mask(folder, size=[64, 48], counts=[3000, 72])


def short_mask(folder: Path) -> None:
    put_mask(folder, size=[48, 64], counts=[3000, 71])


def short_packed_mask(folder: Path) -> None:
    put_mask(folder, size=[48, 64], counts=packed([3000, 20, 30, 21]))


def sound_masks(folder: Path) -> None:
    edit_json(folder, lambda content: content["annotations"][1].update(segmentation={"size": [48, 64], "counts": [3000, 72]}))
    put_mask(folder, size=[48, 64], counts=packed([3000, 20, 30, 22]))


def packed(runs: list[int]) -> str:
    """Runs as pycocotools writes them: differences from the third on, five bits a letter, the sign in the last one."""
    letters = ""
    for place, run in enumerate(runs):
        value, more = run - (runs[place - 2] if place > 2 else 0), True
        while more:
            piece, value = value & 31, value >> 5
            more = value != (-1 if piece & 16 else 0)
            letters += chr(48 + piece + 32 * more)
    return letters


def more_names(folder: Path) -> None:
    (folder / "data.yaml").write_text((folder / "data.yaml").read_text() + "nc: 4\n")


def fewer_names(folder: Path) -> None:
    """Labels of the third class are beyond a model with two outputs."""
    (folder / "data.yaml").write_text((folder / "data.yaml").read_text() + "nc: 2\n")


def only_a_count(folder: Path) -> None:
    (folder / "data.yaml").write_text((folder / "data.yaml").read_text().split("names")[0] + "nc: 2\n")


def the_right_count(folder: Path) -> None:
    (folder / "data.yaml").write_text((folder / "data.yaml").read_text() + "nc: 3\n")


IDS = [
    (shared_image_id, {"id-duplicate"}),
    (shared_annotation_id, {"id-duplicate"}),
    (shared_category_id, {"id-duplicate"}),
    (other_mask, {"rle-size"}),
    (short_mask, {"rle-size"}),
    (short_packed_mask, {"rle-size"}),
    (sound_masks, set()),
]
COUNTS = [
    (more_names, {"class-count"}),
    (fewer_names, {"class-count", "class-out-of-range"}),
    (only_a_count, {"class-out-of-range"}),
    (the_right_count, set()),
]
LABELS = [
    (unknown_class, {"class-out-of-range"}),
    (unused_class, {"class-unused"}),
    (bad_label, {"label-unreadable"}),
]


def remove_label(folder: Path) -> None:
    label(folder).unlink()


def orphan(folder: Path) -> None:
    if (folder / "annotations").is_dir():
        edit_json(
            folder, lambda content: content["annotations"].append({**content["annotations"][0], "id": 8000, "image_id": 4242})
        )
    else:
        shutil.copy(label(folder), label(folder).with_stem("nobody"))


def remove_image(folder: Path) -> None:
    image(folder).unlink()


def rare(folder: Path) -> None:
    """One class in one image only, and eighty objects of the others."""
    for number in range(made.MANY["train"]):
        lines = [made.yolo_line(1 + place % 2, 2 + place, 3 + place, 20 + place, 30 + place) for place in range(12)]
        (folder / f"labels/train/train{number:02}.txt").write_text("".join(lines))
    for number in range(made.MANY["val"]):
        lines = [made.yolo_line(1 + place % 2, 2 + place, 3 + place, 20 + place, 30 + place) for place in range(12)]
        (folder / f"labels/val/val{number:02}.txt").write_text("".join(lines))
    (folder / "labels/train/train03.txt").write_text(made.yolo_line(0, 4, 5, 30, 30))


def other_shares(folder: Path) -> None:
    for number in range(made.MANY["val"]):
        lines = [made.yolo_line(0, 2, 3, 20 + number, 30), made.yolo_line(0, 12, 13, 30 + number, 40)]
        (folder / f"labels/val/val{number:02}.txt").write_text("".join(lines))


def link_out(folder: Path) -> None:
    (folder / "images/train/passwd.jpg").symlink_to("/etc/hostname")


def absolute_split(folder: Path) -> None:
    path = folder / "data.yaml"
    path.write_text(path.read_text() + "test: /etc\n")


def missing_split(folder: Path) -> None:
    path = folder / "data.yaml"
    path.write_text(path.read_text() + "test: images/test\n")


def one_class(folder: Path) -> None:
    for name in ("dog", "owl"):
        for path in list(folder.glob(f"*/{name}/*.png")):
            path.rename(path.parents[1] / "cat" / path.name)
        for split in made.MANY:
            shutil.rmtree(folder / split / name)


def a_mask(folder: Path) -> Path:
    return folder / "masks/train/train03.png"


def small_mask(folder: Path) -> None:
    made.mask(3).resize((32, 24), Image.Resampling.NEAREST).save(a_mask(folder))


def blurred_mask(folder: Path) -> None:
    made.mask(3).resize((20, 15), Image.Resampling.BILINEAR).resize(made.SIZE, Image.Resampling.BILINEAR).save(a_mask(folder))


def broken_mask(folder: Path) -> None:
    a_mask(folder).write_bytes(a_mask(folder).read_bytes()[:60])


def wrong_class_mask(folder: Path) -> None:
    made.mask(3, (1, 9)).save(a_mask(folder))


def no_mask(folder: Path) -> None:
    a_mask(folder).unlink()


def empty_mask(folder: Path) -> None:
    made.mask(3, ()).save(a_mask(folder))


CASES = [
    *[(name, *case) for name in ("yolo", "image-folder") for case in ANY_IMAGE],
    *[("coco", *case) for case in ANY_IMAGE[:2]],
    *[("masks", *case) for case in ANY_IMAGE if case[0] in (cut, scramble, leak)],
    *[(name, *case) for name in ("yolo", "voc", "coco") for case in (*BOXES, *LABELS, (turn, {"exif-rotation"}))],
    *[(name, other_size, {"label-size"}) for name in ("voc", "coco")],
    *[(name, remove_label, {"label-missing"}) for name in ("yolo", "voc")],
    *[(name, orphan, {"label-orphaned"}) for name in ("yolo", "voc", "coco")],
    *[("coco", *case) for case in IDS],
    *[("yolo", *case) for case in COUNTS],
    ("yolo", tiny, {"image-tiny"}),
    ("image-folder", long, {"image-aspect"}),
    ("coco", remove_image, {"image-missing"}),
    ("yolo", rare, {"class-imbalance"}),
    ("yolo", other_shares, {"split-classes-differ"}),
    ("yolo", link_out, {"path-outside"}),
    ("yolo", absolute_split, {"path-outside"}),
    ("yolo", missing_split, {"split-missing"}),
    ("image-folder", one_class, {"one-class"}),
    ("image-folder", all_in_one_mode, {"image-alpha"}),
    ("masks", turn, {"exif-rotation"}),
    ("masks", small_mask, {"mask-size"}),
    ("masks", blurred_mask, {"mask-values"}),
    ("masks", broken_mask, {"mask-unreadable"}),
    ("masks", no_mask, {"label-missing"}),
    ("masks", empty_mask, {"mask-empty"}),
    ("class-masks", wrong_class_mask, {"mask-values"}),
]
MORE = [("voc", *case) for case in ANY_IMAGE] + [("coco", *case) for case in ANY_IMAGE[2:]]
