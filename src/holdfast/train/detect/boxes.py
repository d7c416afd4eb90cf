"""The labels of a detection data set, read before the first image is: classes, boxes, and what is missing to train on it."""

from __future__ import annotations

import shlex
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.cache import cache_folder
from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.samples import ClassKey, Entry, ImageSet
from holdfast.errors import UsageError

_Floats = npt.NDArray[np.float32]

_LEAST_SIDE = 0.5  # pixels of the original image: a box with a smaller side is nothing, as `holdfast validate` has it


def open_boxes(path: str | Path, format: str | None = None) -> ImageSet:
    """Open a data set for detection: YOLO, COCO or Pascal VOC."""
    data = open_data(path, Settings(format=format, cache=cache_folder()))
    if not isinstance(data, ImageSet) or not data.has_boxes:
        raise UsageError(f"{path} holds no boxes to detect.", fix="name a data set in YOLO, COCO or Pascal VOC format")
    for fault in data.faults:
        if fault.code == "class-count":
            fix = "remove the line that begins with nc: the names are counted; or list the missing names"
            raise UsageError(f"{described(data)}: {fault.detail}.", fix=fix)
    return data


def class_keys(data: ImageSet) -> list[ClassKey]:
    """The classes in the order of the model's outputs: by number where they have one, otherwise as the data set lists them.

    Where the data set has no list, they are those of all labels, sorted; the set then keeps them as its list.
    """
    if not data.classes_are_known:
        met = {thing.class_id for entry in data.entries for thing in data.label_of(entry).things}
        data.classes = {key: data.class_name(key) for key in sorted(met, key=lambda key: (isinstance(key, str), key))}
        data.classes_are_known = True
    keys = list(data.classes)
    return sorted(keys) if all(isinstance(key, int) for key in keys) else keys


class Labels(NamedTuple):
    """The boxes of all images behind each other; those of image i are at starts[i] to starts[i + 1]."""

    starts: npt.NDArray[np.int64]
    boxes: _Floats
    classes: npt.NDArray[np.int64]
    are_fractions: npt.NDArray[np.bool_]  # of the image's sides; otherwise pixels

    def of(self, index: int, size: tuple[int, int]) -> tuple[_Floats, npt.NDArray[np.int64]]:
        """Corners as fractions of an image of this height and width, clipped to it, and classes; no empty boxes."""
        own = slice(self.starts[index], self.starts[index + 1])
        sides = np.array([size[1], size[0]] * 2, np.float32)
        boxes = np.clip(self.boxes[own] if self.are_fractions[index] else self.boxes[own] / sides, 0, 1)
        kept = ((boxes[:, 2:] - boxes[:, :2]) * sides[:2] >= _LEAST_SIDE).all(axis=1)
        return boxes[kept], self.classes[own][kept]


def check_splits(path: str | Path) -> None:
    """Raise UsageError where a data set cannot be trained on: no boxes, another number of classes, or a split without images."""
    data = open_boxes(path)
    for split in ("train", "val"):
        entries_of(data, split)


def described(data: ImageSet) -> Path:
    """The file that describes a data set, or its folder."""
    return data.root / (data.described_by or "")


def validate_command(data: ImageSet) -> str:
    """What to type to see everything that is wrong with a data set."""
    return f"holdfast validate {shlex.quote(str(described(data)))}"


def entries_of(data: ImageSet, split: str) -> list[Entry]:
    """The images of a split; none is an error that says which splits there are, and how this format names the missing one."""
    if entries := [entry for entry in data.entries if entry.split == split]:
        return entries
    path = described(data)
    missing = next((fault.detail for fault in data.faults if fault.code == "split-missing" and split in fault.detail), "")
    problem = f"{path} has no images in the split {split}{f' ({missing})' if missing else ''}"
    fix = {
        "yolo": f"name a folder with images in {path.name if data.described_by else 'a data.yaml'}: {split}: images/{split}",
        "coco": f"name the folder that holds the JSON files of all splits, such as instances_{split}.json",
    }.get(data.format, f"list the images in ImageSets/Main/{split}.txt, or put them in a folder {split}")
    raise UsageError(f"{problem}; its splits: {', '.join(data.splits) or 'none'}.", fix=fix)


def read_labels(data: ImageSet, split: str) -> Labels:
    """The labels of a split, with classes as places in `class_keys`."""
    places = {key: place for place, key in enumerate(class_keys(data))}
    starts, boxes, classes, are_fractions = array("q", [0]), array("f"), array("q"), []
    for entry in entries_of(data, split):
        label = data.label_of(entry)
        for thing in label.things:
            if thing.class_id not in places:
                raise UsageError(
                    f"{entry.label} has class {thing.class_id!r}, which {described(data).name} does not list.",
                    fix=f"list the class or correct the label; all such labels: {validate_command(data)}",
                )
            classes.append(places[thing.class_id])
            boxes.extend(thing.box)
        starts.append(len(classes))
        are_fractions.append(label.shares)
    if not classes:
        problem = f"no image in the split {split} of {described(data)} has a box."
        raise UsageError(problem, fix=f"see why: {validate_command(data)}")
    corners = np.frombuffer(boxes, np.float32).reshape(-1, 4)
    return Labels(np.frombuffer(starts, np.int64), corners, np.frombuffer(classes, np.int64), np.array(are_fractions))
