"""Detection data for a loader: images resized to one size, with their boxes; augmented for training.

A sample depends on the seed, the epoch and its index, and on nothing else: not on the worker that loads it, nor on the samples
before it. So a resumed epoch need not load again what it has used, and any number of workers and ranks gives the same samples.
"""

from __future__ import annotations

import shlex
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, default_collate

from holdfast.data.cache import cache_folder, fingerprint, fingerprint_of_files
from holdfast.data.checks.images import way_of
from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.listing import read_bytes
from holdfast.data.pixels import exif_orientation, opened
from holdfast.data.samples import ClassKey, Entry, ImageSet
from holdfast.data.visualize.pictures import stretched
from holdfast.errors import UsageError
from holdfast.train.detect.augment import Augmentation, Floats, Picture, mosaic
from holdfast.train.detect.cache import (
    CacheKind,
    ImageCache,
    Progress,
    Size,
    cached_in_memory,
    cached_on_disk,
    plan_memory,
)

Sample = dict[str, Any]

_LARGEST_FILE = 1 << 30
_LEAST_SIDE = 0.5  # pixels of the original image: a box with a smaller side is nothing, as `holdfast validate` has it
_DECODED = 1  # raise it whenever images are decoded or resized in another way: caches on disk are made anew


class UnreadableImage(UsageError):
    """An image that cannot be read in the middle of a training.

    A loader's worker hands an error on as one text with its traceback: the problem and the fix are read from that again.
    """

    def __init__(self, problem: str, *, fix: str = "") -> None:
        if not fix:
            problem, _, fix = problem.rpartition(f"{type(self).__name__}: ")[2].rstrip().partition("\n  fix: ")
        super().__init__(problem, fix=fix)

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


def open_boxes(path: str | Path, format: str | None = None) -> ImageSet:
    """Open a data set for detection: YOLO, COCO or Pascal VOC."""
    data = open_data(path, Settings(format=format, cache=cache_folder()))
    if not isinstance(data, ImageSet) or not data.has_boxes:
        raise UsageError(f"{path} holds no boxes to detect.", fix="name a data set in YOLO, COCO or Pascal VOC format")
    for fault in data.faults:
        if fault.code == "class-count":
            raise UsageError(f"{fault.file}: {fault.detail}.", fix="let nc be the number of names, or remove nc")
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


class _Labels(NamedTuple):
    """The boxes of all images behind each other; those of image i are at starts[i] to starts[i + 1]."""

    starts: npt.NDArray[np.int64]
    boxes: Floats
    classes: npt.NDArray[np.int64]
    are_fractions: npt.NDArray[np.bool_]  # of the image's sides; otherwise pixels

    def of(self, index: int, size: Size) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Corners as fractions of an image of this size, clipped to it, and classes; without boxes that have no area."""
        own = slice(self.starts[index], self.starts[index + 1])
        sides = np.array([size[1], size[0]] * 2, np.float32)
        boxes = np.clip(self.boxes[own] if self.are_fractions[index] else self.boxes[own] / sides, 0, 1)
        kept = ((boxes[:, 2:] - boxes[:, :2]) * sides[:2] >= _LEAST_SIDE).all(axis=1)
        return boxes[kept], self.classes[own][kept]


class DetectionData(Dataset[Sample]):
    """The images of one split. Without `augmentation` they are only resized; mosaic is used in the first `mosaic_epochs`."""

    def __init__(
        self,
        data: ImageSet,
        split: str,
        *,
        imgsz: int,
        augmentation: Augmentation | None = None,
        mosaic_epochs: int | None = None,
        seed: int = 0,
    ) -> None:
        self.imgsz, self.augmentation, self.mosaic_epochs, self.seed = imgsz, augmentation, mosaic_epochs, seed
        self.split, self.epoch = split, 0
        self.path = data.root / (data.described_by or "")
        self._root, self._read_label = data.root, data.read_label
        self._entries = [entry for entry in data.entries if entry.split == split]
        if not self._entries:
            raise _no_images(data, split, self.path)
        keys = class_keys(data)
        self.classes = [data.class_name(key) for key in keys]
        self._labels = self._read_labels({key: place for place, key in enumerate(keys)})
        self._cache: ImageCache | None = None
        self._stamp = fingerprint_of_files(
            {one.image: data.listing.files.get(one.image, (0, 0)) for one in self._entries}, _DECODED
        )

    def __len__(self) -> int:
        return len(self._entries)

    def set_epoch(self, epoch: int) -> None:
        """Called at the start of each epoch, before the workers start."""
        self.epoch = epoch

    @property
    def _validate(self) -> str:
        return f"holdfast validate {shlex.quote(str(self.path))}"

    def file(self, index: int) -> str:
        """The image file of a sample, relative to the data set's folder."""
        return self._entries[index].image

    def __getitem__(self, index: int) -> Sample:
        picture, size = self._picture(index)
        if self.augmentation is not None:
            picture = self._augmented(picture, index, self.augmentation)
        left, top, right, bottom = picture.boxes.T / np.float32(self.imgsz)
        boxes = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=1)
        return {
            "image": picture.image,
            "boxes": torch.from_numpy(boxes),
            "classes": torch.from_numpy(picture.classes),
            "index": index,
            "size": size,
        }

    def _augmented(self, picture: Picture, index: int, augmentation: Augmentation) -> Picture:
        random = np.random.default_rng((self.seed, self.epoch, index))
        is_closed = self.mosaic_epochs is not None and self.epoch >= self.mosaic_epochs
        if augmentation.wants_mosaic(random) and not is_closed:
            others = random.integers(len(self), size=3).tolist()
            picture = mosaic([picture, *(self._picture(other)[0] for other in others)], random)
        return augmentation.apply(picture, self.imgsz, random)

    def _picture(self, index: int) -> tuple[Picture, Size]:
        """A sample as it is resized, and the size of its original."""
        image, size = self._cache[index] if self._cache is not None else self._decoded(index)
        boxes, classes = self._labels.of(index, size)
        return Picture.whole(image, boxes * np.float32(self.imgsz), classes), size

    def original(self, index: int) -> tuple[str, Image.Image]:
        """The file of a sample, and the image in its own size, the way its labels mean it."""
        return self.file(index), self._opened(index, None)[0]

    def _decoded(self, index: int) -> tuple[torch.Tensor, Size]:
        """The resized image, and the size of the original."""
        image, size = self._opened(index, self.imgsz)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if pixels.shape[1:] == (self.imgsz, self.imgsz):
            return pixels.contiguous(), size
        sides = (self.imgsz, self.imgsz)  # a fifth of the time that Pillow takes, and the same pixels
        return torch.nn.functional.interpolate(pixels[None], sides, mode="bilinear", antialias=True)[0].contiguous(), size

    def _opened(self, index: int, least: int | None) -> tuple[Image.Image, Size]:
        entry = self._entries[index]
        try:
            return _read(self._root / entry.image, least, lambda *turn: self._fits(entry, *turn))
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            raise UnreadableImage(
                f"{entry.image} cannot be read: {' '.join(str(error).split()) or type(error).__name__}.",
                fix=f"replace or remove it, then resume; all such files: {self._validate}",
            ) from None

    def _fits(self, entry: Entry, orientation: int, width: int, height: int) -> str:
        return way_of(self._read_label(self._root, entry), orientation, width, height)

    def _read_labels(self, places: dict[ClassKey, int]) -> _Labels:
        starts, boxes, classes, are_fractions = array("q", [0]), array("f"), array("q"), []
        for entry in self._entries:
            label = self._read_label(self._root, entry)
            for thing in label.things:
                if thing.class_id not in places:
                    raise UsageError(
                        f"{entry.label} has class {thing.class_id!r}, which {self.path.name} does not list.",
                        fix=f"list the class or correct the label; all such labels: {self._validate}",
                    )
                classes.append(places[thing.class_id])
                boxes.extend(thing.box)
            starts.append(len(classes))
            are_fractions.append(label.shares)
        if not classes:
            raise UsageError(f"no image in the split {self.split} of {self.path} has a box.", fix=f"see why: {self._validate}")
        corners = np.frombuffer(boxes, np.float32).reshape(-1, 4)
        return _Labels(np.frombuffer(starts, np.int64), corners, np.frombuffer(classes, np.int64), np.array(are_fractions))

    def fill_cache(self, kind: CacheKind, progress: Progress | None = None) -> None:
        """Decode and resize all images, in this process, before the workers start."""
        if kind == "ram":
            self._cache = cached_in_memory(len(self), self.imgsz, self._decoded, progress)
        else:
            name = f"{fingerprint(str(self.path), self.split)}-{self.imgsz}"
            self._cache = cached_on_disk(name, self._stamp, len(self), self.imgsz, self._decoded, progress)


def fill_caches(parts: Sequence[DetectionData], kind: CacheKind, progress: Progress | None = None) -> None:
    """Cache several splits; whether they fit together is checked before the first image is read."""
    if kind == "ram":
        plan_memory(sum(map(len, parts)), parts[0].imgsz)
    for part in parts:
        part.fill_cache(kind, progress)


def collate(samples: list[Sample]) -> dict[str, Any]:
    """Samples as a batch; the boxes of each image are a tensor of their own."""
    return {
        "images": default_collate([sample["image"] for sample in samples]),
        "boxes": [sample["boxes"] for sample in samples],
        "classes": [sample["classes"] for sample in samples],
        "index": torch.tensor([sample["index"] for sample in samples]),
        "size": torch.tensor([sample["size"] for sample in samples]),
    }


def _read(path: Path, least: int | None, fits: Callable[[int, int, int], str]) -> tuple[Image.Image, Size]:
    """Decode an image to RGB, the way its labels mean it, and say how large it is. A JPEG may come smaller, down to `least`."""
    image: Image.Image = opened(read_bytes(path, limit=_LARGEST_FILE))
    (width, height), exif = image.size, image.info.get("exif")
    orientation = exif_orientation(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else 1
    if least is not None:
        image.draft("RGB", (least, least))
    if orientation > 1 and fits(orientation, width, height) != "stored":
        image = ImageOps.exif_transpose(image)
        width, height = (height, width) if orientation > 4 else (width, height)
    image.load()
    if image.mode != "RGB":
        image = stretched(image) if image.mode.startswith(("I", "F")) else image.convert("RGB")
    return image, (height, width)


def _no_images(data: ImageSet, split: str, path: Path) -> UsageError:
    """Which splits there are, and how the one that is missing is named in this format."""
    missing = next((fault.detail for fault in data.faults if fault.code == "split-missing" and split in fault.detail), "")
    problem = f"{path} has no images in the split {split}{f' ({missing})' if missing else ''}"
    fix = {
        "yolo": f"name a folder with images in {path.name if data.described_by else 'a data.yaml'}: {split}: images/{split}",
        "coco": f"name the folder that holds the JSON files of all splits, such as instances_{split}.json",
    }.get(data.format, f"list the images in ImageSets/Main/{split}.txt, or put them in a folder {split}")
    return UsageError(f"{problem}; its splits: {', '.join(data.splits) or 'none'}.", fix=fix)
